package endings

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Every kind of tree × every way to end it × every tier: nothing of it is alive when that is answered, and nothing else
// has been touched, neither the jobs of other commands in its session nor another session's. In short each pair of the
// first two once, and the tiers in turn; in a soak 200 times in each tier.

// bystanders are jobs and a background process that must live on: some of them as hard to tell apart as can be.
type bystanders struct {
	nap string
	n   int
}

func startBystanders(c *rig.Client, session string) bystanders {
	c.T.Helper()
	b := bystanders{nap: rig.Sleeper()}
	var forest string
	forest, b.n = forestCommand(b.nap)
	c.Run(session, "v=mine; "+forest)
	c.Call("process.start", object{"session_id": session, "command": b.nap})
	b.n++
	testkit.Eventually(c.T, "the bystanders stand", func() bool { return b.untouched() })
	return b
}

func (b bystanders) untouched() bool { return len(rig.Running(b.nap)) == b.n }

// killGrace is for TERM, which all trees here ignore; killBound is that and what a busy machine may take for the rest.
const (
	killGrace = 0.2
	killBound = 2 * time.Minute
)

// An ending takes a grown tree down and says how long it took.
type ending struct {
	name string
	end  func(c *rig.Client, session string, tr *tree, trial int) time.Duration
}

var endings = []ending{
	{"cancel", func(c *rig.Client, s string, tr *tree, trial int) time.Duration {
		x := c.Stream(s, tr.command)
		awaitTree(c, tr)
		start := time.Now()
		c.Call("exec.cancel", object{"exec_id": x.Str("exec_id"), "kill_grace_s": killGrace})
		if _, exit := c.Output(x.Str("stream_id"), 0); !exit.Yes("cancelled") || exit.Yes("timed_out") {
			c.T.Errorf("cancelled: %v", exit)
		}
		return time.Since(start)
	}},
	{"timeout", func(c *rig.Client, s string, tr *tree, trial int) time.Duration {
		for timeout := 0.7; ; timeout *= 2 {
			r := c.Run(s, tr.command, object{"timeout_s": timeout, "kill_grace_s": killGrace})
			if !r.Yes("timed_out") || r.Yes("cancelled") {
				c.T.Errorf("timed out: %v", r)
			}
			if _, err := os.Stat(tr.gate + ".up"); err == nil || timeout > 30 { // else it had no time to grow
				return time.Duration((r["duration_ms"].(float64)/1000 - timeout) * float64(time.Second))
			}
		}
	}},
	{"kill", func(c *rig.Client, s string, tr *tree, trial int) time.Duration {
		p := c.Call("process.start", object{"session_id": s, "command": tr.command}).Str("process_id")
		awaitTree(c, tr)
		start := time.Now()
		c.Call("process.kill", object{"process_id": p, "kill_grace_s": killGrace})
		return time.Since(start)
	}},
	{"destroy", func(c *rig.Client, s string, tr *tree, trial int) time.Duration {
		if trial%2 == 0 {
			c.Stream(s, tr.command)
		} else {
			c.Run(s, tr.command+" >/dev/null 2>&1 &")
		}
		awaitTree(c, tr)
		start := time.Now()
		if d := c.Call("session.destroy", object{"session_id": s, "grace_s": killGrace}); d.Str("state") != "TERMINATED" {
			c.T.Errorf("destroyed: %v", d)
		}
		return time.Since(start)
	}},
}

// awaitTree waits for a tree, and in a soak a little longer, so that each trial meets another moment of it.
func awaitTree(c *rig.Client, tr *tree) {
	c.T.Helper()
	testkit.Eventually(c.T, tr.name+" has grown", tr.grown)
	if testkit.Soak {
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
}

func TestEveryTreeIsEndedInEveryWay(t *testing.T) {
	t.Parallel()
	for at, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g := rig.Gateway(t, "--isolation", tier, "--retention", "10s")
			type trial struct {
				kind
				ending
				n int
			}
			var trials []trial
			for i, k := range kinds {
				for j, e := range endings {
					n := 200
					switch {
					case !testkit.Soak && (i+j)%len(rig.Tiers) != at:
						n = 0
					case !testkit.Soak:
						n = 1
					case k.name == "many":
						n = 20
					}
					for n := range n {
						trials = append(trials, trial{k, e, n})
					}
				}
			}
			rand.Shuffle(len(trials), func(i, j int) { trials[i], trials[j] = trials[j], trials[i] })
			first := g.Dial(t)
			elsewhere := startBystanders(first, first.Session(object{"shell": "/bin/bash"}))
			var mu sync.Mutex
			took := map[string][]time.Duration{} // guarded by mu
			todo := make(chan trial)
			go func() { // ends with the trials
				defer close(todo)
				for _, tr := range trials {
					todo <- tr
				}
			}()
			rig.Together(rig.Pick(2, 4), func(i int) {
				defer func() { // a t.Fatal here must not leave the sender alone
					for range todo {
					}
				}()
				c := g.Dial(t)
				for x := range todo {
					s := c.Session(object{"shell": rig.Shells[(x.n+i)%len(rig.Shells)]})
					tr := plant(t, g, x.kind)
					here := startBystanders(c, s)
					d := x.end(c, s, tr, x.n)
					what := fmt.Sprintf("%s, %s, trial %d", x.kind.name, x.ending.name, x.n)
					if left := tr.alive(); len(left) > 0 {
						t.Errorf("%s: survivors %v: %q", what, left, rig.Cmdline(left[0]))
					}
					if bound := time.Duration(killGrace*float64(time.Second)) + killBound; d > bound {
						t.Errorf("%s: took %s, more than %s", what, d, bound)
					}
					if x.ending.name == "destroy" {
						if left := append(rig.Running(here.nap), rig.ProcessesOfSession(s)...); len(left) > 0 {
							t.Errorf("%s: of the session %v are left", what, left)
						}
					} else {
						if !here.untouched() {
							t.Errorf("%s: of %d others in the session %d are left", what, here.n, len(rig.Running(here.nap)))
						}
						rig.Expect(t, c.Run(s, "echo $v"), 0, "mine\n", "")
						c.Call("session.destroy", object{"session_id": s, "force": true})
					}
					if !elsewhere.untouched() {
						t.Errorf("%s: of %d of another session %d are left", what, elsewhere.n, len(rig.Running(elsewhere.nap)))
					}
					tr.uproot()
					if t.Failed() {
						return
					}
					mu.Lock()
					took[x.kind.name] = append(took[x.kind.name], d)
					mu.Unlock()
				}
			})
			for _, k := range kinds {
				if d := took[k.name]; len(d) > 0 {
					slices.Sort(d)
					t.Logf("%s: %d trials, with %.1f s of grace p50 %s, max %s", k.name, len(d), killGrace, d[len(d)/2].Round(time.Millisecond), d[len(d)-1].Round(time.Millisecond))
				}
			}
			if n := g.Metric(t, "trl_kill_failed_total"); n > 0 {
				t.Errorf("%v withstood KILL", n)
			}
		})
	}
}

