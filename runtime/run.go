package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"trl/runtime/journal"
)

const (
	tick = 5 * time.Millisecond // between looks at a tree that is ending
	// stubborn is how long a shell may take to come back once everything it waited for is dead: a builtin that never
	// reaches a command's boundary (`read </dev/zero`) costs the shell process.
	stubborn = time.Second
	// A command has ended but something it started holds its output: wait for quiet, not for the end (PROTOCOL.md §4).
	lingerQuiet, lingerMost = 10 * time.Millisecond, 100 * time.Millisecond
	// While a command runs, the line that repeats its report waits in the channel. A shell that has taken that too and
	// has not reported will not (`set -n` in dash). Looked at rarely, since commands that last are rarely this.
	firstDoubt, lastDoubt = 100 * time.Millisecond, 2 * time.Second
)

// pipe is one output of a running command.
type pipe struct {
	r, w int
	kind journal.Stream
	left int // bytes to read before the command's output is whole; negative while it runs
	eof  bool
}

// sparePipe is kept for the next command when nobody but the shell could hold it.
type sparePipe struct {
	pipe
	open bool
}

// run is the life of one command: what Shell.Run keeps on its stack. One goroutine, one poll loop, no locks.
type run struct {
	s   *Shell
	c   *Command
	p   *shellProc
	seq string
	buf []byte

	out     [2]pipe
	in, inR int // write and read end of the command's stdin, -1 when it has none
	inMore  bool
	stayed  []int // besides the shell, when the command had ended

	began    time.Time
	lastOut  time.Time
	reported bool
	code     int
	died     bool
	sent     int // bytes of the script channel that are this command's

	cancel    *cancellation // taken from the command
	timeout   string
	end       *ending
	suspect   time.Time     // when to look whether the shell is wedged
	doubt     time.Duration // between those looks
	unheard   bool          // the line that repeats the report found no reader: that none is left to read says nothing
	wedged    bool          // it has taken every line and said nothing
	killed    bool          // KILL was needed
	survivors bool          // and was not enough
}

// ending is the part of a run after cancel or timeout: sig to what has not had it, until deadline, then KILL.
type ending struct {
	sig      syscall.Signal
	deadline time.Time
	told     map[int]bool
	next     time.Time
	kill     bool
	looks    int
}

// attempt runs c in the present shell process. untold: the shell died before it read the command's line, which then
// has not run at all.
func (s *Shell) attempt(c *Command) (o Outcome, untold bool) {
	s.seq++
	r := &run{s: s, c: c, p: s.p, seq: strconv.Itoa(s.seq), in: -1, inR: -1}
	r.out[0].r, r.out[0].w, r.out[1].r, r.out[1].w = -1, -1, -1, -1
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	r.buf = *buf
	defer r.closePipes()
	switch err := r.start(); {
	case errors.Is(err, unix.EPIPE): // the command before closed all the shell has; it cannot even read its end
		_ = r.p.child.Signal(syscall.SIGKILL)
		return Outcome{}, true
	case err != nil:
		c.Journal.Close()
		return Outcome{Err: err, Code: -1, Dir: s.Dir()}, false
	}
	for !r.ended() {
		r.look(r.wait())
	}
	// Who stayed is asked before what was written is counted: if nobody did, nothing comes after the count.
	r.stayed = r.others()
	r.collect()
	if r.died && !r.reported && r.end == nil && r.p.unread() >= r.sent {
		return Outcome{}, true
	}
	return r.settle(), false
}

