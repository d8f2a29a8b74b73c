package terminals

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

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Terminals: section H, and the terminal lines of B, C, E and G.

// plain is a shell whose prompt is a dollar, so that what is typed can be told from what it prints.
var plain = object{"command": "exec bash --norc --noprofile", "env": object{"PS1": "$ "}}

func sizeOf(h *rig.Terminal) string {
	h.C.T.Helper()
	h.Keys("stty size; echo si''ze\r")
	return h.Expect(`(\d+ \d+)\r\nsize\r\n`)[1]
}

// H1.
func TestTerminalHasItsSizeFromTheStart(t *testing.T) {
	g := rig.Shared(t, "h")
	c := g.Dial(t)
	for _, shell := range []string{"/bin/bash", "/bin/sh", "/usr/bin/zsh"} {
		if _, err := os.Stat(shell); err != nil {
			continue
		}
		s := c.Session(object{"shell": shell})
		for _, first := range []object{{}, {"command": "stty size; echo first; exec " + shell + " -i"}} {
			h := c.OpenTerminal(s, rig.With(first, object{"cols": 101, "rows": 37}))
			if len(first) > 0 {
				h.Expect(`37 101\r\nfirst`)
			}
			h.Keys("echo $COLUMNS,; stty size; tty\r")
			h.Expect(`37 101\r\n/dev/pts/\d+`)
			h.Ask("term.close")
		}
	}
	s := c.Session(object{"shell": "/bin/bash"})
	h := c.OpenTerminal(s, object{"cols": 101, "rows": 37})
	h.Keys("echo $LINES''x$COLUMNS\r")
	h.Expect(`37x101\r\n`)
	if got := c.OpenTerminal(s, object{"command": "stty size", "cols": 1, "rows": 1000}).Expect(`\d+ \d+`)[0]; got != "1000 1" {
		t.Errorf("size %s", got)
	}
}

// H3.
func TestImpossibleTerminalSizesAreRefused(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session()
	for _, size := range []object{{"cols": 0, "rows": 0}, {"cols": -1, "rows": 24}, {"cols": 80, "rows": 70000}, {"cols": 1001, "rows": 24}, {"cols": 80}, {}} {
		if f := c.Try("term.open", rig.With(object{"session_id": s}, size)); f.Code() != "INVALID_PARAMS" {
			t.Errorf("open %v: %s", size, f.Code())
		}
	}
	h := c.OpenTerminal(s, plain, object{"cols": 90, "rows": 20})
	for _, size := range []object{{"cols": 0, "rows": 0}, {"cols": -1, "rows": 24}, {"cols": 80, "rows": 70000}} {
		if f := c.Try("term.resize", rig.With(object{"term_id": h.Id}, size)); f.Code() != "INVALID_PARAMS" {
			t.Errorf("resize %v: %s", size, f.Code())
		}
	}
	if got := sizeOf(h); got != "20 90" {
		t.Errorf("size %s", got)
	}
	for i := range 200 { // a window that is dragged; the last one wins
		h.Ask("term.resize", object{"cols": 100 + i, "rows": 30})
	}
	if got := sizeOf(h); got != "30 299" {
		t.Errorf("size %s", got)
	}
	h.Keys("exit\r")
	h.End()
	h.Ask("term.resize", object{"cols": 10, "rows": 10}) // of one that has ended: nothing
}

