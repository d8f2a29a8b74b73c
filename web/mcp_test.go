package web

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/web/auth"
)

// TestToolsSayWhereTokensComeFrom: with an OpenID provider, a refused request to /mcp leads to its description (RFC 9728).
func TestToolsSayWhereTokensComeFrom(t *testing.T) {
	for _, issuer := range []string{"", "https://login.example"} {
		g := start(t, withTokens, func(c *Config) {
			if issuer != "" {
				c.OIDC = &auth.OIDCConfig{Issuer: issuer, ClientID: "trl", Role: auth.RoleRule{DefaultRole: auth.User}}
			}
		})
		r, err := http.Post(g.URL()+"/mcp", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		challenge := r.Header.Get("WWW-Authenticate")
		_, rest, named := strings.Cut(challenge, `resource_metadata="`)
		if r.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(challenge, "Bearer ") || named != (issuer != "") {
			t.Fatalf("%s, %q", r.Status, challenge)
		}
		if !named {
			continue
		}
		address := strings.TrimSuffix(rest, `"`)
		if !strings.HasPrefix(address, g.URL()) {
			t.Errorf("it is at %s", address)
		}
		described, err := http.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(described.Body)
		described.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			Resource string
			Servers  []string `json:"authorization_servers"`
		}
		if err := json.Unmarshal(b, &d); err != nil || d.Resource != g.URL()+"/mcp" || !reflect.DeepEqual(d.Servers, []string{issuer}) {
			t.Errorf("%s %v", b, err)
		}
	}
}

// TestToolsKeepTheConnection of a client that has authenticated, and not that of a stranger.
func TestToolsKeepTheConnection(t *testing.T) {
	g := start(t, withTokens)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	reused := 0
	ask := func(token string) *http.Response {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if i.Reused {
				reused++
			}
		}})
		r, err := http.NewRequestWithContext(ctx, "POST", g.URL()+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":`+
			`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json",
			"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"} {
			r.Header.Set(name, value)
		}
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp
	}
	for range 10 {
		if resp := ask(gateway.UserToken); resp.StatusCode != 200 || resp.Close {
			t.Errorf("%s, the connection ends: %v", resp.Status, resp.Close)
		}
	}
	if reused < 5 { // all but the first on a machine that is idle
		t.Errorf("%d of 10 requests used an earlier one's connection", reused)
	}
	g.idle.mu.Lock()
	g.cfg.MaxConns = 0 // no room for an idle connection
	g.idle.mu.Unlock()
	if resp := ask(gateway.UserToken); resp.StatusCode != 200 || !resp.Close {
		t.Errorf("without room: %s, the connection ends: %v", resp.Status, resp.Close)
	}
	if resp := ask("wrong"); resp.StatusCode != 401 || !resp.Close {
		t.Errorf("a stranger: %s, the connection ends: %v", resp.Status, resp.Close)
	}
}

// TestToolsAndLargeBodies: an unfinished request has a place among the clients, and as much time as one to /v1/rpc.
func TestToolsAndLargeBodies(t *testing.T) {
	g := start(t, withTokens, func(c *Config) { c.MaxConns, c.MaxConnsOfPrincipal, c.stall = 10, 2, 10*time.Second })
	half := func() net.Conn {
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{", g.Addr(), gateway.UserToken)
		return c
	}
	var got []int
	for _, c := range []net.Conn{half(), half(), half()} { // which of them has no place shows in the answers
		c.SetReadDeadline(time.Now().Add(patience))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if got = append(got, resp.StatusCode); resp.StatusCode == 400 && !strings.Contains(string(text), "in time") || resp.StatusCode == 429 && resp.Header.Get("Retry-After") == "" {
			t.Errorf("%d %v %s", resp.StatusCode, resp.Header, text)
		}
	}
	if slices.Sort(got); !slices.Equal(got, []int{400, 400, 429}) {
		t.Errorf("%v", got)
	}
	testkit.Eventually(t, "there is a place again", func() bool {
		resp, _ := post(t, g.URL()+"/mcp", "Authorization", "Bearer "+gateway.UserToken)
		return resp.StatusCode != 429
	})
}
