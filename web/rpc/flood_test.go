package rpc

import (
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/pool"
)

// mostBeforeKey is what may come between the answer to Ctrl-C in a flood and its echo, with a window of 256 KiB.
const mostBeforeKey = 512 << 10

// nextMessage is the next message of any kind.
func nextMessage(c *rig.Client) *rig.Frame {
	c.T.Helper()
	return c.Await("a message", func(*rig.Frame) bool { return true })
}

// waiting is how much a terminal has printed once its program waits for its client.
func waiting(t *testing.T, term *pool.Terminal, least int64) (size int64) {
	t.Helper()
	same := 0
	testkit.Eventually(t, "the program waits", func() bool {
		now := term.Journal().Size()
		if same++; now != size || now < least {
			size, same = now, 0
		}
		return same >= 20
	})
	return size
}

// TestCtrlCInAFlood: what comes between the answer to the key and its echo is bounded in bytes, however slow the client is.
func TestCtrlCInAFlood(t *testing.T) {
	const window = 256 << 10
	g := start(t) // one for all: the end of a gateway in this process is the end of the programs of each
	for name, c := range map[string]struct {
		rate    int // bytes acknowledged in a second; 0: at once
		control string
	}{
		"a client that acknowledges at once":           {0, "open"},
		"a client of 300 kB a second":                  {300_000, "open"},
		"a client of 100 kB a second":                  {100_000, "open"},
		"a client of 300 kB a second that attaches":    {300_000, "attach"},
		"a client of 300 kB a second that takes over":  {300_000, "take over"},
		"a client that gets back its control":          {300_000, "get back"},
		"a client of 300 kB a second beside onlookers": {300_000, "beside onlookers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dial := func() *rig.Client {
				c := g.Dial()
				c.T = t
				return c
			}
			me := dial()
			open := object{"session_id": me.Session(), "cols": 80, "rows": 24, "command": "yes; sleep 600"}
			if c.control != "attach" && c.control != "take over" {
				open["window_bytes"] = window
			}
			typist := me
			if c.control == "attach" || c.control == "take over" {
				typist = dial()
			}
			opened := typist.Call("term.open", open)
			id, stream := opened.Str("term_id"), opened.Str("stream_id")
			from := 0
			told := func() { // of control, which comes in order with the output, so the window has to go on
				for f := nextMessage(me); f.Event != "term.control"; f = nextMessage(me) {
					if f.Event == "term.output" && f.Data["snapshot"] != true {
						from = f.Data.Num("offset") + len(f.Data.Str("data"))
						me.Begin("stream.ack", object{"stream_id": stream, "offset": from})
					}
				}
			}
			switch c.control {
			case "attach":
				typist.Close()
				fallthrough
			case "take over":
				a := me.Call("term.attach", object{"term_id": id, "window_bytes": window, "snapshot": true})
				from = a.Num("offset")
			case "get back":
				other := dial()
				other.Call("term.attach", object{"term_id": id, "window_bytes": window, "snapshot": true})
				told() // before the other one leaves: only how it is now is told
				other.Close()
				told()
			case "beside onlookers":
				for _, slow := range []string{"block", "skip"} {
					dial().Call("term.attach", object{"term_id": id, "mode": "view", "on_slow": slow})
				}
			}
			term, err := g.Pool.FindTerminal("local", id)
			if err != nil {
				t.Fatal(err)
			}
			received := from
			read := func() (f *rig.Frame) {
				f = nextMessage(me)
				if f.Event == "term.output" && f.Data["snapshot"] != true {
					received = f.Data.Num("offset") + len(f.Data.Str("data"))
				}
				return f
			}
			ack := func(offset int) { me.Begin("stream.ack", object{"stream_id": stream, "offset": offset}) }
			if c.rate == 0 {
				for received < 1<<20 {
					read()
					ack(received)
				}
			} else {
				waiting(t, term, window)
			}
			key, answered, after := me.Begin("term.input", object{"term_id": id, "data": "\x03"}), false, 0
			done, began := from, time.Now()
			for tail, seen := "", false; !seen || !answered; {
				f := read()
				if f.Event == "" && f.ID == float64(key) {
					if answered = true; !f.OK {
						t.Fatalf("%+v", f.Error)
					}
				}
				if f.Event == "stream.gap" {
					t.Fatalf("gap: %v", f.Data)
				}
				if f.Event != "term.output" {
					continue
				}
				data := f.Data.Str("data")
				if answered && !seen {
					if after += len(data); after > 2*mostBeforeKey { // it need not be waited for
						break
					}
				}
				tail = tail[max(0, len(tail)-1):] + data
				seen = seen || strings.Contains(tail, "^C")
				if c.rate == 0 {
					ack(received)
				} else if received-done >= window/4 { // as the page does, and as fast as it is
					time.Sleep(time.Until(began.Add(time.Duration(received-from) * time.Second / time.Duration(c.rate))))
					ack(received)
					done = received
				}
			}
			t.Logf("%d bytes after the key", after)
			if after > mostBeforeKey {
				t.Errorf("at least %d bytes between the answer and ^C, want at most %d", after, mostBeforeKey)
			}
		})
	}
}

