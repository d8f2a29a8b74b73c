package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

var gTiers = []string{"auto", "none"}

// eachTier runs f under every shell in every way of keeping processes together.
func eachTier(t *testing.T, f func(t *testing.T, g *server, shell string)) {
	for _, tier := range gTiers {
		t.Run(tier, func(t *testing.T) {
			g := shared(t, "g-"+tier, "--isolation", tier)
			eachShell(t, func(t *testing.T, sh string) { f(t, g, sh) })
		})
	}
}

// statFields are those of /proc/PID/stat from the state on: state ppid pgrp session tty_nr tpgid and so on; none of a process that is gone.
func statFields(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// procStat is what /proc/PID/stat tells: state, parent, start. ok is false for a process that is gone.
func procStat(pid int) (state byte, parent int, start string, ok bool) {
	f := statFields(pid)
	if f == nil {
		return 0, 0, "", false
	}
	parent, _ = strconv.Atoi(f[1])
	return f[0][0], parent, f[19], true
}

// zombiesOf counts the zombies that have this parent, gChildren its other children.
func zombiesOf(parent int) (n int)  { z, _ := childCounts(parent); return z }
func childrenOf(parent int) (n int) { _, c := childCounts(parent); return c }

func childCounts(parent int) (zombies, others int) {
	for _, pid := range pids() {
		if state, of, _, ok := procStat(pid); ok && of == parent {
			if state == 'Z' {
				zombies++
			} else {
				others++
			}
		}
	}
	return zombies, others
}

// processesOfSession lists the processes whose environment names this session.
func processesOfSession(session string) (all []int) {
	for _, pid := range pids() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if strings.Contains(string(b), "TRL_SESSION_ID="+session+"\x00") {
			all = append(all, pid)
		}
	}
	return all
}

// cgroupDir is the directory of the gateway's own cgroup; "" where it has none.
func (g *server) cgroupDir(t testing.TB) string {
	t.Helper()
	eventually(t, "it has logged that it listens", func() bool { return strings.Contains(g.log(), `"listening"`) })
	for line := range strings.Lines(g.log()) {
		var l struct{ Message, Isolation, Why string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "listening" {
			dir, _ := strings.CutPrefix(l.Why, "cgroup v2 at ")
			if l.Isolation != "cgroup" {
				return ""
			}
			if _, err := os.Stat(dir); err != nil {
				t.Fatalf("%q: %v", l.Why, err)
			}
			return dir
		}
	}
	t.Fatal("the log does not tell the isolation")
	return ""
}

// countDirs counts the directories below dir.
func countDirs(dir string) (n int) {
	if dir != "" {
		_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				n++
			}
			return nil // what vanishes meanwhile is not counted
		})
	}
	return n
}

// countFiles counts the files, pipes and sockets below dir.
func countFiles(dir string) (n int) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return nil
	})
	return n
}

// forestCommand is a command that starts what is hard to end: deaf, in sessions of their own, double-forked, without environment.
// nap is the command line of them all, how many there are the second result.
func forestCommand(nap string) (command string, n int) {
	return nap + " & sh -c 'trap \"\" TERM HUP INT; " + nap + "; :' & setsid " + nap + " & (setsid sh -c '" + nap + " & " + nap + "' >/dev/null 2>&1 &); env -i setsid " + nap + " &", 6
}

// G1: destroy leaves nothing, whatever the session had started.
func TestDestroyLeavesNothing(t *testing.T) {
	t.Parallel()
	together(len(gTiers)*len(shells), func(i int) {
		tier, sh := gTiers[i/len(shells)], shells[i%len(shells)]
		c := shared(t, "g-"+tier, "--isolation", tier).dial(t)
		s, nap, deaf := c.session(object{"shell": sh}), sleeper(), sleeper()
		forest, n := forestCommand(nap)
		c.run(s, forest)
		c.call("process.start", object{"session_id": s, "command": nap})
		c.stream(s, "trap '' TERM; "+deaf)
		eventually(t, "all run", func() bool { return len(running(nap)) == n+1 && len(running(deaf)) == 1 })
		if len(processesOfSession(s)) < n {
			t.Errorf(tier+", "+sh+": only %v carry the session's name", processesOfSession(s))
		}
		start := time.Now()
		d := c.call("session.destroy", object{"session_id": s})
		within(t, "session.destroy", start, 7*time.Second)
		if d.str("state") != "TERMINATED" || d.str("reason") != "client" {
			t.Errorf(tier+", "+sh+": %v", d)
		}
		// At the answer, not some time later.
		if left := append(append(running(nap), running(deaf)...), processesOfSession(s)...); len(left) > 0 {
			t.Errorf(tier+", "+sh+": survivors %v", left)
		}
		if again := c.call("session.destroy", object{"session_id": s}); fmt.Sprint(again) != fmt.Sprint(d) {
			t.Errorf(tier+", "+sh+": again: %v, want %v", again, d)
		}
	})
}

