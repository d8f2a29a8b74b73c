package pool

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"trl/pool/ends"
	"trl/pool/entry"
	"trl/pool/faults"
	"trl/pool/ids"
	"trl/pool/recording"
	"trl/pool/requestkey"
	"trl/pool/retained"
	"trl/pool/shells"
	"trl/pool/token"
	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/stream"
)

// work is what an exec, a process and a terminal have in common: a request, output, and an end. Ended work stays readable while it is retained.
type work struct {
	// set once, before other code knows the work
	stream    string // "st-" and its id
	session   *Session
	text      string // of a process or a terminal only the beginning
	journal   *journal.Journal
	key       requestkey.Ref         // zero: the request had none
	params    requestkey.Fingerprint // of that request
	recording string                 // the id of its recording; "": it is not recorded
	done      chan struct{}          // closed when it has ended and the end was told

	// guarded by session.mu
	startedAt        time.Time           // by the wall clock, for people; zero: it waits
	beganAt          time.Time           // the same moment, as this process counts
	recorder         *recording.Recorder // nil: it is not recorded, or has not begun
	recordingDeleted bool                // the recording was deleted while it was made

	// set with session.mu held, before done is closed; read with session.mu held, or after done
	endedAt   time.Time // zero: it has not ended
	endOffset int64     // the journal's size at the end
}

// A request is what work is started for.
type request struct {
	key    requestkey.Ref         // zero: no request_key
	params requestkey.Fingerprint // a retry must have the same
	by     *Share                 // the guest's share link; nil: the owner sent it
}

// startOnce starts work, or finds what an earlier request with the same request_key started. params is what a retry must repeat.
func startOnce[T any](ctx context.Context, s *Session, method, key string, in protocol.SessionRef, params any, by *Share, start func(context.Context, request) (T, error)) (T, error) {
	q := request{by: by}
	if key == "" {
		return start(ctx, q)
	}
	q.key, q.params = s.newKeyRef(key, in, by), requestkey.FingerprintOf(method, params)
	return once(ctx, s.pool, q.key, q.params, func() (T, error) {
		return start(context.WithoutCancel(ctx), q) // a retry that waits must not fail because the first client has gone
	})
}

func (s *Session) newKeyRef(key string, in protocol.SessionRef, by *Share) requestkey.Ref {
	if by != nil {
		return requestkey.Ref{Owner: s.owner, Guest: by.ID(), Scope: s.id, Key: key}
	}
	return requestkey.Ref{Owner: s.owner, Scope: s.id, Key: key, NamesNoSession: in.SessionID == "" && (in.Session == "" || in.Session == defaultSession)}
}

// once is requestkey.Once. An earlier gateway may know keys that do not belong to one session; once waits until those are restored.
func once[T any](ctx context.Context, p *Pool, ref requestkey.Ref, params requestkey.Fingerprint, start func() (T, error)) (T, error) {
	if ref.NamesNoSession || ref.Scope == "" {
		if err := p.awaitRecovered(""); err != nil {
			var none T
			return none, err
		}
	}
	return requestkey.Once(ctx, &p.requestKeys, ref, params, start)
}

// newWork makes the work of a request. kind is the kind of its id.
func (s *Session) newWork(kind byte, text string, ring int, q request) work {
	return work{
		stream:  ids.New(ids.StreamPrefix, kind, s.pool.epoch, s.tag, ids.MemberLen),
		session: s, text: text, journal: journal.New(ring), key: q.key, params: q.params, done: make(chan struct{}),
	}
}

// ID returns the id that clients know.
func (w *work) ID() string { return w.stream[len(ids.StreamPrefix):] }

// StreamID returns the id of its output.
func (w *work) StreamID() string { return w.stream }

// Session returns the session that it belongs to.
func (w *work) Session() *Session { return w.session }

// Journal returns its output. The journal is closed when no process can write to it any more, which is after Done if jobs still run.
func (w *work) Journal() *journal.Journal { return w.journal }

// Done is closed when it has ended, its output is in the journal, and the end was told.
func (w *work) Done() <-chan struct{} { return w.done }

// EndOffset returns, after Done, the journal's size at the end. Jobs that it left behind wrote what follows.
func (w *work) EndOffset() int64 { return w.endOffset }

func (w *work) hasEnded() bool { return token.IsClosed(w.done) }

func (w *work) EndTime() time.Time { return w.endedAt }

func (w *work) MayGrow() bool { return !w.journal.Closed() }

// workWeight is how many bytes an ended process or terminal takes in addition to its text and its output.
const workWeight = 4 << 10

func (w *work) Weight() int64 { return workWeight + int64(len(w.text)) + w.journal.Memory() }

