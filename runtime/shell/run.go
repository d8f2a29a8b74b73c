package shell

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/journal"
	"trl/runtime/own"
)

// run is the life of one command: what Shell.Run keeps on its stack. One goroutine, one poll loop, no locks.
type run struct {
	s      *Shell
	c      *Command
	p      *shellProc
	number int
	seq    string // Number as the shell is told it
	buf    []byte
	fds    [6]unix.PollFd

	scope     own.KeptScope // what the command started is in it, and the shell, unless that was moved out already
	pipes     *outputPipes
	out       Copier       // for Step and Exact only
	stdin     *stdinBuffer // the command's stdin, nil when it has none
	stdinMore bool         // there is more of it than its pipe took
	remaining []int        // besides the shell, when the command had ended
	prelude

	began    time.Time
	lastOut  time.Time
	reported bool
	saved    SavedCommand
	code     int
	died     bool
	reports

	ending
	meter
}

// prelude is what the shell does before a command with an environment or a directory of its own.
type prelude struct {
	beforeFD    int    // memfd: what the shell reads before the text; 0: nothing
	beforeHeld  []int  // what the keeper calls it
	dirBefore   string // where the shell was before; dirBeforeFD, if > 0, is open there
	dirBeforeFD int
}

// ending is why and how a command is ended early.
type ending struct {
	cancel    *cancelRequest // taken from the command
	timeout   string
	abort     *abort
	killed    bool // KILL was needed
	survivors bool // KILL was not enough
}

// meter is what a command used.
type meter struct {
	gauge                    *own.Gauge // nil until measure
	usageAtStart, usageAtEnd own.Usage  // at the time of measure, and at the end
	peakUnknown              bool       // a gateway before us began to measure, so the most memory that the command used is not known
}

// attempt runs c in the present shell process. untold: the shell died before it read the command's line, which then
// has not run at all: it is attempted again, with the same output pipes, which is never nil then.
func (s *Shell) attempt(c *Command, again *outputPipes) (o Outcome, unread *outputPipes) {
	s.seq++
	r := &run{s: s, c: c, p: s.p, number: s.seq, seq: strconv.Itoa(s.seq), scope: s.p.scope, pipes: again}
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	r.buf = *buf
	defer r.close()
	c.setTarget(watchdogTarget{s, r.p, r.scope})
	begin := r.start
	if c.resumed != nil {
		begin = r.resume
	}
	switch err := begin(); {
	case errors.Is(err, unix.EPIPE): // the command before closed all the shell has; it cannot even read its end
		_ = r.p.child.Signal(syscall.SIGKILL)
		<-r.p.child.Exited() // Run puts back what is dead
		return Outcome{}, r.passOnPipes()
	case err != nil:
		c.Journal.Close()
		return Outcome{Err: err, Code: -1, Dir: s.Dir()}, nil
	}
	for !r.ended() {
		r.handleEvents(r.wait())
	}
	// Who stayed is asked before what was written is counted: if nobody did, nothing comes after the count.
	r.remaining = r.membersExceptShell()
	r.out.Exact(r.buf, r.waitForRoom)
	r.readUsage()
	if r.abort == nil && (r.neverSent || r.died && !r.reported && r.unread() && !r.hasCommand()) {
		return Outcome{}, r.passOnPipes()
	}
	o = r.finish()
	r.addUsage(&o)
	return o, nil
}

// passOnPipes passes the output pipes on.
func (r *run) passOnPipes() *outputPipes {
	l := r.pipes
	r.pipes = nil
	return l
}

