package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/quick"
)

const (
	tick = 5 * time.Millisecond // between looks at a tree that is ending
	// stubborn is how long a shell may take to come back once everything it waited for is dead: a builtin that never
	// reaches a command's boundary (`read </dev/zero`) costs the shell process.
	stubborn = time.Second
	// A command has ended but something it started holds its output: wait for quiet, not for the end (PROTOCOL.md §4).
	lingerQuiet, lingerMost = 10 * time.Millisecond, 100 * time.Millisecond
	// An error that returns to the top level drops the rest of its line, and the report with it: what has not reported after
	// repeatAfter, though the line was read, is followed by one of its own that repeats the report. Most need none.
	repeatAfter = 5 * time.Millisecond
	// While a command runs, that line waits in the channel. A shell that has taken it too and has not reported will not
	// (`set -n` in dash). Looked at rarely, since commands that last are rarely this.
	firstDoubt, lastDoubt = 100 * time.Millisecond, 2 * time.Second
)

// pipe is one output of a running command: an end of its lane.
type pipe struct {
	r    int
	kind journal.Stream
	left int // bytes to read before the command's output is whole; negative while it runs
	eof  bool
}

// run is the life of one command: what Shell.Run keeps on its stack. One goroutine, one poll loop, no locks.
type run struct {
	s   *Shell
	c   *Command
	p   *shellProc
	seq string
	buf []byte
	fds [6]unix.PollFd

	cell       KeptCell // what the command started is in it, and the shell, unless that was moved out already
	lane       *lane
	out        [2]pipe
	in         *inlet // the command's stdin, nil when it has none
	inMore     bool   // there is more of it than its pipe took
	before     int    // memfd: what the shell reads before the text; 0: nothing
	beforeHeld []int  // what the keeper calls it
	was        string // where the shell was before a command with a directory of its own; wasFD, if > 0, is open there
	wasFD      int
	stayed     []int // besides the shell, when the command had ended

	began    time.Time
	lastOut  time.Time
	reported bool
	record   CommandRecord
	asked    string // the question what was reported last, of a run that was resumed
	unbegun  bool   // the answer was something else: the line was never sent
	code     int
	died     bool
	line     []byte        // the command's, as long as the script channel has had no room for it
	sent     int           // bytes of the script channel that are this command's
	repeatAt time.Time     // when to add the line that repeats the report; zero: it is there, or line is not
	pause    time.Duration // before the next look whether it can be added

	cancel    *cancellation // taken from the command
	timeout   string
	end       *ending
	suspect   time.Time     // when to look whether the shell is wedged
	doubt     time.Duration // between those looks
	unheard   bool          // the line that repeats the report found no reader: that none is left to read says nothing
	early     int           // how often to send SIGINT yet: it came when the shell had not come to the line, or just had
	earlyAt   time.Time     // when next, if it has the line
	aborted   bool          // the shell's own work was, for a signal: something of that may be left when the command has ended
	unsure    int           // how often to repeat the line that repeats the report: a stale abort takes a line with it
	suspected bool          // it has taken every line and said nothing
	wedged    bool          // nor has it since: it was ended for that
	killed    bool          // KILL was needed
	survivors bool          // and was not enough

	gauge     *Gauge // nil until measure
	used, now Usage  // then, and at the end
	handedOn  bool   // by the gateway that began to: the most memory it used is not known
}

// ending is the part of a run after cancel or timeout: sig to what has not had it, until deadline, then KILL.
type ending struct {
	sig      syscall.Signal
	deadline time.Time
	unheard  time.Time // until when the shell may take to read the line
	deaf     bool      // the shell has a trap of its user's for the abort
	told     map[int]bool
	next     time.Time
	kill     bool
	looks    int
}

