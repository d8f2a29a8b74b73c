package survival

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// A command runs once, wherever its gateway dies. The program here is built with crash points (package crashpoint): before and
// after each entry of a session's log, before each line to a shell, after each report of one, after each answer of the
// keeper. The gateway is killed at each of them in turn, and with more time at each pair of them: at one, and its successor
// at another. Nothing is left to chance but what other goroutines do meanwhile.

// A deed is a command that must happen once.
type deed struct {
	name     string
	command  string
	params   object
	code     int  // of the answer; anyCode: how it ends depends on who was killed when
	restored bool // the answer says so
}

const anyCode = -1

var deeds = []deed{
	{"goes on", ":", nil, 0, false},
	{"fails with a directory", "exit 3", object{"env": object{"X": "1"}, "working_dir": "/"}, 3, true},
	{"exits", "exit 3", nil, 3, true},
	{"is killed", "kill -9 $$", nil, 137, true},
	{"ends by errexit", "set -e; false; :", nil, 1, true},
	{"becomes another program", "exec true", nil, 0, true},
	{"has a directory", "cd /", object{"env": object{"X": "1"}, "working_dir": "/tmp"}, 0, false},
	{"leaves a job", "sleep 0.2 &", nil, 0, false},
	{"reads", "read -r line", object{"stdin": "line\n"}, 0, false},
	{"is stopped in time", "while :; do :; done", object{"timeout_s": 0.1}, anyCode, false},
	{"cannot be stopped", "read x </dev/zero", object{"timeout_s": 0.1, "kill_grace_s": 0.1}, anyCode, true},
}

func TestCommandRunsOnceWhereverItsGatewayDies(t *testing.T) {
	t.Parallel()
	program, err := rig.Crashing()
	if err != nil {
		t.Fatal(err)
	}
	shells := []string{"/bin/bash", "/bin/dash", "/bin/zsh", "/bin/busybox"}
	for _, shell := range shells {
		if _, err := os.Stat(shell); err != nil {
			t.Logf("%s: not here", shell)
			continue
		}
		some := slices.DeleteFunc(slices.Clone(deeds), func(d deed) bool {
			return !testkit.Soak && !slices.Contains(map[string][]string{
				"/bin/bash": {"fails with a directory", "is killed", "reads"}, "/bin/dash": {"exits", "is stopped in time"},
			}[shell], d.name)
		})
		for _, d := range some {
			t.Run(filepath.Base(shell)+" "+d.name, func(t *testing.T) {
				t.Parallel()
				dieEverywhere(t, program, shell, d)
			})
		}
	}
}

// keeperCalm is how long a gateway lives that the keeper does not take for one that cannot start.
const keeperCalm = 1050 * time.Millisecond

// dieEverywhere does d until it comes to its end without a death, and kills the gateway one point later each time.
func dieEverywhere(t *testing.T, program, shell string, d deed) {
	arm := filepath.Join(t.TempDir(), "arm")
	g, err := rig.Launch(func(c *exec.Cmd) {
		c.Path = program
		c.Env = append(c.Env, "TRL_CRASH="+arm)
	}, "--warm", "0")
	if err != nil {
		t.Fatal(err)
	}
	g.EndWith(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*testkit.Patience)
	defer cancel()
	w := &worker{Again: rig.Again{G: g}, ctx: ctx, name: "deeds"}
	defer w.drop()
	w.s = w.sure("session.create", object{"shell": shell}).Str("session_id")
	w.sure("exec.run", object{"session_id": w.s, "command": "F='" + w.path() + "'"})
	n, since := 0, time.Now()
	var try func(arms string) (died bool)
	try = func(arms string) (died bool) {
		n++
		was := g.Serving(t)
		time.Sleep(time.Until(since.Add(keeperCalm))) // else the keeper waits before it starts the next one
		if err := os.WriteFile(arm+".new", []byte(arms), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(arm+".new", arm); err != nil {
			t.Fatal(err)
		}
		w.sure("exec.run", object{"session_id": w.s, "request_key": fmt.Sprint("b", n), "command": fmt.Sprint("V=before", n)})
		r := w.sure("exec.run", rig.With(object{
			"session_id": w.s, "request_key": fmt.Sprint("k", n), "command": fmt.Sprintf("echo %d >>\"$F\"; echo before; %s", n, d.command),
		}, d.params))
		_ = os.Remove(arm) // else what follows were killed
		died = g.Serving(t) != was
		since = time.Now()
		traces, err := os.ReadFile(w.path())
		ran := slices.DeleteFunc(strings.Fields(string(traces)), func(f string) bool { return f != fmt.Sprint(n) })
		timed := d.code == anyCode
		if limit, _ := d.params["timeout_s"].(float64); timed && r.Yes("timed_out") && r.Stdout() == "" && len(ran) <= 1 && limit < 20 {
			d.params = rig.With(d.params, object{"timeout_s": 3 * limit}) // the time was over before a busy shell came to print something
			return try(arms)
		}
		if timed != r.Yes("timed_out") || r.Stdout() != "before\n" || !timed && (r.Num("exit_code") != d.code || r.Yes("shell_restored") != d.restored) {
			t.Errorf("killed at point %s: %v", arms, r)
		}
		if err != nil || len(ran) != 1 {
			t.Errorf("killed at point %s: it ran %d times (%v): %v", arms, len(ran), err, r)
		}
		remembers := func(v string, r object, restored bool) { // or r says that it does not
			t.Helper()
			next := w.sure("exec.run", object{"session_id": w.s, "command": "echo $V"})
			if next.Stdout() != fmt.Sprintln(v) && !r.Has("state_lost") || next.Yes("shell_restored") || restored && !r.Yes("shell_restored") {
				t.Errorf("killed at point %s: %v, and then %v instead of %s", arms, r, next, v)
			}
		}
		remembers(fmt.Sprint("before", n), r, false)
		// What the death left behind must not be taken for the state of the next shell that dies.
		w.sure("exec.run", object{"session_id": w.s, "request_key": fmt.Sprint("a", n), "command": fmt.Sprint("V=after", n)})
		remembers(fmt.Sprint("after", n), w.sure("exec.run", object{"session_id": w.s, "request_key": fmt.Sprint("d", n), "command": "kill -9 $$"}), true)
		return died
	}
	points := 0
	for first := 1; try(fmt.Sprint(first)); first++ {
		points++
		if !testkit.Soak {
			continue
		}
		for second := 1; second < 20; second++ { // of the next gateway, which comes to fewer: recovery, and what is left to do
			try(fmt.Sprint(first, " ", second))
		}
	}
	if points < 4 {
		trace, _ := os.ReadFile(arm + ".trace")
		t.Errorf("only %d points:\n%s", points, trace)
	}
	t.Logf("%d points, %d deaths", points, n-1)
}
