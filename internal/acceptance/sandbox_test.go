package acceptance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// --sandbox bwrap: everything is as it is otherwise, and what is outside can neither be seen nor changed.

// bwWays are who starts trl, and how.
var bwWays = []struct {
	name  string
	uid   uint32 // 0: whoever we are
	flags string
}{
	{"auto", 0, ""},
	{"none", 0, "--isolation none"},
	{"session-user", 0, "--session-user " + uSession + " --user " + uGateway},
	{"ordinary", 65534, ""},
}

// bwStart starts a gateway in a sandbox; its pid is the keeper's, as it is without.
func bwStart(t *testing.T, uid uint32, flags ...string) *server {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("not run: no bubblewrap")
	}
	g, err := launch(func(cmd *exec.Cmd) {
		if uid != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		}
	}, append([]string{"--sandbox", "bwrap"}, flags...)...)
	if err != nil && strings.Contains(err.Error(), "sandbox bwrap: ") {
		t.Skipf("not run: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	keeper := 0
	for below := g.pid; below != 0; below = g.gatewayPid() { // down to the gateway, which has none
		keeper, g.pid = g.pid, below
	}
	g.pid = keeper
	return g
}

func bwParent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), "\nPPid:")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(strings.TrimSpace(line))
	return n
}

// bwLeft lists the processes that have the gateway's directory in their command line: launcher, bwrap, keeper and gateway.
func (g *server) bwLeft() (left []string) {
	for _, pid := range pids() {
		if line := cmdline(pid); strings.Contains(line, g.dir) {
			left = append(left, fmt.Sprint(pid, " ", line))
		}
	}
	return append(left, g.processes()...)
}

