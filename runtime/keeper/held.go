package keeper

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

// reservedFDCount is the number of descriptors that the start of a gateway takes: its socket, its environment, its pidfd, a pipe until its
// exec, and for a while copies of some.
const reservedFDCount = 8

// reserveFDs runs before the keeper does anything for a gateway. Whatever that gateway makes us hold, the next gateway can be started.
func (s *server) reserveFDs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.reservedFDs) < reservedFDCount {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		s.reservedFDs = append(s.reservedFDs, fd)
	}
}

func (s *server) freeReservedFDs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	descriptor.CloseAll(s.reservedFDs)
	s.reservedFDs = nil
}

// hold keeps the files. The answer has their numbers.
func (s *server) hold(q *request, a *answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stillThereLocked(q.session); err != nil {
		descriptor.CloseAll(q.files)
		return err
	}
	for _, fd := range q.files {
		q.session.held[fd] = fd
	}
	a.Held = q.files
	return nil
}

// lend answers with copies of held descriptors, in the order of their numbers, and of a child's pidfd.
func (s *server) lend(q *request, a *answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fds []int
	for _, number := range q.Held {
		if fd, held := q.session.held[number]; held {
			fds = append(fds, fd)
		}
	}
	p := q.session.children[q.Child]
	if len(fds) != len(q.Held) || p == nil {
		return fmt.Errorf("%s: %w", q.Op, fs.ErrClosed)
	}
	for _, fd := range fds {
		fd, err := wire.Duplicate(fd)
		if err != nil {
			return notLent(a, err)
		}
		a.files = append(a.files, fd)
	}
	fd := p.OpenPidfd()
	if fd < 0 {
		return notLent(a, unix.EMFILE)
	}
	a.files = append(a.files, fd)
	return nil
}

func notLent(a *answer, err error) error {
	descriptor.CloseAll(a.files)
	a.files = nil
	return err
}

// stillThereLocked returns an error if the session was forgotten after find found it, because its start failed. mu is held.
func (s *server) stillThereLocked(g *session) error {
	if s.sessions[g.id] != g {
		return fmt.Errorf("group %q: %w", g.id, fs.ErrClosed)
	}
	return nil
}

// makeChannels makes the channels that the group's shells open, and holds the other files of the request. The answer has the numbers, two
// for each channel, and copies of the channels' descriptors.
func (s *server) makeChannels(q *request, a *answer) (err error) {
	g := q.session
	defer func() {
		if err != nil {
			descriptor.CloseAll(q.files)
		}
	}()
	if len(q.Kinds) > maxChannels || !g.UsesFIFOs() {
		return fmt.Errorf("make: %w", fs.ErrInvalid)
	}
	all, err := g.MakeChannels(q.Kinds)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stillThereLocked(g); err != nil {
		own.CloseChannels(all)
		return err
	}
	var numbers, copies []int
	for _, m := range all {
		numbers = append(numbers, m.HeldR, m.HeldW)
		for number, fd := range map[int]int{m.HeldR: m.R, m.HeldW: m.W} {
			if number >= 0 {
				g.held[number] = fd
			}
		}
	}
	give := func(fd int) {
		if err == nil {
			if fd, err = wire.Duplicate(fd); err == nil {
				copies = append(copies, fd)
			}
		}
	}
	for _, m := range all {
		if m.R >= 0 {
			give(m.R)
		}
		give(m.W)
	}
	if err != nil {
		descriptor.CloseAll(copies)
		s.dropLocked(g, numbers)
		return err
	}
	for _, fd := range q.files {
		g.held[fd] = fd
		numbers = append(numbers, fd)
	}
	a.Held, a.files = numbers, copies
	return nil
}

// maxChannels bounds one request. The start of a shell takes four.
const maxChannels = 64

// dropLocked closes held descriptors. mu is held.
func (s *server) dropLocked(g *session, numbers []int) {
	for _, number := range numbers {
		if fd, ok := g.held[number]; ok { // a session can only close its own
			delete(g.held, number)
			g.Unlink(number)
			s.afterSentLocked(func() { s.closeLater(g, fd) })
		}
	}
}

// slowCloser closes dropped descriptors of one session. Nobody waits for it, because the close of a pipe's last descriptor takes the pipe's
// lock, and a process that splices from a silent socket into the pipe holds that lock for as long as it likes.
type slowCloser struct {
	mu      sync.Mutex
	queue   []int // guarded by mu
	workers int   // guarded by mu; number of goroutines that close
}

// maxCloserThreads bounds how many of our threads a session can block. If it blocks all of them, the descriptors that it drops stay open.
const maxCloserThreads = 4

// closeLater closes fd soon, or when the lock of its pipe is free. A handover waits for it, because a thread in that call would prevent the
// exec.
func (s *server) closeLater(g *session, fd int) {
	d := &g.slowCloser
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, fd)
	if d.workers < maxCloserThreads {
		d.workers++
		s.runSlow(d.closeQueued) // ends with the queue; wait waits for it
	}
}

func (d *slowCloser) closeQueued() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.queue) > 0 {
		fd := d.queue[0]
		d.queue = d.queue[1:]
		d.mu.Unlock()
		unix.Close(fd)
		d.mu.Lock()
	}
	d.queue, d.workers = nil, d.workers-1
}

func (s *server) dropAll(g *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(g, slices.Collect(maps.Keys(g.held)))
	for _, p := range g.children {
		s.releaseLocked(p)
	}
	delete(s.sessions, g.id)
	s.host.ReleaseConfinement(g.id)
}

// afterSentLocked calls f, which closes a descriptor, as soon as no queued message contains that descriptor. mu is held.
func (s *server) afterSentLocked(f func()) {
	if s.link == nil {
		f()
		return
	}
	s.link.OnSent(f)
}

// changeHeld writes to a held file or punches a hole into it. The kernel refuses both for anything but a file in memory, without waiting.
func (s *server) changeHeld(q *request, _ *answer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(q.Held) != 1 {
		return fmt.Errorf("%s: %w", q.Op, fs.ErrInvalid)
	}
	fd, held := q.session.held[q.Held[0]]
	switch {
	case !held:
		return fmt.Errorf("%s: %w", q.Op, fs.ErrClosed)
	case q.Op == wire.OpPunch:
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.From, q.To-q.From)
	}
	_, err := unix.Pwrite(fd, q.Text, q.From)
	return err
}
