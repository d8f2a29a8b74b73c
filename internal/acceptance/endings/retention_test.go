package endings

import (
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// held is how many descriptors keeper and gateway have, and how many cgroups there are.
type held struct{ keeper, gateway, cgroups int }

func holding(t testing.TB, g *rig.Server, cgroup string) held {
	t.Helper()
	return held{rig.FdsOf(t, g.Pid), rig.FdsOf(t, g.Serving(t)), rig.CountDirs(cgroup)}
}

// holds waits until no more is held than most.
func holds(t testing.TB, g *rig.Server, what, cgroup string, most held) {
	t.Helper()
	var now held
	defer func() {
		if t.Logf("%s: %+v, at most %+v", what, now, most); t.Failed() {
			t.Logf("keeper: %v\ngateway: %v", rig.FdKinds(g.Pid), rig.FdKinds(g.GatewayPid()))
		}
	}()
	testkit.Eventually(t, what, func() bool {
		now = holding(t, g, cgroup)
		return now.keeper <= most.keeper && now.gateway <= most.gateway && now.cgroups <= most.cgroups
	})
}

// sessionWork is what was begun in a session, and what each of it printed.
type sessionWork struct{ execs, processes, terminals map[string]string }

func newSessionWork() *sessionWork {
	return &sessionWork{map[string]string{}, map[string]string{}, map[string]string{}}
}

// add does n of each that a session keeps something of when it has ended.
func (w *sessionWork) add(c *rig.Client, session, tag string, n int) {
	for i := range n {
		text := fmt.Sprintf("%s-%d", tag, i)
		r := c.Run(session, fmt.Sprintf("sleep 0.005 & echo %s; echo no >&2", text))
		w.execs[r.Str("exec_id")] = text + "\n"
		w.processes[c.Call("process.start", object{"session_id": session, "command": fmt.Sprintf("echo %s; echo no >&2; echo %[1]s", text)}).Str("process_id")] = text + "\n" + text + "\n"
		w.terminals[c.Call("term.open", object{"session_id": session, "cols": 80, "rows": 24, "command": "echo " + text}).Str("term_id")] = text + "\r\n"
	}
}

// readable says that all of it is there.
func (w *sessionWork) readable(t testing.TB, g *rig.Server) {
	t.Helper()
	c := g.Dial(t) // which nothing is attached to yet
	defer c.Close()
	for id, text := range w.execs {
		rig.Expect(t, c.Call("exec.wait", object{"exec_id": id, "timeout_s": 60}), 0, text, "no\n")
	}
	for id, text := range w.processes {
		c.Call("process.wait", object{"process_id": id, "until": object{"exit": true}})
		var got strings.Builder
		for _, chunk := range c.Call("process.logs", object{"process_id": id}).Objs("chunks") {
			if chunk.Str("stream") == "stdout" {
				got.WriteString(chunk.Str("data"))
			}
		}
		if got.String() != text {
			t.Errorf("process %s printed %q, want %q", id, got.String(), text)
		}
	}
	for id, text := range w.terminals {
		if got, _ := c.Output(c.Call("term.attach", object{"term_id": id, "offset": 0, "mode": "view"}).Str("stream_id"), 0); got != text {
			t.Errorf("terminal %s printed %q, want %q", id, got, text)
		}
	}
}

// TestEndedThingsHoldNoDescriptors: with the default retention, what has ended in a session has no descriptor and no cgroup of its
// own, and an ended session has one descriptor, in the keeper. After the death of the gateway all output is there.
func TestEndedThingsHoldNoDescriptors(t *testing.T) {
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g := rig.Gateway(t, "--isolation", tier, "--warm", "0")
			cgroup := g.CgroupDir(t)
			c := g.Dial(t)
			s := c.Session(object{"shell": "/bin/bash"})
			w := newSessionWork()
			w.add(c, s, "first", 2)
			w.readable(t, g)
			c.Run(s, "true") // makes the pipes for the next command
			before := holding(t, g, cgroup)
			w.add(c, s, "more", rig.Pick(30, 300))
			w.readable(t, g)
			c.Run(s, "true")
			holds(t, g, "nothing of what has ended is held", cgroup, before)

			const sessions = 10
			for i := range sessions {
				gone := c.Session(object{"shell": "/bin/bash"})
				of := newSessionWork()
				of.add(c, gone, fmt.Sprint("gone-", i), 2)
				c.Run(gone, "echo")
				of.readable(t, g)
				maps.Copy(w.execs, of.execs)
				maps.Copy(w.processes, of.processes)
				maps.Copy(w.terminals, of.terminals)
				c.Call("session.destroy", object{"session_id": gone, "force": true})
			}
			before.keeper += sessions
			holds(t, g, "one descriptor of each session that has ended", cgroup, before)
			w.readable(t, g)

			silent := c.Run(s, "sleep 0.1 >/dev/null 2>&1 & true").Str("exec_id")
			g.KillGateway(t)
			c = g.Redial(t)
			w.readable(t, g)
			rig.Expect(t, c.Call("exec.wait", object{"exec_id": silent, "timeout_s": 60}), 0, "", "")
			if strings.Contains(g.Log(), "output is lost") {
				t.Error("the log says that output is lost")
			}
			before.gateway += 4 // what the first gateway had opened later
			testkit.Eventually(t, "the silent job is over, and was looked at", func() bool {
				return len(c.Info(s).Ints("background")) == 0
			})
			holds(t, g, "no more after a death", cgroup, before)
			g.KillGateway(t)
			c = g.Redial(t)
			w.readable(t, g)
			c.Run(s, "sleep 0.005 & echo")
			c.Run(s, "echo")
			holds(t, g, "no more after another death", cgroup, before)
		})
	}
}

