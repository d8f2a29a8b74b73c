package runtime

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A look at a process, and a signal to one, each take a descriptor for a moment. Who has none left would not see who is
// in a session, let alone end it: a few numbers are kept for that. They are the process's, as its table of descriptors
// is; Hosts keep them, and the last one to close gives them back.
var reservedFDs fdReserve

// reservedFDCount: sixteen at a time, or eight that signal, which look before they do.
const reservedFDCount = 16

// fdReserve are numbers that are open on nothing of use.
type fdReserve struct {
	mu    sync.Mutex
	hosts int         // guarded by mu
	fds   []int       // guarded by mu
	freed int         // guarded by mu
	short atomic.Bool // somebody else took some while they were lent
}

// retain is called for each Host that begins, and release for each that has ended.
func (s *fdReserve) retain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts++
	s.fillLocked()
}

func (s *fdReserve) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts--; s.hosts == 0 {
		closeAll(s.fds)
		s.fds = nil
	}
	s.fillLocked()
}

// fillLocked: mu is held.
func (s *fdReserve) fillLocked() {
	missing := 0
	if s.hosts > 0 {
		missing = reservedFDCount - s.freed - len(s.fds)
	}
	for ; missing > 0; missing-- {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		s.fds = append(s.fds, fd)
	}
	s.short.Store(missing > 0)
}

// free frees a number, if there is one.
func (s *fdReserve) free() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.fds) - 1
	if last < 0 {
		return false
	}
	unix.Close(s.fds[last])
	s.fds = s.fds[:last]
	s.freed++
	return true
}

// takeBack keeps those n again that were lent, if they are free.
func (s *fdReserve) takeBack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed -= n
	s.fillLocked()
}

// withReservedFD calls look, which closes what it opens, and again with a spare number if there was no other. Somebody else
// may be quicker to take that: then with the next.
func withReservedFD(look func() error) error {
	err := look()
	lent := 0
	for errors.Is(err, unix.EMFILE) && reservedFDs.free() {
		lent++
		err = look()
	}
	if lent > 0 || reservedFDs.short.Load() {
		reservedFDs.takeBack(lent)
	}
	return err
}
