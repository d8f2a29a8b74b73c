package mcp

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"trl/client"
	"trl/internal/mcp"
	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/protocol"
)

// each runs f with a host over stdio, and over HTTP.
func each(t *testing.T, f func(t *testing.T, h *host)) {
	t.Parallel()
	t.Run("stdio", func(t *testing.T) { f(t, onStdio(t, rig.Shared(t, "plain"))) })
	t.Run("http", func(t *testing.T) { f(t, overVersion(t, latest)) })
}

// everywhere is each, also in memory and over HTTP with the version that hosts speak today.
func everywhere(t *testing.T, f func(t *testing.T, h *host)) {
	each(t, f)
	t.Run("http before", func(t *testing.T) { f(t, overVersion(t, "2025-11-25")) })
	t.Run("memory", func(t *testing.T) {
		f(t, inMemory(t, rig.Shared(t, "plain"), mcp.Config{Sessions: &mcp.OwnSessions{}, CancelStops: true}))
	})
}

// overVersion is a host over HTTP, for a principal of its own.
func overVersion(t *testing.T, version string) *host {
	t.Helper()
	h := overHTTP(t, withTokens(t), version, "Authorization", "Bearer "+newUser())
	if got := h.InitializeResult().ProtocolVersion; got != version {
		t.Fatalf("version %s", got)
	}
	return h
}

// matches checks a text against a regular expression for all of it.
func matches(t testing.TB, text, pattern string) {
	t.Helper()
	if !regexp.MustCompile(`(?s)^(?:` + pattern + `)$`).MatchString(text) {
		t.Errorf("want %s, got:\n%s", pattern, text[:min(len(text), 1000)])
	}
}

const (
	someX = `\[x-[a-z0-9]+\]`
	someP = `\[p-[a-z0-9]+\]`
	someT = `\[t-[a-z0-9]+\]`
	took  = `[0-9.ms]+(?: s)?`
)

// TestStateLastsBetweenCalls: directory, variables, functions.
func TestStateLastsBetweenCalls(t *testing.T) {
	everywhere(t, func(t *testing.T, h *host) {
		matches(t, h.must("run", object{"command": "cd /tmp; x=1; f() { echo from f; }"}), `exit 0 in `+took+`, in /tmp `+someX)
		matches(t, h.must("run", object{"command": "pwd; echo $x; f; exit 3"}), `exit 3 in `+took+`, in /tmp `+someX+`.*\n/tmp\n1\nfrom f`)
		matches(t, h.must("run", object{"command": "pwd"}), `exit 0 .*\n/tmp`)
	})
}

// TestBothStreamsAreInTheOrderOfWriting, if the gateway has read the one before the other is written: the program waits for that.
func TestBothStreamsAreInTheOrderOfWriting(t *testing.T) {
	program := `import fcntl, os, struct, termios, time
def write(fd, text):
    os.write(fd, text.encode())
    while struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]: time.sleep(0.001)
for i in range(1, 4):
    write(1, "out %d\n" % i)
    write(2, "err %d\n" % i)`
	everywhere(t, func(t *testing.T, h *host) {
		matches(t, h.must("run", object{"command": "python3 -c '" + program + "'"}), `exit 0 .*\nout 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3`)
	})
}

// TestAnswerComesWithTheEnd, and not after the whole time to wait.
func TestAnswerComesWithTheEnd(t *testing.T) {
	everywhere(t, func(t *testing.T, h *host) {
		matches(t, h.must("run", object{"command": "echo quick", "yield_s": 50}), `exit 0 .*\nquick`)
		wait, open := gate(t)
		text := h.must("run", object{"command": wait + "; echo slow", "yield_s": 0.1})
		matches(t, text, `still running after `+took+` `+someX+`: wait or stop`)
		open()
		matches(t, h.must("wait", object{"id": idIn(t, text), "yield_s": 50}), `exit 0 .*\nslow`)
		text = h.must("run", object{"command": "exec sh", "tty": true, "yield_s": 50}) // a prompt, and then nothing: a model must not wait for 50 s
		matches(t, text, `120×40 terminal, cursor in row 1, column 3 `+someT+`: wait, send or stop\n[#$]`)
		h.must("stop", object{"id": idIn(t, text)})
	})
}

