package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

const sessionID = `trl.sessions.list.find((s) => s.name === "%s")?.session_id`

func (p *page) openActivity(session string) {
	p.t.Helper()
	p.until("the session is listed", fmt.Sprintf(sessionID, session))
	p.run(fmt.Sprintf(`trl.workspace.openActivity(`+sessionID+`)`, session))
}

func TestActivityOfASessionDrivenOverTheAPI(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	g.run("agent", "echo before the page looked; echo to stderr >&2; (exit 4)")
	p.openActivity("agent")
	block := func(n int) string { return fmt.Sprintf(`document.querySelectorAll(".block")[%d]`, n) }
	p.until("the earlier command has a block with its end", `/exit 4/.test(`+block(0)+`?.textContent)`)
	p.until("its output is shown, with stderr marked", block(0)+`.querySelector(".stdout")?.textContent.includes("before the page looked") && `+block(0)+`.querySelector(".stderr")?.textContent.includes("to stderr")`)

	g.background("agent", "echo live; sleep 600")
	p.until("the running command has a block", `/live/.test(`+block(1)+`?.querySelector(".output").textContent) && /running/.test(`+block(1)+`.textContent)`)
	g.background("agent", "echo waits for its turn")
	p.until("the queue is shown", `/waits for its turn/.test(document.querySelector(".queue").textContent)`)

	if !eval[bool](p, block(1)+`.querySelector(".danger").disabled`) {
		t.Error("Cancel is enabled before the person has taken over")
	}
	p.do(chromedp.Click(`.agent .pane-tools button:not(.icon)`, chromedp.ByQuery))
	p.until("the person has taken over", `!document.querySelector(".prompt").hidden && !`+block(1)+`.querySelector(".danger").disabled`)
	p.run(block(1) + `.querySelector(".danger").click()`)
	p.until("the command is shown as cancelled", `/cancelled/.test(`+block(1)+`.querySelector(".block-status").textContent)`)
	p.until("the queue goes on", `/waits for its turn/.test(`+block(2)+`?.querySelector(".output").textContent)`)

	p.run(`document.querySelector(".prompt textarea").focus()`)
	p.run(`((c, tell) => { c.tell = (event, data) => setTimeout(() => tell.call(c, event, data), event === "exec.started" ? 500 : 0) })(trl.connection.client, trl.connection.client.tell)`) // output may overtake it
	p.enter("seq 1 100000; sleep 2; echo end")
	p.until("the long output is cut in the middle and says so", `/1\n2\n3\n/.test(`+block(3)+`?.querySelector(".output").textContent) && /100000\nend\n$/.test(`+block(3)+`.querySelector(".output").textContent) && /not shown/.test(`+block(3)+`.querySelector(".output-cut").textContent)`)

	// A background process, with its port and its log.
	p.run(fmt.Sprintf(`trl.connection.call("process.start", {session_id: `+sessionID+`, name: "web", command: "python3 -u -m http.server 0"})`, "agent"))
	p.until("the process and its port are shown", `/^:\d+$/.test(document.querySelector(".process .port")?.textContent)`)
	p.do(chromedp.Click(`.process button`, chromedp.ByQuery))
	p.until("the log of the process is shown", `/Serving HTTP/.test(document.querySelector(".process .output")?.textContent)`)
	p.do(chromedp.Click(`.process .danger`, chromedp.ByQuery))
	p.until("the process has ended", `document.querySelector(".process").dataset.state === "exited"`)

	p.run(fmt.Sprintf(`trl.connection.call("session.destroy", {session_id: `+sessionID+`, force: true})`, "agent"))
	p.until("the end of the session is shown", `/ended: client/.test(document.querySelector(".agent-state").textContent)`)
}

