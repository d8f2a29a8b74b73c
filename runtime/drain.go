package runtime

import (
	"time"

	"golang.org/x/sys/unix"
)

// A command has ended but something it started holds its output: wait for quiet, not for the end (PROTOCOL.md §4).
const lingerQuiet, lingerMost = 10 * time.Millisecond, 100 * time.Millisecond

// collect reads what the command wrote before its end, exactly: after the report (or the exit) FIONREAD of each pipe
// counts it, whatever background jobs add meanwhile.
func (r *run) collect() {
	fds := [2]unix.PollFd{{Fd: -1}, {Fd: -1}}
	for i := range r.out {
		if r.out[i].left = 0; !r.out[i].eof {
			fds[i] = unix.PollFd{Fd: int32(r.out[i].r), Events: unix.POLLIN}
		}
	}
	poll(fds[:]) // takes no locks: what is empty, nobody can hold up
	for i := range r.out {
		if fds[i].Revents&unix.POLLIN != 0 {
			r.s.calls.begin()
			r.out[i].left, _ = unix.IoctlGetInt(r.out[i].r, unix.TIOCINQ)
			r.s.calls.end()
		}
	}
	for r.out[0].left > 0 || r.out[1].left > 0 {
		if !r.c.Journal.Room() { // a client holds it up; it is dropped some day, or the session closes
			r.fds = [6]unix.PollFd{{Fd: int32(r.s.event), Events: unix.POLLIN}, {Fd: -1}, {Fd: -1}, {Fd: -1}, {Fd: -1}, {Fd: -1}}
			r.watch()
			r.s.poll.wait(r.fds[:], time.Second)
			var b [8]byte
			_, _ = unix.Read(r.s.event, b[:])
			if r.s.closing.Load() {
				return
			}
			continue
		}
		for i := range r.out {
			if p := &r.out[i]; p.left > 0 {
				n := r.read(p)
				if n <= 0 {
					p.left = 0
				}
				p.left -= max(n, 0)
			}
		}
	}
}

// read copies once from a pipe into the journal.
func (r *run) read(p *pipe) int {
	buf := r.buf
	if p.left >= 0 {
		buf = buf[:min(len(buf), p.left)]
	}
	r.s.calls.begin()
	n, err := r.c.Journal.Fill(p.kind, p.r, len(buf), buf)
	r.s.calls.end()
	if n > 0 {
		r.lastOut = time.Now()
	} else if err == nil {
		p.eof = true
	}
	return n
}

// linger waits for what still holds the command's output to be quiet for a moment.
func (r *run) linger() time.Duration {
	from := time.Now()
	r.closeWriters()
	for i := range r.out {
		r.out[i].left = -1
	}
	quiet := from
	r.watch()
	for {
		now := time.Now()
		left := min(lingerQuiet-now.Sub(quiet), lingerMost-now.Sub(from))
		if left <= 0 || r.out[0].eof && r.out[1].eof {
			return time.Since(from)
		}
		fds := []unix.PollFd{{Fd: -1}, {Fd: -1}, {Fd: int32(r.s.event), Events: unix.POLLIN}}
		if r.c.Journal.Room() {
			for i := range r.out {
				if !r.out[i].eof {
					fds[i] = unix.PollFd{Fd: int32(r.out[i].r), Events: unix.POLLIN}
				}
			}
		}
		r.s.poll.wait(fds, left)
		if fds[2].Revents != 0 {
			var b [8]byte
			_, _ = unix.Read(r.s.event, b[:])
		}
		for i := range r.out {
			if fds[i].Revents != 0 && r.read(&r.out[i]) > 0 {
				quiet = time.Now()
			}
		}
	}
}

// closeWriters lets EOF come once nobody else writes. Where no keeper has the ends as well, the pipe's lock is taken for it.
func (r *run) closeWriters() {
	r.s.calls.begin()
	r.lane.closeWriters()
	r.s.calls.end()
}

// handOver leaves the pipes that somebody still holds to outlets, and closes the journal where nobody does. The next
// command gets another lane.
func (r *run) handOver() {
	r.s.poll.part(slotLane)
	r.closeWriters()
	lane := r.giveLane()
	late := newOutlets(r.c.Journal, &r.s.outputs)
	late.ended, late.after, late.cell = lane.close, r.s.lastHeld, r.left
	for i := range r.out {
		p := &r.out[i]
		fds := []unix.PollFd{{Fd: int32(p.r), Events: unix.POLLIN}}
		if !p.eof {
			_, _ = unix.Poll(fds, 0)
		}
		if p.eof || fds[0].Revents&(unix.POLLHUP|unix.POLLIN) == unix.POLLHUP {
			continue
		}
		_ = late.add(lane.take(i), p.kind) // it closes what it does not take
	}
	if len(late.files) == 0 {
		r.c.Journal.Close()
		lane.close()
		return
	}
	r.c.mu.Lock()
	r.c.late = late
	r.c.mu.Unlock()
	late.start()
	r.s.keep(late)
}