// start makes the pipes, puts the text where the shell finds it, and sends the line.
func (r *run) start() error {
	s, c, p := r.s, r.c, r.p
	for i := range r.out {
		if s.spare[i].open {
			r.out[i], s.spare[i].open = s.spare[i].pipe, false
			continue
		}
		var fd [2]int
		if err := unix.Pipe2(fd[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return fmt.Errorf("output pipe: %w", err)
		}
		r.out[i] = pipe{r: fd[0], w: fd[1], kind: journal.Stdout + journal.Stream(i), left: -1}
	}
	stdin := -1 // the shell's own is /dev/null
	if p.kind.stdin {
		stdin = s.null
	}
	if c.OpenStdin || len(c.Stdin) > 0 {
		var fd [2]int
		if err := unix.Pipe2(fd[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return fmt.Errorf("stdin pipe: %w", err)
		}
		r.inR, r.in = fd[0], fd[1]
		stdin = r.inR
		r.inMore = true
	}
	if err := fill(p.text, []byte(c.Text)); err != nil {
		return err
	}
	line := make([]byte, 0, 192)
	if c.Env != nil || c.Dir != "" {
		before, _ := r.wrapped()
		pre, err := memfd("before")
		if err != nil {
			return err
		}
		// The shell has read it whole when it begins the text; by the end of the run it is not needed any more.
		defer func() { s.scrap = append(s.scrap, pre) }()
		if err := fill(pre, []byte(before)); err != nil {
			return err
		}
		line = r.appendDot(line, pre, stdin)
		line = append(line, "&&"...)
	}
	line = r.appendDot(line, p.text, stdin)
	line = append(line, ';')
	line = r.appendCall(line, p.kind.quit)
	first := len(line)
	line = r.appendCall(line, p.kind.again)
	r.sent = len(line)
	r.began = time.Now()
	r.lastOut = r.began
	r.doubt = firstDoubt
	r.suspect = r.began.Add(r.doubt)
	var err error
	if p.kind.packet { // an error drops a whole packet
		_, err = unix.Write(p.script, line[:first])
		if _, e := unix.Write(p.script, line[first:]); e == unix.EPIPE { // `exec PROGRAM` was faster than we
			r.unheard = true
		}
	} else {
		_, err = unix.Write(p.script, line)
	}
	if err == unix.EPIPE { // nobody reads the channel any more. Any other error shows by itself: the shell is silent
		return fmt.Errorf("script channel: %w", err)
	}
	return nil
}

func (r *run) appendCall(b []byte, name string) []byte {
	b = append(append(b, name...), ' ')
	return append(append(b, r.seq...), '\n')
}

func (r *run) appendDot(b []byte, text, stdin int) []byte {
	b = append(b, r.p.kind.dot...) // short: bash reads its line byte by byte
	for _, a := range [...]struct {
		op string
		fd int
	}{{` "$__trl_p/`, text}, {`" <"$__trl_p/`, stdin}, {`" >"$__trl_p/`, r.out[0].w}, {`" 2>"$__trl_p/`, r.out[1].w}} {
		if a.fd < 0 {
			continue
		}
		b = append(b, a.op...)
		b = strconv.AppendInt(b, int64(a.fd), 10)
	}
	return append(b, '"')
}

// ended: nothing more is to be waited for but output.
func (r *run) ended() bool {
	if r.died {
		return r.end == nil || len(r.others()) == 0 || r.survivors
	}
	if !r.reported {
		return false
	}
	return r.end == nil || r.survivors || len(r.others()) == 0
}

func (r *run) others() []int { return r.p.cell.Others(r.p.child.Pid()) }

const (
	pollControl = iota
	pollExit
	pollWake
	pollOut
	pollErr
	pollIn
)

// wait polls until something happened or is due.
func (r *run) wait() []unix.PollFd {
	fds := [6]unix.PollFd{
		{Fd: int32(r.p.ctlR), Events: unix.POLLIN},
		{Fd: int32(r.p.child.Pidfd()), Events: unix.POLLIN},
		{Fd: int32(r.s.event), Events: unix.POLLIN},
		{Fd: -1}, {Fd: -1}, {Fd: -1},
	}
	if r.died {
		fds[pollExit].Fd = -1
	}
	if r.c.Journal.Room() {
		for i := range r.out {
			if !r.out[i].eof {
				fds[pollOut+i] = unix.PollFd{Fd: int32(r.out[i].r), Events: unix.POLLIN}
			}
		}
	}
	if r.in >= 0 && r.inMore {
		fds[pollIn] = unix.PollFd{Fd: int32(r.in), Events: unix.POLLOUT}
	}
	if !r.spin(fds[:]) {
		_ = ppoll(fds[:], r.due())
	}
	return fds[:]
}

// spinFor is how long a fresh command is waited for without sleeping. Most are over by then, and to be woken costs about
// as much as `:` does: 5 µs here, up to 40 where Go's threads wait for each other. One at a time, so that it is at most
// one processor's few microseconds.
const spinFor = 40 * time.Microsecond

var spinning atomic.Bool

// spin looks at fds until one is ready, true then, or spinFor after the command's begin.
func (r *run) spin(fds []unix.PollFd) bool {
	if time.Since(r.began) >= spinFor || !spinning.CompareAndSwap(false, true) {
		return false
	}
	defer spinning.Store(false)
	var atOnce unix.Timespec // the kernel writes the time left into it: still none
	for time.Since(r.began) < spinFor {
		n, _, _ := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(&atOnce)), 0, 0, 0)
		if int(n) > 0 {
			return true
		}
	}
	return false
}

