package browser

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

func TestCutNetworkIsToldCountedAndRestored(t *testing.T) {
	t.Parallel()
	g := serve(t)
	x := g.proxy()
	p := g.openAt("http://"+x.Addr().String(), g.token)
	p.newTerminal()
	p.enter("for i in $(seq 1 250); do echo $i; sleep 0.01; done; echo finished")
	p.until("the first lines appear", `/^50$/m.test(`+text+`)`)
	p.run(`(globalThis.resizes = 0, trl.tabs.current.xterm.onResize(() => resizes++))`)
	p.expectOffline()
	x.cut()
	p.until("the banner reports the lost connection", `/Connection lost/.test(document.querySelector(".banner").textContent)`)
	p.until("the banner counts the attempts", `/attempt [2-9]/.test(document.querySelector(".banner-clock").textContent)`)
	p.until("the status dot is off", `document.querySelector(".latency").dataset.level === "off"`)
	x.mend()
	p.until("the banner reports the restored connection", `/Connection restored after .* Nothing was missed/.test(document.querySelector(".banner").textContent)`)
	p.until("the remaining lines appear", `/^finished$/m.test(`+text+`)`)
	if wrong := eval[string](p, fmt.Sprintf(everyLine, text, 250)); wrong != "" {
		t.Error(wrong)
	}
	p.until("the banner disappears", `document.querySelector(".banner").hidden`)
	if eval[int](p, `new Promise((resolve) => setTimeout(() => resolve(resizes), 200))`) != 0 { // more than a change of size waits for the next
		t.Error("the banner has changed the terminal's size")
	}
}

// TestPausedServerIsWaitedFor: the server goes silent and the connection stays open. The page gives the connection up by itself.
func TestPausedServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	g := serve(t, "--single-process")
	p := g.open()
	p.newTerminal()
	p.enter("for i in $(seq 1 200); do echo $i; sleep 0.01; done; echo finished")
	p.until("the first lines appear", `/^20$/m.test(`+text+`)`)
	p.expectOffline()
	g.keeper.Process.Signal(syscall.SIGSTOP)
	p.until("the banner reports the lost connection", `/Connection lost/.test(document.querySelector(".banner").textContent)`)
	g.keeper.Process.Signal(syscall.SIGCONT)
	p.until("the remaining lines appear", `/^finished$/m.test(`+text+`)`)
	if wrong := eval[string](p, fmt.Sprintf(everyLine, text, 200)); wrong != "" {
		t.Error(wrong)
	}
	p.enter("echo typed $((1+1))")
	p.until("typing works again", `/^typed 2$/m.test(`+text+`)`)
}

func TestLostSessionsAreSaidToBeLost(t *testing.T) {
	oneNode(t, "in a cluster another node may have answered, so the page does not say that the gateway was restarted")
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.expectOffline()
	g.crash()
	p.until("the banner reports the lost connection", `/Connection lost/.test(document.querySelector(".banner").textContent)`)
	g.start() // on the same address, with the same tokens
	p.until("the banner says that something is lost, and why", `/lost because the gateway was restarted/.test(document.querySelector(".banner").textContent)`)
	p.until("the terminal says why it is closed", `/is over|has ended/.test(document.querySelector(".pane-note").textContent)`)
	p.newTerminal()
}

// TestStoppedGatewayTellsSo: after a stop nobody knows whether sessions go on. The page never says that they do, however often it dials.
func TestStoppedGatewayTellsSo(t *testing.T) {
	oneNode(t, "in a cluster another node may have answered, so the page does not say that the gateway was restarted")
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.expectOffline()
	g.stop()
	p.until("the page dials several times", `/attempt [3-9]/.test(document.querySelector(".banner-clock").textContent)`)
	if said := eval[string](p, `document.querySelector(".banner-text").textContent`); said != "Connection lost: the gateway is being restarted." {
		t.Error(said)
	}
	g.start()
	p.until("the banner says that something is lost, and why", `/lost because the gateway was restarted/.test(document.querySelector(".banner").textContent)`)
}

