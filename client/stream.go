package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"trl/protocol"
)

// Chunk is a piece of a stream's output, or a hole in it.
type Chunk struct {
	Offset int64  // of Data's first byte in the stream, stdout and stderr counted together
	Stream string // "stdout" or "stderr"
	Data   []byte
	Gap    int64 // > 0: no data; the bytes from Offset-Gap to Offset were dropped before they could be read
	Replay bool  // older output, not happening now

	// Snapshot: Data is not output but makes a terminal look as this one does; output goes on at Offset.
	Snapshot bool

	// Control: no data; who types at the terminal has changed: we do from now on, or do not.
	Control *protocol.TermControl
}

// feedDepth is how many chunks wait for their reader; the server sends at most 32 KiB in one.
const feedDepth = 8

// Stream is the output of one command or background process and, after it, how that ended. One goroutine reads it by Next;
// Input, Cancel and Signal may be used by others. Close ends it; the command goes on.
//
// A Client has one Stream of an output: a second one takes the place of the first, which ends with ErrDisplaced. Two Clients
// may both read it.
type Stream struct {
	c      *Client
	kind   string                                                        // set once; exec, process or term
	reopen func(ctx context.Context, l *link, s *Stream, to *feed) error // attaches at s.offset

	// owned by the reader
	link    *link
	feed    *feed   // of link
	pending []event // what an answer itself carried (process.logs), before from
	offset  int64   // everything before it was returned by Next
	exec    *protocol.ExecExit
	process *protocol.ProcessInfo
	term    *protocol.TermInfo

	id string // set once, before the Stream is handed out
}

// Start runs a command whose output is streamed. It returns when the server has accepted the command. A lost answer is
// asked for again under the same request_key, so the command runs once.
func (c *Client) Start(ctx context.Context, q protocol.Exec) (*Stream, error) {
	if q.RequestKey == "" {
		q.RequestKey = rand.Text()
	}
	s := &Stream{c: c, kind: "exec"}
	s.reopen = func(ctx context.Context, l *link, s *Stream, to *feed) error {
		if s.id != "" {
			return s.attach(ctx, l, to)
		}
		var o protocol.StreamOpened
		if err := l.call(ctx, "exec.stream", q, &o, to); err != nil {
			return err
		}
		s.id, s.offset = o.ExecID, o.Offset
		return nil
	}
	return s.open(ctx)
}

// Attach reads the output of a command from offset on, also one that has ended already.
func (c *Client) Attach(ctx context.Context, execID string, offset int64) (*Stream, error) {
	s := &Stream{c: c, kind: "exec", id: execID, offset: offset}
	s.reopen = func(ctx context.Context, l *link, s *Stream, to *feed) error { return s.attach(ctx, l, to) }
	return s.open(ctx)
}

// Command is for the Input, Cancel and Signal of a command whose output another Client reads: what waits for a reader there does
// not hold them up. It has no output: Next and Close are not for it.
func (c *Client) Command(execID string) *Stream { return &Stream{c: c, id: execID} }

func (s *Stream) attach(ctx context.Context, l *link, to *feed) error {
	// block: we own this output; it must not jump ahead because our reader is slow.
	return l.call(ctx, "exec.attach", protocol.ExecAttach{ExecID: s.id, Offset: s.offset, OnSlow: "block"}, nil, to)
}

// Follow reads the output of a background process from offset on until it ends.
func (c *Client) Follow(ctx context.Context, processID string, offset int64) (*Stream, error) {
	s := &Stream{c: c, kind: "process", id: processID, offset: offset}
	s.reopen = func(ctx context.Context, l *link, s *Stream, to *feed) error {
		var logs protocol.Logs
		q := protocol.ProcessLogs{ProcessID: s.id, Offset: s.offset, Follow: true, OnSlow: "block"}
		if err := l.call(ctx, "process.logs", q, &logs, to); err != nil {
			return err
		}
		return s.replay(&logs)
	}
	return s.open(ctx)
}

// replay turns the chunks of an answer into events; what comes after them, the exit included, arrives as events by itself.
func (s *Stream) replay(logs *protocol.Logs) error {
	s.pending = nil
	if g := logs.Gap; g != nil {
		s.pending = append(s.pending, event{chunk: &Chunk{Offset: g.To, Gap: g.To - g.From}})
	}
	for _, k := range logs.Chunks {
		p, err := protocol.DecodeBytes(k.Data, k.Encoding)
		if err != nil {
			return err
		}
		s.pending = append(s.pending, event{chunk: &Chunk{Offset: k.Offset, Stream: k.Stream, Data: p, Replay: true}})
	}
	return nil
}

// open attaches on a live connection, again when that is lost on the way.
func (s *Stream) open(ctx context.Context) (*Stream, error) {
	for {
		l, err := s.c.connected(ctx)
		if err != nil {
			return nil, err
		}
		to := newFeed(s.kind, s.id)
		if err = s.reopen(ctx, l, s, to); err == nil {
			s.link, s.feed = l, to
			return s, nil
		}
		l.abandon(to, ErrClosed)
		if l.lost() == nil || ctx.Err() != nil {
			return nil, err // the server's answer, or nobody waits any more
		}
	}
}

// ID is the exec's or the process's id.
func (s *Stream) ID() string { return s.id }

