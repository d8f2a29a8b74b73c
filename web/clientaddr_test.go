package web

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/web/auth"
)

// TestAsked: the server takes the client's address, scheme and host from headers of trusted proxies, and only from these.
func TestAsked(t *testing.T) {
	c := Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}
	for _, x := range []struct {
		name, peer string
		header     http.Header
		addr, url  string
	}{
		{"nobody between", "192.0.2.1:99", nil, "192.0.2.1", "http://trl"},
		{"a stranger tells stories", "192.0.2.1:99", http.Header{"X-Forwarded-For": {"203.0.113.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"evil"}}, "192.0.2.1", "http://trl"},
		{"a proxy says nothing", "10.0.0.1:99", nil, "10.0.0.1", "http://trl"},
		{"a proxy", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"203.0.113.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"trl.example"}}, "203.0.113.1", "https://trl.example"},
		{"it takes TLS away", "10.0.0.1:99", http.Header{"X-Forwarded-Proto": {"HTTPS"}}, "10.0.0.1", "https://trl"},
		{"the client wrote the first", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"127.0.0.1, 203.0.113.1"}, "X-Forwarded-Host": {"evil, trl.example"}, "X-Forwarded-Proto": {"gopher, https"}}, "203.0.113.1", "https://trl.example"},
		{"in lines of their own", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"127.0.0.1", "203.0.113.1"}, "X-Forwarded-Host": {"evil", "trl.example"}}, "203.0.113.1", "http://trl.example"},
		{"two proxies", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"127.0.0.1, 203.0.113.1, 10.9.9.9"}}, "203.0.113.1", "http://trl"},
		{"only proxies", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"10.1.1.1, 10.9.9.9"}}, "10.1.1.1", "http://trl"},
		{"no address", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"203.0.113.1, unknown, 10.9.9.9"}}, "10.9.9.9", "http://trl"},
		{"an address and a port", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"203.0.113.1:80"}}, "203.0.113.1", "http://trl"},
		{"an empty list", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"", " , "}, "X-Forwarded-Proto": {""}, "X-Forwarded-Host": {""}}, "10.0.0.1", "http://trl"},
		{"another scheme", "10.0.0.1:99", http.Header{"X-Forwarded-Proto": {"javascript"}}, "10.0.0.1", "http://trl"},
		{"IPv6", "[fd00::1]:99", http.Header{"X-Forwarded-For": {"2001:db8::1"}}, "2001:db8::1", "http://trl"},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:99", http.Header{"X-Forwarded-For": {"::ffff:203.0.113.1"}}, "203.0.113.1", "http://trl"},
		{"a port", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"203.0.113.1:5678"}}, "203.0.113.1", "http://trl"},
		{"a port and IPv6", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"[2001:db8::1]:5678"}}, "2001:db8::1", "http://trl"},
		{"brackets", "10.0.0.1:99", http.Header{"X-Forwarded-For": {"[2001:db8::1]"}}, "2001:db8::1", "http://trl"},
		{"the other kind", "10.0.0.1:99", http.Header{"Forwarded": {"for=203.0.113.1;proto=https;host=evil"}}, "10.0.0.1", "http://trl"},
		{"no peer", "@", http.Header{"X-Forwarded-For": {"203.0.113.1"}}, "invalid IP", "http://trl"},
	} {
		r := &http.Request{Method: "GET", Host: "trl", RemoteAddr: x.peer, Header: x.header, URL: &url.URL{Path: "/", Scheme: "gopher"}}
		q := c.clientRequest(r)
		if got := auth.ClientAddr(q).String(); got != x.addr {
			t.Errorf("%s: address %s, want %s", x.name, got, x.addr)
		}
		if got := q.URL.Scheme + "://" + q.Host; got != x.url {
			t.Errorf("%s: asked for %s, want %s", x.name, got, x.url)
		}
		if r.RemoteAddr != x.peer || r.URL.Scheme != "gopher" {
			t.Errorf("%s: the request itself was changed", x.name)
		}
	}
	r := &http.Request{RemoteAddr: "192.0.2.1:99", URL: &url.URL{}, TLS: &tls.ConnectionState{}}
	if !auth.IsSecure(c.clientRequest(r)) {
		t.Error("a request over TLS does not count as secure")
	}
}

// TestBehindAProxy: browsers come through a real reverse proxy that terminates TLS. Our pages may connect as without a proxy. Headers that a client
// adds do not count.
func TestBehindAProxy(t *testing.T) {
	g := start(t, withTokens, func(c *Config) {
		c.Hosts, c.TrustedProxies = []string{"trl.example"}, []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	})
	inner, _ := url.Parse(g.URL())
	proxy := httptest.NewTLSServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(inner)
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
		r.SetXForwarded()
		if r.In.Header.Get("X-Test-Peer") != "" { // the client has another address than the proxy here
			r.Out.Header.Set("X-Forwarded-For", r.In.Header.Get("X-Test-Peer"))
		}
	}})
	defer proxy.Close()
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, proxy.Listener.Addr().String())
		},
	}
	defer tr.CloseIdleConnections()
	dial := func(host, origin string) (*websocket.Conn, int) {
		t.Helper()
		ws, resp, err := websocket.Dial(t.Context(), "wss://"+host+"/v1/ws", &websocket.DialOptions{HTTPClient: &http.Client{Transport: tr}, HTTPHeader: http.Header{
			"Origin": {origin}, "Authorization": {"Bearer " + gateway.UserToken}, "X-Test-Peer": {"203.0.113.9"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Host": {"evil.example"},
		}})
		if resp == nil {
			t.Fatal(err)
		}
		return ws, resp.StatusCode
	}
	ws, status := dial("trl.example", "https://trl.example")
	if status != 101 {
		t.Fatalf("an upgrade of our own page was answered with %d", status)
	}
	ws.SetReadLimit(-1)
	c := rig.NewClient(t, ws)
	if got := c.Run(c.Session(), "echo through").Stdout(); got != "through\n" {
		t.Errorf("%q", got)
	}
	c.Close()
	testkit.Eventually(t, "it is gone", func() bool { return g.Metric("trl_connections") == 0 })
	for _, x := range []struct {
		host, origin string
		want         int
	}{
		{"trl.example", "http://trl.example", 403}, {"trl.example", "https://evil.example", 403},
		{"evil.example", "https://evil.example", 421}, {"evil.example", "https://trl.example", 421},
	} {
		if ws, status := dial(x.host, x.origin); status != x.want {
			t.Errorf("%v: %d", x, status)
			if ws != nil {
				ws.CloseNow()
			}
		}
	}
	r, _ := http.NewRequest("POST", "https://trl.example/login", nil)
	r.Header.Set("Authorization", "Bearer "+gateway.UserToken)
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if cookies := resp.Cookies(); len(cookies) != 1 || !cookies[0].Secure {
		t.Errorf("the browser would send the cookie over plain HTTP: %v", cookies)
	}
	addrs := map[string]bool{}
	for line := range strings.Lines(g.Log.String()) {
		var entry struct{ Addr string }
		if json.Unmarshal([]byte(line), &entry); entry.Addr != "" {
			addrs[entry.Addr] = true
		}
	}
	if len(addrs) != 1 || !addrs["203.0.113.9"] {
		t.Errorf("logged addresses: %v", addrs)
	}
}
