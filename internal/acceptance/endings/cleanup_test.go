package endings

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"

	"github.com/coder/websocket"
)

// eachTier runs f under every shell in every way of keeping processes together.
func eachTier(t *testing.T, f func(t *testing.T, g *rig.Server, shell string)) {
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			g := rig.Shared(t, "g-"+tier, "--isolation", tier)
			rig.EachShell(t, func(t *testing.T, sh string) { f(t, g, sh) })
		})
	}
}

// forestCommand is a command that starts what is hard to end: deaf, in sessions of their own, double-forked, without environment.
// nap is the command line of them all, how many there are the second result.
func forestCommand(nap string) (command string, n int) {
	return nap + " & sh -c 'trap \"\" TERM HUP INT; " + nap + "; :' & setsid " + nap + " & (setsid sh -c '" + nap + " & " + nap + "' >/dev/null 2>&1 &); env -i setsid " + nap + " &", 6
}

// G1: destroy leaves nothing, whatever the session had started.
func TestDestroyLeavesNothing(t *testing.T) {
	t.Parallel()
	rig.Together(len(rig.Tiers)*len(rig.Shells), func(i int) {
		tier, sh := rig.Tiers[i/len(rig.Shells)], rig.Shells[i%len(rig.Shells)]
		c := rig.Shared(t, "g-"+tier, "--isolation", tier).Dial(t)
		s, nap, deaf := c.Session(object{"shell": sh}), rig.Sleeper(), rig.Sleeper()
		forest, n := forestCommand(nap)
		c.Run(s, forest)
		c.Call("process.start", object{"session_id": s, "command": nap})
		c.Stream(s, "trap '' TERM; "+deaf)
		testkit.Eventually(t, "all run", func() bool { return len(rig.Running(nap)) == n+1 && len(rig.Running(deaf)) == 1 })
		if len(rig.ProcessesOfSession(s)) < n {
			t.Errorf(tier+", "+sh+": only %v carry the session's name", rig.ProcessesOfSession(s))
		}
		start := time.Now()
		d := c.Call("session.destroy", object{"session_id": s})
		rig.Within(t, "session.destroy", start, 7*time.Second)
		if d.Str("state") != "TERMINATED" || d.Str("reason") != "client" {
			t.Errorf(tier+", "+sh+": %v", d)
		}
		// At the answer, not some time later.
		if left := append(append(rig.Running(nap), rig.Running(deaf)...), rig.ProcessesOfSession(s)...); len(left) > 0 {
			t.Errorf(tier+", "+sh+": survivors %v", left)
		}
		if again := c.Call("session.destroy", object{"session_id": s}); fmt.Sprint(again) != fmt.Sprint(d) {
			t.Errorf(tier+", "+sh+": again: %v, want %v", again, d)
		}
	})
}

// G6: rest ends a session, work does not, however silent and however alone. J10 is here too: pings are not work.
func TestIdlenessEndsASessionAndWorkDoesNot(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t, "--idle-timeout", "1h")
	patient := object{"idle_timeout_s": 2}
	first := g.Dial(t)
	resting, command, process, job := first.Session(patient), first.Session(), first.Session(), first.Session()
	nap := rig.Sleeper()
	first.Stream(command, nap)
	first.Call("process.start", object{"session_id": process, "command": nap})
	first.Run(job, nap+" &")
	for _, id := range []string{command, process, job} { // they work: a busy machine shall not end them before
		first.Call("session.update", rig.With(patient, object{"session_id": id}))
	}
	first.Close()

	c := g.Dial(t) // which pings all the time, in both ways, and watches
	pinged := c.Session()
	c.Call("session.watch", object{"session_id": pinged})
	c.Call("session.update", rig.With(patient, object{"session_id": pinged}))
	for start := time.Now(); c.State(pinged) != "TERMINATED"; {
		if time.Since(start) > testkit.Patience {
			t.Fatal("pings keep a session alive")
		}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		if err := c.Ws.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		c.Call("system.ping", nil)
		time.Sleep(20 * time.Millisecond)
	}
	later := c.Session(patient)
	testkit.Eventually(t, "it rests for too long", func() bool { return c.State(later) == "TERMINATED" })
	for _, id := range []string{resting, pinged, later} { // by now the others have had their two seconds twice
		if i := c.Info(id); i.Str("state") != "TERMINATED" || i.Str("reason") != "idle" {
			t.Errorf("rested: %v", i)
		}
	}
	for id, want := range map[string]string{command: "RUNNING", process: "IDLE", job: "IDLE"} {
		if state := c.State(id); state != want {
			t.Errorf("worked: %s, want %s", state, want)
		}
	}
	if n := len(rig.Running(nap)); n != 3 {
		t.Errorf("%d run", n)
	}
	if n := g.Metric(t, "trl_sessions_reaped_total", `"idle"`); n != 3 {
		t.Errorf("%v reaped", n)
	}
}

