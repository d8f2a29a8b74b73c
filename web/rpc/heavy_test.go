package rpc

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/pool"
)

// firstAnswer is the answer that comes first.
func firstAnswer(c *rig.Client, ids ...int) *rig.Frame {
	c.T.Helper()
	return c.Await("an answer", func(f *rig.Frame) bool {
		for _, id := range ids {
			if f.ID == float64(id) {
				return true
			}
		}
		return false
	})
}

// TestPingBehindHeavyWork: what takes its time is not done on the goroutine that reads the connection, so that a ping behind it is answered first.
func TestPingBehindHeavyWork(t *testing.T) {
	g := startWith(t, func(c *pool.Config) { c.RingBytes = 4 << 20 })
	c := g.Dial()
	s := c.Session()
	long := c.Call("process.start", object{"session_id": s, "command": "head -c 1500000 /dev/zero | tr '\\0' '\\1'"}).Str("process_id")
	c.Call("process.wait", object{"process_id": long, "until": object{"exit": true}})
	other := c.Session()
	c.Call("exec.run", object{"session_id": other, "command": "head -c 1500000 /dev/zero | tr '\\0' '\\1'", "max_output_bytes": 16 << 20})
	exec := c.Call("exec.list", object{"session_id": other})["execs"].([]any)[0].(map[string]any)["exec_id"]
	for range 60 {
		c.Call("process.start", object{"session_id": other, "command": "sleep 300"})
	}
	for name, heavy := range map[string]struct {
		method string
		params object
	}{
		"logs":            {"process.logs", object{"process_id": long, "max_bytes": 16 << 20}},
		"followed logs":   {"process.logs", object{"process_id": long, "max_bytes": 16 << 20, "follow": true}},
		"processes":       {"process.list", object{"session_id": other}},
		"an output":       {"exec.wait", object{"exec_id": exec}},
		"a pattern":       {"process.wait", object{"process_id": long, "until": object{"output": strings.Repeat(`(?:b|[^a]{3})`, 60)}, "timeout_s": 0.5}},
		"default session": {"exec.run", object{"command": "echo made"}},
	} {
		t.Run(name, func(t *testing.T) {
			// On a busy machine the work may be done before the goroutine that reads the connection runs again. If that goroutine did the work, the ping
			// would never be first.
			pingFirst, size := false, 0
			for end := time.Now().Add(testkit.Patience / 2); !pingFirst && time.Now().Before(end); {
				slow := c.Begin(heavy.method, heavy.params)
				ping := c.Begin("system.ping", nil)
				first, second := firstAnswer(c, slow, ping), firstAnswer(c, slow, ping)
				if !first.OK || !second.OK {
					t.Fatalf("%+v, %+v", first.Error, second.Error)
				}
				pingFirst, size = first.ID == float64(ping), first.Size
			}
			if !pingFirst {
				t.Errorf("the ping waited for an answer of %d bytes", size)
			}
		})
	}
	c.Call("session.destroy", object{"session_id": other, "force": true})
}

// TestLogsDetachedAtOnce: a process.detach right behind a process.logs that follows ends what that began.
func TestLogsDetachedAtOnce(t *testing.T) {
	g := startWith(t, func(c *pool.Config) { c.RingBytes = 4 << 20 })
	c := g.Dial()
	p := c.Call("process.start", object{"command": "head -c 500000 /dev/zero; while :; do echo x; sleep 0.01; done"}).Str("process_id")
	c.Call("process.wait", object{"process_id": p, "until": object{"output": "x\n"}})
	for range 5 {
		logs := c.Begin("process.logs", object{"process_id": p, "max_bytes": 16 << 20, "follow": true})
		detach := c.Begin("process.detach", object{"process_id": p})
		if f := c.Answer(logs); !f.OK {
			t.Fatalf("%+v", f.Error)
		}
		if f := c.Answer(detach); !f.OK {
			t.Fatalf("%+v", f.Error)
		}
		testkit.Eventually(t, "no stream", func() bool {
			return g.clients.usages.Total.Streams.Load() == 0 && g.accountOf("local").Streams.Load() == 0
		})
	}
}

// TestLogsThatFollow: the answer and the events after it have every byte once.
func TestLogsThatFollow(t *testing.T) {
	c := start(t).Dial()
	p := c.Call("process.start", object{"command": "seq 20000; sleep 0.2; seq 20000"}).Str("process_id")
	c.Call("process.wait", object{"process_id": p, "until": object{"output": "20000\n"}})
	logs := c.Call("process.logs", object{"process_id": p, "follow": true, "max_bytes": 70_001})
	var got []byte
	for _, ch := range logs["chunks"].([]any) {
		got = append(got, object(ch.(map[string]any)).Text("data", "encoding")...)
	}
	if logs.Num("next_offset") != len(got) {
		t.Fatalf("next_offset %d after %d bytes", logs.Num("next_offset"), len(got))
	}
	rest, _ := c.Output(logs.Str("stream_id"), len(got))
	var want bytes.Buffer
	for range 2 {
		for i := 1; i <= 20000; i++ {
			fmt.Fprintln(&want, i)
		}
	}
	if got = append(got, rest...); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d bytes, want %d", len(got), want.Len())
	}
}
