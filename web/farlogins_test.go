package web

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"trl/cluster/link"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
)

// loginCluster is a cluster whose nodes share a token file and have files of logins of their own.
func loginCluster(t *testing.T, names ...string) (cl *testCluster, token string, revoke func()) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens")
	id, token, err := auth.AddToken(path, auth.Token{Subject: "bob", Role: auth.User})
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := auth.AddToken(path, auth.Token{Subject: "ann", Role: auth.Admin})
	if err != nil || other == "" {
		t.Fatal(err)
	}
	cl = newCluster(t, func(*pool.Config) {}, func(c *Config) {
		tokens, err := auth.OpenTokens(path, "", zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tokens.Close() })
		c.AuthNone, c.Tokens, c.LoginsFile = false, tokens, filepath.Join(dir, "logins of "+c.Cluster.Node)
	}, names...)
	return cl, token, func() {
		if _, err := auth.RevokeToken(path, id); err != nil {
			t.Fatal(err)
		}
	}
}

// browser is one that reaches every node by the same name, through a load balancer.
type browser struct {
	t      *testing.T
	client *http.Client
	to     *testNode // the node of the next request
	at     string    // the path of its cookie
}

func newBrowser(t *testing.T, to *testNode) *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, to: to}
	b.client = &http.Client{Jar: jar, Transport: b, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return b
}

// RoundTrip is the load balancer.
func (b *browser) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.Clone(r.Context())
	q.URL.Host, q.Host = b.to.Addr(), "localhost"
	return http.DefaultTransport.RoundTrip(q)
}

