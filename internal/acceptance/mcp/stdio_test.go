package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"trl/client"
	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/protocol"
)

// sessions lists the live sessions of a gateway by name.
func sessions(t testing.TB, g *rig.Server) (names []string) {
	t.Helper()
	c, err := client.Connect(t.Context(), client.Options{URL: "http://" + g.Addr})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all protocol.Sessions
	if err := c.Call(t.Context(), "session.list", nil, &all); err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Sessions {
		names = append(names, s.Name)
	}
	return names
}

func noSessions(t testing.TB, g *rig.Server) {
	t.Helper()
	testkit.Eventually(t, "all sessions end", func() bool { return len(sessions(t, g)) == 0 })
}

// handshake are the first messages of a host, by hand, and a call of run.
func handshake(command string) string {
	quoted, _ := json.Marshal(command)
	return `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"by hand","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run","arguments":{"command":` + string(quoted) + `}}}
`
}

// TestOwnSessionEndsWithTheProgram, whatever ends it; with everything that runs in it.
func TestOwnSessionEndsWithTheProgram(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	for name, end := range map[string]func(cmd *exec.Cmd, stdin io.Closer){
		"EOF":  func(_ *exec.Cmd, stdin io.Closer) { stdin.Close() },
		"TERM": func(cmd *exec.Cmd, _ io.Closer) { cmd.Process.Signal(syscall.SIGTERM) },
		"INT":  func(cmd *exec.Cmd, _ io.Closer) { cmd.Process.Signal(syscall.SIGINT) },
		"HUP":  func(cmd *exec.Cmd, _ io.Closer) { cmd.Process.Signal(syscall.SIGHUP) },
	} {
		cmd := program(g)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var out testkit.LogBook
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.WriteString(stdin, handshake("sleep 1000 & echo begun"))
		testkit.Eventually(t, "the command has run", func() bool { return strings.Contains(out.String(), "begun") })
		if s := sessions(t, g); len(s) != 1 || !strings.HasPrefix(s[0], "mcp-") {
			t.Errorf("%s: sessions %v", name, s)
		}
		end(cmd, stdin)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s := sessions(t, g); len(s) != 0 { // it has ended them before its own end
			t.Errorf("%s: sessions %v are left", name, s)
		}
		stdin.Close()
	}
	noSessions(t, g)
	for line := range strings.Lines(g.Log()) {
		if strings.Contains(line, `"kill_failed":true`) {
			t.Error(line)
		}
	}
}

// TestLastAnswersAreWritten: what a pipe has asked before its end is answered before the program ends. Work that takes longer than its call goes on in a
// session that stays.
func TestLastAnswersAreWritten(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	ask := func(text string) map[float64]string {
		cmd := program(g, "--session", "work")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		answers := map[float64]string{}
		for line := range strings.Lines(string(out)) {
			var a struct {
				ID     float64
				Result struct{ Content []struct{ Text string } }
			}
			if err := json.Unmarshal([]byte(line), &a); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			answers[a.ID] = ""
			if len(a.Result.Content) > 0 {
				answers[a.ID] = a.Result.Content[0].Text
			}
		}
		return answers
	}
	answers := ask(handshake("sleep 1; echo late") + `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"list","arguments":{}}}`) // without a line end
	if len(answers) != 3 {
		t.Errorf("%v", answers)
	}
	matches(t, answers[2], `exit 0 .*\nlate`)
	matches(t, answers[3], `(?:1 session:\n|no sessions).*`) // calls run side by side
	broken := program(g)
	broken.Stdin = strings.NewReader(handshake("sleep 1; echo late") + "no JSON\n")
	if out, err := broken.Output(); err == nil || !strings.Contains(string(out), "late") {
		t.Errorf("a line that is no JSON: %v\n%s", err, out)
	}
	first, _, _ := strings.Cut(handshake(""), `{"jsonrpc":"2.0","id":2`)
	answers = ask(first + `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run","arguments":{"command":"sleep 1000","yield_s":1}}}` + "\n")
	matches(t, answers[2], `still running .*`)
	text := onStdio(t, g, "--session", "work").must("list", object{"session": "work"})
	if !regexp.MustCompile(`running for .*sleep 1000`).MatchString(text) {
		t.Errorf("it does not run: %s", text)
	}
}