// record begins or continues the recording, if there is to be one. s.mu is held, or nobody else knows the session.
func (w *work) record(source func() recording.Source) {
	if r := w.session.pool.recordings; w.recording != "" && !r.HasEnded(w.recording) {
		w.recorder = r.Start(source())
	}
}

// child is what a process and a terminal have in common: processes of the operating system in a scope of their own.
type child struct {
	work
	pid  int        // set once, when it starts
	lost []string   // set once, when it starts; the parts of the session's state that it lacks
	live *int       // the count of its session that it is part of
	exit own.Status // set with endedAt
}

// A runningChild is a *shell.Process or a *shell.Terminal.
type runningChild interface {
	Pid() int
	Exited() <-chan struct{}
	Status() own.Status
	Release()
}

// An endedChild is a *Process or a *Terminal.
type endedChild interface {
	retained.Work
	base() *child
	exitEvent() (name string, info func() any)
	exitEntry() entry.Entry
}

func (c *child) base() *child { return c }

// reserveSlot counts one more process or terminal, or fails. The goroutine that watches it calls processTasks.Done at its end.
func (s *Session) reserveSlot(c *child, by *Share) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending != nil:
		return s.errEndedLocked()
	case by != nil && by.IsOver():
		return faults.ShareOver()
	case s.liveProcesses+s.openTerminals >= maxProcesses:
		return protocol.Errorf(protocol.LimitExceeded, "session has %d processes and terminals", maxProcesses).With("limit", maxProcesses)
	}
	*c.live++
	s.processTasks.Add(1)
	c.startedAt = time.Now()
	c.beganAt = c.startedAt
	return nil
}

// releaseSlot undoes reserveSlot for a process or terminal that did not start because of err, and returns the error for the client.
func (s *Session) releaseSlot(c *child, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touchLocked(time.Now())
	*c.live--
	s.processTasks.Done()
	if s.ending != nil {
		return s.errEndedLocked()
	}
	return shells.CommandFault(err)
}

// finishChild writes down and tells the end of a process or terminal that has exited. All of its output is in the journal.
func (s *Session) finishChild(x endedChild, running runningChild, kind ends.Kind) {
	c := x.base()
	s.mu.Lock()
	c.exit, c.endedAt, c.endOffset = running.Status(), time.Now(), c.journal.Size()
	*c.live--
	s.touchLocked(c.endedAt)
	event, info := x.exitEvent()
	s.watchers.Publish(event, info)
	s.retainLocked(x)
	s.appendLog(x.exitEntry())
	s.mu.Unlock()
	code, signal := c.exitCode()
	c.recorder.Finish(c.endOffset, &code)
	running.Release() // not before it was written down
	s.pool.config.Load().OnEnd(ends.End{
		Owner: s.owner, Session: s.id, Kind: kind, ID: c.ID(), Code: &code, Signal: signal, RequestedAt: c.beganAt, StartedAt: c.beganAt, EndedAt: c.endedAt,
	})
	close(c.done)
}

// exitCode returns the exit code, or 128+N and the name of the signal N that ended it.
func (c *child) exitCode() (code int, signal string) {
	if c.exit.Signal != 0 {
		return protocol.SignalExitCode(c.exit.Signal), protocol.SignalName(c.exit.Signal)
	}
	return c.exit.Code, ""
}

// awaitEnd returns when the end was told.
func (c *child) awaitEnd(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// byStart returns all of a table, oldest first.
func byStart[T interface{ base() *child }](table map[string]T) []T {
	return slices.SortedFunc(maps.Values(table), func(a, b T) int { return a.base().startedAt.Compare(b.base().startedAt) })
}

// endChildren ends all processes and terminals at once, and returns when their ends were told.
func (s *Session) endChildren(ctx context.Context, grace time.Duration) {
	var all sync.WaitGroup // each goroutine ends with its process or terminal
	end := func(what string, kill func() error) {
		all.Go(func() {
			if err := kill(); err != nil {
				s.log.Warn().Err(err).Msg(what + " not ended")
			}
		})
	}
	for _, p := range s.Processes() {
		if !p.hasEnded() {
			end("process", func() error { return p.Kill(ctx, grace) })
		}
	}
	for _, t := range s.Terminals() {
		end("terminal", func() error { return t.Close(ctx, new(protocol.Seconds(grace.Seconds()))) })
	}
	all.Wait()
}

// web reads streams under these names.
type (
	Journal     = journal.Journal
	Reader      = journal.Reader
	Chunk       = journal.Chunk
	ReadOptions = journal.Options
)

var ErrOffsetBeyondEnd = journal.ErrOffsetBeyondEnd // for an offset that the stream has not reached

const Anywhere = stream.Anywhere // the offset of input that comes after all input before it
