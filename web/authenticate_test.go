package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
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
	"trl/web/listen"
)

// withFile gives the gateway a token file and returns its path.
func withFile(t testing.TB, text string) (path string, set func(*Config)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := auth.OpenTokens(path, "", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return path, func(c *Config) { c.AuthNone, c.Tokens = false, f }
}

func (g *server) dialCookie(c *http.Cookie) (*websocket.Conn, *http.Response, error) {
	return g.DialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Cookie": {c.Name + "=" + c.Value}, "Origin": {g.URL()}}})
}

func (g *server) logIn(token string) *http.Cookie {
	g.T.Helper()
	r, _ := http.NewRequest("POST", g.URL()+"/login", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		g.T.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent || len(resp.Cookies()) != 1 {
		g.T.Fatalf("login: %d, %v", resp.StatusCode, resp.Cookies())
	}
	return resp.Cookies()[0]
}

// status returns the HTTP status that answers an upgrade with these headers.
func (g *server) status(h http.Header, subprotocols ...string) int {
	g.T.Helper()
	ws, resp, err := g.DialWith(&websocket.DialOptions{HTTPHeader: h, Subprotocols: subprotocols})
	if err == nil {
		ws.CloseNow()
	}
	if resp == nil {
		g.T.Fatal(err)
	}
	return resp.StatusCode
}

func bearerHeader(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func TestRevokedTokenEndsItsConnections(t *testing.T) {
	path, set := withFile(t, "unused-token zoe user\n")
	g := start(t, set)
	add := func() (id, secret string) {
		t.Helper()
		id, secret, err := auth.AddToken(path, auth.Token{Subject: "ann", Role: auth.User})
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "a new token", func() bool { return g.cfg.Tokens.(*auth.TokenFile).Knows(secret) })
		return id, secret
	}
	id, secret := add()
	_, other := add()

	c, stays := g.Dial(secret), g.Dial(other)
	session := c.Session()
	cookie := g.logIn(secret)
	ws, _, err := g.dialCookie(cookie)
	if err != nil {
		t.Fatal(err)
	}
	byCookie := rig.NewClient(t, ws)
	if _, err := auth.RevokeToken(path, id); err != nil {
		t.Fatal(err)
	}
	if code := c.CloseStatus(); code != 4401 {
		t.Errorf("the connection of the revoked token was closed with %d", code)
	}
	if code := byCookie.CloseStatus(); code != 4401 {
		t.Errorf("the connection of a login with the revoked token was closed with %d", code)
	}
	if got := g.status(bearerHeader(secret)); got != 401 {
		t.Errorf("an upgrade with the revoked token was answered with %d", got)
	}
	if _, resp, err := g.dialCookie(cookie); err == nil || resp.StatusCode != 401 {
		t.Errorf("the login with the revoked token: %v", err)
	}
	if got := stays.Run(session, "echo here").Stdout(); got != "here\n" { // the subject's, not the token's
		t.Errorf("the session: %q", got)
	}
	testkit.Eventually(t, "the metric", func() bool { return g.Series("trl_connections_closed_total", "auth") == 2 })
}

// TestNothingIsDoneForARevokedToken: requests that wait for their turn are refused when their token is revoked.
func TestNothingIsDoneForARevokedToken(t *testing.T) {
	const user, other = "one-of-anns-tokens", "another-of-anns-tokens"
	path, set := withFile(t, user+" ann user\n"+other+" ann user\n")
	g := start(t, set)
	stays := g.Dial(other)
	tokens := func(text string, known bool) {
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil { // at once: the other token is in the file at any time
			t.Fatal(err)
		}
		testkit.Eventually(t, "the file is read", func() bool { return g.cfg.Tokens.(*auth.TokenFile).Knows(user) == known })
	}
	const many, tries = 100, 10
	for try := 1; ; try++ {
		c, session := g.Dial(user), stays.Session()
		for range many {
			c.Begin("process.start", object{"session_id": session, "command": "sleep 100"})
		}
		processes := func() int { return len(stays.Call("process.list", object{"session_id": session})["processes"].([]any)) }
		testkit.Eventually(t, "the first ones run", func() bool { return processes() > 2 })
		tokens(other+" ann user\n", false)
		before := processes()
		c.CloseStatus()
		testkit.Eventually(t, "its connection is gone", func() bool { return g.Metric("trl_connections") == 1 })
		if after := processes(); after > before+1 || before == many && try == tries { // one may have been about to start
			t.Errorf("%d processes when the token was revoked, then %d", before, after)
		}
		if before < many || try == tries { // otherwise the revocation came too late: a busy machine
			return
		}
		tokens(user+" ann user\n"+other+" ann user\n", true)
	}
}

func TestExpiryAndRoleEndConnections(t *testing.T) {
	soon := time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339) // rounds down
	path, set := withFile(t, "short-token ann user expires="+soon+"\nrole-token bob user\nfree-token cid user\n")
	g := start(t, set)
	f := g.cfg.Tokens.(*auth.TokenFile)
	changing, staying := g.Dial("role-token"), g.Dial("free-token")
	if f.Knows("short-token") {
		if ws, _, err := g.DialWith(&websocket.DialOptions{HTTPHeader: bearerHeader("short-token")}); err == nil {
			if code := rig.NewClient(t, ws).CloseStatus(); code != 4401 {
				t.Errorf("expired: %d", code)
			}
		}
	}
	testkit.Eventually(t, "expiry", func() bool { return g.status(bearerHeader("short-token")) == 401 })
	// Less is allowed now, and who came when it was more must come again. A note or a limit ends nothing.
	os.WriteFile(path+".new", []byte("role-token bob viewer\nfree-token cid user max_in_flight=1 note=hello\n"), 0o600)
	os.Rename(path+".new", path)
	if code := changing.CloseStatus(); code != 4401 {
		t.Errorf("another role: %d", code)
	}
	session := staying.Session()
	long := staying.Begin("exec.run", object{"session_id": session, "command": "sleep 300"})
	testkit.Eventually(t, "the new limit", func() bool { return staying.Try("system.ping", nil).Code() == "RATE_LIMITED" })
	if c2 := g.Dial("free-token"); c2.Try("system.ping", nil).Code() != "RATE_LIMITED" {
		t.Error("the rate limit counts for each connection, not for the token")
	}
	os.WriteFile(path+".new", []byte("free-token cid user max_sessions=1\n"), 0o600)
	os.Rename(path+".new", path)
	testkit.Eventually(t, "no limit any more", func() bool { return staying.Try("system.ping", nil).OK })
	if e := staying.Try("session.create", nil); e.Code() != "MAX_SESSIONS_REACHED" || e.Error.Details.Num("limit") != 1 {
		t.Errorf("a second session: %+v", e)
	}
	staying.Call("session.destroy", object{"session_id": session, "force": true})
	staying.Answer(long)
	staying.Session() // the slot is free
}

func mustOpen(t testing.TB, path string) *auth.TokenFile {
	t.Helper()
	f, err := auth.OpenTokens(path, "", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestRateOfAToken(t *testing.T) {
	_, set := withFile(t, "slow-token ann user rate=0.01\n")
	g := start(t, set)
	c := g.Dial("slow-token")
	c.Call("system.ping", nil)
	if f := c.Try("system.ping", nil); f.Code() != "RATE_LIMITED" {
		t.Errorf("%+v", f)
	}
	if f := g.Dial("slow-token").Try("system.ping", nil); f.Code() != "RATE_LIMITED" {
		t.Errorf("on another connection: %+v", f)
	}
}

func TestLoginsOutliveTheGateway(t *testing.T) {
	_, set := withFile(t, "a-plain-token ann user\n")
	file := filepath.Join(t.TempDir(), "gateway", "logins")
	keep := func(c *Config) { c.LoginsFile = file }
	g := start(t, set, keep)
	one, two := g.logIn("a-plain-token"), g.logIn("a-plain-token")
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), one.Value) || strings.Contains(string(text), "a-plain-token") {
		t.Fatalf("%s, %v", text, err)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	g = start(t, set, keep)
	ws, _, err := g.dialCookie(renamed(one, g))
	if err != nil {
		t.Fatal(err)
	}
	c := rig.NewClient(t, ws)
	if who := c.Call("system.capabilities", nil)["principal"].(map[string]any); who["subject"] != "ann" || who["role"] != "user" {
		t.Errorf("%v", who)
	}
	// Logging out ends this login, not the other.
	r, _ := http.NewRequest("POST", g.URL()+"/logout", nil)
	r.AddCookie(renamed(one, g))
	r.Header.Set("Origin", g.URL())
	resp, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if c := resp.Cookies(); resp.StatusCode != 303 || len(c) != 1 || c[0].MaxAge >= 0 {
		t.Errorf("logout: %d %v", resp.StatusCode, c)
	}
	if code := c.CloseStatus(); code != 4401 {
		t.Errorf("the connection was closed with %d after the logout", code)
	}
	if _, resp, err := g.dialCookie(renamed(one, g)); err == nil || resp.StatusCode != 401 {
		t.Errorf("after logging out: %v", err)
	}
	// The page tells the browser to forget a login that is over, which would hide whatever else it may bring.
	quiet := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, _ = http.NewRequest("GET", g.URL()+"/", nil)
	r.AddCookie(renamed(one, g))
	if resp, err = quiet.Do(r); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if c := resp.Cookies(); resp.StatusCode != 303 || len(c) != 1 || c[0].MaxAge >= 0 {
		t.Errorf("the page, after logging out: %d %v", resp.StatusCode, c)
	}
	ws, _, err = g.dialCookie(renamed(two, g))
	if err != nil {
		t.Fatal(err)
	}
	ws.CloseNow()
}

// renamed returns the cookie under the name that it has for this gateway's port.
func renamed(c *http.Cookie, g *server) *http.Cookie {
	_, port, _ := strings.Cut(g.Addr(), ":")
	return &http.Cookie{Name: "trl_login_" + port, Value: c.Value}
}

// TestLoggingInCountsOnTheRate: HTTP requests count on the rate limit of their token.
func TestLoggingInCountsOnTheRate(t *testing.T) {
	_, set := withFile(t, "ann-token ann user rate=1\n")
	g := start(t, set)
	for n := 0; ; n++ {
		r, _ := http.NewRequest("POST", g.URL()+"/login", nil)
		r.Header.Set("Authorization", "Bearer ann-token")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			break
		}
		if n > 1000 {
			t.Fatal("the server accepted a thousand logins at once")
		}
	}
}

func TestGuessingIsSlowedDown(t *testing.T) {
	const plain = "somebody-thought-this-up"
	path, _ := withFile(t, plain+" bob user\n")
	_, made, err := auth.AddToken(path, auth.Token{Subject: "ann", Role: auth.User})
	if err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, path)
	g := start(t, func(c *Config) { c.AuthNone, c.Tokens = false, f })
	var refused, slowed int
	var retry string
	for i := range 1000 {
		resp, _ := get(t, g.URL()+"/metrics", "Authorization", fmt.Sprintf("Bearer guess-%d", i))
		switch resp.StatusCode {
		case 401:
			refused++
		case 429:
			slowed++
			retry = resp.Header.Get("Retry-After")
		default:
			t.Fatalf("guess %d: %d", i, resp.StatusCode)
		}
	}
	freeTries := int(limits.Constant(t, "web/auth.freeTries"))
	if refused < freeTries || refused > freeTries+12 || slowed < 900 || retry == "" || retry == "0" {
		t.Errorf("%d refused, %d slowed down, Retry-After %q", refused, slowed, retry)
	}
	if got := g.Series("trl_auth_total", "token", "throttled"); got != float64(slowed) {
		t.Errorf("metric: %g", got)
	}
	// While it lasts, a right guess looks like a wrong one; what nobody can guess passes. The time that is left may be short at first. Each wrong
	// credential that is checked doubles it.
	testkit.Eventually(t, "a token that people could guess is slowed down, too", func() bool {
		resp, _ := get(t, g.URL()+"/metrics", "Authorization", "Bearer wrong")
		return resp.StatusCode == 429 && g.status(bearerHeader(plain)) == 429
	})
	g.Dial(made).Call("system.ping", nil)
	if n := strings.Count(g.Log.String(), "client refused"); n < 5 || n > 300 {
		t.Errorf("%d lines in the log", n)
	}
	if strings.Contains(g.Log.String(), "guess-") {
		t.Error("the log has the guessed tokens")
	}
}

