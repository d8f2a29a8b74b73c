package acceptance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Faults, on the real server: what it is refused by the system it says with a type, and goes on when it is given again;
// who stops or kills one of its processes loses nothing and leaves nothing.

// expectTyped fails for an answer that names no reason; a refusal is any other than INTERNAL_ERROR.
func expectTyped(t *testing.T, what string, f *frame) {
	t.Helper()
	if !f.OK && (f.code() == "" || f.code() == "INTERNAL_ERROR") {
		t.Errorf("%s: %+v", what, f.Error)
	}
}

// useUpDescriptors makes sessions, each with a process, until five in a row are refused, and uses all of them meanwhile. It returns
// those that were made.
func useUpDescriptors(t *testing.T, c *client, most int) (made []string) {
	t.Helper()
	refused := 0
	for i := 0; refused < 5; i++ {
		if i == most {
			t.Fatalf("%d sessions, and the limit is not felt", most)
		}
		f := c.try("session.create", nil) // sh: bash sleeps for 15 s before it takes a refused fork for refused
		expectTyped(t, "session.create", f)
		if !f.OK {
			refused++
			continue
		}
		refused = 0
		s := f.Data.str("session_id")
		made = append(made, s)
		f = c.try("process.start", object{"session_id": s, "command": "sleep 300"})
		expectTyped(t, "process.start", f)
		if !f.OK {
			refused++
		}
		f = c.try("exec.run", object{"session_id": s, "command": "echo x | cat", "stdin": "y", "timeout_s": 2})
		expectTyped(t, "exec.run", f)
		if f.OK && f.Data.num("exit_code") == 0 && f.Data.stdout() != "x\n" {
			t.Errorf("exec.run: %v", f.Data)
		}
	}
	return made
}

// expectRecovery: with what they had given back, everything works.
func expectRecovery(t *testing.T, c *client, made []string, kept string) {
	t.Helper()
	for _, s := range made {
		f := c.try("session.destroy", object{"session_id": s, "force": true})
		expectTyped(t, "session.destroy", f)
	}
	eventually(t, "sessions can be made again, and used", func() bool {
		f := c.try("session.create", nil)
		if !f.OK {
			expectTyped(t, "session.create", f)
			return false
		}
		r := c.try("exec.run", object{"session_id": f.Data.str("session_id"), "command": "cat; echo fine", "stdin": "in "})
		c.call("session.destroy", object{"session_id": f.Data.str("session_id"), "force": true})
		return r.OK && r.Data.stdout() == "in fine\n"
	})
	for _, i := range c.call("session.list", nil).objs("sessions") {
		if i.str("state") != "TERMINATED" && i.str("session_id") != kept {
			t.Errorf("still there: %v", i)
		}
	}
}

// startTuned is a server of this test's own that is started in a special way.
func startTuned(t *testing.T, tune func(*exec.Cmd), flags ...string) *server {
	t.Helper()
	g, err := launch(tune, flags...)
	if err != nil {
		t.Fatal(err)
	}
	g.endWith(t)
	return g
}

// startedBy starts the server by a program that ends up as it.
func startedBy(words ...string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		path, err := exec.LookPath(words[0])
		if err == nil {
			cmd.Path, cmd.Args = path, append(words, append([]string{binary}, cmd.Args[1:]...)...)
		}
	}
}

func TestServerWorksWithFewDescriptors(t *testing.T) {
	t.Parallel()
	g := startTuned(t, startedBy("prlimit", "--nofile=256:256"), "--retention", "1s")
	c := g.dial(t)
	keep := c.session()
	c.run(keep, "v=kept")
	made := useUpDescriptors(t, c, 128)
	t.Logf("%d sessions with 256 descriptors", len(made))
	expectRecovery(t, c, made, keep)
	expect(t, c.run(keep, "echo $v"), 0, "kept\n", "")
}

