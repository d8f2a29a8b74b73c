package rpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"trl/pool"
	"trl/pool/events"
	"trl/protocol"
	"trl/web/rpc/source"
	"trl/web/transport"
)

// watch sends one client everything that happens in one session: the pool's events in their order, and, between exec.started and exec.exit, the
// command's output from the beginning.
type watch struct {
	c    *conn
	s    *pool.Session
	w    *events.Watcher
	ctx  context.Context
	stop context.CancelFunc
	gone chan struct{} // closed when run has ended

	outputs        sync.WaitGroup              // pumps that the watch has started
	runningAtStart string                      // owned by run; id of the exec that ran when the watch began
	outputEnds     map[string]*subscriptionEnd // guarded by conn.mu; by source.name: sources whose output this connection gets or got, until their exit comes
}

// maxOutputEnds is how many ended commands the watch remembers. Each makes four events, and after 1,024 events without a reader the watch starts
// afresh.
const maxOutputEnds = 256

// noteLocked records that another subscription sends the output and the exit of this source, so that the watch does not. conn.mu is held.
func (w *watch) noteLocked(name string, f *subscriptionEnd) {
	if len(w.outputEnds) >= maxOutputEnds {
		for id, f := range w.outputEnds {
			select {
			case <-f.gone:
				delete(w.outputEnds, id)
			default:
			}
		}
	}
	w.outputEnds[name] = f
}

// watch subscribes the connection to s and answers k. A second watch of a session has no further effect.
func (c *conn) watch(k *call, s *pool.Session) (any, bool, error) {
	info := k.info(s)
	if info.State == "TERMINATED" {
		return nil, false, protocol.Errorf(protocol.SessionTerminated, "the session has ended").With("reason", info.Reason)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.watches[s.ID()]; before != nil {
		if before.ctx.Err() == nil {
			return info, false, nil
		}
		return k.answerLater(func() (any, bool, error) { // the watch is ending, after a session.unwatch
			select {
			case <-before.gone:
			case <-c.ctx.Done():
				return nil, false, errClientGone
			}
			return c.watch(k, s)
		})
	}
	w := &watch{c: c, s: s, gone: make(chan struct{}), outputEnds: map[string]*subscriptionEnd{}}
	w.ctx, w.stop = context.WithCancel(c.ctx)
	current := w.attach()
	if err := w.w.Refused(); err != nil {
		w.stop()
		return nil, false, err
	}
	c.watches[s.ID()] = w
	for _, sub := range c.subs {
		if sub.Session == s.ID() {
			w.noteLocked(sub.Name(), sub.subscriptionEnd)
		}
	}
	c.subscribed.Store(true)
	c.spawn(k.method, func() { // answers and sends events; ends with the session, stop or ctx; serve waits for it
		defer w.leave()
		k.answer(info, nil)
		w.run(current)
	})
	return nil, true, nil
}

// attach subscribes to the session's events. It returns the running command, whose start is not among the events.
func (w *watch) attach() (current *pool.Exec) {
	for {
		current = w.s.Current()
		w.w = w.s.Watch()
		if w.s.Current() == current {
			return current
		}
		w.w.Close() // a command began or ended meanwhile, so its start may or may not be among the events
	}
}

// leave removes the watch when its pumps have ended.
func (w *watch) leave() {
	w.w.Close()
	w.stop()
	w.outputs.Wait()
	w.c.mu.Lock()
	delete(w.c.watches, w.s.ID())
	w.c.mu.Unlock()
	close(w.gone)
}

func (w *watch) run(current *pool.Exec) {
	c := w.c
	for there := true; there; {
		if current != nil {
			w.runningAtStart = current.ID()
			w.follow(current)
			current = nil
		}
		ev, err := w.w.Next(w.ctx)
		switch {
		case err == nil:
			there = w.forwardEvent(ev)
		case errors.Is(err, events.ErrOverflow): // whole commands passed while the client read nothing: go on with the present state
			w.w.Close()
			current = w.attach()
			state := w.s.Summary().State
			there = c.sendEvent("session.state", &protocol.SessionState{SessionID: w.s.ID(), From: state, To: state, At: time.Now()})
		default:
			if w.s.HasMoved() {
				c.end(transport.ReasonNodeGone) // the client comes back, and watches it where it is
			}
			there = false // io.EOF after session.state TERMINATED, or stop was called
		}
	}
}

// forwardEvent sends one event at its place in the output. It reports whether the client is still there.
func (w *watch) forwardEvent(ev protocol.Event) bool {
	switch data := ev.Data.(type) {
	case protocol.ExecStarted:
		if data.ExecID == w.runningAtStart {
			return true
		}
		if !w.c.sendEvent(ev.Name, data) {
			return false
		}
		if e, err := w.c.srv.pool.FindExec(w.s.Owner(), data.ExecID); err == nil {
			w.follow(e)
		}
		return true
	case protocol.ExecExit:
		if w.awaitOutput(data.ExecID) {
			return true
		}
	case protocol.ProcessInfo:
		if ev.Name == "process.exit" && w.awaitOutput(data.ProcessID) {
			return true
		}
	case *protocol.TermViewers:
		if w.c.followsStream(data.StreamID) {
			return true
		}
	case protocol.TermInfo:
		if ev.Name == "term.exit" && w.awaitOutput(data.TermID) {
			return true
		}
	}
	return w.c.sendEvent(ev.Name, ev.Data)
}

// followsStream reports whether the connection follows a stream, whose pump then sends the events of that stream.
func (c *conn) followsStream(stream string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subs[stream] != nil
}

// follow sends a command's output and exit, unless the connection gets or got them by another subscription.
func (w *watch) follow(e *pool.Exec) {
	c := w.c
	src := source.OfExec(e)
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.outputEnds[src.Exec] != nil {
		return
	}
	if sub := c.subs[src.Stream]; sub != nil {
		w.noteLocked(src.Exec, sub.subscriptionEnd)
		return
	}
	sub, _, err := c.attachLocked(src, 0, false)
	if err != nil {
		return
	}
	w.noteLocked(src.Exec, sub.subscriptionEnd)
	w.outputs.Go(func() { // pumps; ends with the command, the watch or the connection; leave waits for it
		c.containPanic("session.watch", func() {
			defer c.unsubscribe(sub)
			defer context.AfterFunc(w.ctx, sub.stop)()
			if c.binary { // no request opened this stream, so no answer has its number
				c.sendEvent("stream.started", &protocol.StreamStarted{StreamID: src.Stream, StreamNo: sub.number, ExecID: src.Exec})
			}
			c.pump(sub)
		})
	})
}

// awaitOutput returns when the output of this source has been sent, and reports whether its exit has been sent, too. The same subscription sends
// both.
func (w *watch) awaitOutput(name string) bool {
	c := w.c
	c.mu.Lock()
	f := w.outputEnds[name]
	delete(w.outputEnds, name)
	c.mu.Unlock()
	for f != nil {
		select {
		case <-f.gone:
		case <-w.ctx.Done():
			return true
		}
		if f.exitSent {
			return true
		}
		c.mu.Lock()
		f = f.next // another subscription has replaced this one
		c.mu.Unlock()
	}
	return false
}