// due is the time until something must be done without being asked, negative for never.
func (r *run) due() time.Duration {
	var at time.Time
	soonest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if r.end != nil {
		soonest(r.end.next)
	} else if !r.died && !r.reported {
		soonest(r.suspect)
		if r.c.Timeout > 0 {
			soonest(r.began.Add(r.c.Timeout))
		}
		if r.c.NoOutput > 0 {
			soonest(r.lastOut.Add(r.c.NoOutput))
		}
	}
	if at.IsZero() {
		return -1
	}
	return max(0, time.Until(at))
}

// look deals with all that happened. Reports come before output: what is read after the report is complete.
func (r *run) look(fds []unix.PollFd) {
	if fds[pollWake].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(r.s.event, b[:])
	}
	if fds[pollControl].Revents != 0 {
		r.reports()
	}
	if fds[pollExit].Revents != 0 && !r.died {
		r.died = true
		r.reports() // what it managed to say before
	}
	for i := range r.out {
		if fds[pollOut+i].Revents != 0 && !r.reported && !r.died {
			r.read(&r.out[i])
		}
	}
	if r.in >= 0 && (fds[pollIn].Revents != 0 || fds[pollWake].Revents != 0) {
		var done bool
		if r.inMore, done = r.c.feed(r.in); done {
			unix.Close(r.in)
			r.in = -1
		}
	}
	cancel, signals := r.c.requests()
	for _, sig := range signals {
		r.p.cell.Signal(sig, r.p.child.Pid())
		if sig == syscall.SIGINT && !r.reported && len(r.others()) == 0 { // a shell that is busy itself: what Ctrl-C does
			_ = r.p.child.Signal(r.p.kind.abort)
		}
	}
	now := time.Now()
	if cancel != nil && r.cancel != cancel && !r.reported {
		if r.cancel == nil {
			r.begin(cancel.sig, cancel.grace, now)
		} else if r.end != nil { // asked again, with less patience
			if d := now.Add(cancel.grace); d.Before(r.end.deadline) {
				r.end.deadline = d
			}
		}
		r.cancel = cancel
	}
	if r.end == nil && !r.reported && !r.died {
		switch {
		case !now.Before(r.suspect):
			r.doubt = min(2*r.doubt, lastDoubt)
			r.suspect = now.Add(r.doubt)
			if r.p.unread() > 0 || r.unheard {
				break
			}
			if r.reports(); !r.reported && !r.wedged {
				r.wedged, r.suspect = true, now.Add(firstDoubt) // once more: its report may be on the way
			} else if !r.reported {
				_ = r.p.child.Signal(syscall.SIGKILL)
			}
		case r.c.Timeout > 0 && now.Sub(r.began) >= r.c.Timeout:
			r.timeout = "hard"
			r.begin(syscall.SIGTERM, r.c.Grace, now)
		case r.c.NoOutput > 0 && now.Sub(r.lastOut) >= r.c.NoOutput && r.c.Journal.Room():
			r.timeout = "no_output"
			r.begin(syscall.SIGTERM, r.c.Grace, now)
		}
	}
	if r.end != nil && !now.Before(r.end.next) {
		r.press(now)
	}
}

