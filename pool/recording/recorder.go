package recording

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"trl/metrics"
	"trl/protocol"
	"trl/runtime/cast"
	"trl/runtime/journal"
	"trl/runtime/screen"
)

const (
	// recordReadSize is how much output is read at once. In a JSON string one byte takes at most six.
	recordReadSize = 16 << 10
	// recordWriteSize is how much is collected before it is written; one more piece may come on top. If it would exceed the recording's
	// bound, all of it is left out.
	recordWriteSize = 64 << 10
	// recordInterval is how long output is collected before it is written, so that a program that prints a line each millisecond does not
	// cost a write for each line. The events keep their own times; they only get into the file later.
	recordInterval = 100 * time.Millisecond
	// maxLabel bounds the label of a mark, which is a command that somebody typed.
	maxLabel = 4 << 10
)

// Recorder writes one stream into a file. It reads the stream's journal like any other reader, and the writer of the journal never waits for
// it. If the Recorder is too slow, it misses output and notes that in the file. Its goroutine, run, ends with the stream or by stop, and
// Store.tasks waits for it.
type Recorder struct {
	store      *Store
	recording  *recording
	reader     *journal.Reader
	marks      *screen.Marks // of a terminal's shell; nil for an exec
	begunMarks []begunMark   // owned by run: the marks in the last chunk
	file       *cast.File    // owned by run
	startedAt  time.Time     // begin of the recording; owned by run
	source     Source

	ctx    context.Context // ends by Finish or stop, when no more output is to be recorded
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	endOffset  atomic.Int64 // the offset at which the recording ends; MaxInt64 until it is known
	once       sync.Once
	stopped    bool // set before ctx ends: the recording is being deleted
	exitStatus *int // set before ctx ends; nil: not known
}

type begunMark struct {
	at   int64
	text string
}

// Source describes the stream to record.
type Source struct {
	Notes
	Journal *journal.Journal
	Header  cast.Header
	Nonce   string                  // identifies the marks of a terminal's shell
	Size    func() (cols, rows int) // the terminal's size; nil for an exec

	OnDelete func() // called when somebody has deleted the recording, so that no later gateway begins it again
}

