package web

import (
	"context"
	"errors"
	"sync"
	"time"

	"trl/pool"
	"trl/protocol"
)

// watch sends one client everything that happens in one session: the pool's events in their order, and between exec.started and
// exec.exit the command's output, from the journal's start.
type watch struct {
	c    *conn
	s    *pool.Session
	w    *pool.Watcher
	ctx  context.Context
	stop context.CancelFunc
	gone chan struct{} // closed when run has ended

	outputs sync.WaitGroup           // the pumps that the watch started
	seen    map[string]*subscription // owned by run; by exec id, from its start to its exit
}

// watch subscribes the connection to s and answers k. Watching twice is watching once.
func (c *conn) watch(k *call, s *pool.Session) (any, error) {
	info := s.Info()
	if info.State == "TERMINATED" {
		return nil, protocol.Errorf(protocol.SessionTerminated, "the session has ended").With("reason", info.Reason)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.watches[s.ID()]; before != nil {
		if before.ctx.Err() == nil {
			return &info, nil
		}
		return k.later(func() (any, error) { // it is ending: session.unwatch came just before
			<-before.gone
			return c.watch(k, s)
		})
	}
	w := &watch{c: c, s: s, gone: make(chan struct{}), seen: map[string]*subscription{}}
	w.ctx, w.stop = context.WithCancel(c.ctx)
	current := w.attach()
	c.watches[s.ID()] = w
	c.asked.Store(true)
	c.spawn(func() { // answers and sends events; ends with the session, stop or ctx; serve waits for it
		k.answer(&info, nil)
		w.run(current)
	})
	return nil, errLater
}

// attach subscribes to the session's events and returns the command that runs, whose start is not among them.
func (w *watch) attach() (current *pool.Exec) {
	for {
		current = w.s.Current()
		w.w = w.s.Watch()
		if w.s.Current() == current {
			return current
		}
		w.w.Close() // a command began or ended meanwhile: its start may be among the events, or not
	}
}

func (w *watch) run(current *pool.Exec) {
	c := w.c
	defer func() {
		w.w.Close()
		w.stop()
		w.outputs.Wait()
		c.mu.Lock()
		delete(c.watches, w.s.ID())
		c.mu.Unlock()
		close(w.gone)
	}()
	for there := true; there; {
		if current != nil {
			w.follow(current)
			current = nil
		}
		ev, err := w.w.Next(w.ctx)
		switch {
		case err == nil:
			there = w.tell(ev)
		case errors.Is(err, pool.ErrOverflow): // whole commands passed while the client took nothing: go on with what is now
			w.w.Close()
			current = w.attach()
			state := w.s.Data().State
			there = c.event("session.state", &protocol.SessionState{SessionID: w.s.ID(), From: state, To: state, At: time.Now()})
		default:
			there = false // io.EOF after session.state TERMINATED, or stop
		}
	}
}

// tell sends one event, in its place between pieces of output, and reports whether the client is still there.
func (w *watch) tell(ev protocol.Event) bool {
	switch data := ev.Data.(type) {
	case protocol.ExecStarted:
		if w.seen[data.ExecID] != nil {
			return true // it ran when the watch began
		}
		if !w.c.event(ev.Name, data) {
			return false
		}
		if e, err := w.c.srv.pool.FindExec(w.c.who.Subject, data.ExecID); err == nil {
			w.follow(e)
		}
		return true
	case protocol.ExecExit:
		if w.wait(data.ExecID) {
			return true
		}
	}
	return w.c.event(ev.Name, ev.Data)
}

// follow sends a command's output and exit, unless the connection has a subscription to that stream already.
func (w *watch) follow(e *pool.Exec) {
	c := w.c
	src := execSource(e)
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.seen[e.ID()] != nil {
		return
	}
	sub := c.subs[src.stream]
	if sub == nil {
		var err error
		if sub, _, err = c.joinLocked(src, 0, false); err != nil {
			return
		}
		w.outputs.Go(func() { // pumps; ends with the command, the watch or the connection; run waits for it
			defer context.AfterFunc(w.ctx, sub.stop)()
			c.pump(sub)
		})
	}
	w.seen[e.ID()] = sub
}

// wait returns when the command's output has been sent, and reports whether its exit has been too: whoever sends the one sends the other.
func (w *watch) wait(execID string) bool {
	sub := w.seen[execID]
	delete(w.seen, execID)
	for sub != nil {
		select {
		case <-sub.gone:
		case <-w.ctx.Done():
			return true
		}
		if sub.told {
			return true
		}
		w.c.mu.Lock()
		sub = sub.next // exec.attach took over
		w.c.mu.Unlock()
	}
	return false
}
