package shells

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/own"
	"trl/runtime/shell"
	"trl/runtime/slowfs"
	"trl/runtime/stream"
)

func of[T any](v T) *T { return &v }

// A client gets a shell by its path or name if the operator allows that shell, also by another path of the same file.
func TestShellsByPathAndName(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	for _, err := range []error{
		os.Mkdir(at("bin"), 0o700), os.Mkdir(at("usr"), 0o700), os.Mkdir(at("other"), 0o700),
		os.WriteFile(at("bin/sh"), nil, 0o700), os.WriteFile(at("bin/csh"), nil, 0o700), os.WriteFile(at("bin/text"), nil, 0o600), // #nosec G306 -- programs
		os.Link(at("bin/sh"), at("usr/sh")), os.Link(at("bin/sh"), at("other/sh")), os.Link(at("bin/sh"), at("bin/applet")), os.WriteFile(at("other/bash"), nil, 0o700), // #nosec G306 -- a program
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	l := NewList([]string{"sh", "bash", "text"}, at("bin/csh"), []string{"PATH=" + at("bin") + ":" + at("usr") + ":relative"})
	for shell, want := range map[string]any{
		"":                  at("bin/csh"),
		"sh":                at("bin/sh"),
		at("bin/sh"):        at("bin/sh"),
		at("bin/../bin/sh"): at("bin/sh"),
		at("usr/sh"):        at("usr/sh"), // in the PATH
		at("other/sh"):      at("bin/sh"), // the same file, in a directory that is not in the PATH
		at("csh"):           protocol.ShellNotFound,
		"bash":              protocol.ShellNotFound,
		"text":              protocol.ShellNotFound, // not executable
		at("other"):         protocol.ShellNotFound,
		"../bin/sh":         protocol.ShellNotFound,
		at("bin/applet"):    protocol.ShellNotAllowed, // the same file under another name
		at("other/bash"):    protocol.ShellNotAllowed, // another program under an allowed name
	} {
		got, err := l.Resolve("me", shell)
		if code, refused := want.(protocol.Code); refused {
			testkit.WantCode(t, err, code)
		} else if err != nil || got != want {
			t.Errorf("%q: %q, %v; want %v", shell, got, err, want)
		}
	}
	if got, want := l.Present(), []string{at("bin/sh"), at("bin/csh")}; !slices.Equal(got, want) {
		t.Errorf("present: %q, want %q", got, want)
	}
}

// Variables that change what a shell itself does are refused by name, and those that only look like one are not. The operator may allow some.
func TestControlVariables(t *testing.T) {
	for _, name := range append([]string{"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_", "BASH_FUNC_ls"}, controlVariables...) {
		if strings.HasSuffix(name, "*") {
			continue
		}
		if e := testkit.WantCode(t, CheckEnv(protocol.Env{"A": of("b"), name: of("/no/such")}, nil), protocol.InvalidParams); e.Details["field"] != "env."+name {
			t.Errorf("%s: %v", name, e.Details)
		}
		if err := CheckEnv(protocol.Env{name: nil}, nil); err != nil {
			t.Errorf("without %s: %v", name, err)
		}
	}
	for _, name := range []string{"LD", "LDFLAGS", "XLD_PRELOAD", "ld_preload", "ENVIRONMENT", "MY_ENV", "PS1", "PATHEXT", "NODE_OPTIONS", "BASH"} {
		if err := CheckEnv(protocol.Env{name: of("x")}, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	allowed := []string{"BASH_ENV", "LD_*"}
	if err := CheckEnv(protocol.Env{"BASH_ENV": of("x"), "LD_PRELOAD": of("x")}, allowed); err != nil {
		t.Error(err)
	}
	testkit.WantCode(t, CheckEnv(protocol.Env{"ENV": of("x")}, allowed), protocol.InvalidParams)
}

// The environment is the base, with the session's variables instead of those of the same name, and the session's id, which nothing replaces.
func TestEnviron(t *testing.T) {
	env := protocol.Env{"B": of("2"), "C": nil, idVariable: of("forged")}
	got := Environ([]string{"A=1", "B=1", "C=1", idVariable + "=base"}, "s-1", "/bin/sh", env)
	if want := []string{"A=1", "SHELL=/bin/sh", "B=2", idVariable + "=s-1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Environ(nil, "s-1", "/bin/busybox", nil); !slices.Equal(got, []string{idVariable + "=s-1"}) {
		t.Errorf("busybox: %q", got)
	}
}

func TestLimits(t *testing.T) {
	most := protocol.Limits{OpenFiles: 200, CPU: 2}
	for _, c := range []struct {
		asked *protocol.Limits
		want  protocol.Limits
	}{
		{nil, most},
		{&protocol.Limits{}, most},
		{&protocol.Limits{OpenFiles: 100, CPU: 3, Pids: 7}, protocol.Limits{OpenFiles: 100, CPU: 2, Pids: 7}},
	} {
		if got, err := Limits(c.asked, most, map[string]string{"memory_bytes": "why"}); err != nil || got != c.want {
			t.Errorf("%+v: %+v, %v", c.asked, got, err)
		}
	}
	_, err := Limits(&protocol.Limits{MemoryBytes: 1}, most, map[string]string{"memory_bytes": "why"})
	if e := testkit.WantCode(t, err, protocol.NotSupported); e.Details["field"] != "limits.memory_bytes" || e.Details["reason"] != "why" {
		t.Errorf("%v", e.Details)
	}
}

// A client is told what concerns it: its directory, a limit, a shortage, the end of the keeper; and no more than that of the rest.
func TestFaults(t *testing.T) {
	sh := filepath.Join(t.TempDir(), "sh")
	if err := os.WriteFile(sh, nil, 0o700); err != nil { // #nosec G306 -- a program
		t.Fatal(err)
	}
	for _, c := range []struct {
		err       error
		dir       string
		want      protocol.Code // of Fault
		ofCommand protocol.Code // of CommandFault
	}{
		{errors.New("x"), "/d", protocol.ShellFailed, protocol.ShellFailed},
		{protocol.Errorf(protocol.SessionBusy, "x"), "/d", protocol.SessionBusy, protocol.SessionBusy},
		{&own.LimitError{Limit: "pids", Why: "x"}, "/d", protocol.NotSupported, protocol.NotSupported},
		{own.ErrKeeperGone, "/d", protocol.SessionLost, protocol.SessionLost},
		{errors.Join(shell.ErrShellGone, own.ErrKeeperGone), "/d", protocol.SessionLost, protocol.SessionLost},
		{fmt.Errorf("start: %w", stream.ErrNoTerminal), "/d", protocol.ShellFailed, protocol.LimitExceeded},
		{&fs.PathError{Op: "chdir", Path: "/d", Err: syscall.ENOENT}, "/d", protocol.WorkingDirNotFound, protocol.WorkingDirNotFound},
		{&fs.PathError{Op: "chdir", Path: "/other", Err: syscall.ENOENT}, "/d", protocol.ShellFailed, protocol.WorkingDirNotFound},
		{&fs.PathError{Op: "spawn", Path: sh, Err: syscall.ENOENT}, "/d", protocol.WorkingDirNotFound, protocol.ShellFailed},
		{&fs.PathError{Op: "spawn", Path: sh + "x", Err: syscall.ENOENT}, "/d", protocol.ShellFailed, protocol.ShellFailed},
		{&fs.PathError{Op: slowfs.OpLookUp, Path: "/x", Err: syscall.EAGAIN}, "/d", protocol.LimitExceeded, protocol.LimitExceeded},
		{syscall.EMFILE, "/d", protocol.LimitExceeded, protocol.LimitExceeded},
	} {
		if got := Fault(c.err, c.dir); got.Code != c.want {
			t.Errorf("%v: %s, want %s", c.err, got.Code, c.want)
		}
		if got := CommandFault(c.err); got.Code != c.ofCommand {
			t.Errorf("command: %v: %s, want %s", c.err, got.Code, c.ofCommand)
		}
	}
}