// Processes of the user run out, as a session of an ordinary user's trl can bring about: requests are refused with a type,
// and neither of the server's own processes, which need threads, dies of it.
func TestRefusedForkIsATypedError(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("to have a user's processes to itself takes root: others of ours would count")
	}
	uid := uint32(61_000 + os.Getpid()%1000) // nobody's, so that only this server's processes count
	if err := os.Chmod(top, 0o711); err != nil {
		t.Fatal(err)
	}
	const processes = 100
	g := startTuned(t, func(cmd *exec.Cmd) {
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
		startedBy("setpriv", fmt.Sprint("--reuid=", uid), fmt.Sprint("--regid=", uid), "--clear-groups", "prlimit", fmt.Sprint("--nproc=", processes))(cmd)
	}, "--retention", "1s")
	gw := g.gatewayPid()
	c := g.dial(t)
	keep, greed := c.session(), c.session(object{"shell": "/bin/bash"})
	c.run(keep, "v=kept")
	made := append(useUpDescriptors(t, c, 2*processes), greed)
	t.Logf("%d sessions with %d processes and threads", len(made), processes)
	// And by force: a session that takes all there are. It may lose its shell: there is no process to put it back with.
	greedy := c.try("exec.stream", object{"session_id": greed, "command": "trap '' TERM; for i in {1..300}; do sleep 300 & done 2>/dev/null; wait", "on_slow": "skip"})
	for range 20 {
		f := c.try("exec.run", object{"session_id": made[rand.IntN(len(made)-1)], "command": "echo $((1+1))", "timeout_s": 5})
		expectTyped(t, "exec.run", f)
		expectTyped(t, "session.create", c.try("session.create", nil))
		c.call("system.ping", nil)
	}
	if greedy.OK { // it may have ended by itself, and be forgotten
		expectTyped(t, "exec.cancel", c.try("exec.cancel", object{"exec_id": greedy.Data.str("exec_id"), "kill_grace_s": 0.1}))
	}
	for _, i := range c.call("session.list", object{"state": "IDLE"}).objs("sessions") { // also what was made in between
		if id := i.str("session_id"); id != keep {
			made = append(made, id)
		}
	}
	expectRecovery(t, c, made, keep)
	expect(t, c.run(keep, "echo $v"), 0, "kept\n", "")
	if now := g.gatewayPid(); now != gw {
		t.Errorf("the gateway is %d, was %d", now, gw)
	}
}

// TestWaitingTakesNoThreads: what sessions do can use up neither the processes of the server's user nor the threads that Go
// allows itself. What is waited for here is shells that have been stopped, each of which is to start a process.
func TestWaitingTakesNoThreads(t *testing.T) {
	t.Parallel()
	g := startTuned(t, nil)
	c := g.dial(t)
	const n = 40
	var asked []int
	var release []func()
	for range n {
		s := c.call("session.create", object{"shell": "/bin/dash"})
		c.run(s.str("session_id"), "v=1") // it has a state, which a process begins with
		release = append(release, stopProcess(t, s.num("pid")))
	}
	before := g.status(t, "Threads")
	for _, s := range c.call("session.list", nil).objs("sessions") {
		asked = append(asked, c.begin("process.start", object{"session_id": s.str("session_id"), "command": "true"}))
	}
	most := 0
	for range 50 { // long enough for what would take threads to take them
		most = max(most, g.status(t, "Threads"))
		time.Sleep(10 * time.Millisecond)
	}
	for _, let := range release {
		let()
	}
	for _, id := range asked {
		if f := c.answer(id); !f.OK {
			t.Errorf("process.start: %+v", f.Error)
		}
	}
	if most > before+n/2 {
		t.Errorf("%d threads while %d shells are waited for, %d before", most, n, before)
	}
}

