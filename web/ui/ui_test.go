package ui

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPageIsSmall: all that a browser loads, as it goes over the wire.
func TestPageIsSmall(t *testing.T) {
	total := 0
	assets, _ := load()
	for address := range assets {
		r := httptest.NewRequest("GET", address, nil)
		r.Header.Set("Accept-Encoding", "gzip")
		w := httptest.NewRecorder()
		ServeAsset(w, r)
		if w.Code != http.StatusOK || w.Header().Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: %d %v", address, w.Code, w.Header())
		}
		t.Logf("%s: %d bytes", address, w.Body.Len())
		total += w.Body.Len()
	}
	if most := 250 << 10; total > most {
		t.Errorf("the page is %d bytes, more than %d", total, most)
	}
}

// TestPolicyIsStrict: nothing inline, nothing from elsewhere, and a nonce that no other answer has.
func TestPolicyIsStrict(t *testing.T) {
	w := httptest.NewRecorder()
	ServePage(w, "N0NCE")
	policy := w.Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self';", "'nonce-N0NCE'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("no %q in %q", want, policy)
		}
	}
	for _, never := range []string{"unsafe", "*", "http:", "https:", "data:"} {
		if strings.Contains(policy, never) {
			t.Errorf("%q in %q", never, policy)
		}
	}
	body := w.Body.String()
	if assets, _ := load(); strings.Count(body, `"/ui/`) != len(assets) || !strings.Contains(body, `nonce="N0NCE"`) || strings.ContainsAny(body, "{}") {
		t.Errorf("not every address and the nonce, or a name in place of one: %s", body)
	}
	if strings.Contains(body, "<style") || strings.Contains(body, "style=") || strings.Contains(body, "//") {
		t.Errorf("inline style or an outside address: %s", body)
	}
}

func TestUnknownAssetIsNotFound(t *testing.T) {
	w := httptest.NewRecorder()
	ServeAsset(w, httptest.NewRequest("GET", "/ui/0/app.js", nil))
	if w.Code != http.StatusNotFound {
		t.Error(w.Code)
	}
}