func (r *run) reports() {
	for {
		m, ok := r.p.next()
		if !ok {
			return
		}
		if m.verb == 'e' && m.seq == r.seq {
			r.reported, r.code = true, m.val
			return
		}
	}
}

// read copies once from a pipe into the journal.
func (r *run) read(p *pipe) int {
	buf := r.buf
	if p.left >= 0 {
		buf = buf[:min(len(buf), p.left)]
	}
	n, err := unix.Read(p.r, buf)
	if n > 0 {
		r.c.Journal.Write(p.kind, buf[:n])
		r.lastOut = time.Now()
	} else if err == nil {
		p.eof = true
	}
	return n
}

// begin starts the ending: sig to all but the shell, and the shell's own work aborted.
func (r *run) begin(sig syscall.Signal, grace time.Duration, now time.Time) {
	r.end = &ending{sig: sig, deadline: now.Add(grace), told: map[int]bool{}, next: now}
}

// press is one step of the ending.
func (r *run) press(now time.Time) {
	e := r.end
	e.next = now.Add(tick)
	e.looks++
	if !e.kill && !now.Before(e.deadline) {
		e.kill = true
		r.killed = true
		r.s.h.metrics.KillEscalations.Inc()
		r.killRest()
		e.deadline = time.Now().Add(stubborn)
		e.looks = 1
	}
	busy := !r.reported && !r.died
	// The shell first: once what it waits for is dead, it would go on with its list.
	switch {
	case busy && e.looks == 1 && r.s.intTrap:
		// A POSIX shell whose user set an INT trap goes on all the same. The only cure is another shell.
		_ = r.p.child.Signal(syscall.SIGKILL)
	case busy && (e.looks == 1 || e.looks%20 == 0 && (e.kill || len(r.others()) == 0)): // again where one was lost
		_ = r.p.child.Signal(r.p.kind.abort)
	}
	for _, pid := range r.others() {
		switch {
		case e.kill:
			r.p.cell.Signal(syscall.SIGKILL, r.p.child.Pid())
		case !e.told[pid]:
			// What was forked but has not reached its exec ignores TERM still, as its interactive shell does: it is told again.
			e.told[pid] = !ignores(pid, e.sig)
			signalPid(pid, e.sig, r.p.cell)
		}
	}
	if !busy {
		return
	}
	if e.looks%20 == 10 && r.p.unread() == 0 { // the abort may have taken the line with the report
		r.p.send(r.p.kind.again + " " + r.seq + "\n")
	}
	if e.kill && now.After(e.deadline) {
		_ = r.p.child.Signal(syscall.SIGKILL)
	}
}

// killRest ends for certain what the command started: the shell moves out, the cell dies as a whole.
func (r *run) killRest() {
	old := r.p.cell
	fresh, err := r.s.group.NewCell()
	if err == nil {
		err = fresh.Adopt(r.p.child.Pid())
	}
	if err != nil && !r.died { // no way to part them: the shell goes too, and is restored
		_ = r.p.child.Signal(syscall.SIGKILL)
	}
	if fresh != nil {
		r.p.cell = fresh
	}
	if err := old.Kill(0); err != nil {
		r.survivors = true
	}
	old.Remove()
}