// A retry of term.open under its request_key opens nothing, and attaches.
func TestTermOpenRetryOpensNothing(t *testing.T) {
	g := rig.Gateway(t, "--retention", "1s")
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	q := object{"session_id": s, "cols": 80, "rows": 24, "command": "echo ready; exec cat", "request_key": "key"}
	h := c.OpenTerminal(s, q)
	h.Expect("ready")
	c.Close() // before the answer, as far as it knows
	c = g.Dial(t)
	again := c.OpenTerminal(s, q, object{"on_slow": "skip", "window_bytes": 1 << 20})
	if again.Id != h.Id {
		t.Errorf("%s and %s", h.Id, again.Id)
	}
	again.Expect("ready")
	again.Keys("typed\r")
	again.Expect("typed")
	if f := c.Try("term.open", rig.With(q, object{"cols": 81})); f.Code() != "INVALID_PARAMS" {
		t.Errorf("the key with another size: %s", f.Code())
	}
	if list := c.Call("term.list", object{"session_id": s}).Objs("terminals"); len(list) != 1 {
		t.Errorf("list: %v", list)
	}
	g.KillGateway(t) // the next one knows the key, too
	c = g.Redial(t)
	again = c.OpenTerminal(s, q)
	again.Expect("typed")
	again.Keys("\x04")
	if _, exit := again.End(); exit.Str("term_id") != h.Id || exit.Num("exit_code") != 0 {
		t.Errorf("exit: %v", exit)
	}
	testkit.Eventually(t, "it is forgotten", func() bool { return len(c.Call("term.list", object{"session_id": s}).Objs("terminals")) == 0 })
	late := c.OpenTerminal(s, q)
	if text, exit := late.End(); late.Id != h.Id || text != "" || exit.Num("exit_code") != 0 {
		t.Errorf("late: %s %q %v", late.Id, text, exit)
	}
}

// H5.
func TestCharactersOfATerminalAreNotSplit(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session()
	h := c.OpenTerminal(s, object{"command": `python3 -c '
import os, sys, time
os.write(1, b"<\xe2"); time.sleep(.5); os.write(1, b"\x94\x80>")
os.write(1, b"[\xff"); sys.stdin.readline(); os.write(1, b"]")'`})
	h.Expect("<─>")
	h.Expect(`\[\xff|\[\x{fffd}`) // the lone byte is not held until the next one
	h.Keys("\r")
	if text, _ := h.End(); !strings.HasSuffix(text, "]") {
		t.Errorf("%q after the lone byte", text)
	}
	// What is typed arrives whole, however it is cut.
	h = c.OpenTerminal(s, object{"command": "stty -echo; echo ready; head -n 1 | od -An -tx1; head -n 1"})
	h.Expect("ready")
	for _, b := range []string{"4g==", "lA==", "gA==", "Cg=="} {
		h.Ask("term.input", object{"data": b, "encoding": "base64"})
	}
	h.Expect("e2 94 80 0a")
	h.Keys("日本語 é\n")
	h.Expect("日本語 é\r\n")
}

// H9.
func TestTerminalHasItsVariables(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	rig.Expect(t, c.Run(s, `echo "$TERM,$NO_COLOR,$GIT_PAGER,$LANG"`), 0, "dumb,1,cat,C.UTF-8\n", "")
	h := c.OpenTerminal(s)
	h.Keys(`echo "$TERM,$COLORTERM,${NO_COLOR-none},${GIT_PAGER-none},$LANG,$TRL_SESSION_ID"` + "\r")
	h.Expect(`xterm-256color,truecolor,none,none,C.UTF-8,` + s)
	// The session's state is where it starts; what it does there stays there.
	rig.Expect(t, c.Run(s, "mkdir -p d && cd d && export A='1 2' NO_COLOR=yes; B=3; umask 027"), 0, "", "")
	h = c.OpenTerminal(s, object{"env": object{"C": "4", "LANG": nil}})
	h.Keys(`echo "<$A,${B-none},$C,${LANG-none},$NO_COLOR,$(umask),$(basename "$PWD")>"` + "\r")
	h.Expect(`<1 2,none,4,none,yes,0027,d>`)
	h.Keys("cd /; A=5; exit 7\r")
	if _, exit := h.End(); exit.Num("exit_code") != 7 {
		t.Errorf("exit: %v", exit)
	}
	rig.Expect(t, c.Run(s, `echo "$A $(basename "$PWD")"`), 0, "1 2 d\n", "")
	// A command has the functions, too.
	rig.Expect(t, c.Run(s, "f() { echo \"f $1 $B\"; }"), 0, "", "")
	if text, exit := c.OpenTerminal(s, object{"command": "f x; exit 3", "working_dir": "/"}).End(); text != "f x 3\r\n" || exit.Num("exit_code") != 3 {
		t.Errorf("%q %v", text, exit)
	}
	if f := c.Try("term.open", object{"session_id": s, "cols": 80, "rows": 24, "working_dir": "/nowhere"}); f.Code() != "WORKING_DIR_NOT_FOUND" {
		t.Errorf("nowhere: %s", f.Code())
	}
}

