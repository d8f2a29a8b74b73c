// Package recording decides which terminals and commands are recorded, and keeps the files within their bounds. Package cast writes them.
package recording

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"trl/metrics"
	"trl/pool/ids"
	"trl/protocol"
	"trl/runtime/cast"
)

// Config sets what is recorded and where. Without a Dir nothing is recorded.
type Config struct {
	Policy     string        // off, terminals, execs or all: what is recorded even if no client asks for it
	Dir        string        // made with the first recording
	MaxBytes   int64         // of one recording; 0 means 64 MiB
	TotalBytes int64         // of all recordings; 0 means 1 GiB
	Keep       time.Duration // how long an ended recording is kept; 0: as long as there is room
}

const (
	// maxRecordings bounds the index in memory and the time in which a gateway reads it at its start, some 0.3 s.
	maxRecordings = 10_000
	// listedRecordings bounds the recordings in one answer.
	listedRecordings = 1000
	// diskBlock is the smallest size of a file on the disk.
	diskBlock = 4 << 10

	castSuffix = ".cast"
)

// Unfinished returns true if there is a recording with that id that has not ended.
func (r *Store) Unfinished(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.all[id]
	return rec != nil && rec.place.End == ""
}

// HasEnded returns true if there is a recording with that id that has ended.
func (r *Store) HasEnded(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.all[id]
	return rec != nil && rec.place.End != ""
}

// Set is a set of the kinds of streams that are recorded.
type Set uint8

const (
	Terminals Set = 1 << iota
	Execs
)

var setNames = []string{"off", "terminals", "execs", "all"} // indexed by a Set

func ParseSet(word string) Set {
	return Set(max(0, slices.Index(setNames, word)))
}

func (r Set) String() string { return setNames[r] }

// Store has all recordings, those in progress too: the files of one directory. It does not touch other files there.
type Store struct {
	config   Config
	demanded Set // what the policy demands
	metrics  *metrics.Metrics
	log      zerolog.Logger
	loading  sync.Once

	tasks sync.WaitGroup // the recorders. Wait comes after the last Add, because only a session that has not ended starts a recorder

	mu    sync.Mutex
	all   map[string]*recording // guarded by mu; by id
	total int64                 // guarded by mu; bytes on disk
}

// recording is one recording.
type recording struct {
	Notes
	header cast.Header

	// guarded by recordings.mu
	place         cast.Progress
	size          int64
	recorder      *Recorder // nil once it has ended
	removalFailed bool      // its file could not be removed, and this was logged
}

// Notes are what a file contains about its recording besides the header.
type Notes struct {
	ID        string    `json:"id"`
	Owner     string    `json:"owner"`
	SessionID string    `json:"session_id"`
	Session   string    `json:"session,omitzero"` // the session's name at that time
	Member    string    `json:"member"`           // id of the terminal or exec
	Command   string    `json:"command"`          // its begin. The header lacks it, because everybody who may see the recording gets the header
	Demanded  bool      `json:"demanded,omitzero"`
	Began     time.Time `json:"began"`
}

// valid returns false for notes that trl did not write. Other code relies on the form of the ids.
func (n *Notes) valid() bool {
	_, session := ids.EpochOf('s', n.SessionID)
	_, terminal := ids.EpochOf('t', n.Member)
	_, exec := ids.EpochOf('x', n.Member)
	return n.Owner != "" && session && (terminal || exec)
}

func New(c Config, m *metrics.Metrics, log zerolog.Logger) *Store {
	c.MaxBytes, c.TotalBytes = cmp.Or(c.MaxBytes, 64<<20), cmp.Or(c.TotalBytes, 1<<30)
	r := &Store{config: c, metrics: m, log: log, all: map[string]*recording{}}
	if c.Dir != "" {
		r.demanded = ParseSet(c.Policy)
	}
	return r
}

// Demanded returns what the server's policy demands to record.
func (r *Store) Demanded() Set { return r.demanded }

// ErrNoRecording returns a new error each time, because callers may add details to it.
func ErrNoRecording() error {
	return protocol.Errorf(protocol.RecordingNotFound, "no such recording")
}

// CheckPossible returns an error if a client asks for a recording and this server makes none.
func (r *Store) CheckPossible(asked bool) error {
	if asked && r.config.Dir == "" {
		return protocol.Errorf(protocol.NotSupported, "this server records nothing").With("field", "record")
	}
	return nil
}

func (r *Store) Path(id string) string { return filepath.Join(r.config.Dir, id+castSuffix) }