// attempt runs c in the present shell process. untold: the shell died before it read the command's line, which then
// has not run at all: it is attempted again, with the same lane, which is never nil then.
func (s *Shell) attempt(c *Command, again *lane) (o Outcome, untold *lane) {
	s.seq++
	r := &run{s: s, c: c, p: s.p, seq: strconv.Itoa(s.seq), cell: s.p.cell, lane: again}
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	r.buf = *buf
	defer r.close()
	begin := r.start
	if c.resumed != nil {
		begin = r.resume
	}
	switch err := begin(); {
	case errors.Is(err, unix.EPIPE): // the command before closed all the shell has; it cannot even read its end
		_ = r.p.child.Signal(syscall.SIGKILL)
		<-r.p.child.Exited() // Run puts back what is dead
		return Outcome{}, r.giveLane()
	case err != nil:
		c.Journal.Close()
		return Outcome{Err: err, Code: -1, Dir: s.Dir()}, nil
	}
	for !r.ended() {
		r.look(r.wait())
	}
	// Who stayed is asked before what was written is counted: if nobody did, nothing comes after the count.
	r.stayed = r.others()
	r.collect()
	r.measured()
	if r.end == nil && (r.unbegun || r.died && !r.reported && r.unread() && !r.took()) {
		return Outcome{}, r.giveLane()
	}
	o = r.settle()
	r.tell(&o)
	return o, nil
}

// giveLane passes the lane on.
func (r *run) giveLane() *lane {
	l := r.lane
	r.lane = nil
	return l
}

