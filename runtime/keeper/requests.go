package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/host"
	"trl/runtime/keeper/wire"
)

// request is a message of a gateway, with the session and scope that it names.
type request struct {
	wire.Message
	link    *wire.Link
	files   []int       // the descriptors that came with it; closed before do, unless takesFiles
	session *session    // nil in a handler with target ofKeeper
	scope   *host.Scope // nil if the message names none
}

// answer is the answer to a request. The link becomes the owner of files.
type answer struct {
	wire.Message
	files []int
}

// target says what a request names.
type target int

const (
	ofKeeper  target = iota // no group
	ofSession               // a group, and a scope if the message names one
	ofScope                 // a scope
)

// handler handles one kind of request.
type handler struct {
	target     target
	do         func(q *request, a *answer) error
	slow       bool // may take long, so it gets a goroutine of its own
	takesFiles bool // do becomes the owner of the files, also if it fails
	spawns     bool // the request must have a spawn, and do sends the answer itself, unless it fails
	goneIsDone bool // if the scope is gone, the request has succeeded
}

// newHandlers returns the handler of each request. Removing a scope is slow where the host has to look at processes one by one.
func (s *server) newHandlers(removeIsSlow bool) map[string]handler {
	done := func(*request, *answer) error { return nil }
	return map[string]handler{
		wire.OpReady:    {do: done}, // see requestReader.read
		wire.OpBye:      {do: done}, // likewise
		wire.OpNumbers:  {do: s.countNumbers},
		wire.OpRemember: {do: s.remember},
		wire.OpEscaped: {slow: true, do: func(_ *request, a *answer) error {
			a.Sessions = s.host.OrphanSessions()
			return nil
		}},
		wire.OpOrphans: {slow: true, do: func(q *request, a *answer) error {
			a.Count = s.host.KillOrphans(func(id string) bool { return !slices.Contains(q.Sessions, id) })
			return nil
		}},

		wire.OpGroup: {do: func(q *request, _ *answer) error {
			_, err := s.open(q.Group)
			return err
		}},
		wire.OpStartSession: {do: s.startSession, takesFiles: true, spawns: true},
		wire.OpClose:        {target: ofSession, slow: true, do: s.closeSession},
		wire.OpDropAll: {target: ofSession, do: func(q *request, _ *answer) error {
			s.dropAll(q.session)
			return nil
		}},
		wire.OpLimit: {target: ofSession, do: func(q *request, _ *answer) error {
			if q.Limits == nil {
				return fmt.Errorf("limit: %w", fs.ErrInvalid)
			}
			return q.session.Limit(*q.Limits)
		}},
		wire.OpGauge: {target: ofSession, do: func(q *request, a *answer) error {
			a.Held, a.files = q.session.Meters().Open().Files()
			return nil
		}},
		wire.OpEnter: {target: ofSession, slow: true, do: func(q *request, _ *answer) error { return q.session.Enterable(string(q.Dir)) }},
		wire.OpCwd: {target: ofSession, do: func(q *request, a *answer) error {
			a.Dir = []byte(q.session.Cwd(q.Pid))
			return nil
		}},
		wire.OpReleaseConfinement: {target: ofSession, do: func(q *request, _ *answer) error {
			s.host.ReleaseConfinement(q.session.id)
			return nil
		}},
		wire.OpMembers: {target: ofSession, do: func(q *request, a *answer) error {
			a.Pids = q.session.Members()
			return nil
		}},
		wire.OpSignal:  {target: ofSession, do: s.signal},
		wire.OpRelease: {target: ofSession, do: s.release},

		wire.OpHold:         {target: ofSession, do: s.hold, takesFiles: true},
		wire.OpLend:         {target: ofSession, do: s.lend},
		wire.OpMakeChannels: {target: ofSession, do: s.makeChannels, takesFiles: true},
		wire.OpDrop:         {target: ofSession, do: s.drop},
		wire.OpWrite:        {target: ofSession, do: s.changeHeld},
		wire.OpPunch:        {target: ofSession, do: s.changeHeld},

		wire.OpScope: {target: ofSession, do: func(q *request, a *answer) error {
			_, err := s.newScope(q.session, a)
			return err
		}},
		wire.OpSpawn:         {target: ofScope, do: s.start, takesFiles: true, spawns: true},
		wire.OpStart:         {target: ofSession, do: s.startInNewScope, takesFiles: true, spawns: true},
		wire.OpAddChild:      {target: ofScope, do: func(q *request, _ *answer) error { return q.scope.AddChild(q.Pid) }},
		wire.OpAddForkedCopy: {target: ofScope, do: func(q *request, _ *answer) error { return q.scope.AddForkedCopy(q.Pid) }},
		wire.OpMembersExcept: {target: ofScope, do: func(q *request, a *answer) error {
			a.Pids = q.scope.MembersExcept(q.Pid)
			q.scope.Rest() // gateways ask seldom, and have a list of their own
			return nil
		}},
		wire.OpKill:   {target: ofScope, slow: true, goneIsDone: true, do: func(q *request, _ *answer) error { return q.scope.Kill(q.Pid) }},
		wire.OpRemove: {target: ofScope, slow: removeIsSlow, do: s.removeScope},
	}
}

