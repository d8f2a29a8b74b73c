package web

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

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
