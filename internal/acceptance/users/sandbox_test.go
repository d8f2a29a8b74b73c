package users

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

	"trl/internal/rig"
	"trl/internal/testkit"
)

// --sandbox bwrap: everything is as it is otherwise, and what is outside can neither be seen nor changed.

// sandboxWays are who starts trl, and how.
var sandboxWays = []struct {
	name  string
	uid   uint32 // 0: whoever we are
	flags string
}{
	{"auto", 0, ""},
	{"none", 0, "--isolation none"},
	{"session-user", 0, "--session-user " + rig.SessionUser + " --user " + rig.GatewayUser},
	{"ordinary", 65534, ""},
}

// startSandbox starts a gateway in a sandbox; its pid is the keeper's, as it is without.
func startSandbox(t *testing.T, uid uint32, flags ...string) *rig.Server {
	t.Helper()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("not run: no bubblewrap")
	}
	g, err := rig.Launch(func(cmd *exec.Cmd) {
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
	for below := g.Pid; below != 0; below = g.GatewayPid() { // down to the gateway, which has none
		keeper, g.Pid = g.Pid, below
	}
	g.Pid = keeper
	return g
}

func sandboxParent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), "\nPPid:")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(strings.TrimSpace(line))
	return n
}

// sandboxLeft lists the processes that have the gateway's directory in their command line: launcher, bwrap, keeper and gateway.
func sandboxLeft(g *rig.Server) (left []string) {
	for _, pid := range testkit.Pids() {
		if line := rig.Cmdline(pid); strings.Contains(line, g.Dir) {
			left = append(left, fmt.Sprint(pid, " ", line))
		}
	}
	return append(left, g.Processes()...)
}

func TestSandboxHoldsSessions(t *testing.T) {
	for _, way := range sandboxWays {
		t.Run(way.name, func(t *testing.T) {
			if way.uid != 0 || strings.Contains(way.flags, "user") {
				rig.OnlyRoot(t)
			}
			flags := strings.Fields(way.flags)
			if len(rig.FlagsOfAll) > 0 && slices.Contains(flags, "--session-user") {
				t.Skip("not run: other flags are asked for")
			}
			g := startSandbox(t, way.uid, flags...)
			g.EndWith(t)
			everythingOfSandbox(t, g)
			for _, fault := range g.Stop() {
				t.Errorf("gateway: %s", fault)
			}
			if left := sandboxLeft(g); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func everythingOfSandbox(t *testing.T, g *rig.Server) {
	c := g.Dial(t)
	if caps := c.Call("system.capabilities", nil); caps.Str("sandbox") != "bwrap" || !caps.Yes("no_new_privs") {
		t.Errorf("capabilities: %v", caps)
	}
	s := c.Session()
	outside := exec.Command("sleep", "300")
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = outside.Process.Kill(); _ = outside.Wait() }()

	if out := c.Run(s, "ls /run | grep -v ^trl-ports-; env | grep TRL_SANDBOXED").Stdout(); out != "" {
		t.Errorf("there is %q", out)
	}
	// What can be changed, and what not.
	rig.Expect(t, c.Run(s, "pwd; echo in >made && cat made"), 0, g.Home+"\nin\n", "")
	if b, err := os.ReadFile(filepath.Join(g.Home, "made")); string(b) != "in\n" {
		t.Errorf("outside, what is made inside is %q, %v", b, err)
	}
	mine := "/tmp/" + rig.Unique("trl-sandboxed")
	rig.Expect(t, c.Run(s, "echo x >"+mine+" && cat "+mine), 0, "x\n", "")
	if _, err := os.Stat(mine); err == nil {
		t.Errorf("%s is outside", mine)
	}
	for _, path := range []string{filepath.Join(rig.Top, "made"), "/etc/made", "/var/tmp/made", "/usr/made", "/sys/made", "/sys/kernel/uevent_helper", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/domainname"} {
		if r := c.Run(s, "(: >>"+path+") 2>/dev/null"); r.Num("exit_code") == 0 {
			t.Errorf("%s can be opened to write", path)
		}
	}
	for _, try := range []string{"mount -o remount,rw,bind /", "mount -t tmpfs none /mnt", "umount -l /tmp", "unshare -Urm mount -o remount,rw,bind /"} {
		if r := c.Run(s, try+" 2>/dev/null"); r.Num("exit_code") == 0 {
			t.Errorf("%s: %v", try, r)
		}
	}
	// What can be seen.
	if out := c.Run(s, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").Stdout(); strings.Contains(out, "sleep 300") || !strings.Contains(out, "serve") {
		t.Errorf("processes: %q", out)
	}
	if r := c.Run(s, fmt.Sprintf("kill -0 %d", outside.Process.Pid)); r.Num("exit_code") == 0 {
		t.Error("a process outside can be signalled")
	}
	// State, restores, background processes; over a crash and an upgrade.
	if r := c.Run(s, "kill -9 $$"); !r.Yes("shell_restored") {
		t.Errorf("killed: %v", r)
	}
	rig.Expect(t, c.Run(s, "v=kept; cd /usr; echo $v; pwd"), 0, "kept\n/usr\n", "")
	nap := rig.Sleeper()
	p := c.Call("process.start", object{"session_id": s, "command": nap}).Str("process_id")
	testkit.Eventually(t, "the process has become what it is", func() bool { return len(rig.Running(nap)) == 1 })
	goesOn := func(when string) {
		t.Helper()
		c = g.Dial(t)
		rig.Expect(t, c.Run(s, "pwd; echo $v"), 0, "/usr\nkept\n", "")
		if state := c.Call("process.info", object{"process_id": p}).Str("state"); state != "running" || len(rig.Running(nap)) != 1 {
			t.Errorf("%s: the process is %s, %d run", when, state, len(rig.Running(nap)))
		}
	}
	goesOn("before")
	rig.ReplaceGateway(t, g)
	goesOn("after a crash")
	upgradeSandbox(t, g)
	goesOn("after an upgrade")
	rig.ReplaceGateway(t, g)
	goesOn("after both")
	nap2 := rig.Sleeper()
	c.Run(s, "(setsid "+nap2+" >/dev/null 2>&1 &)")
	testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap2)) == 1 })
	c.Call("session.destroy", object{"session_id": s, "force": true})
	if left := append(rig.Running(nap), rig.Running(nap2)...); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func upgradeSandbox(t *testing.T, g *rig.Server) {
	t.Helper()
	old := g.GatewayPid()
	g.Upgrade(t)
	testkit.Eventually(t, "the new one serves", func() bool { pid := g.GatewayPid(); return pid != 0 && pid != old })
}

