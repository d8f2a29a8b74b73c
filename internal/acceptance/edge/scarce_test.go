package edge

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/rig"
	"trl/internal/testkit"
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
	g := rig.Gateway(t, "--warm", "0")
	c := g.Dial(t)
	type session struct {
		id, ends string
		code     int
		client   *rig.Client
	}
	var kept []*session
	for _, sh := range rig.Shells {
		for _, x := range []session{{ends: "exit 3", code: 3}, {ends: "kill -9 $$", code: 137}, {ends: "exec true"}} {
			x.id, x.client = c.Session(object{"shell": sh}), g.Dial(t)
			c.Run(x.id, "V=kept; cd /usr")
			x.client.Info(x.id) // a node that has no sessions has a link for this client now
			kept = append(kept, &x)
		}
	}
	idle, anew := c.Session(object{"shell": "/bin/bash"}), c.Session()
	c.Run(idle, "V=kept; cd /usr")
	c.Run(idle, ": kill") // before which its state is written down
	shell := c.Info(idle).Num("pid")
	enough := few(t, g.Serving(t))
	if err := unix.Kill(shell, unix.SIGKILL); err != nil { // while no command runs
		t.Fatal(err)
	}
	ids := make([]int, len(kept))
	for i, x := range kept {
		ids[i] = x.client.Begin("exec.run", object{"session_id": x.id, "command": x.ends})
	}
	reset := c.Begin("session.reset", object{"session_id": anew})
	for i, x := range kept {
		if f := x.client.Answer(ids[i]); !f.OK || f.Data.Num("exit_code") != x.code || f.Data.Yes("shell_restored") {
			t.Errorf("%s: %v, %v", x.ends, f.Data, f.Error)
		}
	}
	if f := c.Answer(reset); f.Code() != "LIMIT_EXCEEDED" {
		t.Errorf("session.reset: %v, %v", f.Data, f.Error)
	}
	for i, x := range kept {
		ids[i] = x.client.Begin("exec.run", object{"session_id": x.id, "command": "echo no"})
	}
	for i, x := range kept {
		if f := x.client.Answer(ids[i]); f.Code() != "LIMIT_EXCEEDED" {
			t.Errorf("after %s: %v, %v", x.ends, f.Data, f.Error)
		}
		if state := c.State(x.id); state == "TERMINATED" {
			t.Errorf("after %s: %v", x.ends, c.Info(x.id))
		}
	}
	testkit.Eventually(t, "it was tried to put that one back", func() bool {
		return strings.Count(g.Log(), "trl keeps its state and tries again") > len(kept)
	})
	enough()
	for _, x := range kept {
		r := c.Run(x.id, "echo $V $PWD")
		rig.Expect(t, r, 0, "kept /usr\n", "")
		if !r.Yes("shell_restored") || r.Has("state_lost") {
			t.Errorf("after %s: %v", x.ends, r)
		}
	}
	rig.Expect(t, c.Run(idle, "echo $V $PWD"), 0, "kept /usr\n", "")
	rig.Expect(t, c.Run(anew, "echo new"), 0, "new\n", "")
}

// inSmallMemory starts trl where /run and /dev/shm are small file systems of its own.
func inSmallMemory(more string) func(*exec.Cmd) {
	return rig.StartedBy("unshare", "--mount", "--propagation", "private", "sh", "-c",
		"mount -t tmpfs -o size=4m,mode=755 tmpfs /run && mount -t tmpfs -o size=4m,mode=1777 tmpfs /dev/shm && exec "+more+` "$@"`, "sh")
}

// fills writes to one of its session's own port files until that takes no more.
const fills = `id -u; dd if=/dev/zero of="$__trl_x" bs=64k count=4096 2>&1 | tail -n 1 | cut -d ' ' -f 1`

