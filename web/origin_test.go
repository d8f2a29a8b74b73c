package web

import (
	"crypto/tls"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/internal/testkit/gateway"
	"trl/metrics"
	"trl/web/auth"
	"trl/web/listen"
)

func TestLoopbackHost(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:80": true, "127.8.8.8:1": true, "localhost": true, "LocalHost:99": true, "[::1]": true, "[::1]:7": true,
		"": false, "rebind.attacker.com": false, "rebind.attacker.com:7681": false, "localhost.evil.com": false, "127.0.0.1.nip.io": false,
		"10.0.0.1": false, "0.0.0.0": false, "::1x": false, "[::1": false, "localhost:8a": false, "evil@localhost": false, "[fe80::1%25lo]": false,
		"127.1": false, "0177.0.0.1": false, "2130706433": false, "[::ffff:127.0.0.1]": true,
	} {
		if got := auth.LoopbackName(hostName(host)); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

func TestOrigin(t *testing.T) {
	listed := []string{"https://app.example", "https://with.slash/", "null"}
	for origin, want := range map[string]bool{
		"": true, "http://localhost:7681": true, "http://LOCALHOST:7681": true, "https://app.example": true, "https://with.slash": true,
		"https://evil.example": false, "null": false, "http://localhost.evil.com": false, "http://localhost.evil.com:7681": false,
		"http://localhost:7682": false, "http://localhost": false, "https://localhost:7681": false, "http://localhost:7681/": false,
		"http://localhost:7681.evil.com": false, "http://evil@localhost:7681": false, "http://localhost:7681@evil.com": false, "http://app.example": false,
		"https://app.example.evil": false, "file://": false, "localhost:7681": false,
	} {
		r := httptest.NewRequest("GET", "http://localhost:7681/v1/ws", nil)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		if got := originAllowed(r, listed); got != want {
			t.Errorf("%q: %v", origin, got)
		}
	}
	r := httptest.NewRequest("GET", "https://trl.example/", nil)
	r.TLS = &tls.ConnectionState{}
	r.Header.Set("Origin", "https://trl.example")
	if !originAllowed(r, nil) {
		t.Error("the server refused its own origin over TLS")
	}
	r.Header.Add("Origin", "https://evil.example")
	if originAllowed(r, nil) {
		t.Error("the server allowed two origins")
	}
}

// get sends a request with these headers. "Host" sets the Host header.
func get(t *testing.T, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	return ask(t, "GET", url, headers...)
}

func ask(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, _ := http.NewRequest(method, url, nil)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp, string(b)
}

var routes = []string{"/", "/login", "/healthz", "/readyz", "/metrics", "/v1/schema", "/v1/ws", "/nothing"}

func withTokens(c *Config) {
	c.AuthNone = false
	c.Tokens = gateway.RoleTokens
}

func TestForeignNamesAndPagesGetNothing(t *testing.T) { // K1, K2
	g := start(t)
	for _, route := range routes {
		if resp, _ := get(t, g.URL()+route, "Host", "rebind.attacker.com"); resp.StatusCode != 421 {
			t.Errorf("%s with a foreign Host: %d", route, resp.StatusCode)
		}
		for _, origin := range []string{"https://evil.example", "null", "http://localhost.evil.com", "http://127.0.0.1:1"} {
			if resp, _ := get(t, g.URL()+route, "Origin", origin); resp.StatusCode != 403 {
				t.Errorf("%s with Origin %s: %d", route, origin, resp.StatusCode)
			}
		}
		for _, query := range []string{"?token=x", "?access_token=x", "?a=1&TOKEN=x", "?a=1;token=x", "?%74oken=x"} { // K4
			if resp, _ := get(t, g.URL()+route+query); resp.StatusCode != 400 {
				t.Errorf("%s%s: %d", route, query, resp.StatusCode)
			}
		}
	}
	for _, origin := range []string{"https://evil.example", "null", "http://127.0.0.1.evil.com"} {
		_, resp, err := g.DialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Origin": {origin}}})
		if err == nil || resp.StatusCode != 403 {
			t.Errorf("upgrade with Origin %s: %v", origin, err)
		}
	}
	ws, _, err := g.DialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Origin": {g.URL()}}})
	if err != nil {
		t.Fatalf("own origin: %v", err)
	}
	ws.CloseNow()
}

func TestNothingWithoutToken(t *testing.T) { // K3, K18
	g := start(t, withTokens)
	for _, h := range []http.Header{
		{}, {"Authorization": {"Bearer wrong"}}, {"Authorization": {"Basic " + gateway.AdminToken}}, {"Authorization": {"Bearer"}},
		{"Sec-Websocket-Protocol": {"trl.v1, trl.token.!!!"}}, {"Cookie": {"trl_token=x"}},
		{"Authorization": {"Bearer wrong"}, "Sec-Websocket-Protocol": {"trl.token." + base64.RawURLEncoding.EncodeToString([]byte(gateway.AdminToken))}},
	} {
		_, resp, err := g.DialWith(&websocket.DialOptions{HTTPHeader: h})
		if err == nil || resp.StatusCode != 401 {
			t.Errorf("%v: %v", h, err)
		}
	}
	if resp, _ := get(t, g.URL()+"/metrics"); resp.StatusCode != 401 {
		t.Errorf("/metrics: %d", resp.StatusCode)
	}
	if resp, body := get(t, g.URL()+"/metrics", "Authorization", "Bearer "+gateway.ViewToken); resp.StatusCode != 200 || !strings.Contains(body, "trl_sessions") {
		t.Errorf("/metrics with a token: %d", resp.StatusCode)
	}
	for _, route := range []string{"/healthz", "/readyz", "/v1/schema", "/v1/sdk.js", "/", "/login"} {
		resp, _ := get(t, g.URL()+route)
		if resp.StatusCode != 200 || resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Content-Security-Policy") == "" {
			t.Errorf("%s: %d %v", route, resp.StatusCode, resp.Header)
		}
	}
	g.Dial(gateway.AdminToken).Call("system.ping", nil)
}

