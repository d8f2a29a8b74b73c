package browser

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"trl/internal/testkit"
)

const example = "../../../examples/ts-browser-terminal"

// shown is the text of the terminal in the example's page.
const shown = `[...document.querySelectorAll(".xterm-rows > div")].map((row) => row.textContent).join("\n")`

// TestExampleTerminal drives examples/ts-browser-terminal: what is typed runs, after the death of the gateway, too, and after a reload the same terminal is
// there. check.sh runs it, which has Node and xterm.js.
func TestExampleTerminal(t *testing.T) {
	testkit.StartsProcesses(t)
	node := os.Getenv("TRL_TEST_NODE")
	if node == "" {
		t.Skip("make clients-typescript runs it")
	}
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no Chromium: make deps")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pages"), 0o755); err != nil {
		t.Fatal(err)
	}
	rig := serve(t, dir)
	gateway, address := startExample(t, rig, node)
	page := start(t, program, dir)
	see := func(what, text string) {
		t.Helper()
		if err := chromedp.Run(page, chromedp.Poll(fmt.Sprintf("document.title === 'terminal' && /%s/m.test(%s)", text, shown), nil, chromedp.WithPollingTimeout(patience))); err != nil {
			var now string
			_ = chromedp.Run(page, chromedp.Evaluate(`document.title + "\n" + `+shown, &now))
			t.Fatalf("%s: %v\n%s", what, err, now)
		}
	}
	enter := func(line string) {
		t.Helper()
		if err := chromedp.Run(page, input.InsertText(line), chromedp.KeyEvent("\r")); err != nil {
			t.Fatal(err)
		}
	}
	if err := chromedp.Run(page, chromedp.Navigate(address)); err != nil {
		t.Fatal(err)
	}
	see("a prompt", `[#$] *$`)
	enter("echo $((40 + 2))")
	see("its output", `^42 *$`)
	post(t, rig+"/"+gateway.ID+"/kill", nil)
	enter("echo $((40 + 3))")
	see("what was typed after the gateway had died", `^43 *$`)
	if err := chromedp.Run(page, chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	see("the screen of before", `^42 *\n[^]*^43 *$`)
	enter("echo $((40 + 4))")
	see("what is typed after a reload", `^44 *$`)
}

type startedGateway struct {
	ID, URL string
	Tokens  map[string]string
}

// startExample starts a gateway and the example's server, and returns the address of its page. The gateway has to know the page's origin before its server
// runs.
func startExample(t *testing.T, rig, node string) (startedGateway, string) {
	t.Helper()
	port := strconv.Itoa(testkit.Port(t))
	var gateway startedGateway
	post(t, rig+"/start", &gateway, "--origin", "http://127.0.0.1:"+port)
	server := exec.Command(node, "server.ts")
	server.Dir = example
	server.Env = append(os.Environ(), "TRL_URL="+gateway.URL, "TRL_TOKEN="+gateway.Tokens["user"], "PORT="+port, "NODE_NO_WARNINGS=1")
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Start(server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the example's server: %v", err)
	}
	return gateway, strings.TrimSpace(line)
}

// post asks the rig for something; args are for a gateway.
func post(t *testing.T, url string, answer any, args ...string) {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"args": args})
	r, err := http.Post(url, "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, r.Status)
	}
	if answer != nil {
		if err := json.NewDecoder(r.Body).Decode(answer); err != nil {
			t.Fatal(err)
		}
	}
}