// start makes the pipes, puts the text where the shell finds it, and sends the line.
func (r *run) start() error {
	s, c, p := r.s, r.c, r.p
	if r.pipes == nil {
		if s.pipes != nil && s.pipes.log.Broken() {
			s.closePipes()
		}
		if r.pipes, s.pipes = s.pipes, nil; r.pipes == nil {
			var err error
			if r.pipes, err = newOutputPipes(s.currentGroup(), &s.streamLogs, false); err != nil {
				return err
			}
		}
		r.pipes.log.attachJournal(c.Journal, c.Head, c.Tail)
	}
	r.copyFrom(r.pipes)
	stdin := p.stdin()
	var err error
	if r.stdin, err = c.makeStdin(s.currentGroup()); err != nil {
		return err
	}
	if r.stdin != nil {
		stdin = s.currentGroup().Dir() + "/" + strconv.Itoa(r.stdin.fileNumber)
		r.feed()
	}
	files := r.redirections(stdin)
	if err := p.writeText(p.dialect.FileText(c.Text, files)); err != nil {
		return err
	}
	line := make([]byte, 0, 256)
	if r.stdin != nil && p.dialect.Name == "bash" { // else bash saves its own at descriptor 10
		line = append(line, `\builtin exec <&-;`...)
	}
	line = p.dialect.AppendBegin(line, p.held[heldText])
	if c.Env != nil || c.Dir != "" {
		before, _ := r.envAndDirScripts()
		if err := r.makeBefore(before); err != nil {
			return err
		}
		line = fmt.Appendf(line, `%s "$__trl_p/%d" </dev/null >/dev/null 2>&1&&`, p.dialect.Source, r.beforeHeld[0])
		if c.Dir != "" {
			r.dirBefore = s.Dir()
			if !s.currentGroup().UsesFIFOs() {
				r.dirBeforeFD = s.openDir(p.child.Pid())
			}
		}
	}
	line = p.dialect.AppendText(line, p.held[heldText])
	if !p.dialect.Quoted {
		line = append(line, files...)
	}
	line = append(line, ';')
	line = append(line, p.report(p.dialect.ReportCall, r.seq)...)
	r.sent = len(line)
	r.began = time.Now()
	r.lastOut = r.began
	r.wedgeInterval = firstWedgeInterval
	r.wedgeCheckAt = r.began.Add(r.wedgeInterval)
	if s.cfg.Limits != (protocol.Limits{}) {
		r.measure()
	}
	if s.entries != nil {
		rec := SavedCommand{Seq: r.number, Sent: r.sent, Scope: r.scope.Number(), Pipes: r.pipes.saved(), Span: c.Journal.Span(), UsedBefore: r.savedUsage()}
		if r.stdin != nil {
			rec.Stdin = r.stdin.files
		}
		rec.Before = heldFiles(r.beforeHeld, r.beforeFD)
		rec.Snapshot, rec.Current = s.state.askedFor()
		r.saved = rec
		r.writeEntry()
	}
	return r.sendLine(line, r.began)
}

// writeEntry has what the next gateway must know of the command written down.
func (r *run) writeEntry() {
	if r.s.entries != nil {
		r.s.entries.Begun(r.c, r.saved)
	}
}

// makeBefore puts text where the shell finds it before the command's own.
func (r *run) makeBefore(text string) (err error) {
	made, _, err := r.s.currentGroup().MakeChannels([]own.ChannelKind{own.MemFile})
	if err != nil {
		return fmt.Errorf("file for what comes before a command: %w", err)
	}
	r.beforeFD, r.beforeHeld = made[0].W, []int{made[0].HeldW}
	return writeMemfd(r.beforeFD, []byte(text))
}

// resume goes on where another gateway was killed. What it had read of the control pipe died with it, so the shell is
// asked what it reported last: it answers when it comes to that line, after the command's, if that was ever sent.
func (r *run) resume() error {
	res := r.c.resumed
	r.c.resumed = nil
	if res.beforeFD >= 0 {
		r.beforeFD, r.beforeHeld = res.beforeFD, []int{res.Before[0].Number}
	}
	r.scope, r.pipes, r.stdin, r.number, r.seq, r.sent = res.scope, res.pipes, r.c.stdin, res.Seq, strconv.Itoa(res.Seq), res.Sent
	r.c.setTarget(watchdogTarget{r.s, r.p, r.scope})
	r.copyFrom(r.pipes)
	if r.stdin != nil {
		r.feed()
	}
	r.began, r.lastOut = res.began, time.Now()
	r.wedgeInterval, r.wedgeCheckAt, r.resendHadNoReader = lastWedgeInterval, r.lastOut.Add(lastWedgeInterval), true
	r.resendAt = r.lastOut
	r.saved = res.SavedCommand
	r.resumeMeasure()
	r.timeout = res.Timeout
	if a := res.Replaced; a != nil {
		r.saved.Code, r.saved.Cancelled = &a.Code, a.Cancelled
	}
	if res.Code = r.saved.Code; res.Code != nil {
		r.reported, r.code = true, *res.Code
		r.c.reported.Store(true)
		return nil
	}
	r.question = "g" + r.seq // by repeat, which is due at once
	r.answerBy = r.lastOut.Add(lastWedgeInterval)
	// What was to end the command has begun to: whatever is reported now comes of that.
	if r.timeout != "" {
		r.startAbort(syscall.SIGTERM, r.c.Grace, r.lastOut)
	} else if r.cancel = r.c.cancelled(); r.cancel != nil {
		r.startAbort(r.cancel.sig, r.cancel.grace, r.lastOut)
	}
	return nil
}