// start makes the pipes, puts the text where the shell finds it, and sends the line.
func (r *run) start() error {
	s, c, p := r.s, r.c, r.p
	if r.lane == nil {
		if s.lane != nil && s.lane.log.Broken() {
			s.dropLane()
		}
		if r.lane, s.lane = s.lane, nil; r.lane == nil {
			var err error
			if r.lane, err = newLane(s.held(), &s.outputs); err != nil {
				return err
			}
		}
		r.lane.log.carry(c.Journal, c.Head, c.Tail)
	}
	for i := range r.out {
		r.out[i] = pipe{r: r.lane.r[i], kind: journal.Stdout + journal.Stream(i), left: -1}
	}
	stdin := p.stdin()
	var err error
	if r.in, err = c.furnish(s.held()); err != nil {
		return err
	}
	if r.in != nil {
		stdin = s.held().Dir() + "/" + strconv.Itoa(r.in.port)
		r.inMore = r.in.feed()
	}
	if err := p.give(c.Text); err != nil {
		return err
	}
	line := make([]byte, 0, 192)
	if c.Env != nil || c.Dir != "" {
		before, _ := r.wrapped()
		if err := r.prepare(before); err != nil {
			return err
		}
		line = fmt.Appendf(line, `%s "$__trl_p/%d" </dev/null >/dev/null 2>&1&&`, p.kind.dot, r.beforeHeld[0])
		if c.Dir != "" {
			r.was = s.Dir()
			if !s.held().Private() {
				r.wasFD, _ = unix.Open(procPath(p.child.Pid(), "/cwd"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			}
		}
	}
	line = r.appendDot(line, "$__trl_p/"+strconv.Itoa(p.held[heldText]), stdin)
	line = append(line, ';')
	line = r.appendCall(line, p.kind.quit)
	r.sent = len(line)
	r.began = time.Now()
	r.lastOut = r.began
	r.doubt = firstDoubt
	r.suspect = r.began.Add(r.doubt)
	if s.cfg.Limits != (protocol.Limits{}) {
		r.measure()
	}
	if c.Began != nil {
		rec := CommandRecord{Seq: s.seq, Sent: r.sent, Cell: r.cell.Number(), Lane: r.lane.record(), Span: c.Journal.Span(), Used: r.usedBefore()}
		if r.in != nil {
			rec.Stdin = r.in.files
		}
		rec.Before = heldFiles(r.beforeHeld, r.before)
		r.record = rec
		c.Began(rec)
	}
	return r.deliver(line, r.began)
}

// deliver sends the line, or keeps it until there is room: of a channel that is short (see sendBy), lines before it may take
// all.
func (r *run) deliver(line []byte, now time.Time) error {
	switch _, err := quick.Write(r.p.script, line); err {
	case nil:
		r.line, r.repeatAt = nil, now.Add(repeatAfter)
	case unix.EAGAIN:
		if r.line == nil {
			r.line = slices.Clone(line)
		}
	case unix.EPIPE: // nobody reads the channel any more. Any other error shows by itself: the shell is silent
		return fmt.Errorf("script channel: %w", err)
	}
	return nil
}

// unread: the shell has not come to the line.
func (r *run) unread() bool { return r.line != nil || r.p.unread() >= r.sent }

// took: the shell has the command for sure, of a run that was resumed; others know it by what they sent.
func (r *run) took() bool { return r.asked != "" && r.p.took() }

// repeat sends the line that repeats the report, once, and behind it the question of a run that was resumed. That asks alone
// as long as it is not known whether the command's line was ever sent: the other would report it even so.
func (r *run) repeat() {
	r.repeatAt = time.Time{}
	if r.asked != "" && !r.took() {
		r.ask()
		return
	}
	line := r.appendCall(nil, r.p.kind.again)
	switch _, err := quick.Write(r.p.script, line); err {
	case nil:
		r.sent += len(line)
	case unix.EPIPE: // the command is `exec PROGRAM`
		r.unheard = true
	}
	if r.asked != "" {
		r.ask()
	}
}

// prepare puts text where the shell finds it before the command's own.
func (r *run) prepare(text string) (err error) {
	made, _, err := r.s.held().Make([]Kind{MemFile})
	if err != nil {
		return fmt.Errorf("file for what comes before a command: %w", err)
	}
	r.before, r.beforeHeld = made[0].W, []int{made[0].NW}
	return fill(r.before, []byte(text))
}

// resume goes on where another gateway was killed. What it had read of the control pipe died with it, so the shell is
// asked what it reported last: it answers when it comes to that line, after the command's, if that was ever sent.
func (r *run) resume() error {
	res := r.c.resumed
	r.c.resumed = nil
	if res.before >= 0 {
		r.before, r.beforeHeld = res.before, []int{res.Before[0].Number}
	}
	r.cell, r.lane, r.in, r.seq, r.sent = res.cell, res.lane, r.c.in, strconv.Itoa(res.Seq), res.Sent
	for i := range r.out {
		r.out[i] = pipe{r: r.lane.r[i], kind: journal.Stdout + journal.Stream(i), left: -1, eof: r.lane.r[i] < 0}
	}
	if r.in != nil {
		r.inMore = r.in.feed()
	}
	r.began, r.lastOut = res.began, time.Now()
	r.doubt, r.suspect, r.unheard = lastDoubt, r.lastOut.Add(lastDoubt), true
	r.repeatAt = r.lastOut
	r.record = res.CommandRecord
	r.measureOn()
	r.timeout = res.Timeout
	if res.Code != nil {
		r.reported, r.code = true, *res.Code
		return nil
	}
	r.asked = "g" + r.seq // by repeat, which is due at once
	// What was to end the command has begun to: whatever is reported now comes of that.
	if r.timeout != "" {
		r.begin(syscall.SIGTERM, r.c.Grace, r.lastOut)
	} else if r.cancel = r.c.cancelled(); r.cancel != nil {
		r.begin(r.cancel.sig, r.cancel.grace, r.lastOut)
	}
	return nil
}

// ask asks what was reported last. To hear it twice does no harm.
func (r *run) ask() { r.p.send(r.p.kind.last + " " + r.asked + "\n") }

func (r *run) appendCall(b []byte, name string) []byte {
	b = append(append(b, name...), ' ')
	return append(append(b, r.seq...), '\n')
}

// appendDot is short: bash reads its line byte by byte. Without stdin it is the shell's own, /dev/null.
func (r *run) appendDot(b []byte, text, stdin string) []byte {
	b = append(b, r.p.kind.dot...)
	b = append(append(append(b, ` "`...), text...), '"')
	if stdin != "" {
		b = append(append(b, ` <`...), stdin...)
	}
	for i, op := range [...]string{` >"$__trl_p/`, ` 2>"$__trl_p/`} {
		b = strconv.AppendInt(append(b, op...), int64(r.lane.end(i)), 10)
		b = append(b, '"')
	}
	return b
}

// ended: nothing more is to be waited for but output.
func (r *run) ended() bool {
	if r.unbegun {
		return true
	}
	if r.died {
		return r.end == nil || len(r.others()) == 0 || r.survivors
	}
	if !r.reported {
		return false
	}
	return r.end == nil || r.survivors || len(r.others()) == 0
}

func (r *run) others() []int { return r.cell.Others(r.p.child.Pid()) }

const (
	pollControl = iota
	pollExit
	pollWake
	pollOut
	pollErr
	pollIn
)

// wait returns when something happened or is due.
func (r *run) wait() []unix.PollFd {
	r.fds = [6]unix.PollFd{
		{Fd: int32(r.p.ctlR), Events: unix.POLLIN},
		{Fd: int32(r.p.child.Pidfd()), Events: unix.POLLIN},
		{Fd: int32(r.s.event), Events: unix.POLLIN},
		{Fd: -1}, {Fd: -1}, {Fd: -1},
	}
	if r.died {
		r.fds[pollExit].Fd = -1
	}
	if r.c.Journal.Room() {
		for i := range r.out {
			if !r.out[i].eof {
				r.fds[pollOut+i] = unix.PollFd{Fd: int32(r.out[i].r), Events: unix.POLLIN}
			}
		}
	}
	if r.inMore && !r.in.lonely() {
		r.fds[pollIn] = unix.PollFd{Fd: int32(r.in.writer()), Events: unix.POLLOUT}
	}
	r.measure()
	r.watch()
	r.s.poll.wait(r.fds[:], r.due())
	return r.fds[:]
}

// watch tells the poller of all that this run waits for.
func (r *run) watch() {
	in := -1
	if r.inMore {
		in = r.in.writer()
	}
	r.s.poll.watch([slots]watched{
		slotSession: {r.s, [2]int{r.s.event, -1}},
		slotShell:   {r.p, [2]int{r.p.ctlR, r.p.child.Pidfd()}},
		slotLane:    {r.lane, r.lane.r},
		slotInlet:   {r.in, [2]int{in, -1}},
	})
}

// due is the time until something must be done without being asked, negative for never.
func (r *run) due() time.Duration {
	var at time.Time
	soonest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if r.inMore && !r.died && !r.reported && r.in.lonely() {
		soonest(time.Now().Add(r.lonely()))
	}
	if r.line != nil || r.early > 0 && !r.reported && !r.died {
		soonest(time.Now().Add(time.Millisecond))
	}
	if r.end != nil {
		soonest(r.end.next)
	} else if !r.died && !r.reported {
		if !r.repeatAt.IsZero() {
			soonest(r.repeatAt)
		}
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

// lonely is the pause between looks for the reader of stdin: a shell is at its line within some 100 µs, but for one that is
// stopped.
func (r *run) lonely() time.Duration {
	return min(max(time.Since(r.began)/4, 20*time.Microsecond), 50*time.Millisecond)
}

// look deals with all that happened. Reports come before output: what is read after the report is complete.
func (r *run) look(fds []unix.PollFd) {
	if fds[pollWake].Revents != 0 {
		var b [8]byte
		_, _ = quick.Read(r.s.event, b[:])
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
	if r.in != nil && (fds[pollIn].Revents != 0 || fds[pollWake].Revents != 0 || r.inMore && r.in.lonely()) {
		r.inMore = r.in.feed()
	}
	cancel, signals, nudged := r.c.requests()
	if nudged && r.c.Nudged != nil {
		r.c.Nudged()
	}
	now := time.Now()
	for _, sig := range signals {
		if sig == syscall.SIGINT && r.unread() {
			r.early, r.earlyAt = 3, now
		} else {
			r.signal(sig, now)
		}
	}
	if r.early > 0 && !now.Before(r.earlyAt) && !r.unread() {
		r.early--
		r.earlyAt = now.Add(4 * tick)
		r.signal(syscall.SIGINT, now)
	}
	if r.line != nil && !r.died && r.deliver(r.line, now) != nil {
		_ = r.p.child.Signal(syscall.SIGKILL) // as where attempt meets it: it cannot even read its end
	}
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
		if !r.repeatAt.IsZero() && !now.Before(r.repeatAt) {
			if r.p.unread() == 0 {
				r.repeat()
			} else {
				r.pause = min(max(2*r.pause, repeatAfter), lastDoubt)
				r.repeatAt = now.Add(r.pause)
			}
		}
		switch {
		case !now.Before(r.suspect):
			r.doubt = min(2*r.doubt, lastDoubt)
			r.suspect = now.Add(r.doubt)
			if r.asked != "" && r.p.unread() == 0 { // it has taken the question, and nothing came of that
				r.repeat()
			}
			if r.line != nil || !r.repeatAt.IsZero() || r.unheard || r.p.unread() > 0 {
				break
			}
			if r.unsure > 0 {
				r.unsure--
				r.repeat()
				break
			}
			if st, _ := readProc(r.p.child.Pid()); st.state != 'S' { // one that is throttled or stopped may say it yet
				break
			}
			if r.reports(); !r.reported && !r.suspected {
				r.suspected, r.suspect = true, now.Add(firstDoubt) // once more: its report may be on the way
			} else if !r.reported {
				r.wedged = true
				_ = r.p.child.Signal(syscall.SIGKILL)
			}
		case r.c.Timeout > 0 && now.Sub(r.began) >= r.c.Timeout:
			r.expire("hard", now)
		case r.c.NoOutput > 0 && now.Sub(r.lastOut) >= r.c.NoOutput && r.c.Journal.Room():
			r.expire("no_output", now)
		}
	}
	if r.end != nil && !now.Before(r.end.next) {
		r.press(now)
	}
}

// signal sends what the client wants sent.
func (r *run) signal(sig syscall.Signal, now time.Time) {
	r.cell.Signal(sig, r.p.child.Pid())
	if r.reported || r.died || len(r.others()) > 0 {
		r.early = 0
	} else if sig == syscall.SIGINT { // a shell that is busy itself: what Ctrl-C does
		_ = r.p.child.Signal(r.p.kind.abort)
		r.aborted, r.unsure = true, 3
		r.doubt = firstDoubt / 4
		r.suspect = now.Add(r.doubt)
	}
}

func (r *run) reports() {
	for {
		m, ok := r.p.next()
		if !ok {
			return
		}
		if m.verb == 'e' && m.seq == r.seq || m.verb == 'g' && m.seq == r.asked && m.last == r.seq {
			r.reported, r.code = true, m.val
			return
		}
		if m.verb == 'g' && m.seq == r.asked {
			if r.took() { // what it has not reported yet, it may still run, or an error took the report along
				r.repeatAt = time.Now()
			} else {
				r.unbegun = true
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
	n, err := r.c.Journal.Fill(p.kind, p.r, len(buf), buf)
	if n > 0 {
		r.lastOut = time.Now()
	} else if err == nil {
		p.eof = true
	}
	return n
}

// expire ends the command because a time is over.
func (r *run) expire(kind string, now time.Time) {
	r.timeout, r.record.Timeout = kind, kind
	if r.c.Began != nil {
		r.c.Began(r.record)
	}
	r.begin(syscall.SIGTERM, r.c.Grace, now)
}

// begin starts the ending: sig to all but the shell, and the shell's own work aborted.
func (r *run) begin(sig syscall.Signal, grace time.Duration, now time.Time) {
	k := r.p.kind
	r.end = &ending{sig: sig, deadline: now.Add(grace), unheard: now.Add(max(grace, stubborn)), told: map[int]bool{}, next: now,
		deaf: r.s.trap || ignores(r.p.child.Pid(), k.abort) || k.trapped != nil && k.trapped.Match(r.s.st.script(k, false))}
	if !r.repeatAt.IsZero() {
		r.repeat()
	}
}

// abort ends the shell's own work. A deaf one would run its trap and go on with its list: the only cure is another shell.
func (r *run) abort() {
	sig := r.p.kind.abort
	if r.end.deaf {
		sig = syscall.SIGKILL
	}
	_ = r.p.child.Signal(sig)
}

// press is one step of the ending.
func (r *run) press(now time.Time) {
	e := r.end
	e.next = now.Add(tick)
	e.looks++
	busy := !r.reported && !r.died
	if busy && !e.kill && now.Before(e.unheard) && r.unread() {
		// A busy machine: the shell has not even read the line. An abort now would hit nothing, and the line run after it.
		e.looks, e.next = 0, now.Add(tick/5)
		return
	}
	if !e.kill && !now.Before(e.deadline) {
		if busy && e.looks == 1 { // no grace: the shell first, as below
			r.abort()
		}
		e.kill = true
		r.killed = true
		r.s.b.Metrics.KillEscalations.Inc()
		r.killRest()
		e.deadline = time.Now().Add(stubborn)
		e.looks = 1
	}
	others := r.others()
	fresh := slices.ContainsFunc(others, func(pid int) bool { return !e.told[pid] })
	// The shell first: once what it waits for is dead, it would go on with its list.
	switch {
	case busy && (e.looks == 1 || fresh || e.looks%20 == 0 && (e.kill || len(others) == 0)): // again where one was lost
		r.abort()
	}
	var untold []int
	for _, pid := range others {
		if !e.told[pid] {
			// What was forked but has not reached its exec ignores TERM still, as its interactive shell does: it is told again.
			e.told[pid] = !ignores(pid, e.sig)
			untold = append(untold, pid)
		}
	}
	switch {
	case e.kill && len(others) > 0:
		r.cell.Signal(syscall.SIGKILL, r.p.child.Pid())
	case !e.kill && len(untold) > 0:
		r.cell.SignalSome(e.sig, untold...)
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
	old := r.cell
	parted := old != r.p.cell // by a gateway before us; then it is among what commands left
	if !parted {
		fresh, err := r.s.group.NewCell()
		if err == nil {
			err = fresh.Adopt(r.p.child.Pid())
		}
		if err != nil && !r.died { // no way to part them: the shell goes too, and is restored
			_ = r.p.child.Signal(syscall.SIGKILL)
		}
		if fresh != nil {
			r.p.cell = fresh
			r.s.changed()
		}
	}
	r.cell = r.p.cell
	if err := old.Kill(0); err != nil {
		r.survivors = true
	}
	if !parted {
		old.Remove()
	}
}

// collect reads what the command wrote before its end, exactly: after the report (or the exit) FIONREAD of each pipe
// counts it, whatever background jobs add meanwhile.
func (r *run) collect() {
	for i := range r.out {
		p := &r.out[i]
		p.left = 0
		if !p.eof {
			p.left, _ = quick.Unread(p.r)
		}
	}
	for r.out[0].left > 0 || r.out[1].left > 0 {
		if !r.c.Journal.Room() { // a client holds it up; it is dropped some day, or the session closes
			r.fds = [6]unix.PollFd{{Fd: int32(r.s.event), Events: unix.POLLIN}, {Fd: -1}, {Fd: -1}, {Fd: -1}, {Fd: -1}, {Fd: -1}}
			r.watch()
			r.s.poll.wait(r.fds[:], time.Second)
			var b [8]byte
			_, _ = quick.Read(r.s.event, b[:])
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
	o.Cancelled = r.record.Cancelled || r.cancel != nil && r.end != nil && r.timeout == ""
	if r.died {
		<-r.p.child.Exited()
		st := r.p.child.Status()
		switch {
		case r.wedged && r.p.exit == nil:
			o.Code = 2 // what shells say of a command that they could not read
		case st.Signal != 0: // before the report: bash runs its EXIT trap when SIGSEGV ends it, too, with the $? of before
			o.Code = 128 + int(st.Signal)
		case r.p.exit != nil:
			o.Code = *r.p.exit & 0xff // of `exit 300`
		case st.Code < 0:
			o.Err = ErrUnknownEnd
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
	if r.died || r.end != nil || r.aborted {
		s.after(r, &o)
	}
	if len(r.stayed) > 0 && r.end == nil {
		o.Background = r.others()
		o.Linger = r.linger()
		s.partWith(r)
	}
	if _, after := r.wrapped(); after != "" && s.p != nil {
		if r.c.Began != nil { // the shell's last report is about to be another's
			r.record.Code, r.record.Cancelled = &o.Code, o.Cancelled
			r.c.Began(r.record)
		}
		// The tag is this gateway's: the answer to one that died while it asked must not pass for ours, since its text died with it.
		tag := "w" + r.seq + "x" + strconv.Itoa(os.Getpid())
		s.p.ask(s.held(), tag, after, bootTimeout)
		if r.was != "" && s.Dir() != r.was { // PWD was not where it is, or that is not there any more
			s.p.ask(s.held(), tag+"d", r.wayBack(), bootTimeout)
		}
	}
	s.st.dirty = true
	o.Dir = s.Dir()
	if len(r.stayed) == 0 && !r.died && r.end == nil && r.lane.open() { // nobody else has these pipes
		r.c.Journal.Close()
		s.lane = r.giveLane()
		return o
	}
	r.handOver()
	return o
}

// wayBack leads the shell to where it was.
func (r *run) wayBack() string {
	back := r.p.kind.call("cd") + " -P -- " + quote(r.was)
	if r.wasFD <= 0 {
		return back + "\n"
	}
	return fmt.Sprintf("%s || { %s -P -- %s/%d; PWD=%s; }\n", back, r.p.kind.call("cd"), self(), r.wasFD, quote(r.was))
}

func (r *run) wrapped() (before, after string) {
	if r.c.Env == nil && r.c.Dir == "" {
		return "", ""
	}
	complaints := os.DevNull
	if r.lane != nil {
		complaints = fmt.Sprintf(`"$__trl_p/%d"`, r.lane.end(1))
	}
	return wrap(r.p.kind, r.c.Env, r.c.Dir, complaints)
}

// linger waits for what still holds the command's output to be quiet for a moment.
func (r *run) linger() time.Duration {
	from := time.Now()
	r.lane.closeWriters()
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
			_, _ = quick.Read(r.s.event, b[:])
		}
		for i := range r.out {
			if fds[i].Revents != 0 && r.read(&r.out[i]) > 0 {
				quiet = time.Now()
			}
		}
	}
}

// handOver leaves the pipes that somebody still holds to outlets, and closes the journal where nobody does. The next
// command gets another lane.
func (r *run) handOver() {
	r.s.poll.part(slotLane)
	lane := r.giveLane()
	lane.closeWriters()
	late := newOutlets(r.c.Journal)
	late.ended = lane.close
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

// close gives back what the run did not pass on.
func (r *run) close() {
	for _, fd := range []int{r.before, r.wasFD} {
		if fd > 0 {
			unix.Close(fd)
		}
	}
	if r.beforeHeld != nil {
		r.s.held().Drop(r.beforeHeld...)
	}
	if r.lane != nil {
		r.lane.close()
	}
}

// Enterable says whether we may enter a directory, before a command is run in it and before the shell is bothered: the shell's own cd decides.
func Enterable(dir string) error {
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