// Load reads the directory. Only the first call does so, before the first request.
func (r *Store) Load() {
	r.loading.Do(func() {
		if r.config.Dir == "" {
			return
		}
		files, err := os.ReadDir(r.config.Dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.log.Error().Err(err).Msg("recordings cannot be read")
		}
		for _, f := range files {
			id, ok := strings.CutSuffix(f.Name(), castSuffix)
			if _, ours := ids.EpochOf('r', id); !ok || !ours || !f.Type().IsRegular() {
				continue
			}
			rec := &recording{}
			found, err := cast.Inspect(r.Path(id), &rec.Notes)
			if err == nil && (rec.ID != id || !rec.valid()) {
				err = cast.ErrNotOurs
			}
			if err != nil {
				r.log.Warn().Err(err).Str("recording", id).Msg("recording cannot be read and is left alone")
				continue
			}
			rec.header, rec.place, rec.size = found.Header, found.Progress, found.Size
			r.all[id] = rec
			r.total += onDisk(rec.size)
		}
	})
}

func onDisk(size int64) int64 { return (size + diskBlock - 1) / diskBlock * diskBlock }

// filter returns the recordings for which fits returns true. It calls fits with r.mu held.
func (r *Store) filter(fits func(*recording) bool) (some []*recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.all {
		if fits(rec) {
			some = append(some, rec)
		}
	}
	return some
}

// FinishAbandoned ends the recordings that an earlier gateway began and that no session continues. It is called after Recover.
func (r *Store) FinishAbandoned() {
	r.Load()
	for _, rec := range r.filter(func(rec *recording) bool { return rec.place.End == "" && rec.recorder == nil }) {
		r.finishLost(rec)
	}
	r.Trim(time.Now())
}

func (r *Store) finishLost(rec *recording) {
	place := rec.place
	place.End = metrics.RecordingLost
	f, err := cast.Resume(r.Path(rec.ID), rec.place, rec.size)
	if err == nil {
		f.Mark(rec.place.At, "trl: the recording ends here, the session was lost")
		if place, err = f.Commit(place); err == nil {
			rec.grow(r, place, f.Size())
		}
		_ = f.Close()
	}
	if err != nil {
		r.log.Warn().Err(err).Str("recording", rec.ID).Msg("recording without an end")
		rec.grow(r, place, rec.size)
	}
	r.metrics.RecordingsEnded.WithLabelValues(metrics.RecordingLost).Inc()
}

// grow stores how far a recording has come.
func (rec *recording) grow(r *Store, p cast.Progress, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[rec.ID] == rec {
		r.total += onDisk(size) - onDisk(rec.size)
	}
	rec.place, rec.size = p, size
	if p.End != "" {
		rec.recorder = nil
	}
}

// makeRoom makes room for n more bytes by removing ended recordings. It returns false if all space is taken by recordings in progress.
func (r *Store) makeRoom(n int64) bool {
	for {
		r.mu.Lock()
		if r.total+n <= r.config.TotalBytes && len(r.all) <= maxRecordings {
			r.mu.Unlock()
			return true
		}
		rec := r.evictCandidateLocked()
		r.mu.Unlock()
		if rec == nil {
			return false
		}
		_ = r.remove(rec) // if it cannot be removed, evictCandidateLocked does not return it again
	}
}

// evictCandidateLocked returns the recording to remove first, or nil if there is none. Recordings that the policy did not demand come before
// those that it did. Among these it takes the owner whose recordings take the most space, so that nobody displaces the few recordings of
// others, and of that owner's the oldest. r.mu is held.
func (r *Store) evictCandidateLocked() (first *recording) {
	has := map[string]int64{} // by owner
	for _, rec := range r.all {
		has[rec.Owner] += onDisk(rec.size) + r.config.TotalBytes/maxRecordings // each counts this much more, because their number is bounded, too
	}
	for _, rec := range r.all {
		if rec.place.End == "" || rec.removalFailed {
			continue
		}
		if first == nil || rec.Demanded != first.Demanded && first.Demanded ||
			rec.Demanded == first.Demanded && cmp.Or(cmp.Compare(has[first.Owner], has[rec.Owner]), rec.Began.Compare(first.Began)) < 0 {
			first = rec
		}
	}
	return first
}

// Trim removes the recordings that have been kept long enough, and those that exceed the bounds.
func (r *Store) Trim(now time.Time) {
	if r.config.Dir == "" {
		return
	}
	old := func(rec *recording) bool {
		return r.config.Keep > 0 && rec.place.End != "" && rec.ended().Before(now.Add(-r.config.Keep))
	}
	for _, rec := range r.filter(old) {
		_ = r.remove(rec) // tried again by each Trim
	}
	r.makeRoom(0)
}

// ended returns when the recording ended. The recording must have ended.
func (rec *recording) ended() time.Time { return rec.Began.Add(rec.place.At) }

// remove removes the file and then the index entry, so that every file on the disk is in the index and counts.
func (r *Store) remove(rec *recording) error {
	err := os.Remove(r.Path(rec.ID))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		r.forget(rec)
		return nil
	}
	if r.noteStuck(rec) {
		r.log.Error().Err(err).Str("recording", rec.ID).Msg("recording not removed")
	}
	return err
}

