package acceptance

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// held is how many descriptors keeper and gateway have, and how many cgroups there are.
type held struct{ keeper, gateway, cgroups int }

func (g *server) held(t testing.TB, cgroup string) held {
	t.Helper()
	return held{fdsOf(t, g.pid), fdsOf(t, g.serving(t)), countDirs(cgroup)}
}

// holds waits until no more is held than most.
func (g *server) holds(t testing.TB, what, cgroup string, most held) {
	t.Helper()
	var now held
	defer func() {
		if t.Logf("%s: %+v, at most %+v", what, now, most); t.Failed() {
			t.Logf("keeper: %v\ngateway: %v", fdKinds(g.pid), fdKinds(g.gatewayPid()))
		}
	}()
	eventually(t, what, func() bool {
		now = g.held(t, cgroup)
		return now.keeper <= most.keeper && now.gateway <= most.gateway && now.cgroups <= most.cgroups
	})
}

// sessionWork is what was begun in a session, and what each of it printed.
type sessionWork struct{ execs, processes, terminals map[string]string }

func newSessionWork() *sessionWork {
	return &sessionWork{map[string]string{}, map[string]string{}, map[string]string{}}
}

// add does n of each that a session keeps something of when it has ended.
func (w *sessionWork) add(c *client, session, tag string, n int) {
	for i := range n {
		text := fmt.Sprintf("%s-%d", tag, i)
		r := c.run(session, fmt.Sprintf("sleep 0.005 & echo %s; echo no >&2", text))
		w.execs[r.str("exec_id")] = text + "\n"
		w.processes[c.call("process.start", object{"session_id": session, "command": fmt.Sprintf("echo %s; echo no >&2; echo %[1]s", text)}).str("process_id")] = text + "\n" + text + "\n"
		w.terminals[c.call("term.open", object{"session_id": session, "cols": 80, "rows": 24, "command": "echo " + text}).str("term_id")] = text + "\r\n"
	}
}

// readable says that all of it is there.
func (w *sessionWork) readable(t testing.TB, g *server) {
	t.Helper()
	c := g.dial(t) // which nothing is attached to yet
	defer c.close()
	for id, text := range w.execs {
		expect(t, c.call("exec.wait", object{"exec_id": id, "timeout_s": 60}), 0, text, "no\n")
	}
	for id, text := range w.processes {
		c.call("process.wait", object{"process_id": id, "until": object{"exit": true}})
		var got strings.Builder
		for _, chunk := range c.call("process.logs", object{"process_id": id}).objs("chunks") {
			if chunk.str("stream") == "stdout" {
				got.WriteString(chunk.str("data"))
			}
		}
		if got.String() != text {
			t.Errorf("process %s printed %q, want %q", id, got.String(), text)
		}
	}
	for id, text := range w.terminals {
		if got, _ := c.output(c.call("term.attach", object{"term_id": id, "offset": 0, "mode": "view"}).str("stream_id"), 0); got != text {
			t.Errorf("terminal %s printed %q, want %q", id, got, text)
		}
	}
}