func TestPoolShowsNumbersOverTime(t *testing.T) {
	oneNode(t, "rates are drawn from the /metrics of the node that answers, and that has no sessions")
	t.Parallel()
	g := serve(t)
	p := g.open()
	g.run("busy", "true")
	p.run(`trl.workspace.openPool()`)
	p.until("the pool has two samples", `document.querySelectorAll(".plot polyline").length >= 3`)
	for range 3 {
		g.run("busy", "true; (exit 1)")
	}
	p.until("the plot counts the failed commands", `trl.samples.samples.some((s) => s.failed > 0 && s.p50 > 0)`)
	p.until("the tiles are shown", `/Sessions\s*1 \//.test(document.querySelector(".tiles").textContent.replace("Sessions", "Sessions "))`)
	p.until("the table of cleanups is shown", `/Orphans killed/.test(document.querySelector(".tables").textContent)`)
}

func TestSessionsAreListedRenamedAndEnded(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.until("an empty list says what to do", `/No sessions/.test(document.querySelector(".sidebar .empty").textContent)`)
	g.run("listed", "head -c 8000000 /dev/zero > /dev/null; (exit 9)")
	row := `document.querySelector(".session")`
	p.until("the list shows name, age, owner, end and memory", `/listed/.test(`+row+`?.textContent) && /exit 9/.test(`+row+`.textContent) && /admin/.test(`+row+`.textContent) && /[KM]B/.test(`+row+`.textContent)`)
	g.background("listed", "sleep 601")
	p.until("the list shows the running command and its time", `/sleep 601/.test(`+row+`.textContent) && `+row+`.dataset.state === "RUNNING"`)

	p.run(`document.querySelector('.session button[aria-label="Rename"]').click()`)
	p.until("the page asks for the name", `document.querySelector("dialog input")`)
	p.run(`document.querySelector("dialog input").select()`)
	p.enter("renamed")
	p.until("the session has the new name", `/renamed/.test(`+row+`.textContent)`)
	p.run(`document.querySelector('.session button[aria-label="End session"]').click()`)
	p.until("the page asks before it ends the session", `/sleep 601/.test(document.querySelector("dialog")?.textContent)`)
	p.do(chromedp.Click(`dialog button[value=yes]`, chromedp.ByQuery))
	p.until("the session has ended", row+`.dataset.state === "TERMINATED" && /ended: client/.test(`+row+`.textContent)`)
}

func TestEverythingByKeyboard(t *testing.T) {
	t.Parallel()
	g := serve(t)
	g.run("one", "true")
	p := g.open()
	p.key("Enter", "Enter", ctrl, shift)
	p.until("a new session has a terminal with the focus", `trl.tabs.current?.xterm && document.activeElement.classList.contains("xterm-helper-textarea")`)
	p.prompt()
	p.key("L", "KeyL", ctrl, shift)
	p.until("the list has the focus", `document.activeElement.closest(".sidebar")`)
	p.run(`document.querySelector(".session-open").focus()`)
	p.key("Tab", "Tab")
	p.until("Tab goes to the session's buttons", `document.activeElement.getAttribute("aria-label") === "Activity"`)
	p.key("Enter", "Enter")
	p.until("the activity of the session is open and has the focus", `trl.tabs.current.key.startsWith("activity/") && document.activeElement.closest(".agent")`)
	p.key("ArrowLeft", "ArrowLeft", ctrl, shift)
	p.until("the previous tab is shown", `trl.tabs.current.xterm`)
	p.key("H", "KeyH", ctrl, shift)
	p.until("the keys are shown", `/Ctrl\+Shift\+F|Search in the terminal/.test(document.querySelector("dialog")?.textContent)`)
	p.key("Escape", "Escape")
	p.until("the terminal has the focus again", `!document.querySelector("dialog") && document.activeElement.classList.contains("xterm-helper-textarea")`)
	for _, never := range []string{"R", "W", "T"} {
		if eval[bool](p, `(() => { const e = new KeyboardEvent("keydown", {key: "`+strings.ToLower(never)+`", code: "Key`+never+`", ctrlKey: true, bubbles: true, cancelable: true}); document.body.dispatchEvent(e); return e.defaultPrevented; })()`) {
			t.Errorf("the page binds Ctrl+%s", never)
		}
	}
}

