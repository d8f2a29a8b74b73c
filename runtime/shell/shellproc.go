package shell

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/control"
	"trl/runtime/crashpoint"
	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/procfs"
	"trl/runtime/stream"
)

// bootTimeout is how long a shell's start may take. It usually takes 2 ms; the limit is long so that an overloaded machine loses no
// session.
const bootTimeout = 20 * time.Second

// muteLooks is how often a starting shell must be seen asleep, and mute, before it counts as unusable. On a machine that is very busy it may wait for a
// process of its own for some of them.
const muteLooks = 5

// shellProc is one process of a session's shell. newShellProc makes it, start or Keeper.StartSession spawns it, and it can be used
// after boot. One goroutine at a time uses it (the caller of Run). It ends by its own exit or by KILL; release closes its
// descriptors.
type shellProc struct {
	dialect      *dialect.Dialect
	child        own.KeptChild
	scope        own.KeptScope // holds the shell and what the running command starts
	script       int           // write end of the script channel
	ctlR         int           // read end of the control pipe, from which reports come
	ctlW         int           // its write end, which the shell opens by its path; -1 if ctlR is both ends, and if the keeper is another process
	text         int           // memfd with the text of the running command
	scriptReader int           // the shell's end of the script channel; -1 once it is spawned
	argv         []string      // set once
	held         []int         // the keeper's numbers for script, ctlR, ctlW and text; nil before setChannels
	control      control.Parser
	textSize     int            // upper bound of the size of text
	traps        bool           // the shell may have traps that would run for our lines; false until its first command
	stdinPath    string         // path of the shell's stdin in /proc, used by stdin
	poll         *stream.Poller // the session's poller, used by wait
	pipeCalls    *stream.Calls  // the session's counter, see pipeCalls
}

// Indexes of shellProc.held.
const (
	heldScript = iota
	heldCtlR
	heldCtlW
	heldText
)