// TestEndedThingsHoldNoDescriptors: with the default retention, what has ended in a session has no descriptor and no cgroup of its
// own, and an ended session has one descriptor, in the keeper. After the death of the gateway all output is there.
func TestEndedThingsHoldNoDescriptors(t *testing.T) {
	for _, tier := range gTiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g := gateway(t, "--isolation", tier, "--warm", "0")
			cgroup := g.cgroupDir(t)
			c := g.dial(t)
			s := c.session(object{"shell": "/bin/bash"})
			w := newSessionWork()
			w.add(c, s, "first", 2)
			w.readable(t, g)
			c.run(s, "true") // makes the pipes for the next command
			before := g.held(t, cgroup)
			before.keeper++ // the list of the processes of the shell's cell, open once it was asked for
			w.add(c, s, "more", pick(30, 300))
			w.readable(t, g)
			c.run(s, "true")
			g.holds(t, "nothing of what has ended is held", cgroup, before)

			const sessions = 10
			for i := range sessions {
				gone := c.session(object{"shell": "/bin/bash"})
				of := newSessionWork()
				of.add(c, gone, fmt.Sprint("gone-", i), 2)
				c.run(gone, "echo")
				of.readable(t, g)
				maps.Copy(w.execs, of.execs)
				maps.Copy(w.processes, of.processes)
				maps.Copy(w.terminals, of.terminals)
				c.call("session.destroy", object{"session_id": gone, "force": true})
			}
			before.keeper += sessions
			g.holds(t, "one descriptor of each session that has ended", cgroup, before)
			w.readable(t, g)

			silent := c.run(s, "sleep 0.1 >/dev/null 2>&1 & true").str("exec_id")
			g.killGateway(t)
			c = g.redial(t)
			w.readable(t, g)
			expect(t, c.call("exec.wait", object{"exec_id": silent, "timeout_s": 60}), 0, "", "")
			if strings.Contains(g.log(), "output is lost") {
				t.Error("the log says that output is lost")
			}
			before.gateway += 4 // what the first gateway had opened later
			eventually(t, "the silent job is over, and was looked at", func() bool {
				return len(c.info(s).ints("background")) == 0
			})
			g.holds(t, "no more after a death", cgroup, before)
			g.killGateway(t)
			c = g.redial(t)
			w.readable(t, g)
			c.run(s, "sleep 0.005 & echo")
			c.run(s, "echo")
			g.holds(t, "no more after another death", cgroup, before)
		})
	}
}

// TestRetentionGivesAllBack: when the retention of everything is over, nothing of it is held, also by a gateway that took over.
func TestRetentionGivesAllBack(t *testing.T) {
	for _, tier := range gTiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g := gateway(t, "--isolation", tier, "--warm", "0", "--retention", "3s")
			cgroup := g.cgroupDir(t)
			c := g.dial(t)
			s := c.session(object{"shell": "/bin/bash"})
			c.run(s, "echo")
			before := g.held(t, cgroup)
			for range 5 {
				w := newSessionWork()
				gone := c.session(object{"shell": "/bin/bash"})
				w.add(c, gone, "gone", 3)
				w.add(c, s, "here", 3)
				c.call("session.destroy", object{"session_id": gone, "force": true})
			}
			g.killGateway(t)
			c = g.redial(t)
			eventually(t, "all is forgotten", func() bool { return g.metric(t, "trl_sessions") == 1 })
			c.run(s, "echo")
			before.gateway += 4
			before.keeper++ // as above
			g.holds(t, "nothing is held", cgroup, before)
		})
	}
}

// TestJobsThatLiveOnCanBeSeenAndEnded: while what a command left running lives, it can be seen and ended; and what has been left behind and has ended
// does not add up, whatever the job did with its outputs.
func TestJobsThatLiveOnCanBeSeenAndEnded(t *testing.T) {
	g := gateway(t, "--warm", "0")
	cgroup := g.cgroupDir(t)
	c := g.dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	nap := sleeper()
	c.run(s, nap+" >/dev/null 2>&1 & "+nap+" &")
	c.run(s, "sleep 0.005 & true")
	c.run(s, "true")
	c.run(s, "true")
	before := g.held(t, cgroup)
	for i := range 40 {
		c.run(s, []string{"sleep 0.005 & true", "sleep 0.005 >/dev/null 2>&1 & true", "sleep 0.005 >&2 & sleep 0.02 >/dev/null 2>&1 & true"}[i%3])
	}
	before.keeper, before.gateway, before.cgroups = before.keeper+3*20, before.gateway+4*20, before.cgroups+20
	g.holds(t, "jobs that have ended do not add up", cgroup, before)
	if n := len(running(nap)); n != 2 {
		t.Errorf("%d of the jobs that live on", n)
	}
	c.call("session.destroy", object{"session_id": s, "force": true})
	eventually(t, "all are ended", func() bool { return len(running(nap)) == 0 })
}
