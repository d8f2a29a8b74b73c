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
	"trl/runtime/own"
	"trl/runtime/saved"
	"trl/runtime/stream"
)

// run is one attempt of Shell.Run to run a command. One goroutine uses it, in one poll loop, without locks.
type run struct {
	s      *Shell
	c      *Command
	p      *shellProc
	number int
	seq    string // number as text, as the shell gets it
	buf    []byte
	fds    [pollSlots]unix.PollFd
	woken  bool // the last wait was woken

	scope     own.KeptScope // holds what the command started, and the shell, unless the shell was moved out
	pipes     *stream.Pipes
	out       stream.Copier // for Step and Exact only
	stdin     *stream.Stdin // the command's stdin; nil if it has none
	stdinMore bool          // the pipe has not taken all of the stdin
	remaining []int         // pids in the scope, without the shell, when the command had ended
	prelude

	began    time.Time
	lastOut  time.Time
	reported bool
	saved    saved.Command
	code     int
	died     bool
	reports

	ending
	meter
}

// prelude is what the shell does before a command with an environment or a directory of its own.
type prelude struct {
	beforeFD    int    // memfd that the shell reads before the text; 0: none
	beforeHeld  []int  // the keeper's number for beforeFD
	dirBefore   string // the shell's directory before the command; dirBeforeFD, if > 0, is that directory
	dirBeforeFD int
}

// ending says why and how a command is ended early.
type ending struct {
	cancel    *cancelRequest // the command's request that applyCancel has applied
	timeout   string
	abort     *abort
	killed    bool // the command got KILL
	survivors bool // a process survived KILL
	early     []earlySignal
}

// meter measures what a command uses.
type meter struct {
	gauge                    *own.Gauge // nil until measure
	usageAtStart, usageAtEnd own.Usage  // at measure and at the end
	peakUnknown              bool       // an earlier gateway began to measure, so the peak of memory is unknown
}