// A terminal of a session in which no command has ended starts without a shell that reads the session's state. It has the same variables,
// directory and options as one that starts with such a shell. OLDPWD and SHLVL may come from that shell.
func TestTerminalIsTheSameBeforeAndAfterTheFirstCommand(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	dir := t.TempDir()
	rig.InShells(t, "", func(t *testing.T, shell string) {
		for _, command := range []string{"", "bash"} {
			s := c.Session(object{"shell": shell, "working_dir": dir, "env": object{"A": "1 '2'", "COLUMNS": "7", "TERM": "odd"}})
			look := func() string {
				h := c.OpenTerminal(s, object{"command": command, "env": object{"B": "x\ny", "LANG": nil, "GIT_PAGER": "less"}})
				h.Keys(`printf '%s' '<beg''in>'; env | grep -v '^_=\|^OLDPWD=\|^SHLVL=' | sort; echo "$PWD $- $(umask) $#"; trap; printf '%s\n' '<e''nd>'` + "\r")
				return h.Expect(`(?s)<begin>(.*)<end>`)[1]
			}
			before := look()
			rig.Expect(t, c.Run(s, ":"), 0, "", "")
			if after := look(); after != before {
				t.Errorf("command %q, before:\n%s\nafter:\n%s", command, before, after)
			}
			for _, want := range []string{"A=1 '2'\r\n", "B=x\r\n", "TERM=xterm-256color\r\n", "COLORTERM=truecolor\r\n", "GIT_PAGER=less\r\n", dir + " "} {
				if !strings.Contains(before, want) {
					t.Errorf("command %q: no %q in\n%s", command, want, before)
				}
			}
			for _, gone := range []string{"LANG=", "NO_COLOR=", "COLUMNS=7"} {
				if strings.Contains(before, gone) {
					t.Errorf("command %q: %s in\n%s", command, gone, before)
				}
			}
		}
	})
}

