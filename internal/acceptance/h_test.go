package acceptance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Terminals: section H, and the terminal lines of B, C, E and G.

// terminal is a terminal as one client sees it.
type terminal struct {
	c      *client
	pid    int // of its first process; 0: attached
	id     string
	stream string
	text   string // what came so far; the last replay begins it anew
	next   int    // offset after it
	shots  int    // snapshots in it
}

// openTerminal opens a terminal, 80 by 24 if nothing else is said.
func (c *client) openTerminal(session string, more ...object) *terminal {
	c.t.Helper()
	d := c.call("term.open", with(object{"session_id": session, "cols": 80, "rows": 24}, with(more...)))
	return &terminal{c: c, pid: d.num("pid"), id: d.str("term_id"), stream: d.str("stream_id")}
}

// attach attaches another client.
func (h *terminal) attach(c *client, more ...object) *terminal {
	c.t.Helper()
	d := c.call("term.attach", with(object{"term_id": h.id}, with(more...)))
	return &terminal{c: c, id: h.id, stream: h.stream, next: d.num("offset")}
}

func (h *terminal) ask(method string, more ...object) object {
	h.c.t.Helper()
	return h.c.call(method, with(object{"term_id": h.id}, with(more...)))
}

func (h *terminal) keys(text string) { h.c.t.Helper(); h.ask("term.input", object{"data": text}) }

// nextOutput waits for the next piece of output, or the exit, which it returns.
func (h *terminal) nextOutput() (exit object) {
	h.c.t.Helper()
	f := h.c.await("output of the terminal, after "+brief(h.text), func(f *frame) bool {
		return f.Data.str("term_id") == h.id && (f.Event == "term.output" || f.Event == "term.exit") || f.Event == "stream.gap" && f.Data.str("stream_id") == h.stream
	})
	switch f.Event {
	case "term.exit":
		return f.Data
	case "stream.gap":
		if from := f.Data.num("from"); from != h.next {
			h.c.t.Fatalf("gap from %d, want %d", from, h.next)
		}
		h.next = f.Data.num("to")
		return nil
	}
	data := f.Data.text("data", "encoding")
	if f.Data.yes("snapshot") {
		if !f.Data.yes("replay") {
			h.c.t.Errorf("a snapshot is no replay")
		}
		h.shots++
		h.text, h.next = data, f.Data.num("offset")
		return nil
	}
	if at := f.Data.num("offset"); at != h.next {
		h.c.t.Fatalf("output at %d, want %d", at, h.next)
	}
	if f.Data.str("stream") != "tty" {
		h.c.t.Errorf("output on %q", f.Data.str("stream"))
	}
	h.text += data
	h.next += len(data)
	return nil
}

// expect waits until the output matches and returns what matched, in groups; it takes that away, and what was before.
func (h *terminal) expect(pattern string) []string {
	h.c.t.Helper()
	re := regexp.MustCompile(pattern)
	for {
		if at := re.FindStringSubmatchIndex(h.text); at != nil {
			m := re.FindStringSubmatch(h.text)
			h.text = h.text[at[1]:]
			return m
		}
		if exit := h.nextOutput(); exit != nil {
			h.c.t.Fatalf("%s: terminal ended: %v after %s", pattern, exit, brief(h.text))
		}
	}
}

// end waits for the exit, and returns all output before it that was not taken.
func (h *terminal) end() (text string, exit object) {
	h.c.t.Helper()
	for exit == nil {
		exit = h.nextOutput()
	}
	return h.text, exit
}

// screen polls the text of the screen until it matches.
func (h *terminal) screen(pattern string) object {
	h.c.t.Helper()
	re := regexp.MustCompile(pattern)
	var s object
	last := ""
	defer func() {
		if h.c.t.Failed() {
			h.c.t.Logf("the screen is\n%s", last)
		}
	}()
	eventually(h.c.t, "screen with "+pattern, func() bool {
		s = h.ask("term.snapshot")
		last = ""
		for _, l := range s["lines"].([]any) {
			last += l.(string) + "\n"
		}
		return re.MatchString(last)
	})
	return s
}

// plain is a shell whose prompt is a dollar, so that what is typed can be told from what it prints.
var plain = object{"command": "exec bash --norc --noprofile", "env": object{"PS1": "$ "}}

func sizeOf(h *terminal) string {
	h.c.t.Helper()
	h.keys("stty size; echo si''ze\r")
	return h.expect(`(\d+ \d+)\r\nsize\r\n`)[1]
}

// H1.
func TestTerminalHasItsSizeFromTheStart(t *testing.T) {
	g := shared(t, "h")
	c := g.dial(t)
	for _, shell := range []string{"/bin/bash", "/bin/sh", "/usr/bin/zsh"} {
		if _, err := os.Stat(shell); err != nil {
			continue
		}
		s := c.session(object{"shell": shell})
		for _, first := range []object{{}, {"command": "stty size; echo first; exec " + shell + " -i"}} {
			h := c.openTerminal(s, with(first, object{"cols": 101, "rows": 37}))
			if len(first) > 0 {
				h.expect(`37 101\r\nfirst`)
			}
			h.keys("echo $COLUMNS,; stty size; tty\r")
			h.expect(`37 101\r\n/dev/pts/\d+`)
			h.ask("term.close")
		}
	}
	s := c.session(object{"shell": "/bin/bash"})
	h := c.openTerminal(s, object{"cols": 101, "rows": 37})
	h.keys("echo $LINES''x$COLUMNS\r")
	h.expect(`37x101\r\n`)
	if got := c.openTerminal(s, object{"command": "stty size", "cols": 1, "rows": 1000}).expect(`\d+ \d+`)[0]; got != "1000 1" {
		t.Errorf("size %s", got)
	}
}