func (b *browser) do(method, path string, header ...string) (*http.Response, string) {
	b.t.Helper()
	r, err := http.NewRequest(method, "http://localhost"+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return res, string(text)
}

// logIn logs in at a node.
func (b *browser) logIn(n *testNode, token string) {
	b.t.Helper()
	b.to = n
	res, text := b.do("POST", "/login", "Authorization", "Bearer "+token)
	if b.at = res.Header.Get("Location"); res.StatusCode != 204 || b.at == "" {
		b.t.Fatalf("login: %d %q", res.StatusCode, text)
	}
}

// state is the status with which a node answers whether the browser is logged in: 204 if it is.
func (b *browser) state(n *testNode) int {
	b.t.Helper()
	b.to = n
	res, _ := b.do("GET", b.at)
	return res.StatusCode
}

// open opens a tab: a WebSocket with the browser's cookie.
func (b *browser) open(n *testNode) *websocket.Conn {
	b.t.Helper()
	var cookies []string
	for _, c := range b.client.Jar.Cookies(&url.URL{Scheme: "http", Host: "localhost", Path: b.at}) {
		cookies = append(cookies, c.String())
	}
	ws, _, err := websocket.Dial(b.t.Context(), "ws://"+n.Addr()+b.at+"v1/ws", &websocket.DialOptions{
		Subprotocols: []string{"trl.v1"}, Host: "localhost", HTTPHeader: http.Header{"Cookie": {strings.Join(cookies, "; ")}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { ws.CloseNow() })
	return ws
}

// whoami asks a tab for its principal.
func whoami(t *testing.T, ws *websocket.Conn) string {
	t.Helper()
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(`{"id":1,"method":"system.capabilities"}`)); err != nil {
		t.Fatal(err)
	}
	_, msg, err := ws.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Data protocol.Capabilities
	}
	if err := json.Unmarshal(msg, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Data.Principal.Subject + " " + answer.Data.Principal.Role
}

// closed waits until the gateway closes a tab, and returns the code.
func closed(ws *websocket.Conn) websocket.StatusCode {
	for {
		if _, _, err := ws.Read(context.Background()); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}

// TestLoginIsGoodAtEveryNode: a browser that has logged in at one node is logged in at all, and a logout at any ends it at all, with its tabs.
func TestLoginIsGoodAtEveryNode(t *testing.T) {
	cl, token, revoke := loginCluster(t, "a", "b", "c")
	a, b, c := cl.node("a"), cl.node("b"), cl.node("c")
	for _, at := range []*testNode{a, b, c} { // where the user logs out
		user := newBrowser(t, a)
		user.logIn(a, token)
		var tabs []*websocket.Conn
		for _, n := range []*testNode{a, b, c} {
			if got := user.state(n); got != 204 {
				t.Fatalf("at %s: %d", n.name, got)
			}
			tab := user.open(n)
			if who := whoami(t, tab); who != "bob user" {
				t.Errorf("at %s the login is of %q", n.name, who)
			}
			tabs = append(tabs, tab)
		}
		user.to = at
		if res, text := user.do("POST", user.at+"logout"); res.StatusCode != 303 {
			t.Errorf("logout at %s: %d %q", at.name, res.StatusCode, text)
		}
		for i, tab := range tabs {
			if code := closed(tab); code != 4401 {
				t.Errorf("after a logout at %s tab %d was closed with %d", at.name, i, code)
			}
		}
	}

	// Another browser's login goes on until its token is revoked.
	user := newBrowser(t, b)
	user.logIn(b, token)
	tab := user.open(c)
	whoami(t, tab)
	revoke()
	if code := closed(tab); code != 4401 {
		t.Errorf("after the end of the token a tab was closed with %d", code)
	}
	testkit.Eventually(t, "the login is over everywhere", func() bool {
		return user.state(a) == 303 && user.state(b) == 303 && user.state(c) == 303
	})
}

// TestLoginsOverIdleLinks: a node asks about logins over a link that it keeps, and dials again if that was closed or has broken while it was idle. No browser
// notices.
func TestLoginsOverIdleLinks(t *testing.T) {
	cl, token, _ := loginCluster(t, "a", "b")
	a, b := cl.node("a"), cl.node("b")
	asks := func(what string, dials int) {
		t.Helper()
		user := newBrowser(t, a)
		user.logIn(a, token)
		before, _ := a.links.counts()
		if got := user.state(b); got != 204 {
			t.Errorf("%s: %d", what, got)
		}
		if after, _ := a.links.counts(); after-before != dials {
			t.Errorf("%s: %d links were dialled, want %d", what, after-before, dials)
		}
	}
	asks("the first login", 1)
	asks("another login", 0)
	b.server.others.close() // as after a minute
	testkit.Eventually(t, "the idle link is closed", func() bool { _, open := a.links.counts(); return open == 0 })
	asks("after the idle link was closed", 1)
	asks("another login", 0)
	a.links.each((*linkSocket).kill)
	asks("over a link that has broken, of which nobody knows yet", 1)
	asks("another login", 0)
	a.links.each(func(s *linkSocket) { s.Close() })
	asks("after the idle link was cut", 1)
	if _, open := a.links.counts(); open != 1 {
		t.Errorf("%d links are open", open)
	}
}

// TestLoginEndsWithoutALogout: a login that its node ends by itself ends at the other nodes a few seconds later.
func TestLoginEndsWithoutALogout(t *testing.T) {
	cl, token, _ := loginCluster(t, "a", "b")
	a, b := cl.node("a"), cl.node("b")
	oldest := newBrowser(t, a)
	oldest.logIn(a, token)
	tab := oldest.open(b)
	for range 32 { // as many as a subject may have
		newBrowser(t, a).logIn(a, token)
	}
	if got := oldest.state(a); got != 303 {
		t.Errorf("the login is good at its node: %d", got)
	}
	if code := closed(tab); code != 4401 {
		t.Errorf("closed with %d", code)
	}
}

// TestLoginOutlivesItsNode: a login goes on where it is in use while its node is restarted, and is good everywhere again when the node is back.
func TestLoginOutlivesItsNode(t *testing.T) {
	cl, token, _ := loginCluster(t, "a", "b", "c")
	a, b, c := cl.node("a"), cl.node("b"), cl.node("c")
	user := newBrowser(t, a)
	user.logIn(a, token)
	tab := user.open(b)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	a.cutOff()
	cl.forget(a, false)
	again := cl.add("a", func(*pool.Config) {}, cl.change)
	if again.Pool.Epoch() == a.Pool.Epoch() {
		t.Fatal("the epoch is the same")
	}
	for _, n := range []*testNode{again, b, c} {
		if got := user.state(n); got != 204 {
			t.Errorf("at %s: %d", n.name, got)
		}
	}
	if who := whoami(t, tab); who != "bob user" {
		t.Errorf("the tab is of %q", who)
	}
	user.to = c
	if res, text := user.do("POST", user.at+"logout"); res.StatusCode != 303 {
		t.Errorf("logout: %d %q", res.StatusCode, text)
	}
	if code := closed(tab); code != 4401 {
		t.Errorf("closed with %d", code)
	}
	if got := user.state(again); got != 303 {
		t.Errorf("after the logout: %d", got)
	}
}

// TestSharesRestOnLoginsOfOtherNodes: a share link that a browser makes rests on its login, if that comes from no token, whichever node has given it out.
func TestSharesRestOnLoginsOfOtherNodes(t *testing.T) {
	cl := newCluster(t, func(*pool.Config) {}, func(c *Config) { c.AuthNone, c.Tokens = false, gateway.RoleTokens }, "a", "b", "c")
	a, b, c := cl.node("a"), cl.node("b"), cl.node("c")
	user := newBrowser(t, a)
	user.logIn(a, gateway.UserToken)
	tab := user.open(b)
	ask := func(request string) (data object) {
		t.Helper()
		if err := tab.Write(t.Context(), websocket.MessageText, []byte(request)); err != nil {
			t.Fatal(err)
		}
		_, msg, err := tab.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Data object }
		if err := json.Unmarshal(msg, &answer); err != nil || answer.Data == nil {
			t.Fatalf("%s: %s", request, msg)
		}
		return answer.Data
	}
	id := ask(`{"id":1,"method":"session.create"}`).Str("session_id")
	share := ask(fmt.Sprintf(`{"id":2,"method":"share.create","params":{"session_id":%q}}`, id)).Str("token")
	for _, n := range []*testNode{b, c} {
		guest := n.server.Gateway.Dial(share)
		if got := guest.Call("session.info", object{"session_id": id}).Str("session_id"); got != id {
			t.Errorf("at %s the guest sees %q", n.name, got)
		}
	}
	guest := c.server.Gateway.Dial(share)
	user.to = b
	if res, text := user.do("POST", user.at+"logout"); res.StatusCode != 303 {
		t.Errorf("logout: %d %q", res.StatusCode, text)
	}
	if code := guest.CloseStatus(); code != 4403 { // as when the link is revoked
		t.Errorf("the guest was closed with %d", code)
	}
}

// TestLoginThatIsNotKnownEverywhere: a forged mark, a wrong secret and a node that cannot be asked.
func TestLoginThatIsNotKnownEverywhere(t *testing.T) {
	cl, token, _ := loginCluster(t, "a", "b", "c")
	a, b, c := cl.node("a"), cl.node("b"), cl.node("c")
	user := newBrowser(t, a)
	user.logIn(a, token)
	cookie := user.client.Jar.Cookies(&url.URL{Scheme: "http", Host: "localhost", Path: user.at})[0]
	if !strings.HasSuffix(cookie.Value, "."+auth.MarkOf("a")) {
		t.Errorf("cookie %q", cookie.Value)
	}
	for _, wrong := range []string{
		strings.TrimSuffix(cookie.Value, auth.MarkOf("a")) + auth.MarkOf("b"), strings.TrimSuffix(cookie.Value, auth.MarkOf("a")) + auth.MarkOf("c"),
		strings.TrimSuffix(cookie.Value, auth.MarkOf("a")) + "../../x", strings.TrimSuffix(cookie.Value, auth.MarkOf("a")) + "[::1]:1", cookie.Value + ".x", "x." + auth.MarkOf("a"),
	} {
		for _, n := range []*testNode{a, b, c} {
			r, err := http.NewRequest("GET", "http://"+n.Addr()+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = "localhost"
			r.AddCookie(&http.Cookie{Name: cookie.Name, Value: wrong})
			res, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 303 || res.Header.Get("Location") != "/login" {
				t.Errorf("%q at %s: %d", wrong, n.name, res.StatusCode)
			}
		}
	}

	if got := user.state(b); got != 204 {
		t.Fatalf("at b: %d", got)
	}
	tab := user.open(b)
	a.cutOff()
	a.dialer.Close()
	if got := user.state(b); got != 204 { // where it is in use it goes on
		t.Errorf("at b, without a: %d", got)
	}
	if got := user.state(c); got != 503 {
		t.Errorf("at c, without a: %d", got)
	}
	user.to = b
	if res, text := user.do("POST", user.at+"logout"); res.StatusCode != 503 {
		t.Errorf("logout without its node: %d %q", res.StatusCode, text)
	}
	if who := whoami(t, tab); who != "bob user" {
		t.Errorf("the login that goes on is of %q", who)
	}
	cl.forget(a, true)
	if got := user.state(c); got != 503 {
		t.Errorf("at c, when a may live: %d", got)
	}
	cl.forget(a, false)
	if got := user.state(b); got != 204 {
		t.Errorf("at b, when a is gone: %d", got)
	}
	if res, text := user.do("POST", user.at+"logout"); res.StatusCode != 303 {
		t.Errorf("logout when its node is gone: %d %q", res.StatusCode, text)
	}
	if code := closed(tab); code != 4401 {
		t.Errorf("closed with %d", code)
	}
	other := newBrowser(t, b)
	other.logIn(b, token)
	if got := other.state(c); got != 204 {
		t.Errorf("a new login at c: %d", got)
	}
}

// TestTicketsOfOtherNodes: a ticket opens one WebSocket, at whichever node.
func TestTicketsOfOtherNodes(t *testing.T) {
	cl, token, _ := loginCluster(t, "a", "b", "c")
	a, b, c := cl.node("a"), cl.node("b"), cl.node("c")
	ticket := func(n *testNode, origin string) string {
		r, err := http.NewRequest("POST", "http://"+n.Addr()+"/v1/tickets", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "localhost"
		r.Header.Set("Authorization", "Bearer "+token)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var answer struct{ Ticket string }
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
		return answer.Ticket
	}
	dial := func(n *testNode, text string, header http.Header) (*websocket.Conn, int) {
		ws, res, err := websocket.Dial(t.Context(), "ws://"+n.Addr()+"/v1/ws", &websocket.DialOptions{Subprotocols: []string{"trl.v1", "trl.ticket." + text}, Host: "localhost", HTTPHeader: header})
		if err == nil {
			t.Cleanup(func() { ws.CloseNow() })
		}
		return ws, res.StatusCode
	}
	text := ticket(a, "")
	ws, status := dial(b, text, nil)
	if status != 101 || whoami(t, ws) != "bob user" {
		t.Fatalf("at another node: %d", status)
	}
	for _, n := range []*testNode{a, b, c} {
		if _, status := dial(n, text, nil); status != 401 {
			t.Errorf("again at %s: %d", n.name, status)
		}
	}
	const mine = "http://localhost"
	if _, status := dial(c, ticket(a, mine), http.Header{"Origin": {mine}}); status != 101 {
		t.Errorf("of the page's origin: %d", status)
	}
	if _, status := dial(c, ticket(a, mine), nil); status != 401 {
		t.Errorf("of another origin: %d", status)
	}
	for range 5 { // of all that try at the same time, one gets in
		text := ticket(a, "")
		var let atomic.Int64
		var trying sync.WaitGroup
		for i := range 9 {
			trying.Go(func() {
				if _, status := dial([]*testNode{a, b, c}[i%3], text, nil); status == 101 {
					let.Add(1)
				}
			})
		}
		trying.Wait()
		if let.Load() != 1 {
			t.Errorf("one ticket opened %d connections", let.Load())
		}
	}
	text = ticket(a, "")
	a.cutOff()
	if _, status := dial(b, text, nil); status != 503 {
		t.Errorf("a ticket whose node cannot be asked: %d", status)
	}
}

// TestNodesAnswerNodesOnly: a link for a client cannot ask what nodes ask, and one for a node cannot get what clients get.
func TestNodesAnswerNodesOnly(t *testing.T) {
	cl, _, _ := loginCluster(t, "a", "b")
	a, b := cl.node("a"), cl.node("b")
	for carries, paths := range map[string][]string{link.ForHTTP: {"/node/logins", "/node/logout", "/node/ticket"}, link.ForNode: {"/v1/recordings/r-x"}} {
		for _, path := range paths {
			l, err := b.Dial(t.Context(), a.Pool.Epoch(), &link.Hello{Principal: "b", Role: "admin", Transport: "http", Carries: carries})
			if err != nil {
				t.Fatal(err)
			}
			s := link.NewStream(l)
			method := "POST"
			if carries == link.ForNode {
				method = "GET"
			}
			r, err := http.NewRequest(method, "http://node"+path, strings.NewReader(`"`+strings.Repeat("0", 64)+`.x"`))
			if err != nil {
				t.Fatal(err)
			}
			res, err := (&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return s, nil }, DisableKeepAlives: true}).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 403 {
				t.Errorf("%s over a link for %q: %d", path, carries, res.StatusCode)
			}
		}
	}
	for _, path := range []string{"/node/logins", "/node/logout", "/node/ticket"} { // not for clients
		res, err := http.Post("http://"+a.Addr()+path, "application/json", strings.NewReader(`[]`))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 404 {
			t.Errorf("POST %s: %d", path, res.StatusCode)
		}
	}
}
