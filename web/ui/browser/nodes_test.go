package browser

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"trl/internal/natsrig"
	"trl/internal/rig"
)

// serveNodes starts the nodes n1 and n2 of a cluster. n2 has one process, so a signal stops all of it, and the labels gpu=1 and zone=b.
func serveNodes(t *testing.T) (n1, n2 *gateway) {
	t.Helper()
	if chromium == nil {
		t.Skip("there is no Chromium: make deps")
	}
	nats := natsrig.Start(t, 1)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := func(name string, more ...string) []string {
		return append([]string{"--cluster", strings.Join(nats.URLs(), ","), "--cluster-listen", "127.0.0.1:0", "--cluster-secret", secret, "--node", name}, more...)
	}
	return serve(t, flags("n1", "--node-label", "zone=a")...), serve(t, flags("n2", "--node-label", "zone=b", "--node-label", "gpu=1", "--max-sessions", "40", "--single-process")...)
}

// nodeRow is the row of a node in the pool view; "": that of all nodes.
func nodeRow(name string) string {
	if name == "" {
		name = "All nodes"
	}
	return fmt.Sprintf(`[...document.querySelectorAll(".nodes tbody tr")].find((row) => row.querySelector("button")?.textContent === %q)`, name)
}

// placed chooses where the dialog makes a session, and waits for its terminal.
func (p *page) placed(option string) {
	p.t.Helper()
	n := eval[int](p, `trl.tabs.views.length`)
	p.do(chromedp.Click(`.sidebar-head button[aria-label="New session on a node"]`, chromedp.ByQuery))
	p.until("the dialog offers "+option, fmt.Sprintf(`[...document.querySelectorAll("dialog option:not([disabled])")].some((o) => o.textContent.startsWith(%q))`, option))
	p.run(fmt.Sprintf(`document.querySelector("dialog select").value = [...document.querySelectorAll("dialog option")].find((o) => o.textContent.startsWith(%q)).value`, option))
	p.do(chromedp.Click(`dialog button[value=yes]`, chromedp.ByQuery))
	p.until("a terminal is open", fmt.Sprintf(`trl.tabs.views.length === %d && trl.tabs.current.xterm`, n+1))
	p.prompt()
}