// H3.
func TestImpossibleTerminalSizesAreRefused(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session()
	for _, size := range []object{{"cols": 0, "rows": 0}, {"cols": -1, "rows": 24}, {"cols": 80, "rows": 70000}, {"cols": 1001, "rows": 24}, {"cols": 80}, {}} {
		if f := c.try("term.open", with(object{"session_id": s}, size)); f.code() != "INVALID_PARAMS" {
			t.Errorf("open %v: %s", size, f.code())
		}
	}
	h := c.openTerminal(s, plain, object{"cols": 90, "rows": 20})
	for _, size := range []object{{"cols": 0, "rows": 0}, {"cols": -1, "rows": 24}, {"cols": 80, "rows": 70000}} {
		if f := c.try("term.resize", with(object{"term_id": h.id}, size)); f.code() != "INVALID_PARAMS" {
			t.Errorf("resize %v: %s", size, f.code())
		}
	}
	if got := sizeOf(h); got != "20 90" {
		t.Errorf("size %s", got)
	}
	for i := range 200 { // a window that is dragged; the last one wins
		h.ask("term.resize", object{"cols": 100 + i, "rows": 30})
	}
	if got := sizeOf(h); got != "30 299" {
		t.Errorf("size %s", got)
	}
	h.keys("exit\r")
	h.end()
	h.ask("term.resize", object{"cols": 10, "rows": 10}) // of one that has ended: nothing
}

// hWinch tells each SIGWINCH, with the size, and each line. Not in bash, which forgets a signal that comes in its trap.
const hWinch = `exec python3 -c '
import os, signal, sys
def winch(*_):
    s = os.get_terminal_size(0)
    os.write(1, b"W%d %dW\n" % (s.lines, s.columns))
signal.signal(signal.SIGWINCH, winch)
os.write(1, b"ready\n")
for line in sys.stdin:
    os.write(1, b"got " + line.encode())'`

// H4, I9: one client has control, types and sets the size. Who comes in control takes it over, with one SIGWINCH and one
// event; the loser is told, its input refused; a client that leaves gives control and size back.
func TestLatestControllerTypesAndSetsTheSize(t *testing.T) {
	g := shared(t, "h")
	a, b, v := g.dial(t), g.dial(t), g.dial(t)
	s := a.session(object{"shell": "/bin/bash"})
	ha := a.openTerminal(s, object{"cols": 120, "rows": 30, "command": hWinch})
	ha.expect("ready")
	hv := ha.attach(v, object{"mode": "view"})
	denied := func(who string, c *client, words string) {
		t.Helper()
		for method, params := range map[string]object{"term.resize": {"cols": 10, "rows": 10}, "term.input": {"data": "x"}} {
			if f := c.try(method, with(object{"term_id": ha.id}, params)); f.code() != "FORBIDDEN" || !strings.Contains(f.Error.Message, words) {
				t.Errorf("%s, %s: %v", who, method, f)
			}
		}
	}
	denied("a viewer", v, "attached to view")
	hb := ha.attach(b, object{"mode": "control", "cols": 80, "rows": 20})
	ha.expect("W20 80W")
	for _, c := range []*client{a, b, v} {
		if d := c.event("term.resized"); d.num("cols") != 80 || d.num("rows") != 20 {
			t.Errorf("resized: %v", d)
		}
	}
	if d := a.event("term.control"); d.str("mode") != "view" || d.str("term_id") != ha.id || d.obj("by").str("subject") == "" || d.obj("by").num("cols") != 80 {
		t.Errorf("the loser is told %v", d)
	}
	denied("the loser", a, "taken over")
	hb.keys("two\r") // with the size it took
	ha.expect("got two")
	hb.keys("three\r")
	ha.expect("got three")
	b.close()
	ha.expect("W30 120W")
	if d := a.event("term.control"); d.str("mode") != "control" || d.has("by") {
		t.Errorf("who has control again is told %v", d)
	}
	ha.keys("four\r")
	ha.expect("got four")
	if n := strings.Count(ha.text, "W"); n != 0 {
		t.Errorf("more changes of size: %s", ha.text)
	}
	for _, f := range v.seen("term.control") {
		t.Errorf("who only looks is told %v", f.Data)
	}
	list := a.call("term.list", object{"session_id": s}).objs("terminals")
	if len(list) != 1 || list[0].num("viewers") != 2 || list[0].num("cols") != 120 || list[0].str("state") != "running" {
		t.Errorf("list: %v", list)
	}
	v.call("term.detach", object{"term_id": hv.id})
	eventually(t, "the viewer has left", func() bool {
		return a.call("term.list", object{"session_id": s}).objs("terminals")[0].num("viewers") == 1
	})
	// A connection that is not attached owns the terminal all the same.
	w := g.dial(t)
	w.call("term.input", object{"term_id": ha.id, "data": "five\r"})
	ha.expect("got five")
	ha.ask("term.close", object{"kill_grace_s": 0.2})
}

