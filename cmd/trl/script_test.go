package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
)

// Under the name trl the test binary is trl, so every script runs the real program.
func TestMain(m *testing.M) {
	testscript.Main(testkit.Suite{M: m}, map[string]func(){"trl": main})
}

// patience bounds every wait. Nothing takes a tenth of it unless it hangs.
const patience = 60 * time.Second

func TestScripts(t *testing.T) {
	testkit.StartsProcesses(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("TRL_STATE_DIR", filepath.Join(e.WorkDir, "state"))
			e.Values[childrenKey{}] = map[string]*child{}
			e.Values[ttysKey{}] = map[string]*tty{}
			e.Values[relaysKey{}] = map[string]*breakable{}
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "unshare": // a PID namespace can be made
				return os.Geteuid() == 0 && exec.Command("unshare", "-pf", "--mount-proc", "true").Run() == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve":  cmdServe,
			"start":  cmdStart,
			"signal": cmdSignal,
			"ends":   cmdEnds,
			"code":   cmdCode,
			"until":  cmdUntil,
			"mode":   cmdMode,
			"relay":  cmdRelay,

			"tty":      cmdTTY,
			"type":     cmdType,
			"sees":     cmdSees,
			"winsize":  cmdWinsize,
			"restored": cmdRestored,
			"cook":     cmdCook,
			"raw":      cmdRaw,
		},
	})
}

// child is a program that runs beside the script. NAME.out and NAME.err have its output.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

type childrenKey struct{}

func children(ts *testscript.TestScript) map[string]*child {
	return ts.Value(childrenKey{}).(map[string]*child)
}

// start NAME PROGRAM ARGS… runs a program in the background. If it still runs when the script ends, it gets a TERM, which ends a gateway;
// then a second one, which ends a client that waits for a gateway that is gone; and then a KILL.
func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME PROGRAM ARGS…")
	}
	name := args[0]
	cmd := command(ts, args[1:])
	open := func(ext string) *os.File {
		f, err := os.Create(ts.MkAbs(name + ext))
		ts.Check(err)
		return f
	}
	stdout, stderr := open(".out"), open(".err")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	ts.Check(testkit.Start(cmd))
	stdout.Close()
	stderr.Close()
	c := &child{cmd, make(chan struct{})}
	go func() { _ = cmd.Wait(); close(c.exited) }() // ends with the program, which Defer ends
	children(ts)[name] = c
	ts.Defer(func() {
		for _, try := range []struct {
			sig  syscall.Signal
			wait time.Duration
		}{{syscall.SIGTERM, time.Second}, {syscall.SIGTERM, patience / 2}, {syscall.SIGKILL, patience}} {
			_ = cmd.Process.Signal(try.sig)
			select {
			case <-c.exited:
				return
			case <-time.After(try.wait):
			}
		}
	})
}

// serve NAME FLAGS… starts a gateway on a free port and waits until it is ready. Its address is $NAME.
func cmdServe(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: serve NAME FLAGS…")
	}
	words := append([]string{args[0], "trl", "serve", "--listen", "127.0.0.1:0"}, args[1:]...)
	cmdStart(ts, false, words)
	c := children(ts)[args[0]]
	ready := regexp.MustCompile(`(?m)^trl: listening on (\S+)\n`)
	poll(ts, "the gateway's address", func() bool {
		m := ready.FindStringSubmatch(ts.ReadFile(args[0] + ".out"))
		if m == nil {
			select {
			case <-c.exited:
				ts.Fatalf("gateway ended: %s", ts.ReadFile(args[0]+".err"))
			default:
			}
			return false
		}
		ts.Setenv(args[0], m[1])
		return true
	})
}

type relaysKey struct{}

