package descriptor

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Reserve is this process's reserve of descriptors. Reading a process's state and sending a signal each need a descriptor for a
// moment. Without a reserve, a process that has no descriptor left could neither see nor end what runs in a session. Each host
// retains the reserve; the last one to release it closes its descriptors.
var Reserve reserve

// reserveSize lets sixteen reads run at a time, or eight signals, since each signal reads first.
const reserveSize = 16

// reserve holds descriptors of no use, which are closed when somebody needs their numbers.
type reserve struct {
	mu    sync.Mutex
	hosts int         // guarded by mu
	fds   []int       // guarded by mu
	freed int         // guarded by mu
	short atomic.Bool // somebody else took a number while it was lent
}

// Retain fills the reserve. Its caller calls Release once.
func (s *reserve) Retain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts++
	s.fillLocked()
}

// Release closes the reserve when no host needs it any more.
func (s *reserve) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts--; s.hosts == 0 {
		CloseAll(s.fds)
		s.fds = nil
	}
	s.fillLocked()
}

// fillLocked opens what the reserve lacks. The caller holds mu.
func (s *reserve) fillLocked() {
	missing := 0
	if s.hosts > 0 {
		missing = reserveSize - s.freed - len(s.fds)
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

// free closes one descriptor of the reserve, if there is one.
func (s *reserve) free() bool {
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

// takeBack fills the reserve again after n descriptors were lent.
func (s *reserve) takeBack(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed -= n
	s.fillLocked()
}

// WithReserve calls look, which must close what it opens. When look fails for want of a descriptor, WithReserve frees one of the
// reserve and calls look again, until look gets one or the reserve is empty.
func WithReserve(look func() error) error {
	err := look()
	lent := 0
	for errors.Is(err, unix.EMFILE) && Reserve.free() {
		lent++
		err = look()
	}
	if lent > 0 || Reserve.short.Load() {
		Reserve.takeBack(lent)
	}
	return err
}
