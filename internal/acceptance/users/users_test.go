package users

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// TestSessionsOfAnotherUserWorkAlike: everything is as it is otherwise.
func TestSessionsOfAnotherUserWorkAlike(t *testing.T) {
	t.Parallel() // it mostly waits
	rig.EachWay(t, func(t *testing.T, flags []string) {
		for _, tier := range rig.Tiers {
			g := rig.Gateway(t, append(flags, "--isolation", tier)...)
			for _, sh := range []string{"/bin/sh", "/bin/bash"} {
				t.Run(tier+" "+filepath.Base(sh), func(t *testing.T) { everythingOfUsers(t, g, sh) })
			}
		}
	})
}

func everythingOfUsers(t *testing.T, g *rig.Server, sh string) {
	c := g.Dial(t)
	s := c.Session(object{"shell": sh})
	who := strings.Fields(c.Run(s, "echo $(id -u) $(id -g) $USER $LOGNAME; id -G >&2").Stdout())
	if len(who) != 4 || who[0] == "0" || who[1] == "0" || who[2] != who[0] || who[3] != who[0] {
		t.Errorf("it runs as %v", who)
	}
	if out := c.Run(s, "grep NoNewPrivs /proc/self/status").Stdout(); !strings.HasSuffix(out, "\t1\n") {
		t.Errorf("%q", out)
	}
	// State, streams by their names, stdin, large texts.
	rig.Expect(t, c.Run(s, "cd /usr; v=kept; f() { echo f $1; }; export w=out"), 0, "", "")
	rig.Expect(t, c.Run(s, "pwd; echo $v; f x; sh -c 'echo $w'; echo err >/dev/stderr; echo out >/dev/stdout"), 0, "/usr\nkept\nf x\nout\nout\n", "err\n")
	rig.Expect(t, c.Run(s, "cat; echo end", object{"stdin": "abc\n"}), 0, "abc\nend\n", "")
	rig.Expect(t, c.Run(s, "cat; echo end", object{"stdin": strings.Repeat("0123456789abcde\n", 20000)}), 0, strings.Repeat("0123456789abcde\n", 20000)+"end\n", "")
	rig.Expect(t, c.Run(s, "read x; read y; echo $x-$y; exec <&-; echo on", object{"stdin": "a\nb\nc\n", "env": object{"E": "e"}, "working_dir": "/"}), 0, "a-b\non\n", "")
	long := strings.Repeat("# "+strings.Repeat("x", 98)+"\n", 5000) + "echo big $v\n"
	rig.Expect(t, c.Run(s, long), 0, "big kept\n", "")
	if f := c.Try("exec.run", object{"session_id": s, "command": "pwd", "working_dir": "/root"}); f.Code() != "WORKING_DIR_NOT_FOUND" && f.OK {
		t.Errorf("in /root: %+v", f)
	}
	// Input that comes later, and its end without any.
	live := c.Stream(s, "cat; echo over", object{"interactive_stdin": true})
	c.Call("exec.input", object{"exec_id": live.Str("exec_id"), "data": "late\n"})
	c.Call("exec.input", object{"exec_id": live.Str("exec_id"), "eof": true})
	if out, _ := c.Output(live.Str("stream_id"), 0); string(out) != "late\nover\n" {
		t.Errorf("live input: %q", out)
	}
	// Restored after its death, with its state.
	r := c.Run(s, "kill -9 $$")
	if !r.Yes("shell_restored") {
		t.Errorf("killed: %v", r)
	}
	if lost := fmt.Sprint(r["state_lost"]); lost != "[functions]" && lost != "<nil>" && lost != "[]" {
		t.Errorf("lost %s: %v", lost, r)
	}
	rig.Expect(t, c.Run(s, "pwd; echo $v"), 0, "/usr\nkept\n", "")
	if r := c.Run(s, "exit 7"); r.Num("exit_code") != 7 || !r.Yes("shell_restored") {
		t.Errorf("exit: %v", r)
	}
	// Background processes, also of shells that copy themselves; their input and logs.
	p := c.Call("process.start", object{"session_id": s, "command": "echo p $v; cat; exit 4", "stdin": "open"}).Str("process_id")
	c.Call("process.input", object{"process_id": p, "data": "in\n", "eof": true})
	testkit.Eventually(t, "the process ends", func() bool {
		return c.Call("process.info", object{"process_id": p}).Str("state") != "running"
	})
	logs := c.Call("process.logs", object{"process_id": p})
	var text string
	for _, chunk := range logs.Objs("chunks") {
		text += chunk.Text("data", "encoding")
	}
	if text != "p kept\nin\n" || c.Call("process.info", object{"process_id": p}).Num("exit_code") != 4 {
		t.Errorf("process: %q, %v", text, c.Call("process.info", object{"process_id": p}))
	}
	// Cancel, timeout, and the whole tree.
	nap := rig.Sleeper()
	r = c.Run(s, "trap '' TERM; (setsid "+nap+" &); "+nap, object{"timeout_s": 0.5, "kill_grace_s": 0.2})
	if !r.Yes("timed_out") || len(rig.Running(nap)) > 0 {
		t.Errorf("timeout: %v, left %v", r, rig.Running(nap))
	}
	rig.Expect(t, c.Run(s, "echo $v"), 0, "kept\n", "")
	// A crash of the gateway, with something under way, and its input.
	x := c.Stream(s, "echo begun; cat; sleep 1; echo done $v; exit 3", object{"interactive_stdin": true, "on_slow": "skip"}).Str("exec_id")
	c.Call("exec.input", object{"exec_id": x, "data": "1\n"})
	waiting := c.Stream(s, "cat", object{"stdin": "queued\n"}).Str("exec_id")
	rig.ReplaceGateway(t, g)
	c = g.Dial(t)
	c.Call("exec.input", object{"exec_id": x, "data": "2\n", "eof": true})
	if f := c.Call("exec.wait", object{"exec_id": x}); f.Stdout() != "begun\n1\n2\ndone kept\n" || f.Num("exit_code") != 3 {
		t.Errorf("over a crash: %v", f)
	}
	if f := c.Call("exec.wait", object{"exec_id": waiting}); f.Stdout() != "queued\n" {
		t.Errorf("over a crash, queued: %v", f)
	}
	rig.Expect(t, c.Run(s, "echo $v; id -u"), 0, "kept\n"+who[0]+"\n", "")
	// session.reset: the same user.
	c.Call("session.reset", object{"session_id": s})
	rig.Expect(t, c.Run(s, "echo $v; id -u"), 0, "\n"+who[0]+"\n", "")
	c.Run(s, "(setsid "+nap+" >/dev/null 2>&1 &)")
	c.Call("session.destroy", object{"session_id": s, "force": true})
	if left := rig.Running(nap); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// fifoDirOf is the directory of FIFOs of this gateway: its keeper has the lock in it open. It is empty when there is none.
func fifoDirOf(g *rig.Server) string {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", g.Pid))
	for _, fd := range fds {
		to, _ := os.Readlink(fd)
		if dir := filepath.Dir(to); strings.HasPrefix(filepath.Base(dir), "trl-ports-") {
			return dir
		}
	}
	return ""
}

// TestFIFODirStaysLockedOverAnUpgrade: a server that starts does not take the keeper of another one for dead, which was upgraded.
func TestFIFODirStaysLockedOverAnUpgrade(t *testing.T) {
	start := func() *rig.Server {
		g, err := rig.StartGateway("--allow-write", "/", "--warm", "0")
		if err != nil && strings.Contains(err.Error(), "Landlock") {
			t.Skipf("not run: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		g.EndWith(t)
		return g
	}
	g := start()
	s := g.Dial(t).Session(nil)
	g.Upgrade(t)
	start()
	c := g.Dial(t)
	rig.Expect(t, c.Run(s, "echo still; exit 3"), 3, "still\n", "") // a new shell opens its pipes by their names
	rig.Expect(t, c.Run(s, "echo here"), 0, "here\n", "")
}

// attack tries what nobody may do from another user's process, and prints the name of what could be done.
// argv: JSON {pids, dirs, files, sockets}.
const attack = `
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
a = json.loads(sys.argv[1])
done = []
def attempt(name, f):
    try:
        f()
        done.append(name)
    except (OSError, PermissionError):
        pass
def sys_(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), "")
def read(path, at=0):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.pread(fd, 1, at) if at else os.read(fd, 1)
for pid in a["pids"]:
    p = "/proc/%d/" % pid
    for f in ("environ", "maps", "auxv"):
        attempt(f, lambda: read(p + f))
    attempt("mem", lambda: os.close(os.open(p + "mem", os.O_RDWR)))
    for f in ("cwd", "root", "exe"):
        attempt(f, lambda: os.readlink(p + f))
        attempt(f + "/", lambda: os.stat(p + f + "/"))
    attempt("fd", lambda: os.listdir(p + "fd"))
    for fd in range(64):
        attempt("fd/", lambda: os.close(os.open(p + "fd/%d" % fd, os.O_RDONLY | os.O_NONBLOCK)))
        attempt("fd/ w", lambda: os.close(os.open(p + "fd/%d" % fd, os.O_WRONLY | os.O_NONBLOCK)))
    attempt("kill", lambda: os.kill(pid, 0))
    attempt("kill CONT", lambda: os.kill(pid, 18))
    attempt("prlimit", lambda: sys_(302, pid, 7, 0, ctypes.create_string_buffer(16)))
    attempt("ptrace", lambda: sys_(101, 0x4206, pid, 0, 0)) # PTRACE_SEIZE; our end detaches
    buf = ctypes.create_string_buffer(8)
    def vm():
        iov = (ctypes.c_ulong * 2)(ctypes.addressof(buf), 8)
        far = (ctypes.c_ulong * 2)(0x400000, 8)
        if libc.syscall(310, pid, iov, 1, far, 1, 0) < 0 and ctypes.get_errno() != 14: # EFAULT: allowed
            raise OSError(ctypes.get_errno(), "")
    attempt("process_vm_readv", vm)
    def getfd():
        pidfd = os.pidfd_open(pid)
        sys_(438, pidfd, 0, 0)
    attempt("pidfd_getfd", getfd)
for d in a["dirs"]:
    attempt("list " + os.path.basename(d), lambda: os.listdir(d))
    attempt("make in " + os.path.basename(d), lambda: os.close(os.open(d + "/made", os.O_CREAT | os.O_WRONLY)))
for f in a["files"]:
    attempt("read " + f, lambda: os.close(os.open(f, os.O_RDONLY | os.O_NONBLOCK)))
    attempt("write " + f, lambda: os.close(os.open(f, os.O_RDWR | os.O_NONBLOCK)))
    attempt("chmod " + f, lambda: os.chmod(f, 0o600))
    attempt("replace " + f, lambda: os.rename(f, f + ".x"))
for s in a["sockets"]:
    c = socket.socket(socket.AF_UNIX)
    attempt("connect", lambda: c.connect(s))
print("\n".join(sorted(set(done))))
`

// TestSessionReachesNothingOfTheServer: from inside a session of another user, nothing of the keeper, the gateway, the state directory and the
// Unix socket can be had; where each session has its own number, nothing of another session either.
func TestSessionReachesNothingOfTheServer(t *testing.T) {
	rig.OnlyRoot(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("not run: the attack has amd64's numbers of system calls")
	}
	const python = "/usr/bin/python3" // everybody's; who has another one first in the PATH may have it alone
	if _, err := os.Stat(python); err != nil {
		t.Skip("not run: no " + python)
	}
	for _, way := range rig.UserWays {
		t.Run(way.Name, func(t *testing.T) {
			flags := way.Flags()
			sock := filepath.Join(rig.Top, "sock-"+way.Name)
			g := rig.Gateway(t, append(flags, "--unix", sock)...)
			c := g.Dial(t)
			s, other := c.Session(object{"shell": "/bin/bash"}), c.Session(object{"shell": "/bin/bash"})
			nap := rig.Sleeper()
			c.Run(other, nap+" & secret=1")
			c.Stream(other, "cat", object{"interactive_stdin": true}) // with pipes of all kinds
			alone := strings.Contains(flags[1], "-")
			aims := struct {
				Pids    []int    `json:"pids"`
				Dirs    []string `json:"dirs"`
				Files   []string `json:"files"`
				Sockets []string `json:"sockets"`
			}{Pids: []int{g.Pid, g.GatewayPid()}, Dirs: []string{filepath.Join(g.Dir, "state")}, Sockets: []string{sock}}
			aims.Files, _ = filepath.Glob(filepath.Join(g.Dir, "state", "*"))
			if dir := fifoDirOf(g); dir != "" {
				aims.Dirs = append(aims.Dirs, dir, filepath.Join(dir, other))
				if files, _ := filepath.Glob(filepath.Join(dir, other, "*")); alone {
					aims.Files = append(aims.Files, files...)
				}
			}
			if len(aims.Dirs) != 3 {
				t.Fatalf("no directory of FIFOs: %v", aims.Dirs)
			}
			if alone {
				aims.Pids = append(aims.Pids, append(rig.Running(nap), rig.ProcessesOfSession(other)...)...)
			}
			if len(aims.Files) < 3 || alone && len(aims.Files) < 8 {
				t.Fatalf("files: %q", aims.Files)
			}
			text, _ := json.Marshal(aims)
			script := filepath.Join(g.Dir, "attack.py")
			if err := os.WriteFile(script, []byte(attack), 0o644); err != nil {
				t.Fatal(err)
			}
			command := fmt.Sprintf("%s %s '%s'", python, script, text)
			rig.Expect(t, c.Run(s, command), 0, "\n", "")
			rig.Expect(t, c.Run(other, ": it is as it was; echo $secret", object{"timeout_s": 30, "session_id": s}), 0, "\n", "")
			if len(rig.Running(nap)) != 1 {
				t.Errorf("%d run", len(rig.Running(nap)))
			}
			// A session may not get at the gateway through what belongs to itself, either.
			for what, try := range map[string]string{
				"its directory": "d=${__trl_p}; rm -f $d/* 2>/dev/null; mv $d $d.x 2>/dev/null; : 2>/dev/null >$d/new; ls $d 2>/dev/null | wc -l",
				"descriptors":   "ls -l /proc/$$/fd | grep -c 'memfd\\|socket'",
			} {
				if out := c.Run(s, try).Stdout(); out != "0\n" {
					t.Errorf("%s: %q", what, out)
				}
			}
			rig.Expect(t, c.Run(s, "echo still here"), 0, "still here\n", "")
			// The same, by root and from outside: it is not the attack that is weak. What would change something is left out.
			aims.Files, aims.Dirs = []string{}, []string{}
			text, _ = json.Marshal(aims)
			out, err := exec.Command(python, script, string(text)).CombinedOutput()
			for _, name := range []string{"environ", "maps", "mem", "cwd", "root/", "fd", "fd/", "kill", "ptrace", "process_vm_readv", "pidfd_getfd", "connect", "prlimit"} {
				if !slices.Contains(strings.Split(string(out), "\n"), name) {
					t.Errorf("root cannot do %q (%v): %s", name, err, out)
				}
			}
		})
	}
}

// TestUserNumbersAreReusedOnlyWhenFree: each session has a number of its own, and nobody else gets it as long as anything of it is left.
func TestUserNumbersAreReusedOnlyWhenFree(t *testing.T) {
	rig.OnlyRoot(t)
	numbers := rig.UserRange(3)
	g := rig.Gateway(t, "--session-user", numbers, "--warm", "0")
	c := g.Dial(t)
	var sessions []string
	seen := map[string]bool{}
	for range 3 {
		s := c.Session()
		sessions = append(sessions, s)
		uid := strings.TrimSpace(c.Run(s, "id -u").Stdout())
		if seen[uid] {
			t.Errorf("%s twice", uid)
		}
		seen[uid] = true
	}
	if f := c.Try("session.create", nil); f.Code() != "LIMIT_EXCEEDED" {
		t.Errorf("a fourth: %+v", f)
	}
	for range 4 { // round and round
		first := strings.TrimSpace(c.Run(sessions[0], "id -u").Stdout())
		c.Call("session.destroy", object{"session_id": sessions[0], "force": true})
		s := c.Session()
		if uid := strings.TrimSpace(c.Run(s, "id -u").Stdout()); uid != first {
			t.Errorf("%s, and %s was free", uid, first)
		}
		sessions = append(sessions[1:], s)
	}
	// Somebody outside has the number of one that ends: it is not given out again.
	uid := strings.TrimSpace(c.Run(sessions[0], "id -u").Stdout())
	n, _ := strconv.ParseUint(uid, 10, 32)
	stray := exec.Command("sleep", "300")
	stray.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(n), Gid: uint32(n)}}
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	c.Call("session.destroy", object{"session_id": sessions[0], "force": true})
	if f := c.Try("session.create", nil); f.Code() != "LIMIT_EXCEEDED" {
		t.Errorf("a number that somebody has: %+v", f)
	}
	_ = stray.Process.Kill()
	_ = stray.Wait()
	testkit.Eventually(t, "it is free again", func() bool { return c.Try("session.create", nil).OK })
}

// TestNothingIsLeftInTheFIFODir: neither of sessions nor of gateways, however those end.
func TestNothingIsLeftInTheFIFODir(t *testing.T) {
	rig.EachWay(t, func(t *testing.T, flags []string) {
		g, err := rig.StartGateway(append(flags, "--warm", "0", "--retention", "0")...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = g.Stop() }) // its end is no good one
		c := g.Dial(t)
		mine := fifoDirOf(g)
		if mine == "" {
			t.Fatal("the gateway has no directory of FIFOs")
		}
		base := 0 // after the first ones: some descriptors are opened once
		for _, sh := range append(rig.Shells[:2:2], rig.Shells...) {
			s := c.Session(object{"shell": sh})
			n := rig.CountFiles(mine)
			for i := range 20 {
				rig.Expect(t, c.Run(s, "cat", object{"stdin": "x\n", "env": object{"E": strconv.Itoa(i)}}), 0, "x\n", "")
			}
			p := c.Call("process.start", object{"session_id": s, "command": "f() { :; }; cat", "stdin": "open"}).Str("process_id")
			c.Call("process.input", object{"process_id": p, "eof": true})
			testkit.Eventually(t, "the process ends", func() bool { // and is forgotten, since nothing is retained
				f := c.Try("process.info", object{"process_id": p})
				return f.Code() == "PROCESS_NOT_FOUND" || f.OK && f.Data.Str("state") != "running"
			})
			c.Run(s, "kill -9 $$")
			c.Run(s, ":")
			if now := rig.CountFiles(mine); now > n+2 { // the pipes of the last command
				t.Errorf("%d ports, there were %d", now, n)
			}
			c.Call("session.destroy", object{"session_id": s, "force": true})
			testkit.Eventually(t, "all are gone but the lock", func() bool { return rig.CountDirs(mine) == 1 && rig.CountFiles(mine) == 1 })
			if sh == rig.Shells[1] && base == 0 {
				testkit.Eventually(t, "it is forgotten", func() bool { return c.Try("session.info", object{"session_id": s}).Code() == "SESSION_NOT_FOUND" })
				base = rig.FdsOf(t, g.Pid)
			}
		}
		testkit.Eventually(t, "descriptors are closed", func() bool { return rig.FdsOf(t, g.Pid) <= base })
		s, nap := c.Session(), rig.Sleeper()
		c.Run(s, "(setsid "+nap+" >/dev/null 2>&1 &)")
		_ = syscall.Kill(g.Pid, syscall.SIGKILL) // the keeper
		testkit.Eventually(t, "nothing runs any more", func() bool { return len(rig.Running(nap)) == 0 })
		testkit.Eventually(t, "its ports are gone", func() bool { _, err := os.Stat(mine); return err != nil })
	})
}