// noteStuck stores that the file of a recording cannot be removed. It returns true the first time.
func (r *Store) noteStuck(rec *recording) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	news, rec.removalFailed = !rec.removalFailed, true
	return news
}

// forget removes a recording that has no file from the index.
func (r *Store) forget(rec *recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[rec.ID] == rec {
		delete(r.all, rec.ID)
		r.total -= onDisk(rec.size)
	}
}

// OpenCount returns the number of recordings in progress.
func (r *Store) OpenCount() int {
	return len(r.filter(func(rec *recording) bool { return rec.recorder != nil }))
}

// A Recording is a recording that the client may see.
type Recording struct {
	r   *Store
	rec *recording
}

// Find returns the recording with that id if who owns it or all is set.
func (r *Store) Find(who string, all bool, id string) (*Recording, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.all[id]; rec != nil && (all || rec.Owner == who) {
		return &Recording{r, rec}, nil
	}
	return nil, ErrNoRecording()
}

// List returns the latest recordings of who, or of everybody if all is set, the oldest first.
func (r *Store) List(who string, all bool, session string) []protocol.Recording {
	infos := []protocol.Recording{} // never null on the wire
	asked := func(rec *recording) bool {
		return (all || rec.Owner == who) && (session == "" || rec.SessionID == session)
	}
	for _, rec := range r.filter(asked) {
		infos = append(infos, (&Recording{r, rec}).Info())
	}
	slices.SortFunc(infos, func(a, b protocol.Recording) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), strings.Compare(a.RecordingID, b.RecordingID))
	})
	return infos[max(0, len(infos)-listedRecordings):]
}

// Info is what recording.info answers.
func (x *Recording) Info() protocol.Recording {
	x.r.mu.Lock()
	defer x.r.mu.Unlock()
	rec := x.rec
	i := protocol.Recording{
		RecordingID: rec.ID, SessionID: rec.SessionID, Session: rec.Session, Owner: rec.Owner, Command: rec.Command,
		Cols: rec.header.Cols, Rows: rec.header.Rows, StartedAt: rec.Began, DurationMS: rec.place.At.Milliseconds(),
		SizeBytes: rec.size, OutputBytes: rec.place.Offset, State: "recording", Demanded: rec.Demanded,
	}
	if rec.Member[0] == 't' {
		i.TermID = rec.Member
	} else {
		i.ExecID = rec.Member
	}
	if rec.place.End != "" {
		i.State, i.Reason, i.ExitCode = "ended", rec.place.End, rec.place.Status
	}
	return i
}

// Delete removes the recording. A recording in progress ends. A recording that the policy demands can only be deleted with all.
func (x *Recording) Delete(all bool) error {
	if x.rec.Demanded && !all {
		return protocol.Errorf(protocol.Forbidden, "the server's policy demands this recording: an admin may delete it")
	}
	x.r.mu.Lock()
	recorder := x.rec.recorder
	x.r.mu.Unlock()
	if recorder != nil {
		recorder.stop()
		<-recorder.done
	}
	if err := x.r.remove(x.rec); err != nil {
		return protocol.Errorf(protocol.InternalError, "the recording's file cannot be removed").WithCause(err)
	}
	return nil
}

// WriteTo writes the recording as far as it has come, and the whole of it if its stream has ended.
func (x *Recording) WriteTo(w io.Writer, v2 bool) error {
	x.r.mu.Lock()
	recorder := x.rec.recorder
	x.r.mu.Unlock()
	recorder.awaitLastWrite()
	info := x.Info()
	f, err := os.Open(x.r.Path(x.rec.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNoRecording() // it was just removed, or has no file yet
	}
	if err != nil {
		return err
	}
	defer f.Close()
	whole := io.LimitReader(f, info.SizeBytes)
	if v2 {
		return cast.V2(w, whole)
	}
	return cast.WithoutNotes(w, whole)
}

// FileName returns a file name that is safe everywhere: the session's name with only plain letters and digits, and the time.
func (x *Recording) FileName() string {
	name := strings.Trim(strings.Map(func(c rune) rune {
		if c < 0x7f && (c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.ContainsRune("._-", c)) {
			return c
		}
		return '-'
	}, x.rec.Session), ".-")
	return fmt.Sprintf("%s-%s%s", cmp.Or(name[:min(len(name), 64)], "trl"), x.rec.Began.UTC().Format("20060102-150405"), castSuffix)
}

// Wait returns when all recorders have ended or ctx is done.
func (r *Store) Wait(ctx context.Context) error {
	idle := make(chan struct{})
	go func() { // ends with the last recorder. A disk that hangs may delay that beyond ctx
		r.tasks.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end of all recordings: %w", ctx.Err())
	}
}
