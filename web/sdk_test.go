package web

import (
	"net/http"
	"strings"
	"testing"
)

// TestScriptOfTheClient: a page that may connect may import the TypeScript client, and no other page.
func TestScriptOfTheClient(t *testing.T) {
	const page = "https://app.example"
	g := start(t, withTokens, func(c *Config) { c.Origins = []string{page} })
	for _, origin := range []string{"", page, "https://elsewhere.example"} {
		var header []string
		if origin != "" {
			header = []string{"Origin", origin}
		}
		resp, body := get(t, g.URL()+"/v1/sdk.js", header...)
		if origin == "https://elsewhere.example" {
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("%q: %d", origin, resp.StatusCode)
			}
			continue
		}
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/javascript") {
			t.Errorf("%q: %d %v", origin, resp.StatusCode, resp.Header)
		}
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != origin {
			t.Errorf("%q: Access-Control-Allow-Origin is %q", origin, got)
		}
		if !strings.Contains(body, "export {") || !strings.Contains(body, "connect") {
			t.Errorf("%q: it is no module with connect", origin)
		}
	}
}
