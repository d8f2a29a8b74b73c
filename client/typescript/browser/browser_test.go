package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/evanw/esbuild/pkg/api"

	"trl/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Suite{M: m}.Run()) }

// patience bounds a scenario; the longest takes 15 s on an idle machine.
const patience = 5 * time.Minute

// notHere are the scenarios that a page cannot pass.
var notHere = map[string]string{
	"a wrong token is refused": "a browser tells a page of another origin nothing about a refused WebSocket",
}

func TestScenariosInChromium(t *testing.T) {
	testkit.StartsProcesses(t)
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no Chromium: make deps")
	}
	dir := t.TempDir()
	bundle(t, filepath.Join(dir, "pages"))
	origin := serve(t, dir)
	page := start(t, program, dir)
	if err := chromedp.Run(page, chromedp.Navigate(origin), chromedp.Poll("typeof run === 'function'", nil, chromedp.WithPollingTimeout(patience))); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile("../../testdata/scenarios.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Scenarios []json.RawMessage `json:"scenarios"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	for _, scenario := range doc.Scenarios {
		var about struct {
			Name string `json:"name"`
			Slow bool   `json:"slow"`
		}
		if err := json.Unmarshal(scenario, &about); err != nil {
			t.Fatal(err)
		}
		t.Run(about.Name, func(t *testing.T) {
			if why := notHere[about.Name]; why != "" {
				t.Skip(why)
			}
			if about.Slow && testing.Short() {
				t.Skip("takes more than ten seconds")
			}
			ctx, cancel := context.WithTimeout(page, patience)
			defer cancel()
			fault := ""
			err := chromedp.Run(ctx, chromedp.Evaluate("run("+string(scenario)+")", &fault, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
				return p.WithAwaitPromise(true)
			}))
			if err != nil {
				t.Fatal(err)
			}
			if fault != "" {
				t.Error(fault)
			}
		})
	}
}

// bundle makes the page that runs scenarios.
func bundle(t *testing.T, dir string) {
	t.Helper()
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{"page.ts"}, Outfile: filepath.Join(dir, "page.js"), Bundle: true, Write: true,
		Format: api.FormatESModule, Platform: api.PlatformBrowser, Target: api.ES2022, LogLevel: api.LogLevelWarning,
	})
	if len(result.Errors) > 0 {
		t.Fatal("the page was not built")
	}
	html := `<!doctype html><title>scenarios</title><script type="module" src="page.js"></script>`
	if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte(html), 0o644); err != nil {
		t.Fatal(err)
	}
}

// serve starts the rig, which serves the page, and returns its address.
func serve(t *testing.T, dir string) string {
	t.Helper()
	program := filepath.Join(dir, "clientrig")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "trl/internal/clientrig").CombinedOutput(); err != nil {
		t.Fatalf("build the rig: %v\n%s", err, out)
	}
	rig := exec.Command(program)
	rig.Env = append(os.Environ(), "TRL_TEST_PAGES="+filepath.Join(dir, "pages"))
	rig.Stderr = os.Stderr
	in, err := rig.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := rig.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Start(rig); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // it ends its gateways, and then itself
		if err := rig.Wait(); err != nil {
			t.Errorf("the rig: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// start starts Chromium and returns the context of a tab.
func start(t *testing.T, program, dir string) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.UserDataDir(filepath.Join(dir, "profile")), chromedp.Env("TMPDIR="+dir), chromedp.WSURLReadTimeout(patience))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's own rule
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}
