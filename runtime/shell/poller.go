package shell

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// A poller is where a session waits for its shell: an epoll of its own, which Go's netpoller watches in turn, so that a
// command that runs costs a goroutine and no thread. The epoll tells that something has happened; what it is, poll is
// asked, each time anew. It belongs to the holder of the shell's turn, and ends with the shell.
type poller struct {
	file  *os.File
	conn  syscall.RawConn
	until time.Time // the deadline that is set; zero: none
	slots [slots]watchedFDs
	fds   []unix.PollFd // what wait waits for
	ready func(uintptr) bool
}

// What is watched comes and goes together.
const (
	slotSession = iota // the session's own
	slotShell          // the shell process's
	slotPipes
	slotStdin
	slots
)

// watchedFDs is what the epoll has of an owner. Its number alone would not do: that of a descriptor which was closed is soon
// another's.
type watchedFDs struct {
	owner any
	fds   [2]int // -1: none
}

var unwatched = watchedFDs{fds: [2]int{-1, -1}}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // how os knows that it is to be watched
	p := &poller{file: os.NewFile(uintptr(fd), "epoll")}
	for i := range p.slots {
		p.slots[i] = unwatched
	}
	p.ready = func(uintptr) bool { return descriptor.Poll(p.fds) }
	if p.conn, err = p.file.SyscallConn(); err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // fails where it is not watched
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return p, nil
}

// watch makes those of each slot's owner all that is watched. What is gone goes first: its numbers may be among the new ones.
func (p *poller) watch(now [slots]watchedFDs) {
	for i := range now {
		if now[i] != p.slots[i] {
			p.unwatch(i)
		}
	}
	for i := range now {
		if now[i] == p.slots[i] {
			continue
		}
		p.slots[i] = now[i]
		events := uint32(unix.EPOLLIN)
		if i == slotStdin {
			events = unix.EPOLLOUT
		}
		for _, fd := range now[i].fds {
			if fd < 0 {
				continue
			}
			e := unix.EpollEvent{Events: events, Fd: int32(fd)}
			if err := p.control(unix.EPOLL_CTL_ADD, fd, &e); err != nil {
				p.slots[i].owner = nil // once more the next time; meanwhile it is looked at when something else is due
			}
		}
	}
}

// unwatch ends the watch over a slot's descriptors, which may be closed.
func (p *poller) unwatch(slot int) {
	for _, fd := range p.slots[slot].fds {
		if fd >= 0 {
			_ = p.control(unix.EPOLL_CTL_DEL, fd, nil)
		}
	}
	p.slots[slot] = unwatched
}

func (p *poller) control(op, fd int, e *unix.EpollEvent) (err error) {
	if fault := p.conn.Control(func(epoll uintptr) { err = unix.EpollCtl(int(epoll), op, fd, e) }); fault != nil {
		return fault
	}
	return err
}

// wait returns when one of fds is ready, all of which must be watched, or after d, negative for never; perhaps earlier:
// every caller looks again.
func (p *poller) wait(fds []unix.PollFd, d time.Duration) {
	p.fds = fds
	p.setDeadline(d)
	if p.conn.Read(p.ready) != nil { // the deadline; it may not have looked at all
		descriptor.Poll(fds)
	}
}

// setDeadline sees to a deadline that is not later than d from now. One that comes too early does no harm, and to set it for every
// command would cost more than to wait for most.
func (p *poller) setDeadline(d time.Duration) {
	var at time.Time
	now := time.Now()
	if d >= 0 {
		at = now.Add(d)
	}
	if p.until.After(now) && (at.IsZero() || !at.Before(p.until)) || at.IsZero() && p.until.IsZero() {
		return
	}
	p.until = at
	_ = p.file.SetReadDeadline(at)
}

func (p *poller) close() {
	if p != nil {
		p.file.Close()
	}
}