func TestPhoneHasKeysAndADrawer(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open(chromedp.EmulateViewport(390, 760, chromedp.EmulateMobile, chromedp.EmulateTouch))
	p.until("the list is hidden", `getComputedStyle(document.querySelector(".sidebar")).visibility === "hidden"`)
	p.do(chromedp.Click(`.menu`, chromedp.ByQuery))
	p.until("the list is shown", `getComputedStyle(document.querySelector(".sidebar")).visibility === "visible" && document.querySelector(".sidebar").getBoundingClientRect().left === 0`)
	p.newTerminal()
	p.until("the list is hidden again", `getComputedStyle(document.querySelector(".sidebar")).visibility === "hidden"`)
	p.until("the keys are shown", `getComputedStyle(document.querySelector(".keybar")).display === "flex"`)
	p.enter("cat")
	p.until("cat runs", `trl.tabs.current.marks.running`)
	p.write("x")
	p.until("the text is typed", `/^x$/m.test(`+screen+`)`) // Ctrl-C throws away what is typed and not read yet
	p.do(chromedp.Click(`.keybar button[aria-label^="Control"]`, chromedp.ByQuery))
	p.write("c")
	p.until("Ctrl of the key bar and C of the keyboard make Ctrl-C", `/\^C/.test(`+screen+`)`)
	p.prompt()
	p.do(chromedp.Click(`.keybar button[aria-label="Up"]`, chromedp.ByQuery))
	p.until("the arrow key moves", lastLine+`.endsWith("cat")`)
	if over := eval[int](p, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
		t.Errorf("the page is %d pixels too wide", over)
	}
}

// TestNothingIsCutOnAPhone: at a width of 375 pixels everything is visible or can be scrolled to.
func TestNothingIsCutOnAPhone(t *testing.T) {
	t.Parallel()
	g := serve(t, "--record", "all")
	p := g.open(chromedp.EmulateViewport(375, 667, chromedp.EmulateMobile, chromedp.EmulateTouch))
	p.do(chromedp.Click(`.welcome .primary`, chromedp.ByQuery))
	p.until("a terminal is open", `trl.tabs.current?.xterm`)
	p.prompt()
	p.command("echo a command that is too long for a line of a telephone, and then some")
	inside := func(what, selector string) {
		t.Helper()
		p.until(what, fmt.Sprintf(`((all) => all.length > 0 && all.every((e) => { const box = e.getBoundingClientRect(); return box.width > 0 && box.left >= 0 && box.right <= innerWidth + .5; }))([...document.querySelectorAll(%q)])`, selector))
	}
	q := p.another(eval[string](p, `location.hash`))
	p.until("the page shows two viewers", `!document.querySelector(".viewers-count").hidden`)
	inside("the number of viewers, and the latency", ".viewers-count, .latency")
	q.do(chromedp.Navigate("about:blank"))

	p.run(`document.querySelector('button[aria-label="Keys"]').click()`)
	inside("the keys", "dialog, dialog kbd, dialog td, dialog p, dialog button")
	if over := eval[int](p, `(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(document.querySelector("dialog"))`); over > 0 {
		t.Errorf("the keys are %d pixels too wide", over)
	}
	p.key("Escape", "Escape")
	p.until("the dialog is closed", `!document.querySelector("dialog")`)

	p.run(`trl.workspace.openRecordings()`)
	inside("what can be done with a recording", ".recordings-tools > *")
	p.run(`trl.workspace.openPool()`)
	p.run(`trl.workspace.openActivity(trl.sessions.list[0].session_id)`)
	inside("the tab of what is in sight", ".tab.on")
	p.run(`trl.tabs.select(trl.tabs.views[0])`)
	inside("the first one's", ".tab.on")
}

func TestLongCommandInAHiddenTabIsAnnounced(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.run(`trl.choose({notify: true})`)
	// A hidden tab and a notification are hard to have without a screen: the page is told that it is hidden, and its clock is moved on.
	p.run(`(globalThis.told = [], globalThis.Notification = class { static permission = "granted"; constructor(title, o) { told.push(title + " " + o.body); } close() {} })`)
	p.enter("read; (exit 5)")
	p.until("the command runs", `trl.tabs.current.marks.running`)
	p.run(`(trl.tabs.current.marks.running.began -= 11000, Object.defineProperty(document, "hidden", {get: () => true, configurable: true}))`)
	p.enter("") // ends the command
	p.until("a notification reports the end", `/read; \(exit 5\): exit 5 .*after [1-9]\d s, in web-1/.test(told[0])`)
	p.until("the title reports the end", `/exit 5/.test(document.title)`)
}