// TestGatewayOfAnotherUser: an upgrade of a gateway that is not root, and what its user may have of the state directory.
func TestGatewayOfAnotherUser(t *testing.T) {
	rig.OneNode(t, "it is about a gateway's own state directory, and the token in it")
	rig.OnlyRoot(t)
	g := rig.Gateway(t, "--session-user", rig.SessionUser, "--user", rig.GatewayUser, "--auth", "token", "--limit-open-files", "77")
	state := filepath.Join(g.Dir, "state")
	uids := func(pid int) string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, rest, _ := strings.Cut(string(text), "\nUid:")
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	if got, want := uids(g.GatewayPid()), strings.Join([]string{rig.GatewayUser, rig.GatewayUser, rig.GatewayUser, rig.GatewayUser}, "\t"); got != want {
		t.Errorf("the gateway is %q", got)
	}
	if got := uids(g.Pid); got != "0\t0\t0\t0" {
		t.Errorf("the keeper is %q", got)
	}
	run := func(command string) (string, error) {
		out, err := exec.Command(rig.Binary, "run", "--state-dir", state, "--", command).CombinedOutput()
		return string(out), err
	}
	if out, err := run("v=1; id -u"); err != nil || out != rig.SessionUser+"\n" {
		t.Errorf("run: %q, %v", out, err)
	}
	if out, err := run("ulimit -n"); err != nil || out != "77\n" {
		t.Errorf("limit: %q, %v", out, err)
	}
	old := g.GatewayPid()
	g.Upgrade(t)
	testkit.Eventually(t, "the new one serves", func() bool { pid := g.GatewayPid(); return pid != 0 && pid != old })
	if out, err := run("echo $v"); err != nil || out != "1\n" {
		t.Errorf("after the upgrade: %q, %v", out, err)
	}
	if out, err := run("kill -9 $$"); err == nil { // another shell, by the new keeper
		t.Errorf("kill: %q", out)
	}
	if out, err := run("echo $v; ulimit -n; id -u; grep -c '^NoNewPrivs:.1$' /proc/self/status"); err != nil || out != "1\n77\n"+rig.SessionUser+"\n1\n" {
		t.Errorf("after the upgrade, and a restore: %q, %v", out, err)
	}
	if got := uids(g.GatewayPid()); !strings.HasPrefix(got, rig.GatewayUser) {
		t.Errorf("the new gateway is %q", got)
	}
	n, _ := strconv.ParseUint(rig.GatewayUser, 10, 32)
	for what, ok := range map[string]bool{"cat " + state + "/tokens": true, "touch " + state + "/x": false, "rm -f " + state + "/tokens": false, "cat " + state + "/lock": false} {
		cmd := exec.Command("sh", "-c", what)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(n), Gid: uint32(n)}}
		if err := cmd.Run(); (err == nil) != ok {
			t.Errorf("%s as the gateway's user: %v", what, err)
		}
	}
}