// TestNodesOfACluster: the page at one node shows all nodes and where each session is, makes sessions on a chosen one, and says which one does not answer.
func TestNodesOfACluster(t *testing.T) {
	t.Parallel()
	n1, n2 := serveNodes(t)
	p := n1.open()
	p.until("the page says which node answers", `/node n1/.test(document.querySelector(".statusbar").textContent)`)
	p.until("both nodes take sessions", `trl.nodes.refresh() && trl.nodes.list.filter((n) => n.max_sessions > 0).length === 2`)
	p.until("the filter offers both nodes", `/n1.*n2/.test(document.querySelector(".node-filter:not([hidden])")?.textContent)`)

	on := func(node string) {
		t.Helper()
		p.until("the header and the list say that the session is on "+node, fmt.Sprintf(`trl.tabs.current.element.querySelector(".node-name").textContent === %q && document.querySelector(".session.on .session-facts").textContent.startsWith(%q)`, node, node+" · "))
	}
	p.placed("n2")
	on("n2")
	p.command("echo far $((6*7))")
	p.until("the terminal works", `/^far 42$/m.test(`+text+`)`)
	p.placed("gpu=1 · 1 node")
	on("n2")
	p.until("the name of the node says which labels the session needs", `/n2/.test(trl.tabs.current.element.querySelector(".node-name").textContent) && /stays on nodes with gpu=1$/.test(trl.tabs.current.element.querySelector(".node-name").title)`)

	p.run(`trl.workspace.openPool()`)
	p.until("the table has the nodes with labels and sessions", nodeRow("n2")+` && /ready/.test(`+nodeRow("n2")+`.textContent) && /2 \/ 40/.test(`+nodeRow("n2")+`.textContent) && /gpu=1 zone=b/.test(`+nodeRow("n2")+`.textContent) && /answers here/.test(`+nodeRow("n1")+`.textContent)`)
	p.run(nodeRow("n1") + `.querySelector("button[aria-label='New session on n1']").click()`)
	p.until("a terminal is open", `trl.tabs.current.xterm`)
	p.prompt()
	on("n1")
	p.run(`trl.workspace.openActivity(trl.sessions.list.find((s) => s.node === "n2").session_id)`)
	p.until("the activity says where the session is", `trl.tabs.current.element.querySelector(".agent-state .node-name")?.textContent === "n2" && /Node\s*n2/.test(document.querySelector(".facts").textContent)`)
	p.run(`trl.workspace.openActivity(trl.sessions.list.find((s) => s.where).session_id)`)
	p.until("the activity says which labels the session needs", `[...document.querySelectorAll(".facts")].some((facts) => /Where\s*gpu=1/.test(facts.textContent))`)

	p.run(`((filter) => { filter.value = "n2"; filter.dispatchEvent(new Event("change")) })(document.querySelector(".node-filter"))`)
	p.until("the list shows the sessions of the chosen node", `[...document.querySelectorAll(".session-facts")].map((e) => e.textContent.slice(0, 2)).join() === "n2,n2" && document.querySelector(".count").textContent === "2"`)
	p.run(`((filter) => { filter.value = ""; filter.dispatchEvent(new Event("change")) })(document.querySelector(".node-filter"))`)
	p.until("the list shows all sessions again", `document.querySelectorAll(".session").length === 3`)

	p.run(`trl.workspace.openPool()`)
	tiles := func(what, sessions string) {
		t.Helper()
		p.until(what, fmt.Sprintf(`document.querySelector(".tile dd").textContent.startsWith(%q)`, sessions))
	}
	tiles("the numbers are those of all nodes", "3 / ")
	p.until("the view says what is shown for this node alone", `/shown for n1 alone/.test(document.querySelector(".pool-note").textContent) && document.querySelector(".pool .tables").hidden`)
	p.run(nodeRow("n2") + `.querySelector("button").focus()`)
	p.key("Enter", "Enter")
	tiles("the numbers are those of the chosen node", "2 / 40")
	p.until("the chosen row is marked and keeps the focus", nodeRow("n2")+`.querySelector("button").getAttribute("aria-pressed") === "true" && document.activeElement === `+nodeRow("n2")+`.querySelector("button")`)
	p.run(nodeRow("n1") + `.querySelector("button").click()`)
	tiles("the numbers are those of this node", "1 / ")
	p.until("this node's results and counts are shown", `/Orphans killed/.test(document.querySelector(".pool .tables:not([hidden])")?.textContent)`)
	p.run(nodeRow("") + `.querySelector("button").click()`)
	tiles("the numbers are those of all nodes again", "3 / ")
	p.checkNodesLook()

	n2.rpc(`{"method":"system.drain"}`)
	p.until("the node is shown as draining and offers no new session", `/draining/.test(`+nodeRow("n2")+`.textContent) && `+nodeRow("n2")+`.querySelector("button[aria-label^='New session']").disabled`)
	n2.rpc(`{"method":"system.drain","params":{"undo":true}}`)
	p.until("the node is ready again", `/ready/.test(`+nodeRow("n2")+`.textContent)`)

	many := `trl.nodes.changed.emit(trl.nodes.list = [...Array.from({ length: 300 }, (_, i) => ({ ...trl.nodes.list[1], node: "m" + i, draining: i === 299 })), ...trl.nodes.list.slice(-2)])`
	p.until("of many nodes the table has this one, those that take no sessions, and some others", `(`+many+`, document.querySelectorAll(".nodes tbody button[aria-pressed]").length === 101 && `+nodeRow("n1")+` && `+nodeRow("m299")+` && !`+nodeRow("m298")+` && /^202 more/.test(document.querySelector(".nodes-more").textContent))`) // at once: a refresh shows the real ones
	p.until("a refresh shows the real ones again", `!document.querySelector(".nodes-more")`)

	p.watch( // the node counts for 15 s
		`/n2 does not answer/.test(document.querySelector(".silent-nodes:not([hidden])")?.textContent) && document.querySelectorAll(".session.silent").length === 2 && document.querySelectorAll(".session").length === 3`,
		`/Without n2/.test(document.querySelector(".pool-note").textContent) && /does not answer|cannot be reached/.test(`+nodeRow("n2")+`.textContent)`,
		`document.querySelector(".tile dd").textContent.startsWith("1 / ")`,
	)
	n2.keeper.Process.Signal(syscall.SIGSTOP)
	p.seen("the list says which node does not answer and keeps its sessions", 0)
	p.seen("the pool says so, and sums without it", 1)
	p.seen("the numbers are those of the node that answers", 2)
	p.screenshots("nodes-silent")
	n2.keeper.Process.Signal(syscall.SIGCONT)
	p.until("the node answers again", `document.querySelector(".silent-nodes").hidden && document.querySelectorAll(".session.silent").length === 0 && document.querySelectorAll(".session").length === 3`)
	tiles("the numbers are those of all nodes", "3 / ")
}

// TestTerminalOfAnotherNode: a terminal goes on when the gateway of its node is killed, and when the node is gone the page says so.
func TestTerminalOfAnotherNode(t *testing.T) {
	t.Parallel()
	n1, n2 := serveNodes(t)
	p := n2.open()
	p.until("both nodes take sessions", `trl.nodes.refresh() && trl.nodes.list.filter((n) => n.max_sessions > 0).length === 2`)
	p.placed("n1")
	p.enter("for i in $(seq 1 250); do echo $i; sleep 0.01; done; echo finished")
	p.until("the first lines appear", `/^20$/m.test(`+text+`)`)
	(&rig.Server{Pid: n1.keeper.Process.Pid}).KillGateway(t)
	p.until("the banner says which connection was lost, or that it is there again", `/lost its link to the node|Connection restored/.test(document.querySelector(".banner").textContent)`)
	p.until("the remaining lines appear", `/^finished$/m.test(`+text+`)`)
	if wrong := eval[string](p, fmt.Sprintf(everyLine, text, 250)); wrong != "" {
		t.Error(wrong)
	}
	p.prompt()
	p.enter("echo typed $((1+1))")
	p.until("typing works", `/^typed 2$/m.test(`+text+`)`)

	p.run(`trl.workspace.openPool()`)
	p.run(nodeRow("n1") + `.querySelector("button").click()`)
	p.until("the numbers are those of the other node", `document.querySelector(".tile dd").textContent.startsWith("1 / ")`)
	n1.stop()
	p.until("the node is gone from the table, and the pool shows all nodes", `!(`+nodeRow("n1")+`) && trl.samples.node === ""`)
	p.run(`trl.tabs.select(trl.tabs.views[0])`)
	p.until("the terminal says that its session is gone", `/is closed|has ended/.test(document.querySelector(".pane-note:not([hidden])")?.textContent)`)
}