// collect reads what the command wrote before its end, exactly: after the report (or the exit) FIONREAD of each pipe
// counts it, whatever background jobs add meanwhile.
func (r *run) collect() {
	for i := range r.out {
		p := &r.out[i]
		p.left = 0
		if !p.eof {
			p.left, _ = unix.IoctlGetInt(p.r, unix.TIOCINQ)
		}
	}
	for r.out[0].left > 0 || r.out[1].left > 0 {
		if !r.c.Journal.Room() { // a client holds it up; it is dropped some day, or the session closes
			fds := []unix.PollFd{{Fd: int32(r.s.event), Events: unix.POLLIN}}
			_ = ppoll(fds, time.Second)
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

// settle makes the shell ready for the next command and says how this one ended.
func (r *run) settle() Outcome {
	s := r.s
	o := Outcome{Duration: time.Since(r.began), Code: r.code, Timeout: r.timeout, Died: r.died, KillFailed: r.survivors}
	o.Cancelled = r.cancel != nil && r.end != nil && r.timeout == ""
	if r.died {
		<-r.p.child.Exited()
		st := r.p.child.Status()
		switch {
		case r.wedged && r.p.exit == nil:
			o.Code = 2 // what shells say of a command that they could not read
		case st.Signal != 0: // before the report: bash runs its EXIT trap when SIGSEGV ends it, too, with the $? of before
			o.Code = 128 + int(st.Signal)
		case r.p.exit != nil:
			o.Code = r.p.exit.code
		default:
			o.Code = st.Code
		}
	}
	if r.end != nil {
		sig := r.end.sig
		if r.killed {
			sig = syscall.SIGKILL
		}
		o.Code = 128 + int(sig)
	}
	if o.Code > 128 && o.Code <= 128+31 {
		o.Signal = signalName(syscall.Signal(o.Code - 128))
	}
	if r.died || r.end != nil {
		s.after(r, &o)
	}
	if len(r.stayed) > 0 && r.end == nil {
		o.Background = r.others()
		o.Linger = r.linger()
		s.partWith(r)
	}
	if _, after := r.wrapped(); after != "" && s.p != nil {
		s.p.ask("w"+r.seq, after, bootTimeout)
	}
	for _, fd := range s.scrap {
		unix.Close(fd)
	}
	s.scrap = s.scrap[:0]
	s.st.dirty = true
	o.Dir = s.Dir()
	if len(r.stayed) == 0 && !r.died && r.end == nil { // nobody else has these pipes
		r.c.Journal.Close()
		for i := range r.out {
			s.spare[i].pipe, s.spare[i].open = r.out[i], true
			s.spare[i].left = -1
			r.out[i].r, r.out[i].w = -1, -1
		}
		return o
	}
	r.handOver()
	return o
}

func (r *run) wrapped() (before, after string) {
	if r.c.Env == nil && r.c.Dir == "" {
		return "", ""
	}
	return wrap(r.p.kind, r.c.Env, r.c.Dir)
}

// linger waits for what still holds the command's output to be quiet for a moment.
func (r *run) linger() time.Duration {
	from := time.Now()
	r.closeWriters()
	for i := range r.out {
		r.out[i].left = -1
	}
	quiet := from
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
		_ = ppoll(fds, left)
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

// handOver leaves the pipes that somebody still holds to outlets, and closes the journal where nobody does.
func (r *run) handOver() {
	r.closeWriters()
	late := newOutlets(r.c.Journal)
	for i := range r.out {
		p := &r.out[i]
		fds := []unix.PollFd{{Fd: int32(p.r), Events: unix.POLLIN}}
		if !p.eof {
			_, _ = unix.Poll(fds, 0)
		}
		if p.eof || fds[0].Revents&(unix.POLLHUP|unix.POLLIN) == unix.POLLHUP {
			continue
		}
		if late.add(p.r, p.kind) == nil {
			p.r = -1
		}
	}
	if len(late.files) == 0 {
		r.c.Journal.Close()
		return
	}
	r.c.mu.Lock()
	r.c.late = late
	r.c.mu.Unlock()
	late.start()
	r.s.keep(late)
}

func (r *run) closeWriters() {
	for i := range r.out {
		if r.out[i].w >= 0 {
			unix.Close(r.out[i].w)
			r.out[i].w = -1
		}
	}
}

func (r *run) closePipes() {
	r.closeWriters()
	for _, fd := range []int{r.out[0].r, r.out[1].r, r.in, r.inR} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// enterable says whether a command may be run in dir, before the shell is bothered: the shell's own cd decides.
func enterable(dir string) error {
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = &fs.PathError{Op: "chdir", Path: dir, Err: syscall.ENOTDIR}
	}
	if err == nil {
		if e := unix.Access(dir, unix.X_OK); e != nil {
			err = &fs.PathError{Op: "chdir", Path: dir, Err: e}
		}
	}
	return err
}
