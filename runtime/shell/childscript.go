package shell

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/dialect"
	"trl/runtime/procfs"
	"trl/runtime/slowfs"
	"trl/runtime/snapshot"
	"trl/runtime/stream"
)

// A background process or a terminal starts as a fresh shell that reads the last snapshot of the session's shell. This file
// has the code that both use for it.

// busyShellWait is how long they wait for the present state of a shell that runs a command. After that they use the last snapshot.
const busyShellWait = 100 * time.Millisecond

// tryTurn takes the shell's turn if it becomes free within busyShellWait, so that the caller can ask for the shell's present state.
// free tells whether it got the turn. If there is no error, the caller must call giveBack.
func (s *Shell) tryTurn() (sp *shellProc, free bool, giveBack func(), err error) {
	giveBack = func() {}
	select {
	case <-s.turn:
		free, giveBack, err = true, s.giveTurn, s.wakeUp()
	case <-time.After(busyShellWait):
		if s.state.Rests() {
			err = unix.EAGAIN // who has the turn does not get its descriptors back
		}
	}
	if sp = s.proc(); err == nil && (sp == nil || s.closing.Load()) {
		err = ErrShellGone
	}
	if err != nil {
		giveBack()
	}
	return sp, free, giveBack, err
}

// startDir returns the directory in which a process or terminal starts: the shell's. If the shell has died, because its command
// is being aborted, the state's script changes to the shell's last directory.
func (s *Shell) startDir(sp *shellProc, cfg ShellConfig, state string) string {
	if !sp.dead() {
		return s.Dir()
	}
	return dirWithoutShell(cfg, state)
}

// dirWithoutShell is startDir after the shell's death.
func dirWithoutShell(cfg ShellConfig, state string) string {
	if state != "" {
		return "/"
	}
	return cfg.Dir
}

// A checkedDir is a directory and the error of entering it, nil if it can be entered.
type checkedDir struct {
	dir string
	err error
}

// checkShellDir checks the shell's working directory. It is called before the shell's turn is taken, because the file system may
// have stopped answering since the shell entered the directory.
func (s *Shell) checkShellDir() checkedDir {
	dir := s.Dir()
	return checkedDir{dir, s.currentGroup().Enterable(dir)}
}

// enterableDir is startDir with a check. A directory that was removed (gone) is entered through the shell's /proc/PID/cwd. A file
// system that does not answer is an error. here is the result of checkShellDir; the check is repeated only if the shell has
// changed its directory since.
func (s *Shell) enterableDir(sp *shellProc, cfg ShellConfig, state string, here checkedDir) (dir string, gone bool, err error) {
	dir, err = s.startDir(sp, cfg, state), here.err
	if dir != here.dir {
		err = s.currentGroup().Enterable(dir)
	}
	switch {
	case err == nil:
		return dir, false, nil
	case slowfs.Unanswered(err):
		return "", false, err
	}
	if dir = procfs.Path(sp.child.Pid(), "/cwd"); s.currentGroup().Enterable(dir) == nil {
		return dir, true, nil
	}
	return dirWithoutShell(cfg, state), false, nil // the shell has died meanwhile
}

// stateScript returns the lines that read the session's state, "" if there is none, and the parts of the state that may be
// missing. hold puts the state into a file. While a command runs, the state is the one before that command.
func (s *Shell) stateScript(sp *shellProc, free bool, hold func([]byte) (int, error)) (script string, lost []string, err error) {
	if free && !sp.dead() {
		if s.state.Wanted() {
			s.snapshot(sp)
		}
		s.awaitSnapshot(sp)
	}
	for end := time.Now().Add(abortTimeout); !free && s.state.Pending() && time.Now().Before(end) && !sp.dead(); {
		time.Sleep(time.Millisecond) // the shell may not have read the running command yet, and writes the snapshot before it
	}
	state, current := s.savedState(sp.dialect, snapshot.Alive)
	if !current {
		lost = slices.Clone(allState)
		if !sp.dead() { // CdBack changes to the shell's directory
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

// changesDir tells whether reading the state may change the directory in which a process was started. A free shell's state does
// not if the directory was removed: its cd fails, and the process stays where it is.
func (s *Shell) changesDir(sp *shellProc, state string, gone, free bool, lost []string) bool {
	return state != "" && !sp.dead() && !(gone && free && !slices.Contains(lost, "variables"))
}

// gateLine returns the line that makes a fresh shell wait until the gate is opened. The shell exits if nobody can open it any more.
func gateLine(k *dialect.Dialect, h *stream.HeldFiles) string {
	return fmt.Sprintf("%s -r __trl_w <%s || exit; unset -v __trl_w\n", k.Call("read"), h.GatePath())
}

// envAndDirScript returns the lines that set a process's or a terminal's own variables and directory. The variables may be secrets,
// and every user can read a process's arguments, so hold puts the variables into a file.
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
