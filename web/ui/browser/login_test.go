package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestLoginIsForOnePortAlone: the browser sends no login to a program on another port of the same host. After a logout it has no login, and its stored
// path leads to the login page.
func TestLoginIsForOnePortAlone(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.open()
	var mu sync.Mutex
	var sent []string // guarded by mu
	paths := 0        // guarded by mu
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths++
		sent = append(sent, r.Header["Cookie"]...)
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte(`<!doctype html><link rel="icon" href="data:,"><title>other</title>`))
	}))
	defer other.Close()
	q := newPage(t, p.profile, other.URL)
	for _, path := range []string{"/", "/login", "/v1/ws", "/at/", "/at/-/v1/ws"} {
		q.do(chromedp.Navigate(other.URL + path))
	}
	q.run(`document.cookie = "ours=1; path=/"`)
	q.until("the cookie is set", `document.cookie === "ours=1"`) // a navigation that we begin may overtake it else
	q.do(chromedp.Navigate(other.URL + "/again"))
	mu.Lock()
	if paths < 6 || strings.Join(sent, " ") != "ours=1" {
		t.Errorf("%d requests went to the other port, with the cookies %q", paths, sent)
	}
	mu.Unlock()

	second := p.another("") // the same person, in another tab
	if where := eval[string](p, `location.href + " " + document.referrer + " " + history.length`); strings.Contains(where, "/at/") {
		t.Errorf("the address, the referrer or the history shows the path of the login: %s", where)
	}
	p.expectOffline()
	second.expectOffline()
	p.run(`fetch(localStorage.getItem("trl.at") + "logout", {method: "POST", redirect: "manual"})`)
	for _, tab := range []*page{p, second} {
		tab.until("the login page opens", `location.pathname === "/login" && document.querySelector("input[name=token]")`)
	}
	second.do(chromedp.Navigate(p.origin + "/"))
	second.until("the login page opens again", `location.pathname === "/login" && document.querySelector("input[name=token]")`)
	second.do(chromedp.SendKeys(`input[name=token]`, g.token+"x", chromedp.ByQuery), chromedp.Submit(`form`, chromedp.ByQuery))
	second.until("the same page says that the token is wrong", `/This token is not valid/.test(document.body.innerText) && document.activeElement.name === "token"`)
	second.do(chromedp.SendKeys(`input[name=token]`, g.token, chromedp.ByQuery), chromedp.Submit(`form`, chromedp.ByQuery))
	second.until("the page opens after the login", `typeof trl === "object" && trl.connection.up`)
	second.do(chromedp.Click(`.topbar-tools button[aria-label="Settings"]`, chromedp.ByQuery))
	second.run(`[...document.querySelectorAll("dialog button")].find((b) => b.textContent === "Log out").click()`)
	second.until("the page shows the login page after the logout", `location.pathname === "/login" && document.querySelector("input[name=token]")`)
	second.do(chromedp.Navigate(p.origin + "/"))
	second.until("the person stays logged out", `location.pathname === "/login"`)
}

// TestLoginPageSaysWhatItWants: the field has a visible label, the page has the chosen theme, and the page explains why a login link does not work.
func TestLoginPageSaysWhatItWants(t *testing.T) {
	t.Parallel()
	g := serve(t)
	p := g.guest("http://" + g.addr + "/login")
	p.until("the field has a visible label", `document.querySelector("label[for=token]")?.checkVisibility() && document.querySelector("label[for=token]").textContent === "Token" && document.activeElement.id === "token"`)
	const shade = `getComputedStyle(document.body).backgroundColor`
	for _, theme := range []string{"light", "dark"} {
		p.run(`localStorage.setItem("trl.settings", '{"theme":"` + theme + `"}')`)
		p.do(chromedp.Reload())
		want := map[string]string{"light": "rgb(245, 246, 247)", "dark": "rgb(15, 17, 20)"}[theme]
		p.until("the page is "+theme, shade+` === "`+want+`"`)
	}
	p.expectOffline() // a refusal is logged
	p.do(chromedp.SendKeys(`#token`, "wrong", chromedp.ByQuery), chromedp.Submit(`form`, chromedp.ByQuery))
	p.until("the page says that the token is wrong", `/not valid|unknown|wrong/i.test(document.querySelector("#say").textContent)`)
	p.run(`location.hash = "#token=old"`)
	p.until("the page says that the link is bad", `/link that you opened.*not valid here/.test(document.querySelector("#say").textContent)`)
}
