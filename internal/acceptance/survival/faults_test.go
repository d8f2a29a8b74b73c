package survival

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Faults, on the real server: what it is refused by the system it says with a type, and goes on when it is given again;
// who stops or kills one of its processes loses nothing and leaves nothing.

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
	g := rig.StartTuned(t, func(cmd *exec.Cmd) {
		for i, a := range cmd.Args {
			if a == "--state-dir" {
				state = cmd.Args[i+1]
			}
		}
		rig.StartedBy("unshare", "--mount", "--propagation", "private", "sh", "-c",
			fmt.Sprintf(`mkdir -m 700 %[1]s && mount -t tmpfs -o size=64k,mode=700 tmpfs %[1]s && exec "$0" "$@"`, state))(cmd)
	})
	c := g.Dial(t)
	s := c.Session(object{"name": "kept"})
	r := c.Run(s, "v=kept; head -c 1M /dev/zero >"+state+"/fill; echo x >"+state+"/more")
	if r.Num("exit_code") == 0 {
		t.Fatalf("the disk is not full: %v", r)
	}
	use := func(c *rig.Client) {
		t.Helper()
		rig.Expect(t, c.Run(s, "echo $v"), 0, "kept\n", "")
		n := c.Session()
		rig.Expect(t, c.Run(n, "cat", object{"stdin": "in"}), 0, "in", "")
		if r := c.Run(n, "exit 3"); r.Num("exit_code") != 3 || !r.Yes("shell_restored") {
			t.Errorf("%v", r)
		}
		c.Call("session.destroy", object{"session_id": n})
	}
	use(c)
	epoch := c.Call("system.ping", nil).Str("epoch")
	g.KillGateway(t)
	c = g.Redial(t)
	if now := c.Call("system.ping", nil).Str("epoch"); now != epoch {
		t.Errorf("epoch %s, was %s", now, epoch)
	}
	use(c)
	c.Run(s, "rm "+state+"/fill")
	g.KillGateway(t)
	use(g.Redial(t))
}

// TestStoppedKeeperOrGatewayLosesNothing: the keeper, then the gateway is stopped for a while: what clients asked for meanwhile
// is done afterwards, and no byte is missing.
func TestStoppedKeeperOrGatewayLosesNothing(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t, "--warm", "0")
	pause := rig.Pick(2*time.Second, 20*time.Second)
	const n = 100_000
	for name, pid := range map[string]int{"keeper": g.Pid, "gateway": g.GatewayPid()} {
		c := g.Dial(t)
		s, other := c.Session(object{"shell": "/bin/bash"}), c.Session()
		x := c.Stream(s, fmt.Sprintf("seq %d; sleep 0.2; seq %d", n, n))
		let := rig.StopProcess(t, pid)
		begun := time.Now()
		ids := map[string]int{
			"create": c.Begin("session.create", nil), "run": c.Begin("exec.run", object{"session_id": other, "command": "setsid sleep 300 & cat; exit 3", "stdin": "in"}),
			"start": c.Begin("process.start", object{"session_id": other, "command": "exec sleep 300"}),
		}
		if name == "keeper" { // who needs no new process needs no keeper
			c2 := g.Dial(t)
			if c2.Call("system.ping", nil).Str("epoch") == "" || len(c2.Call("session.list", nil).Objs("sessions")) == 0 {
				t.Error("no answers without the keeper")
			}
		}
		time.Sleep(pause - time.Since(begun)) // that long is what is tested
		let()
		for what, id := range ids {
			f := c.Answer(id)
			if !f.OK {
				t.Errorf("%s stopped: %s: %+v", name, what, f.Error)
			} else if what == "run" && (f.Data.Stdout() != "in" || f.Data.Num("exit_code") != 3) {
				t.Errorf("%s stopped: %v", name, f.Data)
			}
		}
		text, exit := c.Output(x.Str("stream_id"), 0)
		if lines := strings.Count(text, "\n"); lines != 2*n || exit.Num("exit_code") != 0 {
			t.Errorf("%s stopped: %d lines of %d, %v", name, lines, 2*n, exit)
		}
		rig.Expect(t, c.Run(s, "echo fine"), 0, "fine\n", "")
		for _, i := range c.Call("session.list", nil).Objs("sessions") {
			c.Call("session.destroy", object{"session_id": i.Str("session_id"), "force": true})
		}
		c.Close()
	}
	if n := g.Metric(t, "trl_gateway_crashes_total"); n != 0 {
		t.Errorf("%v crashes", n)
	}
}

// TestGatewayKilledWhileTheKeeperIsStopped, and again before the next one has come up, and again: the sessions are there.
func TestGatewayKilledWhileTheKeeperIsStopped(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	c := g.Dial(t)
	s, nap := c.Session(object{"shell": "/bin/bash"}), rig.Sleeper()
	c.Run(s, "v=kept; "+nap+" &")
	p := c.Call("process.start", object{"session_id": s, "command": nap}).Str("process_id")
	x := c.Stream(s, "for i in {1..2000}; do echo o$i; done; sleep 2; echo o2001; exit 7", object{"on_slow": "skip"}).Str("exec_id")
	c.Close()

	old := g.GatewayPid()
	let := rig.StopProcess(t, g.Pid)
	_ = syscall.Kill(old, syscall.SIGKILL)
	testkit.Eventually(t, "it is dead", func() bool { state, _, _, ok := rig.ProcStat(old); return !ok || state == 'Z' })
	time.Sleep(rig.Pick(500*time.Millisecond, 5*time.Second)) // nobody there for so long
	let()
	testkit.Eventually(t, "another gateway is there", func() bool { now := g.GatewayPid(); return now > 0 && now != old })
	for range rig.Pick(4, 15) { // at once, whatever the new one is at
		g.KillGateway(t)
	}
	c = g.Redial(t)
	f := c.Call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60})
	lines := counter{prefix: "o"}
	if err := lines.take(f.Stdout()); err != nil || lines.next != 2001 || f.Num("exit_code") != 7 {
		t.Errorf("%d lines, %v, %v", lines.next, err, rig.Brief(fmt.Sprint(f)))
	}
	rig.Expect(t, c.Run(s, "echo $v"), 0, "kept\n", "")
	if i := c.Call("process.info", object{"process_id": p}); i.Str("state") != "running" || len(rig.Running(nap)) != 2 {
		t.Errorf("%v, %d run", i, len(rig.Running(nap)))
	}
	c.Call("session.destroy", object{"session_id": s, "force": true})
	if left := rig.Running(nap); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestKillsDuringBurstsLoseNothing: gateways are killed while clients make sessions, start processes in them and destroy them as fast
