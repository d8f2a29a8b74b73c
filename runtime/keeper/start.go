package keeper

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	"trl/runtime"
)

// open makes a group, or makes it anew when its processes are gone: what is held for it stays.
func (s *server) open(id string) (*session, error) {
	s.mu.Lock()
	old := s.sessions[id]
	known := old != nil && !old.closed
	s.mu.Unlock()
	if known {
		return nil, fmt.Errorf("group %s: %w", id, fs.ErrExist)
	}
	g, err := s.host.NewGroup(id)
	if err != nil {
		return nil, err
	}
	fresh := &session{
		Group: g, id: id,
		scopes: map[int]*runtime.Scope{}, children: map[uint64]*process{}, held: map[int]int{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old != nil {
		fresh.children, fresh.held = old.children, old.held
	}
	s.sessions[id] = fresh
	return fresh, nil
}

// newScope makes one, and says so in a; out is the caller's.
func (s *server) newScope(g *session, a *message) (c *runtime.Scope, out []int, err error) {
	if c, err = g.NewScope(); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	g.scopes[c.Number()] = c
	s.mu.Unlock()
	a.Scope, a.Mark = c.Number(), c.Mark()
	if fd, err := c.OpenPIDList(); err == nil && fd >= 0 {
		out = []int{fd}
	}
	return c, out, nil
}

// startSession makes a group and its first process; or nothing, in the end, and tells why. The group is there when it returns;
// unless there is an error, the rest comes later, with the answer. The files are its own.
func (s *server) startSession(l *link, m message, files []int) error {
	if m.Spawn == nil {
		closeAll(files)
		return fmt.Errorf("found: %w", fs.ErrInvalid)
	}
	g, err := s.open(m.Group)
	if err != nil {
		closeAll(files)
		return err
	}
	if err := s.startFirstShell(l, g, m, files); err != nil {
		s.runSlow(func() {
			_ = g.Close(context.Background())
			s.dropAll(g)
			_ = l.send(message{Op: opAnswer, ID: m.ID, Fault: faultOf(err)})
		})
	}
	return nil
}

// startFirstShell is found for a group that is there.
func (s *server) startFirstShell(l *link, g *session, m message, files []int) error {
	if m.Limits != nil {
		if err := g.Limit(*m.Limits); err != nil {
			closeAll(files)
			return err
		}
	}
	a := message{Op: opAnswer, ID: m.ID}
	c, list, err := s.newScope(g, &a)
	if err != nil {
		closeAll(files)
		return err
	}
	return s.start(l, g, c, m.Spawn, files, a, list)
}

// spawn answers itself if there is no error. The files are its own.
func (s *server) spawn(l *link, m message, files []int) error {
	g, c, err := s.find(m.Group, m.Scope)
	if err == nil && (c == nil || m.Spawn == nil) {
		err = fmt.Errorf("spawn: %w", fs.ErrInvalid)
	}
	if err != nil {
		closeAll(files)
		return err
	}
	return s.start(l, g, c, m.Spawn, files, message{Op: opAnswer, ID: m.ID}, nil)
}

// start spawns what is wanted and answers with a, unless there is an error: the exit must not be told before. The
// descriptors of the answer are the child's, and then out; or none at all, if there is no room. files and out are its own.
func (s *server) start(l *link, g *session, c *runtime.Scope, want *spawn, files []int, a message, out []int) error {
	defer s.reader.beginStart()()
	given := make([]*os.File, len(files))
	for i, fd := range files {
		given[i] = os.NewFile(uintptr(fd), "given")
		defer given[i].Close()
	}
	spec := runtime.Spec{
		Path: string(want.Path), Argv: texts(want.Argv), Env: texts(want.Env), Dir: string(want.Dir), TTY: want.TTY,
		Files: make([]*os.File, len(want.Slots)), Scope: c,
	}
	for i, slot := range want.Slots {
		if slot >= len(given) || slot < -1 {
			closeAll(out)
			return fmt.Errorf("spawn with descriptor %d of %d: %w", slot, len(given), fs.ErrInvalid)
		}
		if slot >= 0 {
			spec.Files[i] = given[slot]
		}
	}
	child, err := s.host.Spawn(spec)
	if err != nil {
		closeAll(out)
		return err
	}
	if fd, err := duplicate(child.Pidfd()); err == nil {
		out = append([]int{fd}, out...)
	} else { // then the gateway has as little room, and asks us
		closeAll(out)
		out = nil
	}
	s.mu.Lock()
	if s.sessions[g.id] == nil { // forgotten meanwhile
		s.mu.Unlock()
		_ = child.Close()
		closeAll(out)
		return fmt.Errorf("group %q: %w", g.id, fs.ErrClosed)
	}
	s.serial++
	p := &process{Child: child, number: s.serial, session: g}
	g.children[p.number] = p
	a.Child, a.Pid = p.number, child.Pid()
	_ = l.send(a, out...)
	s.mu.Unlock()
	s.work.Go(func() { s.tellWhenExited(p) }) // ends with the child; wait waits for it
	return nil
}

// tellWhenExited waits for the child's end, and tells the gateway there is then; else a hello will.
func (s *server) tellWhenExited(p *process) {
	<-p.Exited()
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ended = true
	if s.link != nil {
		_ = s.link.send(message{Op: opExit, Child: p.number, Status: statusOf(p.Status())})
	}
	if p.released {
		delete(p.session.children, p.number)
	}
}

// releaseLocked: mu is held.
func (s *server) releaseLocked(p *process) {
	s.afterSentLocked(func() { _ = p.Close() })
	if p.released = true; p.ended {
		delete(p.session.children, p.number)
	}
}