// I9: who comes back after a lost connection is what it was, by its claim, and takes nothing from who came later.
func TestClaimGivesBackWhatAClientWas(t *testing.T) {
	g := shared(t, "h")
	a, b := g.dial(t), g.dial(t)
	s := a.session(object{"shell": "/bin/bash"})
	d := a.call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": "exec cat"})
	term := object{"term_id": d.str("term_id")}
	claim := d.num("claim")
	first := b.call("term.attach", with(term, object{"mode": "view"}))
	if first.has("claim") || first.str("mode") != "view" {
		t.Errorf("to view: %v", first)
	}
	taken := b.call("term.attach", term)
	if taken.str("mode") != "control" || taken.str("viewer_id") != first.str("viewer_id") {
		t.Errorf("one client took over and is two: %v, %v", first, taken)
	}
	a.close()
	a = g.dial(t)
	if d := a.call("term.attach", with(term, object{"claim": claim})); d.str("mode") != "view" || d.num("claim") != claim {
		t.Errorf("who lost control while away came back as %v", d)
	}
	b.close() // and it, too, comes back, to what it was
	if d := a.event("term.control"); d.str("mode") != "control" {
		t.Errorf("%v", d)
	}
	b = g.dial(t)
	if d := b.call("term.attach", with(term, object{"claim": taken.num("claim")})); d.str("mode") != "control" {
		t.Errorf("who had control came back as %v", d)
	}
	if d := a.event("term.control"); d.str("mode") != "view" {
		t.Errorf("%v", d)
	}
	if d := a.call("term.attach", with(term, object{"claim": 1 << 60})); d.str("mode") != "control" || d.num("claim") == 1<<60 {
		t.Errorf("a made-up claim: %v", d)
	}
	// Back to view: whoever claimed before has control.
	b.event("term.control")
	a.call("term.attach", with(term, object{"mode": "view"}))
	if d := b.event("term.control"); d.str("mode") != "control" {
		t.Errorf("%v", d)
	}
	b.call("term.close", with(term, object{"kill_grace_s": 0}))
}

// Who is at a terminal is listed, and told to those who are and those who watch the session.
func TestViewersAreToldAndListed(t *testing.T) {
	g := shared(t, "h")
	a, b, w := g.dial(t), g.dial(t), g.dial(t)
	s := a.session(object{"shell": "/bin/bash"})
	w.call("session.watch", object{"session_id": s})
	h := a.openTerminal(s, object{"cols": 90, "rows": 30, "command": "exec cat"})
	one := a.event("term.viewers")
	if all := one.objs("attached"); len(all) != 1 || all[0].str("mode") != "control" || all[0].num("cols") != 90 || all[0].num("rows") != 30 || all[0].str("subject") != "local" || !all[0].has("since") {
		t.Errorf("alone: %v", one)
	}
	h.attach(b, object{"mode": "view"})
	for name, c := range map[string]*client{"attached": a, "come": b, "watching": w} {
		d := c.await("term.viewers of two", func(f *frame) bool { return f.Event == "term.viewers" && f.Data.num("viewers") == 2 }).Data
		if all := d.objs("attached"); len(all) != 2 || all[0].str("mode") != "control" || all[1].str("mode") != "view" || all[0].str("viewer_id") == all[1].str("viewer_id") || d.str("session_id") != s || d.str("term_id") != h.id {
			t.Errorf("%s: %v", name, d)
		}
	}
	if all := a.call("term.list", object{"session_id": s}).objs("terminals")[0].objs("attached"); len(all) != 2 || all[1].str("mode") != "view" {
		t.Errorf("listed: %v", all)
	}
	b.close()
	for _, c := range []*client{a, w} {
		c.await("term.viewers of one", func(f *frame) bool {
			return f.Event == "term.viewers" && f.Data.num("viewers") == 1 && len(f.Data.objs("attached")) == 1
		})
	}
	a.call("session.watch", object{"session_id": s}) // who is attached and watches is told once
	h.attach(g.dial(t), object{"mode": "view"})
	a.event("term.viewers")
	h.ask("term.close", object{"kill_grace_s": 0})
	w.event("term.exit")
	if again := a.seen("term.viewers"); len(again) != 0 {
		t.Errorf("told twice: %v", again[0].Data)
	}
}

// A retry of term.open under its request_key opens nothing, and attaches.
func TestTermOpenRetryOpensNothing(t *testing.T) {
	g := gateway(t, "--retention", "1s")
	c := g.dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	q := object{"session_id": s, "cols": 80, "rows": 24, "command": "echo ready; exec cat", "request_key": "key"}
	h := c.openTerminal(s, q)
	h.expect("ready")
	c.close() // before the answer, as far as it knows
	c = g.dial(t)
	again := c.openTerminal(s, q, object{"on_slow": "skip", "window_bytes": 1 << 20})
	if again.id != h.id {
		t.Errorf("%s and %s", h.id, again.id)
	}
	again.expect("ready")
	again.keys("typed\r")
	again.expect("typed")
	if f := c.try("term.open", with(q, object{"cols": 81})); f.code() != "INVALID_PARAMS" {
		t.Errorf("the key with another size: %s", f.code())
	}
	if list := c.call("term.list", object{"session_id": s}).objs("terminals"); len(list) != 1 {
		t.Errorf("list: %v", list)
	}
	g.killGateway(t) // the next one knows the key, too
	c = g.redial(t)
	again = c.openTerminal(s, q)
	again.expect("typed")
	again.keys("\x04")
	if _, exit := again.end(); exit.str("term_id") != h.id || exit.num("exit_code") != 0 {
		t.Errorf("exit: %v", exit)
	}
	eventually(t, "it is forgotten", func() bool { return len(c.call("term.list", object{"session_id": s}).objs("terminals")) == 0 })
	late := c.openTerminal(s, q)
	if text, exit := late.end(); late.id != h.id || text != "" || exit.num("exit_code") != 0 {
		t.Errorf("late: %s %q %v", late.id, text, exit)
	}
}

