package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/limits"
	"trl/pool"
	"trl/web/auth"
	"trl/web/rpc/bounds"
)

// limitProbes go beyond the bounds of docs/limits.md that this package holds.
var limitProbes = map[string]limits.Probe{
	"`max_bytes` of `process.logs`": func(t *testing.T) []string {
		c := startWith(t, func(c *pool.Config) { c.RingBytes = maxLogBytes + 1<<20 }).Dial()
		p := c.Call("process.start", object{"command": fmt.Sprintf("yes | tr -d '\\n' | head -c %d", maxLogBytes+1000)}).Str("process_id")
		c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}})
		if got := c.Call("process.logs", object{"process_id": p, "max_bytes": 1 << 30}).Num("next_offset"); got != maxLogBytes {
			t.Error(got)
		}
		return []string{"`next_offset`"}
	},
	"requests in flight": func(t *testing.T) []string {
		g := start(t)
		e := limits.Sleep(g.Dial()) // on another connection: a request is in flight for a moment after its answer
		c := g.Dial()
		for range MaxInFlight {
			c.Begin("exec.wait", object{"exec_id": e})
		}
		return limits.Came(c.Try("system.ping", nil))
	},
	"further requests in flight that end or steer work": func(t *testing.T) []string {
		g := start(t)
		other := g.Dial() // as above
		p := other.Call("process.start", object{"command": "trap '' TERM; echo deaf; while :; do sleep 1; done"}).Str("process_id")
		other.Call("process.wait", object{"process_id": p, "until": object{"output": "deaf"}})
		e := limits.Sleep(other)
		c := g.Dial()
		for range MaxInFlight {
			c.Begin("exec.wait", object{"exec_id": e})
		}
		for range maxUrgent {
			c.Begin("process.kill", object{"process_id": p, "kill_grace_s": 60})
		}
		return limits.Came(c.Try("exec.cancel", object{"exec_id": e}))
	},
	"streams that it follows": func(t *testing.T) []string {
		g := start(t)
		c := g.Dial()
		other := limits.Sleep(g.Dial())
		queued(c, maxStreams)
		return limits.Came(c.Try("exec.attach", object{"exec_id": other}))
	},
	"requests that `exec.cancel` by `request_id` reaches back to": func(t *testing.T) []string {
		c := start(t).Dial()
		first := c.Begin("exec.run", object{"command": ":"})
		c.Answer(first)
		for range maxRecent {
			c.Try("exec.run", object{"command": ":"})
		}
		return limits.Came(c.Try("exec.cancel", object{"request_id": first}))
	},
	"messages above 256 KiB in transit, each counted as the largest possible one": func(t *testing.T) []string {
		g := start(t, withTokens, func(c *config) { c.stall = testkit.Patience })
		var begun []func()
		for range bounds.PrincipalReading / (4 << 20) {
			c := g.Dial(gateway.UserToken)
			w, err := c.Ws.Writer(context.Background(), websocket.MessageText)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(`{"id":1,"method":"exec.run","params":{"session_id":"no","command":"` + strings.Repeat("x", 300<<10))); err != nil {
				t.Fatal(err)
			}
			begun = append(begun, func() {
				w.Write([]byte(`"}}`))
				w.Close()
				c.Answer(1)
			})
		}
		a := g.accountOf("bob")
		testkit.Eventually(t, "all places are taken", func() bool {
			if a.Reading.TryAcquire(1) {
				a.Reading.Release(1)
				return false
			}
			return true
		})
		return waits(t, g, g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken), func(c *rig.Client) int {
			return c.Begin("exec.run", object{"session_id": "no", "command": strings.Repeat("x", 300<<10)})
		}, begun[0])
	},
	"bytes of requests in flight of its own": func(t *testing.T) []string {
		g := start(t, withTokens)
		bob, ann := g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken)
		held := bob.Begin("exec.run", object{"command": "sleep 300", "stdin": strings.Repeat("x", 1<<20)})
		bob.Call("system.ping", nil) // it was read
		a := g.accountOf("bob")
		if n := a.Requests.Load(); n < 1<<20 || n > 1<<20+200 {
			t.Errorf("a request of 1 MiB counts %d", n)
		}
		a.Requests.Add(bounds.PrincipalRequests - 2<<20) // as of others
		f := bob.Try("exec.run", object{"command": ":", "stdin": strings.Repeat("x", 1<<20)})
		if f.Error == nil || f.Error.Details.Num("limit") != bounds.PrincipalRequests {
			t.Errorf("%+v", f.Error)
		}
		bob.Call("system.ping", nil) // a small one finds room
		ann.Call("exec.run", object{"command": ":", "stdin": strings.Repeat("x", 1<<20)})
		bob.Call("exec.cancel", object{"request_id": held})
		bob.Answer(held)
		testkit.Eventually(t, "what it held is given back", func() bool { return a.Requests.Load() < bounds.PrincipalRequests-1<<20 })
		bob.Call("exec.run", object{"command": ":", "stdin": strings.Repeat("x", 1<<20)})
		return limits.Came(f)
	},
	"output that answers copy (`clean`, `process.logs`, `exec.wait` from an offset, `yield_ms`) until they are written": func(t *testing.T) []string {
		g := start(t, withTokens)
		bob, ann := g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken)
		logs := longLogs(bob, ann)
		own := g.accountOf("bob").Answers
		if !own.TryAcquire(bounds.PrincipalAnswers) {
			t.Fatal("answers hold something")
		}
		return waits(t, g, bob, ann, logs, func() { own.Release(bounds.PrincipalAnswers) })
	},
	"streams that are followed": func(t *testing.T) []string {
		g := start(t)
		c := g.Dial()
		execs := queued(c, maxStreams)
		for range bounds.PrincipalStreams/maxStreams - 1 {
			d := g.Dial()
			for _, e := range execs {
				d.Call("exec.attach", object{"exec_id": e})
			}
		}
		return limits.Came(g.Dial().Try("exec.attach", object{"exec_id": execs[0]}))
	},
	"messages above 256 KiB in transit": func(t *testing.T) []string {
		g := start(t)
		c := g.Dial()
		if !g.clients.usages.Total.Reading.TryAcquire(bounds.AllReading) {
			t.Fatal("something is being read")
		}
		return waits(t, g, c, nil, func(c *rig.Client) int {
			return c.Begin("exec.run", object{"session_id": "no", "command": strings.Repeat("x", 300<<10)})
		}, func() { g.clients.usages.Total.Reading.Release(bounds.AllReading) })
	},
	"bytes of requests in flight": func(t *testing.T) []string {
		g := start(t)
		c := g.Dial()
		g.clients.usages.Total.Requests.Add(bounds.AllRequests)
		f := c.Try("system.ping", nil)
		if f.Error == nil || f.Error.Details.Num("limit") != bounds.AllRequests {
			t.Errorf("%+v", f)
		}
		if f := c.Try("session.destroy", object{"session_id": "no", "force": true}); f.Code() != "SESSION_NOT_FOUND" {
			t.Errorf("what ends work is not heard: %+v", f)
		}
		g.clients.usages.Total.Requests.Add(-bounds.AllRequests)
		c.Call("system.ping", nil)
		return limits.Came(f)
	},
	"output that answers copy": func(t *testing.T) []string {
		g := start(t)
		c := g.Dial()
		logs := longLogs(c)
		if !g.clients.usages.Total.Answers.TryAcquire(bounds.AllAnswers) {
			t.Fatal("answers hold something")
		}
		return waits(t, g, c, nil, logs, func() { g.clients.usages.Total.Answers.Release(bounds.AllAnswers) })
	},
}

