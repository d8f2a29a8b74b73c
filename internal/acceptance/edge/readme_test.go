package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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
	ctx, cancel := context.WithTimeout(t.Context(), 5*testkit.Patience) // it builds trl
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
	var command string
	for _, block := range readmeBlocks(t, "sh") {
		if strings.Contains(block, "/v1/rpc") {
			command = block
		}
	}
	var want struct {
		OK   bool
		Data map[string]any
	}
	if err := json.Unmarshal([]byte(readmeBlocks(t, "json")[0]), &want); err != nil {
		t.Fatal(err)
	}
	delete(want.Data, "…")
	g, token := gatewayWithToken(t)
	sh := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, "127.0.0.1:7681", g.Addr))
	sh.Env = append(os.Environ(), "TOKEN="+token)
	out, err := sh.Output()
	got := want
	got.Data = nil
	if e := json.Unmarshal(out, &got); e != nil {
		t.Fatalf("%q: %v, %v", out, e, err)
	}
	maps.DeleteFunc(got.Data, func(k string, _ any) bool { _, shown := want.Data[k]; return !shown })
	if got.OK != want.OK || !maps.EqualFunc(got.Data, want.Data, func(a, b any) bool { return a == b }) {
		t.Errorf("README.md shows %v, the answer has %v", want.Data, got.Data)
	}
}

// gatewayWithToken is a gateway that demands a token, and an admin's token.
func gatewayWithToken(t *testing.T, flags ...string) (*rig.Server, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	const token = "token-of-the-pages-0123456789"
	if err := os.WriteFile(file, []byte(token+" ann admin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return rig.Gateway(t, append(flags, "--auth", "token", "--token-file", file)...), token
}

// Each block of docs/clients/http.md, in one shell, prints what stands below it.
func TestHTTPPage(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"curl", "jq"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("there is no " + program)
		}
	}
	text, err := os.ReadFile("../../../docs/clients/http.md")
	if err != nil {
		t.Fatal(err)
	}
	const end = "--- end of a block ---\n"
	var script string
	var blocks, wants []string
	for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?").FindAllStringSubmatch(string(text), -1) {
		blocks, wants = append(blocks, m[1]), append(wants, m[2])
		script += m[1] + "printf '%s' '" + end + "'\n"
	}
	g, token := gatewayWithToken(t)
	port := testkit.Port(t)
	// Between two pieces of output is so much time that no pause of the gateway makes one of them.
	for from, to := range map[string]string{"127.0.0.1:7681": g.Addr, "3000": strconv.Itoa(port), "echo $i; sleep 0.1": "echo $i; sleep 3", "$(cat ~/.local/state/trl/operator-token)": token} {
		if !strings.Contains(script, from) {
			t.Errorf("the page has no %q", from)
		}
		script = strings.ReplaceAll(script, from, to)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*testkit.Patience)
	defer cancel()
	sh := exec.CommandContext(ctx, "bash", "-c", script)
	sh.Dir, sh.WaitDelay = t.TempDir(), rig.EndWithin
	var stderr bytes.Buffer
	sh.Stderr = &stderr
	out, err := sh.Output()
	got := strings.Split(string(out), end)
	for i, block := range blocks {
		if i >= len(got)-1 || got[i] != wants[i] {
			t.Errorf("this block:\n%s\nprinted %q, not %q (%v, %s)", block, got[min(i, len(got)-1)], wants[i], err, stderr.String())
		}
	}
	if len(blocks) < 12 {
		t.Errorf("only %d blocks found", len(blocks))
	}
}