// redirections are those of a command. They are short: bash reads its line byte by byte. Without stdin it is the shell's own, /dev/null.
func (r *run) redirections(stdin string) string {
	b := make([]byte, 0, 64)
	if stdin != "" {
		b = append(append(b, ` <`...), stdin...)
	}
	for i, op := range [...]string{` >"$__trl_p/`, ` 2>"$__trl_p/`} {
		b = strconv.AppendInt(append(b, op...), int64(r.pipes.writeEnd(i)), 10)
		b = append(b, '"')
	}
	return string(b)
}

// feed gives the command what its stdin takes now.
func (r *run) feed() {
	r.s.pipeCalls.enter()
	defer r.s.pipeCalls.leave()
	r.stdinMore = r.stdin.feed()
}

// ended: nothing more is to be waited for but output.
func (r *run) ended() bool {
	if r.neverSent {
		return true
	}
	if r.died {
		return r.abort == nil || len(r.membersExceptShell()) == 0 || r.survivors
	}
	if !r.reported {
		return false
	}
	return r.abort == nil || r.survivors || len(r.membersExceptShell()) == 0
}

func (r *run) membersExceptShell() []int { return r.scope.MembersExcept(r.p.child.Pid()) }

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
		{Fd: int32(r.s.wakeFD), Events: unix.POLLIN},
		{Fd: -1}, {Fd: -1}, {Fd: -1},
	}
	if r.died {
		r.fds[pollExit].Fd = -1
	}
	if r.p.flood.pauses() {
		r.fds[pollControl].Fd = -1
	}
	if r.c.Journal.Room() {
		r.fds[pollOut], r.fds[pollErr] = r.out.pollFD(0), r.out.pollFD(1)
	}
	if r.stdinMore && !r.stdin.noReaderYet() {
		r.fds[pollIn] = unix.PollFd{Fd: int32(r.stdin.writer()), Events: unix.POLLOUT}
	}
	r.measure()
	r.watchFDs()
	r.s.poll.wait(r.fds[:], r.nextTimer())
	return r.fds[:]
}

// watchFDs tells the poller of all that this run waits for.
func (r *run) watchFDs() {
	in := -1
	if r.stdinMore {
		in = r.stdin.writer()
	}
	r.s.poll.watch([slots]watchedFDs{
		slotSession: {r.s, [2]int{r.s.wakeFD, -1}},
		slotShell:   {r.p, [2]int{r.p.ctlR, r.p.child.Pidfd()}},
		slotPipes:   {r.pipes, r.pipes.r},
		slotStdin:   {r.stdin, [2]int{in, -1}},
	})
}

