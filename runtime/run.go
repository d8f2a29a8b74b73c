package runtime

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/journal"
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
	s      *Shell
	c      *Command
	p      *shellProc
	number int
	seq    string // number as the shell is told it
	buf    []byte
	fds    [6]unix.PollFd

	cell       KeptCell // what the command started is in it, and the shell, unless that was moved out already
	lane       *lane
	out        [2]pipe
	in         *inlet // the command's stdin, nil when it has none
	inMore     bool   // there is more of it than its pipe took
	before     int    // memfd: what the shell reads before the text; 0: nothing
	beforeHeld []int  // what the keeper calls it
	was        string // where the shell was before a command with a directory of its own; wasFD, if > 0, is open there
	wasFD      int
	stayed     []int    // besides the shell, when the command had ended
	left       KeptCell // what it left running is in it, and the shell is not

	began    time.Time
	lastOut  time.Time
	reported bool
	record   CommandRecord
	code     int
	died     bool
	talk

	cancel    *cancellation // taken from the command
	timeout   string
	end       *ending
	killed    bool // KILL was needed
	survivors bool // and was not enough

	gauge     *Gauge // nil until measure
	used, now Usage  // then, and at the end
	handedOn  bool   // by the gateway that began to: the most memory it used is not known
}

// attempt runs c in the present shell process. untold: the shell died before it read the command's line, which then
// has not run at all: it is attempted again, with the same lane, which is never nil then.
func (s *Shell) attempt(c *Command, again *lane) (o Outcome, untold *lane) {
	s.seq++
	r := &run{s: s, c: c, p: s.p, number: s.seq, seq: strconv.Itoa(s.seq), cell: s.p.cell, lane: again}
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	r.buf = *buf
	defer r.close()
	c.aim(target{s, r.p, r.cell})
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
			if r.lane, err = newLane(s.held(), &s.outputs, false); err != nil {
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
		r.feed()
	}
	files := r.redirections(stdin)
	if err := p.give(p.kind.file(c.Text, files)); err != nil {
		return err
	}
	line := make([]byte, 0, 256)
	if r.in != nil && p.kind.name == "bash" { // else bash saves its own at descriptor 10
		line = append(line, `\builtin exec <&-;`...)
	}
	line = p.kind.appendBegin(line, p.held[heldText])
	if c.Env != nil || c.Dir != "" {
		before, _ := r.wrapped()
		if err := r.prepare(before); err != nil {
			return err
		}
		line = fmt.Appendf(line, `%s "$__trl_p/%d" </dev/null >/dev/null 2>&1&&`, p.kind.dot, r.beforeHeld[0])
		if c.Dir != "" {
			r.was = s.Dir()
			if !s.held().Private() {
				r.wasFD = s.openDir(p.child.Pid())
			}
		}
	}
	line = p.kind.appendText(line, p.held[heldText])
	if !p.kind.quoted {
		line = append(line, files...)
	}
	line = append(line, ';')
	line = append(line, p.report(p.kind.quit, r.seq)...)
	r.sent = len(line)
	r.began = time.Now()
	r.lastOut = r.began
	r.doubt = firstDoubt
	r.suspect = r.began.Add(r.doubt)
	if s.cfg.Limits != (protocol.Limits{}) {
		r.measure()
	}
	if c.Began != nil {
		rec := CommandRecord{Seq: r.number, Sent: r.sent, Cell: r.cell.Number(), Lane: r.lane.record(), Span: c.Journal.Span(), Used: r.usedBefore()}
		if r.in != nil {
			rec.Stdin = r.in.files
		}
		rec.Before = heldFiles(r.beforeHeld, r.before)
		rec.Snapshot, rec.Current = s.st.askedFor()
		r.record = rec
		c.Began(rec)
	}
	return r.deliver(line, r.began)
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
	r.cell, r.lane, r.in, r.number, r.seq, r.sent = res.cell, res.lane, r.c.in, res.Seq, strconv.Itoa(res.Seq), res.Sent
	r.c.aim(target{r.s, r.p, r.cell})
	for i := range r.out {
		r.out[i] = pipe{r: r.lane.r[i], kind: journal.Stdout + journal.Stream(i), left: -1, eof: r.lane.r[i] < 0}
	}
	if r.in != nil {
		r.feed()
	}
	r.began, r.lastOut = res.began, time.Now()
	r.doubt, r.suspect, r.unheard = lastDoubt, r.lastOut.Add(lastDoubt), true
	r.repeatAt = r.lastOut
	r.record = res.CommandRecord
	r.measureOn()
	r.timeout = res.Timeout
	if a := res.Replaced; a != nil {
		r.record.Code, r.record.Cancelled = &a.Code, a.Cancelled
	}
	if res.Code = r.record.Code; res.Code != nil {
		r.reported, r.code = true, *res.Code
		r.c.reported.Store(true)
		return nil
	}
	r.asked = "g" + r.seq // by repeat, which is due at once
	r.answerBy = r.lastOut.Add(lastDoubt)
	// What was to end the command has begun to: whatever is reported now comes of that.
	if r.timeout != "" {
		r.begin(syscall.SIGTERM, r.c.Grace, r.lastOut)
	} else if r.cancel = r.c.cancelled(); r.cancel != nil {
		r.begin(r.cancel.sig, r.cancel.grace, r.lastOut)
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
		b = strconv.AppendInt(append(b, op...), int64(r.lane.end(i)), 10)
		b = append(b, '"')
	}
	return string(b)
}

