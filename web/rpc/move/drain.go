package move

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"trl/pool/moved"
	"trl/protocol"
	"trl/web/audit"
)

const (
	sweepInterval = 500 * time.Millisecond // between looks for sessions that can be moved now; longer if a look takes long
	drainAtOnce   = 4                      // sessions that a drain moves at the same time
	beginTimeout  = time.Second            // how long a move waits for the session's shell to start
	firstRetry    = time.Second            // after the first failed attempt to move a session; it doubles
	lastRetry     = 10 * time.Second
	maxUnmoved    = 100 // sessions that Progress names
)

// Drain moves the sessions of this node to others, while the node drains.
type Drain struct {
	mv *Mover

	mu    sync.Mutex
	moved int             // guarded by mu
	tries map[string]*try // guarded by mu; by session, as long as it is on this node
}

// try is what a drain knows of a session.
type try struct {
	moving   bool // an attempt is under way, or the session has moved and its move is not over yet
	failures int
	next     time.Time // of the next attempt
	why      protocol.Unmoved
}

// Progress says how far the drain is that moves sessions; nil: there is none.
func (mv *Mover) Progress() *protocol.DrainMoves {
	d := mv.drain.Load()
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &protocol.DrainMoves{Moved: d.moved, Unmoved: []protocol.Unmoved{}}
	for _, t := range d.tries {
		if !t.moving && t.why.Reason != "" {
			p.Unmoved = append(p.Unmoved, t.why)
		}
	}
	slices.SortFunc(p.Unmoved, func(a, b protocol.Unmoved) int { return strings.Compare(a.SessionID, b.SessionID) })
	p.Unmoved = p.Unmoved[:min(len(p.Unmoved), maxUnmoved)]
	return p
}

// Drain returns the drain that moves sessions. There is one until Forget.
func (mv *Mover) Drain() *Drain {
	mv.drain.CompareAndSwap(nil, &Drain{mv: mv, tries: map[string]*try{}})
	return mv.drain.Load()
}

// Forget forgets the drain, because it was undone. It is not called while Drain is.
func (mv *Mover) Forget() { mv.drain.Store(nil) }

// MoveAll moves the sessions of this node to other nodes, each as soon as it has nothing that cannot go along. It returns when no session is left, or with
// ctx; then no move is under way.
func (d *Drain) MoveAll(ctx context.Context) {
	mv := d.mv
	places := make(chan struct{}, drainAtOnce)
	var moves sync.WaitGroup
	defer moves.Wait()
	for {
		start := time.Now()
		all := mv.pool.List("", &protocol.SessionList{All: true}) // it asks the operating system about each
		took := time.Since(start)
		if len(all) == 0 {
			return
		}
		d.keep(all)
		for i := range all {
			if !d.begin(&all[i]) {
				continue
			}
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				d.end(all[i].SessionID, context.Cause(ctx))
				return
			}
			moves.Go(func() { // bounded by the move's timeout; ends with ctx; MoveAll waits for it
				d.end(all[i].SessionID, mv.moveAway(ctx, &all[i]))
				<-places
			})
		}
		select {
		case <-time.After(max(sweepInterval, 10*took)):
		case <-ctx.Done():
			return
		}
	}
}

// keep forgets the sessions that are not on this node any more.
func (d *Drain) keep(all []protocol.SessionInfo) {
	here := map[string]bool{}
	for i := range all {
		here[all[i].SessionID] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, t := range d.tries {
		if !here[id] && !t.moving {
			delete(d.tries, id)
		}
	}
}

// begin reports whether a session is to be moved now. The caller calls end.
func (d *Drain) begin(s *protocol.SessionInfo) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tries[s.SessionID]
	if t == nil {
		t = new(try)
		d.tries[s.SessionID] = t
	}
	if t.moving {
		return false
	}
	if why := pinnedBy(s); why != "" {
		*t = try{why: protocol.Unmoved{SessionID: s.SessionID, Reason: why}}
		return false
	}
	t.moving = !time.Now().Before(t.next)
	return t.moving
}

// pinnedBy returns what the session has, as far as its description shows, that cannot go along, or "". Asking it for a move would tell the same, and more.
func pinnedBy(s *protocol.SessionInfo) string {
	switch {
	case s.CurrentExec != nil || s.QueueLength > 0:
		return "commands"
	case s.Processes > 0:
		return "processes"
	case s.Terminals > 0:
		return "terminals"
	case len(s.Unmanaged) > 0:
		return "jobs"
	}
	return ""
}

// end notes how an attempt to move a session has ended.
func (d *Drain) end(session string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tries[session]
	if err == nil {
		d.moved++
		delete(d.tries, session)
		return
	}
	t.moving = false
	e := protocol.AsError(err)
	t.why = protocol.Unmoved{SessionID: session, Reason: string(e.Code), Message: e.Message}
	switch reason, _ := e.Details["reason"].(string); {
	case e.Code == moved.Code:
		t.why.Reason, t.why.Message = "move", ""
	case e.Code == protocol.SessionBusy:
		t.why.Reason, t.why.Message = reason, ""
		t.failures = 0
	}
	t.next = time.Now().Add(min(lastRetry, firstRetry<<min(t.failures, 8)))
	t.failures++
}

// moveAway moves a session to the first node that takes it.
func (mv *Mover) moveAway(ctx context.Context, info *protocol.SessionInfo) error {
	s, err := mv.pool.Find(info.Owner, info.SessionID, "")
	if err != nil {
		return err
	}
	if err := checkLabels(mv.nodes, info.Where); err != nil {
		return err
	}
	epochs, err := mv.nodes.Place(info.Where, "")
	if err != nil {
		return err
	}
	self := mv.nodes.Self()
	err = protocol.Errorf(protocol.NodeUnreachable, "no other node takes sessions now")
	for _, epoch := range epochs {
		if epoch == self.Epoch { // the directory does not know yet that it drains
			continue
		}
		n, _ := mv.nodes.Find(epoch)
		begin, cancel := context.WithTimeout(ctx, beginTimeout)
		m, pinned := s.BeginMove(begin, epoch)
		cancel()
		if errors.Is(pinned, context.DeadlineExceeded) {
			return protocol.Errorf(protocol.SessionBusy, "its shell is starting").With("reason", "commands") // as session.move calls it
		}
		if pinned != nil {
			return pinned
		}
		start := time.Now()
		bounded, cancel := context.WithTimeout(ctx, timeout)
		_, err = mv.give(bounded, m, n.Node)
		cancel()
		if err == nil {
			mv.audit.Append(audit.Entry{
				Action: audit.ActionMove, Outcome: "ok", Reason: "drain", Session: info.SessionID, Owner: info.Owner, Nodes: audit.Nodes{From: self.Node, To: n.Node},
				DurationMS: audit.Milliseconds(time.Since(start)),
			})
			return nil
		}
		fault := protocol.AsError(err)
		err = protocol.Errorf(fault.Code, "node %s: %s", n.Node, fault.Message).WithCause(err)
	}
	return err
}