// A full disk below the state directory: also a gateway that starts anew there goes on with its sessions.
func TestSessionsSurviveAFullStateDirectory(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a mount needs root")
	}
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace: %v: %s", err, out)
	}
	var state string
	g := startTuned(t, func(cmd *exec.Cmd) {
		for i, a := range cmd.Args {
			if a == "--state-dir" {
				state = cmd.Args[i+1]
			}
		}
		startedBy("unshare", "--mount", "--propagation", "private", "sh", "-c",
			fmt.Sprintf(`mkdir -m 700 %[1]s && mount -t tmpfs -o size=64k,mode=700 tmpfs %[1]s && exec "$0" "$@"`, state))(cmd)
	})
	c := g.dial(t)
	s := c.session(object{"name": "kept"})
	r := c.run(s, "v=kept; head -c 1M /dev/zero >"+state+"/fill; echo x >"+state+"/more")
	if r.num("exit_code") == 0 {
		t.Fatalf("the disk is not full: %v", r)
	}
	use := func(c *client) {
		t.Helper()
		expect(t, c.run(s, "echo $v"), 0, "kept\n", "")
		n := c.session()
		expect(t, c.run(n, "cat", object{"stdin": "in"}), 0, "in", "")
		if r := c.run(n, "exit 3"); r.num("exit_code") != 3 || !r.yes("shell_restored") {
			t.Errorf("%v", r)
		}
		c.call("session.destroy", object{"session_id": n})
	}
	use(c)
	epoch := c.call("system.ping", nil).str("epoch")
	g.killGateway(t)
	c = g.redial(t)
	if now := c.call("system.ping", nil).str("epoch"); now != epoch {
		t.Errorf("epoch %s, was %s", now, epoch)
	}
	use(c)
	c.run(s, "rm "+state+"/fill")
	g.killGateway(t)
	use(g.redial(t))
}

// killGateway kills the gateway, and returns when another one is there, which may not yet serve.
func (g *server) killGateway(t testing.TB) {
	t.Helper()
	old := 0
	eventually(t, "a gateway is there", func() bool { old = g.gatewayPid(); return old > 0 })
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another gateway is there", func() bool { now := g.gatewayPid(); return now > 0 && now != old })
}

// redial waits until somebody answers.
func (g *server) redial(t testing.TB) *client {
	t.Helper()
	a := again{g: g}
	eventually(t, "the gateway serves", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := a.ask(ctx, "system.ping", object{}, nil)
		return err == nil
	})
	a.ws.CloseNow()
	return g.dial(t)
}

// stopProcess stops a process; let lets it go on.
func stopProcess(t *testing.T, pid int) (let func()) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	let = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(let) // before the server is ended
	eventually(t, "it has stopped", func() bool { state, _, _, _ := procStat(pid); return state == 'T' })
	return let
}

// TestStoppedKeeperOrGatewayLosesNothing: the keeper, then the gateway is stopped for a while: what clients asked for meanwhile
// is done afterwards, and no byte is missing.
func TestStoppedKeeperOrGatewayLosesNothing(t *testing.T) {
	t.Parallel()
	g := gateway(t, "--warm", "0")
	pause := pick(2*time.Second, 20*time.Second)
	const n = 100_000
	for name, pid := range map[string]int{"keeper": g.pid, "gateway": g.gatewayPid()} {
		c := g.dial(t)
		s, other := c.session(object{"shell": "/bin/bash"}), c.session()
		x := c.stream(s, fmt.Sprintf("seq %d; sleep 0.2; seq %d", n, n))
		let := stopProcess(t, pid)
		begun := time.Now()
		ids := map[string]int{
			"create": c.begin("session.create", nil), "run": c.begin("exec.run", object{"session_id": other, "command": "setsid sleep 300 & cat; exit 3", "stdin": "in"}),
			"start": c.begin("process.start", object{"session_id": other, "command": "exec sleep 300"}),
		}
		if name == "keeper" { // who needs no new process needs no keeper
			c2 := g.dial(t)
			if c2.call("system.ping", nil).str("epoch") == "" || len(c2.call("session.list", nil).objs("sessions")) == 0 {
				t.Error("no answers without the keeper")
			}
		}
		time.Sleep(pause - time.Since(begun)) // that long is what is tested
		let()
		for what, id := range ids {
			f := c.answer(id)
			if !f.OK {
				t.Errorf("%s stopped: %s: %+v", name, what, f.Error)
			} else if what == "run" && (f.Data.stdout() != "in" || f.Data.num("exit_code") != 3) {
				t.Errorf("%s stopped: %v", name, f.Data)
			}
		}
		text, exit := c.output(x.str("stream_id"), 0)
		if lines := strings.Count(text, "\n"); lines != 2*n || exit.num("exit_code") != 0 {
			t.Errorf("%s stopped: %d lines of %d, %v", name, lines, 2*n, exit)
		}
		expect(t, c.run(s, "echo fine"), 0, "fine\n", "")
		for _, i := range c.call("session.list", nil).objs("sessions") {
			c.call("session.destroy", object{"session_id": i.str("session_id"), "force": true})
		}
		c.close()
	}
	if n := g.metric(t, "trl_gateway_crashes_total"); n != 0 {
		t.Errorf("%v crashes", n)
	}
}

