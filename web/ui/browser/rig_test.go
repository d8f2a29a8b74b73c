package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"trl/internal/natsrig"
	"trl/internal/testkit"
)

// patience bounds every wait on a busy machine, where some megabytes take Chromium a minute to draw.
const patience = 3 * time.Minute

var (
	chromium context.Context // of the one browser; set once in TestMain, nil without Chromium
	trl      string          // the program; set once in TestMain
)

func TestMain(m *testing.M) {
	testkit.HearSignals()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "trl-browser-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		trl = filepath.Join(dir, "trl")
		if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", trl, "trl/cmd/trl").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build trl: %v\n%s", err, out)
			return 1
		}
		path := findChromium()
		if path == "" {
			return m.Run() // each test says that it is skipped
		}
		options := append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(path), chromedp.UserDataDir(filepath.Join(dir, "profile")), chromedp.Env("TMPDIR="+dir), chromedp.WSURLReadTimeout(patience),
			chromedp.Flag("enable-unsafe-swiftshader", true), // WebGL without a graphics card
		)
		if os.Getuid() == 0 {
			options = append(options, chromedp.NoSandbox) // Chromium's own rule
		}
		allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
		defer stop()
		var cancel context.CancelFunc
		chromium, cancel = chromedp.NewContext(allocator)
		defer cancel()
		if err := chromedp.Run(chromium); err != nil {
			fmt.Fprintln(os.Stderr, "start Chromium:", err)
			return 1
		}
		return m.Run()
	}())
}

func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// gateway is a `trl serve` with a state dir of its own. If TRL_TEST_RELAY is set, it owns no session: a second node has them, and the page cannot tell.
type gateway struct {
	t      testing.TB
	dir    string // its state
	home   string // of its sessions
	addr   string
	token  string
	keeper *exec.Cmd
	owner  *gateway       // the node that has the sessions; nil: this one
	nats   *natsrig.Alone // of both; nil: there is one node
}

var relayed = os.Getenv("TRL_TEST_RELAY") != ""

// oneNode skips a test that is about a page without a cluster, and says why.
func oneNode(t testing.TB, why string) {
	t.Helper()
	if relayed {
		t.Skip("not run at a node that owns no session: " + why)
	}
}

