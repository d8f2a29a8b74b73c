// Package shells checks with what a session's shell may start (program, directory, environment, limits), and tells clients why one cannot.
package shells

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"trl/protocol"
	"trl/runtime/own"
	"trl/runtime/slowfs"
)

// usualShells are allowed if the operator names none (PROTOCOL.md, Sessions).
var usualShells = []string{"sh", "bash", "dash", "zsh", "ash", "busybox"}

// presentMaxAge is how long an answer of Present is used again. Shells are installed by hand.
const presentMaxAge = time.Second

// List is the programs that may be a session's shell.
type List struct {
	path         []string // the directories of the base environment's PATH
	allowed      []string // paths or names
	defaultShell string   // path or name; allowed

	found   atomic.Pointer[string]  // the default's path; finding it costs a dozen calls of stat
	present atomic.Pointer[present] // the last answer of Present, which costs a hundred; clients may ask as often as they like
}

type present struct {
	paths []string
	at    time.Time
}

// NewList makes the list from the operator's settings: the allowed shells, or none for the usual ones, the default, and the environment of
// sessions.
func NewList(allowed []string, defaultShell string, baseEnv []string) *List {
	l := &List{allowed: slices.Clone(allowed), defaultShell: defaultShell}
	if len(l.allowed) == 0 {
		l.allowed = slices.Clone(usualShells)
	}
	l.allowed = append(l.allowed, defaultShell)
	for _, v := range baseEnv {
		if dirs, ok := strings.CutPrefix(v, "PATH="); ok {
			l.path = filepath.SplitList(dirs)
		}
	}
	return l
}

// Default returns the path of the default shell.
func (l *List) Default() (string, error) {
	if path := l.found.Load(); path != nil {
		return *path, nil
	}
	path, err := l.resolve(l.defaultShell)
	if err == nil {
		l.found.Store(&path)
	}
	return path, err
}

// Resolve returns the absolute path of a shell that a client of who's asks for, "" for the default. The shell exists, is executable and is
// allowed. The path may be on a file system that does not answer.
func (l *List) Resolve(who, name string) (string, error) {
	if name == "" {
		return l.Default()
	}
	path, err := slowfs.Ask(slowfs.Question{Who: who, Op: slowfs.OpLookUp, Path: name}, func() (string, error) { return l.resolve(name) })
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return "", noAnswer(e, protocol.ShellNotFound, "shell")
	}
	return path, err
}

func (l *List) resolve(shell string) (string, error) {
	path, info := l.find(shell)
	if info == nil {
		return "", protocol.Errorf(protocol.ShellNotFound, "no such shell").With("shell", shell)
	}
	for _, a := range l.allowed {
		// Two names of one file are one shell (/bin/sh and /usr/bin/sh), but only if their last elements are equal: every busybox applet is the
		// same file as its ash.
		if filepath.Base(a) != filepath.Base(path) {
			continue
		}
		allowed, other := l.find(a)
		switch {
		case other == nil || allowed != path && !os.SameFile(info, other):
		case allowed == path || slices.Contains(l.path, filepath.Dir(path)):
			return path, nil
		default: // the client's name may be in a directory of a session, so it is not used again
			return allowed, nil
		}
	}
	return "", protocol.Errorf(protocol.ShellNotAllowed, "shell is not on the server's list").With("shell", shell)
}

// find returns the path of a program, and nil if there is none.
func (l *List) find(shell string) (string, fs.FileInfo) {
	if filepath.IsAbs(shell) {
		return findProgram(filepath.Clean(shell))
	}
	for _, dir := range l.path {
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

// Present returns the paths of the allowed shells that exist.
func (l *List) Present() []string {
	if last := l.present.Load(); last != nil && time.Since(last.at) < presentMaxAge {
		return slices.Clone(last.paths)
	}
	paths := []string{}
	for _, a := range l.allowed {
		if path, info := l.find(a); info != nil && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	l.present.Store(&present{slices.Clone(paths), time.Now()})
	return paths
}

// CheckDir checks that a session of who's can start in a directory. If we may not look into it, the session's user may; its shell will tell.
func CheckDir(who, dir string) error {
	if err := slowfs.Enterable(who, dir); err != nil && !errors.Is(err, fs.ErrPermission) {
		return dirFault(dir, err)
	}
	return nil
}

// Limits returns the limits of a session that asks for some: each is the server's, which is most, or a lower one. A client that asks for more
// than the server gives finds the server's limit in the answer. A limit that cannot be enforced here is refused, because a client must not
// believe in it; unenforceable says why.
func Limits(asked *protocol.Limits, most protocol.Limits, unenforceable map[string]string) (protocol.Limits, error) {
	if asked == nil {
		return most, nil
	}
	for _, limit := range asked.Names() {
		if why, ok := unenforceable[limit]; ok {
			return protocol.Limits{}, noLimit(&own.LimitError{Limit: limit, Why: why})
		}
	}
	return protocol.Limits{
		MemoryBytes: lower(asked.MemoryBytes, most.MemoryBytes), Pids: lower(asked.Pids, most.Pids), CPU: lower(asked.CPU, most.CPU),
		FileSizeBytes: lower(asked.FileSizeBytes, most.FileSizeBytes), OpenFiles: lower(asked.OpenFiles, most.OpenFiles),
	}, nil
}

// lower returns the lower of two limits; 0 is no limit.
func lower[T int64 | float64](asked, most T) T {
	if asked == 0 || most > 0 && asked > most {
		return most
	}
	return asked
}
