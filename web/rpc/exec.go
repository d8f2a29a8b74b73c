package rpc

import (
	"errors"
	"time"

	"trl/pool"
	"trl/protocol"
	"trl/web/rpc/source"
)

func execRun(k *call, q *protocol.ExecRun) (any, bool, error) {
	if k.remote == nil { // else route has done it
		k.c.rememberCall(k)
	}
	return k.withSession(q.SessionRef, false, func(s *pool.Session) (any, bool, error) {
		e, err := k.starter(s).Exec(q.Exec())
		if err == nil {
			err = k.checkStartedIn(e.Session())
		}
		if err != nil {
			return nil, false, err
		}
		k.started(e.ID())
		k.auditAnswer(nil, nil) // now, because the command may run for hours
		k.holdOutput(e)
		return k.answerLater(func() (any, bool, error) {
			ended, err := k.awaitEnd(e, q.YieldMS, nil)
			if err != nil {
				return nil, false, err
			}
			if err := k.reserveAnswer(e.CopiedBytes(0, q.Clean)); err != nil {
				return nil, false, err
			}
			if !ended {
				return e.PartialAnswer(), false, nil
			}
			k.noteTimes(e)
			if err := e.Err(); err != nil {
				return nil, false, err
			}
			return e.Answer(q.Clean), false, nil
		})
	})
}

// holdOutput keeps e's output counted until the request has been answered.
func (k *call) holdOutput(e *pool.Exec) {
	k.output = e.Output()
	k.output.Hold()
}

// awaitEnd waits until the command has ended, the time is over, or the client has gone. The command goes on in the last two cases.
func (k *call) awaitEnd(e *pool.Exec, yieldMS *float64, timeout *protocol.Seconds) (ended bool, err error) {
	var late <-chan time.Time
	limit := time.Duration(-1)
	if yieldMS != nil {
		limit = protocol.Seconds(*yieldMS / 1000).Duration()
	}
	if timeout != nil && (limit < 0 || timeout.Duration() < limit) {
		limit = timeout.Duration()
	}
	if limit >= 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-e.Done():
		return true, nil
	case <-late:
		return false, nil
	case <-k.c.ctx.Done():
		return false, errClientGone
	}
}

func execStream(k *call, q *protocol.ExecStream) (any, bool, error) {
	c := k.c
	if e := k.checkWindow(q.WindowBytes); e != nil {
		return nil, false, e
	}
	if k.remote == nil {
		c.rememberCall(k)
	}
	return k.withSession(q.SessionRef, false, func(s *pool.Session) (any, bool, error) {
		// mu is held over the pool's call, which does not wait: when a watch of this connection gets exec.started, the stream must be taken already.
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.checkStreamsLocked(); err != nil { // before the command starts
			return nil, false, err
		}
		e, err := k.starter(s).Stream(q.Exec())
		if err == nil {
			err = k.checkStartedIn(e.Session())
		}
		if err != nil {
			return nil, false, err
		}
		k.execID = e.ID()
		return c.subscribeLocked(k, source.OfExec(e), 0, q.OnSlow != "skip", q.WindowBytes)
	})
}

func execList(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, false, func(s *pool.Session) (any, bool, error) { return &protocol.Execs{Execs: s.Execs()}, false, nil })
}

func (k *call) exec(id string) (*pool.Exec, error) {
	e, err := k.c.srv.pool.FindExec(k.c.actsFor(id), id)
	if err == nil && !k.c.grant.Reaches(e.Session(), "") {
		return nil, protocol.Errorf(protocol.ExecNotFound, "no such exec")
	}
	return e, err
}

func execWait(k *call, q *protocol.ExecWait) (any, bool, error) {
	e, err := k.exec(q.ExecID)
	if err != nil {
		return nil, false, err
	}
	k.holdOutput(e)
	return k.answerLater(func() (any, bool, error) {
		ended, err := k.awaitEnd(e, q.YieldMS, q.Timeout)
		if err != nil {
			return nil, false, err
		}
		if ended && e.Err() != nil {
			return nil, false, e.Err()
		}
		var offset int64
		if q.Offset != nil {
			offset = *q.Offset
		}
		if err := k.reserveAnswer(e.CopiedBytes(offset, e.Clean())); err != nil {
			return nil, false, err
		}
		a, err := e.AnswerSince(offset)
		return a, false, err
	})
}

