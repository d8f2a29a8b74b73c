package web

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/issuer"
	"trl/internal/testkit/limits"
	"trl/web/auth"
)

func TestConnectionsEndWithTheirJWT(t *testing.T) {
	i := issuer.New(t)
	j, err := auth.OpenJWT(auth.JWTConfig{JWKS: i.URL + "/keys", Issuer: i.URL, Audience: "trl", Role: auth.RoleRule{DefaultRole: auth.User}}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, withTokens, func(c *Config) { c.JWT = j })
	for life := 3 * time.Second; ; life *= 2 { // on a busy machine it may be over before the client has come
		// A leeway in the past: it is let in, and over before long.
		ws, _, err := g.DialWith(&websocket.DialOptions{HTTPHeader: bearerHeader(i.Sign(func(c issuer.Claims) { c["exp"] = time.Now().Add(-5*time.Second + life).Unix() }))})
		if err == nil {
			if code := rig.NewClient(t, ws).CloseStatus(); code != 4401 {
				t.Errorf("%d", code)
			}
			break
		}
		if life > patience {
			t.Fatal(err)
		}
	}
	g.Dial(gateway.AdminToken).Call("system.ping", nil)
	// Its name is one of the issuer's: nobody becomes a token's subject by it.
	ann := g.Dial(i.Sign(func(c issuer.Claims) { c["sub"], c["trl_role"] = "bob", "admin" }))
	if who := ann.Call("system.capabilities", nil)["principal"].(map[string]any); who["subject"] != i.URL+"#bob" || who["role"] != "admin" {
		t.Errorf("%v", who)
	}
}

func TestOIDCLogin(t *testing.T) {
	i := issuer.New(t)
	secret := filepath.Join(t.TempDir(), "secret")
	os.WriteFile(secret, []byte("client-secret\n"), 0o600)
	var g *server
	conf := &auth.OIDCConfig{Issuer: i.URL, ClientID: "trl", SecretFile: secret, Role: auth.RoleRule{DefaultRole: auth.User}}
	g = start(t, withTokens, func(c *Config) { c.OIDC = conf })
	conf.RedirectURL = g.URL() + auth.CallbackPath // only now the port is known
	if err := conf.Check(); err != nil {
		t.Fatal(err)
	}

	// browser follows redirects to the end, with cookies, and stops where stop says so.
	browser := func(stop string) (*http.Client, *http.Response) {
		t.Helper()
		jar, _ := cookiejar.New(nil)
		b := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if stop != "" && strings.Contains(r.URL.String(), stop) {
				return http.ErrUseLastResponse
			}
			return nil
		}}
		resp, err := b.Get(g.URL() + "/login/oidc")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		b.CloseIdleConnections()
		return b, resp
	}
	visit := func(b *http.Client, address string) *http.Response {
		t.Helper()
		resp, err := b.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	loggedIn := func(resp *http.Response) *http.Cookie {
		for _, c := range resp.Cookies() {
			if strings.HasPrefix(c.Name, "trl_login") && !strings.HasSuffix(c.Name, "_oidc") {
				return c
			}
		}
		return nil
	}
	if _, page := get(t, g.URL()+"/login"); !strings.Contains(page, `href="/login/oidc"`) {
		t.Error("the login page has no link to the provider")
	}
	_, resp := browser("/authorize")
	if set := resp.Header.Get("Set-Cookie"); !strings.Contains(set, "SameSite=Lax") || !strings.Contains(set, "HttpOnly") { // the browser comes back from another site
		t.Errorf("cookie of an attempt: %s", set)
	}
	b, resp := browser("")
	set := resp.Header["Set-Cookie"]
	if resp.StatusCode != 200 || resp.Request.URL.Path != auth.CallbackPath || loggedIn(resp) == nil || !strings.Contains(strings.Join(set, " "), "SameSite=Strict") || !strings.Contains(strings.Join(set, " "), "HttpOnly") {
		t.Fatalf("%d %s %v", resp.StatusCode, resp.Request.URL, set)
	}
	ws, _, err := g.dialCookie(loggedIn(resp))
	if err != nil {
		t.Fatal(err)
	}
	c := rig.NewClient(t, ws)
	if who := c.Call("system.capabilities", nil)["principal"].(map[string]any); who["subject"] != i.URL+"#ann" || who["role"] != "user" {
		t.Errorf("%v", who)
	}
	if got := visit(b, resp.Request.URL.String()); got.StatusCode == 200 || loggedIn(got) != nil {
		t.Error("the server accepted a callback twice")
	}

	// A callback without its beginning in this browser, with another state, or with a code that the provider did not give.
	_, resp = browser(auth.CallbackPath)
	back, _ := url.Parse(resp.Header.Get("Location"))
	if got := visit(&http.Client{}, back.String()); got.StatusCode != 401 || loggedIn(got) != nil {
		t.Errorf("in another browser: %d", got.StatusCode)
	}
	for _, change := range []url.Values{{"state": {"x"}}, {"state": {""}}, {"code": {""}}, {"code": {"made-up"}}} {
		b, resp = browser(auth.CallbackPath)
		back, _ = url.Parse(resp.Header.Get("Location"))
		q := back.Query()
		for k, v := range change {
			q[k] = v
		}
		back.RawQuery = q.Encode()
		if got := visit(b, back.String()); got.StatusCode != 401 || loggedIn(got) != nil {
			t.Errorf("%v: %d", change, got.StatusCode)
		}
	}
	for what, change := range map[string]func(issuer.Claims){
		"nonce": func(c issuer.Claims) { c["nonce"] = "x" }, "audience": func(c issuer.Claims) { c["aud"] = "other" }, "issuer": func(c issuer.Claims) { c["iss"] = "https://other" },
		"expiry": func(c issuer.Claims) { c["exp"] = time.Now().Add(-time.Minute).Unix() }, "subject": func(c issuer.Claims) { c["sub"] = "a b" },
		"two audiences": func(c issuer.Claims) { c["aud"], c["azp"] = []string{"trl", "other"}, "other" },
	} {
		i.Change(change)
		if _, resp := browser(""); resp.StatusCode != 401 || loggedIn(resp) != nil {
			t.Errorf("another %s: %d", what, resp.StatusCode)
		}
	}
	i.Close()
	first := g
	g = start(t, withTokens, func(c *Config) { c.OIDC = conf }) // it has never asked the provider
	conf.RedirectURL = g.URL() + auth.CallbackPath
	if _, resp := browser(""); resp.StatusCode != 503 {
		t.Errorf("without a provider: %d", resp.StatusCode)
	}
	if log := first.Log.String() + g.Log.String(); strings.Contains(log, "client-secret") || strings.Contains(log, "eyJ") {
		t.Error("the log has secrets")
	}
}

