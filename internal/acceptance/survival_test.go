package acceptance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// docs/operations.md says in a table what survives what. TestEverythingSurvivesAsDocumented makes one of everything, does to the gateway what the
// column says, and looks what is left: each cell that it can prove must be what the table says, no less and no more.

const (
	sDisconnect = "client disconnect"
	sGateway    = "gateway `kill -9`"
	sUpgrade    = "upgrade (SIGHUP)"
	sStop       = "stop (SIGTERM)"
	sKeeper     = "keeper `kill -9`"
	sReboot     = "reboot" // told, not tried
)

// sTable is the table: row, column, cell.
func sTable(t *testing.T) map[string]map[string]string {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "<!-- survival: executed by TestEverythingSurvivesAsDocumented -->")
	part, _, end := strings.Cut(part, "<!-- end -->")
	if !ok || !end {
		t.Fatal("no table between its markers")
	}
	var columns []string
	table := map[string]map[string]string{}
	for line := range strings.Lines(part) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|-") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if columns == nil {
			columns = cells
			continue
		}
		if len(cells) != len(columns) || table[cells[0]] != nil {
			t.Fatalf("row %q", line)
		}
		row := map[string]string{}
		for i, cell := range cells[1:] {
			if !regexp.MustCompile(`^(yes|no|ended: [a-z_]+)$`).MatchString(cell) {
				t.Errorf("%s, %s: %q", cells[0], columns[i+1], cell)
			}
			row[columns[i+1]] = cell
		}
		table[cells[0]] = row
	}
	for _, column := range []string{sDisconnect, sGateway, sUpgrade, sStop, sKeeper, sReboot} {
		if len(columns) != 7 || table["cwd, variables, functions"][column] == "" {
			t.Fatalf("columns %q", columns)
		}
	}
	return table
}

// sWorld is one of everything.
type sWorld struct {
	g      *server
	other  *client // connected from the beginning: it watches, and its connection is the one looked at
	main   string  // session with a name, labels, a limit, state, and a background process
	sock   *client // the connection that made everything
	busy   string  // session with a running command and one behind it
	ended  string  // session that has ended, its command
	exec   map[string]string
	proc   string
	term   string  // 101 by 37, printing numbers
	link   string  // the token of a link to look at main
	tape   string  // its recording
	before int     // bytes of the process's log
	made   float64 // trl_exec_queue_seconds_count: commands begun
	died   float64 // trl_gateway_crashes_total
	nap    string
	limits bool
}

func (w *sWorld) path(name string) string { return filepath.Join(w.g.home, name) }

// counting prints prefix1, prefix2, … until the file is there, at some 20 lines a second.
func counting(prefix, file string) string {
	return fmt.Sprintf("i=0; while [ ! -e %s ]; do i=$((i+1)); echo %s$i; sleep 0.05; done; (exit 7)", file, prefix)
}

func sMake(t *testing.T, g *server) *sWorld {
	sKill(t, g) // so that the keeper has something to count
	w := &sWorld{g: g, sock: g.dial(t), other: g.dial(t), exec: map[string]string{}, nap: sleeper()}
	c := w.sock
	limits := object{}
	for _, name := range c.call("system.capabilities", nil)["session_limits"].([]any) {
		if name == "open_files" { // rlimits take ptrace of our own children
			limits, w.limits = object{"open_files": 77}, true
		}
	}
	w.main = c.session(object{"shell": "/bin/bash", "name": "kept", "labels": object{"who": "me"}, "limits": limits})
	w.busy = c.session(object{"shell": "/bin/sh"})
	timed := c.session()
	w.ended = c.session()
	w.exec["ended"] = c.run(w.ended, "echo last words; exit 3").str("exec_id")
	c.call("session.destroy", object{"session_id": w.ended, "force": true})
	expect(t, c.run(w.main, `cd /usr; V=kept; f() { echo "$V in $PWD, $(ulimit -n)"; }`), 0, "", "")
	expect(t, c.run(w.main, "echo x >>"+w.path("once")+"; echo once", object{"request_key": "k"}), 0, "once\n", "")
	w.proc = c.call("process.start", object{"session_id": w.main, "command": w.nap + " & " + counting("p", w.path("never"))}).str("process_id")
	term := c.call("term.open", object{"session_id": w.main, "cols": 101, "rows": 37, "on_slow": "skip", "command": counting("t", w.path("enough")), "record": true})
	w.term, w.tape = term.str("term_id"), term.str("recording_id")
	w.link = c.call("share.create", object{"session_id": w.main}).str("token")
	for name, q := range map[string]object{
		"timed": {"session_id": timed, "command": w.nap, "timeout_s": 3, "kill_grace_s": 1},
		"busy":  {"session_id": w.busy, "command": counting("o", w.path("go"))},
	} {
		w.exec[name] = c.call("exec.stream", with(q, object{"on_slow": "skip"})).str("exec_id")
	}
	w.exec["queued"] = c.stream(w.busy, "echo ran >>"+w.path("queued")+"; echo queued").str("exec_id")
	w.other.call("session.watch", object{"session_id": w.busy})
	eventually(t, "everything runs", func() bool {
		w.before = c.call("process.logs", object{"process_id": w.proc}).num("next_offset")
		return w.before > 0 && len(running(w.nap)) == 2 && c.call("recording.info", object{"recording_id": w.tape}).num("output_bytes") > 2
	})
	w.died = g.metric(t, "trl_gateway_crashes_total")
	w.made = g.metric(t, "trl_exec_queue_seconds_count")
	return w
}

