package pool

import (
	"time"

	"trl/protocol"
	"trl/runtime/journal"
)

// text is what an answer holds of one stream.
type text struct {
	bytes       []byte
	at, omitted int64
}

func textOf(e *journal.Ends) text {
	if e == nil {
		return text{}
	}
	kept, _, at, omitted := e.Bytes()
	return text{kept, at, omitted}
}

// put writes the texts into an answer.
func (e *Exec) put(r *protocol.ExecResult, stdout, stderr text, clean bool) {
	for _, side := range []struct {
		text
		into, encoding *string
		omitted        **protocol.Omitted
	}{
		{stdout, &r.Stdout, &r.StdoutEncoding, &r.Omitted.Stdout},
		{stderr, &r.Stderr, &r.StderrEncoding, &r.Omitted.Stderr},
	} {
		*side.into, *side.encoding = protocol.EncodeBytes(side.bytes)
		if clean && *side.encoding == protocol.UTF8 {
			*side.into = protocol.Clean(*side.into)
		}
		if side.text.omitted > 0 {
			*side.omitted = &protocol.Omitted{At: side.at, Bytes: side.text.omitted}
			r.Truncated = true
		}
	}
}

// Result is exec.run's answer. After Done.
func (e *Exec) Result(clean bool) protocol.ExecResult {
	if !e.keeps {
		r, _ := e.since(0, clean)
		r.NextOffset = nil
		return r
	}
	r := protocol.ExecResult{ExecExit: e.exit}
	stdout, stderr := textOf(e.stdout), textOf(e.stderr)
	if e.husk { // the texts were let go
		stdout.omitted, stderr.omitted = e.exit.StdoutBytes, e.exit.StderrBytes
	}
	e.put(&r, stdout, stderr, clean)
	return r
}

// Partial is exec.run's answer when yield_ms is over first: what there is so far, as far as the ring still has it.
func (e *Exec) Partial() protocol.ExecResult {
	r, _ := e.since(0, e.clean)
	return r
}

// Since is exec.wait's answer: the output from offset to now, or to the end when it has ended.
func (e *Exec) Since(offset int64) (protocol.ExecResult, error) { return e.since(offset, e.clean) }

func (e *Exec) since(offset int64, clean bool) (protocol.ExecResult, error) {
	var r protocol.ExecResult
	upTo := e.journal.Size() // a command that floods must not keep us here
	select {
	case <-e.done:
		r.ExecExit, upTo = e.exit, e.end
	default:
		r.ExecExit, r.Running = e.soFar(), true
	}
	// A character whose rest has not come yet is left for the next call, unless there is none.
	reader, err := e.journal.Attach(offset, journal.Options{Text: r.Running})
	if err != nil {
		return r, protocol.InvalidParam("offset", "offset is beyond the end of the stream").WithCause(err)
	}
	defer reader.Close()
	stdout, stderr := journal.NewEnds(e.most), journal.NewEnds(e.most)
	var gap int64
	for reader.Offset() < upTo {
		c, ok, err := reader.TryNext()
		if !ok || err != nil {
			break
		}
		gap += c.Gap
		data := c.Data[:max(0, min(int64(len(c.Data)), upTo-c.Offset))]
		if r.Running {
			data = c.Data // cutting at upTo would split characters; it is one chunk more at most
		}
		if c.Stream == journal.Stderr {
			stderr.Write(data)
		} else {
			stdout.Write(data)
		}
	}
	next := reader.Offset()
	if !r.Running {
		next = max(offset, upTo)
	}
	r.NextOffset = &next
	out := textOf(stdout)
	out.omitted += gap // whose they were is gone with them
	e.put(&r, out, textOf(stderr), clean)
	return r, nil
}

// soFar is what is known of a command that waits or runs.
func (e *Exec) soFar() protocol.ExecExit {
	s := e.session
	s.mu.Lock()
	began, dir := e.startedAt, s.dir
	s.mu.Unlock()
	now := time.Now()
	x := protocol.ExecExit{ExecID: e.ID(), SessionID: s.id, StreamID: e.stream, TimeoutS: protocol.Seconds(e.timeout.Seconds()), WorkingDir: dir}
	if began.IsZero() {
		began = now
	}
	x.QueuedMS, x.DurationMS = began.Sub(e.queuedAt).Milliseconds(), now.Sub(began).Milliseconds()
	x.StdoutBytes, x.StderrBytes = e.journal.Totals()
	return x
}