func TestLoggedOutGoesToLogin(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.do(chromedp.ActionFunc(clearCookies), chromedp.Navigate(p.origin+"/"))
	p.until("the login page opens", `location.pathname === "/login" && document.querySelector("input[name=token]")`)
	p.do(chromedp.SendKeys(`input[name=token]`, g.token, chromedp.ByQuery), chromedp.Submit(`form`, chromedp.ByQuery))
	p.until("the page opens after the login", `typeof trl === "object" && trl.connection.up`)
}

func TestLoginLinkIsPastedOverTheLoginPage(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.guest("http://" + g.addr + "/login")
	p.until("the login page opens", `document.querySelector("input[name=token]")`)
	p.expectOffline() // the first is refused
	p.run(`location.hash = "#token=wrong"`)
	p.until("the login page says that the token of the link is not valid", `/not valid/.test(document.querySelector("#say").textContent) && location.href.endsWith("/login")`)
	p.run(`location.hash = "#token=` + g.token + `"`)
	p.until("the page opens after the login", `typeof trl === "object" && trl.connection.up && !/token/.test(location.href)`)
}

func TestSecondTabViewsUntilItTakesOver(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.enter("echo from the first")
	p.until("the output appears", `/^from the first$/m.test(`+text+`)`)
	q := p.another(eval[string](p, `location.hash`))
	q.until("the second page shows the output, in view mode", `/^from the first$/m.test(`+text+`) && trl.tabs.current.terminal.mode === "view" && /View only/.test(document.querySelector(".pane-note").textContent)`)
	q.until("the second page has the size of the first", fmt.Sprintf(`trl.tabs.current.xterm.cols === %d`, eval[int](p, `trl.tabs.current.xterm.cols`)))
	q.run(`trl.tabs.current.focus()`)
	q.write("echo ignored")
	p.enter("echo seen by both")
	q.until("both pages show the output", `/^seen by both$/m.test(`+text+`)`)
	if eval[bool](q, `/ignored/.test(`+text+`)`) {
		t.Error("a viewer typed")
	}

	q.do(chromedp.Click(`.pane-note button`, chromedp.ByQuery))
	q.until("the second page has taken over", `trl.tabs.current.terminal.mode === "control" && document.querySelector(".pane-note").hidden`)
	q.until("the size of its window counts", fmt.Sprintf(`trl.tabs.current.xterm.cols !== %d`, eval[int](p, `1280`)))
	q.run(`trl.tabs.current.focus()`)
	q.enter("echo size $(stty size)")
	q.until("the terminal has the second page's size", `new RegExp("^size " + trl.tabs.current.xterm.rows + " " + trl.tabs.current.xterm.cols + "$", "m").test(`+text+`)`)
	p.until("the first page follows the size", fmt.Sprintf(`trl.tabs.current.xterm.cols === %d`, eval[int](q, `trl.tabs.current.xterm.cols`)))

	p.until("the first page says who types, and offers to take over", `trl.tabs.current.terminal.mode === "view" && /View only: admin types in another window.*Take over/.test(document.querySelector(".pane-note").textContent)`)
	p.run(`trl.tabs.current.focus()`)
	p.write("echo lost")
	p.until("both pages show the number of viewers", `/2 viewers here/.test(document.querySelector(".viewers-count").textContent) && !document.querySelector(".viewers-count").hidden`)
	p.do(chromedp.Click(`.viewers-count`, chromedp.ByQuery))
	p.until("both pages list the viewers", `document.querySelector("#viewers").matches(":popover-open") && /admin \(you\): watches/.test(document.querySelector("#viewers").textContent) && /admin: types, since/.test(document.querySelector("#viewers").textContent)`)
	q.enter("echo kept")
	p.until("only the second page has typed", `/^kept$/m.test(`+text+`)`)
	if eval[bool](p, `/echo lost/.test(`+text+`)`) {
		t.Error("the client that lost control typed")
	}

	p.do(chromedp.Reload())
	p.until("the first page still watches after a reload", `typeof trl === "object" && trl.tabs.current?.terminal?.mode === "view" && /admin types in another/.test(document.querySelector(".pane-note").textContent)`)
	q.do(chromedp.Navigate("about:blank"))
	p.until("the first page is in control after the second has left", `trl.tabs.current.terminal.mode === "control" && document.querySelector(".pane-note").hidden && document.querySelector(".viewers-count").hidden`)
	p.run(`trl.tabs.current.focus()`)
	p.enter("echo size $(stty size) again")
	p.until("the terminal has the first page's size", `new RegExp("^size " + trl.tabs.current.xterm.rows + " " + trl.tabs.current.xterm.cols + " again$", "m").test(`+text+`)`)
}

