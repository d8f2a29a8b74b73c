package rpc

import (
	"time"

	"trl/pool"
	"trl/protocol"
)

// A Trace is the way of one request: what it was, what came of it, and when each part of the way began. Nothing in it is a client's text.
type Trace struct {
	Method        string
	Outcome       string // ok, or the error's code
	Session       string
	Exec          string
	ReceivedAt    time.Time // it was read
	QueuedAt      time.Time // exec.run: it queued; zero otherwise
	StartedAt     time.Time // it had its turn; zero if it never had
	EndedAt       time.Time // and was over
	AnswerReadyAt time.Time // the answer was there
	AnsweredAt    time.Time // and was written
}

// noteTimes is what is told of an exec.run's, once it has ended.
func (k *call) noteTimes(e *pool.Exec) { k.queued, k.began, k.ended = e.Times() }

// trace tells Config.Trace of a request that has been answered.
func (k *call) trace(err error, answering time.Time) {
	if k.c.srv.config.Trace == nil {
		return
	}
	t := Trace{Method: k.method, Outcome: "ok", Session: k.session, ReceivedAt: k.receivedAt, QueuedAt: k.queued, StartedAt: k.began, EndedAt: k.ended, AnswerReadyAt: answering, AnsweredAt: time.Now()}
	if err != nil && err != errClientGone {
		t.Outcome = string(protocol.AsError(err).Code)
	}
	k.c.mu.Lock()
	t.Exec = k.execID
	k.c.mu.Unlock()
	if !tracedMethods[t.Method] {
		t.Method = "unknown" // what a client made up names no span
	}
	k.c.srv.config.Trace(t)
}

var tracedMethods = func() map[string]bool {
	names := map[string]bool{}
	for _, m := range protocol.Methods() {
		names[m.Name] = true
	}
	return names
}()