// A session that fills its own port files has a bound of its own, and fills nothing that is anybody else's.
func TestSessionFillsOnlyItsOwnFIFODir(t *testing.T) {
	t.Parallel()
	rig.OnlyRoot(t)
	g := rig.StartTuned(t, inSmallMemory(""), "--session-user", rig.UserRange(20), "--warm", "0")
	c := g.Dial(t)
	a, b := c.Session(object{"shell": "/bin/bash"}), c.Session(object{"shell": "/bin/bash"})
	c.Run(b, "V=kept; cd /usr")
	r := c.Run(a, fills)
	lines := strings.Fields(r.Stdout())
	if len(lines) != 2 {
		t.Fatal(r)
	}
	if n, _ := strconv.Atoi(lines[1]); n < 32<<20 || n > 64<<20 {
		t.Errorf("the session could write %d bytes: are file systems of its own refused here? %v", n, r)
	}
	rig.Expect(t, c.Run(b, "#"+strings.Repeat("x", 9000)+"\necho $V", object{"stdin": "x"}), 0, "kept\n", "")
	if r := c.Run(b, "exit 3"); !r.Yes("shell_restored") || r.Num("exit_code") != 3 {
		t.Error(r)
	}
	rig.Expect(t, c.Run(b, "echo $V $PWD"), 0, "kept /usr\n", "")
	if f := c.Try("process.start", object{"session_id": b, "command": "true"}); !f.OK {
		t.Error(f.Error)
	}
	rig.Expect(t, c.Run(c.Session(), "echo new"), 0, "new\n", "")
	mounted := func(id string) bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", g.Pid))
		return strings.Contains(string(text), id)
	}
	if !mounted(a) || !mounted(b) {
		t.Error("the sessions have no file systems of their own")
	}
	for _, s := range []string{a, b} {
		c.Call("session.destroy", object{"session_id": s, "force": true})
	}
	testkit.Eventually(t, "their file systems are gone", func() bool { return !mounted(a) && !mounted(b) })
}

// Where trl may not mount, a session that fills the memory file system that all share costs others requests, and no session.
func TestFullFIFODirEndsNoSession(t *testing.T) {
	t.Parallel()
	rig.OnlyRoot(t)
	g := rig.StartTuned(t, inSmallMemory("setpriv --bounding-set=-sys_admin"), "--session-user", rig.UserRange(20), "--warm", "0")
	c := g.Dial(t)
	a, b := c.Session(object{"shell": "/bin/bash"}), c.Session(object{"shell": "/bin/bash"})
	c.Run(b, "V=kept; cd /usr")
	c.Run(b, ": kill") // before which its state is written down
	c.Run(a, fills)
	rig.ExpectTyped(t, "exec.run", c.Try("exec.run", object{"session_id": b, "command": "exit 3"}))
	f := c.Try("exec.run", object{"session_id": b, "command": "#" + strings.Repeat("x", 9000) + "\necho $V"})
	if f.Code() != "LIMIT_EXCEEDED" {
		t.Errorf("exec.run with a text that has no room: %v, %v", f.Data, f.Error)
	}
	if f := c.Try("process.start", object{"session_id": b, "command": "#" + strings.Repeat("x", 9000)}); f.Code() != "LIMIT_EXCEEDED" {
		t.Errorf("process.start: %v, %v", f.Data, f.Error)
	}
	if state := c.State(b); state == "TERMINATED" {
		t.Errorf("%v", c.Info(b))
	}
	c.Call("session.destroy", object{"session_id": a, "force": true})
	rig.Expect(t, c.Run(b, "echo $V $PWD"), 0, "kept /usr\n", "")
}

func TestServerWorksWithFewDescriptors(t *testing.T) {
	t.Parallel()
	g := rig.StartTuned(t, rig.StartedBy("prlimit", "--nofile=256:256"), "--retention", "1s")
	c := g.Dial(t)
	keep := c.Session()
	c.Run(keep, "v=kept")
	made := useUpDescriptors(t, c, 128)
	t.Logf("%d sessions with 256 descriptors", len(made))
	expectRecovery(t, c, made, keep)
	rig.Expect(t, c.Run(keep, "echo $v"), 0, "kept\n", "")
}