func TestViewersRoleOnlyLooks(t *testing.T) {
	t.Parallel()
	g := serve(t)
	g.addToken("lookonly-0123456789abcdef admin viewer")
	g.run("bare", "true")
	p := g.open()
	p.newTerminal()
	p.enter("echo visible")
	p.until("the output appears", `/^visible$/m.test(`+text+`)`)
	address := eval[string](p, `location.hash`)
	q := g.openAs("lookonly-0123456789abcdef")
	q.run(`location.hash = ` + fmt.Sprintf("%q", address))
	q.until("the viewer's page shows the output", `/^visible$/m.test(`+text+`)`)
	if eval[bool](q, `!!document.querySelector(".pane-note button")`) {
		t.Error("the page offers a viewer to take over")
	}
	q.run(`trl.tabs.current.takeOver()`)
	q.until("the viewer cannot take over", `/only watch/.test(`+notices+`) && trl.tabs.current.terminal.mode === "view"`)
	if eval[int](q, `[...document.querySelectorAll(".sidebar button")].filter((b) => !b.hidden && /New session|End session|Rename/.test(b.getAttribute("aria-label"))).length`) != 0 {
		t.Error("the page offers a viewer an action that the role does not allow")
	}
	const offered = `trl.tabs.current.key.startsWith("activity/") && document.querySelector('.agent button[aria-label="Open a terminal"]').checkVisibility()`
	for session, terminal := range map[string]bool{"bare": false, "web-1": true} {
		q.openActivity(session)
		q.until("the activity of the session is shown", `document.querySelector(".agent-state").textContent.includes("`+session+`")`)
		if eval[bool](q, offered) != terminal {
			t.Errorf("session %s: terminal offered to the viewer: %t", session, !terminal)
		}
	}
}