// relay NAME starts a relay to the gateway at $gw; the relay's address is $NAME. relay NAME DEED changes it: deaf discards bytes from
// clients; swallowed waits until it has discarded some; cut breaks its connections; shut breaks them and waits until it has refused two new
// ones; heal; end.
func cmdRelay(ts *testscript.TestScript, neg bool, args []string) {
	relays := ts.Value(relaysKey{}).(map[string]*breakable)
	switch {
	case len(args) == 1:
		b, err := startBreakable(strings.TrimPrefix(ts.Getenv("gw"), "http://"))
		ts.Check(err)
		ts.Defer(func() { b.Close(); b.breakAll() })
		relays[args[0]] = b
		ts.Setenv(args[0], "http://"+b.Addr().String())
		return
	case neg || len(args) != 2 || relays[args[0]] == nil:
		ts.Fatalf("usage: relay NAME [DEED]")
	}
	switch b := relays[args[0]]; args[1] {
	case "deaf":
		b.deaf.Store(true)
	case "swallowed":
		poll(ts, "something to swallow", func() bool { return b.swallowed.Load() > 0 })
	case "cut":
		b.breakAll()
	case "shut":
		b.shut.Store(true)
		before := b.dropped.Load()
		b.breakAll()
		poll(ts, "those who come again", func() bool { return b.dropped.Load() >= before+2 })
	case "heal":
		b.shut.Store(false)
		b.deaf.Store(false)
	case "end":
		b.Close()
		b.breakAll()
	default:
		ts.Fatalf("relay %s?", args[1])
	}
}

// signal NAME SIG sends a signal to a started program.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || children(ts)[args[0]] == nil {
		ts.Fatalf("usage: signal NAME SIG")
	}
	ts.Check(children(ts)[args[0]].cmd.Process.Signal(unix.SignalNum("SIG" + args[1])))
}

// ends NAME CODE waits until a started program has ended with this exit code.
func cmdEnds(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || children(ts)[args[0]] == nil {
		ts.Fatalf("usage: ends NAME CODE")
	}
	c := children(ts)[args[0]]
	select {
	case <-c.exited:
	case <-time.After(patience):
		ts.Fatalf("%s still runs", args[0])
	}
	if got := strconv.Itoa(c.cmd.ProcessState.ExitCode()); got != args[1] {
		ts.Fatalf("%s: exit code %s, want %s\n%s", args[0], got, args[1], ts.ReadFile(args[0]+".err"))
	}
}

// code N PROGRAM ARGS… runs a program that must exit with N; the script can then compare stdout and stderr. Its stdin is /dev/null; scripts
// that need another one use a shell.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N PROGRAM ARGS…")
	}
	cmd := command(ts, args[1:])
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%v", err)
	}
	if got := strconv.Itoa(cmd.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// until PATTERN PROGRAM ARGS… runs a program repeatedly until its stdout matches.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN PROGRAM ARGS…")
	}
	want := regexp.MustCompile("(?m)" + args[0])
	var out bytes.Buffer
	defer func() {
		if !want.Match(out.Bytes()) {
			ts.Logf("what it printed last:\n%s", &out)
		}
	}()
	poll(ts, args[0], func() bool {
		out.Reset()
		cmd := command(ts, args[1:])
		cmd.Stdout = &out
		_ = cmd.Run()
		return want.Match(out.Bytes())
	})
}

// mode PERM FILE… checks permissions.
func cmdMode(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args[1:] {
		info, err := os.Stat(ts.MkAbs(name))
		ts.Check(err)
		if got := fmt.Sprintf("%04o", info.Mode().Perm()); (got == args[0]) == neg {
			ts.Fatalf("%s: mode %s", name, got)
		}
	}
}

// command prepares a program in the script's directory and environment.
func command(ts *testscript.TestScript, words []string) *exec.Cmd {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "TRL_STATE_DIR", "TRL_URL", "TRL_TOKEN", "TRL_LISTEN", "TRL_MAX_SESSIONS", "TRL_LIMIT_OPEN_FILES", "TRL_SHELLS", "TRL_AUTH", "SECRET", "LANG", "PROBE"} {
		if v := ts.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	path := words[0]
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if p := filepath.Join(dir, words[0]); !strings.Contains(words[0], "/") && unix.Access(p, unix.X_OK) == nil {
			path = p
			break
		}
	}
	cmd := exec.Command(path, words[1:]...)
	cmd.Args[0] = words[0]
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = env
	return cmd
}

func poll(ts *testscript.TestScript, what string, done func() bool) {
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("waited in vain for %s", what)
		}
	}
}