// Next returns the next piece of output, and io.EOF after the last: then Exit or Process knows how it ended. Every byte comes
// once and in order; bytes that the server had to drop come as a Chunk with a Gap.
func (s *Stream) Next(ctx context.Context) (Chunk, error) {
	for {
		if s.exec != nil || s.process != nil || s.term != nil {
			return Chunk{}, io.EOF
		}
		ev, err := s.next(ctx)
		if err != nil {
			return Chunk{}, err
		}
		if ev.chunk == nil {
			s.exec, s.process, s.term = ev.exec, ev.process, ev.term
			continue
		}
		k := *ev.chunk
		if k.Control != nil {
			return k, nil
		}
		if k.Snapshot {
			s.offset = k.Offset
			return k, nil
		}
		if end := k.Offset + int64(len(k.Data)); k.Gap == 0 {
			if end <= s.offset {
				continue // seen before the connection was lost
			}
			if k.Offset < s.offset {
				k.Data = k.Data[s.offset-k.Offset:]
				k.Offset = s.offset
			}
			s.offset = end
			return k, nil
		}
		if k.Offset <= s.offset {
			continue
		}
		k.Gap = k.Offset - s.offset
		s.offset = k.Offset
		return k, nil
	}
}

// next returns the next event, over as many connections as it takes.
func (s *Stream) next(ctx context.Context) (event, error) {
	for {
		if len(s.pending) > 0 {
			ev := s.pending[0]
			s.pending = s.pending[1:]
			return ev, nil
		}
		select {
		case ev := <-s.feed.events:
			return ev, nil
		default:
		}
		select {
		case ev := <-s.feed.events:
			return ev, nil
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		case <-s.feed.done:
			return event{}, s.feed.why
		case <-s.link.closing:
		}
		<-s.link.read
		select {
		case ev := <-s.feed.events: // delivered before the connection was lost
			return ev, nil
		case <-s.feed.done:
			return event{}, s.feed.why
		default:
		}
		if _, err := s.open(ctx); err != nil {
			return event{}, err
		}
	}
}

// Copy writes the output to two writers as it comes and returns how the command ended. Bytes that the server had to drop do
// not stop it; it reports them at the end as an ErrGap.
func (s *Stream) Copy(ctx context.Context, stdout, stderr io.Writer) (protocol.ExecExit, error) {
	var lost int64
	for {
		k, err := s.Next(ctx)
		switch {
		case errors.Is(err, io.EOF) && lost > 0:
			return s.Exit(), fmt.Errorf("%d bytes of output: %w", lost, ErrGap)
		case errors.Is(err, io.EOF):
			return s.Exit(), nil
		case err != nil:
			return protocol.ExecExit{}, err
		}
		lost += k.Gap
		w := stdout
		if k.Stream == "stderr" {
			w = stderr
		}
		if _, err := w.Write(k.Data); err != nil {
			return protocol.ExecExit{}, err
		}
	}
}

// ErrDisplaced is for a Stream whose place another Stream of its Client has taken.
var ErrDisplaced = errors.New("another stream of this client reads the output now")

// ErrGap is for output that was not read in time, so that the server's ring dropped it.
var ErrGap = errors.New("lost because they were not read in time")

// Exit is how the command ended; valid after io.EOF.
func (s *Stream) Exit() protocol.ExecExit {
	if s.exec == nil {
		return protocol.ExecExit{}
	}
	return *s.exec
}

// Process is how the background process ended; valid after io.EOF.
func (s *Stream) Process() protocol.ProcessInfo {
	if s.process == nil {
		return protocol.ProcessInfo{}
	}
	return *s.process
}

// Input writes to the stdin of a command started with InteractiveStdin. While the command does not read and its buffer is
// full the server refuses more; Input waits then, so that a large input needs no memory. After the command's EOF or end it
// fails with STDIN_CLOSED. Two large inputs at once may mix.
func (s *Stream) Input(ctx context.Context, p []byte, eof bool) error {
	return s.c.input(ctx, "exec.input", p, func(text, encoding string, last bool) any {
		return protocol.ExecInput{ExecID: s.id, Data: text, Encoding: encoding, EOF: eof && last}
	})
}

// inputPiece is what one request of input holds: far below what a frame may (4 MiB) and what the server buffers for a
// command that does not read (1 MiB), also as JSON, which writes a control character in six bytes.
const inputPiece = 64 << 10

// input sends p piece by piece, each when there is room for it. An empty p is one piece.
func (c *Client) input(ctx context.Context, method string, p []byte, params func(text, encoding string, last bool) any) error {
	for {
		piece := p[:min(len(p), inputPiece)]
		p = p[len(piece):]
		text, encoding := protocol.EncodeBytes(piece)
		if err := c.callWhenRoom(ctx, method, params(text, encoding, len(p) == 0)); err != nil || len(p) == 0 {
			return err
		}
	}
}

// callWhenRoom is a Call that is made again while the server has no room for it.
func (c *Client) callWhenRoom(ctx context.Context, method string, params any) error {
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := c.Call(ctx, method, params, nil)
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code != protocol.RateLimited && (e.Code != protocol.LimitExceeded || e.Details["limit"] != "stdin") {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// Cancel ends the command: TERM, the server's grace time, KILL.
func (s *Stream) Cancel(ctx context.Context) error {
	return s.c.Call(ctx, "exec.cancel", protocol.ExecCancel{ExecID: s.id}, nil)
}

// Signal sends one signal to the command's processes.
func (s *Stream) Signal(ctx context.Context, name string) error {
	return s.c.Call(ctx, "exec.cancel", protocol.ExecCancel{ExecID: s.id, Signal: name}, nil)
}

// Close stops reading: what still comes is dropped, and the server is asked to send no more. It is idempotent, waits for
// nothing, and is for the goroutine that reads.
func (s *Stream) Close() {
	s.link.abandon(s.feed, ErrClosed)
}