// TestSmallerWindowSeesTheLatestLines: a watching page has the size of another window. Its terminal covers none of the bars.
func TestSmallerWindowSeesTheLatestLines(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open(chromedp.EmulateViewport(1440, 900))
	p.newTerminal()
	p.command("seq 1 100")
	const (
		// at is what lies in the middle of an element, or of a part of it; nothing where that is outside of the window.
		at = `(box) => document.elementFromPoint(box.left + Math.min(20, box.width / 2), box.top + box.height / 2)`
		// row is where the cursor is.
		row = `document.querySelectorAll(".xterm-rows > div")[trl.tabs.current.xterm.buffer.active.cursorY].getBoundingClientRect()`
	)
	seen := func(q *page) {
		t.Helper()
		q.until("the cursor's row is visible", `(`+at+`)(`+row+`)?.closest(".xterm")`)
		for _, bar := range []string{".statusbar", ".keybar", ".pane-note", ".pane-bar"} {
			q.until("nothing covers "+bar, fmt.Sprintf(`((bar) => !bar.checkVisibility() || (%s)(bar.getBoundingClientRect())?.closest("%s"))(document.querySelector("%[2]s"))`, at, bar))
		}
	}
	q := p.another(eval[string](p, `location.hash`))
	q.until("the second page shows the output", `trl.tabs.current.terminal.mode === "view" && /^100$/m.test(`+text+`)`)
	fits := `((grid, place) => grid.right <= place.right && grid.bottom <= place.bottom)(document.querySelector(".xterm-screen").getBoundingClientRect(), document.querySelector(".screen-scroll").getBoundingClientRect())`
	q.do(chromedp.EmulateViewport(1440, 900))
	q.until("the whole terminal is visible in a window of the same size", fits)
	seen(q)
	for _, size := range []struct {
		width, height int64
		options       []chromedp.EmulateViewportOption
	}{{800, 500, nil}, {375, 667, []chromedp.EmulateViewportOption{chromedp.EmulateMobile, chromedp.EmulateTouch}}, {500, 300, nil}} {
		q.do(chromedp.EmulateViewport(size.width, size.height, size.options...))
		seen(q)
		q.until("only the terminal scrolls", `((grid, place) => place.scrollHeight <= Math.max(place.clientHeight, grid.height + 20))(document.querySelector(".xterm-screen").getBoundingClientRect(), document.querySelector(".screen-scroll"))`)
		p.command(fmt.Sprintf("seq 1 50; echo at %d", size.width))
		q.until("the output goes on", fmt.Sprintf(`/^at %d$/m.test(%s)`, size.width, screen))
		seen(q)
	}

	q.run(`document.querySelector(".screen-scroll").scrollTo(0, 0)`)
	q.until("the first row is visible", `(`+at+`)(document.querySelector(".xterm-rows > div").getBoundingClientRect())?.closest(".xterm")`)
	q.until("the page knows that the person has scrolled", `!trl.tabs.current.follows`)
	p.command("echo more")
	q.until("the later output is there", `/^more$/m.test(`+screen+`)`)
	if eval[float64](q, `document.querySelector(".screen-scroll").scrollTop`) != 0 {
		t.Error("the view scrolled back to the cursor although the person had scrolled away")
	}

	p.enter(`printf '\e[?1049h'; read; printf '\e[?1049l'`)
	q.until("a full-screen program runs", `trl.tabs.current.xterm.buffer.active.type === "alternate"`)
	place := eval[[]float64](q, `(({left, top}) => [left + 50, top + 20])(document.querySelector(".screen-scroll").getBoundingClientRect())`)
	q.do(input.DispatchMouseEvent(input.MouseWheel, place[0], place[1]).WithDeltaX(0).WithDeltaY(100))
	q.until("the wheel scrolls the place of the terminal", `document.querySelector(".screen-scroll").scrollTop > 0`)
	p.key("Enter", "Enter")
	p.prompt()

	q.do(chromedp.Click(`.pane-note button`, chromedp.ByQuery))
	q.until("the page has taken over, with letters of its own size", `trl.tabs.current.terminal.mode === "control" && trl.tabs.current.xterm.options.fontSize === trl.settings.fontSize && `+fits)
}

func TestLinkToATerminalThatIsGone(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	q := p.another("#/term/0123456789/9876543210")
	q.until("the page says that the terminal is gone", `/no longer kept/.test(document.querySelector(".pane-note")?.textContent)`)
	if eval[bool](q, `!document.querySelector(".banner").hidden && document.querySelector(".banner").dataset.kind !== "quiet"`) { // quiet: an answer is late
		t.Errorf("the page reports a lost connection, and none was lost: %s", eval[string](q, `document.querySelector(".banner").textContent`))
	}
	if offer := eval[string](q, `document.querySelector(".pane-note button")?.textContent ?? "nothing"`); offer != "New session" {
		t.Errorf("for a terminal of a missing session the page offers: %s", offer)
	}
}