func TestSandboxHoldsSessions(t *testing.T) {
	for _, way := range bwWays {
		t.Run(way.name, func(t *testing.T) {
			if way.uid != 0 || strings.Contains(way.flags, "user") {
				uRoot(t)
			}
			flags := strings.Fields(way.flags)
			if len(flagsOfAll) > 0 && slices.Contains(flags, "--session-user") {
				t.Skip("not run: other flags are asked for")
			}
			g := bwStart(t, way.uid, flags...)
			g.endWith(t)
			bwEverything(t, g)
			for _, fault := range g.stop() {
				t.Errorf("gateway: %s", fault)
			}
			if left := g.bwLeft(); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func bwEverything(t *testing.T, g *server) {
	c := g.dial(t)
	if caps := c.call("system.capabilities", nil); caps.str("sandbox") != "bwrap" || !caps.yes("no_new_privs") {
		t.Errorf("capabilities: %v", caps)
	}
	s := c.session()
	outside := exec.Command("sh", "-c", "sleep 300; : "+unique("outside"))
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = outside.Process.Kill(); _ = outside.Wait() }()

	if out := c.run(s, "ls /run | grep -v ^trl-ports-; env | grep TRL_SANDBOXED").stdout(); out != "" {
		t.Errorf("there is %q", out)
	}
	// What can be changed, and what not.
	expect(t, c.run(s, "pwd; echo in >made && cat made"), 0, g.home+"\nin\n", "")
	if b, err := os.ReadFile(filepath.Join(g.home, "made")); string(b) != "in\n" {
		t.Errorf("outside, what is made inside is %q, %v", b, err)
	}
	mine := "/tmp/" + unique("trl-sandboxed")
	expect(t, c.run(s, "echo x >"+mine+" && cat "+mine), 0, "x\n", "")
	if _, err := os.Stat(mine); err == nil {
		t.Errorf("%s is outside", mine)
	}
	for _, path := range []string{filepath.Join(top, "made"), "/etc/made", "/var/tmp/made", "/usr/made", "/sys/made", "/sys/kernel/uevent_helper", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/domainname"} {
		if r := c.run(s, "(: >>"+path+") 2>/dev/null"); r.num("exit_code") == 0 {
			t.Errorf("%s can be opened to write", path)
		}
	}
	for _, try := range []string{"mount -o remount,rw,bind /", "mount -t tmpfs none /mnt", "umount -l /tmp", "unshare -Urm mount -o remount,rw,bind /"} {
		if r := c.run(s, try+" 2>/dev/null"); r.num("exit_code") == 0 {
			t.Errorf("%s: %v", try, r)
		}
	}
	// What can be seen.
	if out := c.run(s, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout(); strings.Contains(out, "sleep 300") || !strings.Contains(out, "serve") {
		t.Errorf("processes: %q", out)
	}
	if r := c.run(s, fmt.Sprintf("kill -0 %d", outside.Process.Pid)); r.num("exit_code") == 0 {
		t.Error("a process outside can be signalled")
	}
	// State, restores, background processes; over a crash and an upgrade.
	if r := c.run(s, "kill -9 $$"); !r.yes("shell_restored") {
		t.Errorf("killed: %v", r)
	}
	expect(t, c.run(s, "v=kept; cd /usr; echo $v; pwd"), 0, "kept\n/usr\n", "")
	nap := sleeper()
	p := c.call("process.start", object{"session_id": s, "command": nap}).str("process_id")
	eventually(t, "the process has become what it is", func() bool { return len(running(nap)) == 1 })
	goesOn := func(when string) {
		t.Helper()
		c = g.dial(t)
		expect(t, c.run(s, "pwd; echo $v"), 0, "/usr\nkept\n", "")
		if state := c.call("process.info", object{"process_id": p}).str("state"); state != "running" || len(running(nap)) != 1 {
			t.Errorf("%s: the process is %s, %d run", when, state, len(running(nap)))
		}
	}
	goesOn("before")
	sKill(t, g)
	goesOn("after a crash")
	bwUpgrade(t, g)
	goesOn("after an upgrade")
	sKill(t, g)
	goesOn("after both")
	nap2 := sleeper()
	c.run(s, "(setsid "+nap2+" >/dev/null 2>&1 &)")
	eventually(t, "it runs", func() bool { return len(running(nap2)) == 1 })
	c.call("session.destroy", object{"session_id": s, "force": true})
	if left := append(running(nap), running(nap2)...); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func bwUpgrade(t *testing.T, g *server) {
	t.Helper()
	old := g.gatewayPid()
	if out, err := exec.Command(binary, "upgrade", "--state-dir", filepath.Join(g.dir, "state")).CombinedOutput(); err != nil {
		t.Errorf("upgrade: %s", out)
	}
	eventually(t, "the new one serves", func() bool { pid := g.gatewayPid(); return pid != 0 && pid != old })
}

// TestSandboxEndsWithAnyOfItsProcesses: with whichever of its processes, all of it; also after an upgrade, which is an exec of the keeper.
func TestSandboxEndsWithAnyOfItsProcesses(t *testing.T) {
	for _, who := range []string{"launcher", "bwrap", "keeper"} {
		t.Run(who, func(t *testing.T) {
			g := bwStart(t, 0)
			t.Cleanup(func() { _ = g.stop() }) // its end is no good one
			c, nap := g.dial(t), sleeper()
			c.run(c.session(), "(setsid "+nap+" >/dev/null 2>&1 &)")
			bwUpgrade(t, g)
			eventually(t, "it runs", func() bool { return len(running(nap)) == 1 })
			pid := map[string]int{"launcher": g.cmd.Process.Pid, "bwrap": bwParent(g.pid), "keeper": g.pid}[who]
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "nothing is left", func() bool { return len(running(nap)) == 0 && len(g.bwLeft()) == 0 })
		})
	}
}

// TestEarlySignalStopsASandbox: a signal that comes before trl is in the sandbox is not lost, though the first process of a PID
// namespace gets only what it has a handler for.
func TestEarlySignalStopsASandbox(t *testing.T) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("not run: no bubblewrap")
	}
	for i := range pick(20, 100) {
		dir := t.TempDir()
		cmd := exec.Command(binary, "serve", "--sandbox", "bwrap", "--listen", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"), "--default-dir", dir)
		cmd.WaitDelay = patience
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 2 * time.Millisecond) // not a wait for anything: wherever it is by then
		_ = cmd.Process.Signal(syscall.SIGTERM)
		hung := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		if !hung.Stop() {
			t.Fatalf("TERM after %d ms was lost", i*2)
		}
		g := server{dir: dir}
		eventually(t, "nothing is left", func() bool { return len(g.bwLeft()) == 0 })
	}
}

// TestSandboxAllowWrite: only the directories given, with Landlock and without.
func TestSandboxAllowWrite(t *testing.T) {
	dir, err := os.MkdirTemp(top, "allowed-")
	if err != nil {
		t.Fatal(err)
	}
	g := bwStart(t, 0, "--allow-write", dir)
	g.endWith(t)
	c := g.dial(t)
	s := c.session()
	expect(t, c.run(s, "pwd; echo x >"+dir+"/made; cat "+dir+"/made"), 0, g.home+"\nx\n", "")
	for _, path := range []string{g.home + "/made", top + "/made", "/etc/made"} {
		if r := c.run(s, "echo x 2>/dev/null >"+path); r.num("exit_code") == 0 {
			t.Errorf("wrote %s", path)
		}
	}
}
