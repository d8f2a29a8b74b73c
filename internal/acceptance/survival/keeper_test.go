package survival

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// fatalSignals end or stop a program that did not ask for them, or ask a keeper for its end or an upgrade.
var fatalSignals = []string{"KILL", "STOP", "TSTP", "TTIN", "TTOU", "ILL", "TRAP", "ABRT", "BUS", "FPE", "SEGV", "SYS", "TERM", "INT", "QUIT", "HUP", "USR1", "USR2"}

// TestNoSignalFromInsideEndsTheKeeper: the keeper is the parent of every session's shell, and `kill -9 $PPID` in one of them
// must not end the others.
func TestNoSignalFromInsideEndsTheKeeper(t *testing.T) {
	root := os.Geteuid() == 0
	as := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"} // an ordinary user
	if !root {
		as = []string{"setpriv"}
	}
	for _, c := range []struct {
		name  string
		words []string // before trl
		flags []string
	}{
		{name: "root"},
		{name: "no_new_privs", words: append(as[:len(as):len(as)], "--no-new-privs")},
		{name: "allow-write", words: append(as[:len(as):len(as)], "--inh-caps=-all"), flags: []string{"--allow-write", "/tmp"}},
		{name: "session-user", flags: []string{"--session-user", "nobody"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if (c.name == "root" || c.name == "session-user") && !root {
				t.Skip("not run: we are not root, so the kernel takes no filter from us")
			}
			tune := func(*exec.Cmd) {}
			if c.words != nil {
				if _, err := exec.LookPath(c.words[0]); err != nil {
					t.Skip("not run: no setpriv here")
				}
				tune = rig.StartedBy(c.words...)
			}
			g := rig.StartTuned(t, func(cmd *exec.Cmd) {
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its group is none of ours
				tune(cmd)
			}, c.flags...)
			client, sessions := g.Dial(t), map[string]string{}
			for _, shell := range rig.AllShells {
				if _, err := os.Stat(shell); err == nil {
					sessions[shell] = client.Session(object{"shell": shell})
					client.Run(sessions[shell], "V=kept")
				}
			}
			try := func() {
				for shell, s := range sessions {
					var script strings.Builder
					for _, sig := range fatalSignals {
						fmt.Fprintf(&script, "kill -%s $PPID 2>/dev/null && echo sent %s\n", sig, sig)
					}
					fmt.Fprintf(&script, "sh -c 'kill -s KILL -- -%d' 2>/dev/null && echo sent to its group\n", g.Pid)
					fmt.Fprintf(&script, "sh -c 'kill -9 %d' 2>/dev/null && echo sent by a child\nkill -0 $PPID 2>/dev/null; echo $V", g.Pid)
					if r := client.Run(s, script.String()); r.Stdout() != "kept\n" {
						t.Errorf("%s: %v", shell, rig.Brief(fmt.Sprint(r)))
					}
				}
				if state, _, _, ok := rig.ProcStat(g.Pid); !ok || state == 'T' || state == 'Z' {
					t.Fatalf("the keeper's state is %q", state)
				}
			}
			try()
			if !canUpgrade() {
				return
			}
			old := g.GatewayPid()
			if err := syscall.Kill(g.Pid, syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the next gateway serves", func() bool { pid := g.GatewayPid(); return pid != 0 && pid != old })
			testkit.Eventually(t, "the keeper is replaced, too", func() bool { return strings.Contains(g.Log(), `"message":"upgraded"`) })
			client = g.Redial(t)
			for _, shell := range rig.AllShells { // a shell that is forked by the next keeper
				if sessions[shell] != "" {
					client.Run(sessions[shell], "exec 2>/dev/null; kill -9 $$")
				}
			}
			try()
		})
	}
}

// TestKilledKeeperIsTold: where something does kill the keeper, the answer to whoever waits for a command says so.
func TestKilledKeeperIsTold(t *testing.T) {
	t.Parallel()
	g, err := rig.StartGateway()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Stop() }) // its end is no good one
	c := g.Dial(t)
	s := c.Session()
	waits := c.Begin("exec.run", object{"session_id": s, "command": "echo begun; " + rig.Sleeper()})
	testkit.Eventually(t, "it runs", func() bool { return c.State(s) == "RUNNING" })
	if err := syscall.Kill(g.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f := c.Answer(waits)
	text := fmt.Sprint(f.Data, f.Error)
	if !strings.Contains(text, "SESSION_LOST") || !strings.Contains(text, "the keeper is gone, and every session with it") {
		t.Errorf("%v", text)
	}
	<-g.Exited
	if line := "killed the processes that it left"; !strings.Contains(g.Log(), line) {
		t.Errorf("no %q in the log", line)
	}
	for line := range strings.Lines(g.Log()) {
		_, list, ok := strings.Cut(line, `"pids":[`)
		if !ok || !strings.Contains(line, "the keeper is dead") {
			continue
		}
		list, _, _ = strings.Cut(list, "]")
		seen := map[string]bool{}
		for pid := range strings.SplitSeq(list, ",") {
			if seen[pid] {
				t.Errorf("%s is listed twice: %s", pid, list)
			}
			seen[pid] = true
		}
	}
}

// TestKeeperKilledAtAnyMoment: whatever step of a command the keeper's death meets, the answer says that the session is lost.
func TestKeeperKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	for range rig.Pick(8, 100) {
		g, err := rig.StartGateway()
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 4 {
			s := g.Dial(t).Session()
			all.Go(func() {
				a := rig.Again{G: g}
				for {
					f, err := a.Ask(t.Context(), "exec.run", object{"session_id": s, "command": ":"}, nil)
					if err != nil {
						return
					}
					if code := f.Code(); code != "" && code != "SESSION_LOST" {
						t.Errorf("%v", *f.Error)
					}
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		_ = syscall.Kill(g.Pid, syscall.SIGKILL)
		all.Wait()
		_ = g.Stop() // its end is no good one
	}
}

// signalsAreFiltered: the kernel refuses signals from inside, so that none comes to be ignored.
func signalsAreFiltered(keeper int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", keeper))
	return strings.Contains(string(text), "\nSeccomp:\t2\n")
}