// TestLimitsPage checks the bounds of docs/limits.md that this package holds.
func TestLimitsPage(t *testing.T) {
	limits.Check(t, func(constant string) bool {
		return strings.HasPrefix(constant, "web/rpc.") || strings.HasPrefix(constant, "web/rpc/bounds.")
	}, limitProbes)
}

// accountOf is what a principal that is connected has on its account.
func (g *server) accountOf(name string) *bounds.Usage {
	if throughRelay {
		g.T.Skip("it reaches into what the client's gateway counts")
	}
	u, leave := g.clients.usages.Of(&auth.Grant{Principal: auth.Principal{Subject: name}})
	defer leave()
	return u
}

// queued are commands that wait or sleep, in sessions of 64.
func queued(c *rig.Client, n int) (ids []string) {
	for len(ids) < n {
		s := c.Session()
		ids = append(ids, limits.Sleep(c, s))
		for range min(63, n-len(ids)) {
			ids = append(ids, c.Call("exec.stream", object{"session_id": s, "command": ":"}).Str("exec_id"))
		}
	}
	return ids
}

// longLogs makes a process with a long output for each client, and returns a request for it.
func longLogs(clients ...*rig.Client) func(*rig.Client) int {
	ids := map[*rig.Client]string{}
	for _, c := range clients {
		p := c.Call("process.start", object{"command": "head -c 600000 /dev/zero"}).Str("process_id")
		c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}})
		ids[c] = p
	}
	return func(c *rig.Client) int { return c.Begin("process.logs", object{"process_id": ids[c]}) }
}

// waits has a client ask for what there is no room for. Others are answered meanwhile, and it is when there is room again.
func waits(t *testing.T, g *server, c, other *rig.Client, ask func(*rig.Client) int, makeRoom func()) []string {
	t.Helper()
	id := ask(c)
	if other != nil {
		other.Answer(ask(other))
	}
	for range 20 {
		if other != nil {
			other.Call("system.ping", nil)
			continue
		}
		d := g.Dial()
		d.Call("system.ping", nil)
		d.Close()
	}
	c.Mu.Lock()
	answered := slices.ContainsFunc(c.Came, func(f *rig.Frame) bool { return f.ID == float64(id) })
	c.Mu.Unlock()
	if answered {
		t.Error("it did not wait")
	}
	makeRoom()
	c.Answer(id)
	return []string{"more wait"}
}