// attempt runs c in the present shell process. If the shell died before it read the command's line, the command has not run.
// attempt then returns the command's output pipes as unread, and the caller attempts the command again with them. Otherwise unread
// is nil.
func (s *Shell) attempt(c *Command, again *stream.Pipes) (o Outcome, unread *stream.Pipes) {
	s.seq++
	r := &run{s: s, c: c, p: s.p, number: s.seq, seq: strconv.Itoa(s.seq), scope: s.p.scope, pipes: again}
	buf := stream.GetBuffer()
	defer stream.PutBuffer(buf)
	r.buf = *buf
	defer r.close()
	c.setTarget(watchdogTarget{s, r.p, r.scope})
	begin := r.start
	if c.resumed != nil {
		begin = r.resume
	}
	switch err := begin(); {
	case errors.Is(err, unix.EPIPE): // the previous command closed the shell's descriptors, so the shell reads no more lines
		_ = r.p.child.Signal(syscall.SIGKILL)
		<-r.p.child.Exited() // Run replaces a dead shell
		return Outcome{}, r.passOnPipes()
	case err != nil:
		c.Journal.Close()
		return Outcome{Err: err, Code: -1, Dir: s.Dir()}, nil
	}
	for !r.ended() {
		r.handleEvents(r.wait())
	}
	// The remaining processes are listed before Exact counts the output. If there are none, no output comes after the count.
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

// passOnPipes returns the output pipes to the caller, who owns them from then on.
func (r *run) passOnPipes() *stream.Pipes {
	l := r.pipes
	r.pipes = nil
	return l
}

// start makes the pipes, writes the command's text to the memfd that the shell reads, and sends the line.
func (r *run) start() error {
	s, c, p := r.s, r.c, r.p
	if r.pipes == nil {
		if s.pipes != nil && s.pipes.Log().Broken() {
			s.closePipes()
		}
		if r.pipes, s.pipes = s.pipes, nil; r.pipes == nil {
			var err error
			if r.pipes, err = stream.NewPipes(s.currentGroup(), s.streamLogs, false); err != nil {
				return err
			}
		}
		r.pipes.Log().AttachJournal(c.Journal, c.Head, c.Tail)
	}
	r.out.PollPipes(r.c.Journal, r.pipes, &r.s.pipeCalls)
	stdin := p.stdin()
	var err error
	if r.stdin, err = c.makeStdin(s.currentGroup()); err != nil {
		return err
	}
	if r.stdin != nil {
		stdin = s.currentGroup().Dir() + "/" + strconv.Itoa(r.stdin.FileNumber())
		r.feed()
	}
	files := r.redirections(stdin)
	if err := p.writeText(p.dialect.FileText(c.Text, files)); err != nil {
		return err
	}
	line := make([]byte, 0, 256)
	if r.stdin != nil && p.dialect.Name == "bash" { // otherwise bash saves its own stdin at descriptor 10
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
		rec := saved.Command{Seq: r.number, Sent: r.sent, Scope: r.scope.Number(), Pipes: r.pipes.Saved(), Span: c.Journal.Span(), UsedBefore: r.savedUsage()}
		if r.stdin != nil {
			rec.Stdin = r.stdin.Files()
		}
		rec.Before = stream.ToHeldFiles(r.beforeHeld, r.beforeFD)
		rec.Snapshot, rec.Current = s.state.AskedFor()
		r.saved = rec
		r.writeEntry()
	}
	return r.sendLine(line, r.began)
}

// writeEntry writes an entry with what the next gateway must know of the command.
func (r *run) writeEntry() {
	if r.s.entries != nil {
		r.s.entries.Begun(r.c, r.saved)
	}
}

// makeBefore writes text to a memfd that the shell reads before the command's text.
func (r *run) makeBefore(text string) (err error) {
	made, _, err := r.s.currentGroup().MakeChannels([]own.ChannelKind{own.MemFile})
	if err != nil {
		return fmt.Errorf("file with a command's environment and directory: %w", err)
	}
	r.beforeFD, r.beforeHeld = made[0].W, []int{made[0].HeldW}
	return descriptor.WriteMemfd(r.beforeFD, []byte(text))
}

// resume goes on with a command of a gateway that was killed. The reports which that gateway had read are lost, so we ask the shell
// what it reported last. If the command's line was ever sent, the shell answers after it.
func (r *run) resume() error {
	res := r.c.resumed
	r.c.resumed = nil
	if res.beforeFD >= 0 {
		r.beforeFD, r.beforeHeld = res.beforeFD, []int{res.Before[0].Number}
	}
	r.scope, r.pipes, r.stdin, r.number, r.seq, r.sent = res.scope, res.pipes, r.c.stdin, res.Seq, strconv.Itoa(res.Seq), res.Sent
	r.c.setTarget(watchdogTarget{r.s, r.p, r.scope})
	r.out.PollPipes(r.c.Journal, r.pipes, &r.s.pipeCalls)
	if r.stdin != nil {
		r.feed()
	}
	r.began, r.lastOut = res.began, time.Now()
	r.wedgeInterval, r.wedgeCheckAt, r.resendHadNoReader = lastWedgeInterval, r.lastOut.Add(lastWedgeInterval), true
	r.resendAt = r.lastOut
	r.saved = res.Command
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
	r.question = "g" + r.seq // resend sends the question; it is due at once
	r.answerBy = r.lastOut.Add(lastWedgeInterval)
	// The earlier gateway had started to abort the command, so whatever the shell reports now may be a result of the abort.
	if r.timeout != "" {
		r.startAbort(syscall.SIGTERM, r.c.Grace, r.lastOut)
	} else if r.cancel = r.c.cancelled(); r.cancel != nil {
		r.startAbort(r.cancel.sig, r.cancel.grace, r.lastOut)
	}
	return nil
}

// redirections returns the command's redirections as shell text. They are short, because bash reads its line byte by byte. Without
// stdin the command keeps the shell's stdin, /dev/null.
func (r *run) redirections(stdin string) string {
	b := make([]byte, 0, 64)
	if stdin != "" {
		b = append(append(b, ` <`...), stdin...)
	}
	for i, op := range [...]string{` >"$__trl_p/`, ` 2>"$__trl_p/`} {
		b = strconv.AppendInt(append(b, op...), int64(r.pipes.WriteEnd(i)), 10)
		b = append(b, '"')
	}
	return string(b)
}

// feed writes to the command's stdin what its pipe takes now.
func (r *run) feed() {
	r.s.pipeCalls.Enter()
	defer r.s.pipeCalls.Leave()
	r.stdinMore = r.stdin.Feed()
}

// ended tells whether the run waits for nothing but output.
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
	pollOut
	pollErr
	pollIn
	pollSlots
)

