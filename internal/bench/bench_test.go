package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"trl/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Suite{M: m}.Run()) }

// The floors must do the work that they are compared for: the whole output, correct exit codes, and state that a shell keeps.
func TestFloorsRunCommands(t *testing.T) {
	testkit.StartsProcesses(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/shell", echoShell)
	mux.HandleFunc("/once", echoOnce)
	server := httptest.NewServer(mux)
	defer server.Close()
	url := strings.Replace(server.URL, "http", "ws", 1)

	raw := rawShell(url)
	defer raw.Close()
	for _, c := range []struct {
		command, output string
		code            int
	}{
		{"echo out; echo err >&2; (exit 3)", "out\nerr\n", 3},
		{"cd /; v=kept", "", 0},
		{"pwd; echo $v", "/\nkept\n", 0},
		{"printf 'no newline'", "no newline", 0},
		{"cat <<'EOF'\n$HOME\nEOF", "$HOME\n", 0},
		{"head -c 300000 /dev/zero | tr '\\0' x", strings.Repeat("x", 300000), 0},
	} {
		if got, err := raw.Run(c.command); got.Output != c.output || got.Code != c.code || err != nil {
			t.Errorf("%s: %.60q, %d, %v", c.command, got.Output, got.Code, err)
		}
	}

	one := &onceShell{c: dial(url + "/once"), before: "export WS=/usr\n"}
	defer one.c.CloseNow()
	one.run(tasks[0].command)
	if got := one.run("pwd; echo $CFLAGS; (exit 4)"); got != "/usr\n-O1\n\n4" {
		t.Errorf("%q", got)
	}
}

func TestProcessesAreCounted(t *testing.T) {
	testkit.StartsProcesses(t)
	cmd := exec.Command("/bin/bash", "-c", "sleep 300 & echo $!; wait")
	out := must(cmd.StdoutPipe())
	check(cmd.Start())
	defer func() { _ = cmd.Wait() }()
	b := make([]byte, 16)
	n := must(out.Read(b))
	sleep := must(os.FindProcess(counts(string(b[:n]))[0]))
	defer sleep.Kill() // this also ends the shell
	all := descendants(cmd.Process.Pid)
	if !slices.Equal(all, []int{cmd.Process.Pid, sleep.Pid}) {
		t.Errorf("%v", all)
	}
	u := treeOf(cmd.Process.Pid)
	if u.processes != 2 || u.pss <= 0 || u.rss < u.pss || u.descriptors < 4 {
		t.Errorf("%+v", u)
	}
	if gone := status(1 << 30); gone != (usage{}) {
		t.Errorf("%+v", gone)
	}
}

func TestTablesStayBetweenTheirMarks(t *testing.T) {
	text := []byte("a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\n<!-- end -->\nc\n")
	text = tableOf(text, "two", "2\n")
	text = tableOf(text, "one", "1\n")
	if want := "a\n<!-- one -->\n1\n<!-- end -->\nb\n<!-- two -->\n2\n<!-- end -->\nc\n"; string(text) != want {
		t.Errorf("%q", text)
	}
	if caught(func() error { tableOf(text, "three", ""); return nil }) == nil {
		t.Error("a table without a place")
	}
	doc := must(os.ReadFile("../../docs/PERFORMANCE.md"))
	for _, name := range []string{"bench", "peers", "scale", "idle", "agent", "soak"} {
		tableOf(doc, name, "") // panics where there is no place for it
	}
}

func TestKeysAreBenchmarkNames(t *testing.T) {
	if got := key("keystroke echo, trl.v1+bin"); got != "keystroke-echo-trl.v1-bin" {
		t.Error(got)
	}
}