// countPTYs counts the PTYs that a gateway's processes have open at either end.
func countPTYs(g *rig.Server) int {
	ours := map[string]bool{}
	for _, pid := range testkit.Pids() {
		if !descends(pid, g.Pid) {
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
		_, parent, _, ok := rig.ProcStat(pid)
		if !ok {
			return false
		}
		pid = parent
	}
	return pid == from
}

// G8, H10: nothing is left of a terminal that has ended.
func TestTerminalsLeaveNothing(t *testing.T) {
	g := rig.Gateway(t, "--warm", "0", "--retention", "1s")
	c := g.Dial(t)
	s := c.Session()
	cycle := func(i int) {
		h := c.OpenTerminal(s, object{"command": "echo hi; exec cat"})
		h.Expect("hi\r\n")
		if i%2 == 0 {
			h.Ask("term.close")
		} else {
			h.Keys("\x04")
		}
		h.End()
	}
	for i := range 10 {
		cycle(i)
	}
	rests := func() bool { // what has ended has been let go of, and with it its output
		return len(c.Call("term.list", object{"session_id": s}).Objs("terminals")) == 0
	}
	testkit.Eventually(t, "all are forgotten", rests)
	testkit.Eventually(t, "no PTY is open", func() bool { return countPTYs(g) == 0 })
	before, fds, kept := g.Metric(t, "go_goroutines"), g.Fds(t), rig.FdsOf(t, g.Pid)
	if h := c.OpenTerminal(s, plain); countPTYs(g) != 1 {
		t.Errorf("with a terminal there are %d PTYs", countPTYs(g))
	} else {
		h.Ask("term.close", object{"kill_grace_s": 0})
	}
	cycles := rig.Pick(100, 2000)
	for i := range cycles {
		cycle(i)
	}
	testkit.Eventually(t, "all are forgotten", rests)
	testkit.Eventually(t, "goroutines are as before", func() bool { return g.Metric(t, "go_goroutines") <= before })
	testkit.Eventually(t, "descriptors are as before, also the keeper's", func() bool { return g.Fds(t) <= fds && rig.FdsOf(t, g.Pid) <= kept })
	testkit.Eventually(t, "the PTYs are gone", func() bool { return countPTYs(g) == 0 })
	t.Logf("after %d cycles: goroutines %v → %v, descriptors %d → %d, the keeper's %d → %d",
		cycles, before, g.Metric(t, "go_goroutines"), fds, g.Fds(t), kept, rig.FdsOf(t, g.Pid))
	c.Call("session.destroy", object{"session_id": s, "force": true})
}

// B3.
func TestTerminalsLastOutputArrives(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	for i := range rig.Pick(60, 500) {
		text, exit := c.OpenTerminal(s, object{"command": fmt.Sprintf("printf 'end %d\\n'; exit %d", i, i%128)}).End()
		if text != fmt.Sprintf("end %d\r\n", i) || exit.Num("exit_code") != i%128 {
			t.Fatalf("%d: %q %v", i, text, exit)
		}
	}
	h := c.OpenTerminal(s, object{"command": "seq 1 200000; printf 'last'; kill -9 $$"})
	text, exit := h.End()
	if !strings.HasSuffix(text, "200000\r\nlast") || exit.Num("exit_code") != 137 || exit.Str("signal") != "KILL" {
		t.Errorf("%s %v", rig.Brief(text), exit)
	}
	if n := len(text); n != exit.Num("output_bytes") {
		t.Errorf("%d bytes came, %d were written", n, exit.Num("output_bytes"))
	}
}

// C9: programs that take the whole screen.
func TestFullScreenProgramsWork(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
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
		"tmux":    {start: "tmux -S \"$HOME/tmux\" -f /dev/null new", shows: `\[0\] 0:`, quit: "exit\r"},
		"python3": {start: "python3 -q", shows: `>>>`, quit: "print(6*7)\rexit()\r", main: true},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil {
				t.Skipf("no %s here", name)
			}
			c := rig.Shared(t, "h").Dial(t)
			h := c.OpenTerminal(s, plain, object{"env": object{"PS1": "shell> "}})
			h.Expect(`shell> `)
			h.Keys(p.start + "\r")
			shot := h.Screen(p.shows)
			if shot.Yes("alternate") == p.main {
				t.Errorf("alternate screen: %v", shot.Yes("alternate"))
			}
			h.Text = ""
			h.Keys(p.quit)
			if !p.main {
				h.Expect(`\x1b\[\?1049l`)
			}
			h.Expect(`shell> `) // what is typed before is the program's, which throws it away when it ends (top)
			h.Keys("echo back''again\r")
			h.Expect("backagain")
			if shot := h.Screen("backagain"); shot.Yes("alternate") {
				t.Error("the alternate screen is still there")
			}
			h.Ask("term.close", object{"kill_grace_s": 0.5})
		})
	}
}

// C11: a line longer than the kernel's line mode holds.
func TestLineTooLongForATerminalIsRefused(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	line := strings.Repeat("x", 5000)
	h := c.OpenTerminal(s, object{"command": "echo ready; wc -c"})
	h.Expect("ready")
	if f := c.Try("term.input", object{"term_id": h.Id, "data": line + "\n"}); f.Code() != "LIMIT_EXCEEDED" {
		t.Errorf("a long line to cat: %q %v", f.Code(), f)
	}
	h.Keys(strings.Repeat("short line\n", 1000) + "\x04")
	h.Expect("11000")
	h = c.OpenTerminal(s, plain)
	h.Expect(`\$ `)
	h.Keys("v=" + line + "; echo ${#v}\r")
	h.Expect(`5000\r\n`)
}

