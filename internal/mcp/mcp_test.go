package mcp

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"trl/internal/testkit"
	"trl/protocol"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var update = flag.Bool("update", false, "write testdata anew")

// listed returns the answer of tools/list.
func listed(t *testing.T, c Config) *sdk.ListToolsResult {
	t.Helper()
	ours, theirs := sdk.NewInMemoryTransports()
	s, err := NewServer(c).Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), theirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { h.Close(); s.Wait() }()
	r, err := h.ListTools(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// maxTokens is what a model may have to read of our tools before it calls one.
const maxTokens = 1100

// tokens estimates how many tokens a model makes of a text: one for each four bytes, or one for each piece that tokenizers of today keep together (a
// word of up to eight letters, three digits, three punctuation marks), whichever is more.
func tokens(text string) int {
	pieces := regexp.MustCompile(` ?\p{L}{1,8}|\p{N}{1,3}|[^\s\p{L}\p{N}]{1,3}`)
	return max(len(text)/4, len(pieces.FindAllString(text, -1)))
}

// TestToolDescriptionsCostLittle: everything that a host shows its model of the tools is in testdata, and within the budget.
func TestToolDescriptionsCostLittle(t *testing.T) {
	type shown struct {
		Name        string               `json:"name"`
		Description string               `json:"description"`
		InputSchema any                  `json:"inputSchema"`
		Annotations *sdk.ToolAnnotations `json:"annotations"`
	}
	var all []shown
	for _, tool := range listed(t, Config{}).Tools {
		all = append(all, shown{tool.Name, tool.Description, tool.InputSchema, tool.Annotations})
		if tool.OutputSchema != nil {
			t.Errorf("%s has an output schema: some hosts then show nothing but structured content", tool.Name)
		}
	}
	indented, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/tools.json"
	if *update {
		if err := os.WriteFile(golden, append(indented, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(indented)+"\n" {
		t.Errorf("the tools are not those of %s; if that is intended: go test ./internal/mcp -update", golden)
	}
	compact, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	n := tokens(string(compact)) + tokens(instructions)
	t.Logf("%d bytes, about %d tokens with the instructions", len(compact)+len(instructions), n)
	if n > maxTokens {
		t.Errorf("about %d tokens, more than %d", n, maxTokens)
	}
}

// TestEveryAnnotationIsSent, because hosts take different defaults for absent ones.
func TestEveryAnnotationIsSent(t *testing.T) {
	want := map[string]string{ // read-only, destructive, idempotent, open world
		"run": "0101", "wait": "1000", "send": "0101", "stop": "0110", "list": "1000", "session": "0100",
	}
	b, err := json.Marshal(listed(t, Config{}).Tools)
	if err != nil {
		t.Fatal(err)
	}
	var tools []struct {
		Name        string
		Annotations map[string]bool
	}
	if err := json.Unmarshal(b, &tools); err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools {
		got := ""
		for _, name := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
			v, ok := tool.Annotations[name]
			if !ok {
				t.Errorf("%s: no %s", tool.Name, name)
			}
			got += map[bool]string{true: "1", false: "0"}[v]
		}
		if got != want[tool.Name] {
			t.Errorf("%s: %s, want %s", tool.Name, got, want[tool.Name])
		}
	}
}

// TestReadOnlyOffersNothingElse: --read-only, and viewers.
func TestReadOnlyOffersNothingElse(t *testing.T) {
	var names []string
	for _, tool := range listed(t, Config{ReadOnly: true}).Tools {
		names = append(names, tool.Name)
		if !tool.Annotations.ReadOnlyHint {
			t.Errorf("%s changes something", tool.Name)
		}
	}
	if got := strings.Join(names, " "); got != "list wait" {
		t.Errorf("offers %s", got)
	}
}

// TestOnlyToolsAndResources: no prompts, sampling, roots or logging are advertised, and no changes of lists.
func TestOnlyToolsAndResources(t *testing.T) {
	ours, theirs := sdk.NewInMemoryTransports()
	s, err := NewServer(Config{}).Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(), theirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { h.Close(); s.Wait() }()
	b, err := json.Marshal(h.InitializeResult().Capabilities)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(b); got != `{"resources":{},"tools":{}}` {
		t.Errorf("capabilities %s", got)
	}
}

// TestAnswersAreForOnePrincipal: no cache between us and a host may hand them to another one.
func TestAnswersAreForOnePrincipal(t *testing.T) {
	if scope := listed(t, Config{}).CacheScope; scope != "private" {
		t.Errorf("scope %q", scope)
	}
}

// TestFirstLines: the first line of an answer says how a command ended, and what a model must know of it.
func TestFirstLines(t *testing.T) {
	base := protocol.ExecExit{ExecID: "x-1", DurationMS: 1234, WorkingDir: "/src"}
	for want, change := range map[string]func(*protocol.ExecExit){
		"exit 0 in 1.2 s, in /src [x-1]":                                                                            func(x *protocol.ExecExit) { x.ExitCode = new(0) },
		"killed by TERM: timed out after 60 s in 1.2 s, in /src [x-1]":                                              func(x *protocol.ExecExit) { x.Signal, x.TimedOut, x.TimeoutS = "TERM", true, 60 },
		"killed by KILL: out of memory in 1.2 s, in /src [x-1]":                                                     func(x *protocol.ExecExit) { x.Signal, x.OOMKilled = "KILL", true },
		"killed by TERM: stopped in 1.2 s, in /src [x-1]":                                                           func(x *protocol.ExecExit) { x.Signal, x.Cancelled = "TERM", true },
		"exit 1: limit pids reached in 1.2 s, in /src [x-1]":                                                        func(x *protocol.ExecExit) { x.ExitCode, x.LimitHit = new(1), "pids" },
		"exit 0 in 1.2 s, in /src [x-1]; 1 of its processes still runs":                                             func(x *protocol.ExecExit) { x.ExitCode, x.Background = new(0), []int{1} },
		"exit 0 in 1.2 s, in /src [x-1]; 2 of its processes still run":                                              func(x *protocol.ExecExit) { x.ExitCode, x.Background = new(0), []int{1, 2} },
		"exit 0 in 1.2 s, in /src [x-1]; the shell was replaced and lost: functions":                                func(x *protocol.ExecExit) { x.ExitCode, x.StateLost = new(0), []string{"functions"} },
		"ended, exit code unknown: stopped in 1.2 s, in /src [x-1]; it could not be killed, it hangs in the kernel": func(x *protocol.ExecExit) { x.Cancelled, x.KillFailed = true, true },
	} {
		x := base
		change(&x)
		if got := execLine(&x); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestNoCallOutlastsAMinute, whatever a model asks for.
func TestNoCallOutlastsAMinute(t *testing.T) {
	for _, y := range []yield{-1, 0, 20, 50, 51, 1e9} {
		if d := y.duration(defaultYield); d < 0 || d > maxYield*time.Second {
			t.Errorf("%v: %v", y, d)
		}
	}
	k := &call{began: time.Now().Add(-time.Hour)} // the gateway was away
	if left := time.Until(k.until(maxYield * time.Second)); left > time.Second {
		t.Errorf("it waits for another %v", left)
	}
}

// TestEveryCodeHasAHint: each error of the protocol says what a model can do about it.
func TestEveryCodeHasAHint(t *testing.T) {
	for _, m := range protocol.Methods() {
		for _, c := range protocol.CodesOf(m.Name) {
			if hintFor[c] == "" {
				t.Errorf("%s of %s has no hint", c, m.Name)
			}
		}
	}
}

func TestKeys(t *testing.T) {
	for keys, want := range map[string]string{"enter": "\r", "C-c": "\x03", "up up": "\x1b[A\x1b[A", "": "", "Tab esc": "\t\x1b", `C-\`: "\x1c"} {
		if got, signal, err := keyBytes(keys, true); got != want || signal != "" || err != nil {
			t.Errorf("terminal, %s: %q %q %v", keys, got, signal, err)
		}
	}
	for keys, want := range map[string][2]string{"enter": {"\n", ""}, "C-c": {"", "INT"}, "C-d": {"\x04", ""}} {
		if got, signal, err := keyBytes(keys, false); got != want[0] || signal != want[1] || err != nil {
			t.Errorf("process, %s: %q %q %v", keys, got, signal, err)
		}
	}
	_, _, err := keyBytes("enter hyper", true)
	testkit.WantCode(t, err, protocol.InvalidParams)
}

// TestSeenIsBounded: beyond maxSeen ids the one that was used longest ago is forgotten.
func TestSeenIsBounded(t *testing.T) {
	s := NewSeen()
	id := func(n int) string { return "x-" + string(rune(n)) }
	for n := range maxSeen {
		s.set(id(n), int64(n))
	}
	s.set(id(0), 7)
	s.set(id(maxSeen), 8)
	if _, known := s.offset(id(1)); known {
		t.Error("the oldest is kept")
	}
	for n, want := range map[int]int64{0: 7, 2: 2, maxSeen: 8} {
		if got, known := s.offset(id(n)); !known || got != want {
			t.Errorf("%d: %d %v", n, got, known)
		}
	}
	if o := s.offsets; len(o.byKey) != maxSeen || o.recent.Len() != maxSeen {
		t.Errorf("%d and %d ids", len(o.byKey), o.recent.Len())
	}
}

// TestPrincipalsAreBounded: HTTP forgets the one that was there longest ago.
func TestPrincipalsAreBounded(t *testing.T) {
	h := NewHTTP(1)
	first := h.seen.getOr("0", NewSeen)
	for i := range maxPrincipals {
		h.seen.getOr(strconv.Itoa(i), NewSeen)
	}
	if h.seen.getOr("0", NewSeen) != first {
		t.Error("a principal among the latest is forgotten")
	}
	h.seen.getOr("one more", NewSeen)
	if _, known := h.seen.get("1"); known || len(h.seen.byKey) != maxPrincipals {
		t.Errorf("%d principals", len(h.seen.byKey))
	}
}

// TestOneIsNotMany: a list counts in plain English.
func TestOneIsNotMany(t *testing.T) {
	one := protocol.SessionInfo{Processes: 1, Terminals: 1, QueueLength: 1}
	if line := sessionLine(&one); !strings.HasSuffix(line, "; 1 waiting; 1 process; 1 terminal") {
		t.Error(line)
	}
	two := protocol.SessionInfo{Processes: 2, Terminals: 2}
	if line := sessionLine(&two); !strings.HasSuffix(line, "; 2 processes; 2 terminals") {
		t.Error(line)
	}
}

// TestArgumentsAreWhatTheySay: no command runs that nobody has written.
func TestArgumentsAreWhatTheySay(t *testing.T) {
	for text, right := range map[string]bool{
		`{"command":"echo é \u00e9 \ud83d\ude00"}`: true, ``: true, `{}`: true,
		`{"command":"a","command":"b"}`: false, "{\"command\":\"\xff\"}": false, `{"command":"\ud800"}`: false, `{"env":{"A":"1","A":"2"}}`: false,
	} {
		if err := checkArguments(json.RawMessage(text)); (err == nil) != right {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestBatchesAreBounded(t *testing.T) {
	batch := func(n int) []byte { return []byte(" [" + strings.TrimSuffix(strings.Repeat("{},", n), ",") + "]") }
	for text, right := range map[string]bool{
		string(batch(maxBatch)): true, string(batch(maxBatch + 1)): false, `{"a":[` + strings.Repeat("1,", 1000) + `1]}`: true, ``: true, `[`: false,
	} {
		if err := CheckBody([]byte(text)); (err == nil) != right {
			t.Errorf("%.50q: %v", text, err)
		}
	}
}