// recyclePID makes a sleeping process of ours with the number of one that is gone. It lives until the test ends.
func recyclePID(t *testing.T, pid int) (alive func() bool) {
	t.Helper()
	eventually(t, "the number is free", func() bool { _, _, _, ok := procStat(pid); return !ok })
	for range 2000 { // others fork meanwhile
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Skipf("numbers cannot be chosen here: %v", err)
		}
		cmd := exec.Command("sleep", "300")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if cmd.Process.Pid != pid {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			continue
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return func() bool { state, _, _, ok := procStat(pid); return ok && state != 'Z' }
	}
	t.Skip("the number was never ours")
	return nil
}

// G5: who gets the number of a process that is gone gets none of its signals.
func TestRecycledPIDGetsNoSignal(t *testing.T) {
	if !soak {
		t.Skip("turns the machine's pid counter back, which hands the numbers to other tests' processes: alone, with TRL_SOAK=1; " +
			"runtime's tests cover the pinning")
	}
	eachTier(t, func(t *testing.T, g *server, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		x := c.stream(s, `exec sh -c 'echo $$; exit 3'`) // the shell itself ends with it and is put back
		text, _ := c.output(x.str("stream_id"), 0)
		p := c.call("process.start", object{"session_id": s, "command": "exit 3"})
		awaitExit(c, p.str("process_id"))
		job := c.run(s, "sleep 0.01 & echo $!")
		var strangers []func() bool
		numbers := []string{strings.TrimSpace(text), strconv.Itoa(p.num("pid")), strings.TrimSpace(job.stdout())}
		for _, number := range numbers {
			pid, err := strconv.Atoi(number)
			if err != nil {
				t.Fatalf("no number: %q", number)
			}
			eventually(t, "it is gone", func() bool { c.run(s, "wait; /bin/true"); _, _, _, ok := procStat(pid); return !ok }) // dash reaps its jobs only then
			strangers = append(strangers, recyclePID(t, pid))
		}
		for _, q := range []object{{}, {"signal": "KILL"}, {"kill_grace_s": 0}} {
			c.call("exec.cancel", with(q, object{"exec_id": x.str("exec_id")}))
			c.call("process.kill", with(q, object{"process_id": p.str("process_id")}))
		}
		if r := c.run(s, "sleep 10", object{"timeout_s": 0.1, "kill_grace_s": 0}); !r.yes("timed_out") {
			t.Errorf("%v", r)
		}
		c.call("session.destroy", object{"session_id": s, "force": true})
		for i, alive := range strangers {
			if !alive() {
				t.Errorf("stranger %d was killed", i)
			}
		}
	})
}