// sKill kills the gateway and waits until another one serves.
func sKill(t *testing.T, g *server) {
	old := g.gatewayPid()
	if old == 0 || syscall.Kill(old, syscall.SIGKILL) != nil {
		t.Fatalf("no gateway to kill: %d", old)
	}
	eventually(t, "another gateway serves", func() bool {
		if pid := g.gatewayPid(); pid == 0 || pid == old {
			return false
		}
		a := again{g: g}
		f, err := a.ask(t.Context(), "system.ping", object{}, nil)
		if a.ws != nil {
			a.ws.CloseNow()
		}
		return err == nil && f.Error == nil
	})
}

// sDo does what the column says, and returns who is asked afterwards and which connection should have survived.
func (w *sWorld) sDo(t *testing.T, tier, column string) (after *server, conn *client) {
	g := w.g
	next := func() *server {
		<-g.exited
		return gateway(t, "--isolation", tier, "--state-dir", filepath.Join(g.dir, "state"))
	}
	switch column {
	case sDisconnect:
		w.sock.close()
		return g, w.sock
	case sGateway:
		sKill(t, g)
		return g, w.other
	case sUpgrade:
		if err := syscall.Kill(g.pid, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the upgrade is done", func() bool { return strings.Contains(g.log(), `"upgraded"`) })
		return g, w.other
	case sStop:
		if faults := g.stop(); len(faults) > 0 {
			t.Error(faults)
		}
		<-w.other.done
		return next(), w.other
	case sKeeper:
		if err := syscall.Kill(g.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return next(), w.other
	}
	t.Fatal(column)
	return nil, nil
}

// sNumbered tells whether text is prefix1, prefix2, … and nothing else, and how many.
func sNumbered(prefix, text string) (n int, ok bool) {
	for line := range strings.Lines(text) {
		if n++; line != prefix+strconv.Itoa(n)+"\n" {
			return n, false
		}
	}
	return n, true
}

func sYes(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// sLook tells what is left, by row. Where something is there in part, that is an error and no cell.
func (w *sWorld) sLook(t *testing.T, after *server, conn *client) map[string]string {
	got := map[string]string{}
	sessions := "no" // or how they ended
	if reason := w.other.reason(); reason != "" {
		sessions = "ended: " + reason
	}
	c := after.dial(t)
	lost := func(f *frame) bool {
		if f.OK {
			return false
		}
		if f.code() != "SESSION_LOST" {
			t.Errorf("refused with %+v", f.Error)
		}
		return true
	}
	got["WebSocket connections"] = sYes(conn.alive())
	begun := after.metric(t, "trl_exec_queue_seconds_count")
	got["counters in /metrics of the gateway"] = sYes(begun >= w.made)
	got["counters in /metrics of the keeper"] = sYes(after.metric(t, "trl_gateway_crashes_total") >= w.died)

	if f := c.try("exec.run", object{"session_id": w.main, "command": "f"}); lost(f) {
		got["cwd, variables, functions"] = sessions
	} else {
		got["cwd, variables, functions"] = "yes"
		if out := f.Data.stdout(); !strings.HasPrefix(out, "kept in /usr, ") || w.limits && out != "kept in /usr, 77\n" {
			t.Errorf("the function says %q", out)
		}
	}
	if f := c.try("session.info", object{"session_id": w.main}); lost(f) {
		got["names, labels, limits"] = "no"
		if f := c.try("session.info", object{"session": "kept"}); f.code() != "SESSION_NOT_FOUND" {
			t.Errorf("its name: %+v", f)
		}
	} else {
		got["names, labels, limits"] = "yes"
		d := f.Data
		if d.str("name") != "kept" || d.obj("labels").str("who") != "me" || w.limits && d.obj("limits").num("open_files") != 77 {
			t.Errorf("name, labels, limits: %v", d)
		}
	}
	if ws, err := after.open(t, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + w.link}}}); err != nil {
		got["share links"] = "no"
	} else {
		guest := again{g: after, ws: ws}
		f, err := guest.ask(t.Context(), "session.list", object{}, nil)
		all := f.Data.objs("sessions")
		got["share links"] = sYes(err == nil && len(all) == 1 && all[0].str("session_id") == w.main)
	}
	if f := c.try("session.info", object{"session_id": w.ended}); lost(f) {
		got["ended sessions, while retained"] = "no"
	} else {
		got["ended sessions, while retained"] = "yes"
		if x := c.call("exec.wait", object{"exec_id": w.exec["ended"]}); f.Data.str("reason") != "client" || x.stdout() != "last words\n" || x.num("exit_code") != 3 {
			t.Errorf("ended: %v, %v", f.Data, x)
		}
	}
	if f := c.try("exec.run", object{"session_id": w.main, "command": "echo x >>" + w.path("once") + "; echo once", "request_key": "k"}); lost(f) {
		got["results under a `request_key`"] = "no"
	} else {
		b, _ := os.ReadFile(w.path("once"))
		got["results under a `request_key`"] = sYes(string(b) == "x\n" && f.Data.stdout() == "once\n")
	}
	if f := c.try("process.info", object{"process_id": w.proc}); lost(f) {
		got["background processes"] = "no"
	} else {
		got["background processes"] = sYes(f.Data.str("state") == "running")
	}
	if f := c.try("process.logs", object{"process_id": w.proc}); lost(f) {
		got["their logs"] = "no"
	} else {
		eventually(t, "the log grows", func() bool {
			f = c.try("process.logs", object{"process_id": w.proc})
			return f.Data.num("next_offset") > w.before
		})
		var text string
		for _, chunk := range f.Data.objs("chunks") {
			text += chunk.text("data", "encoding")
		}
		n, whole := sNumbered("p", text)
		got["their logs"] = "yes"
		if !whole || n == 0 {
			t.Errorf("the log is %q", brief(text))
		}
	}
	made, going := "recordings, as far as they were made", "recordings that are being made"
	if f := c.try("recording.info", object{"recording_id": w.tape}); f.code() == "RECORDING_NOT_FOUND" {
		got[made], got[going] = "no", "no"
	} else {
		got[made] = sYes(strings.HasPrefix(download(t, after, w.tape)["o"], "t1\r\n"))
		got[going] = sYes(f.Data.str("state") == "recording")
	}
	if f := c.try("term.attach", object{"term_id": w.term, "offset": 0}); lost(f) {
		got["terminals, what runs in them, their size"], got["their output and screen"] = "no", "no"
	} else {
		got["terminals, what runs in them, their size"] = sYes(f.Data.str("state") == "running" && f.Data.num("cols") == 101 && f.Data.num("rows") == 37)
		shown := c.call("term.snapshot", object{"term_id": w.term})
		if err := os.WriteFile(w.path("enough"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		text, exit := c.output(f.Data.str("stream_id"), 0)
		n, whole := sNumbered("t", strings.ReplaceAll(text, "\r\n", "\n"))
		got["their output and screen"] = sYes(whole && n > 0 && exit.num("exit_code") == 7 && regexp.MustCompile(`\bt\d+\b`).MatchString(fmt.Sprint(shown["lines"])))
	}
	if err := os.WriteFile(w.path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := c.try("exec.wait", object{"exec_id": w.exec["busy"]}); lost(f) {
		got["a running command"], got["its output"] = "no", "no"
	} else {
		n, whole := sNumbered("o", f.Data.stdout())
		got["a running command"], got["its output"] = sYes(f.Data.num("exit_code") == 7), sYes(whole && n > 0)
	}
	if f := c.try("exec.wait", object{"exec_id": w.exec["queued"]}); lost(f) {
		got["queued commands"] = "no"
		if _, err := os.Stat(w.path("queued")); err == nil {
			t.Error("the queued command ran")
		}
	} else {
		b, _ := os.ReadFile(w.path("queued"))
		got["queued commands"] = sYes(f.Data.stdout() == "queued\n" && string(b) == "ran\n")
	}
	if f := c.try("exec.wait", object{"exec_id": w.exec["timed"]}); lost(f) {
		got["its timeout"] = "no"
	} else { // of its own time, not begun anew. What comes on top is a busy machine's; a second one would be 3 s
		d := f.Data.num("duration_ms")
		got["its timeout"] = sYes(f.Data.yes("timed_out") && d >= 3000 && d < 5500)
		if got["its timeout"] == "no" {
			t.Logf("timed: %v", f.Data)
		}
	}
	return got
}

// alive asks something; false when the connection has ended.
func (c *client) alive() bool {
	select {
	case <-c.done:
		return false
	case <-time.After(50 * time.Millisecond): // it may be about to
	}
	return c.err == nil && c.call("system.ping", nil).str("epoch") != ""
}

// reason is why a session that was watched ended, "" if nobody said.
func (c *client) reason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.came {
		if f.Event == "session.state" && f.Data.str("to") == "TERMINATED" {
			return f.Data.str("reason")
		}
	}
	return ""
}

func TestEverythingSurvivesAsDocumented(t *testing.T) {
	table := sTable(t)
	for _, tier := range gTiers {
		for _, column := range []string{sDisconnect, sGateway, sUpgrade, sStop, sKeeper} {
			t.Run(tier+", "+strings.ReplaceAll(column, "`", ""), func(t *testing.T) {
				t.Parallel()
				if column == sUpgrade && !sUpgrades() {
					t.Skip("not run: this trl has no `trl upgrade`")
				}
				sColumn(t, table, tier, column)
			})
		}
	}
}

func sColumn(t *testing.T, table map[string]map[string]string, tier, column string) {
	g, err := startGateway("--isolation", tier)
	if err != nil {
		t.Fatal(err)
	}
	if column == sKeeper { // its end is no good one
		t.Cleanup(func() { _ = g.stop() })
	} else {
		g.endWith(t)
	}
	w := sMake(t, g)
	t.Cleanup(func() {
		_ = os.WriteFile(w.path("never"), nil, 0o600)
		for _, pid := range running(w.nap) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	after, conn := w.sDo(t, tier, column)
	got := w.sLook(t, after, conn)
	for row, cells := range table {
		if got[row] == "" {
			t.Errorf("nobody looks at %q", row)
		} else if got[row] != cells[column] {
			t.Errorf("%s: %s is in the table, %s is true", row, cells[column], got[row])
		}
		delete(got, row)
	}
	for row := range got {
		t.Errorf("not in the table: %s", row)
	}
	if column == sStop || column == sKeeper {
		eventually(t, "nothing runs any more", func() bool { return len(running(w.nap)) == 0 })
	}
}

// sUpgrades tells whether this trl can be upgraded while it runs.
func sUpgrades() bool {
	out, err := exec.Command(binary, "--help").Output()
	return err == nil && regexp.MustCompile(`(?m)^\s+upgrade\b`).Match(out)
}

// installed is a server of a program file that can be replaced: put installs another one under its name, upgrade asks for it.
func installed(t *testing.T, flags ...string) (g *server, program string, put func(from string), upgrade func() (string, error)) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "trl")
	put = func(from string) { // as an installation does: another file of the same name
		t.Helper()
		// By another program: what we have open for writing a child of another test may inherit for a moment, and who
		// executes it then is told that it is busy.
		out, err := exec.Command("cp", from, program+".new").CombinedOutput()
		if err == nil {
			err = errors.Join(os.Chmod(program+".new", 0o700), os.Rename(program+".new", program))
		}
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	put(binary)
	g, err := launch(func(c *exec.Cmd) { c.Path = program }, flags...)
	if err != nil {
		t.Fatal(err)
	}
	g.endWith(t)
	return g, program, put, func() (string, error) {
		out, err := exec.Command(binary, "upgrade", "--state-dir", filepath.Join(g.dir, "state")).CombinedOutput()
		return string(out), err
	}
}

// An upgrade replaces the keeper, too: the same process, another program, and all that it kept.
func TestKeeperIsReplacedInPlace(t *testing.T) {
	for _, tier := range gTiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g, program, put, upgrade := installed(t, "--isolation", tier, "--retention", "1s")
			cgroup := g.cgroupDir(t)
			if out, err := upgrade(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			g.killGateway(t)
			c := g.redial(t)
			c.call("session.destroy", object{"session_id": c.session(), "force": true}) // all is loaded
			eventually(t, "warm, and what has ended forgotten", func() bool { return g.metric(t, "trl_warm_shells") == 4 && g.metric(t, "trl_sessions") == 0 })
			before := g.counts(t, cgroup)
			s, nap := c.session(), sleeper()
			c.run(s, "v=kept; "+nap+" & (setsid "+nap+" &)")
			p := c.call("process.start", object{"session_id": s, "command": "trap '' TERM; cat; exit 3", "stdin": "open"}).str("process_id")
			limited := c.limits(object{"open_files": 77})
			s2 := c.session(object{"limits": limited})
			x := c.stream(s2, "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo o$i; done; read line; echo $line; ulimit -n; exit 7", object{"interactive_stdin": true})
			gone := c.session()
			c.call("session.destroy", object{"session_id": gone})
			for range 3 {
				put(binary)
				if out, err := upgrade(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				installed, err := os.Stat(program)
				runs, e := os.Stat(fmt.Sprintf("/proc/%d/exe", g.pid))
				if err = errors.Join(err, e); err != nil || !os.SameFile(installed, runs) {
					t.Errorf("the keeper is not what is installed: %v", err)
				}
				g.killGateway(t) // and the new keeper keeps
				c = g.redial(t)
				expect(t, c.run(s, "echo $v; if [ $PPID != 0 ]; then { kill -TERM $PPID; kill -HUP $PPID; } 2>/dev/null; fi; :"), 0, "kept\n", "")
			}
			if len(running(nap)) != 2 {
				t.Errorf("%d of two jobs run", len(running(nap)))
			}
			c.call("process.input", object{"process_id": p, "data": "in", "eof": true})
			if r := c.call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60}); r.num("exit_code") != 3 {
				t.Errorf("%v", r)
			}
			c.call("exec.input", object{"exec_id": x.str("exec_id"), "data": "last\n"})
			r := c.call("exec.wait", object{"exec_id": x.str("exec_id"), "offset": 0, "timeout_s": 60})
			lines := counter{prefix: "o"}
			text, rest, _ := strings.Cut(r.stdout(), "last\n")
			if err := lines.take(text); err != nil || lines.next != 3000 || r.num("exit_code") != 7 {
				t.Errorf("%d lines, %v, %v", lines.next, err, brief(fmt.Sprint(r)))
			}
			if limited.has("open_files") && rest != "77\n" {
				t.Errorf("the limit is %q", rest)
			}
			for _, s := range []string{s, s2} {
				c.call("session.destroy", object{"session_id": s, "force": true})
			}
			if left := running(nap); len(left) > 0 {
				t.Errorf("left %v", left)
			}
			c.close()
			eventually(t, "what has ended is forgotten", func() bool { return g.metric(t, "trl_sessions") == 0 })
			if n := g.metric(t, "trl_signals_ignored_total"); n < 6 && len(flagsOfAll) == 0 && !signalsAreFiltered(g.pid) {
				t.Errorf("%v signals from inside ignored", n)
			}
			g.awaitBaseline(t, cgroup, before)
		})
	}
}

