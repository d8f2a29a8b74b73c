package edge

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// N1: after a run that is written down, the series say what happened in it.
func TestMetricsCountAScriptedRun(t *testing.T) {
	g := rig.Gateway(t, "--max-sessions", "2", "--slow-client", "1s", "--ring-bytes", "65536")
	c := g.Dial(t)
	output := `"websocket"` // how output leaves the gateway that has the sessions
	if g.Gate != nil {
		output = `"link"`
	}
	want := func(n float64, name string, with ...string) {
		t.Helper()
		at := g
		if slices.Contains([]string{"trl_connections", "trl_connections_closed_total", "trl_rate_limited_total", "trl_slow_clients_dropped_total"}, name) {
			at = g.Front()
		}
		if got := at.Metric(t, name, with...); got != n {
			t.Errorf("%s %v is %v, want %v", name, with, got, n)
		}
	}
	bash, sh := c.Session(object{"shell": "/bin/bash"}), c.Session(object{"shell": "/bin/sh"})
	if f := c.Try("session.create", nil); f.Code() != "MAX_SESSIONS_REACHED" {
		t.Errorf("%+v", f)
	}
	want(2, "trl_sessions", `"IDLE"`)
	want(2, "trl_sessions_max")
	want(2, "trl_sessions_created_total", `"ok"`)
	want(1, "trl_sessions_created_total", `"MAX_SESSIONS_REACHED"`)

	restored, stubborn := 0, 0 // shells, and commands that had to be killed
	for _, s := range []string{bash, sh} {
		c.Run(s, "true")
		c.Run(s, "echo")
		c.Run(s, "exit 4")                                        // takes the shell with it
		c.Run(s, "false")                                         // failed
		c.Run(s, "sh -c 'kill -9 $$'")                            // signaled, or failed with 137: what the shell tells
		c.Run(s, rig.Sleeper(), object{"timeout_s": 0.1})         // timeout
		c.Run(s, rig.Sleeper(), object{"no_output_timeout_s": 1}) // no_output
		begun, there := rig.UniqueFile(g, "begun")
		for timeout := 0.1; !there() && timeout < 60; timeout *= 5 { // a longer one if the time was over before there was somebody to be killed
			r := c.Run(s, "trap '' TERM; sh -c ': >"+begun+"; exec "+rig.Sleeper()+"'", object{"timeout_s": timeout, "kill_grace_s": 0.1})
			if stubborn++; r.Yes("shell_restored") { // of a slow machine
				restored++
			}
		}
		if f := c.Try("exec.run", object{"session_id": s, "command": "echo", "working_dir": "/nowhere"}); f.OK { // error
			t.Errorf("%+v", f)
		}
		c.Call("session.reset", object{"session_id": s}) // the trap goes
	}
	for outcome, n := range map[string]float64{"ok": 4, "shell_died": 2, "timeout": float64(2 + stubborn), "no_output": 2, "error": 2} {
		want(n, "trl_execs_total", `"`+outcome+`"`)
	}
	if n := g.Metric(t, "trl_execs_total", `"failed"`) + g.Metric(t, "trl_execs_total", `"signaled"`); n != 4 {
		t.Errorf("%v failed or signaled, want 4", n)
	}
	if n := g.Metric(t, "trl_kill_escalations_total"); n < 2 || n > float64(stubborn) {
		t.Errorf("%v escalations, want 2 to %d", n, stubborn)
	}
	want(0, "trl_kill_failed_total")
	want(float64(2+restored), "trl_shell_restores_total")

	nap := rig.Sleeper()
	running := c.Begin("exec.run", object{"session_id": bash, "command": nap})
	waiting := []int{c.Begin("exec.run", object{"session_id": bash, "command": "echo"}), c.Begin("exec.run", object{"session_id": bash, "command": "echo"})}
	p := c.Call("process.start", object{"session_id": sh, "command": nap}).Str("process_id")
	testkit.Eventually(t, "one runs, two wait", func() bool {
		return g.Metric(t, "trl_execs_running") == 1 && g.Metric(t, "trl_exec_queue_length") == 2 && g.Metric(t, "trl_processes") == 1
	})
	want(1, "trl_sessions", `"RUNNING"`)
	if s := c.Call("system.stats", nil); s.Num("running") != 1 || s.Num("queued") != 2 || s.Num("processes") != 1 || s.Num("active_sessions") != 2 {
		t.Errorf("%v", s)
	}
	c.Call("exec.cancel", object{"session_id": bash})
	for _, id := range append(waiting, running) {
		c.Answer(id)
	}
	c.Call("process.kill", object{"process_id": p})
	want(1, "trl_execs_total", `"cancelled"`)
	want(6, "trl_execs_total", `"ok"`)
	want(0, "trl_exec_queue_length")
	want(0, "trl_execs_running")
	want(0, "trl_processes")

	// Output: what was sent, what the ring had lost, who was too slow.
	before := g.Metric(t, "trl_bytes_out_total", output)
	c.Output(c.Stream(bash, "head -c 12345 /dev/zero | tr '\\0' x").Str("stream_id"), 0)
	want(before+12345, "trl_bytes_out_total", output)
	r := c.Run(bash, "head -c 300000 /dev/zero", object{"max_output_bytes": 1024})
	gaps, bytes := g.Metric(t, "trl_stream_gaps_total"), g.Metric(t, "trl_stream_gap_bytes_total")
	c.Call("exec.attach", object{"exec_id": r.Str("exec_id"), "offset": 0})
	gap := c.Event("stream.gap")
	c.Event("exec.exit")
	if gap.Num("to") <= gap.Num("from") {
		t.Errorf("%v", gap)
	}
	want(gaps+1, "trl_stream_gaps_total")
	want(bytes+float64(gap.Num("to")-gap.Num("from")), "trl_stream_gap_bytes_total")
	want(0, "trl_slow_clients_dropped_total")
	mute := g.DialRaw(t, "")
	_ = mute.Frame(0x81, []byte(`{"id":1,"method":"exec.stream","params":{"session_id":"`+sh+`","command":"yes"}}`))
	testkit.Eventually(t, "it is dropped", func() bool { return g.Front().Metric(t, "trl_slow_clients_dropped_total") == 1 })
	testkit.Eventually(t, "it is gone", func() bool { return g.Front().Metric(t, "trl_connections", `"websocket"`) == 1 })
	want(1, "trl_connections_closed_total", `"slow"`)

	// Requests beyond the 128 in flight.
	first := c.Stream(bash, nap).Str("exec_id")
	for range 134 {
		c.Begin("exec.wait", object{"exec_id": first})
	}
	for limited := 0; limited < 6; limited++ {
		c.Await("RATE_LIMITED", func(f *rig.Frame) bool { return f.Code() == "RATE_LIMITED" })
	}
	want(6, "trl_rate_limited_total")
	c2 := g.Dial(t)
	c2.Call("exec.cancel", object{"exec_id": first})

	c2.Call("session.destroy", object{"session_id": sh, "force": true})
	c2.Call("session.destroy", object{"session_id": bash})
	want(2, "trl_sessions_ended_total", `"client"`)
	want(0, "trl_sessions", `"IDLE"`)
	want(2, "trl_sessions", `"TERMINATED"`)
	if ended, timed := g.Metric(t, "trl_execs_total"), g.Metric(t, "trl_exec_duration_seconds_count"); ended != timed {
		t.Errorf("%v ended, %v timed", ended, timed)
	}
	if begun := c2.Call("system.stats", nil).Num("total_commands_run"); begun != int(g.Metric(t, "trl_execs_total")) {
		t.Errorf("%d begun, %v ended", begun, g.Metric(t, "trl_execs_total"))
	}
}