// G6: rest ends a session, work does not, however silent and however alone. J10 is here too: pings are not work.
func TestIdlenessEndsASessionAndWorkDoesNot(t *testing.T) {
	t.Parallel()
	g := gateway(t, "--idle-timeout", "1h")
	patient := object{"idle_timeout_s": 2}
	first := g.dial(t)
	resting, command, process, job := first.session(patient), first.session(patient), first.session(patient), first.session(patient)
	nap := sleeper()
	first.stream(command, nap)
	first.call("process.start", object{"session_id": process, "command": nap})
	first.run(job, nap+" &")
	first.close()

	c := g.dial(t) // which pings all the time, in both ways, and watches
	pinged := c.session(patient)
	c.call("session.watch", object{"session_id": pinged})
	for start := time.Now(); c.state(pinged) != "TERMINATED"; {
		if time.Since(start) > patience {
			t.Fatal("pings keep a session alive")
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := c.ws.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		c.call("system.ping", nil)
		time.Sleep(20 * time.Millisecond)
	}
	later := c.session(patient)
	eventually(t, "it rests for too long", func() bool { return c.state(later) == "TERMINATED" })
	for _, id := range []string{resting, pinged, later} { // by now the others have had their two seconds twice
		if i := c.info(id); i.str("state") != "TERMINATED" || i.str("reason") != "idle" {
			t.Errorf("rested: %v", i)
		}
	}
	for id, want := range map[string]string{command: "RUNNING", process: "IDLE", job: "IDLE"} {
		if state := c.state(id); state != want {
			t.Errorf("worked: %s, want %s", state, want)
		}
	}
	if n := len(running(nap)); n != 3 {
		t.Errorf("%d run", n)
	}
	if n := g.metric(t, "trl_sessions_reaped_total", `"idle"`); n != 3 {
		t.Errorf("%v reaped", n)
	}
}

// G7: TERM with a hundred busy sessions: clients are told, nothing is left, exit 0. The rig checks the last two, and
// that it did not take too long. cmd/trl's TestStopEndsAHundredBusySessions does this in the other tier, with sh.
func TestStopEndsManyBusySessions(t *testing.T) {
	g := gateway(t, "--isolation", "none")
	const n = 100
	clients := []*client{g.dial(t), g.dial(t), g.dial(t), g.dial(t)}
	nap := sleeper()
	together(len(clients), func(k int) {
		c := clients[k]
		for i := range n / len(clients) {
			s := c.session(object{"shell": shells[i%2]})
			c.stream(s, []string{"setsid " + nap + " & " + nap, `trap "" TERM; setsid ` + nap + ` & while :; do ` + nap + `; done`}[i/2%2])
		}
	})
	eventually(t, "all run", func() bool { return len(running(nap)) >= 2*n })
	start := time.Now()
	faults := g.stop()
	t.Logf("%d sessions, took %s", n, time.Since(start).Round(time.Millisecond))
	if len(faults) > 0 || len(running(nap)) > 0 {
		t.Errorf("%v, %d naps left", faults, len(running(nap)))
	}
	for _, c := range clients {
		c.await("server.shutdown", func(f *frame) bool { return f.Event == "server.shutdown" })
		<-c.done
		if code := websocket.CloseStatus(c.err); code != websocket.StatusServiceRestart {
			t.Errorf("closed with %v", c.err)
		}
	}
	if _, err := g.open(t, nil); err == nil {
		t.Error("still takes connections")
	}
}

// G8: sessions that were made, used and destroyed leave everything as it was.
func TestSessionCyclesLeaveEverythingAsItWas(t *testing.T) {
	for _, tier := range gTiers {
		t.Run(tier, func(t *testing.T) {
			g := gateway(t, "--isolation", tier, "--retention", "1s")
			cgroup := g.cgroupDir(t)
			const at = 3
			var clients []*client
			for range at {
				clients = append(clients, g.dial(t))
			}
			cycle := func(c *client, i int) {
				s := c.session(object{"shell": shells[i%2]})
				expect(t, c.run(s, "(setsid sh -c 'sleep 300.5 & exit' &); sleep 300.5 & cat", object{"stdin": "in"}), 0, "in", "") // a daemon, and a zombie for whoever adopts it
				text, _ := c.output(c.stream(s, "seq 1000").str("stream_id"), 0)
				if !strings.HasSuffix(text, "\n1000\n") {
					t.Errorf("%s", brief(text))
				}
				deaf := ""
				if i%4 != 0 { // reset waits for it
					deaf = "trap '' TERM; "
				}
				c.call("process.start", object{"session_id": s, "command": deaf + "cat", "stdin": "open"})
				q := c.call("process.start", object{"session_id": s, "command": "setsid sleep 300.5 & sleep 300.5"}).str("process_id")
				x := c.stream(s, "sleep 300.5 & sleep 300.5")
				c.call("exec.cancel", object{"exec_id": x.str("exec_id"), "kill_grace_s": 0.05})
				if _, exit := c.output(x.str("stream_id"), 0); !exit.yes("cancelled") {
					t.Errorf("%v", exit)
				}
				c.call("process.kill", object{"process_id": q, "kill_grace_s": 0.05})
				for _, end := range []string{"exit 3", "kill -9 $$"} {
					if r := c.run(s, end); !r.yes("shell_restored") {
						t.Errorf("%s: %v", end, r)
					}
				}
				if i%4 == 0 {
					c.call("session.reset", object{"session_id": s})
				}
				c.call("session.destroy", object{"session_id": s, "force": true})
			}
			run := func(n int) {
				together(at, func(k int) {
					for i := range n / at {
						cycle(clients[k], i)
					}
				})
				eventually(t, "warm again, and what has ended forgotten", func() bool { return g.metric(t, "trl_warm_shells") == 4 && g.metric(t, "trl_sessions") == 0 })
			}
			run(2 * at)
			before := g.counts(t, cgroup)
			run(pick(30, 500))
			g.awaitBaseline(t, cgroup, before)
		})
	}
}

// counts is what must come back to where it was.
func (g *server) counts(t testing.TB, cgroup string) [7]int {
	t.Helper()
	return [7]int{int(g.metric(t, "go_goroutines")), fdsOf(t, g.pid), fdsOf(t, g.serving(t)), childrenOf(g.pid) + zombiesOf(g.pid), countDirs(cgroup), countFiles(g.dir), len(g.processes())}
}

func (g *server) awaitBaseline(t testing.TB, cgroup string, before [7]int) {
	t.Helper()
	var after [7]int
	defer func() {
		t.Logf("goroutines, descriptors of keeper and gateway, children, cgroups, files, processes: %v before, %v after", before, after)
		if t.Failed() {
			t.Logf("keeper's descriptors: %v\ngateway's: %v", fdKinds(g.pid), fdKinds(g.gatewayPid()))
		}
	}()
	eventually(t, "all is as before", func() bool {
		if after = g.counts(t, cgroup); g.metric(t, "trl_warm_shells") < 4 {
			return false
		}
		for i := range after {
			if after[i] > before[i] {
				return false
			}
		}
		return true
	})
}

// G11: while a session is being ended it is known, and it is TERMINATED only when all of it is dead.
func TestSessionIsKnownUntilAllOfItIsDead(t *testing.T) {
	eachTier(t, func(t *testing.T, g *server, sh string) {
		c := g.dial(t)
		s, nap := c.session(object{"shell": sh}), sleeper()
		p := c.call("process.start", object{"session_id": s, "command": "trap '' TERM; " + nap + "; :"}).str("process_id")
		eventually(t, "it runs", func() bool { return len(running(nap)) == 1 })
		told := make(chan bool, 1)
		w := g.dial(t)
		w.call("session.watch", object{"session_id": s})
		go func() { // ends with the event or the connection
			w.await("the end", func(f *frame) bool { return f.Event == "session.state" && f.Data.str("to") == "TERMINATED" })
			told <- len(running(nap)) == 0
		}()
		destroy := c.begin("session.destroy", object{"session_id": s, "grace_s": 1})
		seen := 0
		other := g.dial(t)          // on c it would wait for its turn, after destroy
		for len(running(nap)) > 0 { // alive before and after the look: the look was at an ending session
			i := other.info(s)
			list := other.call("process.list", object{"session_id": s}).objs("processes")
			if len(running(nap)) == 0 {
				break
			}
			seen++
			if i.str("state") == "TERMINATED" || len(list) != 1 || list[0].str("process_id") != p {
				t.Fatalf("with a live process: %v, %v", i, list)
			}
		}
		if seen == 0 {
			t.Error("never seen ending")
		}
		if f := c.answer(destroy); !f.OK || len(running(nap)) > 0 {
			t.Errorf("%+v", f)
		}
		if !<-told {
			t.Error("TERMINATED before its process was dead")
		}
		if i := c.call("process.info", object{"process_id": p}); i.str("state") != "exited" {
			t.Errorf("%v", i)
		}
	})
}

// G12: a keeper that is killed takes its sessions along. The gateway ends them at once; where that is killed, too, the
// next start on the state directory does, and knows that they are lost: those, and nothing else.
func TestKilledKeeperTakesItsSessionsAlong(t *testing.T) {
	for _, tier := range gTiers {
		t.Run(tier, func(t *testing.T) { testKeeperDies(t, tier, false) })
		t.Run(tier+"/with its gateway", func(t *testing.T) { testKeeperDies(t, tier, true) })
	}
}

func testKeeperDies(t *testing.T, tier string, both bool) {
	live := gateway(t, "--isolation", tier) // another one, beside it
	victim, err := startGateway("--isolation", tier)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.stop() }) // its end is no good one, but where the test is skipped
	innocent := exec.Command("sleep", "300")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = innocent.Wait() }()
	defer func() { _ = innocent.Process.Kill() }()
	nap, theirs := sleeper(), sleeper()
	l, v := live.dial(t), victim.dial(t)
	keep := l.session()
	l.call("process.start", object{"session_id": keep, "command": theirs})
	forest, trees := forestCommand(nap)
	lost := v.session(object{"shell": "/bin/bash"})
	v.run(lost, forest)
	v.stream(lost, "trap '' TERM HUP PIPE; "+nap)
	idle := v.session(object{"shell": "/bin/sh"})
	v.run(idle, nap+" &")
	eventually(t, "all run", func() bool { return len(running(nap)) == trees+2 && len(running(theirs)) == 1 })
	epoch, cgroup := v.call("system.ping", nil).str("epoch"), victim.cgroupDir(t)
	if tier == "auto" && cgroup == "" {
		t.Skip("no cgroup v2 that we may write")
	}
	type id struct {
		pid   int
		start string
	}
	var all []id // of the victim's: what this test may end itself
	for _, pid := range append(running(nap), append(processesOfSession(lost), processesOfSession(idle)...)...) {
		if _, _, start, ok := procStat(pid); ok {
			all = append(all, id{pid, start})
		}
	}
	left := func() (n []int) {
		for _, p := range all {
			if state, _, start, ok := procStat(p.pid); ok && start == p.start && state != 'Z' {
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
	if gw := victim.gatewayPid(); both { // it must not notice
		if err := errors.Join(syscall.Kill(gw, syscall.SIGSTOP), syscall.Kill(victim.pid, syscall.SIGKILL), syscall.Kill(gw, syscall.SIGKILL)); err != nil {
			t.Fatal(err)
		}
	} else if err := syscall.Kill(victim.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-victim.exited
	<-v.done
	if both {
		// The idle shells end by themselves, as nobody writes to them any more; what they started does not.
		t.Logf("left behind: %v", left())
		if len(left()) == 0 {
			t.Error("nothing: then the next start proves nothing")
		}
	} else {
		eventually(t, "the gateway has ended all", func() bool { return len(left()) == 0 && len(running(nap)) == 0 })
	}
	next := gateway(t, "--isolation", tier, "--state-dir", filepath.Join(victim.dir, "state"))
	if n := append(left(), running(nap)...); len(n) > 0 {
		t.Errorf("after the next start: %v", n)
	}
	eventually(t, "its warm shells are gone too", func() bool { return len(victim.processes()) == 0 })
	if _, err := os.Stat(cgroup); err == nil && cgroup != "" {
		t.Errorf("%s is still there", cgroup)
	}
	c := next.dial(t)
	if e := c.call("system.ping", nil).str("epoch"); e == epoch || e == "" {
		t.Errorf("epoch %q", e)
	}
	if list := c.call("session.list", nil).objs("sessions"); len(list) != 0 {
		t.Errorf("%v", list)
	}
	for _, method := range []string{"session.info", "session.destroy"} {
		if f := c.try(method, object{"session_id": lost}); f.code() != "SESSION_LOST" {
			t.Errorf("%s: %+v", method, f)
		}
	}
	if f := c.try("exec.run", object{"session_id": idle, "command": "echo"}); f.code() != "SESSION_LOST" {
		t.Errorf("%+v", f)
	}
	expect(t, c.run(c.session(), "echo new"), 0, "new\n", "")
	if state, _, _, ok := procStat(innocent.Process.Pid); !ok || state == 'Z' {
		t.Error("an innocent process was killed")
	}
	if len(running(theirs)) != 1 || l.state(keep) != "IDLE" {
		t.Error("another gateway's session was touched")
	}
	expect(t, l.run(keep, "echo here"), 0, "here\n", "")
}

// TestGatewayReapsAdoptedZombies: what daemons leave when they die is reaped by the gateway, which adopts them as subreaper.
func TestGatewayReapsAdoptedZombies(t *testing.T) {
	eachTier(t, func(t *testing.T, g *server, sh string) {
		c := g.dial(t)
		s, before := c.session(object{"shell": sh}), g.metric(t, "trl_zombies_reaped_total")
		const n = 10
		gate, _ := uniqueFile(g, "gate") // they live until their parents have gone: before, those could reap them
		told, _ := uniqueFile(g, "told") // not their output: what they print late is not in the answer
		c.run(s, "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sh -c 'echo $$ >>"+told+"; until [ -e "+gate+" ]; do sleep 0.02; done' &) ; done >/dev/null 2>&1")
		var daemons []int
		eventually(t, "all told their number", func() bool {
			daemons = daemons[:0]
			text, _ := os.ReadFile(told)
			for _, w := range strings.Fields(string(text)) {
				pid, _ := strconv.Atoi(w)
				daemons = append(daemons, pid)
			}
			return len(daemons) == n
		})
		eventually(t, "they are adopted", func() bool {
			for _, pid := range daemons {
				if _, parent, _, ok := procStat(pid); !ok || parent != g.pid {
					return false
				}
			}
			return true
		})
		c.run(s, ": >"+gate)
		eventually(t, "all are gone, zombies too", func() bool {
			for _, pid := range daemons {
				if _, _, _, ok := procStat(pid); ok {
					return false
				}
			}
			return zombiesOf(g.pid) == 0
		})
		if reaped := g.metric(t, "trl_zombies_reaped_total") - before; reaped < n {
			t.Errorf("%v counted, there were %d", reaped, n)
		}
		c.call("session.destroy", object{"session_id": s, "force": true})
	})
}

// TestGatewayWorksAsPID1: in a container trl may be PID 1: it serves, reaps and ends well.
func TestGatewayWorksAsPID1(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a PID namespace needs root")
	}
	dir := t.TempDir()
	book := &logBook{}
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", binary, "serve", "--listen", "127.0.0.1:0", "--auth", "none",
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
	g := &server{addr: addr, book: book, dir: dir, home: dir}
	for _, pid := range pids() {
		if _, parent, _, ok := procStat(pid); ok && parent == cmd.Process.Pid {
			g.pid = pid
		}
	}
	c := g.dial(t)
	nap := sleeper()
	for _, sh := range shells {
		s := c.session(object{"shell": sh})
		expect(t, c.run(s, "ps -o comm= -p 1"), 0, "trl\n", "")
		c.run(s, "(setsid sh -c 'setsid true & exit' >/dev/null 2>&1 &)")
		c.run(s, "setsid "+nap+" & :")
		c.stream(s, nap)
	}
	eventually(t, "all run", func() bool { return len(running(nap)) == 4 })
	eventually(t, "orphans are reaped", func() bool { return zombiesOf(g.pid) == 0 && g.metric(t, "trl_zombies_reaped_total") > 0 })
	resp, err := http.Get("http://" + addr + "/readyz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v %v", resp, err)
	} else {
		resp.Body.Close()
	}
	_ = syscall.Kill(g.pid, syscall.SIGTERM)
	select {
	case err = <-ended:
	case <-time.After(endWithin):
		t.Fatal("does not end")
	}
	stopped = true
	if err != nil { // unshare hands the exit code on
		t.Errorf("end: %v", err)
	}
	if left := running(nap); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	<-c.done
	if code := websocket.CloseStatus(c.err); code != websocket.StatusServiceRestart {
		t.Errorf("closed with %v", c.err)
	}
}