// E4: Ctrl-C is for the foreground job, and the shell stays.
func TestInterruptIsForTheForegroundJob(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	for _, shell := range rig.Shells {
		s := c.Session(object{"shell": shell})
		h := c.OpenTerminal(s)
		nap := rig.Sleeper()
		h.Keys(nap + "; echo st=$?\r")
		testkit.Eventually(t, "it sleeps", func() bool { return len(rig.Running(nap)) == 1 })
		h.Keys("\x03")
		h.Keys("echo code=$?\r")
		h.Expect(`code=130|st=130`)
		testkit.Eventually(t, "it is gone", func() bool { return len(rig.Running(nap)) == 0 })
		h.Keys(nap + "\r")
		testkit.Eventually(t, "it sleeps again", func() bool { return len(rig.Running(nap)) == 1 })
		h.Keys("\x1a") // Ctrl-Z
		h.Expect(`(?i)stopped|suspended|\[1\]`)
		h.Ask("term.close") // and what is stopped dies with it
		testkit.Eventually(t, "it is gone again", func() bool { return len(rig.Running(nap)) == 0 })
	}
}

// G10: HUP, TERM, KILL; a session's end takes its terminals along; term.close answers when nothing is left.
func TestTerminalsEndWithTheirSession(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	nap := rig.Sleeper()
	for _, p := range []struct {
		command, says string
		grace         int // far longer than whoever says something takes, on a busy machine
	}{
		{"trap 'echo hup; exit 1' HUP; trap '' TERM; echo ready; while :; do sleep 0.1; done", "hup", 15},
		{"trap '' HUP; trap 'echo term; exit 1' TERM; echo ready; while :; do sleep 0.1; done", "term", 15},
		{"trap '' HUP TERM INT; echo ready; while :; do sleep 0.1; done", "", 1},
		{"setsid " + nap + " & setsid sh -c 'trap \"\" HUP TERM; " + nap + "; :' & echo ready; " + nap, "", 1},
	} {
		h := c.OpenTerminal(s, object{"command": p.command})
		h.Expect("ready")
		start := time.Now()
		info := h.Ask("term.close", object{"kill_grace_s": p.grace})
		rig.Within(t, "close", start, 2*time.Second)
		if info.Str("state") != "exited" || !info.Has("exit_code") {
			t.Errorf("%s: %v", p.command, info)
		}
		if text, exit := h.End(); p.says != "" && !strings.Contains(text, p.says) || exit.Str("state") != "exited" {
			t.Errorf("%s: %q %v", p.command, text, exit)
		}
		if n := rig.Running(nap); len(n) != 0 {
			t.Errorf("%s: %v left", p.command, n)
		}
		h.Ask("term.close") // again is nothing
	}
	h := c.OpenTerminal(s, plain)
	h.Expect(`\$ `)
	h.Keys("setsid " + nap + " & " + nap + "\r")
	testkit.Eventually(t, "they sleep", func() bool { return len(rig.Running(nap)) == 2 })
	start := time.Now()
	c.Call("session.destroy", object{"session_id": s})
	rig.Within(t, "destroy", start, 2*time.Second)
	if len(rig.Running(nap)) != 0 {
		t.Error("something is left")
	}
	if _, exit := h.End(); exit.Str("state") != "exited" {
		t.Errorf("exit: %v", exit)
	}
	if f := c.Try("term.input", object{"term_id": h.Id, "data": "x"}); f.Code() != "STDIN_CLOSED" && f.Code() != "SESSION_TERMINATED" {
		t.Errorf("typing into an ended one: %s", f.Code())
	}
}

// H11: what runs in a terminal leads a process session of its own, with the terminal controlling it.
func TestTerminalLeadsItsOwnProcessSession(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	d := c.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24})
	f := rig.StatFields(d.Num("pid"))
	if pid := strconv.Itoa(d.Num("pid")); len(f) < 6 || f[3] != pid || f[4] == "0" {
		t.Errorf("pid %s: %q", pid, f)
	}
	h := &rig.Terminal{C: c, Id: d.Str("term_id"), Stream: d.Str("stream_id")}
	h.Keys("stty tostop; (echo from the back''ground >/dev/tty) & sleep 0.2; wait; echo all''right\r") // stopped by SIGTTOU: it, not us
	h.Expect("allright|Stopped")
	h.Ask("term.close")
	c.Call("system.ping", nil)
}