// TestSilentNetworkIsTold: the page reports missing answers while it still waits for one, and counts the time from the last byte. If it does not know
// whether input arrived, it does not say that nothing was lost.
func TestSilentNetworkIsTold(t *testing.T) {
	t.Parallel()
	g := serve(t)
	x := g.proxy()
	p := g.openAt("http://"+x.Addr().String(), g.token)
	p.newTerminal()
	const banner = `document.querySelector(".banner").innerText`
	p.expectOffline()
	x.hush()
	p.write("echo typed")
	p.until("the page says that there is no answer, and still waits for one", `trl.connection.up && !document.querySelector(".banner").hidden && /No answer/.test(`+banner+`) && document.querySelector(".latency").dataset.level === "off"`)
	p.until("the page gives the connection up", `/Connection lost/.test(`+banner+`)`)
	p.until("the banner counts from the last byte", `Number(/(\d+) s ·/.exec(`+banner+`)?.[1]) >= 12`)
	x.mend()
	p.until("the connection is restored", `/restored/.test(`+banner+`)`)
	if said := eval[string](p, banner); !strings.Contains(said, "What you typed meanwhile may not have arrived") || strings.Contains(said, "Nothing was missed") {
		t.Error(said)
	}
	if eval[bool](p, `Number(/after (\d+) s/.exec(`+banner+`)?.[1]) < 12`) {
		t.Errorf("the banner tells a shorter absence than there was: %s", eval[string](p, banner))
	}
	p.run(`trl.tabs.current.focus()`)
	p.key("c", "KeyC", ctrl)
	p.until("the prompt appears after Ctrl-C", `/\^C[^]*[#$] *$/.test(`+text+`)`) // what is typed before, the terminal drops with the signal
	p.enter("echo $((1+1)) goes on")
	p.until("typing works again", `/^2 goes on$/m.test(`+text+`)`)
	p.until("the status bar no longer says that there is no answer", `document.querySelector(".latency").dataset.level !== "off"`)
}

// TestAfterAnEndThereIsAWayOn: a connection that the page gave up comes back with its terminals when it is retried. If a terminal's session has ended,
// with the server or by the person, the page offers another session.
func TestAfterAnEndThereIsAWayOn(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	p.newTerminal()
	p.expectOffline()

	// The page gives up this connection, as after a close code that is final.
	p.command("echo before it")
	p.run(`((link) => { link.socket.onclose = null; link.socket.close(); link.die({code: 1008, why: "it was refused", final: true}) })(trl.connection.client.current)`)
	p.until("the terminal says that it is no longer connected", `/^No longer connected: it was refused/.test(document.querySelector(".pane-note").textContent)`)
	p.run(`trl.connection.retry()`)
	p.until("the terminal is in control again", `trl.tabs.current.terminal.mode === "control" && document.querySelector(".pane-note").hidden`)
	p.run(`trl.tabs.current.focus()`)
	p.command("echo after it")
	if got := eval[int](p, text+`.match(/^before it$/mg).length`); got != 1 {
		t.Errorf("the terminal shows the earlier output %d times, want 1", got)
	}

	const offered = `document.querySelector(".pane-note button")?.textContent === "New session"`
	g.stop()
	g.start()
	p.until("the server is back without the session", `/lost because/.test(document.querySelector(".banner").textContent) && trl.sessions.list.length === 0`)
	p.until("the page offers a new session", offered)
	p.until("the banner covers no button", `((banner) => [...document.querySelectorAll(".pane-bar button, .pane-note button")].every((b) => b.getBoundingClientRect().bottom <= banner.top || b.getBoundingClientRect().top >= banner.bottom))(document.querySelector(".banner").getBoundingClientRect())`)
	p.do(chromedp.Click(`.banner-away`, chromedp.ByQuery))
	p.until("the banner disappears when it is dismissed", `document.querySelector(".banner").hidden`)
	p.do(chromedp.Click(`.pane-note button`, chromedp.ByQuery))
	p.until("the new session has a terminal", `trl.tabs.views.length === 2 && trl.tabs.current.xterm && document.querySelector(".pane-note").hidden`)
	p.prompt()
	p.run(`trl.connection.call("session.destroy", {session_id: trl.tabs.current.session, force: true})`)
	p.until("the page offers a new session after the session was ended", `/ended with its session/.test(document.querySelector(".pane-note").textContent) && `+offered)
}