// Processes of the user run out, as a session of an ordinary user's trl can bring about: requests are refused with a type,
// and neither of the server's own processes, which need threads, dies of it.
func TestRefusedForkIsATypedError(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("to have a user's processes to itself takes root: others of ours would count")
	}
	uid := uint32(61_000 + os.Getpid()%1000) // nobody's, so that only this server's processes count
	if err := os.Chmod(rig.Top, 0o711); err != nil {
		t.Fatal(err)
	}
	const processes = 100
	g := rig.StartTuned(t, func(cmd *exec.Cmd) {
		dir := filepath.Dir(cmd.Args[len(cmd.Args)-1])
		for i, a := range cmd.Args {
			if a == "--state-dir" {
				dir = filepath.Dir(cmd.Args[i+1])
			}
		}
		for _, d := range []string{dir, filepath.Join(dir, "home"), filepath.Join(dir, "tmp")} {
			if err := os.Chown(d, int(uid), int(uid)); err != nil {
				t.Error(err)
			}
		}
		rig.StartedBy("setpriv", fmt.Sprint("--reuid=", uid), fmt.Sprint("--regid=", uid), "--clear-groups", "prlimit", fmt.Sprint("--nproc=", processes))(cmd)
	}, "--retention", "1s")
	gw := g.GatewayPid()
	c := g.Dial(t)
	keep, greed := c.Session(), c.Session(object{"shell": "/bin/bash"})
	c.Run(keep, "v=kept")
	made := append(useUpDescriptors(t, c, 2*processes), greed)
	t.Logf("%d sessions with %d processes and threads", len(made), processes)
	// And by force: a session that takes all there are. It may lose its shell: there is no process to put it back with.
	greedy := c.Try("exec.stream", object{"session_id": greed, "command": "trap '' TERM; for i in {1..300}; do sleep 300 & done 2>/dev/null; wait", "on_slow": "skip"})
	for range 20 {
		f := c.Try("exec.run", object{"session_id": made[rand.IntN(len(made)-1)], "command": "echo $((1+1))", "timeout_s": 5})
		rig.ExpectTyped(t, "exec.run", f)
		rig.ExpectTyped(t, "session.create", c.Try("session.create", nil))
		c.Call("system.ping", nil)
	}
	if greedy.OK { // it may have ended by itself, and be forgotten
		rig.ExpectTyped(t, "exec.cancel", c.Try("exec.cancel", object{"exec_id": greedy.Data.Str("exec_id"), "kill_grace_s": 0.1}))
	}
	for _, i := range c.Call("session.list", object{"state": "IDLE"}).Objs("sessions") { // also what was made in between
		if id := i.Str("session_id"); id != keep {
			made = append(made, id)
		}
	}
	expectRecovery(t, c, made, keep)
	rig.Expect(t, c.Run(keep, "echo $v"), 0, "kept\n", "")
	if now := g.GatewayPid(); now != gw {
		t.Errorf("the gateway is %d, was %d", now, gw)
	}
}