// TestStrangersAreShownOut: the server closes a connection that sends nothing, or not enough, after a constant time (K13).
func TestStrangersAreShownOut(t *testing.T) {
	if listen.StrangerLifetime > 10*time.Second || headerTimeout > 10*time.Second {
		t.Fatalf("the server gives strangers %v", listen.StrangerLifetime)
	}
	g := start(t, withTokens)
	var conns []net.Conn // at the same time: it takes the server's ten seconds
	for _, text := range []string{"", "GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\n", "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\ntoken="} {
		c, err := new(net.Dialer).DialContext(context.Background(), "tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Write([]byte(text))
		c.SetReadDeadline(time.Now().Add(patience))
		conns = append(conns, c)
	}
	for i, c := range conns {
		if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
			t.Errorf("the server did not close stranger %d", i)
		}
	}
}

// TestCredentialsStayHidden uses a credential of each kind and searches for it in everything that others can read.
func TestCredentialsStayHidden(t *testing.T) {
	path, _ := withFile(t, "planted-plain-token ann admin\n")
	_, made, err := auth.AddToken(path, auth.Token{Subject: "ann", Role: auth.Admin})
	if err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, path)
	i := issuer.New(t)
	keys := auth.JWTConfig{JWKS: i.URL + "/keys", Issuer: i.URL, Audience: "trl", Role: auth.RoleRule{DefaultRole: auth.User}}
	j, err := auth.OpenJWT(keys, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	g := start(t, func(c *Config) { c.AuthNone, c.Tokens, c.JWT = false, f, j })
	signed := i.Sign(nil)
	cookie := g.logIn(made)
	resp, body := post(t, g.URL()+"/v1/tickets", "Authorization", "Bearer "+made)
	var ticket struct{ Ticket string }
	if err := json.Unmarshal([]byte(body), &ticket); err != nil || ticket.Ticket == "" {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	secrets := map[string]string{"plain token": "planted-plain-token", "token": made, "JWT": signed, "signature": signed[strings.LastIndexByte(signed, '.')+1:],
		"cookie": cookie.Value, "ticket": ticket.Ticket, "login's path": strings.Trim(strings.TrimPrefix(cookie.Path, auth.LoginPrefix), "/")}
	var said strings.Builder
	note := func(resp *http.Response, err error) {
		if resp != nil {
			fmt.Fprintln(&said, resp.Status, resp.Header)
		}
		fmt.Fprintln(&said, err)
	}
	for _, secret := range secrets { // right where they are, and broken, where they are not, in paths and in queries
		for _, path := range []string{"", "v1/ws", "v1/recordings/x", "metrics", "nothing"} {
			_, _ = get(t, g.URL()+auth.LoginPrefix+secret+"/"+path, "Cookie", cookie.Name+"="+cookie.Value)
		}
		for _, h := range []http.Header{bearerHeader(secret), bearerHeader(secret + "x"), {"Cookie": {cookie.Name + "=" + secret + "x"}}} {
			ws, resp, err := g.DialWith(&websocket.DialOptions{HTTPHeader: h})
			note(resp, err)
			if err == nil {
				c := rig.NewClient(t, ws)
				fmt.Fprintln(&said, c.Try("session.info", object{"session_id": secret}).Error)
				fmt.Fprintln(&said, c.Try("exec.wait", object{"exec_id": secret}).Error)
			}
		}
		enc := base64.RawURLEncoding.EncodeToString([]byte(secret + "y"))
		_, resp, err := g.DialWith(&websocket.DialOptions{Subprotocols: []string{"trl.v1", "trl.token." + enc}})
		note(resp, err)
		resp, body := get(t, g.URL()+"/v1/ws?token="+secret)
		fmt.Fprintln(&said, resp.Status, body)
	}
	ws, resp, err := g.DialWith(&websocket.DialOptions{Subprotocols: []string{"trl.v1", "trl.ticket." + ticket.Ticket}})
	note(resp, err)
	c := rig.NewClient(t, ws)
	session := c.Session()
	proc := c.Run(session, `for f in /proc/$$/environ /proc/self/environ /proc/$$/cmdline /proc/self/cmdline; do tr '\0' '\n' <$f; done; ls -l /proc/$$/fd /proc/self/fd; env; set`).Stdout()
	_, metrics := get(t, g.URL()+"/metrics", "Authorization", "Bearer "+made)
	if !strings.Contains(metrics, `trl_auth_total{method="ticket",result="ok"} 1`) {
		t.Error("no metric of the ticket")
	}
	for where, text := range map[string]string{"log": g.Log.String(), "metrics": metrics, "answers": said.String(), "/proc": proc} {
		if len(text) < 100 {
			t.Errorf("%s: only %q", where, text)
		}
		for kind, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("the %s has the %s", where, kind)
			}
		}
	}
}