// TestSessionEndsWhenTheHostIsGone, even if something still holds our stdin: trl mcp looks who its parent is.
func TestSessionEndsWhenTheHostIsGone(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	out := filepath.Join(g.Dir, "answers")
	host := exec.Command("/bin/sh", "-c", `"$0" mcp --url "$1" <&3 >"$2" 3<&- & wait`, rig.Binary, "http://"+g.Addr, out)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() // after the program's end: it gets no EOF before
	host.ExtraFiles = []*os.File{r}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	io.WriteString(w, handshake("echo begun"))
	testkit.Eventually(t, "the command has run", func() bool { b, _ := os.ReadFile(out); return strings.Contains(string(b), "begun") })
	host.Process.Kill()
	host.Wait()
	noSessions(t, g)
}

// TestKilledHostsLeaveNoSession: many hosts are killed at once, in the middle of a call or between two.
func TestKilledHostsLeaveNoSession(t *testing.T) {
	t.Parallel()
	n := rig.Pick(20, 100)
	g := rig.Gateway(t, "--max-sessions", "200")
	var pids, answers []string
	var hosts []*exec.Cmd
	for i := range n {
		in, pid, out := filepath.Join(g.Dir, fmt.Sprint("in", i)), filepath.Join(g.Dir, fmt.Sprint("pid", i)), filepath.Join(g.Dir, fmt.Sprint("out", i))
		command := "echo begun"
		if i%2 == 1 {
			command = "echo begun; sleep 1000"
		}
		if err := os.WriteFile(in, []byte(handshake(command)), 0o600); err != nil {
			t.Fatal(err)
		}
		// The host is the writer of the pipe; it holds the only end of it.
		host := exec.Command("/bin/sh", "-c", `sh -c 'echo $$ >"$2"; cat "$1"; exec sleep 1000' sh "$2" "$3" | "$0" mcp --url "$1" >"$4"`, rig.Binary, "http://"+g.Addr, in, pid, out)
		host.Stderr = os.Stderr
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		hosts, pids, answers = append(hosts, host), append(pids, pid), append(answers, out)
	}
	testkit.Eventually(t, "all have their session", func() bool { return len(sessions(t, g)) == n })
	for i, pid := range pids {
		if i%2 == 0 {
			testkit.Eventually(t, "its command has ended", func() bool { b, _ := os.ReadFile(answers[i]); return strings.Contains(string(b), "begun") })
		}
		b, err := os.ReadFile(pid)
		if err != nil {
			t.Fatal(err)
		}
		p, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	for _, host := range hosts {
		host.Wait()
	}
	noSessions(t, g)
}

// TestSessionsThatStay: --keep leaves what was made, and --session uses a session of the user.
func TestSessionsThatStay(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	h := onStdio(t, g, "--session", "work")
	h.must("run", object{"command": "x=1"})
	h.Close()
	h = onStdio(t, g, "--session", "work")
	matches(t, h.must("run", object{"command": "echo $x"}), `exit 0 .*\n1`)
	h.must("session", object{"action": "create", "name": "made"}) // ends with the program
	h.Close()
	testkit.Eventually(t, "only its own session is left", func() bool { return strings.Join(sessions(t, g), " ") == "work" })
	h = onStdio(t, g, "--keep")
	h.must("run", object{"command": "true"})
	h.Close()
	if s := sessions(t, g); len(s) != 2 {
		t.Errorf("sessions %v", s)
	}
}

// TestReadOnlyProgram has the tools that change nothing, and reads what others run.
func TestReadOnlyProgram(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	id := idIn(t, onStdio(t, g, "--session", "work").must("run", object{"command": "echo output"}))
	h := onStdio(t, g, "--read-only")
	tools, err := h.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 2 {
		t.Errorf("%v %v", tools, err)
	}
	matches(t, h.must("wait", object{"id": id}), `exit 0 .*\noutput`)
	matches(t, h.must("list", object{}), `1 session:\n.*`)
	if _, err := h.CallTool(t.Context(), &sdk.CallToolParams{Name: "run", Arguments: object{"command": "true"}}); err == nil {
		t.Error("it runs commands")
	}
	if s := sessions(t, g); len(s) != 1 {
		t.Errorf("sessions %v", s)
	}
}

// TestCancelledCallEndsItsCommand, and the session stays.
func TestCancelledCallEndsItsCommand(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	h := onStdio(t, g)
	h.must("run", object{"command": "kept=yes"})
	for _, how := range []object{{}, {"background": true, "yield_s": 50}, {"tty": true, "yield_s": 50}} {
		begun := filepath.Join(g.Dir, "begun")
		os.Remove(begun)
		how["command"] = fmt.Sprintf("echo $$ >%s; while :; do sleep 1; echo x; done", begun)
		if how["tty"] != nil { // without output: the call is answered when a screen rests after some
			how["command"] = fmt.Sprintf("echo $$ >%s; while :; do sleep 1; done", begun)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := h.CallTool(ctx, &sdk.CallToolParams{Name: "run", Arguments: how})
			done <- err
		}()
		testkit.Eventually(t, "it runs", func() bool { b, _ := os.ReadFile(begun); return len(b) > 1 })
		cancel()
		if err := <-done; err == nil {
			t.Error("a cancelled call has an answer")
		}
		testkit.Eventually(t, "the command ends", func() bool {
			text := h.must("list", object{"session": strings.Fields(ownLine(t, h))[0]})
			return !strings.Contains(text, "running")
		})
		matches(t, h.must("run", object{"command": "echo $kept"}), `exit 0 .*\nyes`)
	}
}

// TestCancelledWaitEndsNothing: only the call that started work ends it.
func TestCancelledWaitEndsNothing(t *testing.T) {
	t.Parallel()
	h := onStdio(t, rig.Shared(t, "plain"))
	wait, open := gate(t)
	id := idIn(t, h.must("run", object{"command": wait + "; echo done", "yield_s": 0}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := h.CallTool(ctx, &sdk.CallToolParams{Name: "wait", Arguments: object{"id": id}}); err == nil {
		t.Error("a cancelled call has an answer")
	}
	open()
	matches(t, h.must("wait", object{"id": id}), `exit 0 .*\ndone`)
}

// TestProgressIsReported: messages come at most once a second, grow, and have the latest line.
func TestProgressIsReported(t *testing.T) {
	t.Parallel()
	h := onStdio(t, rig.Shared(t, "plain"))
	p := &sdk.CallToolParams{Name: "run", Arguments: object{"command": "for i in 1 2 3 4 5 6 7 8; do echo step $i; sleep 0.5; done"}}
	p.SetProgressToken("mine")
	began := time.Now()
	if _, err := h.CallTool(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	var last float64
	n, shown := 0, false
	testkit.Eventually(t, "a message with a line", func() bool { // the SDK may hand them over after the answer
		for ; len(h.progress) > 0; n++ {
			q := <-h.progress
			line := strings.HasPrefix(q.Message, "step ")
			if q.ProgressToken != "mine" || q.Progress <= last || !line && (q.Message != "" || shown) { // a slow shell has printed nothing yet
				t.Errorf("after %v: %+v", last, q)
			}
			last, shown = q.Progress, shown || line
		}
		return shown
	})
	if n > int(took.Seconds())+1 {
		t.Errorf("%d messages in %v", n, took)
	}
}

// TestClientThatGivesUpLosesNothing: a client's patience is longer than the time that a call waits, so it gets the id of what goes on, and with it
// every byte of the output, once.
func TestClientThatGivesUpLosesNothing(t *testing.T) {
	t.Parallel()
	h := onStdio(t, rig.Shared(t, "plain"))
	call := func(name string, arguments object) string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // as real clients do
		defer cancel()
		r, err := h.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: arguments})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, refused := textOf(t, r)
		if refused {
			t.Fatal(text)
		}
		return text
	}
	text := call("run", object{"command": "for i in 1 2 3 4; do echo $i; sleep 1; done", "yield_s": 0.7})
	id := idIn(t, text)
	var all []string
	for {
		first, output, _ := strings.Cut(text, "\n")
		all = append(all, strings.Fields(output)...)
		if strings.HasPrefix(first, "exit 0") {
			break
		}
		text = call("wait", object{"id": id, "yield_s": 0.7})
	}
	if got := strings.Join(all, ""); got != "1234" {
		t.Errorf("output %s", got)
	}
}

// TestGatewayThatDiesLosesNothing: it is killed in the middle of a call, and between two. No command runs twice, and the session stays.
func TestGatewayThatDiesLosesNothing(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	h := onStdio(t, g)
	h.must("run", object{"command": "kept=yes"})
	count := filepath.Join(g.Dir, "count")
	command := fmt.Sprintf("echo once >>%s; for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done", count)
	answer := make(chan *sdk.CallToolResult, 1)
	go func() { // ends with the call
		r, err := h.CallTool(t.Context(), &sdk.CallToolParams{Name: "run", Arguments: object{"command": command, "yield_s": 50}})
		if err != nil {
			t.Error(err)
		}
		answer <- r
	}()
	testkit.Eventually(t, "it runs", func() bool { _, err := os.Stat(count); return err == nil })
	g.KillGateway(t)
	text, _ := textOf(t, <-answer)
	matches(t, text, `exit 0 .*\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6`)
	g.KillGateway(t)
	matches(t, h.must("run", object{"command": "echo $kept"}), `exit 0 .*\nyes`)
	g.Upgrade(t)
	matches(t, h.must("run", object{"command": "echo $kept; cat " + count}), `exit 0 .*\nyes\nonce`)
}

// TestNoGatewaySaysSo, and the tools work when there is one.
func TestNoGatewaySaysSo(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(rig.Binary, "mcp", "--state-dir", t.TempDir())
	cmd.Env = append(os.Environ(), "TRL_URL=", "TRL_TOKEN=")
	h := connect(t, &sdk.CommandTransport{Command: cmd})
	text, refused := h.call("run", object{"command": "true"})
	if !refused || !strings.Contains(text, "trl serve") {
		t.Errorf("%v %s", refused, text)
	}
}

// TestStdoutHasOnlyMessages: also when a call is refused.
func TestStdoutHasOnlyMessages(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(rig.Binary, "mcp", "--url", "http://127.0.0.1:1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out testkit.LogBook
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(stdin, handshake("true"))
	testkit.Eventually(t, "both answers", func() bool { return strings.Count(out.String(), "\n") >= 2 })
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(out.String()) {
		var m struct{ JSONRPC string }
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// TestConfigOfHosts: what trl mcp config prints starts trl mcp with the same flags.
func TestConfigOfHosts(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "plain")
	for host, key := range map[string]string{"claude": "mcpServers", "cursor": "mcpServers", "vscode": "servers"} {
		out, err := exec.Command(rig.Binary, "mcp", "config", host, "--url", "http://"+g.Addr, "--read-only").Output()
		if err != nil {
			t.Fatal(err)
		}
		var c map[string]map[string]struct {
			Command string
			Args    []string
		}
		if err := json.Unmarshal(out, &c); err != nil {
			t.Fatalf("%s: %v\n%s", host, err, out)
		}
		trl := c[key]["trl"]
		h := connect(t, &sdk.CommandTransport{Command: exec.Command(trl.Command, trl.Args...)})
		if tools, err := h.ListTools(t.Context(), nil); err != nil || len(tools.Tools) != 2 {
			t.Errorf("%s: %v %v", host, tools, err)
		}
	}
	out, err := exec.Command(rig.Binary, "mcp", "config", "codex", "--url", "http://"+g.Addr).Output()
	if want := fmt.Sprintf("[mcp_servers.trl]\ncommand = %q\nargs = [\"mcp\",\"--url=http://%s\"]\n", rig.Binary, g.Addr); err != nil || string(out) != want {
		t.Errorf("%v\n%s", err, out)
	}
	fromEnv := exec.Command(rig.Binary, "mcp", "config", "codex", "--read-only")
	fromEnv.Env = append(os.Environ(), "TRL_URL=http://"+g.Addr, "TRL_STATE_DIR=state") // the host may start us without them
	out, err = fromEnv.Output()
	if wd, _ := os.Getwd(); err != nil || !strings.Contains(string(out), fmt.Sprintf(`args = ["mcp","--read-only=true","--state-dir=%s/state","--url=http://%s"]`, wd, g.Addr)) {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = exec.Command(rig.Binary, "mcp", "config", "claude", "--url", "http://"+g.Addr, "--http").Output()
	if err != nil || !strings.Contains(string(out), "http://"+g.Addr+"/mcp") || !strings.Contains(string(out), "Bearer ${TRL_TOKEN}") {
		t.Errorf("%v\n%s", err, out)
	}
	if exec.Command(rig.Binary, "mcp", "config", "emacs").Run() == nil {
		t.Error("a host that we do not know has a configuration")
	}
}
