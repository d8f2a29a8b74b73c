package commands

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// What a client or the operator hands over must not be where every user of the machine can read it: in the arguments and the
// name of a process. The environment of keeper, gateway and whatever else is trl itself must not have it either, since sessions
// may be of the same user.

// secretMark is in every secret that is planted.
const secretMark = "planted-"

// below lists all processes of a gateway, the outermost first: what the kernel says of parents.
func below(g *rig.Server) (all []int) {
	children := map[int][]int{}
	for _, pid := range testkit.Pids() {
		if _, parent, _, ok := rig.ProcStat(pid); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	all = []int{g.Cmd.Process.Pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// exposed lists where secrets can be read, and counts the files that were looked at. No session sees the processes of a sandbox
// that are outside of it.
func exposed(g *rig.Server, sandboxed bool) (found []string, looked int) {
	here, _ := os.Readlink("/proc/self/ns/pid")
	for _, pid := range below(g) {
		files := []string{"cmdline", "comm", "stat", "status"}
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		namespace, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		if exe == rig.Binary && !(sandboxed && namespace == here) {
			files = append(files, "environ")
		}
		for _, name := range files {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			if err != nil {
				continue
			}
			if looked++; strings.Contains(string(text), secretMark) {
				found = append(found, fmt.Sprintf("%d/%s: %q", pid, name, text))
			}
		}
	}
	return found, looked
}

// TestSecretsAreNotShown plants a secret wherever a client can hand one over, and one in the environment of trl.
func TestSecretsAreNotShown(t *testing.T) {
	type way struct {
		name  string
		flags []string
	}
	var ways []way
	for _, tier := range rig.Tiers {
		ways = append(ways, way{tier, []string{"--isolation", tier}})
		if os.Geteuid() == 0 {
			for _, as := range rig.UserWays {
				ways = append(ways, way{tier + " " + as.Name, append(as.Flags(), "--isolation", tier)})
			}
		}
	}
	if _, err := exec.LookPath("bwrap"); err == nil {
		ways = append(ways, way{"bwrap", []string{"--sandbox", "bwrap"}})
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			g, err := rig.Launch(func(cmd *exec.Cmd) {
				cmd.Env = append(cmd.Env, "OPERATORS_KEY="+secretMark+"operator", "TRL_TOKEN="+secretMark+"token")
			}, w.flags...)
			if err != nil {
				t.Skipf("not run: %v", err)
			}
			g.EndWith(t)
			for _, sh := range []string{"/bin/bash", "/bin/dash", "/usr/bin/zsh"} {
				if _, err := os.Stat(sh); err == nil {
					secretsIn(t, g, sh, w.name == "bwrap")
				}
			}
		})
	}
	if os.Geteuid() != 0 {
		t.Log("not run as root: sessions of other users")
	}
}

func secretsIn(t *testing.T, g *rig.Server, sh string, sandboxed bool) {
	c := g.Dial(t)
	env := func(what string) object { return object{"env": object{"API_TOKEN": secretMark + what}} }
	s := c.Session(object{"shell": sh}, env("session"))
	rig.Expect(t, c.Run(s, "X="+secretMark+"state; f() { : "+secretMark+"function; }", env("command")), 0, "", "")
	p := c.Call("process.start", rig.With(object{"session_id": s, "command": ": " + secretMark + "process; echo ready; read line; sleep 600; :", "stdin": "open"}, env("process")))
	c.Call("process.wait", object{"process_id": p.Str("process_id"), "until": object{"output": "ready"}, "timeout_s": 60})
	c.Call("process.input", object{"process_id": p.Str("process_id"), "data": secretMark + "process-input\n"})
	term := func(params object) {
		d := c.Call("term.open", rig.With(object{"session_id": s, "cols": 80, "rows": 24}, params))
		c.Call("term.input", object{"term_id": d.Str("term_id"), "data": ": " + secretMark + "typed\n"})
	}
	term(rig.With(object{"command": ": " + secretMark + "terminal; read line; sleep 600; :"}, env("terminal")))
	term(env("shell"))
	e := c.Stream(s, ": "+secretMark+"text; echo ready; read line; sleep 600; :", object{"stdin": secretMark + "stdin\n"}, env("stream")).Str("exec_id")
	testkit.Eventually(t, "all of it runs", func() bool {
		sleeps := 0
		for _, pid := range below(g) {
			if strings.HasSuffix(rig.Cmdline(pid), "sleep 600") {
				sleeps++
			}
		}
		return sleeps >= 3
	})
	found, looked := exposed(g, sandboxed)
	if len(found) > 0 || looked < 4*5 {
		t.Errorf("%s: %d files, %s", sh, looked, strings.Join(found, "\n"))
	}
	c.Call("exec.cancel", object{"exec_id": e, "kill_grace_s": 0})
	c.Call("session.destroy", object{"session_id": s, "force": true})
	testkit.Eventually(t, "nothing of it is left", func() bool {
		return !slices.ContainsFunc(below(g), func(pid int) bool { return strings.HasSuffix(rig.Cmdline(pid), "sleep 600") })
	})
}

// TestVariableTooLongForAnArgumentIsRefused: a value that is too long for an argument of a process is none.
func TestVariableTooLongForAnArgumentIsRefused(t *testing.T) {
	g := rig.Shared(t, "")
	rig.InShells(t, "", func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		big := object{"env": object{"BIG": strings.Repeat("x", 200<<10), "SMALL": "it's"}}
		const text = `echo "${#BIG} $SMALL"`
		rig.Expect(t, c.Run(s, text, big), 0, "204800 it's\n", "")
		p := c.Call("process.start", rig.With(object{"session_id": s, "command": text}, big)).Str("process_id")
		c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
		if out, _, _ := rig.ProcessLogs(c, p, 0); out != "204800 it's\n" {
			t.Errorf("a process says %q", out)
		}
		term := c.Call("term.open", rig.With(object{"session_id": s, "cols": 80, "rows": 24, "command": text + "; read line"}, big)).Str("term_id")
		testkit.Eventually(t, "the terminal says the same", func() bool {
			return strings.Contains(fmt.Sprint(c.Call("term.snapshot", object{"term_id": term})["lines"]), "204800 it's")
		})
		c.Call("session.destroy", object{"session_id": s, "force": true})
	})
}