// H5.
func TestCharactersOfATerminalAreNotSplit(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session()
	h := c.openTerminal(s, object{"command": `python3 -c '
import os, time
os.write(1, b"<\xe2"); time.sleep(.5); os.write(1, b"\x94\x80>")
os.write(1, b"[\xff"); time.sleep(4); os.write(1, b"]")'`})
	h.expect("<─>")
	h.expect(`\[\xff|\[\x{fffd}`)
	start := time.Now()
	text, _ := h.end()
	if !strings.HasSuffix(text, "]") || time.Since(start) < time.Second { // the lone byte was not held until the next one
		t.Errorf("%q, %s after the lone byte", text, time.Since(start))
	}
	// What is typed arrives whole, however it is cut.
	h = c.openTerminal(s, object{"command": "stty -echo; echo ready; head -n 1 | od -An -tx1; head -n 1"})
	h.expect("ready")
	for _, b := range []string{"4g==", "lA==", "gA==", "Cg=="} {
		h.ask("term.input", object{"data": b, "encoding": "base64"})
	}
	h.expect("e2 94 80 0a")
	h.keys("日本語 é\n")
	h.expect("日本語 é\r\n")
}

// H9.
func TestTerminalHasItsVariables(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	expect(t, c.run(s, `echo "$TERM,$NO_COLOR,$GIT_PAGER,$LANG"`), 0, "dumb,1,cat,C.UTF-8\n", "")
	h := c.openTerminal(s)
	h.keys(`echo "$TERM,$COLORTERM,${NO_COLOR-none},${GIT_PAGER-none},$LANG,$TRL_SESSION_ID"` + "\r")
	h.expect(`xterm-256color,truecolor,none,none,C.UTF-8,` + s)
	// The session's state is where it starts; what it does there stays there.
	expect(t, c.run(s, "mkdir -p d && cd d && export A='1 2' NO_COLOR=yes; B=3; umask 027"), 0, "", "")
	h = c.openTerminal(s, object{"env": object{"C": "4", "LANG": nil}})
	h.keys(`echo "<$A,${B-none},$C,${LANG-none},$NO_COLOR,$(umask),$(basename "$PWD")>"` + "\r")
	h.expect(`<1 2,none,4,none,yes,0027,d>`)
	h.keys("cd /; A=5; exit 7\r")
	if _, exit := h.end(); exit.num("exit_code") != 7 {
		t.Errorf("exit: %v", exit)
	}
	expect(t, c.run(s, `echo "$A $(basename "$PWD")"`), 0, "1 2 d\n", "")
	// A command has the functions, too.
	expect(t, c.run(s, "f() { echo \"f $1 $B\"; }"), 0, "", "")
	if text, exit := c.openTerminal(s, object{"command": "f x; exit 3", "working_dir": "/"}).end(); text != "f x 3\r\n" || exit.num("exit_code") != 3 {
		t.Errorf("%q %v", text, exit)
	}
	if f := c.try("term.open", object{"session_id": s, "cols": 80, "rows": 24, "working_dir": "/nowhere"}); f.code() != "WORKING_DIR_NOT_FOUND" {
		t.Errorf("nowhere: %s", f.code())
	}
}

// countPTYs counts the PTYs that processes of ours have open at either end: all of the machine's (/proc/sys/kernel/pty/nr) are
// also other people's.
func countPTYs(t testing.TB) int {
	t.Helper()
	ours := map[string]bool{}
	for _, pid := range pids() {
		if pid == os.Getpid() || !descends(pid, os.Getpid()) {
			continue
		}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			switch to, _ := os.Readlink(fd); {
			case strings.HasPrefix(to, "/dev/pts/") && to != "/dev/pts/ptmx":
				ours[strings.TrimPrefix(to, "/dev/pts/")] = true
			case strings.HasSuffix(to, "/ptmx"):
				info, _ := os.ReadFile(strings.Replace(fd, "/fd/", "/fdinfo/", 1))
				if m := regexp.MustCompile(`tty-index:\s*(\d+)`).FindSubmatch(info); m != nil {
					ours[string(m[1])] = true
				}
			}
		}
	}
	return len(ours)
}

// descends reports whether a process comes from another one.
func descends(pid, from int) bool {
	for pid > 1 && pid != from {
		_, parent, _, ok := procStat(pid)
		if !ok {
			return false
		}
		pid = parent
	}
	return pid == from
}

// G8, H10: nothing is left of a terminal that has ended.
func TestTerminalsLeaveNothing(t *testing.T) {
	g := gateway(t, "--warm", "0", "--retention", "1s")
	c := g.dial(t)
	s := c.session()
	cycle := func(i int) {
		h := c.openTerminal(s, object{"command": "echo hi; exec cat"})
		h.expect("hi\r\n")
		if i%2 == 0 {
			h.ask("term.close")
		} else {
			h.keys("\x04")
		}
		h.end()
	}
	for i := range 10 {
		cycle(i)
	}
	rests := func() bool { // what has ended has been let go of, and with it its output
		return len(c.call("term.list", object{"session_id": s}).objs("terminals")) == 0
	}
	eventually(t, "all are forgotten", rests)
	before, fds, kept, nr := g.metric(t, "go_goroutines"), g.fds(t), fdsOf(t, g.pid), countPTYs(t)
	if h := c.openTerminal(s, plain); countPTYs(t) != nr+1 {
		t.Errorf("with a terminal there are %d PTYs, %d before", countPTYs(t), nr)
	} else {
		h.ask("term.close", object{"kill_grace_s": 0})
	}
	cycles := pick(100, 2000)
	for i := range cycles {
		cycle(i)
	}
	eventually(t, "all are forgotten", rests)
	eventually(t, "goroutines are as before", func() bool { return g.metric(t, "go_goroutines") <= before })
	eventually(t, "descriptors are as before, also the keeper's", func() bool { return g.fds(t) <= fds && fdsOf(t, g.pid) <= kept })
	eventually(t, "the PTYs are gone", func() bool { return countPTYs(t) <= nr })
	t.Logf("after %d cycles: goroutines %v → %v, descriptors %d → %d, the keeper's %d → %d, PTYs %d → %d",
		cycles, before, g.metric(t, "go_goroutines"), fds, g.fds(t), kept, fdsOf(t, g.pid), nr, countPTYs(t))
	c.call("session.destroy", object{"session_id": s, "force": true})
}

