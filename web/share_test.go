package web

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/issuer"
	"trl/web/auth"
)

// TestLinkRestsOnItsMaker: a link works as long as the token that made it is valid and may still share the session.
func TestLinkRestsOnItsMaker(t *testing.T) {
	ends := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	lines := map[string]string{
		"first": "first-token ann user", "second": "second-token ann user", "third": "third-token ann user", "boss": "boss-token bob admin",
		"short": "short-token ann user expires=" + ends.Format(time.RFC3339),
	}
	all := func() string { return strings.Join(slices.Sorted(maps.Values(lines)), "\n") + "\n" }
	path, set := withFile(t, all())
	g := start(t, set)
	change := func() {
		t.Helper()
		read := make(chan error, 1)
		g.cfg.Tokens.(*auth.TokenFile).OnReload(func(err error) {
			select {
			case read <- err:
			default:
			}
		})
		if err := os.WriteFile(path+".new", []byte(all()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil { // at once: the other tokens are in the file at any time
			t.Fatal(err)
		}
		select {
		case err := <-read:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("the server does not read the other tokens")
		}
	}
	owner := g.Dial("second-token")
	session := owner.Session()
	q := object{"session_id": session, "mode": "control"}
	ws, _, err := g.dialCookie(g.logIn("first-token"))
	if err != nil {
		t.Fatal(err)
	}
	byLogin, byLoginLink := g.Share(rig.NewClient(t, ws), q)
	byToken, byTokenLink := g.Share(g.Dial("first-token"), q)
	stays, _ := g.Share(owner, q)
	demoted, demotedLink := g.Share(g.Dial("third-token"), q)
	foreign, foreignLink := g.Share(g.Dial("boss-token"), q)
	_, short := g.Share(g.Dial("short-token"), object{"session_id": session, "expires_in_s": 86400})
	if at, err := time.Parse(time.RFC3339, short.Str("expires_at")); err != nil || !at.Equal(ends) {
		t.Errorf("a link of a token until %v ends at %v", ends, short["expires_at"])
	}

	delete(lines, "first")
	lines["third"], lines["boss"] = "third-token ann viewer", "boss-token bob user"
	change()
	for what, gone := range map[string]struct {
		guest *rig.Client
		link  object
	}{
		"revoked": {byToken, byTokenLink}, "revoked, by a login": {byLogin, byLoginLink}, "a viewer now": {demoted, demotedLink}, "no admin any more": {foreign, foreignLink},
	} {
		if code := gone.guest.CloseStatus(); code != 4403 {
			t.Errorf("%s: closed with %d", what, code)
		}
		if got := g.status(bearerHeader(gone.link.Str("token"))); got != 401 {
			t.Errorf("%s: %d", what, got)
		}
	}
	if out := stays.Run(session, "echo here").Stdout(); out != "here\n" {
		t.Errorf("a link of another token: %q", out)
	}
}

// TestLoggingOutKeepsLinks: a link belongs to its token, not to the browser. A link of a login without a token belongs to the login.
func TestLoggingOutKeepsLinks(t *testing.T) {
	_, set := withFile(t, "a-plain-token ann user\n")
	i := issuer.New(t)
	j, err := auth.OpenJWT(auth.JWTConfig{JWKS: i.URL + "/keys", Issuer: i.URL, Audience: "trl", Role: auth.RoleRule{DefaultRole: auth.User}}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, set, func(c *Config) { c.JWT = j })
	for name, kept := range map[string]bool{"a token": true, "none": false} {
		cookie := g.logIn("a-plain-token")
		if !kept { // a JWT is none of ours, as an OpenID provider's ID token
			cookie = g.logIn(i.Sign(nil))
		}
		ws, _, err := g.dialCookie(cookie)
		if err != nil {
			t.Fatal(err)
		}
		owner := rig.NewClient(t, ws)
		guest, _ := g.Share(owner, object{"session_id": owner.Session()})
		post(t, g.URL()+"/logout", "Cookie", cookie.Name+"="+cookie.Value)
		owner.CloseStatus()
		if kept {
			guest.Call("system.ping", nil)
		} else if code := guest.CloseStatus(); code != 4403 {
			t.Errorf("by a login with %s: closed with %d", name, code)
		}
	}
}

// TestGuestsCountForTheirMaker: requests of guests count on the limits of the token that made the link.
func TestGuestsCountForTheirMaker(t *testing.T) {
	_, set := withFile(t, "slow-token ann user rate=2\nbusy-token ann user max_in_flight=1\n")
	g := start(t, set)
	owner := g.Dial("slow-token")
	guest, _ := g.Share(owner, object{"session_id": owner.Session()})
	for n := 1; guest.Try("system.ping", nil).Code() != "RATE_LIMITED"; n++ { // two seconds' worth comes at once, and more while a busy machine takes its time
		if n == 1000 {
			t.Fatal("the rate limit of the token does not hold for the guest")
		}
	}

	owner = g.Dial("busy-token")
	guest, _ = g.Share(owner, object{"session_id": owner.Session(), "mode": "control"})
	begun := filepath.Join(t.TempDir(), "begun")
	guest.Begin("exec.run", object{"command": ": >" + begun + "; sleep 300"})
	// The owner asks nothing before the command runs: a request of its own may take the one place, and then the guest's is refused.
	testkit.Eventually(t, "the guest's command runs", func() bool { _, err := os.Stat(begun); return err == nil })
	if code := owner.Try("system.ping", nil).Code(); code != "RATE_LIMITED" {
		t.Errorf("the owner's request during the guest's requests was answered with %q", code)
	}
}

func TestShareIsTheOwners(t *testing.T) {
	g := start(t, withTokens)
	owner, other, viewer := g.Dial(gateway.AdminToken), g.Dial(gateway.UserToken), g.Dial(gateway.ViewToken)
	session := owner.Session()
	guest, link := g.Share(owner, object{"session_id": session, "mode": "control"})
	for what, got := range map[string]string{
		"another's session":  other.Try("share.create", object{"session_id": session}).Code() + other.Try("share.list", object{"session_id": session}).Code(),
		"another's link":     other.Try("share.revoke", object{"share_id": link.Str("share_id")}).Code(),
		"a viewer's wish":    viewer.Try("share.create", object{"session_id": session}).Code(),
		"a guest's wish":     guest.Try("share.create", object{"session_id": session}).Code() + guest.Try("session.create", nil).Code() + guest.Try("session.destroy", object{"session_id": session}).Code(),
		"no time":            owner.Try("share.create", object{"session_id": session, "expires_in_s": 0}).Code(),
		"too much time":      owner.Try("share.create", object{"session_id": session, "expires_in_s": 1e9}).Code(),
		"two things at once": owner.Try("share.create", object{"session_id": session, "term_id": "t-x"}).Code(),
		"nothing":            owner.Try("share.create", nil).Code(),
	} {
		want := map[string]string{
			"another's session": "SESSION_NOT_FOUNDSESSION_NOT_FOUND", "another's link": "SHARE_NOT_FOUND", "a viewer's wish": "FORBIDDEN", "a guest's wish": "FORBIDDENFORBIDDENFORBIDDEN",
		}[what]
		if want == "" {
			want = "INVALID_PARAMS"
		}
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	for n := 1; ; n++ {
		if f := owner.Try("share.create", object{"session_id": session}); !f.OK {
			if n != 64 || f.Code() != "LIMIT_EXCEEDED" {
				t.Errorf("link %d: %v", n, f.Error)
			}
			break
		}
	}
	// Over HTTP a guest's token is nobody's.
	for _, path := range []string{"/metrics", "/"} {
		q, _ := http.NewRequest("GET", g.URL()+path, nil)
		q.Header.Set("Authorization", "Bearer "+link.Str("token"))
		resp, err := http.DefaultTransport.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Errorf("%s answers a guest with success", path)
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(func() *http.Request {
		q, _ := http.NewRequest("POST", g.URL()+"/login", nil)
		q.Header.Set("Authorization", "Bearer "+link.Str("token"))
		return q
	}())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("the login of a guest was answered with %s", resp.Status)
	}
}