// TestIdleSessionsHoldFewDescriptors: a session that has been idle for a while holds little, nothing of it is lost by that, even if the gateway dies meanwhile,
// and whatever comes next finds it as it was.
func TestIdleSessionsHoldFewDescriptors(t *testing.T) {
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g := rig.Gateway(t, "--isolation", tier, "--warm", "0")
			cgroup := g.CgroupDir(t)
			c := g.Dial(t)
			const sessions, some = 10, 8 // some: of what the gateway opens once
			c.Call("session.destroy", object{"session_id": c.Session(object{"shell": "/bin/bash"}), "force": true})
			base := holding(t, g, cgroup)
			var ids []string
			for range sessions {
				ids = append(ids, c.Session(object{"shell": "/bin/bash"}))
			}
			most := holding(t, g, cgroup)
			most.keeper = base.keeper + 5*sessions + some
			most.gateway = base.gateway + sessions + some
			w := newSessionWork()
			busy := 0
			for i, s := range ids {
				w.add(c, s, fmt.Sprint("work-", i), 1)
				before := holding(t, g, cgroup).gateway
				rig.Expect(t, c.Run(s, fmt.Sprintf("here=%d; echo $here", i)), 0, fmt.Sprintln(i), "")
				busy = max(busy, before-base.gateway, holding(t, g, cgroup).gateway-base.gateway)
			}
			if busy < 2*10 { // of two at least: on a busy machine the first ones rest before the last ones work
				t.Errorf("there is nothing to see: %+v, and %d more in the gateway", base, busy)
			}
			holds(t, g, "idle sessions hold little", cgroup, most)
			w.readable(t, g)
			for i, s := range ids { // each is woken by something else
				switch i {
				case 0:
					id := c.Call("process.start", object{"session_id": s, "command": "echo $here"}).Str("process_id")
					w.processes[id] = fmt.Sprintln(i)
				case 1:
					w.terminals[c.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": "echo $here"}).Str("term_id")] = "1\r\n"
				case 2:
					c.Call("session.reset", object{"session_id": s})
					rig.Expect(t, c.Run(s, "echo ${here-none}; here=2"), 0, "none\n", "")
				case 3, 4:
					if err := syscall.Kill(c.Info(s).Num("pid"), syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				case 5:
					rig.Expect(t, c.Run(s, "exit 3"), 3, "", "")
				case 6:
					rig.Expect(t, c.Run(s, "cat", object{"stdin": "in"}), 0, "in", "")
				case 7:
					if x := c.Run(s, "sleep 300", object{"timeout_s": 1}); !x.Yes("timed_out") {
						t.Errorf("%v", x)
					}
				}
			}
			w.readable(t, g)
			holds(t, g, "and again", cgroup, most)
			g.KillGateway(t)
			c = g.Redial(t)
			w.readable(t, g)
			for i, s := range ids {
				rig.Expect(t, c.Run(s, "echo $here"), 0, fmt.Sprintln(i), "")
			}
			holds(t, g, "also in another gateway", cgroup, most)
			c.Call("session.destroy", object{"session_id": ids[9], "force": true})
			for i, s := range ids[:9] {
				rig.Expect(t, c.Run(s, "echo $here"), 0, fmt.Sprintln(i), "")
			}
			w.readable(t, g)
		})
	}
}

// TestFewSessionsAreReady: however often many sessions are used, only a few keep what a command needs, and none loses anything by that.
func TestFewSessionsAreReady(t *testing.T) {
	t.Parallel()
	const sessions, ready, some = 30, 10, 12 // ready: a hundredth of the descriptors
	g := rig.StartTuned(t, rig.StartedBy("prlimit", fmt.Sprint("--nofile=", ready*100)), "--warm", "0")
	cgroup := g.CgroupDir(t)
	c := g.Dial(t)
	base := holding(t, g, cgroup)
	var ids []string
	for i := range sessions {
		ids = append(ids, c.Session(object{"shell": "/bin/bash"}))
		c.Run(ids[i], fmt.Sprintf("here=%d", i))
	}
	var now held
	defer func() { t.Logf("%+v, %+v before", now, base) }()
	used := time.Now()
	testkit.Eventually(t, "few are ready", func() bool {
		if time.Since(used) > 5*time.Second { // so that none is idle for as long as sessions are that rest anyway
			for i, s := range ids {
				rig.Expect(t, c.Run(s, "echo $here"), 0, fmt.Sprintln(i), "")
			}
			used = time.Now()
		}
		now = holding(t, g, cgroup)
		return now.gateway <= base.gateway+17*ready+2*(sessions-ready)+some && now.keeper <= base.keeper+16*ready+6*(sessions-ready)+some
	})
	g.KillGateway(t)
	c = g.Redial(t)
	for i, s := range ids {
		rig.Expect(t, c.Run(s, "echo $here"), 0, fmt.Sprintln(i), "")
	}
}