// newShellProc makes a shellProc with its script channel. A caller that does not get the shell to run calls abandon.
func newShellProc(path string) (p *shellProc, err error) {
	p = &shellProc{script: -1, ctlR: -1, ctlW: -1, text: -1, scriptReader: -1}
	if p.dialect, p.argv, err = dialect.Of(path); err != nil {
		return nil, err
	}
	var ch [2]int
	if err := unix.Pipe2(ch[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("script channel: %w", err)
	}
	p.scriptReader, p.script = ch[0], ch[1]
	flags := unix.O_NONBLOCK
	if p.dialect.PacketChannel {
		flags |= unix.O_DIRECT
	}
	if _, err := unix.FcntlInt(uintptr(p.script), unix.F_SETFL, flags); err != nil {
		p.release()
		return nil, fmt.Errorf("script channel: %w", err)
	}
	return p, nil
}

// channels are the channels that the shell opens: the control pipe, and the text of a command.
var channels = []own.ChannelKind{own.BothPipe, own.MemFile}

// setChannels sets p's channels. script is the keeper's number for the script channel, which it holds, too.
func (p *shellProc) setChannels(group own.KeptGroup, made []own.Channel, script int) {
	p.ctlR, p.ctlW, p.text = made[0].R, made[0].W, made[1].W
	p.countOwnReadsOut()
	p.held = []int{script, made[0].HeldR, made[0].HeldW, made[1].HeldW}
	if group.HeldElsewhere() {
		descriptor.Close(&p.ctlW)
	}
}

// start spawns the shell in a new scope.
func (p *shellProc) start(c ShellConfig, group own.KeptGroup) error {
	err := own.Concurrently(
		func() (err error) {
			p.scope, err = group.NewScope()
			return err
		},
		func() error {
			made, held, err := group.MakeChannels(channels, p.script)
			if err != nil {
				return fmt.Errorf("control pipe: %w", err)
			}
			p.setChannels(group, made, held[0])
			return nil
		})
	if err != nil {
		return err
	}
	spec, done, err := p.spec(c)
	if err != nil {
		return err
	}
	defer done()
	p.child, err = p.scope.Spawn(spec)
	return err
}

// spec returns how to spawn the shell. The caller calls done after the spawn, also if it failed.
func (p *shellProc) spec(c ShellConfig) (spec own.Spec, done func(), err error) {
	null, err := devNull()
	if err != nil {
		return own.Spec{}, nil, err
	}
	reader := os.NewFile(uintptr(p.scriptReader), "script")
	p.scriptReader = -1
	files := []*os.File{null, null, null, reader}
	if p.dialect.Stdin != "" {
		files = []*os.File{reader, null, null}
	}
	done = func() { reader.Close() }
	return own.Spec{Path: c.Path, Argv: append(p.argv, p.dialect.Args...), Env: c.Env, Dir: c.Dir, Files: files}, done, nil
}

// devNull is the stdio of all shells while they run no command. It is one open file, so that stdin can recognize it.
var devNull = sync.OnceValues(func() (*os.File, error) { return os.OpenFile(os.DevNull, os.O_RDWR, 0) })

// abandon kills and releases a shell whose start failed.
func (p *shellProc) abandon(group own.KeptGroup) {
	if p.child != nil {
		_ = p.child.Signal(unix.SIGKILL)
	}
	p.release()
	if p.held != nil && group != nil { // without a group nothing is held
		group.Drop(p.held...)
	}
	if p.scope != nil {
		_ = p.scope.Kill(0)
		p.scope.Remove()
	}
}

// boot makes a spawned shell read the boot text and then state, if there is one. Without state the shell reports as soon as it has
// opened the text. It reads the rest while we and the client go on; later lines wait until it is done.
func (s *Shell) boot(p *shellProc, group own.KeptGroup, state []byte) error {
	p.pipeCalls = &s.pipeCalls
	text := p.dialect.Boot
	if state == nil {
		text = "\\printf 'e boot 0\\n' >@P@/@C@\n" + text
	}
	text = strings.NewReplacer("@P@", group.Dir(), "@C@", strconv.Itoa(p.held[heldCtlW]),
		"@X@", strconv.Itoa(s.state.HeldExit()), "@E@", dialect.EndMark).Replace(text)
	boot, done, err := own.ShareText(group, []byte(text))
	if err != nil {
		return err
	}
	defer done()
	line := ". " + boot
	if state == nil {
		line += "\n__trl_n='boot 0';" // a second line, because most shells read byte by byte and can run the first line without waiting for it
	} else {
		told := fmt.Sprintf("\n%s 's state %%s\\n' \"$__trl_l\" >|%s/%d\n", p.dialect.Call("printf"), group.Dir(), p.held[heldCtlW])
		st, done, err := own.ShareText(group, append(slices.Clip(state), told...))
		if err != nil {
			return err
		}
		defer done()
		line += fmt.Sprintf(";%s %s;%s", p.dialect.Source, st, p.dialect.InitVars)
	}
	if p.dialect.Stdin == "" {
		line += "\\exec 3<&-;"
	}
	if state == nil {
		p.send(line + "\n")
	} else {
		p.send(line + p.report(p.dialect.ReportCall, "boot"))
		p.send(p.report(p.dialect.ResendCall, "boot"))
	}
	p.poll = s.poll
	// If the shell has read every line, sleeps, and reports nothing twice, its state makes it unusable. The caller then tries without state. A shell
	// that runs, or waits for a processor, may still report.
	ready, end := false, time.Now().Add(bootTimeout)
	for mute := 0; !ready && mute < muteLooks && time.Now().Before(end) && !p.dead(); {
		if _, ready = p.awaitVerb('e', "boot", time.Now().Add(firstWedgeInterval)); !ready && p.unread() == 0 {
			if st, _ := procfs.Read(p.child.Pid()); st.State == 'S' {
				mute++
			}
		}
	}
	if !ready {
		_ = p.child.Signal(unix.SIGKILL)
		<-p.child.Exited()
		return fmt.Errorf("shell %s did not start: %v", s.cfg.Path, p.child.Status())
	}
	return nil
}

// closeChannels closes our descriptors of what the keeper holds, too.
func (p *shellProc) closeChannels() {
	for _, fd := range []*int{&p.script, &p.ctlR, &p.text} {
		descriptor.Close(fd)
	}
}

// setText sets the file with a command's text and the keeper's number for it, which is 0 if there is none.
func (p *shellProc) setText(fd, held int) {
	p.text, p.textSize, p.held = fd, 0, slices.Clone(p.held) // the last entry has the old slice
	p.held[heldText] = held
	p.countOwnReadsOut()
}

// countOwnReadsOut keeps our reads of the text out of its access time, so that hasReadText sees only the shell's, which use an open file of its own.
func (p *shellProc) countOwnReadsOut() {
	_, _ = unix.FcntlInt(uintptr(p.text), unix.F_SETFL, unix.O_NOATIME)
}

// release waits for the shell's exit and closes our descriptors of it.
func (p *shellProc) release() {
	for _, fd := range []*int{&p.script, &p.scriptReader, &p.ctlR, &p.ctlW, &p.text} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
	if p.child != nil {
		<-p.child.Exited()
		p.child.Close()
	}
}

// stdin returns the path that a command without stdin of its own opens. It is "" if the shell's own stdin is still /dev/null. After
// `exec <file`, or if we may not look at the shell's descriptors, it is /dev/null.
func (p *shellProc) stdin() string {
	if p.dialect.Stdin != "" {
		return p.dialect.Stdin
	}
	if null, err := devNull(); err == nil && procfs.SameFile(p.child.Pid(), 0, int(null.Fd())) {
		return ""
	}
	if p.stdinPath == "" { // an earlier gateway started the shell, or the kernel has no kcmp
		p.stdinPath = procfs.Path(p.child.Pid(), "/fd/0")
	}
	var room [len(os.DevNull) + 1]byte
	if n, err := unix.Readlink(p.stdinPath, room[:]); err == nil && string(room[:n]) == os.DevNull {
		return ""
	}
	return os.DevNull
}

// report returns the end of a line. It makes the shell report the status of what ran before, by ReportCall or ResendCall.
func (p *shellProc) report(call, seq string) string {
	end := p.dialect.KeepStatus + "\n"
	if !p.traps || !p.dialect.HidesTraps {
		return call + " " + seq + end
	}
	// The first command saves the status, because each further command would run a DEBUG trap.
	return `\builtin trap -p ERR RETURN DEBUG >|"$__trl_x${-:$((__trl_v=$?,0)):0}";\builtin trap - ERR RETURN DEBUG;` + call + " " + seq + " t" + end
}

// send writes one line to the script channel, which has room for at least two lines. Callers with more lines use sendBy.
func (p *shellProc) send(line string) { _ = p.write([]byte(line)) }

// write writes one line, whole or not at all.
func (p *shellProc) write(line []byte) error {
	crashpoint.Here("before a line")
	p.pipeCalls.Enter()
	defer p.pipeCalls.Leave()
	_, err := unix.Write(p.script, line)
	return err
}

// sendBy waits for room until the deadline and sends the line. It returns false if it did not send it. A packet pipe has 16 slots,
// but only two if the pipes of its user exceed the kernel's soft limit (fs.pipe-user-pages-soft).
func (p *shellProc) sendBy(deadline time.Time, line string) bool {
	for {
		switch err := p.write([]byte(line)); err {
		case nil:
			return true
		case unix.EAGAIN, unix.EINTR:
		default:
			return false
		}
		left := time.Until(deadline)
		if left <= 0 || p.dead() {
			return false
		}
		descriptor.PollFor([]unix.PollFd{{Fd: int32(p.script), Events: unix.POLLOUT}, {Fd: int32(p.child.Pidfd()), Events: unix.POLLIN}}, left)
	}
}

// writeText writes a command's text to the memfd that the shell reads.
func (p *shellProc) writeText(text string) error {
	if len(text) < p.textSize {
		if err := unix.Ftruncate(p.text, int64(len(text))); err != nil {
			return fmt.Errorf("memfd: %w", err)
		}
	}
	p.textSize = len(text)
	if err := descriptor.WriteMemfd(p.text, []byte(text)); err != nil {
		return err
	}
	var times [2]unix.Timespec // access time 1970 until the shell reads the text
	_ = descriptor.Futimens(p.text, &times)
	return nil
}

// hasReadText tells whether the shell has begun to read the text since writeText, and so to run it. It is false if that is unknown.
func (p *shellProc) hasReadText() bool {
	var st unix.Stat_t
	return unix.Fstat(p.text, &st) == nil && st.Mtim.Sec == 0 && st.Atim.Sec != 0
}

// unread returns how many bytes in the script channel the shell has not read.
func (p *shellProc) unread() int {
	p.pipeCalls.Enter()
	defer p.pipeCalls.Leave()
	n, err := unix.IoctlGetInt(p.script, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// next returns a report that has arrived. It does not wait.
func (p *shellProc) next() (control.Report, bool) {
	for {
		if r, ok := p.control.Next(); ok {
			return r, true
		}
		if p.control.Flood.Pauses() {
			return control.Report{}, false
		}
		var buf [512]byte
		p.pipeCalls.Enter()
		n, err := unix.Read(p.ctlR, buf[:])
		p.pipeCalls.Leave()
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return control.Report{}, false
		}
		crashpoint.Here("after a report")
		p.control.Add(buf[:n])
	}
}

// wait returns when a report has come, or the shell has exited, or after d; perhaps earlier. It does not wait in a system call,
// which would take a thread for each waiting shell, and Go's monitor checks such threads ten thousand times a second.
func (p *shellProc) wait(d time.Duration) {
	if own := (stream.Watched{Owner: p, FDs: [2]int{p.ctlR, p.child.Pidfd()}}); !p.poll.Watches(stream.SlotShell, own) {
		p.poll.Watch([stream.Slots]stream.Watched{stream.SlotShell: own, stream.SlotPipes: stream.Unwatched, stream.SlotStdin: stream.Unwatched})
	}
	fds := [...]unix.PollFd{{Fd: int32(p.ctlR), Events: unix.POLLIN}, {Fd: int32(p.child.Pidfd()), Events: unix.POLLIN}}
	if p.control.Flood.Pauses() {
		fds[0].Fd = -1
		d = min(d, p.control.Flood.Left())
	}
	p.poll.Wait(fds[:], d)
}

// awaitVerb waits for a report with verb and seq. It returns false if the shell exits or the time is over.
func (p *shellProc) awaitVerb(verb byte, seq string, deadline time.Time) (control.Report, bool) {
	for {
		for {
			r, ok := p.next()
			if !ok {
				break
			}
			if r.Verb == verb && r.Seq == seq {
				return r, true
			}
		}
		left := time.Until(deadline)
		if left <= 0 || p.dead() {
			return control.Report{}, false
		}
		p.wait(left)
	}
}

// dead tells whether the shell has exited. It asks the kernel, not the child reaper: the pidfd is readable from the moment of the
// exit.
func (p *shellProc) dead() bool {
	pidfd := p.child.Pidfd()
	if pidfd < 0 { // the shell rests
		select {
		case <-p.child.Exited():
			return true
		default:
			return false
		}
	}
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, _ := unix.Poll(fds, 0)
	return n > 0
}

// barrier returns true when the shell answers again after an abort. A late abort signal may make the shell drop one line, so barrier
// sends its line again. It returns false if the shell is dead or does not answer in time.
func (p *shellProc) barrier(tag string, bound time.Duration) bool {
	end := time.Now().Add(bound)
	for i := 0; time.Now().Before(end); i++ {
		name := "b" + tag + "." + strconv.Itoa(i)
		if i == 0 || p.unread() == 0 { // no second line before the first was read, because a packet pipe has only 16 slots
			p.send(p.report(p.dialect.ReportCall, name))
		}
		wait := time.Now().Add(20 * time.Millisecond)
		for time.Now().Before(wait) {
			r, ok := p.next()
			if ok && r.Verb == 'e' && strings.HasPrefix(r.Seq, "b"+tag+".") {
				return true
			}
			if !ok {
				if p.dead() {
					return false
				}
				p.wait(max(0, time.Until(wait)))
			}
		}
	}
	return false
}

// ask makes the shell run text as a script and waits for the script's end. ok is false if the shell did not answer.
func (p *shellProc) ask(group own.KeptGroup, tag, text string, bound time.Duration) (status int, ok bool) {
	path, done, err := own.ShareText(group, []byte(text))
	if err != nil {
		return 0, false
	}
	defer done()
	end := time.Now().Add(bound)
	if !p.sendBy(end, p.dialect.Source+" "+path+";"+p.report(p.dialect.ReportCall, tag)) || !p.sendBy(end, p.report(p.dialect.ResendCall, tag)) {
		return 0, false
	}
	r, ok := p.awaitVerb('e', tag, end)
	return r.Val, ok
}