// TestLimitsOfAnotherUser: they hold as they do for our own user, and the kernel's own limit of processes counts now.
func TestLimitsOfAnotherUser(t *testing.T) {
	rig.EachWay(t, func(t *testing.T, flags []string) {
		g := rig.Gateway(t, flags...)
		c := g.Dial(t)
		possible := c.Call("system.capabilities", nil)["session_limits"].([]any)
		limits := object{}
		for name, v := range map[string]int{"open_files": 77, "file_size_bytes": 1 << 20, "pids": 20, "memory_bytes": 256 << 20} {
			if slices.Contains(possible, any(name)) {
				limits[name] = v
			}
		}
		s := c.Session(object{"limits": limits, "shell": "/bin/bash"})
		if limits.Has("open_files") {
			rig.Expect(t, c.Run(s, "ulimit -n"), 0, "77\n", "")
		}
		if limits.Has("pids") {
			if r := c.Run(s, "for i in {1..40}; do sleep 5 & done 2>/dev/null; wait", object{"timeout_s": 20}); r.Str("limit_hit") != "pids" {
				t.Errorf("pids: %v", r)
			}
		}
		if limits.Has("memory_bytes") {
			if r := c.Run(s, "x=$(head -c 600000000 /dev/zero | tr '\\0' x); echo ${#x}", object{"timeout_s": 60}); !r.Yes("oom_killed") {
				t.Errorf("memory: %v", r)
			}
		}
		rig.Expect(t, c.Run(s, "echo on"), 0, "on\n", "")
		s = c.Session(object{"shell": "/bin/sh"})
		if r := c.Run(s, "ulimit -p 1; (:)"); !strings.Contains(r.Stderr(), "Cannot fork") {
			t.Errorf("ulimit -p 1: %v", r)
		}
		c.Call("session.destroy", object{"session_id": s, "force": true})
	})
}