// wait returns when an event has happened or a timer is due.
func (r *run) wait() []unix.PollFd {
	r.fds = [pollSlots]unix.PollFd{
		{Fd: int32(r.p.ctlR), Events: unix.POLLIN},
		{Fd: int32(r.p.child.Pidfd()), Events: unix.POLLIN},
		{Fd: -1}, {Fd: -1}, {Fd: -1},
	}
	if r.died {
		r.fds[pollExit].Fd = -1
	}
	if r.p.control.Flood.Pauses() {
		r.fds[pollControl].Fd = -1
	}
	if r.c.Journal.Room() {
		r.fds[pollOut], r.fds[pollErr] = r.out.PollFD(0), r.out.PollFD(1)
	}
	if r.stdinMore && !r.stdin.NoReaderYet() {
		r.fds[pollIn] = unix.PollFd{Fd: int32(r.stdin.WriteEnd()), Events: unix.POLLOUT}
	}
	r.measure()
	r.watchFDs()
	timer := r.nextTimer()
	r.woken = r.s.poll.Woken() // a wait of shellProc's
	if r.woken {
		timer = 0
	}
	r.s.poll.Wait(r.fds[:], timer)
	r.woken = r.s.poll.Woken() || r.woken
	return r.fds[:]
}

// watchFDs makes the poller watch the descriptors that this run waits for.
func (r *run) watchFDs() {
	in := -1
	if r.stdinMore {
		in = r.stdin.WriteEnd()
	}
	r.s.poll.Watch([stream.Slots]stream.Watched{
		stream.SlotShell: {Owner: r.p, FDs: [2]int{r.p.ctlR, r.p.child.Pidfd()}},
		stream.SlotPipes: {Owner: r.pipes, FDs: r.pipes.ReadEnds()},
		stream.SlotStdin: {Owner: r.stdin, FDs: [2]int{in, -1}},
	})
}

