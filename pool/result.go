package pool

import (
	"time"

	"trl/pool/answer"
	"trl/pool/clock"
	"trl/protocol"
)

// Output is what answers have of the command's output. A request that will answer with it holds it until then.
func (e *Exec) Output() *answer.Output { return e.output }

// CopiedBytes returns how many bytes the answer from offset on copies. A whole answer is written from where the output is kept.
func (e *Exec) CopiedBytes(offset int64, clean bool) int64 {
	if offset == 0 && !clean && e.hasEnded() {
		return 0
	}
	stdout, stderr := e.journal.Totals()
	return min(stdout, int64(e.output.Max)) + min(stderr, int64(e.output.Max))
}

// Clean reports whether the request asked for output without escape sequences.
func (e *Exec) Clean() bool { return e.clean }

// Answer is exec.run's answer. After Done.
func (e *Exec) Answer(clean bool) *protocol.ExecAnswer {
	r, _ := e.since(0, clean)
	r.NextOffset = nil
	return r
}

// PartialAnswer is exec.run's answer if yield_ms is over before the command has ended.
func (e *Exec) PartialAnswer() *protocol.ExecAnswer {
	r, _ := e.since(0, e.clean)
	return r
}

// AnswerSince is exec.wait's answer: the output from offset on.
func (e *Exec) AnswerSince(offset int64) (*protocol.ExecAnswer, error) {
	return e.since(offset, e.clean)
}

func (e *Exec) since(offset int64, clean bool) (*protocol.ExecAnswer, error) {
	r := new(protocol.ExecAnswer)
	if size := e.journal.Size(); offset > size {
		return r, protocol.Errorf(protocol.StreamNotFound, "offset lies beyond the end of the stream").With("size", size)
	}
	if e.hasEnded() {
		r.ExecExit = e.exit
	} else {
		r.ExecExit, r.Running = e.soFar(), true
	}
	e.output.Fill(r, e.journal, offset, clean)
	return r, nil
}

// soFar is what is known of a command that waits or runs.
func (e *Exec) soFar() protocol.ExecExit {
	s := e.session
	s.mu.Lock()
	began, dir := e.beganAt, s.dir
	s.mu.Unlock()
	now := time.Now()
	x := protocol.ExecExit{ExecID: e.ID(), SessionID: s.id, StreamID: e.stream, TimeoutS: protocol.Seconds(e.timeout.Seconds()), WorkingDir: dir}
	if began.IsZero() {
		began = now
	}
	x.QueuedMS, x.DurationMS = clock.Elapsed(e.queuedAt, began).Milliseconds(), clock.Elapsed(began, now).Milliseconds()
	x.StdoutBytes, x.StderrBytes = e.journal.Totals()
	return x
}
