package shells

import (
	"errors"
	"io/fs"
	"syscall"

	"trl/protocol"
	"trl/runtime/own"
	"trl/runtime/slowfs"
	"trl/runtime/stream"
)

// Fault tells a client why there is no shell in dir.
func Fault(err error, dir string) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*own.LimitError](err); ok {
		return noLimit(e).WithCause(err)
	}
	if errors.Is(err, own.ErrKeeperGone) {
		return KeeperGone(err)
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok && isDirError(e) && e.Path == dir {
		return dirFault(dir, err)
	}
	// If a directory has gone since it was checked, execve fails with the same error as for a program that is not there.
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Op == "spawn" && dir != "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		if _, there := findProgram(e.Path); there != nil {
			return noDir(dir).WithCause(err)
		}
	}
	if own.Scarce(err) {
		return protocol.Errorf(protocol.LimitExceeded, "server or session is out of processes, memory or descriptors").WithCause(err)
	}
	return protocol.Errorf(protocol.ShellFailed, "shell cannot be used").WithCause(err)
}

// CommandFault tells a client why its command, process or terminal did not start.
func CommandFault(err error) *protocol.Error {
	if errors.Is(err, stream.ErrNoTerminal) {
		return protocol.Errorf(protocol.LimitExceeded, "server is out of terminals or descriptors").WithCause(err)
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok && isDirError(e) {
		return dirFault(e.Path, err)
	} else if ok && e.Op == slowfs.OpLookUp {
		return noAnswer(e, protocol.ShellFailed, "command")
	}
	return Fault(err, "")
}

// KeeperGone tells a client that no session is left. The gateway is about to end, too.
func KeeperGone(err error) *protocol.Error {
	return protocol.Errorf(protocol.SessionLost, "the keeper is gone, and every session with it; start trl serve again").WithCause(err)
}

// IsDirFault reports whether err is about the directory that was to be entered, and not about something of the server's.
func IsDirFault(err error) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	return ok && isDirError(e)
}

func isDirError(e *fs.PathError) bool { return e.Op == "chdir" || e.Op == "stat" }

// dirFault tells a client why a directory cannot be entered.
func dirFault(dir string, err error) *protocol.Error {
	if e, ok := errors.AsType[*fs.PathError](err); ok && slowfs.Unanswered(err) {
		return noAnswer(e, protocol.WorkingDirNotFound, "working_dir")
	}
	return noDir(dir).WithCause(err)
}

func noDir(dir string) *protocol.Error {
	return protocol.Errorf(protocol.WorkingDirNotFound, "working_dir cannot be entered").With("working_dir", dir)
}

// noAnswer tells a client that the file system of a path does not answer. field is the request's field with the path.
func noAnswer(e *fs.PathError, code protocol.Code, field string) *protocol.Error {
	if errors.Is(e, syscall.EAGAIN) {
		return protocol.Errorf(protocol.LimitExceeded, "too many paths that do not answer are being looked up").With(field, e.Path).WithCause(e)
	}
	return protocol.Errorf(code, "%s does not answer", field).With(field, e.Path).WithCause(e)
}

func noLimit(e *own.LimitError) *protocol.Error {
	return protocol.Errorf(protocol.NotSupported, "limits.%s cannot be enforced here", e.Limit).
		With("field", "limits."+e.Limit).With("reason", e.Why)
}