// G7: TERM with a hundred busy sessions: clients are told, nothing is left, exit 0. The rig checks the last two, and
// that it did not take too long. cmd/trl's TestStopEndsAHundredBusySessions does this in the other tier, with sh.
func TestStopEndsManyBusySessions(t *testing.T) {
	g := rig.Gateway(t, "--isolation", "none")
	const n = 100
	clients := []*rig.Client{g.Dial(t), g.Dial(t), g.Dial(t), g.Dial(t)}
	nap := rig.Sleeper()
	rig.Together(len(clients), func(k int) {
		c := clients[k]
		for i := range n / len(clients) {
			s := c.Session(object{"shell": rig.Shells[i%2]})
			c.Stream(s, []string{"setsid " + nap + " & " + nap, `trap "" TERM; setsid ` + nap + ` & while :; do ` + nap + `; done`}[i/2%2])
		}
	})
	testkit.Eventually(t, "all run", func() bool { return len(rig.Running(nap)) >= 2*n })
	start := time.Now()
	faults := append(g.Front().Stop(), g.Stop()...) // first the node that clients use
	t.Logf("%d sessions, took %s", n, time.Since(start).Round(time.Millisecond))
	if len(faults) > 0 || len(rig.Running(nap)) > 0 {
		t.Errorf("%v, %d naps left", faults, len(rig.Running(nap)))
	}
	for _, c := range clients {
		c.Await("server.shutdown", func(f *rig.Frame) bool { return f.Event == "server.shutdown" })
		<-c.Done
		if code := websocket.CloseStatus(c.Err); code != websocket.StatusServiceRestart {
			t.Errorf("closed with %v", c.Err)
		}
	}
	if _, err := g.Open(t, nil); err == nil {
		t.Error("still takes connections")
	}
}

// G8: sessions that were made, used and destroyed leave everything as it was.
func TestSessionCyclesLeaveEverythingAsItWas(t *testing.T) {
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			g := rig.Gateway(t, "--isolation", tier, "--retention", "1s")
			cgroup := g.CgroupDir(t)
			const at = 3
			var clients []*rig.Client
			for range at {
				clients = append(clients, g.Dial(t))
			}
			cycle := func(c *rig.Client, i int) {
				s := c.Session(object{"shell": rig.Shells[i%2]})
				rig.Expect(t, c.Run(s, "(setsid sh -c 'sleep 300.5 & exit' &); sleep 300.5 & cat", object{"stdin": "in"}), 0, "in", "") // a daemon, and a zombie for whoever adopts it
				text, _ := c.Output(c.Stream(s, "seq 1000").Str("stream_id"), 0)
				if !strings.HasSuffix(text, "\n1000\n") {
					t.Errorf("%s", rig.Brief(text))
				}
				deaf := ""
				if i%4 != 0 { // reset waits for it
					deaf = "trap '' TERM; "
				}
				c.Call("process.start", object{"session_id": s, "command": deaf + "cat", "stdin": "open"})
				q := c.Call("process.start", object{"session_id": s, "command": "setsid sleep 300.5 & sleep 300.5"}).Str("process_id")
				x := c.Stream(s, "sleep 300.5 & sleep 300.5")
				c.Call("exec.cancel", object{"exec_id": x.Str("exec_id"), "kill_grace_s": 0.05})
				if _, exit := c.Output(x.Str("stream_id"), 0); !exit.Yes("cancelled") {
					t.Errorf("%v", exit)
				}
				c.Call("process.kill", object{"process_id": q, "kill_grace_s": 0.05})
				for _, end := range []string{"exit 3", "kill -9 $$"} {
					if r := c.Run(s, end); !r.Yes("shell_restored") {
						t.Errorf("%s: %v", end, r)
					}
				}
				if i%4 == 0 {
					c.Call("session.reset", object{"session_id": s})
				}
				c.Call("session.destroy", object{"session_id": s, "force": true})
			}
			run := func(n int) {
				rig.Together(at, func(k int) {
					for i := range n / at {
						cycle(clients[k], i)
					}
				})
				testkit.Eventually(t, "warm again, and what has ended forgotten", func() bool { return g.Metric(t, "trl_warm_shells") == 4 && g.Metric(t, "trl_sessions") == 0 })
			}
			run(2 * at)
			before := g.Counts(t, cgroup)
			run(rig.Pick(30, 500))
			g.AwaitBaseline(t, cgroup, before)
		})
	}
}