// feed gives the command what its stdin takes now.
func (r *run) feed() {
	r.s.calls.begin()
	defer r.s.calls.end()
	r.inMore = r.in.feed()
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
	if r.p.flood.pauses() {
		r.fds[pollControl].Fd = -1
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
	if r.p.flood.pauses() {
		soonest(r.p.flood.until)
	}
	if r.line != nil {
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
	if r.in != nil && (fds[pollIn].Revents != 0 || fds[pollWake].Revents != 0 || r.inMore && r.in.lonely()) {
		r.feed()
	}
	asked := r.c.requests()
	if asked.nudged && r.c.Nudged != nil {
		r.c.Nudged()
	}
	r.killed = r.killed || asked.killed
	now := time.Now()
	for _, q := range asked.signals {
		q.told <- r.signal(q.sig, now)
	}
	if r.line != nil && !r.died && r.deliver(r.line, now) != nil {
		_ = r.p.child.Signal(syscall.SIGKILL) // as where attempt meets it: it cannot even read its end
	}
	if asked.cancel != nil && r.cancel != asked.cancel && !r.reported {
		r.stop(asked.cancel, now)
	}
	if r.end == nil && !r.reported && !r.died {
		r.remind(now)
		switch {
		case asked.expired != "": // the guard has begun to end it
			r.expire(asked.expired, now)
		case !now.Before(r.suspect):
			r.mistrust(now)
		case r.mayNotHaveBegun(now): // its time has not, either
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
		case st.Signal == unix.SIGXFSZ && r.p.exit != nil && r.p.kind.name != "bash": // the snapshot of its EXIT trap was too large for its ulimit -f
			o.Code = *r.p.exit & 0xff
		case st.Signal != 0: // before the report: bash runs its EXIT trap when SIGSEGV ends it, too, with the $? of before
			o.Code = signalCode(st.Signal)
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
		o.Code = signalCode(sig)
	}
	if sig := codeSignal(o.Code); sig != 0 {
		o.Signal = signalName(sig)
	}
	if a := r.record.Replaced; a != nil {
		o.Died, o.Restored, o.Lost = true, true, a.Lost
	} else if r.died || r.end != nil || r.aborted {
		s.after(r, &o)
	}
	if len(r.stayed) > 0 && r.end == nil {
		o.Background = r.others()
		o.Linger = r.linger()
		s.partWith(r)
	}
	_, after := r.wrapped()
	if after != "" && s.p != nil {
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
	if !o.Died || after != "" && !o.Postponed { // else the shell has been put back, and the snapshot of that is asked for
		s.st.commandEnded()
	}
	o.Dir = s.Dir()
	if len(r.stayed) == 0 && !o.Died && r.end == nil && r.lane.open() { // nobody else has these pipes
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
