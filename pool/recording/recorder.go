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
	// recordReadSize is how much output is read at a time. As a JSON string a byte is at most six.
	recordReadSize = 16 << 10
	// recordWriteSize is how much is written at a time at most, and a piece. What would exceed the recording's bound is left out whole.
	recordWriteSize = 64 << 10
	// recordInterval lets output come together before it is written: a program that prints a line each millisecond does not
	// cost a write each. Events have their own times; it is how much later they are in the file.
	recordInterval = 100 * time.Millisecond
	// maxLabel bounds a mark's label: a command that somebody typed.
	maxLabel = 4 << 10
)

// Recorder follows one stream into a file. It is a reader like any other and never one that the writer waits for: what it
// cannot take in time it misses, and says so in the file. It has one goroutine, run, which ends when the stream has, or by
// stop; Store.tasks waits for it.
type Recorder struct {
	store      *Store
	recording  *recording
	reader     *journal.Reader
	marks      *screen.Marks // of a terminal's shell; nil for an exec
	begunMarks []begunMark   // owned by run: what marks found in what it was given last
	file       *cast.File    // owned by run
	startedAt  time.Time     // when it began; owned by run
	source     Source

	ctx    context.Context // ends when nothing more will come: by end or stop
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	endOffset  atomic.Int64 // where the stream ends for us; beyond everything until that is known
	once       sync.Once
	stopped    bool // set before ctx ends: it is not wanted any more
	exitStatus *int // set before ctx ends; nil: not known
}

type begunMark struct {
	at   int64
	text string
}

// Source is what is recorded.
type Source struct {
	Notes
	Journal *journal.Journal
	Header  cast.Header
	Nonce   string                  // of a terminal's marks
	Size    func() (cols, rows int) // a terminal's; nil for an exec

	OnDelete func() // somebody deleted it: no later gateway shall begin it anew
}

// Start begins a recording, or goes on with the one of that id. It does not wait: its file is run's.
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
		panic(err) // nobody writes less than was written
	}
	r.tasks.Add(1)
	go c.run()
	return c
}

// SetEnd says where the stream ends for us, as soon as that is known: what jobs print later is not their command's.
func (c *Recorder) SetEnd(to int64) {
	if c != nil {
		c.endOffset.Store(to)
	}
}

// Finish says where the stream ends and how. What is there until then is still recorded. Nil is nobody recording. Idempotent.
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

// stop ends the recording before its stream.
func (c *Recorder) stop() {
	c.once.Do(func() {
		c.stopped = true
		c.cancel()
	})
}

// ID is that of a recording that is being made, else "".
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
	size := c.recording.size // nobody else writes it while we do
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
	case place.End == metrics.RecordingFailed && size == 0: // there is no file, and nothing to list
		c.store.forget(c.recording)
	case place.End == metrics.RecordingDeleted:
		c.source.OnDelete()
	}
	c.store.metrics.RecordingsEnded.WithLabelValues(place.End).Inc()
}

// write is the recording's life. The place says why it ended.
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
			if p, e := c.file.Commit(place); e == nil { // what was taken back may have made room enough
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

// open makes the file, or opens what another gateway left of it.
func (c *Recorder) open() error {
	path := c.store.Path(c.recording.ID)
	var err error
	if c.recording.size > 0 {
		if c.file, err = cast.Resume(path, c.recording.place, c.recording.size); err != nil {
			return err
		}
		// The clock of the wall: another gateway's of the machine says nothing to us.
		c.startedAt = time.Now().Add(-max(time.Since(c.recording.Began), c.recording.place.At))
		c.file.Newlines = c.marks == nil
		if c.source.Size != nil {
			cols, rows := c.source.Size() // it may have changed since
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

// readBatch waits for something to write and takes what comes with it. over: nothing more will come.
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
			<-c.ctx.Done() // how it ended is told soon
			return c.readRest(), nil
		case errors.Is(err, context.DeadlineExceeded):
			return false, nil
		default:
			return false, err
		}
	}
	return false, nil
}

// readRest takes what is there, up to the end that was told.
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

// addChunk turns a piece of the stream into events.
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