// Start begins a recording or continues the one with that id. It does not wait, because run opens the file.
func (r *Store) Start(s Source) *Recorder {
	c := &Recorder{store: r, source: s, done: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.endOffset.Store(math.MaxInt64)
	if s.Size != nil {
		c.marks = screen.NewMarks(s.Nonce)
		c.marks.OnBegin(func(text string, at int64) { c.begunMarks = append(c.begunMarks, begunMark{at, text}) })
	}
	r.mu.Lock()
	rec := r.all[s.ID]
	if rec == nil {
		s.Began = time.Now()
		s.Header.Timestamp = s.Began.Unix()
		rec = &recording{Notes: s.Notes, header: s.Header}
		r.all[s.ID] = rec
	}
	c.recording = rec
	from := rec.place.Offset
	rec.recorder = c
	r.mu.Unlock()
	if c.marks != nil {
		c.marks.Skip(from)
	}
	var err error
	if c.reader, err = s.Journal.Attach(min(from, s.Journal.Size()), journal.Options{Max: recordReadSize}); err != nil {
		panic(err) // impossible: from is at most the journal's size
	}
	r.tasks.Add(1)
	go c.run()
	return c
}

// SetEnd sets the offset at which the recording ends, as soon as it is known. Later output of jobs is not part of their command.
func (c *Recorder) SetEnd(to int64) {
	if c != nil {
		c.endOffset.Store(to)
	}
}

// Finish sets the offset at which the recording ends, and the exit status. Output before that offset is still recorded. A nil Recorder
// records nothing. Only the first call counts.
func (c *Recorder) Finish(to int64, status *int) {
	if c == nil {
		return
	}
	c.SetEnd(to)
	c.once.Do(func() {
		c.exitStatus = status
		c.cancel()
	})
}

// lastWrite bounds how long a reader waits for a recording whose stream has ended. A disk that hangs does not hold it up for longer.
const lastWrite = 5 * time.Second

// awaitLastWrite returns when the recording is complete. It returns at once if its stream has not ended, or c is nil.
func (c *Recorder) awaitLastWrite() {
	if c == nil || c.ctx.Err() == nil {
		return
	}
	select {
	case <-c.done:
	case <-time.After(lastWrite):
	}
}

// stop ends the recording before its stream.
func (c *Recorder) stop() {
	c.once.Do(func() {
		c.stopped = true
		c.cancel()
	})
}

// ID returns the id of the recording, or "" if the recording has ended.
func (c *Recorder) ID() string {
	if c == nil {
		return ""
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	if c.recording.recorder != c {
		return ""
	}
	return c.recording.ID
}

func (c *Recorder) run() {
	defer c.store.tasks.Done()
	defer close(c.done)
	defer c.cancel()
	defer c.reader.Close()
	place, err := c.write()
	size := c.recording.size // only this goroutine writes it
	if c.file != nil {
		size = c.file.Size()
		if e := c.file.Close(); err == nil {
			err = e
		}
	}
	if place.End == metrics.RecordingFailed {
		c.store.log.Error().Err(err).Str("session", c.recording.SessionID).Str("recording", c.recording.ID).Str("of", c.recording.Member).Msg("recording ended; what it was of goes on")
	} else if place.End != metrics.RecordingExit {
		c.store.log.Info().Str("session", c.recording.SessionID).Str("recording", c.recording.ID).Str("of", c.recording.Member).Str("reason", place.End).Msg("recording ended before its stream")
	}
	c.recording.grow(c.store, place, size)
	switch {
	case place.End == metrics.RecordingFailed && size == 0: // there is no file, so the recording is not listed
		c.store.forget(c.recording)
	case place.End == metrics.RecordingDeleted:
		c.source.OnDelete()
	}
	c.store.metrics.RecordingsEnded.WithLabelValues(place.End).Inc()
}

// write makes the whole recording. The place it returns has the reason why the recording ended.
func (c *Recorder) write() (place cast.Progress, err error) {
	failed := func(err error) (cast.Progress, error) {
		p := c.recording.place
		p.End = metrics.RecordingFailed
		return p, err
	}
	if !c.store.makeRoom(diskBlock) {
		return failed(errNoRoom)
	}
	if err := c.open(); err != nil {
		return failed(err)
	}
	for {
		over, err := c.readBatch()
		if err != nil {
			return failed(err)
		}
		at := cast.Progress{Offset: min(c.reader.Offset(), c.endOffset.Load()) - int64(c.file.PendingBytes())}
		why := ""
		switch size := c.file.Size() + int64(c.file.Waiting()); {
		case c.ctx.Err() != nil && c.stopped:
			why = metrics.RecordingDeleted
		case size > c.store.config.MaxBytes:
			why = metrics.RecordingFull
		case !c.store.makeRoom(onDisk(size) - onDisk(c.file.Size())):
			why = metrics.RecordingNoRoom
		}
		if why != "" {
			c.file.Drop()
			at = c.recording.place
			c.file.Mark(c.now(), fmt.Sprintf("trl: the recording ends here (%s), what it is of goes on", why))
			at.End = why
		} else if over {
			c.file.Flush(c.now())
			at.Offset = c.endOffset.Load()
			if c.exitStatus != nil {
				c.file.Exit(c.now(), *c.exitStatus)
			}
			at.End, at.Status = metrics.RecordingExit, c.exitStatus
		}
		was := c.file.Size()
		at, err = c.file.Commit(at)
		c.store.metrics.RecordingBytes.Add(float64(c.file.Size() - was))
		if err != nil {
			place, err := failed(err)
			c.file.Mark(c.now(), "trl: the recording ends here, it could not be written")
			if p, e := c.file.Commit(place); e == nil { // Commit has removed the incomplete part, which may have made enough room for the mark
				place = p
			}
			return place, err
		}
		if at.End != "" {
			return at, nil
		}
		c.recording.grow(c.store, at, c.file.Size())
	}
}

var errNoRoom = errors.New("no room for recordings: all of it is being written")

// open creates the file, or opens the one that an earlier gateway left.
func (c *Recorder) open() error {
	path := c.store.Path(c.recording.ID)
	var err error
	if c.recording.size > 0 {
		if c.file, err = cast.Resume(path, c.recording.place, c.recording.size); err != nil {
			return err
		}
		// By the wall clock, because Began of an earlier gateway has no reading of the monotonic clock.
		c.startedAt = time.Now().Add(-max(time.Since(c.recording.Began), c.recording.place.At))
		c.file.Newlines = c.marks == nil
		if c.source.Size != nil {
			cols, rows := c.source.Size() // the size may have changed meanwhile
			c.file.Resize(c.now(), cols, rows)
		}
		if missing := c.recording.place.Offset - c.reader.Offset(); missing > 0 {
			c.file.Mark(c.now(), "trl: output is missing here, it is not known how much")
		}
		return nil
	}
	if err := os.MkdirAll(c.store.config.Dir, 0o700); err != nil {
		return err
	}
	c.file, err = cast.Create(path, c.recording.header, c.recording.Notes)
	if err != nil {
		return err
	}
	c.startedAt = c.recording.Began
	c.file.Newlines = c.marks == nil
	c.recording.grow(c.store, cast.Progress{}, c.file.Size())
	return nil
}

func (c *Recorder) now() time.Duration { return max(0, time.Since(c.startedAt)) }

// readBatch waits for output and collects what comes within recordInterval. over means that no more will come.
func (c *Recorder) readBatch() (over bool, err error) {
	ctx := c.ctx
	for c.file.Waiting() < recordWriteSize {
		piece, err := c.reader.Next(ctx)
		switch {
		case err == nil:
			c.addChunk(piece)
			if ctx == c.ctx {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(c.ctx, recordInterval)
				defer cancel()
			}
		case c.ctx.Err() != nil:
			return c.readRest(), nil
		case errors.Is(err, io.EOF):
			<-c.ctx.Done() // Finish follows soon, with the exit status
			return c.readRest(), nil
		case errors.Is(err, context.DeadlineExceeded):
			return false, nil
		default:
			return false, err
		}
	}
	return false, nil
}

// readRest collects the present output, up to the end of the recording.
func (c *Recorder) readRest() (over bool) {
	for !c.stopped && c.reader.Offset() < c.endOffset.Load() {
		if c.file.Waiting() >= recordWriteSize {
			return false
		}
		piece, ok, err := c.reader.TryNext()
		if !ok || err != nil {
			break
		}
		c.addChunk(piece)
	}
	return true
}

// addChunk adds the events of one chunk to the file.
func (c *Recorder) addChunk(p journal.Chunk) {
	now := c.now()
	if p.Note != nil {
		if e, ok := p.Note.(protocol.Event); ok {
			if size, ok := e.Data.(*protocol.TermResized); ok {
				c.file.Resize(now, size.Cols, size.Rows)
			}
		}
		return
	}
	if p.Gap > 0 {
		c.file.Mark(now, fmt.Sprintf("trl: %d bytes of output are missing here", p.Gap))
		if c.marks != nil {
			c.marks.Skip(p.Gap)
		}
	}
	data, from := p.Data, p.Offset
	if to := c.endOffset.Load(); from+int64(len(data)) > to {
		data = data[:max(0, to-from)]
	}
	if c.marks != nil {
		c.begunMarks = c.begunMarks[:0]
		c.marks.Write(data)
		for _, m := range c.begunMarks {
			n := max(0, min(m.at-from, int64(len(data))))
			c.file.Output(now, false, data[:n])
			c.file.Mark(now, m.text[:min(len(m.text), maxLabel)])
			data, from = data[n:], from+n
		}
	}
	c.file.Output(now, p.Stream == journal.Stderr, data)
}
