package survival

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"

	"github.com/coder/websocket"
)

// world is one of everything.
type world struct {
	g      *rig.Server
	other  *rig.Client // connected from the beginning: it watches, and its connection is the one looked at
	main   string      // Session with a name, labels, a limit, state, and a background process
	sock   *rig.Client // the connection that made everything
	busy   string      // Session with a running command and one behind it
	ended  string      // Session that has ended, its command
	exec   map[string]string
	proc   string
	term   string        // 101 by 37, printing numbers
	link   string        // the token of a link to look at main
	tape   string        // its recording
	before int           // bytes of the process's log
	made   float64       // trl_exec_queue_seconds_count: commands begun
	died   float64       // trl_gateway_crashes_total
	nap    string        // of the process
	short  string        // of the command with a timeout
	begun  time.Time     // when that command ran
	acted  time.Duration // how long after that doColumn did what the column says
	limits bool
}

func (w *world) path(name string) string { return filepath.Join(w.g.Home, name) }

// doColumn does what the column says, and returns who is asked afterwards and which connection should have survived.
func (w *world) doColumn(t *testing.T, tier, column string) (after *rig.Server, conn *rig.Client) {
	g := w.g
	next := func() *rig.Server {
		<-g.Exited
		return rig.Gateway(t, "--isolation", tier, "--state-dir", filepath.Join(g.Dir, "state"))
	}
	if column != stops && column != killsKeeper { // a timeout that begins anew then ends that much later, also on a busy machine
		time.Sleep(time.Until(w.begun.Add(5 * time.Second)))
	}
	w.acted = time.Since(w.begun)
	switch column {
	case disconnects:
		w.sock.Close()
		return g, w.sock
	case killsGateway:
		rig.ReplaceGateway(t, g)
		return g, w.other
	case upgrades:
		if err := syscall.Kill(g.Pid, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the upgrade is done", func() bool { return strings.Contains(g.Log(), `"upgraded"`) })
		return g, w.other
	case stops:
		if faults := g.Stop(); len(faults) > 0 {
			t.Error(faults)
		}
		<-w.other.Done
		return next(), w.other
	case killsKeeper:
		if err := syscall.Kill(g.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return next(), w.other
	}
	t.Fatal(column)
	return nil, nil
}

// look tells what is left, by row. Where something is there in part, that is an error and no cell.
func (w *world) look(t *testing.T, after *rig.Server, conn *rig.Client) map[string]string {
	got := map[string]string{}
	sessions := "no" // or how they ended
	if reason := reason(w.other); reason != "" {
		sessions = "ended: " + reason
	}
	c := after.Dial(t)
	lost := func(f *rig.Frame) bool {
		if f.OK {
			return false
		}
		if f.Code() != "SESSION_LOST" {
			t.Errorf("refused with %+v", f.Error)
		}
		return true
	}
	got["WebSocket connections"] = survives(alive(conn))
	begun := after.Metric(t, "trl_exec_queue_seconds_count")
	got["counters in /metrics of the gateway"] = survives(begun >= w.made)
	got["counters in /metrics of the keeper"] = survives(after.Metric(t, "trl_gateway_crashes_total") >= w.died)

	if f := c.Try("exec.run", object{"session_id": w.main, "command": "f"}); lost(f) {
		got["cwd, variables, functions"] = sessions
	} else {
		got["cwd, variables, functions"] = "yes"
		if out := f.Data.Stdout(); !strings.HasPrefix(out, "kept in /usr, ") || w.limits && out != "kept in /usr, 77\n" {
			t.Errorf("the function says %q", out)
		}
	}
	if f := c.Try("session.info", object{"session_id": w.main}); lost(f) {
		got["names, labels, limits"] = "no"
		if f := c.Try("session.info", object{"session": "kept"}); f.Code() != "SESSION_NOT_FOUND" {
			t.Errorf("its name: %+v", f)
		}
	} else {
		got["names, labels, limits"] = "yes"
		d := f.Data
		if d.Str("name") != "kept" || d.Obj("labels").Str("who") != "me" || w.limits && d.Obj("limits").Num("open_files") != 77 {
			t.Errorf("name, labels, limits: %v", d)
		}
	}
	if ws, err := after.Open(t, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + w.link}}}); err != nil {
		got["share links"] = "no"
	} else {
		guest := rig.Again{G: after, Ws: ws}
		f, err := guest.Ask(t.Context(), "session.list", object{}, nil)
		all := f.Data.Objs("sessions")
		got["share links"] = survives(err == nil && len(all) == 1 && all[0].Str("session_id") == w.main)
	}
	if f := c.Try("session.info", object{"session_id": w.ended}); lost(f) {
		got["ended sessions, while retained"] = "no"
	} else {
		got["ended sessions, while retained"] = "yes"
		if x := c.Call("exec.wait", object{"exec_id": w.exec["ended"]}); f.Data.Str("reason") != "client" || x.Stdout() != "last words\n" || x.Num("exit_code") != 3 {
			t.Errorf("ended: %v, %v", f.Data, x)
		}
	}
	if f := c.Try("exec.run", object{"session_id": w.main, "command": "echo x >>" + w.path("once") + "; echo once", "request_key": "k"}); lost(f) {
		got["results under a `request_key`"] = "no"
	} else {
		b, _ := os.ReadFile(w.path("once"))
		got["results under a `request_key`"] = survives(string(b) == "x\n" && f.Data.Stdout() == "once\n")
	}
	if f := c.Try("process.info", object{"process_id": w.proc}); lost(f) {
		got["background processes"] = "no"
	} else {
		got["background processes"] = survives(f.Data.Str("state") == "running")
	}
	if f := c.Try("process.logs", object{"process_id": w.proc}); lost(f) {
		got["their logs"] = "no"
	} else {
		testkit.Eventually(t, "the log grows", func() bool {
			f = c.Try("process.logs", object{"process_id": w.proc})
			return f.Data.Num("next_offset") > w.before
		})
		var text string
		for _, chunk := range f.Data.Objs("chunks") {
			text += chunk.Text("data", "encoding")
		}
		n, whole := numbered("p", text)
		got["their logs"] = "yes"
		if !whole || n == 0 {
			t.Errorf("the log is %q", rig.Brief(text))
		}
	}
	made, going := "recordings, as far as they were made", "recordings that are being made"
	if f := c.Try("recording.info", object{"recording_id": w.tape}); f.Code() == "RECORDING_NOT_FOUND" {
		got[made], got[going] = "no", "no"
	} else {
		got[made] = survives(strings.HasPrefix(download(t, after, w.tape)["o"], "t1\r\n"))
		got[going] = survives(f.Data.Str("state") == "recording")
	}
	if f := c.Try("term.attach", object{"term_id": w.term, "offset": 0}); lost(f) {
		got["terminals, what runs in them, their size"], got["their output and screen"] = "no", "no"
	} else {
		got["terminals, what runs in them, their size"] = survives(f.Data.Str("state") == "running" && f.Data.Num("cols") == 101 && f.Data.Num("rows") == 37)
		shown := c.Call("term.snapshot", object{"term_id": w.term})
		if err := os.WriteFile(w.path("enough"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		text, exit := c.Output(f.Data.Str("stream_id"), 0)
		n, whole := numbered("t", strings.ReplaceAll(text, "\r\n", "\n"))
		got["their output and screen"] = survives(whole && n > 0 && exit.Num("exit_code") == 7 && regexp.MustCompile(`\bt\d+\b`).MatchString(fmt.Sprint(shown["lines"])))
	}
	if err := os.WriteFile(w.path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := c.Try("exec.wait", object{"exec_id": w.exec["busy"]}); lost(f) {
		got["a running command"], got["its output"] = "no", "no"
	} else {
		n, whole := numbered("o", f.Data.Stdout())
		got["a running command"], got["its output"] = survives(f.Data.Num("exit_code") == 7), survives(whole && n > 0)
	}
	if f := c.Try("exec.wait", object{"exec_id": w.exec["queued"]}); lost(f) {
		got["queued commands"] = "no"
		if _, err := os.Stat(w.path("queued")); err == nil {
			t.Error("the queued command ran")
		}
	} else {
		b, _ := os.ReadFile(w.path("queued"))
		got["queued commands"] = survives(f.Data.Stdout() == "queued\n" && string(b) == "ran\n")
	}
	if f := c.Try("exec.wait", object{"exec_id": w.exec["timed"]}); lost(f) {
		got["its timeout"] = "no"
	} else { // of its own time, not begun anew. What comes on top is a busy machine's
		d := f.Data.Num("duration_ms")
		got["its timeout"] = survives(f.Data.Yes("timed_out") && d >= 8000 && d < 8000+int(w.acted.Milliseconds()))
		if got["its timeout"] == "no" {
			t.Logf("timed, and %v later %s: %v", w.acted, "the column", f.Data)
		}
	}
	return got
}

func makeWorld(t *testing.T, g *rig.Server) *world {
	rig.ReplaceGateway(t, g) // so that the keeper has something to count
	w := &world{g: g, sock: g.Dial(t), other: g.Dial(t), exec: map[string]string{}, nap: rig.Sleeper(), short: rig.Sleeper()}
	c := w.sock
	limits := object{}
	for _, name := range c.Call("system.capabilities", nil)["session_limits"].([]any) {
		if name == "open_files" { // rlimits take ptrace of our own children
			limits, w.limits = object{"open_files": 77}, true
		}
	}
	w.main = c.Session(object{"shell": "/bin/bash", "name": "kept", "labels": object{"who": "me"}, "limits": limits})
	w.busy = c.Session(object{"shell": "/bin/sh"})
	timed := c.Session()
	w.ended = c.Session()
	w.exec["ended"] = c.Run(w.ended, "echo last words; exit 3").Str("exec_id")
	c.Call("session.destroy", object{"session_id": w.ended, "force": true})
	rig.Expect(t, c.Run(w.main, `cd /usr; V=kept; f() { echo "$V in $PWD, $(ulimit -n)"; }`), 0, "", "")
	rig.Expect(t, c.Run(w.main, "echo x >>"+w.path("once")+"; echo once", object{"request_key": "k"}), 0, "once\n", "")
	w.proc = c.Call("process.start", object{"session_id": w.main, "command": w.nap + " & " + counting("p", w.path("never"))}).Str("process_id")
	term := c.Call("term.open", object{"session_id": w.main, "cols": 101, "rows": 37, "on_slow": "skip", "command": counting("t", w.path("enough")), "record": true})
	w.term, w.tape = term.Str("term_id"), term.Str("recording_id")
	w.link = c.Call("share.create", object{"session_id": w.main}).Str("token")
	w.exec["busy"] = c.Stream(w.busy, counting("o", w.path("go")), object{"on_slow": "skip"}).Str("exec_id")
	w.exec["queued"] = c.Stream(w.busy, "echo ran >>"+w.path("queued")+"; echo queued").Str("exec_id")
	w.other.Call("session.watch", object{"session_id": w.busy})
	testkit.Eventually(t, "everything runs", func() bool {
		w.before = c.Call("process.logs", object{"process_id": w.proc}).Num("next_offset")
		return w.before > 0 && len(rig.Running(w.nap)) == 1 && c.Call("recording.info", object{"recording_id": w.tape}).Num("output_bytes") > 2
	})
	w.exec["timed"] = c.Stream(timed, ">"+w.path("timed")+"; "+w.short, object{"timeout_s": 8, "kill_grace_s": 1, "on_slow": "skip"}).Str("exec_id")
	testkit.Eventually(t, "the command with a timeout runs", func() bool { _, err := os.Stat(w.path("timed")); return err == nil })
	w.begun = time.Now()
	w.died = g.Metric(t, "trl_gateway_crashes_total")
	w.made = g.Metric(t, "trl_exec_queue_seconds_count")
	return w
}

// numbered tells whether text is prefix1, prefix2, … and nothing else, and how many.
func numbered(prefix, text string) (n int, ok bool) {
	for line := range strings.Lines(text) {
		if n++; line != prefix+strconv.Itoa(n)+"\n" {
			return n, false
		}
	}
	return n, true
}

func survives(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// counting prints prefix1, prefix2, … until the file is there, at some 20 lines a second.
func counting(prefix, file string) string {
	return fmt.Sprintf("i=0; while [ ! -e %s ]; do i=$((i+1)); echo %s$i; sleep 0.05; done; (exit 7)", file, prefix)
}
