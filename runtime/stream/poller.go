package stream

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// A Poller is an epoll in which a session waits for its shell. Go's netpoller watches the epoll, so a running command costs a
// goroutine but no thread. The epoll only says that something has happened; poll(2) then says what. The Poller belongs to the
// holder of the shell's turn, who closes it.
type Poller struct {
	epoll atomic.Pointer[epoll] // nil after Rest and Close
	until time.Time             // the file's present deadline, unless Wake has set one; zero: none
	slots [Slots]Watched
	fds   []unix.PollFd // the descriptors that Wait waits for
	ready func(uintptr) bool

	woken    atomic.Bool // Wake was called, and no Wait has returned since
	wasWoken bool        // see Woken
}

type epoll struct {
	file *os.File
	conn syscall.RawConn
}

// The descriptors of one slot are watched and unwatched together.
const (
	SlotShell = iota // the shell process's
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
	p := &Poller{}
	p.ready = func(uintptr) bool { return descriptor.Poll(p.fds) }
	return p, p.open()
}

// open makes the epoll, which watches nothing.
func (p *Poller) open() error {
	for i := range p.slots {
		p.slots[i] = Unwatched
	}
	p.until = time.Time{}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // so that package os gives the file to Go's netpoller
	e := &epoll{file: os.NewFile(uintptr(fd), "epoll")}
	if e.conn, err = e.file.SyscallConn(); err == nil {
		err = e.file.SetReadDeadline(time.Time{}) // fails if the netpoller does not watch the file
	}
	if err != nil {
		e.file.Close()
		return fmt.Errorf("epoll: %w", err)
	}
	p.epoll.Store(e)
	return nil
}

// opened returns the epoll, which it makes again after Rest; nil: it cannot be made.
func (p *Poller) opened() *epoll {
	if p.epoll.Load() == nil {
		_ = p.open()
	}
	return p.epoll.Load()
}

// Watch makes now the set of watched descriptors. It removes the old descriptors first, because the new ones may have the same
// numbers.
func (p *Poller) Watch(now [Slots]Watched) {
	p.opened()
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
	open := p.epoll.Load()
	if open == nil {
		return os.ErrClosed
	}
	if fault := open.conn.Control(func(epoll uintptr) { err = unix.EpollCtl(int(epoll), op, fd, e) }); fault != nil {
		return fault
	}
	return err
}

// withoutEpoll is how often Wait looks at its descriptors if no epoll can be had.
const withoutEpoll = 5 * time.Millisecond

// Wait returns when one of fds is ready, after a Wake, or after d; a negative d means no limit. All fds must be watched. Wait may
// return earlier, so every caller checks again.
func (p *Poller) Wait(fds []unix.PollFd, d time.Duration) {
	p.fds = fds
	switch e := p.opened(); {
	case e == nil:
		if !descriptor.Poll(fds) && !p.woken.Load() {
			pause := withoutEpoll
			if d >= 0 {
				pause = min(d, pause)
			}
			time.Sleep(pause)
			descriptor.Poll(fds)
		}
	default:
		p.setDeadline(e, d)
		if p.woken.Load() || e.conn.Read(p.ready) != nil {
			p.until = longAgo    // the deadline is over, and may be one of Wake's
			descriptor.Poll(fds) // Read may not have polled at all
		}
	}
	p.wasWoken = p.woken.Swap(false) || p.wasWoken
}

// longAgo is a deadline that is over.
var longAgo = time.Unix(1, 0)

// Wake makes the present Wait return, or the next one. Any goroutine may call it.
func (p *Poller) Wake() {
	if p == nil { // of a session that had ended before this gateway
		return
	}
	p.woken.Store(true) // first: a Wait that sets its deadline after this one sees it
	if e := p.epoll.Load(); e != nil {
		_ = e.file.SetReadDeadline(longAgo)
	}
}

// Woken tells whether a Wake has made a Wait return since the last call of Woken.
func (p *Poller) Woken() bool {
	woken := p.wasWoken
	p.wasWoken = false
	return woken
}

// setDeadline makes sure that a deadline comes no later than d from now. An earlier deadline does no harm, so it stays: setting one
// for every command would cost more than the wait for most commands.
func (p *Poller) setDeadline(e *epoll, d time.Duration) {
	var at time.Time
	now := time.Now()
	if d >= 0 {
		at = now.Add(d)
	}
	if p.until.After(now) && (at.IsZero() || !at.Before(p.until)) || at.IsZero() && p.until.IsZero() {
		return
	}
	p.until = at
	_ = e.file.SetReadDeadline(at)
}

// Rest closes the epoll until the next Wait or Watch. No Wait goes on.
func (p *Poller) Rest() {
	if e := p.epoll.Swap(nil); e != nil {
		e.file.Close()
	}
}

// Close ends the watching.
func (p *Poller) Close() {
	if p != nil {
		p.Rest()
	}
}

// Watches tells whether these are the slot's descriptors.
func (p *Poller) Watches(slot int, now Watched) bool {
	return p.epoll.Load() != nil && p.slots[slot] == now
}