// TestFullServerGoesOnWorking: when there are no descriptors for another session, those that exist can run commands, start processes and be given back.
func TestFullServerGoesOnWorking(t *testing.T) {
	for _, flags := range [][]string{nil, {"--single-process"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			t.Parallel()
			g := rig.StartTuned(t, rig.StartedBy("prlimit", "--nofile=1000"), append(flags, "--warm", "0", "--isolation", "none")...)
			c := g.Dial(t)
			var ids []string
			for {
				f := c.Try("session.create", object{"shell": "/bin/sh"})
				if f.OK {
					ids = append(ids, f.Data.Str("session_id"))
					testkit.Eventually(t, "the new session works", func() bool {
						return c.Try("exec.run", object{"session_id": ids[len(ids)-1], "command": fmt.Sprint("here=", len(ids))}).OK
					})
					continue
				}
				if f.Code() != "LIMIT_EXCEEDED" || len(ids) < 15 {
					t.Fatalf("after %d sessions: %v", len(ids), f.Error)
				}
				break
			}
			t.Logf("%d sessions", len(ids))
			for i, s := range ids {
				testkit.Eventually(t, "a session works, once enough others rest", func() bool {
					f := c.Try("exec.run", object{"session_id": s, "command": "echo $here"})
					return f.OK && f.Data.Stdout() == fmt.Sprintln(i+1)
				})
			}
			testkit.Eventually(t, "a session starts a process", func() bool {
				return c.Try("process.start", object{"session_id": ids[0], "command": "sleep 300"}).OK
			})
			for _, s := range ids[1:] {
				c.Call("session.destroy", object{"session_id": s, "force": true})
			}
			testkit.Eventually(t, "there is room again", func() bool { return c.Try("session.create", object{"shell": "/bin/sh"}).OK })
		})
	}
}

// TestRetentionGivesAllBack: when the retention of everything is over, nothing of it is held, also by a gateway that took over.
func TestRetentionGivesAllBack(t *testing.T) {
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g := rig.Gateway(t, "--isolation", tier, "--warm", "0", "--retention", "3s")
			cgroup := g.CgroupDir(t)
			c := g.Dial(t)
			s := c.Session(object{"shell": "/bin/bash"})
			c.Run(s, "echo")
			before := holding(t, g, cgroup)
			for range 5 {
				w := newSessionWork()
				gone := c.Session(object{"shell": "/bin/bash"})
				w.add(c, gone, "gone", 3)
				w.add(c, s, "here", 3)
				c.Call("session.destroy", object{"session_id": gone, "force": true})
			}
			g.KillGateway(t)
			c = g.Redial(t)
			testkit.Eventually(t, "all is forgotten", func() bool { return g.Metric(t, "trl_sessions") == 1 })
			c.Run(s, "echo")
			before.gateway += 4
			holds(t, g, "nothing is held", cgroup, before)
		})
	}
}

// TestJobsThatLiveOnCanBeSeenAndEnded: while what a command left running lives, it can be seen and ended; and what has been left behind and has ended
// does not add up, whatever the job did with its outputs.
func TestJobsThatLiveOnCanBeSeenAndEnded(t *testing.T) {
	g := rig.Gateway(t, "--warm", "0")
	cgroup := g.CgroupDir(t)
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	nap := rig.Sleeper()
	c.Run(s, nap+" >/dev/null 2>&1 & "+nap+" &")
	c.Run(s, "sleep 0.005 & true")
	c.Run(s, "true")
	c.Run(s, "true")
	before := holding(t, g, cgroup)
	for i := range 40 {
		c.Run(s, []string{"sleep 0.005 & true", "sleep 0.005 >/dev/null 2>&1 & true", "sleep 0.005 >&2 & sleep 0.02 >/dev/null 2>&1 & true"}[i%3])
	}
	before.keeper, before.gateway, before.cgroups = before.keeper+3*20, before.gateway+4*20, before.cgroups+20
	holds(t, g, "jobs that have ended do not add up", cgroup, before)
	if n := len(rig.Running(nap)); n != 2 {
		t.Errorf("%d of the jobs that live on", n)
	}
	c.Call("session.destroy", object{"session_id": s, "force": true})
	testkit.Eventually(t, "all are ended", func() bool { return len(rig.Running(nap)) == 0 })
}
