package runtime

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A shell process that has died is replaced by one with the state of its last snapshot. These are taken between commands, at
// the latest before one that may be the shell's end.

// snapshotAge is how old the last snapshot may get while commands follow each other without a rest.
const snapshotAge = 250 * time.Millisecond

// Rest takes a snapshot when one is due. It returns at once, with the time after which to call it again, 0 for none.
func (s *Shell) Rest() time.Duration {
	select {
	case <-s.turn:
	default:
		return 0
	}
	defer func() { s.turn <- struct{}{} }()
	p := s.proc()
	if p == nil || s.closing.Load() || !s.st.dirty {
		return 0
	}
	// 0.3 ms for a normal session, but 5 ms for 500 functions and 0.2 s for a 50 MB variable: large ones rest longer.
	if wait := time.Duration(s.st.size()/(64<<10)) * 20 * time.Millisecond; time.Since(s.clean) < wait {
		return wait
	}
	if p.unread() > 0 { // it has not come to it yet that its last command is over
		return min(max(time.Since(s.clean)/4, time.Millisecond), time.Minute) // on a busy machine that takes moments; one that is stopped is not asked often
	}
	s.snapshot(p)
	return 0
}

// snapshot asks for one, unless its file would be larger than the shell may write: that would end it (`ulimit -f`).
func (s *Shell) snapshot(p *shellProc) {
	var most unix.Rlimit
	err := unix.Prlimit(p.child.Pid(), unix.RLIMIT_FSIZE, nil, &most)
	if s.clean = time.Now(); err == nil && most.Cur < uint64(max(2*s.st.size(), leastSnapshot)) {
		s.stale = true
		s.st.dirty = false
		return
	}
	s.stale = false
	s.st.ask(p)
}

// leastSnapshot is more than what a plain shell has to say.
const leastSnapshot = 32 << 10

// mayDefine says whether text may define a function, itself or by what it reads.
func mayDefine(text string) bool {
	for _, sign := range []string{". ", ".\t", ".\\", "eval"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	for found := true; found; {
		if _, text, found = strings.Cut(text, "("); found && strings.HasPrefix(strings.TrimLeft(text, " \t"), ")") {
			return true
		}
	}
	return false
}

// allState is all that a state has.
var allState = []string{"variables", "functions", "aliases", "options", "working_dir"}

// onecmd is how a snapshot of bash says `set -t`.
const onecmd = "\nset -o onecmd\n"

// state is the script that makes a fresh shell what the last snapshot says, nil when there is none.
func (s *Shell) state(k *kind, exited bool) []byte {
	script := s.st.script(k, exited)
	if script == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(freed(k, s.cfg.Env), script...)
}

// legacy is the script that makes the next process what dead was, without what would end that one, too; and what is lost.
func (s *Shell) legacy(dead *shellProc) (script []byte, lost []string) {
	script = s.state(dead.kind, true)
	if dead.exit != nil && *dead.exit != 0 {
		for _, opt := range []string{"errexit", "nounset"} {
			if strings.Contains(string(script), "set -o "+opt+"\n") {
				lost = append(lost, opt)
			}
		}
		if len(lost) > 0 {
			script = append(script, "\n"+dead.kind.call("set")+" +e +u\n"...)
		}
	}
	if at := bytes.LastIndex(script, []byte(onecmd)); at >= 0 { // a shell with it would end after its first line
		script[at+len("\nset ")] = '+'
		lost = append(lost, "onecmd")
	}
	if s.stale && dead.exit == nil {
		lost = slices.Clone(allState)
	} else if !dead.kind.lists && s.funcs {
		lost = append(lost, "functions")
	}
	return script, lost
}

// putBack replaces dead by a new process with its last state, and adds to after what that lost.
func (s *Shell) putBack(dead *shellProc, after *Replaced) (err error) {
	<-dead.child.Exited()
	s.dropLane() // it may have complained into them when it died
	for {
		if _, ok := dead.next(); !ok { // the exit report may still be in the pipe
			break
		}
	}
	cause := "killed"
	if dead.exit != nil {
		cause = "exited"
	}
	script, lost := s.legacy(dead)
	p, err := s.spawnPatiently(script)
	if err != nil && script != nil {
		s.b.Log.Warn().Err(err).Str("session", s.cfg.ID).Msg("state could not be put back")
		lost, script = slices.Clone(allState), nil
		p, err = s.spawn(nil)
		s.st.forget()
	}
	switch {
	case err != nil || script == nil:
	case p.state == nil && p.kind.lists: // there is a function that does not read back
		lost = Union(lost, []string{"functions", "options"})
	case p.state == nil:
		lost = Union(lost, []string{"aliases", "options"})
	case *p.state != 0:
		lost = Union(lost, []string{"working_dir"})
	}
	s.mu.Lock()
	s.p = p
	if !slices.Contains(s.left, dead.cell) {
		s.left = append(s.left, dead.cell)
	}
	s.mu.Unlock()
	after.Lost = lost
	s.tell(after)
	if dead.cell.Remove() { // not before: a gateway that took over in between would look for the dead shell in it
		s.mu.Lock()
		s.left = slices.DeleteFunc(s.left, func(c KeptCell) bool { return c == dead.cell })
		s.mu.Unlock()
	}
	dead.release()
	s.held().Drop(dead.held...)
	s.st.restored()
	s.trap, s.stale = false, false
	s.b.Metrics.ShellRestores.WithLabelValues(cause).Inc()
	if p != nil {
		s.snapshot(p)
	}
	return err
}

// What a shell is put back with may all be in use, by the session's own user first of all: it comes back soon, as a rule,
// and the session is worth the wait.
const (
	scarcePatience = 5 * time.Second
	scarcePause    = 50 * time.Millisecond
)

// Scarce: err says that there are not enough processes, descriptors or memory at the moment.
func Scarce(err error) bool {
	return slices.ContainsFunc([]error{unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOMEM}, func(e error) bool { return errors.Is(err, e) })
}

// spawnPatiently is spawn for a session that has something to lose.
func (s *Shell) spawnPatiently(script []byte) (p *shellProc, err error) {
	for begin := time.Now(); ; time.Sleep(scarcePause) {
		p, err = s.spawn(script)
		if err == nil || !Scarce(err) || s.closing.Load() || time.Since(begin) > scarcePatience {
			return p, err
		}
	}
}

// Revive replaces a shell that died while no command ran.
func (s *Shell) Revive() (lost []string, err error) {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	p := s.proc()
	if p == nil || s.closing.Load() {
		return nil, ErrShellGone
	}
	if !p.dead() {
		return nil, nil
	}
	var after Replaced
	err = s.putBack(p, &after)
	return after.Lost, err
}

// after brings the shell back to its channel once a command was aborted, and puts another in its place when it is dead.
func (s *Shell) after(r *run, o *Outcome) {
	if !r.died {
		if r.p.barrier(r.seq, stubborn) {
			return
		}
		_ = r.p.child.Signal(syscall.SIGKILL)
		<-r.p.child.Exited()
		o.Died = true
		r.died = true
	}
	if s.closing.Load() || !s.restore.Load() {
		return
	}
	after := Replaced{Seq: r.number, Code: o.Code, Cancelled: o.Cancelled}
	if err := s.putBack(r.p, &after); err != nil {
		o.Err = errors.Join(o.Err, ErrShellGone, err)
		return
	}
	r.record.Replaced = &after
	o.Restored, o.Lost = true, after.Lost
}