// B3.
func TestTerminalsLastOutputArrives(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	for i := range pick(60, 500) {
		text, exit := c.openTerminal(s, object{"command": fmt.Sprintf("printf 'end %d\\n'; exit %d", i, i%128)}).end()
		if text != fmt.Sprintf("end %d\r\n", i) || exit.num("exit_code") != i%128 {
			t.Fatalf("%d: %q %v", i, text, exit)
		}
	}
	h := c.openTerminal(s, object{"command": "seq 1 200000; printf 'last'; kill -9 $$"})
	text, exit := h.end()
	if !strings.HasSuffix(text, "200000\r\nlast") || exit.num("exit_code") != 137 || exit.str("signal") != "KILL" {
		t.Errorf("%s %v", brief(text), exit)
	}
	if n := len(text); n != exit.num("output_bytes") {
		t.Errorf("%d bytes came, %d were written", n, exit.num("output_bytes"))
	}
}

// C9: programs that take the whole screen.
func TestFullScreenProgramsWork(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte(strings.Repeat("some line of text\n", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]struct {
		start, shows, quit string
		main               bool // not on the alternate screen
	}{
		"vim":     {start: "vim -u NONE " + file, shows: `some line of text`, quit: "\x1b:q!\r"},
		"less":    {start: "less " + file, shows: `some line of text`, quit: "q"},
		"top":     {start: "top -d 1", shows: `PID USER`, quit: "q", main: true},
		"htop":    {start: "htop -d 10", shows: `F10`, quit: "q"},
		"fzf":     {start: "fzf < " + file, shows: `200/200`, quit: "\x1b"},
		"tmux":    {start: "tmux -L trl$$ -f /dev/null new", shows: `\[0\] 0:`, quit: "exit\r"},
		"python3": {start: "python3 -q", shows: `>>>`, quit: "print(6*7)\rexit()\r", main: true},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil {
				t.Skipf("no %s here", name)
			}
			c := shared(t, "h").dial(t)
			h := c.openTerminal(s, plain, object{"env": object{"PS1": "shell> "}})
			h.expect(`shell> `)
			h.keys(p.start + "\r")
			shot := h.screen(p.shows)
			if shot.yes("alternate") == p.main {
				t.Errorf("alternate screen: %v", shot.yes("alternate"))
			}
			h.text = ""
			h.keys(p.quit)
			if !p.main {
				h.expect(`\x1b\[\?1049l`)
			}
			h.expect(`shell> `) // what is typed before is the program's, which throws it away when it ends (top)
			h.keys("echo back''again\r")
			h.expect("backagain")
			if shot := h.screen("backagain"); shot.yes("alternate") {
				t.Error("the alternate screen is still there")
			}
			h.ask("term.close", object{"kill_grace_s": 0.5})
		})
	}
}

// C11: a line longer than the kernel's line mode holds.
func TestLineTooLongForATerminalIsRefused(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	line := strings.Repeat("x", 5000)
	h := c.openTerminal(s, object{"command": "echo ready; wc -c"})
	h.expect("ready")
	if f := c.try("term.input", object{"term_id": h.id, "data": line + "\n"}); f.code() != "LIMIT_EXCEEDED" {
		t.Errorf("a long line to cat: %q %v", f.code(), f)
	}
	h.keys(strings.Repeat("short line\n", 1000) + "\x04")
	h.expect("11000")
	h = c.openTerminal(s, plain)
	h.expect(`\$ `)
	h.keys("v=" + line + "; echo ${#v}\r")
	h.expect(`5000\r\n`)
}

// E4: Ctrl-C is for the foreground job, and the shell stays.
func TestInterruptIsForTheForegroundJob(t *testing.T) {
	c := shared(t, "h").dial(t)
	for _, shell := range shells {
		s := c.session(object{"shell": shell})
		h := c.openTerminal(s)
		nap := sleeper()
		h.keys(nap + "; echo st=$?\r")
		eventually(t, "it sleeps", func() bool { return len(running(nap)) == 1 })
		h.keys("\x03")
		h.keys("echo code=$?\r")
		h.expect(`code=130|st=130`)
		eventually(t, "it is gone", func() bool { return len(running(nap)) == 0 })
		h.keys(nap + "\r")
		eventually(t, "it sleeps again", func() bool { return len(running(nap)) == 1 })
		h.keys("\x1a") // Ctrl-Z
		h.expect(`(?i)stopped|suspended|\[1\]`)
		h.ask("term.close") // and what is stopped dies with it
		eventually(t, "it is gone again", func() bool { return len(running(nap)) == 0 })
	}
}

