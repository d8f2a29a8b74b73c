package runtime

import (
	"time"

	"golang.org/x/sys/unix"
)

// A command has ended but something it started holds its output: wait for quiet, not for the end (PROTOCOL.md §4).
const lingerQuiet, lingerMax = 10 * time.Millisecond, 100 * time.Millisecond

// readExact reads what the command wrote before its end, exactly: after the report (or the exit) FIONREAD of each pipe
// counts it, whatever background jobs add meanwhile.
func (r *run) readExact() {
	fds := [2]unix.PollFd{{Fd: -1}, {Fd: -1}}
	for i := range r.out {
		if r.out[i].remaining = 0; !r.out[i].eof {
			fds[i] = unix.PollFd{Fd: int32(r.out[i].r), Events: unix.POLLIN}
		}
	}
	poll(fds[:]) // takes no locks: what is empty, nobody can hold up
	for i := range r.out {
		if fds[i].Revents&unix.POLLIN != 0 {
			r.s.pipeCalls.enter()
			r.out[i].remaining, _ = unix.IoctlGetInt(r.out[i].r, unix.TIOCINQ)
			r.s.pipeCalls.leave()
		}
	}
	for r.out[0].remaining > 0 || r.out[1].remaining > 0 {
		if !r.c.Journal.Room() { // a client holds it up; it is dropped some day, or the session closes
			r.fds = [6]unix.PollFd{{Fd: int32(r.s.wakeFD), Events: unix.POLLIN}, {Fd: -1}, {Fd: -1}, {Fd: -1}, {Fd: -1}, {Fd: -1}}
			r.watchFDs()
			r.s.poll.wait(r.fds[:], time.Second)
			var b [8]byte
			_, _ = unix.Read(r.s.wakeFD, b[:])
			if r.s.closing.Load() {
				return
			}
			continue
		}
		for i := range r.out {
			if p := &r.out[i]; p.remaining > 0 {
				n := r.copyOnce(p)
				if n <= 0 {
					p.remaining = 0
				}
				p.remaining -= max(n, 0)
			}
		}
	}
}

// copyOnce copies once from a pipe into the journal.
func (r *run) copyOnce(p *pipe) int {
	buf := r.buf
	if p.remaining >= 0 {
		buf = buf[:min(len(buf), p.remaining)]
	}
	r.s.pipeCalls.enter()
	n, err := r.c.Journal.Fill(p.stream, p.r, len(buf), buf)
	r.s.pipeCalls.leave()
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
		r.out[i].remaining = -1
	}
	quiet := from
	r.watchFDs()
	for {
		now := time.Now()
		left := min(lingerQuiet-now.Sub(quiet), lingerMax-now.Sub(from))
		if left <= 0 || r.out[0].eof && r.out[1].eof {
			return time.Since(from)
		}
		fds := []unix.PollFd{{Fd: -1}, {Fd: -1}, {Fd: int32(r.s.wakeFD), Events: unix.POLLIN}}
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
			_, _ = unix.Read(r.s.wakeFD, b[:])
		}
		for i := range r.out {
			if fds[i].Revents != 0 && r.copyOnce(&r.out[i]) > 0 {
				quiet = time.Now()
			}
		}
	}
}

// closeWriters lets EOF come once nobody else writes. Where no keeper has the ends as well, the pipe's lock is taken for it.
func (r *run) closeWriters() {
	r.s.pipeCalls.enter()
	r.pipes.closeWriters()
	r.s.pipeCalls.leave()
}

// leavePipes leaves the pipes that somebody still holds to pipe copiers, and closes the journal where nobody does. The next
// command gets other output pipes.
func (r *run) leavePipes() {
	r.s.poll.unwatch(slotPipes)
	r.closeWriters()
	pipes := r.passOnPipes()
	late := newPipeCopier(r.c.Journal, &r.s.streamLogs)
	late.onEOF, late.afterEOF, late.scope = pipes.close, r.s.outputReleased, r.leftScope
	for i := range r.out {
		p := &r.out[i]
		fds := []unix.PollFd{{Fd: int32(p.r), Events: unix.POLLIN}}
		if !p.eof {
			_, _ = unix.Poll(fds, 0)
		}
		if p.eof || fds[0].Revents&(unix.POLLHUP|unix.POLLIN) == unix.POLLHUP {
			continue
		}
		_ = late.add(pipes.takeReadEnd(i), p.stream) // it closes what it does not take
	}
	if len(late.files) == 0 {
		r.c.Journal.Close()
		pipes.close()
		return
	}
	r.c.mu.Lock()
	r.c.copier = late
	r.c.mu.Unlock()
	late.start()
	r.s.addCopier(late)
}
