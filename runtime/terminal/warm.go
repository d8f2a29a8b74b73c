package terminal

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/stream"
)

// A Warm terminal has a bash that nobody has asked for yet. The bash has started and waits at its startup file, which is a pipe. So it reads the user's
// files later, in the terminal's directory and size. Only the system's own startup file (/etc/bash.bashrc) may have been read before. StartWarm makes a
// Warm. One call of Use or End is its end. Both may be called with nil.
type Warm struct {
	First
	spec own.Spec
	text int // the write end of the pipe; -1 once closed
}

// StartWarm starts the bash that spec describes. Its arguments name descriptor 3 as its startup file.
func StartWarm(group own.KeptGroup, logs *stream.Logs, spec own.Spec) (*Warm, error) {
	fd, err := descriptor.HalfPipe(1)
	if err != nil {
		return nil, err
	}
	startup := os.NewFile(uintptr(fd[0]), "startup")
	defer startup.Close()
	w := &Warm{spec: spec, text: fd[1]}
	if w.First, err = Start(group, logs, spec, startup, 80, 24); err != nil {
		descriptor.Close(&w.text)
		return nil, err
	}
	return w, nil
}

// Use makes the bash go on as the one that spec describes, at that size, with startup as the text of its startup file. It ends the bash and returns false
// if this one is no such bash, or cannot go on.
func (w *Warm) Use(spec own.Spec, startup string, cols, rows int) (f First, ok bool) {
	if w == nil {
		return f, false
	}
	if !w.fits(spec) || w.PTY.Resize(cols, rows) != nil || !w.giveStartup(spec.Dir, startup) {
		w.End()
		return f, false
	}
	return w.First, true
}

// fits reports whether the bash is alive, and was started as spec says but for the directory.
func (w *Warm) fits(spec own.Spec) bool {
	return spec.Path == w.spec.Path && slices.Equal(spec.Argv, w.spec.Argv) && slices.Equal(spec.Env, w.spec.Env) && !w.hasExited()
}

// giveStartup gives the bash its startup file. It returns false if the bash does not get all of it.
func (w *Warm) giveStartup(dir, startup string) bool {
	text := "SECONDS=0\n" // as if the bash had just started
	if dir != w.spec.Dir {
		text += dialect.CdBack(dialect.Dialects["bash"], dir) + "\\builtin unset -v OLDPWD\n\\builtin declare -x OLDPWD\n"
	}
	text += startup
	n, _ := unix.Write(w.text, []byte(text)) // it does not wait: an empty pipe has room for the text
	descriptor.Close(&w.text)
	return n == len(text)
}

func (w *Warm) hasExited() bool {
	select {
	case <-w.Child.Exited():
		return true
	default:
		return false
	}
}

// End ends the bash and drops what the keeper holds for it.
func (w *Warm) End() {
	if w == nil {
		return
	}
	descriptor.Close(&w.text)
	_ = w.Child.Signal(unix.SIGKILL)
	_ = w.Scope.Kill(0)
	w.Scope.Remove()
	w.close()
	go func() { // ends with the child, which has been killed
		<-w.Child.Exited()
		w.Child.Close()
	}()
}
