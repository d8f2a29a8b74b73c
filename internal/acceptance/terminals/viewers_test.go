package terminals

import (
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// H4, I9: one client has control, types and sets the size. Who comes in control takes it over, with one SIGWINCH and one
// event; the loser is told, its input refused; a client that leaves gives control and size back.
func TestLatestControllerTypesAndSetsTheSize(t *testing.T) {
	g := rig.Shared(t, "h")
	a, b, v := g.Dial(t), g.Dial(t), g.Dial(t)
	s := a.Session(object{"shell": "/bin/bash"})
	ha := a.OpenTerminal(s, object{"cols": 120, "rows": 30, "command": reportSizes})
	ha.Expect("ready")
	hv := ha.Attach(v, object{"mode": "view"})
	denied := func(who string, c *rig.Client, words string) {
		t.Helper()
		for method, params := range map[string]object{"term.resize": {"cols": 10, "rows": 10}, "term.input": {"data": "x"}} {
			if f := c.Try(method, rig.With(object{"term_id": ha.Id}, params)); f.Code() != "FORBIDDEN" || !strings.Contains(f.Error.Message, words) {
				t.Errorf("%s, %s: %v", who, method, f)
			}
		}
	}
	denied("a viewer", v, "attached to view")
	hb := ha.Attach(b, object{"mode": "control", "cols": 80, "rows": 20})
	ha.Expect("W20 80W")
	for _, c := range []*rig.Client{a, b, v} {
		if d := c.Event("term.resized"); d.Num("cols") != 80 || d.Num("rows") != 20 {
			t.Errorf("resized: %v", d)
		}
	}
	if d := a.Event("term.control"); d.Str("mode") != "view" || d.Str("term_id") != ha.Id || d.Obj("by").Str("subject") == "" || d.Obj("by").Num("cols") != 80 {
		t.Errorf("the loser is told %v", d)
	}
	denied("the loser", a, "taken over")
	hb.Keys("two\r") // with the size it took
	ha.Expect("got two")
	hb.Keys("three\r")
	ha.Expect("got three")
	b.Close()
	ha.Expect("W30 120W")
	if d := a.Event("term.control"); d.Str("mode") != "control" || d.Has("by") {
		t.Errorf("who has control again is told %v", d)
	}
	ha.Keys("four\r")
	ha.Expect("got four")
	if n := strings.Count(ha.Text, "W"); n != 0 {
		t.Errorf("more changes of size: %s", ha.Text)
	}
	for _, f := range v.Seen("term.control") {
		t.Errorf("who only looks is told %v", f.Data)
	}
	list := a.Call("term.list", object{"session_id": s}).Objs("terminals")
	if len(list) != 1 || list[0].Num("viewers") != 2 || list[0].Num("cols") != 120 || list[0].Str("state") != "running" {
		t.Errorf("list: %v", list)
	}
	v.Call("term.detach", object{"term_id": hv.Id})
	testkit.Eventually(t, "the viewer has left", func() bool {
		return a.Call("term.list", object{"session_id": s}).Objs("terminals")[0].Num("viewers") == 1
	})
	// A connection that is not attached owns the terminal all the same.
	w := g.Dial(t)
	w.Call("term.input", object{"term_id": ha.Id, "data": "five\r"})
	ha.Expect("got five")
	ha.Ask("term.close", object{"kill_grace_s": 0.2})
}

// I9: who comes back after a lost connection is what it was, by its claim, and takes nothing from who came later.
func TestClaimGivesBackWhatAClientWas(t *testing.T) {
	g := rig.Shared(t, "h")
	a, b := g.Dial(t), g.Dial(t)
	s := a.Session(object{"shell": "/bin/bash"})
	d := a.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": "exec cat"})
	term := object{"term_id": d.Str("term_id")}
	claim := d.Num("claim")
	first := b.Call("term.attach", rig.With(term, object{"mode": "view"}))
	if first.Has("claim") || first.Str("mode") != "view" {
		t.Errorf("to view: %v", first)
	}
	taken := b.Call("term.attach", term)
	if taken.Str("mode") != "control" || taken.Str("viewer_id") != first.Str("viewer_id") {
		t.Errorf("one client took over and is two: %v, %v", first, taken)
	}
	a.Close()
	a = g.Dial(t)
	if d := a.Call("term.attach", rig.With(term, object{"claim": claim})); d.Str("mode") != "view" || d.Num("claim") != claim {
		t.Errorf("who lost control while away came back as %v", d)
	}
	b.Close() // and it, too, comes back, to what it was
	if d := a.Event("term.control"); d.Str("mode") != "control" {
		t.Errorf("%v", d)
	}
	b = g.Dial(t)
	if d := b.Call("term.attach", rig.With(term, object{"claim": taken.Num("claim")})); d.Str("mode") != "control" {
		t.Errorf("who had control came back as %v", d)
	}
	if d := a.Event("term.control"); d.Str("mode") != "view" {
		t.Errorf("%v", d)
	}
	if d := a.Call("term.attach", rig.With(term, object{"claim": 1 << 60})); d.Str("mode") != "control" || d.Num("claim") == 1<<60 {
		t.Errorf("a made-up claim: %v", d)
	}
	// Back to view: whoever claimed before has control.
	b.Event("term.control")
	a.Call("term.attach", rig.With(term, object{"mode": "view"}))
	if d := b.Event("term.control"); d.Str("mode") != "control" {
		t.Errorf("%v", d)
	}
	b.Call("term.close", rig.With(term, object{"kill_grace_s": 0}))
}

// Who is at a terminal is listed, and told to those who are and those who watch the session.
func TestViewersAreToldAndListed(t *testing.T) {
	g := rig.Shared(t, "h")
	a, b, w := g.Dial(t), g.Dial(t), g.Dial(t)
	s := a.Session(object{"shell": "/bin/bash"})
	w.Call("session.watch", object{"session_id": s})
	h := a.OpenTerminal(s, object{"cols": 90, "rows": 30, "command": "exec cat"})
	one := a.Event("term.viewers")
	if all := one.Objs("attached"); len(all) != 1 || all[0].Str("mode") != "control" || all[0].Num("cols") != 90 || all[0].Num("rows") != 30 || all[0].Str("subject") != "local" || !all[0].Has("since") {
		t.Errorf("alone: %v", one)
	}
	h.Attach(b, object{"mode": "view"})
	for name, c := range map[string]*rig.Client{"attached": a, "come": b, "watching": w} {
		d := c.Await("term.viewers of two", func(f *rig.Frame) bool { return f.Event == "term.viewers" && f.Data.Num("viewers") == 2 }).Data
		if all := d.Objs("attached"); len(all) != 2 || all[0].Str("mode") != "control" || all[1].Str("mode") != "view" || all[0].Str("viewer_id") == all[1].Str("viewer_id") || d.Str("session_id") != s || d.Str("term_id") != h.Id {
			t.Errorf("%s: %v", name, d)
		}
	}
	if all := a.Call("term.list", object{"session_id": s}).Objs("terminals")[0].Objs("attached"); len(all) != 2 || all[1].Str("mode") != "view" {
		t.Errorf("listed: %v", all)
	}
	b.Close()
	for _, c := range []*rig.Client{a, w} {
		c.Await("term.viewers of one", func(f *rig.Frame) bool {
			return f.Event == "term.viewers" && f.Data.Num("viewers") == 1 && len(f.Data.Objs("attached")) == 1
		})
	}
	a.Call("session.watch", object{"session_id": s}) // who is attached and watches is told once
	h.Attach(g.Dial(t), object{"mode": "view"})
	a.Event("term.viewers")
	h.Ask("term.close", object{"kill_grace_s": 0})
	w.Event("term.exit")
	if again := a.Seen("term.viewers"); len(again) != 0 {
		t.Errorf("told twice: %v", again[0].Data)
	}
}

// reportSizes tells each SIGWINCH, with the size, and each line. Not in bash, which forgets a signal that comes in its trap.
const reportSizes = `exec python3 -c '
import os, signal, sys
def winch(*_):
    s = os.get_terminal_size(0)
    os.write(1, b"W%d %dW\n" % (s.lines, s.columns))
signal.signal(signal.SIGWINCH, winch)
os.write(1, b"ready\n")
for line in sys.stdin:
    os.write(1, b"got " + line.encode())'`