func serve(t testing.TB, args ...string) *gateway {
	t.Helper()
	if chromium == nil {
		t.Skip("there is no Chromium: make deps")
	}
	g := &gateway{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	g.home = g.dir
	if relayed && !slices.Contains(args, "--cluster") {
		var err error
		if g.nats, err = natsrig.StartAlone(t.TempDir()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.nats.End)
		g.owner = &gateway{t: t, dir: filepath.Join(g.dir, "owner"), addr: "127.0.0.1:0", home: g.home}
		if err := os.Mkdir(g.owner.dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	g.start(args...)
	t.Cleanup(g.stop)
	return g
}

// start starts the gateway, and starts it again at its first address.
func (g *gateway) start(args ...string) {
	g.t.Helper()
	if g.nats == nil {
		g.startOne(args)
		return
	}
	g.startOne(append(g.nats.Gate(), args...)) // the first time it makes the tokens
	g.owner.token = g.token
	g.owner.startOne(slices.Concat(g.nats.Owner(), []string{"--token-file", filepath.Join(g.dir, "tokens")}, args))
	testkit.Eventually(g.t, "the nodes know each other", func() bool {
		nodes := exec.Command(trl, "nodes")
		nodes.Env = append(os.Environ(), "TRL_STATE_DIR="+g.dir)
		out, _ := nodes.CombinedOutput()
		return bytes.Contains(out, []byte("owner   ready"))
	})
}

// startOne starts one node. Another connection of this machine may use its port for a moment.
func (g *gateway) startOne(args []string) {
	g.t.Helper()
	for until := time.Now().Add(time.Minute); !g.tryStart(args...); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			g.t.Fatalf("address %s stays in use", g.addr)
		}
	}
}

// tryStart returns false if the address is in use.
func (g *gateway) tryStart(args ...string) bool {
	g.t.Helper()
	g.keeper = exec.Command(trl, append([]string{"serve", "--listen", g.addr, "--state-dir", g.dir, "--default-dir", g.home}, args...)...)
	g.keeper.Env = append(os.Environ(), "HOME="+g.home, "HISTFILE=/dev/null")
	out, err := g.keeper.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	logged, err := os.Create(filepath.Join(g.dir, "log"))
	if err != nil {
		g.t.Fatal(err)
	}
	defer logged.Close()
	g.keeper.Stderr = logged
	if err := testkit.Start(g.keeper); err != nil {
		g.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for listening := false; !listening || g.token == ""; { // a start on a token file that is there tells no token
		if !lines.Scan() {
			err := g.keeper.Wait()
			log, _ := os.ReadFile(logged.Name())
			if bytes.Contains(log, []byte("address already in use")) {
				return false
			}
			g.t.Fatalf("trl serve ended: %v: %s", err, log)
		}
		if url, ok := strings.CutPrefix(lines.Text(), "trl: listening on http://"); ok {
			g.addr, listening = url, true
		}
		if _, token, ok := strings.Cut(lines.Text(), "#token="); ok {
			g.token = token
		}
	}
	return true
}

// stop ends the gateway with TERM.
func (g *gateway) stop() {
	if g.owner != nil {
		defer g.owner.stop()
	}
	g.keeper.Process.Signal(syscall.SIGTERM)
	g.keeper.Wait()
}

// crash ends the gateway and its keeper with KILL.
func (g *gateway) crash() {
	if g.owner != nil {
		defer g.owner.crash()
	}
	g.keeper.Process.Kill()
	g.keeper.Wait()
}

// run runs a command over the API, like the program of an agent.
func (g *gateway) run(session, command string) string {
	g.t.Helper()
	out, _ := g.command(session, command).CombinedOutput() // a command that fails is a result
	return string(out)
}

func (g *gateway) command(session, command string) *exec.Cmd {
	cmd := exec.Command(trl, "run", "--session", session, "--", command)
	cmd.Env = append(os.Environ(), "TRL_STATE_DIR="+g.dir)
	return cmd
}

// background starts a command over the API and does not wait for its end.
func (g *gateway) background(session, command string) {
	g.t.Helper()
	cmd := g.command(session, command)
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// proxy is a TCP proxy between the browser and the gateway that tests can cut.
type proxy struct {
	net.Listener
	to string

	mu    sync.Mutex
	open  map[net.Conn]struct{} // guarded by mu
	close bool                  // guarded by mu; new connections are closed
	quiet bool                  // guarded by mu; connections stay open and bytes are dropped
}

func (g *gateway) proxy() *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	p := &proxy{Listener: l, to: g.addr, open: map[net.Conn]struct{}{}}
	g.t.Cleanup(func() { l.Close(); p.cut() })
	go func() { // accepts; ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.relay(c) // ends with the connection
		}
	}()
	return p
}

func (p *proxy) relay(c net.Conn) {
	defer c.Close()
	p.mu.Lock()
	closed := p.close
	p.open[c] = struct{}{}
	p.mu.Unlock()
	if closed {
		return
	}
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer up.Close()
	done := make(chan struct{}, 2)
	pipe := func(to, from net.Conn) { // ends with either side
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			p.mu.Lock()
			quiet := p.quiet
			p.mu.Unlock()
			if n > 0 && !quiet {
				if _, err := to.Write(buf[:n]); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		done <- struct{}{}
	}
	go pipe(up, c)
	go pipe(c, up)
	<-done
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
}

// cut kills every connection and lets none through until mend.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.close = true
	for c := range p.open {
		c.(*net.TCPConn).SetLinger(0) // RST
		c.Close()
	}
}

// hush drops all bytes until mend and leaves the connections open.
func (p *proxy) hush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.quiet = true
}

// mend lets bytes through again. Connections that lost bytes end.
func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet {
		for c := range p.open {
			c.Close()
		}
	}
	p.close, p.quiet = false, false
}

// page is one tab. An error in its log, an exception, or a request to another server than its gateway fails the test.
type page struct {
	t       testing.TB
	ctx     context.Context
	profile cdp.BrowserContextID
	origin  string

	mu      sync.Mutex
	faults  []string // guarded by mu
	offline bool     // guarded by mu: failed connections are expected
}

// open logs in and opens the page, in a browser context of its own.
func (g *gateway) open(options ...chromedp.Action) *page {
	g.t.Helper()
	return g.openAt("http://"+g.addr, g.token, options...)
}