// TestCallbackLocksNobodyOut: a foreign page makes a browser request the callback many times. The person can log in nevertheless.
func TestCallbackLocksNobodyOut(t *testing.T) {
	i := issuer.New(t)
	g := start(t, withTokens, func(c *Config) {
		c.OIDC = &auth.OIDCConfig{Issuer: i.URL, ClientID: "trl", Role: auth.RoleRule{DefaultRole: auth.User}}
	})
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	visit := func(query, cookie string) int {
		t.Helper()
		q, err := http.NewRequest("GET", g.URL()+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if cookie != "" {
			home, _ := url.Parse(g.URL())
			q.AddCookie(&http.Cookie{Name: "trl_login_" + home.Port() + "_oidc", Value: cookie})
		}
		resp, err := stay.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for range 2 * int(limits.Constant(t, "web/auth.freeTries")) {
		if got := visit(auth.CallbackPath, "") + visit(auth.CallbackPath+"?state=x&code=y", "") + visit(auth.CallbackPath+"?state=x&code=y", "a.b.c"); got != 3*401 {
			t.Fatalf("no attempt of this browser: %d", got)
		}
	}
	if got := visit(auth.OIDCPath, ""); got != 303 {
		t.Errorf("a login after that: %d", got)
	}
	testkit.Eventually(t, "codes that are guessed are slowed down", func() bool { return visit(auth.CallbackPath+"?state=a&code=guess", "a.b.c") == 429 })
}

// TestProviderThatIsDown: a login without the provider, or without room for it, is answered with 503 and does not count as a guess.
func TestProviderThatIsDown(t *testing.T) {
	for _, path := range []string{"/token", "/keys"} {
		t.Run(path, func(t *testing.T) {
			i := issuer.New(t)
			secret := filepath.Join(t.TempDir(), "secret")
			os.WriteFile(secret, []byte("client-secret\n"), 0o600)
			conf := &auth.OIDCConfig{Issuer: i.URL, ClientID: "trl", SecretFile: secret, Role: auth.RoleRule{DefaultRole: auth.User}}
			g := start(t, withTokens, func(c *Config) { c.OIDC = conf })
			conf.RedirectURL = g.URL() + auth.CallbackPath
			var down atomic.Bool
			up := i.Config.Handler
			i.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == path && down.Load() {
					http.Error(w, "upstream is down", http.StatusServiceUnavailable)
					return
				}
				up.ServeHTTP(w, r)
			})
			login := func() (status int, words string) {
				jar, _ := cookiejar.New(nil)
				b := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
				resp, err := b.Get(g.URL() + auth.OIDCPath)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, _ := io.ReadAll(resp.Body)
				return resp.StatusCode, string(text)
			}
			down.Store(true)
			for range limits.Constant(t, "web/auth.freeTries") + 3 {
				if got, _ := login(); got != http.StatusServiceUnavailable {
					t.Fatalf("while it is down: %d", got)
				}
			}
			down.Store(false)
			if got, _ := login(); got != http.StatusOK {
				t.Errorf("once it is up: %d", got)
			}
			g = start(t, withTokens, fullLogins(t), func(c *Config) { c.OIDC = conf })
			conf.RedirectURL = g.URL() + auth.CallbackPath
			for range limits.Constant(t, "web/auth.freeTries") + 3 {
				if got, words := login(); got != http.StatusServiceUnavailable || !strings.Contains(words, auth.ErrTooManyLogins.Error()) {
					t.Fatalf("without room: %d %q", got, words)
				}
			}
		})
	}
}
