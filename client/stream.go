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

// Chunk is a piece of a stream's output, or a gap in it.
type Chunk struct {
	Offset int64  // of Data's first byte in the stream, stdout and stderr counted together
	Stream string // "stdout" or "stderr"
	Data   []byte
	Gap    int64 // > 0: no data; the bytes from Offset-Gap to Offset were dropped before they could be read
	Replay bool  // older output, from before the attach

	// Snapshot: Data is not output. It makes a terminal look like this one; output continues at Offset.
	Snapshot bool

	// Control: no data. Control of the terminal has changed: we have it from now on, or no longer.
	Control *protocol.TermControl
}

// feedDepth is how many chunks may wait for their reader. The server sends at most 32 KiB in one.
const feedDepth = 8

// Stream is the output of one command or background process and, after the output, its result. One goroutine reads it by Next; other goroutines may
// use Input, Cancel and Signal. Close ends the Stream; the command goes on.
//
// A Client has one Stream of an output. A second one replaces the first, which ends with ErrDisplaced. Two Clients may both read it.
type Stream struct {
	c      *Client
	kind   string                                                        // set once; exec, process or term
	reopen func(ctx context.Context, l *link, s *Stream, to *feed) error // attaches at s.offset

	// owned by the reader
	link    *link
	feed    *feed   // of link
	pending []event // events in the answer itself (process.logs), before from
	offset  int64   // Next has returned everything before it
	exec    *protocol.ExecExit
	process *protocol.ProcessInfo
	term    *protocol.TermInfo

	id string // set once, before the Stream is handed out
}

// Start runs a command and streams its output. It returns when the server has accepted the command. If the answer is lost, Start asks again with the
// same request_key, so the command runs once.
func (c *Client) Start(ctx context.Context, q protocol.Exec) (*Stream, error) {
	if q.RequestKey == "" {
		q.RequestKey = rand.Text()
	}
	s := &Stream{c: c, kind: "exec"}
	s.reopen = func(ctx context.Context, l *link, s *Stream, to *feed) error {
		if s.id != "" {
			return s.attach(ctx, l, to)
		}
		return c.inSession(ctx, l, q.SessionRef, func(ref protocol.SessionRef) error {
			q.SessionRef = ref // also of a repeated request
			var o protocol.StreamOpened
			if err := l.call(ctx, "exec.stream", q, &o, to); err != nil {
				return err
			}
			s.id, s.offset = o.ExecID, o.Offset
			return nil
		})
	}
	return s.open(ctx)
}

// Attach reads the output of a command from offset on. The command may have ended.
func (c *Client) Attach(ctx context.Context, execID string, offset int64) (*Stream, error) {
	s := &Stream{c: c, kind: "exec", id: execID, offset: offset}
	s.reopen = func(ctx context.Context, l *link, s *Stream, to *feed) error { return s.attach(ctx, l, to) }
	return s.open(ctx)
}

// Command is for Input, Cancel and Signal of a command whose output another Client reads. They do not wait for that Client's readers. It has no
// output: do not use Next and Close.
func (c *Client) Command(execID string) *Stream { return &Stream{c: c, id: execID} }

func (s *Stream) attach(ctx context.Context, l *link, to *feed) error {
	// block: this is the only reader of the output, and it must not skip output because it is slow.
	return l.call(ctx, "exec.attach", protocol.ExecAttach{ExecID: s.id, Offset: s.offset, OnSlow: "block"}, nil, to)
}

// Follow reads the output of a background process from offset on, until the process ends.
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

// replay turns the chunks of an answer into events; later output and the exit arrive as events.
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

// open attaches on a live connection, and again if that connection is lost meanwhile.
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
			return nil, err // the server's answer, or the caller's context has ended
		}
	}
}

// ID returns the id of the exec or process.
func (s *Stream) ID() string { return s.id }

// Next returns the next piece of output, and io.EOF after the last one; then Exit or Process has the result. Every byte comes once and in order. Bytes
// that the server had to drop come as a Chunk with a Gap.
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
				continue // returned before the connection was lost
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

// next returns the next event, over as many connections as necessary.
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

// Copy writes the output to two writers as it comes and returns the command's result. Bytes that the server had to drop do not stop it; it reports
// them at the end as an ErrGap.
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

// ErrDisplaced means that another Stream of the same Client has replaced this one.
var ErrDisplaced = errors.New("another stream of this client reads the output now")

// ErrGap means that output was not read in time and the server's ring dropped it.
var ErrGap = errors.New("lost because they were not read in time")

// Exit returns the command's result; it is valid after io.EOF.
func (s *Stream) Exit() protocol.ExecExit {
	if s.exec == nil {
		return protocol.ExecExit{}
	}
	return *s.exec
}

// Process returns the background process's result; it is valid after io.EOF.
func (s *Stream) Process() protocol.ProcessInfo {
	if s.process == nil {
		return protocol.ProcessInfo{}
	}
	return *s.process
}

// Input writes to the stdin of a command that was started with InteractiveStdin. While the command does not read and its buffer is full, the server
// refuses more. Input then waits, so a large input needs no memory. After EOF or the command's end it fails with STDIN_CLOSED. Two large inputs at the
// same time may mix.
func (s *Stream) Input(ctx context.Context, p []byte, eof bool) error {
	return s.c.input(ctx, "exec.input", p, func(text, encoding string, last bool) any {
		return protocol.ExecInput{ExecID: s.id, Data: text, Encoding: encoding, EOF: eof && last}
	})
}

// inputPiece is the size of the data in one input request. It is far below the size of a frame (4 MiB) and the server's buffer for a command that does
// not read (1 MiB), also in JSON, which writes a control character in six bytes.
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

// callWhenRoom repeats a Call while the server has no room for it.
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

// Close stops reading: it drops later output and asks the server to send no more. It is idempotent and does not wait. Only the reading goroutine may
// call it.
func (s *Stream) Close() {
	s.link.abandon(s.feed, ErrClosed)
}
