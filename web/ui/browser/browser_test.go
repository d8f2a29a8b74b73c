package browser

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// This file has the requests to the browser itself: permissions, cookies, downloads.

// browserOf returns a context whose commands go to the browser, not to one page.
func browserOf(ctx context.Context) context.Context {
	return cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
}

func clearCookies(ctx context.Context) error { return network.ClearBrowserCookies().Do(ctx) }

// downloads makes the browser put the page's downloads into a folder of their own.
func (p *page) downloads() string {
	p.t.Helper()
	dir := p.t.TempDir()
	err := browser.SetDownloadBehavior(browser.SetDownloadBehaviorBehaviorAllow).WithDownloadPath(dir).WithBrowserContextID(p.profile).Do(browserOf(p.ctx))
	if err != nil {
		p.t.Fatal(err)
	}
	return dir
}

// downloaded waits for a complete file in dir.
func (p *page) downloaded(dir string) string {
	p.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(40 * time.Millisecond) {
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		if len(files) == 1 && !strings.HasSuffix(files[0], ".crdownload") {
			return files[0]
		}
	}
	p.t.Fatal("nothing was downloaded")
	return ""
}

// allowClipboard grants the permissions that a person would grant when asked.
func (p *page) allowClipboard() {
	p.t.Helper()
	for _, d := range []*browser.PermissionDescriptor{{Name: "clipboard-read"}, {Name: "clipboard-write"}, {Name: "clipboard-write", AllowWithoutSanitization: true}} {
		err := browser.SetPermission(d, browser.PermissionSettingGranted).WithOrigin(p.origin).WithBrowserContextID(p.profile).Do(browserOf(p.ctx))
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// clipboard returns the text that a paste would give. Another document of the gateway reads it, so that the page keeps its focus.
func (p *page) clipboard() string {
	p.t.Helper()
	q := newPage(p.t, p.profile, p.origin)
	q.do(chromedp.Navigate(p.origin + "/healthz"))
	return eval[string](q, `navigator.clipboard.readText()`)
}

// addToken writes a line into the token file. The gateway reads the file again when it changes.
func (g *gateway) addToken(line string) {
	g.t.Helper()
	f, err := os.OpenFile(filepath.Join(g.dir, "tokens"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, line); err != nil {
		g.t.Fatal(err)
	}
}

// openAs is open with another token. It waits until the gateway knows the token.
func (g *gateway) openAs(token string) *page {
	g.t.Helper()
	g.awaitToken(token)
	return g.openAt("http://"+g.addr, token)
}

// awaitToken waits until the gateway has read the token file again.
func (g *gateway) awaitToken(token string) {
	g.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(40 * time.Millisecond) {
		r, err := http.NewRequest("GET", "http://"+g.addr+"/metrics", nil)
		if err != nil {
			g.t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			g.t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			return
		}
	}
	g.t.Fatal("the gateway does not know the token")
}