// nextTimer is the time until something must be done without being asked, negative for never.
func (r *run) nextTimer() time.Duration {
	var at time.Time
	soonest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if r.stdinMore && !r.died && !r.reported && r.stdin.noReaderYet() {
		soonest(time.Now().Add(r.stdinReaderPause()))
	}
	if r.p.flood.pauses() {
		soonest(r.p.flood.until)
	}
	if r.line != nil {
		soonest(time.Now().Add(time.Millisecond))
	}
	if r.abort != nil {
		soonest(r.abort.next)
	} else if !r.died && !r.reported {
		if !r.resendAt.IsZero() {
			soonest(r.resendAt)
		}
		soonest(r.wedgeCheckAt)
		if r.c.Timeout > 0 {
			soonest(later(r.began.Add(r.c.Timeout), r.answerBy))
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

// handleEvents deals with all that happened. Reports come before output: what is read after the report is complete.
func (r *run) handleEvents(fds []unix.PollFd) {
	if fds[pollWake].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(r.s.wakeFD, b[:])
	}
	if fds[pollControl].Revents != 0 {
		r.readReports()
	}
	if fds[pollExit].Revents != 0 && !r.died {
		r.died = true
		r.readReports() // what it managed to say before
	}
	for i := range r.out.count {
		// A shell that is aborted reports before the processes that it waited for have ended, and these may have last words.
		goesOn := r.abort != nil || !r.reported && !r.died
		if goesOn && fds[pollOut+i].Revents != 0 && r.out.Step(i, r.buf) > 0 {
			r.lastOut = time.Now()
		}
	}
	if r.stdin != nil && (fds[pollIn].Revents != 0 || fds[pollWake].Revents != 0 || r.stdinMore && r.stdin.noReaderYet()) {
		r.feed()
	}
	asked := r.c.requests()
	if asked.woken && r.s.entries != nil {
		r.s.entries.Compact()
	}
	r.killed = r.killed || asked.killed
	now := time.Now()
	for _, q := range asked.signals {
		q.result <- r.signal(q.sig, now)
	}
	if r.line != nil && !r.died && r.sendLine(r.line, now) != nil {
		_ = r.p.child.Signal(syscall.SIGKILL) // as where attempt meets it: it cannot even read its end
	}
	if asked.cancel != nil && r.cancel != asked.cancel && !r.reported {
		r.applyCancel(asked.cancel, now)
	}
	if r.abort == nil && !r.reported && !r.died {
		r.resendIfDue(now)
		switch {
		case asked.timedOut != "": // the watchdog has begun to end it
			r.timeOut(asked.timedOut, now)
		case !now.Before(r.wedgeCheckAt):
			r.checkWedged(now)
		case r.mayNotHaveBegun(now): // its time has not, either
		case r.c.Timeout > 0 && now.Sub(r.began) >= r.c.Timeout:
			r.timeOut("hard", now)
		case r.c.NoOutput > 0 && now.Sub(r.lastOut) >= r.c.NoOutput && r.c.Journal.Room():
			r.timeOut("no_output", now)
		}
	}
	if r.abort != nil && !now.Before(r.abort.next) {
		r.stepAbort(now)
	}
}

// finish makes the shell ready for the next command and says how this one ended.
func (r *run) finish() Outcome {
	s := r.s
	o := Outcome{Duration: time.Since(r.began), Code: r.code, Timeout: r.timeout, Died: r.died, KillFailed: r.survivors}
	o.Cancelled = r.saved.Cancelled || r.cancel != nil && r.abort != nil && r.timeout == ""
	if r.died {
		<-r.p.child.Exited()
		st := r.p.child.Status()
		switch {
		case r.wedged && r.p.exit == nil:
			o.Code = 2 // what shells say of a command that they could not read
		case st.Signal == unix.SIGXFSZ && r.p.exit != nil && r.p.dialect.Name != "bash": // the snapshot of its EXIT trap was too large for its ulimit -f
			o.Code = *r.p.exit & 0xff
		case st.Signal != 0: // before the report: bash runs its EXIT trap when SIGSEGV ends it, too, with the $? of before
			o.Code = protocol.SignalExitCode(st.Signal)
		case r.p.exit != nil:
			o.Code = *r.p.exit & 0xff // of `exit 300`
		case st.Code < 0:
			o.Err = ErrUnknownEnd
		default:
			o.Code = st.Code
		}
	}
	if r.abort != nil {
		sig := r.abort.sig
		if r.killed {
			sig = syscall.SIGKILL
		}
		o.Code = protocol.SignalExitCode(sig)
	}
	if sig := protocol.ExitCodeSignal(o.Code); sig != 0 {
		o.Signal = signalName(sig)
	}
	if a := r.saved.Replaced; a != nil {
		o.Died, o.Restored, o.Lost = true, true, a.Lost
	} else if r.died || r.abort != nil || r.aborted {
		s.makeReady(r, &o)
	}
	if len(r.remaining) > 0 && r.abort == nil {
		o.Background = r.membersExceptShell()
		o.Linger = r.leavePipes(s.leaveScope(r)).Quiet(lingerQuiet, lingerMax)
	}
	_, after := r.envAndDirScripts()
	if after != "" && s.p != nil {
		r.saved.Code, r.saved.Cancelled = &o.Code, o.Cancelled
		r.writeEntry() // the shell's last report is about to be another's
		// The tag is this gateway's: the answer to one that died while it asked must not pass for ours, since its text died with it.
		tag := "w" + r.seq + "x" + strconv.Itoa(os.Getpid())
		s.p.ask(s.currentGroup(), tag, after, bootTimeout)
		if r.dirBefore != "" && s.Dir() != r.dirBefore { // PWD was not where it is, or that is not there any more
			s.p.ask(s.currentGroup(), tag+"d", r.cdBackScript(), bootTimeout)
		}
	}
	if !o.Died || after != "" && !o.Postponed { // else the shell has been put back, and the snapshot of that is asked for
		s.state.commandEnded()
	}
	o.Dir = s.Dir()
	switch {
	case r.pipes == nil: // the Copier has them
	case len(r.remaining) == 0 && !o.Died && r.abort == nil && r.pipes.isOpen(): // nobody else has these pipes
		r.c.Journal.Close()
		s.pipes = r.passOnPipes()
	default:
		r.leavePipes(nil)
	}
	return o
}

// copyFrom makes the command's output pipes the sources of its Copier.
func (r *run) copyFrom(l *outputPipes) {
	r.out.journal.Store(r.c.Journal)
	r.out.calls = &r.s.pipeCalls
	for i, fd := range l.r {
		r.out.add(source{stream: journal.Stdout + journal.Stream(i), fd: fd, eof: fd < 0})
	}
}

// waitForRoom returns when the journal may have room, and false when the session closes. A client that does not read keeps
// the journal full until the client is dropped.
func (r *run) waitForRoom() bool {
	r.fds = [6]unix.PollFd{{Fd: int32(r.s.wakeFD), Events: unix.POLLIN}, {Fd: -1}, {Fd: -1}, {Fd: -1}, {Fd: -1}, {Fd: -1}}
	r.watchFDs()
	r.s.poll.wait(r.fds[:], time.Second)
	var b [8]byte
	_, _ = unix.Read(r.s.wakeFD, b[:])
	return !r.s.closing.Load()
}

// A process that a command left running may hold the command's output pipes. The result then waits until they are quiet,
// not until they end (PROTOCOL.md §4).
const lingerQuiet, lingerMax = 10 * time.Millisecond, 100 * time.Millisecond

// leavePipes gives the pipes that another process still holds to a Copier with goroutines, and closes the journal if there
// are none. The next command gets other output pipes. scope holds the processes that the command left running; nil: unknown.
func (r *run) leavePipes(scope own.KeptScope) *Copier {
	r.s.poll.unwatch(slotPipes)
	pipes, late := r.passOnPipes(), newCopier(r.c.Journal)
	r.s.pipeCalls.enter() // where no keeper has the ends, too, closing one takes the pipe's lock
	pipes.closeWriters()
	fds := []unix.PollFd{r.out.pollFD(0), r.out.pollFD(1)}
	descriptor.Poll(fds)
	for i, fd := range fds {
		if fd.Fd < 0 || fd.Revents&(unix.POLLHUP|unix.POLLIN) == unix.POLLHUP { // this pipe has ended
			descriptor.Close(&pipes.r[i])
		}
	}
	r.s.pipeCalls.leave()
	_ = late.takePipes(pipes) // it closes a pipe that it cannot take
	late.afterEOF, late.scope = r.s.outputReleased, scope
	r.c.mu.Lock()
	r.c.copier = late
	r.c.mu.Unlock()
	late.Start()
	r.s.addCopier(late)
	return late
}

// cdBackScript leads the shell to where it was.
func (r *run) cdBackScript() string {
	back := r.p.dialect.Call("cd") + " -P -- " + dialect.Quote(r.dirBefore)
	if r.dirBeforeFD <= 0 {
		return back + "\n"
	}
	return fmt.Sprintf("%s || { %s -P -- %s/%d; PWD=%s; }\n", back, r.p.dialect.Call("cd"), descriptor.OwnDir(), r.dirBeforeFD, dialect.Quote(r.dirBefore))
}

func (r *run) envAndDirScripts() (before, after string) {
	if r.c.Env == nil && r.c.Dir == "" {
		return "", ""
	}
	complaints := os.DevNull
	if r.pipes != nil {
		complaints = fmt.Sprintf(`"$__trl_p/%d"`, r.pipes.writeEnd(1))
	}
	return dialect.WithEnvAndDir(r.p.dialect, r.c.Env, r.c.Dir, complaints)
}

// close gives back what the run did not pass on.
func (r *run) close() {
	for _, fd := range []int{r.beforeFD, r.dirBeforeFD} {
		if fd > 0 {
			unix.Close(fd)
		}
	}
	if r.beforeHeld != nil {
		r.s.currentGroup().Drop(r.beforeHeld...)
	}
	if r.pipes != nil {
		r.pipes.close()
	}
}
