package stream

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// A Poller is an epoll in which a session waits for its shell. Go's netpoller watches the epoll, so a running command costs a
// goroutine but no thread. The epoll only says that something has happened; poll(2) then says what. The Poller belongs to the
// holder of the shell's turn and is closed with the Shell.
type Poller struct {
	file  *os.File
	conn  syscall.RawConn
	until time.Time // the file's present deadline; zero: none
	slots [Slots]Watched
	fds   []unix.PollFd // the descriptors that Wait waits for
	ready func(uintptr) bool
}

// The descriptors of one slot are watched and unwatched together.
const (
	SlotSession = iota // the session's own
	SlotShell          // the shell process's
	SlotPipes
	SlotStdin
	Slots
)

// Watched are one owner's descriptors in the epoll. The owner is part of the comparison because the number of a closed
// descriptor is soon used again.
type Watched struct {
	Owner any
	FDs   [2]int // -1: none
}

// Unwatched is an empty slot.
var Unwatched = Watched{FDs: [2]int{-1, -1}}

// NewPoller returns a Poller that watches nothing.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // so that package os gives the file to Go's netpoller
	p := &Poller{file: os.NewFile(uintptr(fd), "epoll")}
	for i := range p.slots {
		p.slots[i] = Unwatched
	}
	p.ready = func(uintptr) bool { return descriptor.Poll(p.fds) }
	if p.conn, err = p.file.SyscallConn(); err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // fails if the netpoller does not watch the file
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return p, nil
}

// Watch makes now the set of watched descriptors. It removes the old descriptors first, because the new ones may have the same
// numbers.
func (p *Poller) Watch(now [Slots]Watched) {
	for i := range now {
		if now[i] != p.slots[i] {
			p.Unwatch(i)
		}
	}
	for i := range now {
		if now[i] == p.slots[i] {
			continue
		}
		p.slots[i] = now[i]
		events := uint32(unix.EPOLLIN)
		if i == SlotStdin {
			events = unix.EPOLLOUT
		}
		for _, fd := range now[i].FDs {
			if fd < 0 {
				continue
			}
			e := unix.EpollEvent{Events: events, Fd: int32(fd)}
			if err := p.control(unix.EPOLL_CTL_ADD, fd, &e); err != nil {
				p.slots[i].Owner = nil // the next Watch tries again; until then Wait sees this descriptor only when it returns for another reason
			}
		}
	}
}

// Unwatch stops watching a slot's descriptors, which may be closed already.
func (p *Poller) Unwatch(slot int) {
	for _, fd := range p.slots[slot].FDs {
		if fd >= 0 {
			_ = p.control(unix.EPOLL_CTL_DEL, fd, nil)
		}
	}
	p.slots[slot] = Unwatched
}

func (p *Poller) control(op, fd int, e *unix.EpollEvent) (err error) {
	if fault := p.conn.Control(func(epoll uintptr) { err = unix.EpollCtl(int(epoll), op, fd, e) }); fault != nil {
		return fault
	}
	return err
}

// Wait returns when one of fds is ready, or after d; a negative d means no limit. All fds must be watched. Wait may return
// earlier, so every caller checks again.
func (p *Poller) Wait(fds []unix.PollFd, d time.Duration) {
	p.fds = fds
	p.setDeadline(d)
	if p.conn.Read(p.ready) != nil { // the deadline is over; Read may not have polled at all
		descriptor.Poll(fds)
	}
}

// setDeadline makes sure that a deadline comes no later than d from now. An earlier deadline does no harm, so it stays: setting one
// for every command would cost more than the wait for most commands.
func (p *Poller) setDeadline(d time.Duration) {
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

// Close ends the watching.
func (p *Poller) Close() {
	if p != nil {
		p.file.Close()
	}
}

// Watches tells whether these are the slot's descriptors.
func (p *Poller) Watches(slot int, now Watched) bool { return p.slots[slot] == now }
