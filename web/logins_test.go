package web

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/limits"
)

// TestCookieIsForALoginsOwnPath: a browser sends the cookie only below the path of its login, so that programs on other ports do not get it.
func TestCookieIsForALoginsOwnPath(t *testing.T) {
	_, set := withFile(t, "a-plain-token ann admin\n")
	file := filepath.Join(t.TempDir(), "logins")
	keep := func(c *Config) { c.LoginsFile = file }
	g := start(t, set, keep)
	own := regexp.MustCompile(`^/at/[0-9a-f]{32}/$`)
	one, two := g.logIn("a-plain-token"), g.logIn("a-plain-token")
	if !own.MatchString(one.Path) || !own.MatchString(two.Path) || one.Path == two.Path {
		t.Fatalf("paths %q and %q", one.Path, two.Path)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	g = start(t, set, keep) // another gateway knows the logins of the one before, at the same paths
	one, two = at(one.Path, renamed(one, g)), at(two.Path, renamed(two, g))

	jar, _ := cookiejar.New(nil)
	home, _ := url.Parse(g.URL())
	jar.SetCookies(home, []*http.Cookie{one})
	b := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ask := func(method, path string) *http.Response {
		t.Helper()
		r, _ := http.NewRequest(method, g.URL()+path, nil)
		r.Header.Set("Origin", g.URL())
		resp, err := b.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp
	}
	for _, path := range []string{"/", "/login", "/at/", "/at/x/", "/v1/ws", "/metrics"} {
		if u, _ := url.Parse(g.URL() + path); len(jar.Cookies(u)) != 0 {
			t.Errorf("%s is sent the cookie", path)
		}
	}
	for path, want := range map[string]int{
		"": 204, "metrics": 200, "v1/recordings/r-none": 404, "v1/ws": 426, "login": 404, "healthz": 404, "at/x/metrics": 404,
	} {
		if resp := ask("GET", one.Path+path); resp.StatusCode != want {
			t.Errorf("GET %s below the login's path: %d, want %d", path, resp.StatusCode, want)
		}
	}
	if resp := ask("POST", one.Path+"v1/tickets"); resp.StatusCode != 200 {
		t.Errorf("a ticket: %d", resp.StatusCode)
	}
	for path, want := range map[string]int{"/at/-/": 303, "/at/-/metrics": 401, "/at/-/v1/ws": 401, two.Path: 303} {
		if resp := ask("GET", path); resp.StatusCode != want {
			t.Errorf("GET %s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(g.URL(), "http")+one.Path+"v1/ws", &websocket.DialOptions{HTTPClient: b})
	if err != nil {
		t.Fatal(err)
	}
	c := rig.NewClient(t, ws)
	c.Call("system.ping", nil)

	// Another server on this host may set cookies for all of it: they neither hide a login nor make one.
	for path, want := range map[string]int{one.Path: 204, two.Path: 204, "/at/-/": 303} {
		jar.SetCookies(home, []*http.Cookie{two, at("/", two), at("/at/", two), at("/at/-/", two)})
		if resp := ask("GET", path); resp.StatusCode != want {
			t.Errorf("GET %s among cookies of others: %d", path, resp.StatusCode)
		}
	}
	if resp, _ := get(t, g.URL()+one.Path, "Cookie", one.Name+"="+two.Value+"; "+one.Name+"="+one.Value); resp.StatusCode != 204 {
		t.Errorf("behind another: %d", resp.StatusCode)
	}
	for _, path := range []string{"/", "/at/", "/at/-/", two.Path} {
		jar.SetCookies(home, []*http.Cookie{{Name: one.Name, Path: path, MaxAge: -1}})
	}

	// It is forgotten where it was kept. One that is over is forgotten, too, when the page asks.
	if resp := ask("POST", one.Path+"logout"); resp.StatusCode != 303 || len(resp.Cookies()) != 1 || resp.Cookies()[0].Path != one.Path || resp.Cookies()[0].MaxAge >= 0 {
		t.Errorf("logout: %d %v", resp.StatusCode, resp.Cookies())
	}
	if code := c.CloseStatus(); code != 4401 {
		t.Errorf("the connection was closed with %d after the logout", code)
	}
	jar.SetCookies(home, []*http.Cookie{one})
	if resp := ask("GET", one.Path); resp.StatusCode != 303 || len(resp.Cookies()) != 1 || resp.Cookies()[0].Path != one.Path || resp.Cookies()[0].MaxAge >= 0 {
		t.Errorf("the ended login was answered with %d %v", resp.StatusCode, resp.Cookies())
	}

	// A cookie of the path /, as there once were, goes with the next page or login; whoever sends it by himself is let in.
	for _, of := range []string{"/", "/login"} {
		jar.SetCookies(home, []*http.Cookie{at("/", two)})
		r, _ := http.NewRequest(map[string]string{"/": "GET", "/login": "POST"}[of], g.URL()+of, nil)
		if of == "/login" {
			r.Header.Set("Authorization", "Bearer a-plain-token")
		}
		resp, err := b.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if of == "/login" && !own.MatchString(resp.Header.Get("Location")) {
			t.Errorf("the login page does not get the path: %v", resp.Header)
		}
		if left := jar.Cookies(home); resp.StatusCode/100 != 2 || len(left) != 0 {
			t.Errorf("%s: %d, the old cookie is still there: %v", of, resp.StatusCode, left)
		}
	}
	ws, _, err = g.dialCookie(two)
	if err != nil {
		t.Fatal(err)
	}
	ws.CloseNow()
}

// at returns the cookie for another path.
func at(path string, c *http.Cookie) *http.Cookie {
	return &http.Cookie{Name: c.Name, Value: c.Value, Path: path}
}

// TestFormTellsTheLoginsPath: the page after the login form stores the path of the login with a script of its own.
func TestFormTellsTheLoginsPath(t *testing.T) {
	g := start(t, withTokens)
	resp, err := http.PostForm(g.URL()+"/login", url.Values{"token": {gateway.UserToken}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if len(resp.Cookies()) != 1 {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	path := resp.Cookies()[0].Path
	if text := string(body); resp.StatusCode != 200 || !strings.Contains(text, `data-at="`+path+`"`) || !strings.Contains(text, `localStorage.setItem("trl.at", document`) {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if strings.Contains(resp.Header.Get("Referrer-Policy"), "unsafe") || resp.Request.URL.Path != "/login" {
		t.Errorf("%s %v", resp.Request.URL, resp.Header)
	}
}

// fullLogins makes a gateway start with the largest number of logins.
func fullLogins(t *testing.T) func(*Config) {
	path := filepath.Join(t.TempDir(), "logins")
	var text strings.Builder
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for n := range limits.Constant(t, "web/auth.maxLogins") {
		fmt.Fprintf(&text, "sha256:%064x s%d user expires=%s\n", n, n, until)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.LoginsFile = path }
}