// What shells open in the keeper is there at every moment of an upgrade: a command that is not read has not run, and a report
// that is not written is not heard.
func TestKeeperIsNeverAway(t *testing.T) {
	if !sUpgrades() {
		t.Skip("not run: this trl has no `trl upgrade`")
	}
	g, _, put, upgrade := installed(t, "--warm", "0")
	c := g.dial(t)
	c.run(c.session(), ":")
	held := descriptor(t, g.pid, "/memfd:trl-ledger")
	var stop atomic.Bool
	var opener sync.WaitGroup
	opened, failed := 0, 0
	opener.Go(func() {
		for !stop.Load() {
			opened++
			fd, err := syscall.Open(held, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
			if err != nil {
				failed++
				continue
			}
			syscall.Close(fd)
		}
	})
	for range 5 {
		put(binary)
		if out, err := upgrade(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	stop.Store(true)
	opener.Wait()
	if failed > 0 {
		t.Errorf("%d of %d opens failed", failed, opened)
	}
}

// A gateway that dies as the keeper is about to be replaced is a gateway that died, and no more.
func TestGatewayMayDieBeforeTheKeeperIsReplaced(t *testing.T) {
	if !sUpgrades() {
		t.Skip("not run: this trl has no `trl upgrade`")
	}
	g := gateway(t, "--warm", "0")
	s := g.dial(t).session()
	for range 10 {
		old := g.serving(t)
		next, asked := 0, time.Time{}
		eventually(t, "the next one has it all", func() bool {
			if time.Since(asked) > time.Second { // again: one upgrade is refused while another is not over
				asked = time.Now()
				_ = syscall.Kill(g.pid, syscall.SIGHUP)
			}
			next = g.gatewayPid()
			return next != 0 && next != old
		})
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // while the keeper asks the program whether it would follow
		if err := syscall.Kill(next, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another serves", func() bool { pid := g.gatewayPid(); return pid != 0 && pid != next })
		expect(t, g.redial(t).run(s, "V=$((V+1)); [ $V -gt 0 ]"), 0, "", "")
	}
	expect(t, g.redial(t).run(s, "echo $V"), 0, "10\n", "")
}

// What ends at the very moment in which the keeper is replaced is known to have ended, and how.
func TestEndsDuringAnUpgradeAreReported(t *testing.T) {
	if !sUpgrades() {
		t.Skip("not run: this trl has no `trl upgrade`")
	}
	g, _, put, upgrade := installed(t, "--warm", "0")
	c := g.dial(t)
	s := c.session()
	var started []string
	for i := range 200 {
		command := fmt.Sprintf("sleep %.3f; exit %d", 0.5+2*rand.Float64(), i)
		started = append(started, c.call("process.start", object{"session_id": s, "command": command}).str("process_id"))
	}
	for range 8 {
		put(binary)
		if out, err := upgrade(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	c = g.redial(t)
	for i, p := range started {
		if code := c.call("process.wait", object{"process_id": p, "until": object{"exit": true}}).num("exit_code"); code != i {
			t.Errorf("process %d ended with %d", i, code)
		}
	}
}

// A program that does not come up leaves the old gateway serving, as it was.
func TestProgramThatDoesNotStartIsNotUpgradedTo(t *testing.T) {
	if !sUpgrades() {
		t.Skip("not run: this trl has no `trl upgrade`")
	}
	g, _, put, upgrade := installed(t)
	c, old := g.dial(t), g.gatewayPid()
	s := c.session()
	expect(t, c.run(s, "V=kept"), 0, "", "")
	for _, bad := range []string{"/bin/true", "/bin/false", "/dev/null"} { // /dev/null: an empty file, which cannot be executed
		put(bad)
		if out, err := upgrade(); err == nil || !strings.Contains(out, "upgrade refused") {
			t.Errorf("%s: %v %s", bad, err, out)
		}
		expect(t, c.run(s, "echo $V"), 0, "kept\n", "") // on the same connection
		if pid := g.gatewayPid(); pid != old {
			t.Errorf("%s: gateway %d, was %d", bad, pid, old)
		}
	}
	put(binary)
	if out, err := upgrade(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	eventually(t, "the old one has gone", func() bool { pid := g.gatewayPid(); return pid != 0 && pid != old })
	expect(t, g.dial(t).run(s, "echo $V"), 0, "kept\n", "")
}