// TestFailureIsAResult: a command that fails is not refused, and says how it ended.
func TestFailureIsAResult(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		matches(t, h.must("run", object{"command": "./no-such-program"}), `exit 127 .*not found`)
		matches(t, h.must("run", object{"command": "sh -c 'kill -9 $$'"}), `killed by KILL in .*`)
		matches(t, h.must("run", object{"command": "echo begun; sleep 1000", "timeout_s": 4}), `(?:killed by|exit) [A-Z0-9]+: timed out after 4.0 s in `+took+`, in [^ ]+ `+someX+`\nbegun.*`)
	})
}

// TestFastFailureKeepsItsOutput, in each of the ways to run something.
func TestFastFailureKeepsItsOutput(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		for _, how := range []object{{}, {"background": true}, {"tty": true}} {
			how["command"] = "echo cannot start; exit 7"
			text := h.must("run", how)
			shown := ""
			if strings.Contains(text, ": wait, send or stop") { // a slow machine: its screen rested before its end was seen, or a second was over
				if _, shown, _ = strings.Cut(text, "\n"); how["tty"] != nil {
					shown = "" // a screen is shown again
				}
				text = h.must("wait", object{"id": idIn(t, text)})
			}
			first, output, _ := strings.Cut(text, "\n")
			matches(t, first, `exit 7 in [^\n]*\]`)
			if shown+output != "cannot start" {
				t.Errorf("%v: %q, then %s", how, shown, text)
			}
		}
	})
}

// TestEndedWorkCanBeRead: by its id, again, and from any offset.
func TestEndedWorkCanBeRead(t *testing.T) {
	everywhere(t, func(t *testing.T, h *host) {
		for _, how := range []object{{}, {"background": true}, {"tty": true}} {
			how["command"], how["yield_s"] = "echo 12345; exit 7", 50
			id := idIn(t, h.must("run", how))
			for range 2 {
				again := `exit 7 in [^\n]*\]` // its output was shown
				if how["tty"] != nil {
					again += `\n12345`
				}
				matches(t, h.must("wait", object{"id": id}), again)
			}
			if how["tty"] == nil {
				matches(t, h.must("wait", object{"id": id, "offset": 2}), `(?:exit 7|output)[^\n]*\n345`)
			}
		}
	})
}

// TestNewOutputComesOnce: over several waits each byte is in one answer.
func TestNewOutputComesOnce(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		for _, how := range []object{{}, {"background": true}} {
			how["command"], how["yield_s"] = "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.2; done", 0.3
			text := h.must("run", how)
			id := idIn(t, text)
			var all string
			for answers := 1; ; answers++ {
				first, output, _ := strings.Cut(text, "\n")
				all += output + "\n"
				if strings.HasPrefix(first, "exit 0") {
					break
				}
				if answers > 200 {
					t.Fatal("no end")
				}
				text = h.must("wait", object{"id": id, "yield_s": 0.3})
			}
			if got := strings.Join(strings.Fields(all), " "); got != "line 1 line 2 line 3 line 4 line 5 line 6 line 7 line 8" {
				t.Errorf("%v: %s", how, got)
			}
		}
	})
}

// TestOneWaitIsEnough: for the end, a line of output, or a port; no model has to poll.
func TestOneWaitIsEnough(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		wait, open := gate(t)
		id := idIn(t, h.must("run", object{"command": wait + "; echo compiling; sleep 1; echo ready on 8; sleep 1000", "background": true, "yield_s": 0.1}))
		open()
		matches(t, h.must("wait", object{"id": id, "until": `^ready on \d+$`, "yield_s": 50}), `condition met after `+took+`, running in the background `+someP+`: wait, send or stop\ncompiling\nready on 8`)
		h.must("stop", object{"id": id})

		port := testkit.Port(t)
		id = idIn(t, h.must("run", object{"command": fmt.Sprintf("sleep 1; exec python3 -m http.server --bind 127.0.0.1 %d", port), "background": true, "yield_s": 0}))
		matches(t, h.must("wait", object{"id": id, "until": fmt.Sprint("port ", port), "yield_s": 50}), `condition met .*`)
		session := regexp.MustCompile(`s-[a-z0-9]+`).FindString(ownLine(t, h))
		var listed string
		defer func() {
			if t.Failed() {
				t.Log(listed)
			}
		}()
		testkit.Eventually(t, "its port is listed", func() bool {
			listed = h.must("list", object{"session": session})
			return strings.Contains(listed, fmt.Sprint("listens on ", port))
		})
		h.must("stop", object{"id": id})
	})
}