// A tree is work, also one that hides: its session does not end for being idle before it, and then leaves nothing.
func TestIdleEndWaitsForEveryTree(t *testing.T) {
	t.Parallel()
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g := rig.Gateway(t, "--isolation", tier)
			c := g.Dial(t)
			elsewhere := startBystanders(c, c.Session())
			const idle = 1
			var trees []*tree
			var sessions []string
			for i, k := range kinds {
				if k.name == "many" && !testkit.Soak {
					continue
				}
				s, tr := c.Session(object{"shell": rig.Shells[i%2]}), plant(t, g, k)
				c.Run(s, tr.command+" >/dev/null 2>&1 &")
				c.Call("session.update", object{"session_id": s, "idle_timeout_s": idle}) // with the tree in it: it shall not end before
				sessions, trees = append(sessions, s), append(trees, tr)
			}
			for i, tr := range trees {
				testkit.Eventually(t, tr.name+" has grown", func() bool { return tr.grown() || c.State(sessions[i]) == "TERMINATED" })
			}
			for range rig.Pick(1, 3) { // what rests beside them ends
				resting := c.Session(object{"idle_timeout_s": idle})
				testkit.Eventually(t, "who rests ends", func() bool { return c.State(resting) == "TERMINATED" })
			}
			for i, s := range sessions {
				if tr := trees[i]; c.State(s) != "IDLE" || len(tr.alive()) == 0 {
					t.Errorf("%s: %s with %d processes", tr.name, c.State(s), len(tr.alive()))
				}
				trees[i].fell()
			}
			for i, s := range sessions {
				testkit.Eventually(t, trees[i].name+" is gone, and so is its session", func() bool { return c.State(s) == "TERMINATED" })
				if r := c.Info(s).Str("reason"); r != "idle" {
					t.Errorf("%s: reason %s", trees[i].name, r)
				}
				if left := append(rig.ProcessesOfSession(s), trees[i].alive()...); len(left) > 0 {
					t.Errorf("%s: survivors %v", trees[i].name, left)
				}
			}
			if !elsewhere.untouched() {
				t.Error("another session was touched")
			}
		})
	}
}

// A shutdown with all trees at once, as commands, as jobs and as background processes, leaves nothing.
func TestShutdownEndsEveryTree(t *testing.T) {
	t.Parallel()
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			for trial := range rig.Pick(1, 20) {
				beside := rig.Shared(t, "km-beside")
				b := beside.Dial(t)
				elsewhere := startBystanders(b, b.Session())
				g := rig.Gateway(t, "--isolation", tier)
				c := g.Dial(t)
				var trees []*tree
				for i, k := range kinds {
					if k.name == "many" && !testkit.Soak {
						continue
					}
					s, tr := c.Session(object{"shell": rig.Shells[i%2]}), plant(t, g, k)
					switch (i + trial) % 3 {
					case 0:
						c.Stream(s, tr.command)
					case 1:
						c.Run(s, tr.command+" >/dev/null 2>&1 &")
					case 2:
						c.Call("process.start", object{"session_id": s, "command": tr.command})
					}
					trees = append(trees, tr)
				}
				for _, tr := range trees {
					testkit.Eventually(t, tr.name+" has grown", tr.grown)
				}
				for _, fault := range g.Stop() {
					t.Error(fault)
				}
				for _, tr := range trees {
					if left := tr.alive(); len(left) > 0 {
						t.Errorf("%s: survivors %v", tr.name, left)
					}
				}
				if !elsewhere.untouched() {
					t.Errorf("another gateway's session was touched: %s", strings.Trim(fmt.Sprint(rig.Running(elsewhere.nap)), "[]"))
				}
			}
		})
	}
}
