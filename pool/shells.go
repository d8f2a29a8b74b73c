package pool

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"trl/protocol"
	"trl/runtime"
)

// usualShells are allowed when the operator names none (PROTOCOL.md §3).
var usualShells = []string{"sh", "bash", "dash", "zsh", "ash", "busybox"}

// shells is which programs may be a session's shell.
type shells struct {
	path         []string                   // the directories of the base environment's PATH
	allowed      []string                   // paths or names
	defaultShell string                     // the default, path or name; allowed
	found        *atomic.Pointer[string]    // where the default was found: looking costs a dozen stats
	cached       *atomic.Pointer[shellList] // what present found last: that costs a hundred, and clients may ask as often as they like
}

func newShells(c Config) shells {
	s := shells{allowed: slices.Clone(c.Shells), defaultShell: c.DefaultShell, found: new(atomic.Pointer[string]), cached: new(atomic.Pointer[shellList])}
	if len(s.allowed) == 0 {
		s.allowed = slices.Clone(usualShells)
	}
	s.allowed = append(s.allowed, c.DefaultShell)
	for _, v := range c.BaseEnv {
		if dirs, ok := strings.CutPrefix(v, "PATH="); ok {
			s.path = filepath.SplitList(dirs)
		}
	}
	return s
}

// resolve gives the path of the shell asked for, "" being the default: absolute, existing, executable and allowed.
func (s shells) resolve(shell string) (string, error) {
	if shell == "" {
		if path := s.found.Load(); path != nil {
			return *path, nil
		}
		path, err := s.resolve(s.defaultShell)
		if err == nil {
			s.found.Store(&path)
		}
		return path, err
	}
	path, info := s.find(shell)
	if info == nil {
		return "", protocol.Errorf(protocol.ShellNotFound, "no such shell").With("shell", shell)
	}
	for _, a := range s.allowed {
		// Two names of one file are one shell (/bin/sh and /usr/bin/sh), but only under one base name: every busybox
		// applet is the same file as its ash.
		if filepath.Base(a) != filepath.Base(path) {
			continue
		}
		allowed, other := s.find(a)
		switch {
		case other == nil || allowed != path && !os.SameFile(info, other):
		case allowed == path || slices.Contains(s.path, filepath.Dir(path)):
			return path, nil
		default: // another name, perhaps in a directory of a session: it is not used again
			return allowed, nil
		}
	}
	return "", protocol.Errorf(protocol.ShellNotAllowed, "shell is not on the server's list").With("shell", shell)
}

// find is nil when there is no such program.
func (s shells) find(shell string) (string, fs.FileInfo) {
	if filepath.IsAbs(shell) {
		return findProgram(filepath.Clean(shell))
	}
	for _, dir := range s.path {
		if !filepath.IsAbs(dir) || strings.Contains(shell, "/") {
			continue
		}
		if path, info := findProgram(filepath.Join(dir, shell)); info != nil {
			return path, info
		}
	}
	return "", nil
}

func findProgram(path string) (string, fs.FileInfo) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", nil
	}
	return path, info
}

// present is the allowed shells that exist.
func (s shells) present() []string {
	if last := s.cached.Load(); last != nil && time.Since(last.at) < shellListMaxAge {
		return slices.Clone(last.paths)
	}
	paths := []string{}
	for _, a := range s.allowed {
		if path, info := s.find(a); info != nil && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	s.cached.Store(&shellList{slices.Clone(paths), time.Now()})
	return paths
}

// A shellList is which shells were there when somebody looked.
type shellList struct {
	paths []string
	at    time.Time
}

// shellListMaxAge is how old a sight may be. Shells are installed by hand.
const shellListMaxAge = time.Second

// resolveFor is resolve for who's client, whose path may be on a file system that does not answer.
func (s shells) resolveFor(who, shell string) (string, error) {
	if shell == "" {
		return s.resolve("")
	}
	path, err := runtime.Ask(runtime.Question{Who: who, Op: runtime.OpLookUp, Path: shell}, func() (string, error) { return s.resolve(shell) })
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return "", unansweredFault(e, protocol.ShellNotFound, "shell")
	}
	return path, err
}

// checkDir wants a directory. Where we may not look, the session's user may, and its shell will tell.
func checkDir(who, dir string) error {
	if err := runtime.AskEnterable(who, dir); err != nil && !errors.Is(err, fs.ErrPermission) {
		return dirFault(dir, err)
	}
	return nil
}

// dirFault tells a client why a directory cannot be entered.
func dirFault(dir string, err error) *protocol.Error {
	if e, ok := errors.AsType[*fs.PathError](err); ok && runtime.Unanswered(err) {
		return unansweredFault(e, protocol.WorkingDirNotFound, "working_dir")
	}
	return errNoDir(dir).WithCause(err)
}

// unansweredFault is about a path, of a field, whose file system does not answer.
func unansweredFault(e *fs.PathError, code protocol.Code, field string) *protocol.Error {
	if errors.Is(e, syscall.EAGAIN) {
		return protocol.Errorf(protocol.LimitExceeded, "too many paths that do not answer are being looked up").With(field, e.Path).WithCause(e)
	}
	return protocol.Errorf(code, "%s does not answer", field).With(field, e.Path).WithCause(e)
}

func errNoDir(dir string) *protocol.Error {
	return protocol.Errorf(protocol.WorkingDirNotFound, "working_dir cannot be entered").With("working_dir", dir)
}

// isDirError: the error is about the directory that was to be entered, not about something of the server's.
func isDirError(e *fs.PathError) bool { return e.Op == "chdir" || e.Op == "stat" }

// shellFault tells a client why there is no shell in dir.
func shellFault(err error, dir string) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	if e := limitFault(err); e != nil {
		return e
	}
	if errors.Is(err, runtime.ErrKeeperGone) {
		return errKeeperGone(err)
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok && isDirError(e) && e.Path == dir {
		return dirFault(dir, err)
	}
	// execve says no more than this of a directory that has gone since somebody looked; the shell itself is still there.
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Op == "spawn" && dir != "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		if _, there := findProgram(e.Path); there != nil {
			return errNoDir(dir).WithCause(err)
		}
	}
	if runtime.Scarce(err) {
		return protocol.Errorf(protocol.LimitExceeded, "server or session is out of processes, memory or descriptors").WithCause(err)
	}
	return protocol.Errorf(protocol.ShellFailed, "shell cannot be used").WithCause(err)
}

// errKeeperGone tells a client that nothing is left. The gateway is about to end, too.
func errKeeperGone(err error) *protocol.Error {
	return protocol.Errorf(protocol.SessionLost, "the keeper is gone, and every session with it; start trl serve again").WithCause(err)
}

// PresentShells is the allowed shells of a pool with this configuration that exist on this machine.
func PresentShells(c Config) []string { return newShells(c).present() }