// ownLine is the line of list that describes the host's own session.
func ownLine(t testing.TB, h *host) string {
	t.Helper()
	for line := range strings.Lines(h.must("list", object{})) {
		if strings.Contains(line, "the one of calls without session") {
			return line
		}
	}
	t.Fatal("it has no session")
	return ""
}

// TestNothingIsGuessedAboutPrompts: work that prints something like a prompt and goes on is running, and not "waiting for input".
func TestNothingIsGuessedAboutPrompts(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		wait, open := gate(t)
		text := h.must("run", object{"command": "printf 'Continue? [y/N] '; " + wait + "; echo done", "yield_s": 0.5})
		matches(t, h.shows(text, "Continue"), `Continue\? \[y/N\] `)
		matches(t, h.must("wait", object{"id": idIn(t, text), "yield_s": 0.5}), `still running after `+took+` `+someX+`: wait or stop`)
		open()
		matches(t, h.must("wait", object{"id": idIn(t, text)}), `exit 0 .* *done`)
	})
}

// TestShellLivesAfterAStop: whatever was stopped, the session's next command runs, with the session's state.
func TestShellLivesAfterAStop(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		h.must("run", object{"command": "kept=yes"})
		for _, command := range []string{"echo begun; sleep 1000", "echo begun; trap '' TERM INT HUP; while :; do sleep 1; done", "echo begun; while :; do :; done", "echo begun; cat /dev/zero | sleep 1000"} {
			text := h.must("run", object{"command": command, "yield_s": 0.5})
			matches(t, h.shows(text, "begun"), `begun`)
			matches(t, h.must("stop", object{"id": idIn(t, text)}), `(?:killed by|exit) [A-Z0-9]+: stopped in .*`)
			matches(t, h.must("stop", object{"id": idIn(t, text)}), `(?:killed by|exit) [A-Z0-9]+: stopped in .*`) // again: the same
			matches(t, h.must("run", object{"command": "echo $kept"}), `exit 0 .*\nyes`)
		}
		text := h.must("run", object{"command": "trap 'echo got INT' INT; echo begun; while :; do sleep 0.1; done", "yield_s": 0.5})
		h.shows(text, "begun")
		matches(t, h.shows(h.must("stop", object{"id": idIn(t, text), "signal": "INT"}), "got INT"), `got INT`)
		h.must("stop", object{"id": idIn(t, text)})
		h.must("run", object{"command": "trap - INT"})
	})
}

// TestBackgroundWorkEndsOnceWithItsCode: it is neither lost nor reported twice, and its exit code is its own.
func TestBackgroundWorkEndsOnceWithItsCode(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		begun := map[string]string{} // by exit code: the answer of run, which has the output already if the machine is slow
		for i := range 5 {
			code := fmt.Sprint(i)
			begun[code] = h.must("run", object{"command": "sleep 0.5; echo work " + code + "; exit " + code, "background": true, "yield_s": 0})
		}
		for code, text := range begun {
			id := idIn(t, text)
			end := h.must("wait", object{"id": id})
			matches(t, end, `exit `+code+` in `+took+` `+someP+`(?:\nwork `+code+`)?`)
			if n := strings.Count(text+end, "\nwork "+code); n != 1 {
				t.Errorf("the output was shown %d times:\n%s\n%s", n, text, end)
			}
			matches(t, h.must("wait", object{"id": id}), `exit `+code+` in `+took+` `+someP)
		}
		stopped := idIn(t, h.must("run", object{"command": "sleep 1000", "background": true, "yield_s": 0}))
		matches(t, h.must("stop", object{"id": stopped}), `killed by TERM in .*`)
		matches(t, h.must("wait", object{"id": stopped}), `killed by TERM in .*`)
	})
}