func (g *gateway) openAt(origin, token string, options ...chromedp.Action) *page {
	g.t.Helper()
	profile, err := target.CreateBrowserContext().Do(browserOf(chromium))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = target.DisposeBrowserContext(profile).Do(browserOf(chromium)) }) // else it ends with the browser
	p := newPage(g.t, profile, origin)
	p.do(append([]chromedp.Action{chromedp.EmulateViewport(1280, 800)}, options...)...)
	p.do(chromedp.ActionFunc(func(ctx context.Context) error { // software WebGL is slow; one test has it
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(`localStorage["trl.settings"] ??= '{"webgl":false}'`).Do(ctx)
		return err
	}))
	p.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(`{
			globalThis.noticed = ""; // notices that have gone by themselves
			const { remove } = Element.prototype;
			Element.prototype.remove = function () {
				if (this.classList.contains("notice")) noticed += this.textContent + "\n";
				remove.call(this);
			};
		}`).Do(ctx)
		return err
	}))
	p.do(chromedp.Navigate(origin + "/login#token=" + token))
	p.until("the page is connected", `typeof trl === "object" && trl.connection.up && trl.sessions.loaded && !!trl.workspace.capabilities`)
	return p
}

// another opens one more tab of the same browser context, and so of the same person.
func (p *page) another(address string) *page {
	p.t.Helper()
	q := newPage(p.t, p.profile, p.origin)
	q.do(chromedp.EmulateViewport(1000, 600), chromedp.Navigate(p.origin+"/"+address))
	q.until("the page is connected", `typeof trl === "object" && trl.connection.up && trl.sessions.loaded && !!trl.workspace.capabilities`)
	return q
}

func newPage(t testing.TB, profile cdp.BrowserContextID, origin string) *page {
	t.Helper()
	// A window of its own: without one a profile that is new has nowhere to put a tab.
	id, err := target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(browserOf(chromium))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(chromium, chromedp.WithTargetID(id))
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 4*patience)
	t.Cleanup(cancel)
	p := &page{t: t, ctx: ctx, profile: profile, origin: origin}
	chromedp.ListenTarget(ctx, p.hear)
	p.do(network.Enable(), log.Enable(), emulation.SetFocusEmulationEnabled(true))
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, fault := range p.faults {
			t.Error(fault)
		}
	})
	return p
}

func (p *page) hear(ev any) {
	fault := ""
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := ev.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeAssert {
			text, _ := json.Marshal(e.Args)
			fault = "console: " + string(text)
		}
	case *runtime.EventExceptionThrown:
		fault = "exception: " + e.ExceptionDetails.Error()
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError && !(p.offline && e.Entry.Source == log.SourceNetwork) && !(p.offline && strings.Contains(e.Entry.Text, "WebSocket")) {
			fault = fmt.Sprintf("log: %s %s", e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, p.origin+"/") && !strings.HasPrefix(u, "blob:"+p.origin) {
			fault = "request to " + u
		}
	case *network.EventWebSocketCreated:
		if !strings.HasPrefix(e.URL, strings.Replace(p.origin, "http", "ws", 1)+"/") {
			fault = "WebSocket to " + e.URL
		}
	}
	if fault != "" {
		p.faults = append(p.faults, fault)
	}
}

// expectOffline allows requests to fail from now on.
func (p *page) expectOffline() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offline = true
}