// logLines are the log's lines as objects.
func logLines(t testing.TB, g *rig.Server) (all []object) {
	t.Helper()
	for line := range strings.Lines(g.Log()) {
		o := object{}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		all = append(all, o)
	}
	return all
}

// N3: each way to hang or to break leaves one line with session, command, what it was and how long; what ends well, none.
func TestEachFailureLeavesOneLogLine(t *testing.T) {
	g := rig.Gateway(t)
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		outcomes := map[string]string{} // by exec id
		note := func(outcome string, r object) { outcomes[r.Str("exec_id")] = outcome }
		note("timeout", c.Run(s, "sleep 300.5; true", object{"timeout_s": 0.1}))                                // A4
		note("timeout", c.Run(s, "sleep 300.5 & wait", object{"timeout_s": 0.1}))                               //
		note("timeout", c.Run(s, "while :; do :; done", object{"timeout_s": 0.1}))                              // the shell itself
		note("timeout", c.Run(s, "(trap '' TERM; sleep 300.5)", object{"timeout_s": 0.1, "kill_grace_s": 0.1})) // E1
		note("no_output", c.Run(s, "echo a; sleep 300.5", object{"no_output_timeout_s": 0.2}))                  // E8
		note("timeout", c.Run(s, "mkfifo pipe."+sh[5:]+"; cat <pipe."+sh[5:], object{"timeout_s": 0.2}))        // C3
		note("shell_died", c.Run(s, "exit 7"))                                                                  // D5
		note("shell_died", c.Run(s, "kill -9 $$"))                                                              //
		for _, how := range []object{{"session_id": s}, {"session_id": s, "kill_grace_s": 0}} {                 // A7
			x := c.Stream(s, "sleep 300.5")
			c.Call("exec.cancel", how)
			_, exit := c.Output(x.Str("stream_id"), 0)
			note("cancelled", exit)
		}
		stuck := c.Stream(s, "trap '' TERM INT; while :; do :; done")
		c.Call("session.reset", object{"session_id": s}) // D13
		_, exit := c.Output(stuck.Str("stream_id"), 0)
		note("cancelled", exit)
		quiet := []string{c.Run(s, "true").Str("exec_id"), c.Run(s, "false").Str("exec_id")}
		process := c.Call("process.start", object{"session_id": s, "command": "sleep 300.5", "timeout_s": 0.1}).Str("process_id")
		rig.AwaitExit(c, process)
		c.Run(s, "true")
		if err := syscall.Kill(c.Info(s).Num("pid"), syscall.SIGKILL); err != nil { // an idle shell
			t.Fatal(err)
		}
		restored := func(o object) bool {
			return o.Str("session") == s && strings.Contains(o.Str("message"), "restored")
		}
		testkit.Eventually(t, "its restoring is told", func() bool { return slices.ContainsFunc(logLines(t, g), restored) })
		last := c.Stream(s, "sleep 300.5")
		c.Call("session.destroy", object{"session_id": s})
		_, exit = c.Output(last.Str("stream_id"), 0)
		note("cancelled", exit)
		var ends []object
		testkit.Eventually(t, "the end of the session is told", func() bool {
			ends = slices.DeleteFunc(logLines(t, g), func(o object) bool { return o.Str("session") != s || o.Str("reason") == "" })
			return len(ends) > 0
		})
		if len(ends) != 1 || ends[0].Str("reason") != "client" || !ends[0].Has("duration_ms") || !ends[0].Has("bytes") {
			t.Errorf("%v", ends)
		}
		told := map[string]int{}
		testkit.Eventually(t, "each is told", func() bool { // the log comes by another way than the answers
			clear(told)
			for _, o := range logLines(t, g) {
				told[o.Str("exec")]++
				told[o.Str("process")]++
			}
			for id := range outcomes {
				if told[id] == 0 {
					return false
				}
			}
			return told[process] > 0
		})
		for _, o := range logLines(t, g) {
			if want, ok := outcomes[o.Str("exec")]; ok && (o.Str("outcome") != want || o.Str("session") != s || o.Num("duration_ms") < 0) {
				t.Errorf("%v, want %s", o, want)
			}
			if o.Str("process") == process && (o.Str("outcome") != "timeout" || o.Str("session") != s || !o.Has("duration_ms")) {
				t.Errorf("%v", o)
			}
		}
		for id, outcome := range outcomes {
			if told[id] != 1 {
				t.Errorf("%d lines about %s, which was %s", told[id], id, outcome)
			}
		}
		if told[process] != 1 {
			t.Errorf("%d lines about the process", told[process])
		}
		for _, id := range quiet {
			if told[id] != 0 {
				t.Error("a line about a command that ended by itself")
			}
		}
	})
}

