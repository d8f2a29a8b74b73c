package survival

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// TestWarmTerminalsAndKills: gateways are killed while sessions are made with terminals that were started before. Each session has one
// terminal, which works, and nothing is left of those that nobody got.
func TestWarmTerminalsAndKills(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t, "--retention", "2s")
	first := object{"cols": 90, "rows": 20}
	learned := func() { // the warm shells have terminals, also those of a gateway that has learned nothing yet
		c := g.Redial(t)
		defer c.Close()
		for range 4 {
			s := c.Session(object{"shell": "/bin/bash", "terminal": first})
			c.Call("session.destroy", object{"session_id": s, "force": true})
		}
		testkit.Eventually(t, "warm, and what has ended forgotten", func() bool {
			return g.Metric(t, "trl_warm_shells") == 4 && g.Metric(t, "trl_sessions") == 0 && len(g.Processes()) == 8
		})
	}
	learned()
	cgroup := g.CgroupDir(t)
	before := g.Counts(t, cgroup)
	for k := range rig.Pick(8, 80) {
		if k%2 == 0 {
			learned()
		}
		pid := g.GatewayPid()
		killed := make(chan struct{})
		kill := time.AfterFunc(time.Duration(rand.IntN(4000))*time.Microsecond, func() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			close(killed)
		})
		a := rig.Again{G: g}
		key := fmt.Sprint("key", k)
		var s object
		testkit.Eventually(t, "the session is made", func() bool {
			f, err := a.Ask(t.Context(), "session.create", object{"name": key, "request_key": key, "shell": "/bin/bash", "terminal": first}, nil)
			s = f.Data
			return err == nil && f.Error == nil
		})
		if !kill.Stop() { // the answer may have come just before the KILL
			<-killed
			testkit.Eventually(t, "another gateway", func() bool { now := g.GatewayPid(); return now > 0 && now != pid })
		}
		if a.Ws != nil {
			a.Ws.CloseNow()
		}
		c := g.Redial(t)
		id := s.Str("session_id")
		terms := c.Call("term.list", object{"session_id": id}).Objs("terminals")
		if len(terms) != 1 || terms[0].Str("state") != "running" || terms[0].Num("cols") != 90 {
			t.Fatalf("round %d: %v", k, terms)
		}
		term := object{"term_id": terms[0].Str("term_id")}
		c.Call("term.input", rig.With(term, object{"data": "echo $((6*7)) $(stty size)\r"}))
		testkit.Eventually(t, "the terminal answers", func() bool {
			return strings.Contains(fmt.Sprint(c.Call("term.snapshot", term)["lines"]), "42 20 90")
		})
		rig.Expect(t, c.Run(id, "echo fine"), 0, "fine\n", "")
		c.Call("session.destroy", object{"session_id": id, "force": true})
		c.Close()
	}
	learned()
	g.AwaitBaseline(t, cgroup, before)
}
