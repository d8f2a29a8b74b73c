package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// readmeBlocks are the fenced blocks of README.md in this language.
func readmeBlocks(t *testing.T, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// The first block of README.md, pasted into a shell, prints what its comments say.
func TestReadmeFirstBlock(t *testing.T) {
	t.Parallel()
	block := readmeBlocks(t, "sh")[0]
	want := []string{"still world, still in /usr", "trl: open http://127.0.0.1:"}
	for _, m := range regexp.MustCompile(`(?m)^trl run .*# ([^:\n]+)`).FindAllStringSubmatch(block, -1) {
		want = append(want, m[1])
	}
	if len(want) < 5 {
		t.Fatalf("the block promises only %q", want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Patience) // it builds trl
	defer cancel()
	sh := exec.CommandContext(ctx, "bash", "-c", "trap 'kill %1; wait' EXIT\n"+block)
	sh.Cancel = func() error { return sh.Process.Signal(syscall.SIGTERM) } // the trap ends the gateway
	sh.WaitDelay = rig.EndWithin
	sh.Dir, sh.Env = "../../..", append(os.Environ(), "TMPDIR="+t.TempDir(), "GOFLAGS=-buildvcs=false")
	var out bytes.Buffer
	sh.Stdout, sh.Stderr = &out, &out
	start := time.Now()
	if err := testkit.Start(sh); err != nil {
		t.Fatal(err)
	}
	err := sh.Wait()
	for _, line := range want {
		if !strings.Contains(out.String(), line) {
			t.Errorf("it did not print %q", line)
		}
	}
	if t.Failed() {
		t.Logf("after %s, %v:\n%s", time.Since(start), err, out.String())
	}
}

// The request in README.md gets the answer that stands below it.
func TestReadmeRequest(t *testing.T) {
	t.Parallel()
	blocks := readmeBlocks(t, "json")
	var request, answer struct {
		Method string
		Params object
		OK     bool
		Data   map[string]any
	}
	for i, into := range []any{&request, &answer} {
		if err := json.Unmarshal([]byte(blocks[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	delete(answer.Data, "…")
	got := rig.Shared(t, "readme").Dial(t).Try(request.Method, request.Params)
	real := maps.Clone(got.Data)
	maps.DeleteFunc(real, func(k string, _ any) bool { _, shown := answer.Data[k]; return !shown })
	if got.OK != answer.OK || !maps.EqualFunc(real, answer.Data, func(a, b any) bool { return a == b }) {
		t.Errorf("README.md shows %v, the answer has %v", answer.Data, real)
	}
}
