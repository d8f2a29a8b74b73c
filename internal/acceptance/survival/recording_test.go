package survival

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// download downloads a recording and returns what is in it by code: outputs joined, the rest one a line.
func download(t *testing.T, g *rig.Server, id string) map[string]string {
	t.Helper()
	tape := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(g.Get(t, "/v1/recordings/"+id)))
	lines.Buffer(nil, 1<<20)
	for n := 0; lines.Scan(); n++ {
		if n == 0 || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		var e [3]any
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("line %d: %q: %v", n+1, lines.Text(), err)
		}
		code, data := e[1].(string), e[2].(string)
		if code != "o" {
			data += "\n"
		}
		tape[code] += data
	}
	return tape
}

func awaitRecording(t *testing.T, c *rig.Client, id string) (info object) {
	t.Helper()
	testkit.Eventually(t, "the recording has ended", func() bool {
		info = c.Call("recording.info", object{"recording_id": id})
		return info.Str("state") == "ended"
	})
	return info
}

// TestRecordingSurvives: the gateway is killed again and again, and upgraded, under a terminal and a command that print and
// are recorded. Each goes on in the same file, with every byte once.
func TestRecordingSurvives(t *testing.T) {
	g := rig.Gateway(t, "--record", "all")
	c := g.Dial(t)
	session := c.Session(object{"shell": "/bin/bash"})
	w := world{g: g}
	term := c.Call("term.open", object{"session_id": session, "cols": 80, "rows": 24, "on_slow": "skip", "command": "echo ŝtarto; " + counting("t", w.path("enough"))})
	exec := c.Stream(session, counting("x", w.path("enough")), object{"on_slow": "skip"})
	if term.Str("recording_id") == "" || exec.Str("recording_id") == "" {
		t.Fatalf("not recorded: %v, %v", term, exec)
	}
	for range rig.Pick(4, 20) {
		b := g.Dial(t)
		had := b.Call("recording.info", object{"recording_id": exec.Str("recording_id")}).Num("output_bytes")
		testkit.Eventually(t, "more is recorded", func() bool {
			return b.Call("recording.info", object{"recording_id": exec.Str("recording_id")}).Num("output_bytes") > had
		})
		rig.ReplaceGateway(t, g)
	}
	if err := syscall.Kill(g.Pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the upgrade is done", func() bool { return strings.Contains(g.Log(), `"upgraded"`) })
	a := g.Dial(t)
	a.Call("term.resize", object{"term_id": term.Str("term_id"), "cols": 90, "rows": 30})
	if n := a.Info(session).Num("recording"); n != 2 {
		t.Errorf("%d recordings are being made", n)
	}
	if err := os.WriteFile(w.path("enough"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for kind, id := range map[string]string{"t": term.Str("recording_id"), "x": exec.Str("recording_id")} {
		info := awaitRecording(t, a, id)
		if info.Str("reason") != "exit" || info.Num("exit_code") != 7 || info.Num("size_bytes") == 0 {
			t.Errorf("%s: %v", kind, info)
		}
		tape := download(t, g, id)
		text := tape["o"]
		if kind == "t" {
			var ok bool
			if text, ok = strings.CutPrefix(text, "ŝtarto\r\n"); !ok || !strings.HasSuffix(tape["r"], "90x30\n") {
				t.Errorf("begins with %q; sizes %q", rig.Brief(text), tape["r"])
			}
		}
		n := counter{prefix: kind}
		if err := n.take(strings.ReplaceAll(text, "\r\n", "\n")); err != nil || n.part != "" || n.next == 0 {
			t.Errorf("%s: after %d lines: %v", kind, n.next, err)
		}
		if tape["m"] != "" || tape["x"] != "7\n" {
			t.Errorf("%s: marks %q, exit %q", kind, tape["m"], tape["x"])
		}
	}
}

// TestDeletedStaysDeleted: what somebody deleted while it was being made no later gateway begins anew.
func TestDeletedStaysDeleted(t *testing.T) {
	g := rig.Gateway(t)
	c := g.Dial(t)
	session := c.Session()
	term := c.Call("term.open", object{"session_id": session, "cols": 80, "rows": 24, "command": "echo here; exec cat", "record": true})
	id := term.Str("recording_id")
	testkit.Eventually(t, "something is recorded", func() bool { return downloadIfAny(g, t, id)["o"] != "" })
	c.Call("recording.delete", object{"recording_id": id})
	rig.ReplaceGateway(t, g)
	a := g.Dial(t)
	if n := a.Info(session).Num("recording"); n != 0 {
		t.Errorf("%d recordings are being made", n)
	}
	if list := a.Call("recording.list", object{})["recordings"].([]any); len(list) != 0 {
		t.Errorf("%v", list)
	}
}

func downloadIfAny(g *rig.Server, t *testing.T, id string) map[string]string {
	c := g.Dial(t)
	defer c.Close()
	if c.Call("recording.info", object{"recording_id": id}).Num("size_bytes") == 0 {
		return nil
	}
	return download(t, g, id)
}

// TestRecordingOfAFlood: a command at full speed is not slowed down by its recording, which has every byte or says which not.
func TestRecordingOfAFlood(t *testing.T) {
	g := rig.Gateway(t)
	c := g.Dial(t)
	session := c.Session()
	const lines = 400_000
	r := c.Run(session, fmt.Sprintf("seq %d", lines), object{"record": true, "max_output_bytes": 0})
	if r.Num("exit_code") != 0 {
		t.Fatal(r)
	}
	list := c.Call("recording.list", object{"session_id": session})["recordings"].([]any)
	info := awaitRecording(t, c, object(list[0].(map[string]any)).Str("recording_id"))
	tape := download(t, g, info.Str("recording_id"))
	missing := 0
	for line := range strings.Lines(tape["m"]) {
		var n int
		if _, err := fmt.Sscanf(line, "trl: %d bytes of output are missing here", &n); err != nil {
			t.Errorf("mark %q", line)
		}
		missing += n
	}
	if got := len(strings.ReplaceAll(tape["o"], "\r\n", "\n")) + missing; got != r.Num("stdout_bytes") {
		t.Errorf("%d bytes recorded or told as missing (%d), %d printed", got, missing, r.Num("stdout_bytes"))
	}
}