// N3, K16: what is said, given and written in a session, and the token, are in no log of any level and in no metric.
// web's TestSecretsStayOutOfLogs does this in process, with refusals.
func TestNoSecretIsInLogsOrMetrics(t *testing.T) {
	const secret = "hunter2-planted"
	token := secret + "-token-" + strings.Repeat("0123456789", 3)
	forms := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))[:18], base64.RawURLEncoding.EncodeToString([]byte(token))[:24]}
	for _, level := range []string{"debug", "info", "warn", "error"} {
		for _, format := range rig.Pick([]string{"json"}, []string{"json", "console"}) {
			g := rig.Gateway(t, append(tokenFlags(t, token+" ann admin"), "--log-level", level, "--log-format", format)...)
			c := dialToken(t, g, token)
			for _, sh := range rig.Shells {
				s := c.Session(object{"shell": sh, "env": object{"PASSWORD": secret, secret[:7]: secret}})
				command := "echo " + secret + " $PASSWORD; cat; echo " + secret + " >&2"
				if r := c.Run(s, command, object{"stdin": secret, "env": object{"MORE": secret}}); strings.Count(r.Stdout()+r.Stderr(), secret) != 4 {
					t.Fatalf("%v", r)
				}
				c.Run(s, command+"; sleep 300.5", object{"timeout_s": 0.1, "stdin": secret}) // the ends that leave a line
				c.Run(s, command+"; exit 3")
				c.Run(s, "kill -9 $$ # "+secret)
				c.Try("exec.run", object{"session_id": s, "command": secret, "working_dir": "/nowhere"})
				c.Try("exec.run", object{"session_id": s, "command": "echo", secret: secret})
				x := c.Stream(s, "cat; "+secret+"; sleep 300.5", object{"interactive_stdin": true})
				c.Call("exec.input", object{"exec_id": x.Str("exec_id"), "data": secret, "eof": true})
				p := c.Call("process.start", object{"session_id": s, "command": command + "; exit 4", "env": object{"P": secret}, "stdin": "open"}).Str("process_id")
				c.Call("process.input", object{"process_id": p, "data": secret, "eof": true})
				rig.AwaitExit(c, p)
				c.Call("process.wait", object{"process_id": p, "until": object{"output": secret}})
				c.Call("exec.cancel", object{"exec_id": x.Str("exec_id")})
				c.Call("session.destroy", object{"session_id": s, "force": true})
			}
			c.Try("session.create", object{"shell": "/" + secret})
			c.SendText(`{"id":"` + secret + `","method":"` + secret + `"}`)
			var metrics string
			for header, value := range map[string]string{"Authorization": "Bearer " + token, "Sec-WebSocket-Protocol": "trl.v1, trl.token." + base64.RawURLEncoding.EncodeToString([]byte(token))} {
				for _, path := range []string{"/metrics", "/v1/ws", "/" + secret, "/v1/ws?token=" + token} {
					q, err := http.NewRequest("GET", "http://"+g.Addr+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					q.Header.Set(header, value)
					resp, err := http.DefaultTransport.RoundTrip(q)
					if err != nil {
						t.Fatal(err)
					}
					b, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil {
						t.Fatal(err)
					}
					if resp.StatusCode == http.StatusOK && path == "/metrics" {
						metrics = string(b)
					}
				}
			}
			if ws, err := g.Open(t, nil); err == nil {
				ws.CloseNow()
				t.Error("it needs no token")
			}
			c.Close()
			for _, fault := range g.Stop() {
				t.Error(fault)
			}
			if !strings.Contains(metrics, "trl_execs_total") {
				t.Errorf("no metrics: %q", metrics)
			}
			for _, form := range forms {
				if strings.Contains(g.Log(), form) || strings.Contains(metrics, form) {
					t.Errorf("%s, %s: %q shows", level, format, form)
				}
			}
			if level == "debug" && !strings.Contains(g.Log(), "client connected") || level == "info" && !strings.Contains(g.Log(), "exec ended") {
				t.Errorf("%s: nothing was logged, so nothing is proven", level)
			}
			if files := filesWith(t, g.Dir, secret); len(files) > 0 {
				t.Errorf("on disk: %v", files)
			}
		}
	}
}

