package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// guest opens an address in a new browser context.
func (g *gateway) guest(address string) *page {
	g.t.Helper()
	profile, err := target.CreateBrowserContext().Do(browserOf(chromium))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = target.DisposeBrowserContext(profile).Do(browserOf(chromium)) })
	p := newPage(g.t, profile, "http://"+g.addr)
	p.do(chromedp.EmulateViewport(1000, 600), chromedp.Navigate(address))
	return p
}

// share makes a link with the dialog of a session, like a person, and closes the dialog.
func (p *page) share(what, mode string) (address string) {
	p.t.Helper()
	p.run(`(document.querySelector('.session.on button[aria-label="Share"]') ?? document.querySelector('.session button[aria-label="Share"]')).click()`)
	p.until("the dialog is open", `document.querySelector("#share-what")`)
	p.run(`document.querySelector("#share-what").value = "` + what + `"`)
	p.run(`document.querySelector("#share-mode").value = "` + mode + `"`)
	p.run(`document.querySelector("#share-name").value = "a friend"`)
	p.run(`[...document.querySelectorAll("dialog button")].find((b) => b.textContent === "Make a link").click()`)
	p.until("the link is shown", `document.querySelector(".share-link")`)
	address = eval[string](p, `document.querySelector(".share-link").value`)
	p.until("the link is listed", `/a friend/.test(document.querySelector(".shares").textContent)`)
	p.key("Escape", "Escape")
	p.until("the dialog is closed", `!document.querySelector("dialog")`)
	return address
}

func TestLinkToLook(t *testing.T) {
	t.Parallel()
	g := serve(t)
	owner := g.open()
	owner.newTerminal()
	owner.command("echo shown to all")
	address := owner.share("terminal", "view")

	guest := g.guest(address)
	const there = `typeof trl === "object" && trl.connection.up && trl.tabs.current?.xterm`
	guest.until("the guest's page shows the terminal", there)
	guest.until("the guest sees the output", `/^shown to all$/m.test(`+text+`)`)
	guest.until("the page says that the person is a guest", `/guest of admin \(may watch\)/.test(document.querySelector(".statusbar").textContent)`)
	if where := eval[string](guest, `location.href`); strings.Contains(where, "token") {
		t.Errorf("the address bar shows the token: %s", where)
	}
	if eval[bool](guest, `[...document.querySelectorAll("button")].some((b) => b.checkVisibility() && /Take over|New session|Pool|Share/.test(b.textContent + b.getAttribute("aria-label")))`) {
		t.Error("the page offers a watching guest more than to watch")
	}
	guest.run(`trl.tabs.current.focus()`)
	guest.enter("echo typed by a guest")
	refused := eval[string](guest, `trl.connection.call("term.input", {term_id: trl.tabs.current.term, data: "echo by hand\n"}).then(() => "taken", (e) => e.code)`)
	if refused != "FORBIDDEN" {
		t.Errorf("input of a watching guest was answered with %s", refused)
	}
	owner.command("echo the last")
	guest.until("the guest sees later output", `/^the last$/m.test(`+text+`)`)
	if got := eval[string](owner, text); strings.Contains(got, "guest") || strings.Contains(got, "by hand") {
		t.Errorf("a watching guest typed:\n%s", got)
	}
	guest.do(chromedp.Reload())
	guest.until("the terminal is there after a reload", there+` && /^the last$/m.test(`+text+`)`)

	guest.run(`location.hash = "` + address[strings.Index(address, "#"):] + `"`)
	guest.until("the page takes another link from the address bar and removes it there", there+` && !location.href.includes("token") && /^the last$/m.test(`+text+`)`)

	guest.expectOffline() // the revoked link's connection fails
	owner.run(`document.querySelector('.session button[aria-label="Share"]').click()`)
	owner.until("the dialog counts the guest", `/1 guest/.test(document.querySelector(".shares")?.textContent)`)
	owner.run(`[...document.querySelectorAll(".share button")].find((b) => b.textContent === "Revoke").click()`)
	owner.until("the link is no longer listed", `/No links/.test(document.querySelector(".shares").textContent)`)
	guest.until("the page tells the guest that the link no longer works", `/expired or was revoked/.test(document.body.innerText)`)
	guest.until("the page offers the guest nothing else", nothingOffered)
	guest.until("the page shows no viewers", `!/View only/.test(document.body.innerText) && document.querySelector(".viewers-count").hidden`)
	guest.do(chromedp.Reload())
	guest.until("the link does not work after a reload", `/expired or was revoked/.test(document.body.innerText) && !trl.connection.up && `+nothingOffered)
}

// nothingOffered is true if the page offers nothing to a guest whose link no longer works.
const nothingOffered = `!/You are a guest/.test(document.body.innerText) && ![...document.querySelectorAll("button")].some((b) => b.checkVisibility() && /Take over|New session|New terminal|End session|Rename|Share/.test(b.textContent + b.getAttribute("aria-label")))`

func TestLinkToWorkInASession(t *testing.T) {
	t.Parallel()
	g := serve(t)
	g.run("shared", "cd /usr")
	g.run("private", "true")
	owner := g.open()
	owner.until("the sessions are listed", `document.querySelectorAll(".session").length === 2`)
	owner.run(`[...document.querySelectorAll(".session")].find((s) => /private/.test(s.textContent)).remove()`) // the first is the one to share
	address := owner.share("session", "control")

	guest := g.guest(address)
	guest.until("the guest has a terminal", `typeof trl === "object" && trl.connection.up && trl.tabs.current?.xterm`)
	guest.until("the guest sees only the shared session", `trl.sessions.list.length === 1 && /shared/.test(document.querySelector(".sidebar").textContent)`)
	guest.until("the prompt appears", `/[#$] $/.test(`+lastLine+`)`)
	guest.enter("pwd")
	guest.until("the terminal is in the session's directory", `/^\/usr$/m.test(`+text+`)`)
	if got := g.run("shared", "pwd"); got != "/usr\n" {
		t.Errorf("pwd of the session prints %q, want /usr", got)
	}
	guest.run(`trl.workspace.openActivity(trl.sessions.list[0].session_id)`)
	guest.until("the guest sees the owner's commands", `/exit 0|ok|pwd/.test(document.querySelector(".block")?.textContent)`)
	for _, method := range []string{"session.create", "session.destroy", "share.list", "system.stats"} {
		if got := eval[string](guest, `trl.connection.call("`+method+`", {session_id: trl.sessions.list[0].session_id}).then(() => "taken", (e) => e.code)`); got != "FORBIDDEN" {
			t.Errorf("%s of a guest was answered with %s", method, got)
		}
	}

	guest.expectOffline()
	owner.run(`document.querySelector('.session button[aria-label="Share"]').click()`)
	owner.until("the dialog counts the guest", `/1 guest/.test(document.querySelector(".shares")?.textContent)`)
	owner.run(`[...document.querySelectorAll("dialog button")].find((b) => b.textContent === "Make a link").click()`)
	owner.until("the second link is listed", `document.querySelector(".share-link") && document.querySelectorAll(".share").length === 2`)
	for range 2 {
		n := eval[int](owner, `document.querySelectorAll(".share").length`)
		owner.run(`document.querySelector(".share button").click()`)
		owner.until("one link less is listed", fmt.Sprintf(`document.querySelectorAll(".share").length === %d`, n-1))
	}
	owner.until("the dialog does not show the revoked link", `!document.querySelector(".share-link")`)
	guest.until("the page tells the guest that the link no longer works", `/expired or was revoked/.test(document.body.innerText)`)
	guest.until("the page offers the guest nothing else", nothingOffered)
}