// TestWaitingTakesNoThreads: what sessions do can use up neither the processes of the server's user nor the threads that Go
// allows itself. What is waited for here is shells that have been stopped, each of which is to start a process.
func TestWaitingTakesNoThreads(t *testing.T) {
	t.Parallel()
	g := rig.StartTuned(t, nil)
	c := g.Dial(t)
	const n = 40
	var asked []int
	var release []func()
	for range n {
		s := c.Call("session.create", object{"shell": "/bin/dash"})
		c.Run(s.Str("session_id"), "v=1") // it has a state, which a process begins with
		release = append(release, rig.StopProcess(t, s.Num("pid")))
	}
	for _, s := range c.Call("session.list", nil).Objs("sessions") {
		asked = append(asked, c.Begin("process.start", object{"session_id": s.Str("session_id"), "command": "true"}))
	}
	least := n
	for begin := time.Now(); time.Since(begin) < 250*time.Millisecond || least > n/2 && time.Since(begin) < 5*time.Second; { // at first they work, which takes threads for a moment
		if taken := g.BusyThreads(t); time.Since(begin) > 250*time.Millisecond {
			least = min(least, taken)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, let := range release {
		let()
	}
	for _, id := range asked {
		if f := c.Answer(id); !f.OK {
			t.Errorf("process.start: %+v", f.Error)
		}
	}
	if least > n/2 {
		t.Errorf("%d threads wait for %d shells", least, n)
	}
}

// TestGatewayUsesFewProcessors: a gateway takes one processor while that is enough, and more while it is not.
func TestGatewayUsesFewProcessors(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("there is one processor")
	}
	t.Parallel()
	g := rig.Gateway(t)
	inUse := func() int { return int(g.Metric(t, "go_sched_gomaxprocs_threads")) }
	testkit.Eventually(t, "one processor", func() bool { return inUse() == 1 })

	c := g.Dial(t)
	id := c.Session()
	for range 3 { // each as fast as the gateway takes it, and nobody else
		c.Call("process.start", object{"session_id": id, "command": "yes"})
	}
	const look = 200 * time.Millisecond
	used := func() float64 { return g.Metric(t, "process_cpu_seconds_total") }
	enough := 0 // how often it could have had one processor for itself, and hardly asked for more
	begin := time.Now()
	for since, before := begin, used(); inUse() == 1; {
		time.Sleep(look)
		asked := time.Now()
		now := used()
		if now-before > 0.95*time.Since(since).Seconds() {
			enough++
		}
		since, before = asked, now
		if enough > 20 {
			t.Fatal("one processor is all it has, and is not enough")
		}
		if time.Since(begin) > time.Minute {
			t.Skip("others keep the processors busy")
		}
	}
	c.Call("session.destroy", object{"session_id": id, "force": true})
	testkit.Eventually(t, "one processor again", func() bool { return inUse() == 1 })
}

// useUpDescriptors makes sessions, each with a process, until five in a row are refused, and uses all of them meanwhile. It returns
// those that were made.
func useUpDescriptors(t *testing.T, c *rig.Client, most int) (made []string) {
	t.Helper()
	refused := 0
	for i := 0; refused < 5; i++ {
		if i == most {
			t.Fatalf("%d sessions, and the limit is not felt", most)
		}
		f := c.Try("session.create", nil) // sh: bash sleeps for 15 s before it takes a refused fork for refused
		rig.ExpectTyped(t, "session.create", f)
		if !f.OK {
			refused++
			continue
		}
		refused = 0
		s := f.Data.Str("session_id")
		made = append(made, s)
		f = c.Try("process.start", object{"session_id": s, "command": "sleep 300"})
		rig.ExpectTyped(t, "process.start", f)
		if !f.OK {
			refused++
		}
		f = c.Try("exec.run", object{"session_id": s, "command": "echo x | cat", "stdin": "y", "timeout_s": 2})
		rig.ExpectTyped(t, "exec.run", f)
		if f.OK && f.Data.Num("exit_code") == 0 && f.Data.Stdout() != "x\n" {
			t.Errorf("exec.run: %v", f.Data)
		}
	}
	return made
}

// expectRecovery: with what they had given back, everything works.
func expectRecovery(t *testing.T, c *rig.Client, made []string, kept string) {
	t.Helper()
	for _, s := range made {
		f := c.Try("session.destroy", object{"session_id": s, "force": true})
		rig.ExpectTyped(t, "session.destroy", f)
	}
	testkit.Eventually(t, "sessions can be made again, and used", func() bool {
		f := c.Try("session.create", nil)
		if !f.OK {
			rig.ExpectTyped(t, "session.create", f)
			return false
		}
		r := c.Try("exec.run", object{"session_id": f.Data.Str("session_id"), "command": "cat; echo fine", "stdin": "in "})
		c.Call("session.destroy", object{"session_id": f.Data.Str("session_id"), "force": true})
		return r.OK && r.Data.Stdout() == "in fine\n"
	})
	for _, i := range c.Call("session.list", nil).Objs("sessions") {
		if i.Str("state") != "TERMINATED" && i.Str("session_id") != kept {
			t.Errorf("still there: %v", i)
		}
	}
}