// handle handles m and answers; later, if it may take long.
func (s *server) handle(l *wire.Link, m wire.Message, files []int) {
	h := s.handlers[m.Op] // for an unknown op, do is nil
	q := &request{Message: m, link: l, files: files}
	if h.slow {
		s.runSlow(func() { s.respond(h, q) })
	} else {
		s.respond(h, q)
	}
}

// runSlow runs f, which may take long but is bounded by timeouts of runtime, in a goroutine. wait waits for it.
func (s *server) runSlow(f func()) {
	s.slow.Add(1)
	s.work.Go(func() {
		defer s.slow.Add(-1)
		f()
	})
}

// respond handles q and answers.
func (s *server) respond(h handler, q *request) {
	a := &answer{Message: wire.Message{Op: wire.OpAnswer, ID: q.ID}}
	err := s.perform(h, q, a)
	switch {
	case err == nil && h.spawns:
		return
	case q.ID == 0: // a message without an answer
		descriptor.CloseAll(a.files)
		return
	}
	a.Fault = wire.FaultOf(err)
	if err := q.link.Send(a.Message, a.files...); err != nil {
		s.log.Error().Err(err).Str("op", q.Op).Msg("answer cannot be sent")
		_ = q.link.Send(wire.Message{Op: wire.OpAnswer, ID: q.ID, Fault: wire.FaultOf(err)}) // the gateway waits for an answer
	}
}

// perform finds the session and scope that q names, and calls the handler.
func (s *server) perform(h handler, q *request, a *answer) (err error) {
	if !h.takesFiles {
		descriptor.CloseAll(q.files)
		q.files = nil
	}
	switch {
	case q.Lost:
		return unix.EMFILE
	case h.do == nil, h.spawns && q.Spawn == nil:
		err = fmt.Errorf("request %s: %w", q.Op, fs.ErrInvalid)
	case h.target != ofKeeper:
		if q.session, q.scope, err = s.find(q.Group, q.Scope); err == nil && h.target == ofScope && q.scope == nil {
			err = fmt.Errorf("%s: %w", q.Op, fs.ErrInvalid)
		}
	}
	if h.goneIsDone && errors.Is(err, fs.ErrClosed) {
		return nil
	}
	if err != nil {
		descriptor.CloseAll(q.files)
		return err
	}
	return h.do(q, a)
}

func (s *server) countNumbers(_ *request, a *answer) error {
	n := s.numbers()
	n.Descriptors, n.MostDescriptors = descriptor.Count()
	a.Numbers = &n
	return nil
}

func (s *server) remember(q *request, _ *answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remembered = append([]byte{}, q.Text...) // not nil: an empty text counts as one
	return nil
}

func (s *server) closeSession(q *request, _ *answer) error {
	if err := q.session.Close(context.Background()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(q.session.scopes)
	q.session.closed = true
	return nil
}

// signal signals the first of these that the message names: a child, some processes of a scope, a scope, a group.
func (s *server) signal(q *request, _ *answer) error {
	sig := syscall.Signal(q.Signal)
	switch {
	case q.Child != 0:
		s.mu.Lock()
		p := q.session.children[q.Child]
		s.mu.Unlock()
		if p == nil {
			return os.ErrProcessDone
		}
		return p.Signal(sig)
	case q.scope == nil:
		q.session.Signal(sig, q.Pids...)
	case q.Done:
		q.scope.SignalSome(sig, q.Pids...)
	default:
		q.scope.Signal(sig, q.Pid)
	}
	return nil
}

func (s *server) release(q *request, _ *answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := q.session.children[q.Child]; p != nil {
		s.releaseLocked(p)
	}
	return nil
}

func (s *server) drop(q *request, _ *answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(q.session, q.Held)
	return nil
}

func (s *server) removeScope(q *request, a *answer) error {
	if a.Done = q.scope.Remove(); a.Done {
		s.mu.Lock()
		delete(q.session.scopes, q.scope.Number())
		s.mu.Unlock()
	}
	return nil
}