// H12: Ctrl-C stops a flood, however slow the client is: what is on its way to it is bounded by the ring and the sockets.
func TestInterruptStopsAFlood(t *testing.T) {
	g := rig.Shared(t, "h")
	slow := g.DialPaced(t, func(n int) { time.Sleep(time.Duration(n) * time.Microsecond / 4) }) // 4 MB/s
	s := slow.Session(object{"shell": "/bin/bash"})
	h := slow.OpenTerminal(s, plain)
	h.Expect(`\$ `)
	h.Keys("yes\r")
	h.Expect("y\r\ny\r\n")
	g.Dial(t).Call("term.input", object{"term_id": h.Id, "data": "\x03"})
	start := time.Now()
	h.Text = ""
	h.Expect(`\^C\r\n.*\$ `)
	rig.Within(t, "the prompt", start, 5*time.Second)
	if h.Next > 32<<20 {
		t.Errorf("%d bytes came before it", h.Next)
	}
	h.Ask("term.close")
}

// A terminal keeps its session from idling while somebody is there, or something runs in it beside a prompt.
func TestTerminalInUseKeepsItsSession(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t, "--idle-timeout", "2s")
	c := g.Dial(t)
	open := func(keys string) (session string, h *rig.Terminal) {
		testkit.Eventually(t, "a terminal is open in a session that is not idle yet", func() bool {
			session = c.Session(object{"shell": "/bin/bash"})
			f := c.Try("term.open", object{"session_id": session, "cols": 80, "rows": 24})
			if !f.OK && f.Code() != "SESSION_TERMINATED" {
				t.Fatalf("%+v", f.Error)
			}
			h = &rig.Terminal{C: c, Id: f.Data.Str("term_id"), Stream: f.Data.Str("stream_id")}
			return f.OK
		})
		h.Expect(`133;B`) // its prompt
		if keys != "" {
			h.Keys(keys)
		}
		return session, h
	}
	viewed, _ := open("")
	nap := rig.Sleeper()
	busy, hb := open(nap + "\r")
	testkit.Eventually(t, "it sleeps", func() bool { return len(rig.Running(nap)) == 1 })
	hb.Ask("term.detach")
	left, hl := open("")
	hl.Ask("term.detach")
	testkit.Eventually(t, "the one with nobody and nothing in it ends", func() bool {
		i := c.Info(left)
		return i.Str("state") == "TERMINATED" && i.Str("reason") == "idle"
	})
	time.Sleep(3 * time.Second) // longer than the others would have had
	for what, s := range map[string]string{"viewed": viewed, "busy": busy} {
		if i := c.Info(s); i.Str("state") != "IDLE" || i.Num("terminals") != 1 {
			t.Errorf("%s: %v", what, i)
		}
	}
}

// TestWhatRunsInTerminalsIsListed: session.info and session.list tell what runs in a session's terminals, to every client.
func TestWhatRunsInTerminalsIsListed(t *testing.T) {
	g := rig.Shared(t, "h")
	for _, shell := range []string{"bash", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("no %s here", shell)
			}
			c, other := g.Dial(t), g.Dial(t)
			s := c.Session(object{"shell": shell})
			runs := func() []object { return other.Info(s).Objs("in_terminals") }
			h := c.OpenTerminal(s)
			h.Expect(`\x1b\]133;A;aid=\w+`)
			if all := runs(); len(all) != 0 {
				t.Errorf("at the prompt: %v", all)
			}
			h.Keys("read x; true\r")
			testkit.Eventually(t, "the command is listed", func() bool { return len(runs()) == 1 })
			if r := runs()[0]; r.Str("command") != "read x; true" || r.Str("term_id") != h.Id || !r.Has("started_at") {
				t.Errorf("%v", r)
			}
			h.Keys("\r")
			testkit.Eventually(t, "it is listed no longer", func() bool { return len(runs()) == 0 })
			c.OpenTerminal(s, object{"command": "exec sleep 1000"})
			testkit.Eventually(t, "a terminal's own command is listed", func() bool { all := runs(); return len(all) == 1 && all[0].Str("command") == "exec sleep 1000" })
			c.OpenTerminal(s, object{"command": shell}).Expect(`\x1b\]133;A;aid=\w+`)
			testkit.Eventually(t, "a shell that waits for a command is not", func() bool { return len(runs()) == 1 })
		})
	}
}
