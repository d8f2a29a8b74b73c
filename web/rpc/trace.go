package rpc

import (
	"time"

	"trl/pool"
	"trl/protocol"
)

// A Trace tells when each part of one request began, and its outcome. It has no text of a client.
type Trace struct {
	Method        string
	Outcome       string // ok, or the error's code
	Session       string
	Exec          string
	ReceivedAt    time.Time // the request was read
	QueuedAt      time.Time // the command queued; zero unless exec.run
	StartedAt     time.Time // the command got the turn; zero if it never did
	EndedAt       time.Time // the command ended
	AnswerReadyAt time.Time // the answer was ready
	AnsweredAt    time.Time // the answer was written
}

// noteTimes keeps the times of an exec.run that has ended.
func (k *call) noteTimes(e *pool.Exec) { k.queued, k.began, k.ended = e.Times() }

// trace calls Config.Trace for a request that has been answered.
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
	if !protocol.IsMethod(t.Method) {
		t.Method = "unknown" // a client's text must not name a span
	}
	k.c.srv.config.Trace(t)
}