func TestNoSeriousAccessibilityViolations(t *testing.T) {
	axe, err := os.ReadFile(filepath.Join("..", "testdata", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	g := serve(t)
	g.run("agent", "echo out; echo err >&2; false")
	p := g.open()
	check := p.violations
	p.do(chromedp.Evaluate(string(axe)+"\n;undefined", nil))
	check("welcome")
	p.newTerminal()
	p.command("ls /nope")
	check("terminal")
	p.key("F", "KeyF", ctrl, shift)
	check("search")
	p.key("Escape", "Escape")
	p.openActivity("agent")
	p.until("a block is shown", `document.querySelector(".block .stderr")`)
	check("activity")
	p.do(chromedp.Click(`.agent .pane-tools button:not(.icon)`, chromedp.ByQuery))
	check("activity, taken over")
	p.run(`trl.workspace.openPool()`)
	lines := 3
	if relayed { // rates are those of a node alone
		lines = 1
	}
	p.until("the plots are shown", fmt.Sprintf(`document.querySelectorAll(".plot polyline").length >= %d`, lines))
	check("pool")
	p.do(chromedp.Click(`.topbar-tools button[aria-label=Settings]`, chromedp.ByQuery))
	check("settings")
	p.key("Escape", "Escape")
	p.key("H", "KeyH", ctrl, shift)
	check("keys")
}

// violations looks, in both schemes, for serious violations of the rules of accessibility. The page has loaded axe.
func (p *page) violations(view string) {
	p.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		p.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
		p.until("the terminal has the colours", fmt.Sprintf(`!trl.tabs.current?.xterm || (trl.tabs.current.xterm.options.theme.background === "#ffffff") === %t`, scheme == "light"))
		p.until("the renderer has the colours", `(() => {
			const rows = document.querySelector(".xterm-rows"), probe = document.createElement("i");
			if (!rows) return true;
			probe.style.color = trl.tabs.current.xterm.options.theme.foreground;
			document.body.append(probe);
			const same = getComputedStyle(probe).color === getComputedStyle(rows).color;
			probe.remove();
			return same;
		})()`)
		p.until("no animation runs", `document.getAnimations().length === 0`)
		found := eval[string](p, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.filter((v) => v.impact === "serious" || v.impact === "critical")
			.map((v) => v.id + ": " + v.help + "\n" + v.nodes.map((n) => "  " + n.html.slice(0, 200) + "\n  " + n.failureSummary).join("\n")).join("\n"))`)
		if found != "" {
			p.t.Errorf("%s, %s:\n%s", view, scheme, found)
		}
	}
}

func TestScrollbackIsDownloaded(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	dir := p.downloads()
	p.newTerminal()
	p.command("seq 1 5000")
	p.key("S", "KeyS", ctrl, shift)
	file := p.downloaded(dir)
	body, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(body), "\n1\n2\n3\n") || !strings.Contains(string(body), "\n4999\n5000\n") || !strings.HasSuffix(file, ".txt") {
		t.Errorf("%s: %d bytes, %v", file, len(body), err)
	}
}

// TestBusyTerminalIsBusyInEveryWindow: a session whose terminal runs something is busy in every window, whether the terminal is open there or not.
func TestBusyTerminalIsBusyInEveryWindow(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.enter("sleep 1000")
	p.until("the command runs", `trl.tabs.current.marks.running`)
	const row = `document.querySelector(".session")`
	const busy = `/sleep 1000/.test(` + row + `.querySelector(".session-doing").textContent) && ` + row + `.classList.contains("busy")`
	q := p.another("#/pool")
	q.until("another page shows the session as busy", busy)
	p.run(`trl.tabs.close(trl.tabs.current)`)
	asked := eval[int](p, `(trl.listed = 0, trl.sessions.changed.on(() => trl.listed++), trl.listed)`)
	p.until("the list was requested twice", fmt.Sprintf(`trl.listed > %d`, asked+1))
	if !eval[bool](p, busy) {
		t.Errorf("after its tab was closed the row says %s", eval[string](p, row+`.innerText`))
	}
	q.run(row + `.querySelector('button[aria-label="End session"]').click()`)
	q.until("the dialog says what runs", `/running sleep 1000/.test(document.querySelector("dialog")?.textContent)`)
	q.key("Escape", "Escape")
	q.openActivity("web-1")
	q.until("the activity view shows that it runs", `/running in a terminal/.test(document.querySelector(".agent-state").textContent)`)
}

// TestUnnamedSessionsCanBeToldApart: the page shows unnamed sessions under different names, and a tab keeps the name of its session after its end.
func TestUnnamedSessionsCanBeToldApart(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.run(`trl.connection.call("session.create", {})`)
	p.run(`trl.connection.call("session.create", {})`)
	p.until("both sessions are listed", `document.querySelectorAll(".session-name").length === 2`)
	if names := eval[[]string](p, `[...document.querySelectorAll(".session-name")].map((e) => e.textContent)`); names[0] == names[1] {
		t.Errorf("two sessions are called %q", names[0])
	}
	p.newTerminal()
	const tab = `document.querySelector(".tab-label").textContent`
	p.until("the tab has the session's name", tab+`.startsWith("web-1")`)
	p.expectOffline()
	g.crash()
	p.until("the banner reports the lost connection", `/Connection lost/.test(document.querySelector(".banner").textContent)`)
	g.start()
	p.until("the session is gone", `trl.connection.up && trl.sessions.list.length === 0 && trl.tabs.current.terminal.over`)
	if name := eval[string](p, tab); !strings.HasPrefix(name, "web-1") {
		t.Errorf("the tab of web-1 is called %q", name)
	}
	p.do(chromedp.Reload())
	p.until("the page is there after the reload", `typeof trl === "object" && trl.connection.up && trl.sessions.loaded && trl.tabs.current?.xterm`)
	if name := eval[string](p, tab); !strings.HasPrefix(name, "web-1") {
		t.Errorf("after a reload the tab of web-1 is called %q", name)
	}
}

// TestActivityFollowsItsEnd: the view keeps the latest command visible, and scrolls to a command that the person runs in it.
func TestActivityFollowsItsEnd(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	g.run("agent", "true")
	p.openActivity("agent")
	const (
		list = `document.querySelector(".blocks-scroll")`
		end  = `(({scrollTop, clientHeight, scrollHeight}) => scrollTop + clientHeight >= scrollHeight - 1)(` + list + `)`
	)
	atEnd := func(what string, blocks int) {
		t.Helper()
		p.until(what, fmt.Sprintf(`document.querySelectorAll(".block .exit.well").length === %d`, blocks))
		p.until(what+": the end is in sight", end)
	}
	for n := range 4 { // a line below each block tells how long its output was
		g.run("agent", "seq 1 100000")
		atEnd("a long output", n+2)
	}
	p.do(chromedp.Click(`.agent .pane-tools button:not(.icon)`, chromedp.ByQuery))
	p.until("the person has taken over", `!document.querySelector(".prompt").hidden`)
	p.until("the prompt does not cover the end of the list", end)
	if over := eval[string](p, `(() => { const run = document.querySelector(".prompt button").getBoundingClientRect(); return [...document.querySelectorAll(".notice")].filter((n) => { const box = n.getBoundingClientRect(); return box.bottom > run.top && box.right > run.left; }).map((n) => n.textContent).join() })()`); over != "" {
		t.Errorf("the Run button is covered by %q", over)
	}
	p.run(list + `.scrollTop = 0`)
	p.until("the view stays where it was scrolled to", `!trl.tabs.current.atEnd`)
	p.run(`document.querySelector(".prompt textarea").focus()`)
	p.enter("echo mine")
	atEnd("what one runs oneself", 6)

	p.run(fmt.Sprintf(`trl.connection.call("process.start", {session_id: `+sessionID+`, command: "python3 -u -m http.server --bind 127.0.0.1 0"})`, "agent"))
	p.until("the process and its port are shown", `/^:\d+$/.test(document.querySelector(".process .port")?.textContent)`)
	if !eval[bool](p, `((side, end) => side.scrollWidth <= side.clientWidth && end.right <= innerWidth)(document.querySelector(".agent-side"), document.querySelector(".process .danger").getBoundingClientRect())`) {
		t.Error("the column of processes is too narrow")
	}
}

// TestWhereOneIsIsInSight: among many sessions and tabs, the list and the tab bar show the open one and say that there are more.
func TestWhereOneIsIsInSight(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	for n := range 14 {
		p.run(fmt.Sprintf(`trl.connection.call("session.create", {name: "one of the many sessions that there are, number %d"})`, n))
	}
	p.until("all sessions are listed", `document.querySelectorAll(".session").length === 14`)
	p.run(`trl.sessions.list.forEach((s) => trl.workspace.openActivity(s.session_id))`)
	p.newTerminal()
	inside := func(what, selector, place string) {
		t.Helper()
		p.until(what, fmt.Sprintf(`((e, at) => e.height > 0 && e.top >= at.top - 1 && e.bottom <= at.bottom + 1 && e.left >= at.left - 1 && e.right <= at.right + 1)(document.querySelector(%q).getBoundingClientRect(), document.querySelector(%q).getBoundingClientRect())`, selector, place))
	}
	inside("the list shows the new session's row", ".session.on", ".sidebar-body")
	inside("the tab bar shows its tab", ".tab.on", ".tabs")
	p.until("the tab bar says that there are more tabs", `document.querySelector(".tabs.more-before") && document.querySelector(".tab-all").checkVisibility() && document.querySelector(".tab-all").textContent.startsWith("15")`)
	if narrow := eval[float64](p, `Math.min(...[...document.querySelectorAll(".tab-select svg")].map((e) => e.getBoundingClientRect().width))`); narrow < 16 {
		t.Errorf("an icon is %v pixels wide", narrow)
	}
	at := eval[float64](p, `document.querySelector(".tabs").scrollLeft`)
	p.do(input.DispatchMouseEvent(input.MouseWheel, 600, 19).WithDeltaX(0).WithDeltaY(-300))
	p.until("the wheel scrolls the tabs", fmt.Sprintf(`document.querySelector(".tabs").scrollLeft < %v`, at))
	p.until("the tab bar says that there are more tabs on either side", `document.querySelector(".tabs.more-before.more-after")`)
	p.do(chromedp.Click(`.tab-all`, chromedp.ByQuery))
	p.until("the list has all tabs", `document.querySelectorAll(".tab-list button").length === 15`)
	p.do(chromedp.Click(`.tab-list li:first-child button`, chromedp.ByQuery))
	p.until("the first tab is shown", `trl.tabs.current === trl.tabs.views[0] && !document.querySelector(".tab-list").matches(":popover-open")`)
	inside("with its tab", ".tab.on", ".tabs")
	inside("and its row", ".session.on", ".sidebar-body")
	p.do(chromedp.EmulateViewport(900, 500))
	p.run(`trl.tabs.select(trl.tabs.views.at(-1))`)
	inside("also in a smaller window", ".tab.on", ".tabs")
}

// TestRestoredTabsWaitToBeShown: a reload attaches to the visible terminal, and to another one when it is shown.
func TestRestoredTabsWaitToBeShown(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	for n := range 3 {
		p.newTerminal()
		p.command(fmt.Sprintf("echo number $((%d+1))", n))
	}
	p.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(`{
			globalThis.attached = 0;
			const { send } = WebSocket.prototype;
			WebSocket.prototype.send = function (data) {
				if (/"term.attach"/.test(data)) attached++;
				return send.call(this, data);
			};
		}`).Do(ctx)
		return err
	}))
	p.run(`trl.choose({ webgl: true })`)
	p.do(chromedp.Reload())
	p.until("the visible tab has its terminal", `typeof trl === "object" && trl.connection.up && /^number 3$/m.test(trl.tabs.current?.text?.())`)
	if got := eval[string](p, `JSON.stringify([trl.tabs.views.length, trl.tabs.views.filter((v) => v.opened).length, attached])`); got != "[3,1,1]" {
		t.Errorf("number of tabs, of drawn terminals and of attaches: %s", got)
	}
	if n := eval[int](p, `trl.tabs.views.filter((v) => v.webgl).length`); n > 1 {
		t.Errorf("%d terminals use WebGL", n)
	}
	p.run(`trl.choose({ webgl: false })`)
	p.run(`trl.tabs.select(trl.tabs.views[0])`)
	p.until("another terminal comes when its tab is shown, in control", `/^number 1$/m.test(`+text+`) && trl.tabs.current.terminal.mode === "control"`)
	p.prompt()
	p.command("echo typed $((6*7))")
	p.until("typing works", `/^typed 42$/m.test(`+text+`)`)
}

// TestRatesAreDrawnOverTheirTime: the plot draws a rate as a level over the time between two samples, also if they are far apart.
func TestRatesAreDrawnOverTheirTime(t *testing.T) {
	oneNode(t, "rates are drawn from the /metrics of the node that answers, and that has no sessions")
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.run(`trl.workspace.openPool()`)
	points := eval[[][]float64](p, `(() => {
		const of = (at, ok) => ({ at, ok, failed: 0, creating: 0, idle: 1, running: 0 });
		trl.samples.samples = [of(1000, undefined), of(3000, 4), of(600000, 1), of(602000, 8)];
		trl.samples.changed.emit();
		return document.querySelectorAll(".plot")[1].querySelector("polyline.c1").getAttribute("points").split(" ").map((p) => p.split(",").map(Number));
	})()`)
	if len(points) != 6 {
		t.Fatalf("the plot draws three rates as %v", points)
	}
	for n := 0; n < len(points); n += 2 {
		if points[n][1] != points[n+1][1] || points[n][0] >= points[n+1][0] {
			t.Errorf("the line from %v to %v is not level", points[n], points[n+1])
		}
	}
}

// TestDroppedFileLeavesThePage: a file that is dropped on the page does not replace the page.
func TestDroppedFileLeavesThePage(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	file := filepath.Join(t.TempDir(), "dropped.html")
	if err := os.WriteFile(file, []byte("<title>dropped</title>"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.run(`addEventListener("dragover", (event) => (trl.dragged = [event.defaultPrevented, event.dataTransfer.dropEffect].join()))`)
	data := &input.DragData{Items: []*input.DragDataItem{}, Files: []string{file}, DragOperationsMask: 1}
	for _, kind := range []input.DispatchDragEventType{input.DragEnter, input.DragOver, input.Drop} {
		p.do(input.DispatchDragEvent(kind, 700, 400, data))
	}
	p.until("the page has got the drag and takes no files", `trl.dragged === "true,none"`)
	p.command("echo still here")
}

// TestNamesDoNotReorder: the page shows characters that reorder text as their codes. Old sessions may have such names.
func TestNamesDoNotReorder(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	refused := eval[string](p, `trl.connection.call("session.create", {name: "a\u202etxt.exe"}).then(() => "taken", (e) => e.message)`)
	if refused != "name contains a character that changes the direction of text" {
		t.Errorf("a new session with such a name was answered with %s", refused)
	}
	p.run(`trl.connection.call("session.create", {name: "old"})`)
	p.until("the session is listed", `trl.sessions.list.length === 1`)
	p.run(`(() => { const { call } = trl.connection; trl.connection.call = async function (method, params) { const got = await call.call(this, method, params); if (method === "session.list") for (const s of got.sessions) s.name = "a\u202etxt.exe"; return got; }; trl.sessions.refresh(); })()`)
	p.until("the old name is shown with its codes", `document.querySelector(".session-name").textContent === "a<U+202E>txt.exe"`)
}
