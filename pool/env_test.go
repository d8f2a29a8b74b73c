package pool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
)

// A variable that changes what the shell itself does is refused in every request that has variables, and works where the operator allows it.
func TestSteeringVariables(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	ways := map[string]func(env protocol.Env) error{
		"session.create": func(env protocol.Env) error {
			s, err := r.Create(t.Context(), me, &protocol.SessionCreate{Env: env})
			if err == nil {
				_, err = s.Destroy(t.Context(), &protocol.SessionDestroy{Force: true})
			}
			return err
		},
		"exec.run": func(env protocol.Env) error {
			e, err := s.Exec(&protocol.Exec{Command: "true", Env: env})
			if err == nil {
				wait(t, "exec", e.Done())
			}
			return err
		},
		"exec.stream": func(env protocol.Env) error {
			e, err := s.Stream(&protocol.Exec{Command: "true", Env: env})
			if err == nil {
				wait(t, "exec", e.Done())
			}
			return err
		},
		"process.start": func(env protocol.Env) error {
			p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "true", Env: env})
			if err == nil {
				wait(t, "process", p.Done())
			}
			return err
		},
		"term.open": func(env protocol.Env) error {
			x, err := s.OpenTerminal(t.Context(), &protocol.TermOpen{Command: "true", Env: env, Cols: 80, Rows: 24})
			if err == nil {
				wait(t, "terminal", x.Done())
			}
			return err
		},
	}
	for way, try := range ways {
		if e := testkit.WantCode(t, try(protocol.Env{"A": of("b"), "LD_PRELOAD": of("/no/such")}), protocol.InvalidParams); e.Details["field"] != "env.LD_PRELOAD" {
			t.Errorf("%s: %v", way, e.Details)
		}
		if err := try(protocol.Env{"LDFLAGS": of("x"), "BASH_ENV": nil}); err != nil {
			t.Errorf("%s: %v", way, err)
		}
	}
	want(t, s, "echo on", "on\n")

	file := filepath.Join(t.TempDir(), "rc")
	if err := os.WriteFile(file, []byte("STEERED=yes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	free := newRig(t, Config{AllowEnv: []string{"BASH_ENV", "LD_*"}})
	steered := free.create(protocol.SessionCreate{Shell: "/bin/bash", Env: protocol.Env{"BASH_ENV": of(file), "LD_LIBRARY_PATH": of("/no/such")}})
	want(t, steered, "bash -c 'echo $STEERED $LD_LIBRARY_PATH'", "yes /no/such\n")
	_, err := free.Create(t.Context(), me, &protocol.SessionCreate{Env: protocol.Env{"ENV": of(file)}})
	testkit.WantCode(t, err, protocol.InvalidParams)
}

// TestWorkingDirs: links are followed, since they lead only where the session's user may go anyway, and the way there stays its name; what leads
// nowhere is refused; and a directory that goes at the wrong moment costs that request and nothing else.
func TestWorkingDirs(t *testing.T) {
	eachShell(t, func(t *testing.T, shell string) {
		r := newRig(t, Config{})
		top := t.TempDir()
		at := func(name string) string { return filepath.Join(top, name) }
		for _, err := range []error{
			os.Mkdir(at("real"), 0o700), os.Symlink("real", at("link")), os.Symlink("link", at("far")), os.Symlink("nowhere", at("dangling")),
			os.Symlink("loop", at("loop")), os.WriteFile(at("file"), nil, 0o600), os.Symlink("file", at("tofile")), os.Mkdir(at("real/sub"), 0o700),
			os.Symlink("\n$(touch made)", at("real/odd\nname")), os.Mkdir(at("real/\n$(touch made)"), 0o700),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		s := r.create(protocol.SessionCreate{Shell: shell, WorkingDir: at("link")})
		want(t, s, "pwd -P", at("real")+"\n")
		for dir, real := range map[string]string{"far": "real", "link/sub": "real/sub", "link/../link": "real", "link/odd\nname": "real/\n$(touch made)"} {
			if x := run(t, s, protocol.Exec{Command: "pwd -P", WorkingDir: at("") + "/" + dir}); x.Stdout != at(real)+"\n" {
				t.Errorf("%q: %q", dir, x.Stdout)
			}
		}
		for _, dir := range []string{"dangling", "loop", "file", "tofile", "tofile/x", "none", strings.Repeat("x/", 3000), strings.Repeat("y", 300)} {
			_, err := r.Create(t.Context(), me, &protocol.SessionCreate{Shell: shell, WorkingDir: at(dir)})
			testkit.WantCode(t, err, protocol.WorkingDirNotFound)
			e := start(t, s, protocol.Exec{Command: "pwd", WorkingDir: at(dir)})
			wait(t, dir, e.Done())
			testkit.WantCode(t, e.Err(), protocol.WorkingDirNotFound)
		}
		if left, _ := filepath.Glob(at("real/made")); len(left) > 0 {
			t.Error("a directory's name was run")
		}

		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() { // makes the directory and takes it away, in turn; ends with stop
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					os.Mkdir(at("flicker"), 0o700)
					os.Remove(at("flicker"))
				}
			}
		}()
		defer func() { close(stop); <-stopped }()
		for range 50 {
			e := start(t, s, protocol.Exec{Command: "echo in", WorkingDir: at("flicker")})
			wait(t, "exec", e.Done())
			if e.Err() != nil {
				testkit.WantCode(t, e.Err(), protocol.WorkingDirNotFound)
			} else if x := e.Result(false); x.Stdout != "in\n" && (*x.ExitCode == 0 || !strings.Contains(x.Stderr, "flicker")) { // it went between our look and the shell's cd
				t.Errorf("exit %d, %q %q", *x.ExitCode, x.Stdout, x.Stderr)
			}
			made, err := r.Create(t.Context(), me, &protocol.SessionCreate{Shell: shell, WorkingDir: at("flicker")})
			if err != nil {
				if e, ok := errors.AsType[*protocol.Error](err); ok && e.Code == protocol.ShellFailed {
					t.Logf("cause: %v", e.Unwrap())
				}
				testkit.WantCode(t, err, protocol.WorkingDirNotFound)
				continue
			}
			want(t, made, "echo up", "up\n")
			if _, err := made.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
				t.Error(err)
			}
		}
		want(t, s, "pwd -P", at("real")+"\n")
	})
}