// TestSandboxEndsWithAnyOfItsProcesses: with whichever of its processes, all of it; also after an upgrade, which is an exec of the keeper.
func TestSandboxEndsWithAnyOfItsProcesses(t *testing.T) {
	for _, who := range []string{"launcher", "bwrap", "keeper"} {
		t.Run(who, func(t *testing.T) {
			g := startSandbox(t, 0)
			t.Cleanup(func() { _ = g.Stop() }) // its end is no good one
			c, nap := g.Dial(t), rig.Sleeper()
			c.Run(c.Session(), "(setsid "+nap+" >/dev/null 2>&1 &)")
			upgradeSandbox(t, g)
			testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) == 1 })
			pid := map[string]int{"launcher": g.Cmd.Process.Pid, "bwrap": sandboxParent(g.Pid), "keeper": g.Pid}[who]
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "nothing is left", func() bool { return len(rig.Running(nap)) == 0 && len(sandboxLeft(g)) == 0 })
		})
	}
}

// TestEarlySignalStopsASandbox: a signal that comes before trl is in the sandbox is not lost, though the first process of a PID
// namespace gets only what it has a handler for.
func TestEarlySignalStopsASandbox(t *testing.T) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("not run: no bubblewrap")
	}
	for i := range rig.Pick(20, 100) {
		dir := t.TempDir()
		cmd := exec.Command(rig.Binary, "serve", "--sandbox", "bwrap", "--listen", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"), "--default-dir", dir)
		cmd.WaitDelay = testkit.Patience
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 2 * time.Millisecond) // not a wait for anything: wherever it is by then
		_ = cmd.Process.Signal(syscall.SIGTERM)
		hung := time.AfterFunc(testkit.Patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		if !hung.Stop() {
			t.Fatalf("TERM after %d ms was lost", i*2)
		}
		g := rig.Server{Dir: dir}
		testkit.Eventually(t, "nothing is left", func() bool { return len(sandboxLeft(&g)) == 0 })
	}
}

// TestSandboxAllowWrite: only the directories given, with Landlock and without.
func TestSandboxAllowWrite(t *testing.T) {
	dir, err := os.MkdirTemp(rig.Top, "allowed-")
	if err != nil {
		t.Fatal(err)
	}
	g := startSandbox(t, 0, "--allow-write", dir)
	g.EndWith(t)
	c := g.Dial(t)
	s := c.Session()
	rig.Expect(t, c.Run(s, "pwd; echo x >"+dir+"/made; cat "+dir+"/made"), 0, g.Home+"\nx\n", "")
	for _, path := range []string{g.Home + "/made", rig.Top + "/made", "/etc/made"} {
		if r := c.Run(s, "echo x 2>/dev/null >"+path); r.Num("exit_code") == 0 {
			t.Errorf("wrote %s", path)
		}
	}
}