// G10: HUP, TERM, KILL; a session's end takes its terminals along; term.close answers when nothing is left.
func TestTerminalsEndWithTheirSession(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	nap := sleeper()
	for _, p := range []struct{ command, says string }{
		{"trap 'echo hup; exit 1' HUP; echo ready; while :; do sleep 0.1; done", "hup"},
		{"trap '' HUP; trap 'echo term; exit 1' TERM; echo ready; while :; do sleep 0.1; done", "term"},
		{"trap '' HUP TERM INT; echo ready; while :; do sleep 0.1; done", ""},
		{"setsid " + nap + " & setsid sh -c 'trap \"\" HUP TERM; " + nap + "; :' & echo ready; " + nap, ""},
	} {
		h := c.openTerminal(s, object{"command": p.command})
		h.expect("ready")
		start := time.Now()
		info := h.ask("term.close", object{"kill_grace_s": 1})
		within(t, "close", start, 2*time.Second)
		if info.str("state") != "exited" || !info.has("exit_code") {
			t.Errorf("%s: %v", p.command, info)
		}
		if text, exit := h.end(); p.says != "" && !strings.Contains(text, p.says) || exit.str("state") != "exited" {
			t.Errorf("%s: %q %v", p.command, text, exit)
		}
		if n := running(nap); len(n) != 0 {
			t.Errorf("%s: %v left", p.command, n)
		}
		h.ask("term.close") // again is nothing
	}
	h := c.openTerminal(s, plain)
	h.expect(`\$ `)
	h.keys("setsid " + nap + " & " + nap + "\r")
	eventually(t, "they sleep", func() bool { return len(running(nap)) == 2 })
	start := time.Now()
	c.call("session.destroy", object{"session_id": s})
	within(t, "destroy", start, 2*time.Second)
	if len(running(nap)) != 0 {
		t.Error("something is left")
	}
	if _, exit := h.end(); exit.str("state") != "exited" {
		t.Errorf("exit: %v", exit)
	}
	if f := c.try("term.input", object{"term_id": h.id, "data": "x"}); f.code() != "STDIN_CLOSED" && f.code() != "SESSION_TERMINATED" {
		t.Errorf("typing into an ended one: %s", f.code())
	}
}

func TestTerminalCommandsAreReported(t *testing.T) { testMarks(t, shared(t, "h")) }

// In a session that may not look below /proc for what its shells open: as another user, and behind Landlock.
func TestTerminalCommandsOfConfinedSessionsAreReported(t *testing.T) {
	t.Run("allow-write", func(t *testing.T) {
		g, err := startGateway("--allow-write", top)
		if err != nil && strings.Contains(err.Error(), "Landlock") {
			t.Skipf("not run: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		g.endWith(t)
		testMarks(t, g)
	})
	eachWay(t, func(t *testing.T, flags []string) { testMarks(t, gateway(t, flags...)) })
}

func testMarks(t *testing.T, g *server) {
	for _, shell := range []string{"bash", "zsh", "fish", "dash"} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("no %s here", shell)
			}
			c := g.dial(t)
			// The session's shell, or one that is named and nothing else.
			q, more := object{"shell": "/bin/sh"}, object{"command": shell}
			if shell == "zsh" || shell == "dash" {
				q, more = object{"shell": shell}, nil
			}
			s := c.session(q)
			if shell == "dash" { // it has no hooks
				h := c.openTerminal(s)
				h.keys("echo a''b\r")
				h.expect("ab\r\n")
				return
			}
			h := c.openTerminal(s, more)
			h.expect(`\x1b\]133;A;aid=\w+`)
			h.keys("echo one; sh -c 'exit 3'\r")
			d := c.event("term.command")
			if d.str("command") != "echo one; sh -c 'exit 3'" || d.num("exit_code") != 3 || !d.has("duration_ms") || d.str("term_id") != h.id {
				t.Errorf("%v", d)
			}
			h.keys("printf '\\033]633;E;evil;x\\a\\033]133;C;aid=x\\a\\033]133;D;9;aid=x\\a'\r")
			if d := c.event("term.command"); d.num("exit_code") != 0 || !strings.HasPrefix(d.str("command"), "printf") {
				t.Errorf("a made-up one: %v", d)
			}
			h.keys("cat /no''such\r")
			if d := c.event("term.command"); d.num("exit_code") != 1 {
				t.Errorf("%v", d)
			}
			h.keys("\r\r")
			h.keys("sleep 0.2\r")
			if d := c.event("term.command"); d.str("command") != "sleep 0.2" || d.num("duration_ms") < 150 {
				t.Errorf("%v", d)
			}
			h.keys("env | grep -c -e ^TRL_Z -e ^ZDOTDIR\r") // nothing is left of how it began
			if d := c.event("term.command"); d.num("exit_code") != 1 {
				t.Errorf("%v", d)
			}
		})
	}
}