// TestGatewayKilledWhileTheKeeperIsStopped, and again before the next one has come up, and again: the sessions are there.
func TestGatewayKilledWhileTheKeeperIsStopped(t *testing.T) {
	t.Parallel()
	g := gateway(t)
	c := g.dial(t)
	s, nap := c.session(object{"shell": "/bin/bash"}), sleeper()
	c.run(s, "v=kept; "+nap+" &")
	p := c.call("process.start", object{"session_id": s, "command": nap}).str("process_id")
	x := c.stream(s, "for i in {1..2000}; do echo o$i; done; sleep 2; echo o2001; exit 7", object{"on_slow": "skip"}).str("exec_id")
	c.close()

	old := g.gatewayPid()
	let := stopProcess(t, g.pid)
	_ = syscall.Kill(old, syscall.SIGKILL)
	eventually(t, "it is dead", func() bool { state, _, _, ok := procStat(old); return !ok || state == 'Z' })
	time.Sleep(pick(500*time.Millisecond, 5*time.Second)) // nobody there for so long
	let()
	eventually(t, "another gateway is there", func() bool { now := g.gatewayPid(); return now > 0 && now != old })
	for range pick(4, 15) { // at once, whatever the new one is at
		g.killGateway(t)
	}
	c = g.redial(t)
	f := c.call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60})
	lines := counter{prefix: "o"}
	if err := lines.take(f.stdout()); err != nil || lines.next != 2001 || f.num("exit_code") != 7 {
		t.Errorf("%d lines, %v, %v", lines.next, err, brief(fmt.Sprint(f)))
	}
	expect(t, c.run(s, "echo $v"), 0, "kept\n", "")
	if i := c.call("process.info", object{"process_id": p}); i.str("state") != "running" || len(running(nap)) != 2 {
		t.Errorf("%v, %d run", i, len(running(nap)))
	}
	c.call("session.destroy", object{"session_id": s, "force": true})
	if left := running(nap); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestKillsDuringBurstsLoseNothing: gateways are killed while clients make sessions, start processes in them and destroy them as fast