// TestFloodIsCut: the answer to megabytes has 30,000 characters, and the offset that fetches what is missing.
func TestFloodIsCut(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		text := h.must("run", object{"command": "seq 100000"})
		if n := len(text); n > 30_300 {
			t.Errorf("%d bytes", n)
		}
		matches(t, text, `exit 0 [^\n]*\n1\n2\n.*\n99999\n100000`)
		m := regexp.MustCompile(`bytes left out; wait with offset (\d+) shows them`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no note in %.200s", text)
		}
		var offset int
		fmt.Sscan(m[1], &offset)
		head, _, _ := strings.Cut(text, "[… ")
		lines := strings.Fields(head)
		var last int
		fmt.Sscan(lines[len(lines)-1], &last)
		matches(t, h.must("wait", object{"id": idIn(t, text), "offset": offset}), fmt.Sprintf(`output of [^\n]*\n%d\n%d\n.*more output: wait with offset \d+ shows it …\]`, last+1, last+2))

		text = h.must("run", object{"command": "seq 2000000", "yield_s": 50}) // more than the gateway keeps
		m = regexp.MustCompile(`bytes left out; wait with offset (\d+) shows those that the gateway still has`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no note in %d bytes", len(text))
		}
		fmt.Sscan(m[1], &offset)
		if rest := h.must("wait", object{"id": idIn(t, text), "offset": offset}); strings.Contains(rest, "are gone") {
			t.Errorf("the note is wrong: %.200s", rest)
		}

		endless := h.must("run", object{"command": "yes", "yield_s": 1})
		if len(endless) > 30_300 {
			t.Errorf("%d bytes", len(endless))
		}
		matches(t, h.must("stop", object{"id": idIn(t, endless)}), `(?:killed by|exit) [A-Z0-9]+: stopped .*`)
	})
}

// TestTerminalIsAScreen: an interactive program gets text and keys, and the answer is what its screen shows then.
func TestTerminalIsAScreen(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		id := idIn(t, h.must("run", object{"command": "python3 -q", "tty": true}))
		testkit.Eventually(t, "42", func() bool {
			return strings.Contains(h.must("send", object{"id": id, "text": "6*7", "key": "enter", "yield_s": 1}), "\n42\n")
		})
		h.must("send", object{"id": id, "text": "while 1: pass", "key": "enter enter"})
		testkit.Eventually(t, "Ctrl-C", func() bool {
			text := h.must("send", object{"id": id, "key": "C-c", "yield_s": 1})
			return strings.Contains(text, "KeyboardInterrupt") && strings.HasSuffix(text, "\n>>>") // it reads again, and takes C-d for the end
		})
		matches(t, h.must("send", object{"id": id, "eof": true, "yield_s": 20}), `(?:exit 0|killed by INT) in .*`) // Python reports its last interrupt

		id = idIn(t, h.must("run", object{"command": "sleep 1000", "tty": true, "yield_s": 0}))
		matches(t, h.must("stop", object{"id": id}), `killed by HUP in .*`)
	})
}

// TestProcessReadsWhatIsSent, to its end.
func TestProcessReadsWhatIsSent(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		id := idIn(t, h.must("run", object{"command": `while read line; do echo "got $line"; done; echo end`, "background": true, "yield_s": 0}))
		matches(t, h.shows(h.must("send", object{"id": id, "text": "one", "key": "enter", "yield_s": 2}), "got one"), `got one`)
		matches(t, h.must("send", object{"id": id, "text": "two\n", "eof": true, "yield_s": 20}), `exit 0 [^\n]*\ngot two\nend`)
		matches(t, h.must("run", object{"command": "cat; wc -c", "stdin": "a\nb\n"}), `exit 0 [^\n]*\na\nb\n0`)
		matches(t, h.must("run", object{"command": "cat", "stdin": "text", "background": true, "yield_s": 20}), `exit 0 [^\n]*\ntext`)
		text, refused := h.call("send", object{"id": idIn(t, h.must("run", object{"command": "true"})), "text": "x"})
		if !refused {
			t.Error("a command that reads nothing takes input")
		}
		matches(t, text, `STDIN_CLOSED: .* Use .run. with stdin, background or tty .*`)
	})
}

// TestCommandsOfASessionQueue: two at once run one after the other, and the answer says for what the second waits.
func TestCommandsOfASessionQueue(t *testing.T) {
	each(t, func(t *testing.T, h *host) {
		wait, open := gate(t)
		first := idIn(t, h.must("run", object{"command": wait + "; echo first", "yield_s": 0.2}))
		second := h.must("run", object{"command": "echo second", "yield_s": 0.2})
		matches(t, second, `waiting for its turn behind `+first+`, after `+took+` `+someX+`: wait or stop`)
		open()
		matches(t, h.must("wait", object{"id": idIn(t, second)}), `exit 0 .*\nsecond`)
		matches(t, h.must("wait", object{"id": first}), `exit 0 .*\nfirst`)
	})
}