// nextTimer returns the time until the next timer is due, negative if there is none.
func (r *run) nextTimer() time.Duration {
	var at time.Time
	soonest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if r.stdinMore && !r.died && !r.reported && r.stdin.NoReaderYet() {
		soonest(time.Now().Add(r.stdinReaderPause()))
	}
	if r.p.control.Flood.Pauses() {
		soonest(r.p.control.Flood.Until)
	}
	if r.line != nil || len(r.early) > 0 {
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

// handleEvents handles the events and the timers that are due. It reads reports before output, because output that is read after
// the report is complete.
func (r *run) handleEvents(fds []unix.PollFd) {
	if fds[pollControl].Revents != 0 {
		r.readReports()
	}
	if fds[pollExit].Revents != 0 && !r.died {
		r.died = true
		r.readReports() // the shell may have reported before it died
	}
	for i := range 2 {
		// An aborted shell reports before the processes that it waited for have ended, and these may still write output.
		goesOn := r.abort != nil || !r.reported && !r.died
		if goesOn && fds[pollOut+i].Revents != 0 && r.out.Step(i, r.buf) > 0 {
			r.lastOut = time.Now()
		}
	}
	if r.stdin != nil && (fds[pollIn].Revents != 0 || r.woken || r.stdinMore && r.stdin.NoReaderYet()) {
		r.feed()
	}
	asked := r.c.requests()
	if asked.woken && r.s.entries != nil {
		r.s.entries.Compact()
	}
	r.killed = r.killed || asked.killed
	now := time.Now()
	if len(r.early) > 0 {
		r.repeatEarlySignals(now)
	}
	for _, q := range asked.signals {
		q.result <- r.signal(q.sig, now)
	}
	if r.line != nil && !r.died && r.sendLine(r.line, now) != nil {
		_ = r.p.child.Signal(syscall.SIGKILL) // the shell reads no more lines, see attempt
	}
	if asked.cancel != nil && r.cancel != asked.cancel && !r.reported {
		r.applyCancel(asked.cancel, now)
	}
	if r.abort == nil && !r.reported && !r.died {
		r.resendIfDue(now)
		switch {
		case asked.timedOut != "": // the watchdog has started the abort
			r.timeOut(asked.timedOut, now)
		case !now.Before(r.wedgeCheckAt):
			r.checkWedged(now)
		case r.mayNotHaveBegun(now): // then its timeouts do not count yet
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

// finish makes the shell ready for the next command and returns how this one ended.
func (r *run) finish() Outcome {
	s := r.s
	o := Outcome{Duration: time.Since(r.began), Code: r.code, Timeout: r.timeout, Died: r.died, KillFailed: r.survivors}
	o.Cancelled = r.saved.Cancelled || r.cancel != nil && r.abort != nil && r.timeout == ""
	if r.died {
		<-r.p.child.Exited()
		st := r.p.child.Status()
		switch {
		case r.wedged && r.p.control.Exit == nil:
			o.Code = 2 // the exit code of shells for a command that they cannot parse
		case st.Signal == unix.SIGXFSZ && r.p.control.Exit != nil && r.p.dialect.Name != "bash": // the snapshot in its EXIT trap was larger than its ulimit -f
			o.Code = *r.p.control.Exit & 0xff
		case st.Signal != 0: // checked before exit: bash runs its EXIT trap also when SIGSEGV ends it, with an older $?
			o.Code = protocol.SignalExitCode(st.Signal)
		case r.p.control.Exit != nil:
			o.Code = *r.p.control.Exit & 0xff // 44 after `exit 300`
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
		r.writeEntry() // the shell's last report will no longer be this command's
		// The tag has this gateway's pid. The shell may still answer a gateway that died while it asked, whose text died with it; that
		// answer must not count as ours.
		tag := "w" + r.seq + "x" + strconv.Itoa(os.Getpid())
		s.p.ask(s.currentGroup(), tag, after, bootTimeout)
		if r.dirBefore != "" && s.Dir() != r.dirBefore { // PWD was wrong, or that directory was removed
			s.p.ask(s.currentGroup(), tag+"d", r.cdBackScript(), bootTimeout)
		}
	}
	if !o.Died || after != "" && !o.Postponed { // otherwise restoreShell has started another shell and requested its snapshot
		s.state.CommandEnded()
	}
	o.Dir = s.Dir()
	switch {
	case r.pipes == nil: // leavePipes gave them to a Copier
	case len(r.remaining) == 0 && !o.Died && r.abort == nil && r.pipes.IsOpen(): // no other process has these pipes
		r.c.Journal.Close()
		s.pipes = r.passOnPipes()
	default:
		r.leavePipes(nil)
	}
	return o
}

// waitForRoom returns when the journal may have room, and false when the session closes. A client that does not read keeps
// the journal full until the client is dropped.
func (r *run) waitForRoom() bool {
	r.watchFDs()
	r.s.poll.Wait(nil, time.Second)
	return !r.s.closing.Load()
}

// A process that a command left running may hold the command's output pipes. The result then waits until no output comes for
// lingerQuiet, at most for lingerMax, and not until the pipes end.
const lingerQuiet, lingerMax = 10 * time.Millisecond, 100 * time.Millisecond

// leavePipes gives the pipes that another process still holds to a Copier with goroutines, and closes the journal if there
// are none. The next command gets other output pipes. scope holds the processes that the command left running; nil: unknown.
func (r *run) leavePipes(scope own.KeptScope) *stream.Copier {
	r.s.poll.Unwatch(stream.SlotPipes)
	pipes, late := r.passOnPipes(), stream.NewCopier(r.c.Journal)
	r.s.pipeCalls.Enter() // closing the last descriptor of a pipe's end takes the pipe's lock, and without a keeper ours is the last
	pipes.CloseWriters()
	r.out.CloseEnded(pipes)
	r.s.pipeCalls.Leave()
	_ = late.TakePipes(pipes) // it closes a pipe that it cannot take
	late.AfterEOF, late.Scope = r.s.outputReleased, scope
	r.c.mu.Lock()
	r.c.copier = late
	r.c.mu.Unlock()
	late.Start()
	r.s.addCopier(late)
	return late
}

// cdBackScript returns the script that changes to the shell's previous directory.
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
		complaints = fmt.Sprintf(`"$__trl_p/%d"`, r.pipes.WriteEnd(1))
	}
	return dialect.WithEnvAndDir(r.p.dialect, r.c.Env, r.c.Dir, complaints)
}

// close closes what the run did not pass on.
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
		r.pipes.Close()
	}
}