func TestBrowserToken(t *testing.T) { // K5
	g := start(t, withTokens)
	entry := "trl.token." + base64.RawURLEncoding.EncodeToString([]byte(gateway.AdminToken))
	for _, offered := range [][]string{{"trl.v1", entry}, {entry, "trl.v1"}, {entry + "=", "trl.v1"}} {
		ws, resp, err := g.DialWith(&websocket.DialOptions{Subprotocols: offered})
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Values("Sec-WebSocket-Protocol"); len(got) != 1 || got[0] != "trl.v1" {
			t.Errorf("selected %q", got)
		}
		ws.CloseNow()
	}
}

func TestLoginSetsCookie(t *testing.T) {
	g := start(t, withTokens)
	noRedirect := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	login := func(header, form string) *http.Response {
		t.Helper()
		r, _ := http.NewRequest("POST", g.URL()+"/login", strings.NewReader(form))
		if form != "" {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		resp, err := noRedirect.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	for _, resp := range []*http.Response{login("Bearer wrong", ""), login("", "token=wrong"), login("", "")} {
		if resp.StatusCode != 401 || len(resp.Cookies()) != 0 {
			t.Fatalf("wrong token: %d", resp.StatusCode)
		}
	}
	for _, resp := range []*http.Response{login("Bearer "+gateway.UserToken, ""), login("", url.Values{"token": {gateway.UserToken}}.Encode())} {
		c := resp.Cookies()
		if len(c) != 1 || !c[0].HttpOnly || c[0].SameSite != http.SameSiteStrictMode || strings.Contains(c[0].Value, gateway.UserToken) || len(c[0].Value) < 40 {
			t.Fatalf("%d %v", resp.StatusCode, c)
		}
		ws, _, err := g.DialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Cookie": {c[0].Name + "=" + c[0].Value}, "Origin": {g.URL()}}})
		if err != nil {
			t.Fatal(err)
		}
		ws.CloseNow()
	}
	_, page := get(t, g.URL()+"/login")
	if !strings.Contains(page, "#token=") || strings.Contains(page, gateway.UserToken) {
		t.Fatal(page)
	}
}

func TestBeyondLoopback(t *testing.T) { // K15
	for name, c := range map[string]Config{
		"auth none":          {Config: listen.Config{Listen: "0.0.0.0:0", AuthNone: true, Insecure: true}},
		"plain HTTP":         {Config: listen.Config{Listen: "0.0.0.0:0"}, Tokens: gateway.Tokens{}},
		"all addresses":      {Config: listen.Config{Listen: ":0"}, Tokens: gateway.Tokens{}},
		"no tokens":          {Config: listen.Config{Listen: "127.0.0.1:0"}},
		"broken certificate": {Config: listen.Config{Listen: "127.0.0.1:0", TLSCert: "/nonexistent", TLSKey: "/nonexistent"}, Tokens: gateway.Tokens{}},
	} {
		s := start0(c)
		if err := s.Listen(); err == nil {
			t.Errorf("%s: listens", name)
		}
		if len(s.listeners) != 0 {
			t.Errorf("%s: a listener is left", name)
		}
	}
	s := start0(Config{Config: listen.Config{Listen: "0.0.0.0:0", Insecure: true}, Tokens: gateway.Tokens{}})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	s.stopListening(t.Context())
}

// start0 starts a server without a pool, for requests that need none.
func start0(c Config) *Server {
	r := prometheus.NewRegistry()
	return New(c, nil, metrics.New(r), r, zerolog.Nop())
}