// G11: while a session is being ended it is known, and it is TERMINATED only when all of it is dead.
func TestSessionIsKnownUntilAllOfItIsDead(t *testing.T) {
	eachTier(t, func(t *testing.T, g *rig.Server, sh string) {
		grace := 1 // a longer one if we come too late to see it ending
		for seesEnding(t, g, sh, grace) == 0 {
			if grace *= 5; grace > 60 {
				t.Fatal("never seen ending")
			}
		}
	})
}

// seesEnding destroys a session with a process that takes the whole grace to end, and returns how often it was seen meanwhile.
func seesEnding(t *testing.T, g *rig.Server, sh string, grace int) (seen int) {
	c := g.Dial(t)
	s, nap := c.Session(object{"shell": sh}), rig.Sleeper()
	p := c.Call("process.start", object{"session_id": s, "command": "trap '' TERM; " + nap + "; :"}).Str("process_id")
	testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) == 1 })
	told := make(chan bool, 1)
	w := g.Dial(t)
	w.Call("session.watch", object{"session_id": s})
	go func() { // ends with the event or the connection
		w.Await("the end", func(f *rig.Frame) bool { return f.Event == "session.state" && f.Data.Str("to") == "TERMINATED" })
		told <- len(rig.Running(nap)) == 0
	}()
	destroy := c.Begin("session.destroy", object{"session_id": s, "grace_s": grace})
	other := g.Dial(t)              // on c it would wait for its turn, after destroy
	for len(rig.Running(nap)) > 0 { // alive before and after the look: the look was at an ending session
		i := other.Info(s)
		list := other.Call("process.list", object{"session_id": s}).Objs("processes")
		if len(rig.Running(nap)) == 0 {
			break
		}
		seen++
		if i.Str("state") == "TERMINATED" || len(list) != 1 || list[0].Str("process_id") != p {
			t.Fatalf("with a live process: %v, %v", i, list)
		}
	}
	if f := c.Answer(destroy); !f.OK || len(rig.Running(nap)) > 0 {
		t.Errorf("%+v", f)
	}
	if !<-told {
		t.Error("TERMINATED before its process was dead")
	}
	if i := c.Call("process.info", object{"process_id": p}); i.Str("state") != "exited" {
		t.Errorf("%v", i)
	}
	return seen
}

// G12: a keeper that is killed takes its sessions along. The gateway ends them at once; where that is killed, too, the
// next start on the state directory does, and knows that they are lost: those, and nothing else.
func TestKilledKeeperTakesItsSessionsAlong(t *testing.T) {
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) { testKeeperDies(t, tier, false) })
		t.Run(tier+"/with its gateway", func(t *testing.T) { testKeeperDies(t, tier, true) })
	}
}

