package acceptance

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// few takes all further descriptors from a process until enough is called.
func few(t *testing.T, pid int) (enough func()) {
	t.Helper()
	var before unix.Rlimit
	none := unix.Rlimit{Cur: 16} // poll(2) wants as many as it is given
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before)
	if none.Max = before.Max; err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &none, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	enough = func() { _ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil) }
	t.Cleanup(enough)
	return enough
}

// What another one takes ends nobody's session: a shell that ends while descriptors are short is put back when there are some again,
// with its state, and who asks meanwhile is told why not.
func TestScarcityEndsNoSession(t *testing.T) {
	t.Parallel()
	g := gateway(t, "--warm", "0")
	c := g.dial(t)
	type session struct {
		id, ends string
		code     int
		client   *client
	}
	var kept []*session
	for _, sh := range shells {
		for _, x := range []session{{ends: "exit 3", code: 3}, {ends: "kill -9 $$", code: 137}, {ends: "exec true"}} {
			x.id, x.client = c.session(object{"shell": sh}), g.dial(t)
			c.run(x.id, "V=kept; cd /usr")
			kept = append(kept, &x)
		}
	}
	idle, anew := c.session(object{"shell": "/bin/bash"}), c.session()
	c.run(idle, "V=kept; cd /usr")
	c.run(idle, ": kill") // before which its state is written down
	shell := c.info(idle).num("pid")
	enough := few(t, g.serving(t))
	if err := unix.Kill(shell, unix.SIGKILL); err != nil { // while no command runs
		t.Fatal(err)
	}
	ids := make([]int, len(kept))
	for i, x := range kept {
		ids[i] = x.client.begin("exec.run", object{"session_id": x.id, "command": x.ends})
	}
	reset := c.begin("session.reset", object{"session_id": anew})
	for i, x := range kept {
		if f := x.client.answer(ids[i]); !f.OK || f.Data.num("exit_code") != x.code || f.Data.yes("shell_restored") {
			t.Errorf("%s: %v, %v", x.ends, f.Data, f.Error)
		}
	}
	if f := c.answer(reset); f.code() != "LIMIT_EXCEEDED" {
		t.Errorf("session.reset: %v, %v", f.Data, f.Error)
	}
	for i, x := range kept {
		ids[i] = x.client.begin("exec.run", object{"session_id": x.id, "command": "echo no"})
	}
	for i, x := range kept {
		if f := x.client.answer(ids[i]); f.code() != "LIMIT_EXCEEDED" {
			t.Errorf("after %s: %v, %v", x.ends, f.Data, f.Error)
		}
		if state := c.state(x.id); state == "TERMINATED" {
			t.Errorf("after %s: %v", x.ends, c.info(x.id))
		}
	}
	eventually(t, "it was tried to put that one back", func() bool {
		return strings.Count(g.log(), "its state is kept, and it is tried again") > len(kept)
	})
	enough()
	for _, x := range kept {
		r := c.run(x.id, "echo $V $PWD")
		expect(t, r, 0, "kept /usr\n", "")
		if !r.yes("shell_restored") || r.has("state_lost") {
			t.Errorf("after %s: %v", x.ends, r)
		}
	}
	expect(t, c.run(idle, "echo $V $PWD"), 0, "kept /usr\n", "")
	expect(t, c.run(anew, "echo new"), 0, "new\n", "")
}

// inSmallMemory starts trl where /run and /dev/shm are small file systems of its own.
func inSmallMemory(more string) func(*exec.Cmd) {
	return startedBy("unshare", "--mount", "--propagation", "private", "sh", "-c",
		"mount -t tmpfs -o size=4m,mode=755 tmpfs /run && mount -t tmpfs -o size=4m,mode=1777 tmpfs /dev/shm && exec "+more+` "$@"`, "sh")
}

// fills writes to one of its session's own port files until that takes no more.
const fills = `id -u; dd if=/dev/zero of="$__trl_x" bs=64k count=4096 2>&1 | tail -n 1 | cut -d ' ' -f 1`

// A session that fills its own port files has a bound of its own, and fills nothing that is anybody else's.
func TestSessionFillsOnlyItsOwnFIFODir(t *testing.T) {
	t.Parallel()
	uRoot(t)
	g := startTuned(t, inSmallMemory(""), "--session-user", uRange(20), "--warm", "0")
	c := g.dial(t)
	a, b := c.session(object{"shell": "/bin/bash"}), c.session(object{"shell": "/bin/bash"})
	c.run(b, "V=kept; cd /usr")
	r := c.run(a, fills)
	lines := strings.Fields(r.stdout())
	if len(lines) != 2 {
		t.Fatal(r)
	}
	if n, _ := strconv.Atoi(lines[1]); n < 32<<20 || n > 64<<20 {
		t.Errorf("the session could write %d bytes: are file systems of its own refused here? %v", n, r)
	}
	expect(t, c.run(b, "#"+strings.Repeat("x", 9000)+"\necho $V", object{"stdin": "x"}), 0, "kept\n", "")
	if r := c.run(b, "exit 3"); !r.yes("shell_restored") || r.num("exit_code") != 3 {
		t.Error(r)
	}
	expect(t, c.run(b, "echo $V $PWD"), 0, "kept /usr\n", "")
	if f := c.try("process.start", object{"session_id": b, "command": "true"}); !f.OK {
		t.Error(f.Error)
	}
	expect(t, c.run(c.session(), "echo new"), 0, "new\n", "")
	mounted := func(id string) bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", g.pid))
		return strings.Contains(string(text), id)
	}
	if !mounted(a) || !mounted(b) {
		t.Error("the sessions have no file systems of their own")
	}
	for _, s := range []string{a, b} {
		c.call("session.destroy", object{"session_id": s, "force": true})
	}
	eventually(t, "their file systems are gone", func() bool { return !mounted(a) && !mounted(b) })
}

// Where trl may not mount, a session that fills the memory file system that all share costs others requests, and no session.
func TestFullFIFODirEndsNoSession(t *testing.T) {
	t.Parallel()
	uRoot(t)
	g := startTuned(t, inSmallMemory("setpriv --bounding-set=-sys_admin"), "--session-user", uRange(20), "--warm", "0")
	c := g.dial(t)
	a, b := c.session(object{"shell": "/bin/bash"}), c.session(object{"shell": "/bin/bash"})
	c.run(b, "V=kept; cd /usr")
	c.run(b, ": kill") // before which its state is written down
	c.run(a, fills)
	expectTyped(t, "exec.run", c.try("exec.run", object{"session_id": b, "command": "exit 3"}))
	f := c.try("exec.run", object{"session_id": b, "command": "#" + strings.Repeat("x", 9000) + "\necho $V"})
	if f.code() != "LIMIT_EXCEEDED" {
		t.Errorf("exec.run with a text that has no room: %v, %v", f.Data, f.Error)
	}
	if f := c.try("process.start", object{"session_id": b, "command": "#" + strings.Repeat("x", 9000)}); f.code() != "LIMIT_EXCEEDED" {
		t.Errorf("process.start: %v, %v", f.Data, f.Error)
	}
	if state := c.state(b); state == "TERMINATED" {
		t.Errorf("%v", c.info(b))
	}
	c.call("session.destroy", object{"session_id": a, "force": true})
	expect(t, c.run(b, "echo $V $PWD"), 0, "kept /usr\n", "")
}
