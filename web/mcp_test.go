package web

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"strings"
	"testing"

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
	var reused []bool
	ask := func(token string) *http.Response {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = append(reused, i.Reused) }})
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
	for range 3 {
		if resp := ask(gateway.UserToken); resp.StatusCode != 200 || resp.Close {
			t.Errorf("%s, the connection ends: %v", resp.Status, resp.Close)
		}
	}
	if !reflect.DeepEqual(reused, []bool{false, true, true}) {
		t.Errorf("reused: %v", reused)
	}
	if resp := ask("wrong"); resp.StatusCode != 401 || !resp.Close {
		t.Errorf("a stranger: %s, the connection ends: %v", resp.Status, resp.Close)
	}
}