// TestOneNodeShowsNoNodes: without a cluster the page has nothing of nodes, and does not ask for them.
func TestOneNodeShowsNoNodes(t *testing.T) {
	oneNode(t, "it is about a page without a cluster")
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.run(`((asked) => { const { send } = WebSocket.prototype; trl.asked = asked; WebSocket.prototype.send = function (data) { asked.push(/"method":"([^"]*)"/.exec(data)?.[1]); return send.call(this, data); } })([])`)
	p.newTerminal()
	p.run(`trl.workspace.openActivity(trl.sessions.list[0].session_id)`)
	p.run(`trl.workspace.openPool()`)
	p.until("the pool is drawn", `trl.asked.filter((m) => m === "system.stats").length > 2 && document.querySelector(".tile")`)
	if shown := eval[string](p, `[...document.querySelectorAll(".nodes, .node-filter, .node-name, .silent-nodes, .pool-note, button[aria-label='New session on a node']")].filter((e) => e.checkVisibility()).map((e) => e.outerHTML).join()`); shown != "" {
		t.Errorf("the page shows %s", shown)
	}
	if n := eval[int](p, `trl.asked.filter((m) => m === "system.nodes").length`); n != 0 {
		t.Errorf("the page has asked for the nodes %d times", n)
	}
	if facts := eval[string](p, `document.querySelector(".session-facts").textContent`); !strings.HasPrefix(facts, "bash") && !strings.HasPrefix(facts, "sh") {
		t.Errorf("the list shows %q", facts)
	}
}

// rpc sends one request to this gateway.
func (g *gateway) rpc(request string) {
	g.t.Helper()
	r, err := http.NewRequest("POST", "http://"+g.addr+"/v1/rpc", strings.NewReader(request))
	if err != nil {
		g.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+g.token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		g.t.Fatalf("%s: %s %s", request, answer.Status, text)
	}
}

// checkNodesLook checks the pool view and the list, with two nodes, for accessibility in both schemes, and that nothing is cut at the width of a phone.
func (p *page) checkNodesLook() {
	p.t.Helper()
	axe, err := os.ReadFile(filepath.Join("..", "testdata", "axe.min.js"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.do(chromedp.Evaluate(string(axe)+"\n;undefined", nil))
	p.violations("nodes")
	p.do(chromedp.Click(`.sidebar-head button[aria-label="New session on a node"]`, chromedp.ByQuery))
	p.until("the dialog is open", `document.querySelector("dialog select")`)
	p.violations("place of a session")
	p.screenshots("nodes-place")
	p.key("Escape", "Escape")
	p.until("the dialog is closed", `!document.querySelector("dialog")`)
	p.screenshots("nodes-pool")
	p.do(chromedp.EmulateViewport(375, 667, chromedp.EmulateMobile, chromedp.EmulateTouch))
	p.until("no node is cut on a phone", `((all) => all.length > 0 && all.every((e) => { const box = e.getBoundingClientRect(); return box.left >= 0 && box.right <= innerWidth + .5; }))([...document.querySelectorAll(".nodes button, .nodes td, .pool-note")])`)
	p.do(chromedp.EmulateViewport(1280, 800), emulation.SetTouchEmulationEnabled(false))
}

// screenshots takes pictures of the page if TRL_SCREENSHOTS_NODES names a folder for them: in both schemes, on a desk and on a phone.
func (p *page) screenshots(name string) {
	p.t.Helper()
	dir := os.Getenv("TRL_SCREENSHOTS_NODES")
	if dir == "" {
		return
	}
	for _, phone := range []bool{false, true} {
		width, height := int64(1280), int64(800)
		if phone {
			width, height = 390, 780
		}
		for _, scheme := range []string{"light", "dark"} {
			p.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}), chromedp.EmulateViewport(width, height))
			p.until("everything is drawn", `new Promise((drawn) => setTimeout(() => requestAnimationFrame(() => drawn(true)), 400))`)
			var png []byte
			p.do(chromedp.ActionFunc(func(ctx context.Context) (err error) {
				png, err = cdppage.CaptureScreenshot().Do(ctx)
				return err
			}))
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%t.png", name, scheme, phone)), png, 0o644); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	p.do(emulation.SetEmulatedMedia(), chromedp.EmulateViewport(1280, 800))
}
