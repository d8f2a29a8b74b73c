package rpc

import (
	"context"
	"time"

	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/credit"
	"trl/web/rpc/source"
)

const (
	// defaultKillGrace is the time between TERM and KILL in process.kill if the client names none.
	defaultKillGrace = 5 * time.Second
	// How many bytes an answer to process.logs has by default, and at most.
	logBytes    = 1 << 20
	maxLogBytes = 16 << 20
)

func processStart(k *call, q *protocol.ProcessStart) (any, bool, error) {
	return k.withSession(q.SessionRef, true, func(s *pool.Session) (any, bool, error) {
		p, err := k.starter(s).StartProcess(k.c.srv.ctx, q)
		if err == nil {
			err = k.checkStartedIn(p.Session())
		}
		if err != nil {
			return nil, false, err
		}
		info := p.Info()
		return &protocol.ProcessStarted{ProcessID: p.ID(), Pid: info.Pid, StreamID: p.StreamID(), StateLost: info.StateLost}, false, nil
	})
}

func processList(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, true, func(s *pool.Session) (any, bool, error) { // slow: it asks the operating system about each process
		list := &protocol.Processes{Processes: []protocol.ProcessInfo{}, Background: s.Background()}
		list.BackgroundCommands = s.BackgroundCommands(list.Background)
		for _, p := range s.Processes() {
			list.Processes = append(list.Processes, p.InfoWithTree())
		}
		return list, false, nil
	})
}

func (k *call) process(id string) (*pool.Process, error) {
	p, err := k.c.srv.pool.FindProcess(k.c.actsFor(id), id)
	if err == nil && !k.c.grant.Reaches(p.Session(), "") {
		return nil, protocol.Errorf(protocol.ProcessNotFound, "no such process")
	}
	return p, err
}

func processInfo(k *call, q *protocol.ProcessRef) (any, bool, error) {
	p, err := k.process(q.ProcessID)
	if err != nil {
		return nil, false, err
	}
	return k.answerLater(func() (any, bool, error) { // it asks the operating system about the process
		info := p.InfoWithTree()
		return &info, false, nil
	})
}

func processLogs(k *call, q *protocol.ProcessLogs) (any, bool, error) {
	p, err := k.process(q.ProcessID)
	if err != nil {
		return nil, false, err
	}
	limit := int64(logBytes)
	if q.MaxBytes != nil {
		limit = min(*q.MaxBytes, maxLogBytes)
	}
	if q.Follow {
		e := k.checkHTTP(needsNDJSON)
		if e == nil {
			e = k.checkWindow(q.WindowBytes)
		}
		if e != nil {
			return nil, false, e
		}
		return k.followLogs(source.OfProcess(p), q, limit)
	}
	src := source.OfProcess(p)
	return k.answerLater(func() (any, bool, error) { // the answer may have 16 MiB
		if err := k.reserveAnswer(keptBytes(p.Journal(), limit)); err != nil {
			return nil, false, err
		}
		logs, err := src.Logs(q.Offset, limit)
		if err != nil {
			return nil, false, err
		}
		return logs, false, nil
	})
}

// keptBytes is how many bytes of a journal are kept, at most limit.
func keptBytes(j *pool.Journal, limit int64) int64 { return min(limit, j.Size()-j.Start()) }

// followLogs answers with the output so far and sends what comes after it. It subscribes before it answers, so that a process.detach right behind the
// request finds the subscription. The pump skips what the answer has.
func (k *call) followLogs(src source.Source, q *protocol.ProcessLogs, limit int64) (any, bool, error) {
	c, offset, block := k.c, q.Offset, q.OnSlow == "block"
	c.mu.Lock()
	defer c.mu.Unlock()
	sub, before, err := c.attachLocked(src, offset, block && c.principal.Role != auth.Viewer)
	if err != nil {
		return nil, false, err
	}
	sub.credit = credit.New(q.WindowBytes, offset)
	c.subscribed.Store(true)
	c.spawn(k.method, func() { // reads, answers and pumps; ends with the stream, stop or ctx; serve waits for it
		defer c.unsubscribe(sub)
		if before != nil {
			before.await(c.ctx)
		}
		var logs *protocol.Logs
		err := k.reserveAnswer(keptBytes(src.Journal, limit))
		if err == nil {
			logs, err = src.Logs(offset, limit)
		}
		if err != nil {
			sub.stop()
			k.answer(nil, err)
		} else {
			sub.r.Skip(logs.NextOffset)
			sub.credit.Ack(logs.NextOffset) // the answer has these bytes
			logs.StreamNo, logs.InputOffset = c.numberStream(sub), c.inputOffset(sub)
			k.answer(logs, nil)
		}
		c.pump(sub)
	})
	return nil, true, nil
}

func processDetach(k *call, q *protocol.ProcessRef) (any, bool, error) {
	p, err := k.process(q.ProcessID)
	if err != nil {
		return nil, false, err
	}
	return k.detach(p.StreamID())
}

func processInput(k *call, q *protocol.ProcessInput) (any, bool, error) {
	p, err := k.process(q.ProcessID)
	if err != nil {
		return nil, false, err
	}
	data, fault := protocol.DecodeBytes(q.Data, q.Encoding)
	if fault != nil {
		return nil, false, fault
	}
	return k.takeRequest(p.StreamID(), q.Offset, func(at int64) (int64, error) { return p.Input(at, data, q.EOF) })
}

func processKill(k *call, q *protocol.ProcessKill) (any, bool, error) {
	p, err := k.process(q.ProcessID)
	if err != nil {
		return nil, false, err
	}
	if q.Signal != "" {
		sig, fault := protocol.ParseSignal(q.Signal)
		if fault != nil {
			return nil, false, fault
		}
		if err := p.Signal(sig); err != nil {
			return nil, false, err
		}
		info := p.Info()
		return &info, false, nil
	}
	grace := defaultKillGrace
	if q.KillGrace != nil {
		grace = q.KillGrace.Duration()
	}
	return k.answerLater(func() (any, bool, error) {
		return k.runDetached(func(ctx context.Context) (any, error) {
			if err := p.Kill(ctx, grace); err != nil {
				return nil, err
			}
			info := p.Info()
			return &info, nil
		})
	})
}

func processWait(k *call, q *protocol.ProcessWait) (any, bool, error) {
	if k.c.principal.Role == auth.Viewer && (q.Until.Port != 0 || q.Until.HTTP != "") { // the gateway would connect to an address that a viewer names
		return nil, false, protocol.Errorf(protocol.Forbidden, "a viewer may wait for exit and output only")
	}
	p, err := k.process(q.ProcessID)
	if err != nil {
		return nil, false, err
	}
	return k.answerLater(func() (any, bool, error) {
		ctx, cancel := k.c.ctx, context.CancelFunc(func() {})
		if q.Timeout != nil {
			ctx, cancel = context.WithTimeout(ctx, q.Timeout.Duration())
		}
		defer cancel()
		r, err := p.Wait(ctx, q.Until)
		if k.c.ctx.Err() != nil {
			return nil, false, errClientGone
		}
		return &r, false, err
	})
}