// as they can. Whatever was answered is so; what was asked again was done once; in the end nothing is left.
func TestKillsDuringBurstsLoseNothing(t *testing.T) {
	t.Parallel()
	const retention = 5 * time.Second // what has ended keeps its descriptors so long
	g := gateway(t, "--max-sessions", "200", "--retention", retention.String())
	c := g.dial(t)
	for _, sh := range shells { // each way once, before the count
		s := c.session(object{"shell": sh})
		c.call("process.start", object{"session_id": s, "command": "sleep 300"})
		c.call("session.destroy", object{"session_id": s, "force": true})
	}
	cgroup := g.cgroupDir(t)
	eventually(t, "warm", func() bool { return g.metric(t, "trl_warm_shells") == 4 })
	before := g.counts(t, cgroup)
	c.close()

	ctx, cancel := context.WithTimeout(context.Background(), pick(time.Minute, 10*time.Minute))
	defer cancel()
	killing, stop := context.WithCancel(ctx)
	defer stop()
	type made struct {
		id, nap, process string
		destroyed        bool
	}
	var mu sync.Mutex
	var all []made // guarded by mu
	var asked atomic.Int64
	var work sync.WaitGroup
	kills := pick(6, 60)
	work.Go(func() {
		defer stop()
		for range kills {
			time.Sleep(time.Duration(50+rand.IntN(450)) * time.Millisecond)
			if pid := g.gatewayPid(); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	for i := range pick(4, 8) {
		work.Go(func() { // makes and destroys for as long as gateways are killed
			a := again{g: g}
			defer func() {
				if a.ws != nil {
					a.ws.CloseNow()
				}
			}()
			sure := func(method string, params object) (object, bool) { // until it is answered
				for begun := time.Now(); ctx.Err() == nil; {
					f, err := a.ask(ctx, method, params, nil)
					if err == nil && f.Error == nil {
						asked.Add(1)
						return f.Data, true
					}
					if err == nil && f.code() == "SESSION_NOT_FOUND" && method == "session.destroy" && time.Since(begun) > retention {
						return nil, true // the answer was lost, and by now it is forgotten
					}
					if err == nil && f.code() != "SHUTTING_DOWN" {
						t.Errorf("worker %d: %s %v: %+v", i, method, params, f.Error)
						return nil, false
					}
				}
				return nil, false
			}
			for k := 0; killing.Err() == nil && k < pick(30, 60); k++ {
				key := fmt.Sprintf("w%d-%d", i, k)
				m := made{nap: sleeper()}
				d, ok := sure("session.create", object{"name": key, "request_key": key, "shell": shells[k%2]})
				if !ok {
					return
				}
				m.id = d.str("session_id")
				if d, ok = sure("process.start", object{"session_id": m.id, "command": m.nap, "request_key": key}); !ok {
					return
				}
				m.process = d.str("process_id")
				if k%3 != 0 {
					if _, ok = sure("session.destroy", object{"session_id": m.id, "force": true}); !ok {
						return
					}
					m.destroyed = true
					if left := running(m.nap); len(left) > 0 {
						t.Errorf("%s: destroyed, and %v are left", key, left)
					}
				}
				mu.Lock()
				all = append(all, m)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	if t.Failed() {
		return
	}
	c = g.redial(t)
	live := map[string]bool{}
	for _, i := range c.call("session.list", nil).objs("sessions") {
		if i.str("state") != "TERMINATED" {
			live[i.str("session_id")] = true
		}
	}
	destroyed := 0
	for _, m := range all {
		n := len(running(m.nap))
		switch {
		case m.destroyed:
			if destroyed++; live[m.id] || n > 0 {
				t.Errorf("%s was destroyed: listed %v, %d processes", m.id, live[m.id], n)
			}
		case !live[m.id] || n != 1:
			t.Errorf("%s was made: listed %v, %d processes", m.id, live[m.id], n)
		default:
			if p := c.call("process.info", object{"process_id": m.process}); p.str("state") != "running" {
				t.Errorf("%v", p)
			}
			expect(t, c.run(m.id, "echo fine"), 0, "fine\n", "")
		}
		delete(live, m.id)
	}
	for id := range live { // a request that was asked twice and done twice, or never answered
		t.Errorf("a session that nobody was told of: %v", c.info(id))
	}
	t.Logf("%d gateways killed, %d requests answered, %d sessions made, %d of them destroyed", kills, asked.Load(), len(all), destroyed)
	for _, m := range all {
		if !m.destroyed {
			c.call("session.destroy", object{"session_id": m.id, "force": true})
		}
	}
	c.close()
	if d := g.metric(t, "trl_gateway_crashes_total"); d < 1 {
		t.Errorf("%v crashes counted", d)
	}
	g.awaitBaseline(t, cgroup, before)
}

// TestGatewayUsesFewProcessors: a gateway takes one processor while that is enough, and more while it is not.
func TestGatewayUsesFewProcessors(t *testing.T) {
	if goruntime.NumCPU() == 1 {
		t.Skip("there is one processor")
	}
	t.Parallel()
	g := gateway(t)
	inUse := func() int { return int(g.metric(t, "go_sched_gomaxprocs_threads")) }
	eventually(t, "one processor", func() bool { return inUse() == 1 })

	c := g.dial(t)
	id := c.session()
	for range 3 { // each as fast as the gateway takes it, and nobody else
		c.call("process.start", object{"session_id": id, "command": "yes"})
	}
	const look = 200 * time.Millisecond
	used := func() float64 { return g.metric(t, "process_cpu_seconds_total") }
	enough := 0 // how often it could have had one processor for itself, and hardly asked for more
	for begin, before := time.Now(), used(); inUse() == 1; {
		time.Sleep(look)
		now := used()
		if now-before > 0.95*look.Seconds() {
			enough++
		}
		before = now
		if enough > 20 {
			t.Fatal("one processor is all it has, and is not enough")
		}
		if time.Since(begin) > time.Minute {
			t.Skip("others keep the processors busy")
		}
	}
	c.call("session.destroy", object{"session_id": id, "force": true})
	eventually(t, "one processor again", func() bool { return inUse() == 1 })
}