// TestPlantedSecretsAreNotKept: what is given to a program and not shown by it, and the token, are in nothing that is kept or told:
// logs, metrics, errors, the audit log, recordings and their headers; nor is the token in anything that a session can read of
// itself. What is shown is in the recordings, and who came in the audit log: there is something to be found in.
func TestPlantedSecretsAreNotKept(t *testing.T) {
	const secret, shown = "hunter2-planted", "the-same"
	token := secret + "-token-" + strings.Repeat("0123456789", 3)
	kept := t.TempDir()
	g := rig.Gateway(t, append(tokenFlags(t, token+" ann admin"), "--log-level", "debug", "--record", "all",
		"--record-dir", filepath.Join(kept, "tapes"), "--audit-log", filepath.Join(kept, "audit"))...)
	c := dialToken(t, g, token)
	var told strings.Builder
	for _, sh := range rig.Shells {
		s := c.Session(object{"shell": sh, "env": object{"PASSWORD": secret}})
		r := c.Run(s, `read -r x && [ "$x$MORE" = "$PASSWORD$PASSWORD" ] && echo `+shown, object{"stdin": secret + "\n", "env": object{"MORE": secret}})
		rig.Expect(t, r, 0, shown+"\n", "")
		term := c.OpenTerminal(s, object{"env": object{"MORE": secret},
			"command": `stty -echo; echo ready; read -r x; [ "$x$MORE" = "$PASSWORD$PASSWORD" ] && echo ` + shown})
		term.Expect("ready")
		term.Keys(secret + "\r")
		term.Expect(shown)
		for _, params := range []object{
			{"session_id": s, "command": ":", "env": object{"": secret}},
			{"session_id": s, "command": ":", "env": object{"LD_PRELOAD": secret}},
			{"session_id": s, "command": ":", "working_dir": 7, "stdin": secret},
			{"session_id": s, "command": ":", "working_dir": "/" + shown, "stdin": secret, "env": object{"MORE": secret}},
		} {
			f := c.Try("exec.run", params)
			fmt.Fprintln(&told, f.Error, f.Data)
		}
		// What it sees of itself has its own secret. A background process's output is not recorded.
		p := c.Call("process.start", object{"session_id": s, "command": `for pid in $$ $PPID; do tr '\0' '\n' </proc/$pid/environ; tr '\0' '\n' </proc/$pid/cmdline; done; ls -l /proc/$$/fd; set`}).Str("process_id")
		rig.AwaitExit(c, p)
		seen, _, _ := rig.ProcessLogs(c, p, 0)
		if strings.Contains(seen, token[len(secret):]) || !strings.Contains(seen, secret) {
			t.Errorf("%s: the session sees the token, or not even what is its own: %s", sh, rig.Brief(seen))
		}
		c.Call("session.destroy", object{"session_id": s, "force": true})
	}
	metrics := g.Get(t, "/metrics", "Authorization", "Bearer "+token)
	c.Close()
	for _, fault := range g.Stop() {
		t.Error(fault)
	}
	for where, text := range map[string]string{"log": g.Log(), "metrics": metrics, "errors": told.String()} {
		if len(text) < 100 || strings.Contains(text, secret) {
			t.Errorf("%s: it shows, or there is nothing to show it: %s", where, rig.Brief(text))
		}
	}
	if tapes := filesWith(t, filepath.Join(kept, "tapes"), shown); len(tapes) < 2*len(rig.Shells) {
		t.Errorf("only %d recordings: %v", len(tapes), tapes)
	}
	if logs := filesWith(t, kept, `"ann"`); len(logs) == 0 {
		t.Error("nothing is in the audit log")
	}
	if files := append(filesWith(t, kept, secret), filesWith(t, g.Dir, secret)...); len(files) > 0 {
		t.Errorf("on disk: %v", files)
	}
}

// filesWith lists the files below dir that contain text.
func filesWith(t testing.TB, dir, text string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), text) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return all
}

// TestRecordingIsWithoutArguments: what is downloaded, and may be shown to others, has no command in its header; the owner's list has.
func TestRecordingIsWithoutArguments(t *testing.T) {
	const secret = "hunter2-argument"
	g := rig.Gateway(t, "--record", "execs")
	c := g.Dial(t)
	s := c.Session()
	rig.Expect(t, c.Run(s, ": --password "+secret+"; echo shown"), 0, "shown\n", "")
	var list []object
	testkit.Eventually(t, "its recording has ended", func() bool {
		list = c.Call("recording.list", object{}).Objs("recordings")
		return len(list) == 1 && list[0].Str("state") == "ended"
	})
	rec := list[0]
	if !strings.Contains(rec.Str("command"), secret) {
		t.Errorf("the owner is not told which: %v", rec)
	}
	for _, format := range []string{"v2", "v3"} {
		if got := g.Get(t, "/v1/recordings/"+rec.Str("recording_id")+"?format="+format); !strings.Contains(got, "shown") || strings.Contains(got, secret) {
			t.Errorf("%s: %s", format, got)
		}
	}
}
