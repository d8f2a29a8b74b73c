package keeper

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	"trl/runtime/descriptor"
	"trl/runtime/host"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

// open makes a group. If the group's processes have ended, it makes the group again; its held descriptors stay.
func (s *server) open(id string) (*session, error) {
	s.mu.Lock()
	old := s.sessions[id]
	known := old != nil && !old.closed
	s.mu.Unlock()
	if known {
		return nil, fmt.Errorf("group %s: %w", id, fs.ErrExist)
	}
	if old == nil {
		if err := descriptor.KeptBack(); err != nil {
			return nil, err
		}
	}
	g, err := s.host.NewGroup(id)
	if err != nil {
		return nil, err
	}
	fresh := &session{
		Group: g, id: id,
		scopes: map[int]*host.Scope{}, children: map[uint64]*process{}, held: map[int]int{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old != nil {
		fresh.children, fresh.held = old.children, old.held
	}
	s.sessions[id] = fresh
	return fresh, nil
}

// newScope makes a scope. The answer has its number, its mark and its list.
func (s *server) newScope(g *session, a *answer) (c *host.Scope, err error) {
	if c, err = g.NewScope(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	g.scopes[c.Number()] = c
	s.mu.Unlock()
	a.Scope, a.Mark = c.Number(), c.Mark()
	if fd, err := c.OpenPIDList(); err == nil && fd >= 0 {
		a.files = []int{fd}
	}
	return c, nil
}

// startSession makes a group and its first process. If a part fails, it undoes everything and returns the error. Otherwise start sends the
// answer.
func (s *server) startSession(q *request, a *answer) error {
	g, err := s.open(q.Group)
	if err != nil {
		descriptor.CloseAll(q.files)
		return err
	}
	q.session = g
	if err := s.startFirstShell(q, a); err != nil {
		s.runSlow(func() {
			_ = g.Close(context.Background())
			s.dropAll(g)
			_ = q.link.Send(wire.Message{Op: wire.OpAnswer, ID: q.ID, Fault: wire.FaultOf(err)})
		})
	}
	return nil
}

// startFirstShell is the part of startSession after the group exists. It becomes the owner of the files.
func (s *server) startFirstShell(q *request, a *answer) (err error) {
	if q.Limits != nil {
		err = q.session.Limit(*q.Limits)
	}
	if err == nil {
		q.scope, err = s.newScope(q.session, a)
	}
	if err != nil {
		descriptor.CloseAll(q.files)
		return err
	}
	return s.start(q, a)
}

// startInNewScope makes a scope, holds the first q.Count files, and starts the scope's first process, which gets the others. If a part fails, it
// undoes everything and returns the error. Otherwise start sends the answer.
func (s *server) startInNewScope(q *request, a *answer) error {
	if q.Count < 0 || q.Count > len(q.files) {
		descriptor.CloseAll(q.files)
		return fmt.Errorf("start with %d of %d descriptors: %w", q.Count, len(q.files), fs.ErrInvalid)
	}
	given := q.files[q.Count:]
	q.files = q.files[:q.Count:q.Count]
	if err := s.hold(q, a); err != nil {
		descriptor.CloseAll(given)
		return err
	}
	held := a.Held
	q.files = given
	var err error
	if q.scope, err = s.newScope(q.session, a); err != nil {
		descriptor.CloseAll(given)
	} else {
		err = s.start(q, a)
	}
	if err == nil {
		return nil
	}
	s.runSlow(func() { // what is undone may take long
		s.mu.Lock()
		s.dropLocked(q.session, held)
		s.mu.Unlock()
		if c := q.scope; c != nil {
			gone := answer{}
			if _ = s.removeScope(q, &gone); !gone.Done {
				_ = c.Kill(0)
				_ = s.removeScope(q, &gone)
			}
		}
		_ = q.link.Send(wire.Message{Op: wire.OpAnswer, ID: q.ID, Fault: wire.FaultOf(err)})
	})
	return nil
}

// start spawns q.Spawn in its scope and sends a, unless it returns an error. It sends the answer itself, because the exit must not be sent
// before. The answer's descriptors are the child's pidfd and then those of a; if there is no room, none. start becomes the owner of all
// files.
func (s *server) start(q *request, a *answer) (err error) {
	defer s.reader.beginStart()()
	defer func() {
		if err != nil {
			descriptor.CloseAll(a.files)
			a.files = nil
		}
	}()
	want, files, g := q.Spawn, q.files, q.session
	given := make([]*os.File, len(files))
	for i, fd := range files {
		given[i] = os.NewFile(uintptr(fd), "given")
		defer given[i].Close()
	}
	spec := own.Spec{
		Path: string(want.Path), Argv: texts(want.Argv), Env: texts(want.Env), Dir: string(want.Dir), TTY: want.TTY,
		Files: make([]*os.File, len(want.Slots)),
	}
	for i, slot := range want.Slots {
		if slot >= len(given) || slot < -1 {
			return fmt.Errorf("spawn with descriptor %d of %d: %w", slot, len(given), fs.ErrInvalid)
		}
		if slot >= 0 {
			spec.Files[i] = given[slot]
		}
	}
	child, err := q.scope.Spawn(spec)
	if err != nil {
		return err
	}
	if fd := child.OpenPidfd(); fd >= 0 {
		a.files = append([]int{fd}, a.files...)
	} else { // the gateway has no pidfd then, and asks us instead
		descriptor.CloseAll(a.files)
		a.files = nil
	}
	s.mu.Lock()
	if s.sessions[g.id] == nil { // forgotten meanwhile
		s.mu.Unlock()
		_ = child.Close()
		return fmt.Errorf("group %q: %w", g.id, fs.ErrClosed)
	}
	s.serial++
	p := &process{Child: child, number: s.serial, session: g}
	g.children[p.number] = p
	a.Child, a.Pid = p.number, child.Pid()
	child.DropPidfd()
	_ = q.link.Send(a.Message, a.files...)
	s.mu.Unlock()
	s.work.Go(func() { s.tellWhenExited(p) }) // ends with the child; wait waits for it
	return nil
}

// tellWhenExited waits for the child's end and tells the gateway. Without a gateway, the next hello will tell.
func (s *server) tellWhenExited(p *process) {
	<-p.Exited()
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ended = true
	if s.link != nil {
		_ = s.link.Send(wire.Message{Op: wire.OpExit, Child: p.number, Status: wire.StatusOf(p.Status())})
	}
	if p.released {
		delete(p.session.children, p.number)
	}
}

// releaseLocked closes the child. mu is held.
func (s *server) releaseLocked(p *process) {
	s.afterSentLocked(func() { _ = p.Close() })
	if p.released = true; p.ended {
		delete(p.session.children, p.number)
	}
}
