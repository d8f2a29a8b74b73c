package runtime

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"trl/internal/testkit"
)

// inNamespaces is eachTier for the one tier.
func inNamespaces(t *testing.T, f func(t *testing.T, h *Host)) {
	if NeedsUserNamespace() {
		runInUserNamespace(t)
		return
	}
	f(t, testHost(t, "pidns"))
}

// However trl ends, nothing is left of its sessions.
func TestNamespacesEndWithTheirHost(t *testing.T) {
	inNamespaces(t, func(t *testing.T, _ *Host) {
		m := marker()
		other := exec.Command(testBinary, "awkward", "instance-pidns", m)
		out, _ := other.StdoutPipe()
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if pids := alive(m); len(pids) != 2 {
			t.Errorf("running: %v", pids)
		}
		_ = other.Process.Kill()
		_ = other.Wait()
		testkit.Eventually(t, "its session has ended", func() bool { return len(alive(m)) == 0 })
	})
}

// What a session does to its own process 1 has no effect, and its numbers are its own.
func TestInitWithstandsItsSession(t *testing.T) {
	inNamespaces(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		sh := openShellIn(t, h, c)
		if n, _ := strconv.Atoi(sh.run("printf %s $$")); n < 2 || n > 9 {
			t.Fatalf("the shell is process %d in there", n)
		}
		sh.run("for sig in HUP INT QUIT TERM USR1 CHLD STOP TSTP KILL; do kill -$sig 1; done")
		if got := sh.run("(sleep 0 &); printf %s 'still here'"); got != "still here" {
			t.Error("got ", got)
		}
		select {
		case <-g.init.Exited():
			t.Error("init has ended")
		default:
		}
		// A shell's copy, which only the shell knows by number.
		inner, _ := strconv.Atoi(sh.run("sleep 60 & printf %s $!"))
		outer := outerPid(sh.Pid(), inner)
		testkit.Eventually(t, "the shell's "+strconv.Itoa(inner)+" is our "+strconv.Itoa(outer), func() bool {
			text, _ := os.ReadFile(procPath(outer, "/cmdline"))
			return string(text) == "sleep\x0060\x00"
		})
	})
}

// Somebody outside may kill a session's process 1. The session ends with it; nobody else is hurt, and Close knows.
func TestInitKilledFromOutside(t *testing.T) {
	inNamespaces(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		_, other := newGroup(t, h)
		bystander, m := spawn(t, h, other, nil, "/bin/sleep", "60"), marker()
		child := spawn(t, h, c, nil, "/bin/sh", "-c", "setsid sleep "+m+" & sleep "+m)
		testkit.Eventually(t, "both run", func() bool { return len(alive(m)) == 3 })
		_ = g.init.Signal(9)
		<-child.Exited()
		<-g.init.Exited()
		if pids := alive(m); len(pids) > 0 {
			t.Errorf("%v outlived their namespace", pids)
		}
		if pids := g.Members(); len(pids) > 0 {
			t.Errorf("members: %v", pids)
		}
		if err := c.Kill(0); err != nil {
			t.Error(err)
		}
		if _, err := h.Spawn(Spec{Path: "/bin/true", Argv: []string{"true"}, Scope: c}); err == nil {
			t.Error("a start in a namespace that has ended")
		} else {
			t.Log(err)
		}
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if p, ok := readProc(bystander.Pid()); !ok || p.dead() {
			t.Error("the other session was hurt")
		}
	})
}

// Shells have nothing of the capability with which namespaces are made; root's have what root has.
func TestShellsHaveNoCapabilities(t *testing.T) {
	inNamespaces(t, func(t *testing.T, h *Host) {
		if !adminIsAmbient {
			t.Skip("not in a user namespace")
		}
		_, c := newGroup(t, h)
		for range 20 { // whichever threads they are made on
			sh := openShellIn(t, h, c)
			if got := sh.run("printf %s $(grep -c '^Cap\\(Inh\\|Prm\\|Eff\\|Amb\\):.*0000000000000000$' /proc/self/status)"); got != "4" {
				t.Fatal(sh.run("printf '%s ' $(grep Cap /proc/self/status)"))
			}
			// Their way to what we hold.
			if got := sh.run("ls /proc/" + strconv.Itoa(os.Getpid()) + "/fd >/dev/null && printf may"); got != "may" {
				t.Fatal("a shell may not open our descriptors")
			}
		}
	})
}