// The user's own files are read, before ours.
func TestTerminalReadsTheUsersFilesFirst(t *testing.T) {
	g := gateway(t)
	for file, text := range map[string]string{
		".bashrc": "PS1='bashrc> '; PROMPT_COMMAND='echo -n hook; (exit 5)'; alias hi='echo hello'\n",
		".zshenv": "export FROM_ZSHENV=1\n", ".zshrc": "PS1='zshrc> '; alias hi='echo hello'\n",
	} {
		if err := os.WriteFile(filepath.Join(g.home, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, shell := range []string{"bash", "zsh"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		c := g.dial(t)
		s := c.session(object{"shell": shell})
		h := c.openTerminal(s)
		h.expect(shell + `rc> `)
		h.keys("(exit 4)\r")
		if d := c.event("term.command"); d.num("exit_code") != 4 {
			t.Errorf("%s: %v", shell, d)
		}
		h.keys("hi $? ${ZDOTDIR-none} ${TRL_ZDOTDIR-none}\r")
		h.expect(`hello 4 none none`)
		if shell == "bash" {
			h.expect("hook")
		} else {
			h.keys("echo $FROM_ZSHENV\r")
			h.expect(`[\x07\n]1\r\n`)
		}
		h.keys("exit\r")
		h.end()
	}
	left, _ := filepath.Glob(filepath.Join(g.dir, "*", "trl-zsh-*"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// What users set or export shows them nothing of the marks, and gives their programs no nonce.
func TestMarksAreNotSeen(t *testing.T) {
	g := gateway(t)
	for file, text := range map[string]string{".bashrc": "set -u; PS1='rc> '\n", ".zshrc": "set -u; PS1='rc> '\n"} {
		if err := os.WriteFile(filepath.Join(g.home, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, shell := range []string{"bash", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("no %s here", shell)
			}
			c := g.dial(t)
			h := c.openTerminal(c.session(object{"shell": shell}), object{"rows": 100})
			nonce := h.expect(`\x1b\]133;A;aid=(\w+)`)[1]
			run := func(text string, code int) {
				t.Helper()
				h.keys(text + "\r")
				if d := c.event("term.command"); d.str("command") != text || d.num("exit_code") != code {
					t.Errorf("%s: %v", text, d)
				}
			}
			run("echo begin", 0)
			run("set -x", 0)
			run("true traced", 0)
			run("set +x", 0)
			run("export PS1; env | grep -c "+nonce, 1)
			run("env | grep -c "+nonce, 1)
			run("set -a", 0)
			run("env | grep -c "+nonce, 1)
			run("sh -c 'echo the last'", 0)
			if shell == "bash" {
				run("shopt -u promptvars", 0)
				h.keys("echo plain''ly\r")
				h.expect(`rc> echo plain''ly`)
				h.expect(`plainly`)
				h.keys("shopt -s promptvars\r")
				h.expect(`\x1b\]133;A;aid=`)
				run("echo marked", 0)
			}
			run("echo the''end", 0)
			screen := h.screen("theend")
			if text := fmt.Sprint(screen["lines"]); strings.Contains(text, "__trl") || strings.Contains(text, "unbound") || strings.Contains(text, "133;") {
				t.Errorf("it shows %s", text)
			}
		})
	}
}

// Prompts for passwords come on the terminal.
func TestPasswordPromptsAreOnTheTerminal(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	h := c.openTerminal(s, object{"command": `python3 -c 'import getpass; print("got", getpass.getpass("Secret: "))'`})
	h.expect("Secret: ")
	h.keys("abc\r")
	h.expect("got abc")
	// /dev/tty is the terminal, also with everything else redirected.
	h = c.openTerminal(s, object{"command": "sh -c 'echo via tty >/dev/tty' </dev/null >/dev/null 2>&1"})
	h.expect("via tty")
}

// typeSecret types at a prompt that does not echo, and leaves it by Ctrl-C.
func (h *terminal) typeSecret() {
	h.c.t.Helper()
	// Who asks by readpassphrase (ssh) forgets a signal that comes between its prompt and its read.
	eventually(h.c.t, "who asked waits for the answer", func() bool {
		f := statFields(h.pid)
		if f == nil {
			return false
		}
		front, _ := strconv.Atoi(f[5])
		state, _, _, _ := procStat(front)
		return front != h.pid && state == 'S'
	})
	h.keys("nobody-sees-this")
	h.keys("\x03")
	h.expect(`shell> `)
	if shown := h.screen("(?m)^shell> *$"); strings.Contains(fmt.Sprint(shown["lines"]), "nobody-sees-this") {
		h.c.t.Errorf("the password is shown: %v", shown["lines"])
	}
	h.keys("echo visible''again\r")
	h.expect(`echo visible''again\r\n`) // the echo is back
	h.expect(`visibleagain`)
}

// sudo asks at /dev/tty, without echo, and Ctrl-C ends it.
func TestSudoAsksOnTheTerminal(t *testing.T) {
	uRoot(t) // so that somebody is asked who is not asked here
	for _, name := range []string{"sudo", "setpriv"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("no %s here", name)
		}
	}
	c := shared(t, "h").dial(t)
	h := c.openTerminal(c.session(object{"shell": "/bin/bash"}), plain, object{"env": object{"PS1": "shell> "}})
	h.expect("shell> ")
	h.keys("setpriv --reuid=65534 --regid=65534 --clear-groups sudo -k -p 'Pass''word? ' true </dev/null\r")
	h.expect(`Password\? `)
	h.typeSecret()
	h.ask("term.close", object{"kill_grace_s": 0.5})
}

// ssh asks about the host's key, and for a password, of a server that we have here. make deps does not install it: that
// would start one for everybody.
func TestSSHAsksOnTheTerminal(t *testing.T) {
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		sshd = "/usr/sbin/sshd"
	}
	for _, name := range []string{sshd, "ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("no %s here", name)
		}
	}
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where sshd shuts itself up; Debian makes it at boot
			t.Fatal(err)
		}
	}
	// One connection over stdin and stdout (-i): no port to be found, nothing to be ended.
	proxy := sshd + " -i -f /dev/null -h " + key + " -o UsePAM=no -o PasswordAuthentication=yes -o PidFile=none -o LogLevel=QUIET"
	c := shared(t, "h").dial(t)
	h := c.openTerminal(c.session(object{"shell": "/bin/bash"}), plain, object{"env": object{"PS1": "shell> "}})
	h.expect("shell> ")
	h.keys("ssh -F none -o ProxyCommand='" + proxy + "' -o UserKnownHostsFile=" + dir + "/known -o PreferredAuthentications=password nobody@here\r")
	h.expect(`Are you sure you want to continue connecting`)
	h.keys("yes\r")
	h.expect(`Permanently added`)
	h.expect(`password: `)
	h.typeSecret()
	if known, err := os.ReadFile(filepath.Join(dir, "known")); err != nil || len(known) == 0 {
		t.Errorf("known hosts: %q %v", known, err)
	}
	h.ask("term.close", object{"kill_grace_s": 0.5})
}

// H11: what runs in a terminal leads a process session of its own, with the terminal controlling it.
func TestTerminalLeadsItsOwnProcessSession(t *testing.T) {
	c := shared(t, "h").dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	d := c.call("term.open", object{"session_id": s, "cols": 80, "rows": 24})
	f := statFields(d.num("pid"))
	if pid := strconv.Itoa(d.num("pid")); len(f) < 6 || f[3] != pid || f[4] == "0" {
		t.Errorf("pid %s: %q", pid, f)
	}
	h := &terminal{c: c, id: d.str("term_id"), stream: d.str("stream_id")}
	h.keys("stty tostop; (echo from the back''ground >/dev/tty) & sleep 0.2; wait; echo all''right\r") // stopped by SIGTTOU: it, not us
	h.expect("allright|Stopped")
	h.ask("term.close")
	c.call("system.ping", nil)
}

// H12: Ctrl-C stops a flood, however slow the client is: what is on its way to it is bounded by the ring and the sockets.
func TestInterruptStopsAFlood(t *testing.T) {
	g := shared(t, "h")
	slow := g.dialPaced(t, func(n int) { time.Sleep(time.Duration(n) * time.Microsecond / 4) }) // 4 MB/s
	s := slow.session(object{"shell": "/bin/bash"})
	h := slow.openTerminal(s, plain)
	h.expect(`\$ `)
	h.keys("yes\r")
	h.expect("y\r\ny\r\n")
	g.dial(t).call("term.input", object{"term_id": h.id, "data": "\x03"})
	start := time.Now()
	h.text = ""
	h.expect(`\^C\r\n.*\$ `)
	within(t, "the prompt", start, 5*time.Second)
	if h.next > 32<<20 {
		t.Errorf("%d bytes came before it", h.next)
	}
	h.ask("term.close")
}

// A terminal keeps its session from idling while somebody is there, or something runs in it beside a prompt.
func TestTerminalInUseKeepsItsSession(t *testing.T) {
	t.Parallel()
	g := gateway(t, "--idle-timeout", "2s")
	c := g.dial(t)
	open := func(keys string) (session string, h *terminal) {
		session = c.session(object{"shell": "/bin/bash"})
		h = c.openTerminal(session)
		h.expect(`133;B`) // its prompt
		if keys != "" {
			h.keys(keys)
		}
		return session, h
	}
	viewed, _ := open("")
	nap := sleeper()
	busy, hb := open(nap + "\r")
	eventually(t, "it sleeps", func() bool { return len(running(nap)) == 1 })
	hb.ask("term.detach")
	left, hl := open("")
	hl.ask("term.detach")
	eventually(t, "the one with nobody and nothing in it ends", func() bool {
		i := c.info(left)
		return i.str("state") == "TERMINATED" && i.str("reason") == "idle"
	})
	time.Sleep(3 * time.Second) // longer than the others would have had
	for what, s := range map[string]string{"viewed": viewed, "busy": busy} {
		if i := c.info(s); i.str("state") != "IDLE" || i.num("terminals") != 1 {
			t.Errorf("%s: %v", what, i)
		}
	}
}

// TestWhatRunsInTerminalsIsListed: session.info and session.list tell what runs in a session's terminals, to every client.
func TestWhatRunsInTerminalsIsListed(t *testing.T) {
	g := shared(t, "h")
	for _, shell := range []string{"bash", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("no %s here", shell)
			}
			c, other := g.dial(t), g.dial(t)
			s := c.session(object{"shell": shell})
			runs := func() []object { return other.info(s).objs("in_terminals") }
			h := c.openTerminal(s)
			h.expect(`\x1b\]133;A;aid=\w+`)
			if all := runs(); len(all) != 0 {
				t.Errorf("at the prompt: %v", all)
			}
			h.keys("read x; true\r")
			eventually(t, "the command is listed", func() bool { return len(runs()) == 1 })
			if r := runs()[0]; r.str("command") != "read x; true" || r.str("term_id") != h.id || !r.has("started_at") {
				t.Errorf("%v", r)
			}
			h.keys("\r")
			eventually(t, "it is listed no longer", func() bool { return len(runs()) == 0 })
			c.openTerminal(s, object{"command": "exec sleep 1000"})
			eventually(t, "a terminal's own command is listed", func() bool { all := runs(); return len(all) == 1 && all[0].str("command") == "exec sleep 1000" })
			c.openTerminal(s, object{"command": shell}).expect(`\x1b\]133;A;aid=\w+`)
			eventually(t, "a shell that waits for a command is not", func() bool { return len(runs()) == 1 })
		})
	}
}