func execInput(k *call, q *protocol.ExecInput) (any, bool, error) {
	e, err := k.exec(q.ExecID)
	if err != nil {
		return nil, false, err
	}
	data, fault := protocol.DecodeBytes(q.Data, q.Encoding)
	if fault != nil {
		return nil, false, fault
	}
	return k.takeRequest(e.StreamID(), q.Offset, func(at int64) (int64, error) { return e.Input(at, data, q.EOF) })
}

func execCancel(k *call, q *protocol.ExecCancel) (any, bool, error) {
	c := k.c
	switch {
	case q.ExecID != "":
		e, err := k.exec(q.ExecID)
		if err != nil {
			return nil, false, err
		}
		return k.cancel(e, q)
	case q.RequestID != nil && c.request != nil:
		return nil, false, notOverHTTP("request_id names a request of the same connection").With("field", "request_id")
	case q.RequestID != nil:
		earlier := c.findCall(q.RequestID)
		if earlier == nil {
			return nil, false, protocol.Errorf(protocol.ExecNotFound, "no exec.run or exec.stream with this id on this connection")
		}
		byID := func() (any, bool, error) {
			c.mu.Lock()
			id := earlier.execID
			c.mu.Unlock()
			if id == "" { // the request was refused
				return &protocol.ExecCancelled{}, false, nil
			}
			e, err := k.exec(id)
			if _, moves := errors.AsType[*pool.Move](err); moves { // only sessions whose commands have ended move
				return q.Ended(id), false, nil
			}
			if err != nil {
				return nil, false, err
			}
			return k.cancel(e, q)
		}
		c.mu.Lock()
		key, waits := earlier.queueKey, earlier.execID == ""
		c.mu.Unlock()
		if waits && key != "" {
			return k.inOrder(key, false, byID)
		}
		return byID()
	}
	if q.SessionRef == (protocol.SessionRef{}) && c.grant.Share == nil && !k.mustWait(nameKey(defaultSession)) {
		s, err := c.srv.pool.Find(c.principal.Subject, "", defaultSession)
		if err != nil || !s.IsOpen() {
			return &protocol.ExecCancelled{}, false, nil // a cancel does not create the default session
		}
		q.SessionID = s.ID()
	}
	return k.withSession(q.SessionRef, false, func(s *pool.Session) (any, bool, error) {
		if e := s.Current(); e != nil {
			return k.cancel(e, q)
		}
		return &protocol.ExecCancelled{}, false, nil
	})
}

// cancel cancels e and answers when e has ended. If q names a signal, it only sends that signal and answers when it has been sent.
func (k *call) cancel(e *pool.Exec, q *protocol.ExecCancel) (any, bool, error) {
	data := &protocol.ExecCancelled{ExecID: e.ID()}
	if q.Signal != "" {
		sig, fault := protocol.ParseSignal(q.Signal)
		if fault != nil {
			return nil, false, fault
		}
		told, withdrawn := e.Signal(sig)
		if told == nil {
			if data.Cancelled = withdrawn; !withdrawn {
				data = q.Ended(e.ID())
			}
			return data, false, nil
		}
		return k.answerLater(func() (any, bool, error) {
			select {
			case got := <-told:
				data.Cancelled, data.Signalled, data.Reason = got.Processes > 0, got.Processes, got.Why
				return data, false, nil
			case <-k.c.ctx.Done():
				return nil, false, errClientGone
			}
		})
	}
	var grace *time.Duration
	if q.KillGrace != nil {
		d := q.KillGrace.Duration()
		grace = &d
	}
	done, was := e.Cancel(grace)
	if data.Cancelled = was; !was {
		return data, false, nil
	}
	return k.answerLater(func() (any, bool, error) {
		select {
		case <-done:
			return data, false, nil
		case <-k.c.ctx.Done():
			return nil, false, errClientGone
		}
	})
}

func execAttach(k *call, q *protocol.ExecAttach) (any, bool, error) {
	e, err := k.exec(q.ExecID)
	if err != nil {
		return nil, false, err
	}
	if e := k.checkWindow(q.WindowBytes); e != nil {
		return nil, false, e
	}
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	return k.c.subscribeLocked(k, source.OfExec(e), q.Offset, q.OnSlow == "block", q.WindowBytes) // by default only the client that started the command holds it up
}

func execDetach(k *call, q *protocol.ExecDetach) (any, bool, error) {
	e, err := k.exec(q.ExecID)
	if err != nil {
		return nil, false, err
	}
	return k.detach(e.StreamID())
}
