package shell

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"trl/runtime/dialect"
	"trl/runtime/procfs"
)

// A background process, and a terminal, begin as a fresh shell that reads the last snapshot of the session's shell. What
// both need for that is here.

// busyShellWait is how long they wait for the present state of a shell that is at work; then they get the last snapshot.
const busyShellWait = 100 * time.Millisecond

// tryTurn gets the shell, if it is free soon, so that its present state can be asked for. sp is nil when there is no shell.
// The caller calls giveBack.
func (s *Shell) tryTurn() (sp *shellProc, free bool, giveBack func()) {
	giveBack = func() {}
	select {
	case <-s.turn:
		free = true
		giveBack = func() { s.turn <- struct{}{} }
	case <-time.After(busyShellWait):
	}
	if sp = s.proc(); s.closing.Load() {
		sp = nil
	}
	return sp, free, giveBack
}

// startDir is where what begins with this state is to begin: where the shell is. Of one that has died, because its command is
// being ended, the state leads to where it was.
func (s *Shell) startDir(sp *shellProc, cfg ShellConfig, state string) string {
	switch {
	case !sp.dead():
		return s.Dir()
	case state != "":
		return "/"
	}
	return cfg.Dir
}

// A checkedDir is a directory and whether it can be entered.
type checkedDir struct {
	dir string
	err error
}

// checkShellDir asks about the directory that the shell is in. It is called before the shell's turn is taken: the file system may
// have stopped answering since the shell entered it.
func (s *Shell) checkShellDir() checkedDir {
	dir := s.Dir()
	return checkedDir{dir, s.currentGroup().Enterable(dir)}
}

// enterableDir is where what begins with this state is to begin. A directory that is gone is entered by way of the shell; one
// that does not answer is an error. here is what checkShellDir has said: only a shell that has moved since is asked about again.
func (s *Shell) enterableDir(sp *shellProc, cfg ShellConfig, state string, here checkedDir) (dir string, gone bool, err error) {
	dir, err = s.startDir(sp, cfg, state), here.err
	if dir != here.dir {
		err = s.currentGroup().Enterable(dir)
	}
	switch {
	case err == nil:
		return dir, false, nil
	case Unanswered(err):
		return "", false, err
	}
	return procfs.Path(sp.child.Pid(), "/cwd"), true, nil
}

// stateScript returns lines that read the session's state, which hold keeps, "" when there is none; and what of the state of the
// last command that has ended is not in it. The state of a shell that is at work is the one before the running command.
func (s *Shell) stateScript(sp *shellProc, free bool, hold func([]byte) (int, error)) (script string, lost []string, err error) {
	if free && !sp.dead() {
		if s.state.wanted() {
			s.snapshot(sp)
		}
		if s.state.pending() { // it is done when the shell answers
			s.seq++
			end := time.Now().Add(bootTimeout)
			sp.sendBy(end, sp.report(sp.dialect.ReportCall, strconv.Itoa(s.seq)))
			sp.awaitVerb('e', strconv.Itoa(s.seq), end)
		}
	}
	for end := time.Now().Add(abortTimeout); !free && s.state.pending() && time.Now().Before(end) && !sp.dead(); {
		time.Sleep(time.Millisecond) // the shell has not come to the running command yet
	}
	state, current := s.savedState(sp.dialect, nil)
	if !current {
		lost = slices.Clone(allState)
		if !sp.dead() { // cdBack leads to its directory
			lost = slices.DeleteFunc(lost, func(x string) bool { return x == "working_dir" })
		}
	}
	if state == nil {
		return "", lost, nil
	}
	fd, err := hold(state)
	if err != nil {
		return "", nil, err
	}
	traps := "EXIT DEBUG ERR RETURN 40"
	switch sp.dialect.Name {
	case "zsh":
		traps = "EXIT DEBUG ZERR"
	case "dash", "ash":
		traps = "EXIT"
	}
	return fmt.Sprintf("%s %s/%d 2>/dev/null\n{ %s - %s; } 2>/dev/null\n", sp.dialect.Source, s.currentGroup().Dir(), fd, sp.dialect.Call("trap"), traps), lost, nil
}

// changesDir says whether the state may lead to another directory than the one that a process is started in. The state of a free
// shell in a directory that is gone cannot enter that one, and so stays.
func (s *Shell) changesDir(sp *shellProc, state string, gone, free bool, lost []string) bool {
	return state != "" && !sp.dead() && !(gone && free && !slices.Contains(lost, "variables"))
}

// envAndDirScript returns the lines that give a process or a terminal its own variables and directory. The variables may be secrets:
// hold keeps them, since everybody may read the arguments of a process.
func envAndDirScript(k *dialect.Dialect, env map[string]*string, dir, held string, hold func([]byte) (int, error)) (script string, err error) {
	if len(env) > 0 {
		fd, err := hold([]byte(dialect.EnvScript(k, env)))
		if err != nil {
			return "", err
		}
		script = fmt.Sprintf("%s %s/%d\n", k.Source, held, fd)
	}
	if dir != "" {
		script += dialect.CdLine(k, dir) + " || exit 1\n"
	}
	return script, nil
}