func post(t *testing.T, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	return ask(t, "POST", url, headers...)
}

// TestOneAtATime: a client that waits for each answer never reaches the bound on concurrent requests.
func TestOneAtATime(t *testing.T) {
	_, set := withFile(t, "single-token ann user max_in_flight=1\n")
	g := start(t, set)
	c := g.Dial("single-token")
	session := c.Session()
	for range 200 {
		c.Call("system.ping", nil)
		c.Run(session, ":")
	}
}

// TestWhoIsKnownIsNoStranger: an authenticated client may stay connected without a time limit.
func TestWhoIsKnownIsNoStranger(t *testing.T) {
	for name, set := range map[string]func(*Config){"token": withTokens, "none": func(*Config) {}} {
		g := start(t, set)
		c := g.Dial(gateway.UserToken)
		door := g.listeners[0].Listener.(*listen.StrangerListener)
		testkit.Eventually(t, "known, with auth "+name, func() bool { return door.Count() == 0 })
		c.Call("system.ping", nil)
	}
}

// TestAnExpiryThatComesLater: if a token gets an expiry, or an earlier one, its open connections end at that time.
func TestAnExpiryThatComesLater(t *testing.T) {
	path, set := withFile(t, "late-token ann user\nclose-token bob user expires=2099-01-01T00:00:00Z\n")
	g := start(t, set)
	late, nearer := g.Dial("late-token"), g.Dial("close-token")
	late.Call("system.ping", nil)
	nearer.Call("system.ping", nil)
	soon := time.Now().Add(3 * time.Second)
	text := soon.UTC().Format(time.RFC3339)
	os.WriteFile(path+".new", []byte("late-token ann user expires="+text+"\nclose-token bob user expires="+text+"\n"), 0o600)
	os.Rename(path+".new", path)
	began := time.Now()
	for _, c := range []*rig.Client{late, nearer} {
		if code := c.CloseStatus(); code != 4401 {
			t.Errorf("closed with %d", code)
		}
	}
	if time.Since(began) > 25*time.Second {
		t.Errorf("it took %v", time.Since(began))
	}
}