// TestRefusalsSayWhatToDo: a refusal has its code and a hint.
func TestRefusalsSayWhatToDo(t *testing.T) {
	everywhere(t, func(t *testing.T, h *host) {
		for _, c := range []struct {
			tool      string
			arguments object
			want      string
		}{
			{"run", object{"command": "true", "session": "nobody"}, "SESSION_NOT_FOUND: .* See `list`, or make it with `session`."},
			{"run", object{"command": "true", "cwd": "/no/such"}, `WORKING_DIR_NOT_FOUND: .*must exist where the gateway runs\.`},
			{"run", object{}, `.*missing properties.*command.*`},
			{"run", object{"command": "true", "tty": true, "background": true}, `INVALID_PARAMS: .*`},
			{"wait", object{"id": "x-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, `EXEC_NOT_FOUND: .*`},
			{"wait", object{"id": "no id"}, `INVALID_PARAMS: "no id" is not the id .*`},
			{"wait", object{"id": "x-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "until": "("}, `INVALID_PARAMS: until is no regular expression.*`},
			{"send", object{"id": "t-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "key": "hyper"}, `INVALID_PARAMS: "hyper" is no key.*`},
			{"session", object{"action": "explode"}, `.*enum.*`},
			{"session", object{"action": "end", "name": "nobody"}, `SESSION_NOT_FOUND: .*`},
		} {
			text, refused := h.call(c.tool, c.arguments)
			if !refused {
				t.Errorf("%s %v is not refused", c.tool, c.arguments)
			}
			matches(t, text, c.want)
		}
	})
}

// TestSessionsOfTheModel: it makes, resets and ends them.
func TestSessionsOfTheModel(t *testing.T) {
	everywhere(t, func(t *testing.T, h *host) {
		name := strings.ToLower(strings.NewReplacer("/", "-").Replace(t.Name()))
		matches(t, h.must("session", object{"action": "create", "name": name, "cwd": "/tmp", "env": object{"MODE": "x"}}), `session `+name+`: [^ ]+ in /tmp \[s-[a-z0-9]+\]`)
		text, refused := h.call("session", object{"action": "create", "name": name})
		if !refused {
			t.Error("two sessions of one name")
		}
		matches(t, text, `SESSION_EXISTS: .* Use it, or take another name\.`)
		matches(t, h.must("run", object{"command": "echo $MODE; MODE=y", "session": name}), `exit 0 .*, in /tmp .*\nx`)
		matches(t, h.must("list", object{"session": name}), name+` \[s-[a-z0-9]+\] idle, in /tmp\ncommands, the latest last:\n  exit 0 `+someX+` echo \$MODE; MODE=y`)
		matches(t, h.must("session", object{"action": "reset", "name": name}), `session `+name+` is reset: .*`)
		matches(t, h.must("run", object{"command": "echo $MODE", "session": name}), `exit 0 .*\nx`)
		matches(t, h.must("session", object{"action": "end", "name": name}), `session ended.*`)
		text, refused = h.call("run", object{"command": "true", "session": name})
		if !refused || !strings.HasPrefix(text, "SESSION_") {
			t.Errorf("a session that ended: %s", text)
		}
		h.must("run", object{"command": "true"})
		h.must("session", object{"action": "end"}) // the one of calls that name none
		matches(t, h.must("run", object{"command": "echo new"}), `exit 0 .*\nnew`)
	})
}

// TestResourcesShowTheSame as list and wait.
func TestResourcesShowTheSame(t *testing.T) {
	everywhere(t, func(t *testing.T, h *host) {
		exec := idIn(t, h.must("run", object{"command": "echo output"}))
		started := h.must("run", object{"command": "echo output; sleep 1000", "background": true, "yield_s": 0.2})
		h.shows(started, "output")
		process := idIn(t, started)
		terminal := idIn(t, h.must("run", object{"command": "echo output; sleep 1000", "tty": true}))
		session := regexp.MustCompile(`s-[a-z0-9]+`).FindString(ownLine(t, h))
		for uri, want := range map[string]string{
			"trl://sessions":                          `.*the one of calls without session.*`,
			"trl://sessions/" + session:               `.*commands, the latest last:.*`,
			"trl://execs/" + exec + "/output":         `exit 0 [^\n]*\noutput`,
			"trl://processes/" + process + "/output":  `running in the background [^\n]*\noutput`,
			"trl://terminals/" + terminal + "/screen": `120×40 terminal, [^\n]*\noutput`,
		} {
			r, err := h.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
			if err != nil {
				t.Errorf("%s: %v", uri, err)
				continue
			}
			matches(t, r.Contents[0].Text, want)
		}
		if _, err := h.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "trl://execs/x-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/output"}); err == nil {
			t.Error("a command that does not exist has output")
		}
		matches(t, h.must("wait", object{"id": process, "yield_s": 0}), `running in the background [^\n]*`) // resources do not count as seen, and do not forget either
		templates, err := h.ListResourceTemplates(t.Context(), nil)
		if err != nil || len(templates.ResourceTemplates) != 5 {
			t.Errorf("%v %v", templates, err)
		}
		h.must("stop", object{"id": process})
		h.must("stop", object{"id": terminal})
	})
}

// TestRecordingsAreCarried: all pages together are the asciicast, and only its owner reads it.
func TestRecordingsAreCarried(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t, "--auth", "token", "--token-file", tokenFile(), "--record", "execs")
	overHTTP(t, g, latest, "Authorization", "Bearer "+userToken(0)).must("run", object{"command": "seq 20000; printf 'é%.0s' $(seq 40000)"})
	c, err := client.Connect(t.Context(), client.Options{URL: "http://" + g.Addr, Token: userToken(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var id string
	testkit.Eventually(t, "the recording is complete", func() bool {
		var all protocol.Recordings
		if err := c.Call(t.Context(), "recording.list", nil, &all); err != nil || len(all.Recordings) != 1 {
			return false
		}
		id = all.Recordings[0].RecordingID
		return all.Recordings[0].State == "ended"
	})
	from, err := c.Recording(t.Context(), id, false)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	want, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	next := regexp.MustCompile(`The next page is (trl://recordings/` + id + `\?offset=[0-9]+)$`)
	for name, h := range map[string]*host{
		"HTTP": overHTTP(t, g, latest, "Authorization", "Bearer "+userToken(0)), "stdio": onStdio(t, g, "--token", userToken(0)),
	} {
		cast, pages := "", 0
		for uri := "trl://recordings/" + id; uri != ""; pages++ {
			r, err := h.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
			if err != nil || len(r.Contents) != 2 {
				t.Fatalf("%s: %s: %v %v", name, uri, r, err)
			}
			if len(r.Contents[1].Text) > 30_000 || r.Contents[1].MIMEType != "application/x-asciicast" {
				t.Errorf("%s: %d bytes of %s", name, len(r.Contents[1].Text), r.Contents[1].MIMEType)
			}
			cast += r.Contents[1].Text
			m := next.FindStringSubmatch(r.Contents[0].Text)
			if uri = ""; m != nil {
				uri = m[1]
			} else if !strings.HasSuffix(r.Contents[0].Text, ", its end.") {
				t.Errorf("%s: %s", name, r.Contents[0].Text)
			}
		}
		if pages < 5 || cast != string(want) {
			t.Errorf("%s: %d pages with %d bytes of %d", name, pages, len(cast), len(want))
		}
		r, err := h.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "trl://recordings/" + id + "?offset=100000000"})
		if err != nil || r.Contents[1].Text != "" || !strings.HasSuffix(r.Contents[0].Text, ", its end.") {
			t.Errorf("%s: behind the end: %v %v", name, r, err)
		}
		if _, err := h.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "trl://recordings/" + id + "?offset=-1"}); err == nil {
			t.Errorf("%s: there is an offset -1", name)
		}
	}
	_, err = overHTTP(t, g, latest, "Authorization", "Bearer "+userToken(1)).ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "trl://recordings/" + id})
	if err == nil || !strings.Contains(err.Error(), "RECORDING_NOT_FOUND") {
		t.Errorf("another user: %v", err)
	}
}