// TestAllowWrite: a session writes below the directories, to its own streams, and nowhere else, whatever it starts.
func TestAllowWrite(t *testing.T) {
	dir, err := os.MkdirTemp(rig.Top, "allowed-")
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(rig.Top, "outside")
	if err := os.WriteFile(outside, []byte("as it was\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	g, err := rig.StartGateway("--allow-write", dir, "--default-dir", dir)
	if err != nil && strings.Contains(err.Error(), "Landlock") {
		t.Skipf("not run: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	g.EndWith(t)
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, "echo a >f; mkdir -p d; mv f d/g; cat d/g; ln -s x l; rm -r d l; echo n >/dev/null; echo e >/dev/stderr; mkfifo p && rm p"), 0, "a\n", "e\n")
		for _, try := range []string{"echo x >", "echo x >>", ": >", "rm ", "truncate -s 0 ", "ln -f ", "mv f ", "setsid -w sh -c 'echo x >$1' x ", "chroot / sh -c 'echo x >$1' x "} {
			if strings.HasPrefix(try, "ln") {
				try = "cd " + dir + "; echo x >f; ln -f f "
			}
			c.Run(s, "cd "+dir+"; echo x >f; "+try+outside+" 2>/dev/null")
			if b, err := os.ReadFile(outside); string(b) != "as it was\n" {
				t.Fatalf("%s: %q, %v", try, b, err)
			}
		}
		rig.Expect(t, c.Run(s, "cat "+outside), 0, "as it was\n", "")
		if r := c.Run(s, "mknod dev c 1 3"); os.Geteuid() == 0 && r.Num("exit_code") == 0 {
			t.Errorf("made a device: %v", r)
		}
		if r := c.Run(s, "echo x >"+rig.Top+"/made 2>/dev/null"); r.Num("exit_code") == 0 {
			t.Errorf("made a file: %v", r)
		}
		// What comes later is held as well: after a restore, in a background process, in another shell.
		c.Run(s, "kill -9 $$")
		if r := c.Run(s, "echo x >"+outside+" 2>/dev/null; bash -c 'echo x >"+outside+"' 2>/dev/null; echo x >in"); r.Num("exit_code") != 0 {
			t.Errorf("inside: %v", r)
		}
		p := c.Call("process.start", object{"session_id": s, "command": "echo x >" + outside + "; echo y >" + dir + "/y"}).Str("process_id")
		testkit.Eventually(t, "the process ends", func() bool { return c.Call("process.info", object{"process_id": p}).Str("state") != "running" })
		if b, _ := os.ReadFile(outside); string(b) != "as it was\n" {
			t.Errorf("outside is %q", b)
		}
		if b, _ := os.ReadFile(filepath.Join(dir, "y")); string(b) != "y\n" {
			t.Errorf("inside is %q", b)
		}
		_ = os.Remove(filepath.Join(dir, "y"))
	})
	if d := g.Dial(t).Call("system.capabilities", nil); fmt.Sprint(d["allow_write"]) != "["+dir+"]" || !d.Yes("no_new_privs") {
		t.Errorf("capabilities: %v, %v", d["allow_write"], d["no_new_privs"])
	}
}