// as they can. Whatever was answered is so; what was asked again was done once; in the end nothing is left.
func TestKillsDuringBurstsLoseNothing(t *testing.T) {
	t.Parallel()
	const retention = 5 * time.Second // what has ended keeps its descriptors so long
	g := rig.Gateway(t, "--max-sessions", "200", "--retention", retention.String())
	c := g.Dial(t)
	for _, sh := range rig.Shells { // each way once, before the count
		s := c.Session(object{"shell": sh})
		c.Call("process.start", object{"session_id": s, "command": "sleep 300"})
		c.Call("session.destroy", object{"session_id": s, "force": true})
	}
	cgroup := g.CgroupDir(t)
	testkit.Eventually(t, "warm", func() bool { return g.Metric(t, "trl_warm_shells") == 4 })
	before := g.Counts(t, cgroup)
	c.Close()

	ctx, cancel := context.WithTimeout(context.Background(), rig.Pick(5*time.Minute, 10*time.Minute))
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
	kills := rig.Pick(6, 60)
	work.Go(func() {
		defer stop()
		for range kills {
			time.Sleep(time.Duration(50+rand.IntN(450)) * time.Millisecond)
			if pid := g.GatewayPid(); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	for i := range rig.Pick(4, 8) {
		work.Go(func() { // makes and destroys for as long as gateways are killed
			a := rig.Again{G: g}
			defer func() {
				if a.Ws != nil {
					a.Ws.CloseNow()
				}
			}()
			sure := func(method string, params object) (object, bool) { // until it is answered
				for begun := time.Now(); ctx.Err() == nil; {
					f, err := a.Ask(ctx, method, params, nil)
					if err == nil && f.Error == nil {
						asked.Add(1)
						return f.Data, true
					}
					if err == nil && f.Code() == "SESSION_NOT_FOUND" && method == "session.destroy" && time.Since(begun) > retention {
						return nil, true // the answer was lost, and by now it is forgotten
					}
					if err == nil && f.Code() != "SHUTTING_DOWN" {
						t.Errorf("worker %d: %s %v: %+v", i, method, params, f.Error)
						return nil, false
					}
				}
				t.Errorf("worker %d: %s %v: no answer", i, method, params)
				return nil, false
			}
			for k := 0; killing.Err() == nil && k < rig.Pick(30, 60); k++ {
				key := fmt.Sprintf("w%d-%d", i, k)
				m := made{nap: rig.Sleeper()}
				d, ok := sure("session.create", object{"name": key, "request_key": key, "shell": rig.Shells[k%2]})
				if !ok {
					return
				}
				m.id = d.Str("session_id")
				if d, ok = sure("process.start", object{"session_id": m.id, "command": m.nap, "request_key": key}); !ok {
					return
				}
				m.process = d.Str("process_id")
				if k%3 != 0 {
					if _, ok = sure("session.destroy", object{"session_id": m.id, "force": true}); !ok {
						return
					}
					m.destroyed = true
					if left := rig.Running(m.nap); len(left) > 0 {
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
	c = g.Redial(t)
	live := map[string]bool{}
	for _, i := range c.Call("session.list", nil).Objs("sessions") {
		if i.Str("state") != "TERMINATED" {
			live[i.Str("session_id")] = true
		}
	}
	destroyed := 0
	for _, m := range all {
		n := len(rig.Running(m.nap))
		switch {
		case m.destroyed:
			if destroyed++; live[m.id] || n > 0 {
				t.Errorf("%s was destroyed: listed %v, %d processes", m.id, live[m.id], n)
			}
		case !live[m.id] || n != 1:
			t.Errorf("%s was made: listed %v, %d processes", m.id, live[m.id], n)
		default:
			if p := c.Call("process.info", object{"process_id": m.process}); p.Str("state") != "running" {
				t.Errorf("%v", p)
			}
			rig.Expect(t, c.Run(m.id, "echo fine"), 0, "fine\n", "")
		}
		delete(live, m.id)
	}
	for id := range live { // a request that was asked twice and done twice, or never answered
		t.Errorf("a session that nobody was told of: %v", c.Info(id))
	}
	t.Logf("%d gateways killed, %d requests answered, %d sessions made, %d of them destroyed", kills, asked.Load(), len(all), destroyed)
	for _, m := range all {
		if !m.destroyed {
			c.Call("session.destroy", object{"session_id": m.id, "force": true})
		}
	}
	c.Close()
	if d := g.Metric(t, "trl_gateway_crashes_total"); d < 1 {
		t.Errorf("%v crashes counted", d)
	}
	g.AwaitBaseline(t, cgroup, before)
}