func testKeeperDies(t *testing.T, tier string, both bool) {
	live := rig.Gateway(t, "--isolation", tier) // another one, beside it
	victim, err := rig.StartGateway("--isolation", tier)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Stop() }) // its end is no good one, but where the test is skipped
	innocent := exec.Command("sleep", "300")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = innocent.Wait() }()
	defer func() { _ = innocent.Process.Kill() }()
	nap, theirs := rig.Sleeper(), rig.Sleeper()
	l, v := live.Dial(t), victim.Dial(t)
	keep := l.Session()
	l.Call("process.start", object{"session_id": keep, "command": theirs})
	forest, trees := forestCommand(nap)
	lost := v.Session(object{"shell": "/bin/bash"})
	v.Run(lost, forest)
	v.Stream(lost, "trap '' TERM HUP PIPE; "+nap)
	idle := v.Session(object{"shell": "/bin/sh"})
	v.Run(idle, nap+" &")
	testkit.Eventually(t, "all run", func() bool { return len(rig.Running(nap)) == trees+2 && len(rig.Running(theirs)) == 1 })
	epoch, cgroup := v.Call("system.ping", nil).Str("epoch"), victim.CgroupDir(t)
	if tier == "auto" && cgroup == "" {
		t.Skip("no cgroup v2 that we may write")
	}
	type id struct {
		pid   int
		start string
	}
	var all []id // of the victim's: what this test may end itself
	for _, pid := range append(rig.Running(nap), append(rig.ProcessesOfSession(lost), rig.ProcessesOfSession(idle)...)...) {
		if _, _, start, ok := rig.ProcStat(pid); ok {
			all = append(all, id{pid, start})
		}
	}
	left := func() (n []int) {
		for _, p := range all {
			if state, _, start, ok := rig.ProcStat(p.pid); ok && start == p.start && state != 'Z' {
				n = append(n, p.pid)
			}
		}
		return n
	}
	defer func() {
		for _, pid := range left() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	if gw := victim.GatewayPid(); both { // it must not notice
		if err := errors.Join(syscall.Kill(gw, syscall.SIGSTOP), syscall.Kill(victim.Pid, syscall.SIGKILL), syscall.Kill(gw, syscall.SIGKILL)); err != nil {
			t.Fatal(err)
		}
	} else if err := syscall.Kill(victim.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-victim.Exited
	<-v.Done
	if both {
		// The idle shells end by themselves, as nobody writes to them any more; what they started does not.
		t.Logf("left behind: %v", left())
		if len(left()) == 0 {
			t.Error("nothing: then the next start proves nothing")
		}
	} else {
		testkit.Eventually(t, "the gateway has ended all", func() bool { return len(left()) == 0 && len(rig.Running(nap)) == 0 })
	}
	next := rig.Gateway(t, "--isolation", tier, "--state-dir", filepath.Join(victim.Dir, "state"))
	if n := append(left(), rig.Running(nap)...); len(n) > 0 {
		t.Errorf("after the next start: %v", n)
	}
	testkit.Eventually(t, "its warm shells are gone too", func() bool { return len(victim.Processes()) == 0 })
	if _, err := os.Stat(cgroup); err == nil && cgroup != "" {
		t.Errorf("%s is still there", cgroup)
	}
	c := next.Dial(t)
	if e := c.Call("system.ping", nil).Str("epoch"); e == epoch || e == "" {
		t.Errorf("epoch %q", e)
	}
	if list := c.Call("session.list", nil).Objs("sessions"); len(list) != 0 {
		t.Errorf("%v", list)
	}
	for _, method := range []string{"session.info", "session.destroy"} {
		if f := c.Try(method, object{"session_id": lost}); f.Code() != "SESSION_LOST" {
			t.Errorf("%s: %+v", method, f)
		}
	}
	if f := c.Try("exec.run", object{"session_id": idle, "command": "echo"}); f.Code() != "SESSION_LOST" {
		t.Errorf("%+v", f)
	}
	rig.Expect(t, c.Run(c.Session(), "echo new"), 0, "new\n", "")
	if state, _, _, ok := rig.ProcStat(innocent.Process.Pid); !ok || state == 'Z' {
		t.Error("an innocent process was killed")
	}
	if len(rig.Running(theirs)) != 1 || l.State(keep) != "IDLE" {
		t.Error("another gateway's session was touched")
	}
	rig.Expect(t, l.Run(keep, "echo here"), 0, "here\n", "")
}

// TestGatewayReapsAdoptedZombies: what daemons leave when they die is reaped by the gateway, which adopts them as subreaper.
func TestGatewayReapsAdoptedZombies(t *testing.T) {
	eachTier(t, func(t *testing.T, g *rig.Server, sh string) {
		c := g.Dial(t)
		s, before := c.Session(object{"shell": sh}), g.Metric(t, "trl_zombies_reaped_total")
		const n = 10
		gate, _ := rig.UniqueFile(g, "gate") // they live until their parents have gone: before, those could reap them
		told, _ := rig.UniqueFile(g, "told") // not their output: what they print late is not in the answer
		c.Run(s, "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sh -c 'echo $$ >>"+told+"; until [ -e "+gate+" ]; do sleep 0.02; done' &) ; done >/dev/null 2>&1")
		var daemons []int
		testkit.Eventually(t, "all told their number", func() bool {
			daemons = daemons[:0]
			text, _ := os.ReadFile(told)
			for _, w := range strings.Fields(string(text)) {
				pid, _ := strconv.Atoi(w)
				daemons = append(daemons, pid)
			}
			return len(daemons) == n
		})
		testkit.Eventually(t, "they are adopted", func() bool {
			for _, pid := range daemons {
				if _, parent, _, ok := rig.ProcStat(pid); !ok || parent != g.Pid {
					return false
				}
			}
			return true
		})
		c.Run(s, ": >"+gate)
		testkit.Eventually(t, "all are gone, zombies too", func() bool {
			for _, pid := range daemons {
				if _, _, _, ok := rig.ProcStat(pid); ok {
					return false
				}
			}
			return rig.ZombiesOf(g.Pid) == 0
		})
		testkit.Eventually(t, "they are counted", func() bool { return g.Metric(t, "trl_zombies_reaped_total")-before >= n })
		c.Call("session.destroy", object{"session_id": s, "force": true})
	})
}

// TestGatewayWorksAsPID1: in a container trl may be PID 1: it serves, reaps and ends well.
func TestGatewayWorksAsPID1(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a PID namespace needs root")
	}
	dir := t.TempDir()
	book := &testkit.LogBook{}
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", rig.Binary, "serve", "--listen", "127.0.0.1:0", "--auth", "none",
		"--default-dir", dir, "--state-dir", filepath.Join(dir, "state"), "--log-format", "json")
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
	cmd.Stderr = book
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	ended := make(chan error, 1)
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	go func() { ended <- cmd.Wait() }() // reaps it; --kill-child ends trl with it
	stopped := false
	defer func() {
		if !stopped {
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Log(book.String())
		}
	}()
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "trl: listening on http://")
	if !ok {
		if strings.Contains(book.String(), "unshare:") {
			t.Skip(book.String())
		}
		t.Fatalf("%q %v", line, err)
	}
	g := &rig.Server{Addr: addr, Book: book, Dir: dir, Home: dir}
	for _, pid := range testkit.Pids() {
		if _, parent, _, ok := rig.ProcStat(pid); ok && parent == cmd.Process.Pid {
			g.Pid = pid
		}
	}
	c := g.Dial(t)
	nap := rig.Sleeper()
	for _, sh := range rig.Shells {
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, "ps -o comm= -p 1"), 0, "trl\n", "")
		c.Run(s, "(setsid sh -c 'setsid true & exit' >/dev/null 2>&1 &)")
		c.Run(s, "setsid "+nap+" & :")
		c.Stream(s, nap)
	}
	testkit.Eventually(t, "all run", func() bool { return len(rig.Running(nap)) == 4 })
	testkit.Eventually(t, "orphans are reaped", func() bool { return rig.ZombiesOf(g.Pid) == 0 && g.Metric(t, "trl_zombies_reaped_total") > 0 })
	resp, err := http.Get("http://" + addr + "/readyz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v %v", resp, err)
	} else {
		resp.Body.Close()
	}
	_ = syscall.Kill(g.Pid, syscall.SIGTERM)
	select {
	case err = <-ended:
	case <-time.After(rig.EndWithin):
		t.Fatal("does not end")
	}
	stopped = true
	if err != nil { // unshare hands the exit code on
		t.Errorf("end: %v", err)
	}
	if left := rig.Running(nap); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	<-c.Done
	if code := websocket.CloseStatus(c.Err); code != websocket.StatusServiceRestart {
		t.Errorf("closed with %v", c.Err)
	}
}