// TestUsersRefused: what cannot be is said before anything starts, and how it could be.
func TestUsersRefused(t *testing.T) {
	for _, c := range []struct{ flags, says string }{
		{"--session-user root", "that is root"},
		{"--session-user 0", "that is root"},
		{"--session-user 5-3", "not smaller"},
		{"--session-user no-such-user", "no-such-user"},
		{"--user 64320", "--session-user, too"},
		{"--session-user 64321 --user 1-5", "not a range"},
		{"--session-user 64321 --user 64320 --single-process", "no --single-process"},
		{"--allow-write relative", "from /"},
		{"--allow-write /no/such/dir", "existing"},
		{"--session-user 64321 --default-dir /root", "may enter"},
	} {
		if strings.Contains(c.flags, "default-dir") {
			if info, err := os.Stat("/root"); os.Geteuid() != 0 || err != nil || info.Mode().Perm()&1 != 0 {
				continue
			}
		}
		cmd := exec.Command(rig.Binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--state-dir", t.TempDir()}, strings.Fields(c.flags)...)...)
		timer := time.AfterFunc(testkit.Patience, func() { _ = cmd.Process.Kill() })
		out, err := cmd.CombinedOutput()
		timer.Stop()
		if err == nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %v, %s", c.flags, err, out)
		}
	}
}