// TestWindowIsOfWhoHasControl: a program that waits for the window of the client in control goes on when that client has gone, or is in
// control no more. Nobody who looks on makes it wait.
func TestWindowIsOfWhoHasControl(t *testing.T) {
	g := start(t, func(cfg *config) { cfg.SlowClient = time.Hour })
	for name, leave := range map[string]func(me, other *rig.Client, id string){
		"detached":             func(me, _ *rig.Client, id string) { me.Call("term.detach", object{"term_id": id}) },
		"its connection ended": func(me, _ *rig.Client, id string) { me.Close() },
		"taken over without a window": func(me, other *rig.Client, id string) {
			other.Call("term.attach", object{"term_id": id, "snapshot": true})
			me.Call("term.attach", object{"term_id": id, "mode": "view", "window_bytes": 1024})
		},
		"it looks on now": func(me, other *rig.Client, id string) {
			other.Call("term.attach", object{"term_id": id, "mode": "view", "window_bytes": 1024})
			me.Call("term.attach", object{"term_id": id, "mode": "view", "window_bytes": 1024})
		},
		"it skips now": func(me, _ *rig.Client, id string) {
			me.Call("term.attach", object{"term_id": id, "window_bytes": 1024, "on_slow": "skip"})
		},
		"it has no window now": func(me, _ *rig.Client, id string) { me.Call("term.attach", object{"term_id": id}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			me, other, third := g.Dial(), g.Dial(), g.Dial()
			me.T, other.T, third.T = t, t, t
			opened := me.Call("term.open", object{"session_id": me.Session(), "cols": 80, "rows": 24, "window_bytes": 1024, "command": "yes"})
			id := opened.Str("term_id")
			term, err := g.Pool.FindTerminal("local", id)
			if err != nil {
				t.Fatal(err)
			}
			if size := waiting(t, term, 1024); size > 512<<10 {
				t.Errorf("it waits at %d only", size)
			}
			leave(me, other, id)
			testkit.Eventually(t, "the program goes on, beyond what is kept", func() bool { return term.Journal().Size() > 5<<20 })
			if f := third.Try("term.close", object{"term_id": id, "kill_grace_s": 0}); !f.OK {
				t.Error(f.Error)
			}
		})
	}
}

// TestEndIsNotHeldBack: a terminal ends, and the rest of its output is kept, while the client in control has yet to make room in its window.
func TestEndIsNotHeldBack(t *testing.T) {
	g := start(t, func(cfg *config) { cfg.SlowClient = time.Hour })
	c := g.Dial()
	opened := c.Call("term.open", object{"session_id": c.Session(), "cols": 80, "rows": 24, "window_bytes": 1024, "command": "yes"})
	term, err := g.Pool.FindTerminal("local", opened.Str("term_id"))
	if err != nil {
		t.Fatal(err)
	}
	waiting(t, term, 1024)
	g.Dial().Call("term.close", object{"term_id": opened.Str("term_id"), "kill_grace_s": 0})
	c.Call("stream.ack", object{"stream_id": opened.Str("stream_id"), "offset": 1 << 40})
	b, exit := c.Output(opened.Str("stream_id"), 0)
	if int64(len(b)) != term.Journal().Size() || exit.Num("output_bytes") != len(b) {
		t.Errorf("%d bytes came of %d, %+v", len(b), term.Journal().Size(), exit)
	}
}