func (p *page) do(actions ...chromedp.Action) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// eval returns the value of an expression, or of its promise.
func eval[T any](p *page, js string) T {
	p.t.Helper()
	var v T
	err := chromedp.Run(p.ctx, chromedp.Evaluate(js, &v, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	if err != nil {
		p.t.Fatalf("%s: %v", js, err)
	}
	return v
}

func (p *page) run(js string) {
	p.t.Helper()
	eval[any](p, "("+js+", undefined)")
}

// until waits for an expression to become true.
func (p *page) until(what, js string) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(40 * time.Millisecond) {
		var ok bool
		err := chromedp.Run(p.ctx, chromedp.Evaluate("!!("+js+")", &ok))
		if err == nil && ok {
			return
		}
		if time.Now().After(end) {
			var text string
			_ = chromedp.Run(p.ctx, chromedp.Evaluate(`document.body.innerText + "\n---\n" + (globalThis.trl?.tabs.current?.text?.() ?? "").slice(-2000)`, &text))
			p.t.Fatalf("not in time: %s (%s, %v); the page shows:\n%s", what, js, err, text)
		}
	}
}

// watch begins to note, in the page, which of these expressions have been true. seen waits for one by its number. A busy machine may let us look only when
// what lasts some seconds is over.
func (p *page) watch(expressions ...string) {
	p.t.Helper()
	p.run(`(trl.seen = [], setInterval(() => [() => ` + strings.Join(expressions, ", () => ") + `].forEach((is, n) => { try { trl.seen[n] ||= !!is(); } catch {} }), 100))`)
}

func (p *page) seen(what string, n int) {
	p.t.Helper()
	p.until(what, fmt.Sprintf(`trl.seen[%d]`, n))
}

// newTerminal opens a session with a terminal by its button and waits for the prompt.
func (p *page) newTerminal() {
	p.t.Helper()
	n := eval[int](p, `trl.tabs.views.length`)
	p.do(chromedp.Click(`.sidebar-head button`, chromedp.ByQuery))
	p.until("a terminal is open", fmt.Sprintf(`trl.tabs.views.length === %d && trl.tabs.current.xterm`, n+1))
	p.prompt()
}

// prompt waits until the shell waits for a command.
func (p *page) prompt() {
	p.t.Helper()
	p.until("the prompt appears", `/[#$] $/.test(`+lastLine+`)`)
}

const (
	screen   = `Array.from({length: trl.tabs.current.xterm.rows}, (_, y) => { const b = trl.tabs.current.xterm.buffer.active; return b.getLine(b.viewportY + y)?.translateToString(true) ?? "" }).join("\n")`
	lastLine = `(() => { const b = trl.tabs.current.xterm.buffer.active; return b.getLine(b.baseY + b.cursorY).translateToString(false, 0, b.cursorX) })()`
	text     = `trl.tabs.current.text()`
	// notices is what the page has said in notices, also in those that have gone meanwhile: they stay for four seconds.
	notices = `(noticed + document.querySelector(".notices").textContent)`
	// tail is the end of it, for waits: to make text of 200,000 lines again and again takes longer than to draw them.
	tail = `(() => { const b = trl.tabs.current.xterm.buffer.normal; return Array.from({length: Math.min(60, b.length)}, (_, n) => b.getLine(b.length - Math.min(60, b.length) + n).translateToString(true)).join("\n") })()`
)

// Modifiers of a key.
const (
	ctrl  = input.ModifierCtrl
	shift = input.ModifierShift
)

// key presses and releases a key like a keyboard. code is the place of the key, key its value.
func (p *page) key(key, code string, modifiers ...input.Modifier) {
	p.t.Helper()
	var all input.Modifier
	for _, m := range modifiers {
		all |= m
	}
	down := input.DispatchKeyEvent(input.KeyDown).WithKey(key).WithCode(code).WithModifiers(all)
	if vk := virtual(key, code); vk != 0 {
		down = down.WithWindowsVirtualKeyCode(vk)
	}
	if text := printed(key); text != "" && all&ctrl == 0 {
		down = down.WithText(text)
	}
	up := input.DispatchKeyEvent(input.KeyUp).WithKey(key).WithCode(code).WithModifiers(all)
	p.do(down, up)
}

func printed(key string) string {
	switch {
	case key == "Enter":
		return "\r"
	case len([]rune(key)) == 1:
		return key
	}
	return ""
}

// virtual returns the Windows code of a key, which xterm.js still uses.
func virtual(key, code string) int64 {
	named := map[string]int64{
		"Enter": 13, "Escape": 27, "Tab": 9, "Backspace": 8, "Delete": 46, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32,
	}
	if vk := named[key]; vk != 0 {
		return vk
	}
	if letter, ok := strings.CutPrefix(code, "Key"); ok {
		return int64(letter[0])
	}
	return 0
}

// enter inserts text at once, like an input method, and presses Enter. Tests of keys use write.
func (p *page) enter(text string) {
	p.t.Helper()
	p.do(input.InsertText(text))
	p.key("Enter", "Enter")
}

// command types a command and waits until its shell says that it has ended.
func (p *page) command(text string) {
	p.t.Helper()
	const ended = `trl.tabs.current.marks.blocks.filter((b) => b.ended).length`
	before := eval[int](p, ended)
	p.enter(text)
	p.until(text+" has ended", fmt.Sprintf(`%s > %d`, ended, before))
	p.prompt()
}

func (p *page) write(text string) {
	p.t.Helper()
	for _, r := range text {
		code := ""
		if r >= 'a' && r <= 'z' {
			code = "Key" + strings.ToUpper(string(r))
		}
		p.key(string(r), code)
	}
}

// waitFor waits for a condition that no page shows.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}
