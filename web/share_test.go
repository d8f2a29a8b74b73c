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

	"trl/internal/testkit"
	"trl/internal/testkit/issuer"
	"trl/web/auth"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"
)

// shared makes a link and dials with it.
func (c *client) shared(g *gateway, params object) (guest *client, link object) {
	c.t.Helper()
	link = c.call("share.create", params)
	return g.dial(link.str("token")), link
}

func TestGuestsGetWhatIsListed(t *testing.T) {
	for method, wants := range guestMethods {
		h, ok := handlers[method]
		if !ok {
			t.Errorf("%s is no method", method)
		} else if h.access == changes && !wants.control {
			t.Errorf("%s changes something, and a link to look allows it", method)
		}
	}
	g := start(t, withTokens)
	owner := g.dial(userToken)
	session := owner.session()
	term := owner.call("term.open", object{"session_id": session, "cols": 80, "rows": 24}).str("term_id")
	for _, link := range []struct {
		params         object
		control, whole bool
	}{
		{object{"session_id": session}, false, true},
		{object{"session_id": session, "mode": "control"}, true, true},
		{object{"term_id": term}, false, false},
		{object{"term_id": term, "mode": "control"}, true, false},
	} {
		guest, _ := owner.shared(g, link.params)
		for _, method := range slices.Sorted(maps.Keys(handlers)) {
			wants, listed := guestMethods[method]
			may := listed && (link.control || !wants.control) && (link.whole || !wants.whole)
			// A field that no method has: what is allowed gets as far as the params, and does nothing.
			if got := guest.try(method, object{"no_such_field": 1}).code(); may != (got == "INVALID_PARAMS") || !may && got != "FORBIDDEN" {
				t.Errorf("%v: %s answers %s", link.params, method, got)
			}
		}
	}
}

func TestShareOfASession(t *testing.T) {
	g := start(t, withTokens)
	owner := g.dial(userToken)
	session, other := owner.session(object{"name": "shown"}), owner.session(object{"name": "private"})
	owner.run(session, "cd /usr")
	hidden := owner.call("exec.run", object{"session_id": other, "command": "echo hidden"}).str("exec_id")
	hiddenProcess := owner.call("process.start", object{"session_id": other, "command": "echo hidden"}).str("process_id")
	hiddenTerm := owner.call("term.open", object{"session_id": other, "cols": 80, "rows": 24}).str("term_id")
	viewer, link := owner.shared(g, object{"session": "shown", "name": "for the boss"})
	typist, _ := owner.shared(g, object{"session_id": session, "mode": "control"})

	viewer.call("session.watch", object{"session_id": session})
	if got := typist.call("exec.run", object{"command": "pwd"}); got.str("stdout") != "/usr\n" { // no session named: the shared one
		t.Fatalf("control: %v", got)
	}
	if got := viewer.event("exec.exit"); got.num("exit_code") != 0 {
		t.Fatalf("watching: %v", got)
	}
	for _, guest := range []*client{viewer, typist} {
		if all := guest.call("session.list", nil)["sessions"].([]any); len(all) != 1 || object(all[0].(map[string]any)).str("session_id") != session {
			t.Errorf("a guest sees %v", all)
		}
		for method, q := range map[string]object{
			"session.info": {"session_id": other}, "exec.list": {"session": "private"}, "exec.wait": {"exec_id": hidden}, "exec.attach": {"exec_id": hidden},
			"process.info": {"process_id": hiddenProcess}, "process.logs": {"process_id": hiddenProcess},
			"term.attach": {"term_id": hiddenTerm}, "term.snapshot": {"term_id": hiddenTerm}, "term.list": {"session_id": other},
		} {
			made := object{}
			for k, v := range q {
				if made[k] = v; k != "session" { // the same question about what does not exist
					made[k] = v.(string)[:len(v.(string))-4] + "aaaa"
				} else {
					made[k] = "nobody"
				}
			}
			got, want := guest.try(method, q), guest.try(method, made)
			if got.OK || got.code() != want.code() || got.Error.Message != want.Error.Message {
				t.Errorf("%s of what is not shared: %+v; of what does not exist: %+v", method, got.Error, want.Error)
			}
		}
	}
	if who := viewer.call("system.capabilities", nil)["principal"].(map[string]any); who["role"] != "viewer" || who["share"].(map[string]any)["share_id"] != link.str("share_id") {
		t.Errorf("capabilities: %v", who)
	}
	all := owner.call("share.list", object{"session_id": session})["shares"].([]any)
	if first := object(all[0].(map[string]any)); len(all) != 2 || first.str("name") != "for the boss" || first.str("mode") != "view" || first.num("clients") != 1 || first["token"] != nil {
		t.Errorf("share.list: %v", all)
	}
	if strings.Contains(g.log.String(), link.str("token")) {
		t.Error("the token is in the log")
	}
}

func TestShareOfATerminal(t *testing.T) {
	g := start(t, withTokens)
	owner := g.dial(userToken)
	session := owner.session()
	open := func() string {
		return owner.call("term.open", object{"session_id": session, "cols": 80, "rows": 24, "command": "cat"}).str("term_id")
	}
	term, other := open(), open()
	viewer, _ := owner.shared(g, object{"term_id": term, "name": "a friend"})
	typist, _ := owner.shared(g, object{"term_id": term, "mode": "control"})

	if all := viewer.call("term.list", object{"session_id": session})["terminals"].([]any); len(all) != 1 {
		t.Errorf("a guest of one terminal sees %d", len(all))
	}
	for _, guest := range []*client{viewer, typist} {
		if got := guest.try("term.attach", object{"term_id": other}).code(); got != "TERM_NOT_FOUND" {
			t.Errorf("the other terminal: %s", got)
		}
	}
	if got := viewer.try("term.attach", object{"term_id": term, "mode": "control"}).code(); got != "FORBIDDEN" {
		t.Errorf("control over a link to look: %s", got)
	}
	viewer.call("term.attach", object{"term_id": term})
	typist.call("term.attach", object{"term_id": term})
	for method, q := range map[string]object{"term.input": {"term_id": term, "data": "x"}, "term.resize": {"term_id": term, "cols": 10, "rows": 10}} {
		if got := viewer.try(method, q).code(); got != "FORBIDDEN" {
			t.Errorf("%s over a link to look: %s", method, got)
		}
	}
	var via []string
	for _, info := range owner.call("term.list", object{"session_id": session})["terminals"].([]any) {
		if info := info.(map[string]any); info["term_id"] == term {
			for _, viewer := range info["attached"].([]any) {
				if name := object(viewer.(map[string]any)).str("via"); name != "" {
					via = append(via, name)
				}
			}
		}
	}
	if len(via) != 2 || via[0] != "a friend" || !strings.HasPrefix(via[1], "l-") {
		t.Errorf("guests are listed as %q", via)
	}
	typist.call("term.input", object{"term_id": term, "data": "typed\n"})
	var seen strings.Builder
	viewer.await("what was typed", func(f *frame) bool {
		if f.Event == "term.output" {
			seen.WriteString(f.Data.str("data"))
			f.Event = "" // once
		}
		return strings.Contains(seen.String(), "typed")
	})
}

func TestShareEnds(t *testing.T) {
	for name, auth := range map[string]func(*Config){"tokens": withTokens, "no auth": func(*Config) {}} {
		t.Run(name, func(t *testing.T) {
			g := start(t, auth)
			owner := g.dial(userToken)
			session := owner.session()
			token := func(link object) string { return link.str("token") }
			refused := func(link object) {
				t.Helper()
				_, resp, err := g.dialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token(link)}}})
				if err == nil || resp.StatusCode != http.StatusUnauthorized {
					t.Errorf("a link that has ended opens something: %v %v", resp, err)
				}
			}

			guest, link := owner.shared(g, object{"session_id": session})
			stays, _ := owner.shared(g, object{"session_id": session})
			owner.call("share.revoke", object{"share_id": link.str("share_id")})
			if code := guest.closed(); code != 4403 {
				t.Errorf("revoked: closed with %d", code)
			}
			refused(link)
			stays.call("session.info", object{"session_id": session})
			if got := owner.try("share.revoke", object{"share_id": link.str("share_id")}).code(); got != "SHARE_NOT_FOUND" {
				t.Errorf("revoked twice: %s", got)
			}

			guest, link = owner.shared(g, object{"session_id": session, "expires_in_s": 2})
			if link.str("path") != "/share#token="+token(link) {
				t.Errorf("path: %v", link)
			}
			testkit.Eventually(t, "the link expires", func() bool { return guest.try("session.info", object{"session_id": session}).code() == "FORBIDDEN" })
			refused(link)
			g.pool.DropExpired(time.Now()) // the reaper's, every second
			if code := guest.closed(); code != 4403 {
				t.Errorf("expired: closed with %d", code)
			}
			if all := owner.call("share.list", object{"session_id": session})["shares"].([]any); len(all) != 1 {
				t.Errorf("links left: %v", all)
			}

			owner.call("session.destroy", object{"session_id": session, "force": true})
			if got := owner.try("share.create", object{"session_id": session}).code(); got != "SESSION_TERMINATED" {
				t.Errorf("link to a session that has ended: %s", got)
			}
			stays.call("session.info", object{"session_id": session}) // it is retained
			g.pool.DropExpired(time.Now().Add(time.Hour))
			if code := stays.closed(); code != 4403 {
				t.Errorf("session forgotten: closed with %d", code)
			}
		})
	}
}

// TestNothingIsDoneForARevokedLink: neither what waits for its turn on the guest's connection nor what waits in the session.
func TestNothingIsDoneForARevokedLink(t *testing.T) {
	g := start(t, withTokens)
	owner := g.dial(userToken)
	session, dir := owner.session(), t.TempDir()
	guest, link := owner.shared(g, object{"session_id": session, "mode": "control"})
	const many = 100
	for range many {
		guest.begin("process.start", object{"command": "sleep 100"})
	}
	processes := func() int { return len(owner.call("process.list", object{"session_id": session})["processes"].([]any)) }
	testkit.Eventually(t, "the first ones run", func() bool { return processes() > 2 })
	owner.call("share.revoke", object{"share_id": link.str("share_id")})
	before := processes()
	guest.closed()
	testkit.Eventually(t, "the guest is gone", func() bool { return g.metric("trl_connections") == 1 })
	if after := processes(); before == many || after > before+1 { // one may have been about to start
		t.Errorf("%d processes when the link was revoked, then %d", before, after)
	}

	guest, link = owner.shared(g, object{"session_id": session, "mode": "control"})
	stays, _ := owner.shared(g, object{"session_id": session, "mode": "control"})
	file := func(name string) object { return object{"session_id": session, "command": "echo >" + dir + "/" + name} }
	running := guest.call("exec.stream", object{"command": "until [ -e " + dir + "/go ]; do sleep 0.01; done; echo >" + dir + "/running"}).str("exec_id")
	queued := guest.call("exec.stream", file("guest")).str("exec_id")
	guest.begin("exec.run", file("guest"))
	others := []string{owner.call("exec.stream", file("owner")).str("exec_id"), stays.call("exec.stream", file("stays")).str("exec_id")}
	testkit.Eventually(t, "all wait", func() bool { return owner.call("session.info", object{"session_id": session}).num("queue_length") == 4 })
	owner.call("share.revoke", object{"share_id": link.str("share_id")})
	if n := owner.call("session.info", object{"session_id": session}).num("queue_length"); n != 2 {
		t.Errorf("%d wait after the revocation", n)
	}
	if got := owner.call("exec.wait", object{"exec_id": queued}); got["cancelled"] != true {
		t.Errorf("a guest's command that waited: %v", got)
	}
	owner.call("process.start", file("go"))
	for _, id := range append(others, running) {
		if got := owner.call("exec.wait", object{"exec_id": id}); got.num("exit_code") != 0 || got["cancelled"] == true {
			t.Errorf("%v", got)
		}
	}
	made, _ := os.ReadDir(dir)
	var names []string
	for _, f := range made {
		names = append(names, f.Name())
	}
	if !slices.Equal(names, []string{"go", "owner", "running", "stays"}) {
		t.Errorf("done: %q", names)
	}
}

// TestLinkRestsOnItsMaker: a link is good as long as the token it was made with, by whoever may share that session still.
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
		if err := os.WriteFile(path, []byte(all()), 0o600); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-read:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("other tokens are not read")
		}
	}
	owner := g.dial("second-token")
	session := owner.session()
	q := object{"session_id": session, "mode": "control"}
	ws, _, err := g.dialCookie(g.logIn("first-token"))
	if err != nil {
		t.Fatal(err)
	}
	byLogin, byLoginLink := follow(t, ws).shared(g, q)
	byToken, byTokenLink := g.dial("first-token").shared(g, q)
	stays, _ := owner.shared(g, q)
	demoted, demotedLink := g.dial("third-token").shared(g, q)
	foreign, foreignLink := g.dial("boss-token").shared(g, q)
	_, short := g.dial("short-token").shared(g, object{"session_id": session, "expires_in_s": 86400})
	if at, err := time.Parse(time.RFC3339, short.str("expires_at")); err != nil || !at.Equal(ends) {
		t.Errorf("a link of a token until %v ends at %v", ends, short["expires_at"])
	}

	delete(lines, "first")
	lines["third"], lines["boss"] = "third-token ann viewer", "boss-token bob user"
	change()
	for what, gone := range map[string]struct {
		guest *client
		link  object
	}{
		"revoked": {byToken, byTokenLink}, "revoked, by a login": {byLogin, byLoginLink}, "a viewer now": {demoted, demotedLink}, "no admin any more": {foreign, foreignLink},
	} {
		if code := gone.guest.closed(); code != 4403 {
			t.Errorf("%s: closed with %d", what, code)
		}
		if got := g.status(bearerHeader(gone.link.str("token"))); got != 401 {
			t.Errorf("%s: %d", what, got)
		}
	}
	if out := stays.run(session, "echo here"); out != "here\n" {
		t.Errorf("a link of another token: %q", out)
	}
}

// TestLoggingOutKeepsLinks: a link is its token's, not the browser's; with no token behind it, it is the login's.
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
		owner := follow(t, ws)
		guest, _ := owner.shared(g, object{"session_id": owner.session()})
		post(t, g.URL()+"/logout", "Cookie", cookie.Name+"="+cookie.Value)
		owner.closed()
		if kept {
			guest.call("system.ping", nil)
		} else if code := guest.closed(); code != 4403 {
			t.Errorf("by a login with %s: closed with %d", name, code)
		}
	}
}

// TestGuestsCountForTheirMaker: a link gives nobody more requests than its token is good for.
func TestGuestsCountForTheirMaker(t *testing.T) {
	_, set := withFile(t, "slow-token ann user rate=2\nbusy-token ann user max_in_flight=1\n")
	g := start(t, set)
	owner := g.dial("slow-token")
	guest, _ := owner.shared(g, object{"session_id": owner.session()})
	refused := 0
	for range 5 { // two seconds' worth comes at once
		if guest.try("system.ping", nil).code() == "RATE_LIMITED" {
			refused++
		}
	}
	if refused == 0 {
		t.Error("the guest may ask as often as it likes")
	}

	owner = g.dial("busy-token")
	guest, _ = owner.shared(g, object{"session_id": owner.session(), "mode": "control"})
	begun := filepath.Join(t.TempDir(), "begun")
	guest.begin("exec.run", object{"command": ": >" + begun + "; sleep 300"})
	// The owner asks nothing before the command runs: a request of its own may take the one place, and then the guest's is refused.
	testkit.Eventually(t, "the guest's command runs", func() bool { _, err := os.Stat(begun); return err == nil })
	if code := owner.try("system.ping", nil).code(); code != "RATE_LIMITED" {
		t.Errorf("beside the guest's request the owner's is answered with %q", code)
	}
}

func TestShareIsTheOwners(t *testing.T) {
	g := start(t, withTokens)
	owner, other, viewer := g.dial(adminToken), g.dial(userToken), g.dial(viewToken)
	session := owner.session()
	guest, link := owner.shared(g, object{"session_id": session, "mode": "control"})
	for what, got := range map[string]string{
		"another's session":  other.try("share.create", object{"session_id": session}).code() + other.try("share.list", object{"session_id": session}).code(),
		"another's link":     other.try("share.revoke", object{"share_id": link.str("share_id")}).code(),
		"a viewer's wish":    viewer.try("share.create", object{"session_id": session}).code(),
		"a guest's wish":     guest.try("share.create", object{"session_id": session}).code() + guest.try("session.create", nil).code() + guest.try("session.destroy", object{"session_id": session}).code(),
		"no time":            owner.try("share.create", object{"session_id": session, "expires_in_s": 0}).code(),
		"too much time":      owner.try("share.create", object{"session_id": session, "expires_in_s": 1e9}).code(),
		"two things at once": owner.try("share.create", object{"session_id": session, "term_id": "t-x"}).code(),
		"nothing":            owner.try("share.create", nil).code(),
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
		if f := owner.try("share.create", object{"session_id": session}); !f.OK {
			if n != 64 || f.code() != "LIMIT_EXCEEDED" {
				t.Errorf("link %d: %v", n, f.Error)
			}
			break
		}
	}
	// Over HTTP a guest's token is nobody's.
	for _, path := range []string{"/metrics", "/"} {
		q, _ := http.NewRequest("GET", g.URL()+path, nil)
		q.Header.Set("Authorization", "Bearer "+link.str("token"))
		resp, err := http.DefaultTransport.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Errorf("%s answers a guest", path)
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(func() *http.Request {
		q, _ := http.NewRequest("POST", g.URL()+"/login", nil)
		q.Header.Set("Authorization", "Bearer "+link.str("token"))
		return q
	}())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a guest logs in: %s", resp.Status)
	}
}

// TestGuestKeysAreItsOwn: a guest's request_key stands for nothing of the owner's, and the owner's for nothing of the guest's, also where
// the session is the default one, whose keys outlive it.
func TestGuestKeysAreItsOwn(t *testing.T) {
	g := start(t, withTokens)
	owner := g.dial(userToken)
	ask := map[string]object{
		"exec.run":      {"command": "echo $NOTE", "request_key": "run"},
		"exec.stream":   {"command": "sleep 100", "request_key": "stream"},
		"process.start": {"command": "sleep 100", "request_key": "start"},
		"term.open":     {"cols": 80, "rows": 24, "command": "cat", "request_key": "open"},
	}
	id := map[string]string{"exec.run": "exec_id", "exec.stream": "exec_id", "process.start": "process_id", "term.open": "term_id"}
	methods := []string{"exec.run", "process.start", "term.open", "exec.stream"} // that one keeps its session busy
	made := func(c *client) map[string]string {
		t.Helper()
		all := map[string]string{}
		for _, method := range methods {
			all[method] = c.call(method, ask[method]).str(id[method])
		}
		return all
	}

	first := owner.call("exec.run", object{"command": "NOTE=private"}).str("session_id")
	private := made(owner)
	owner.call("session.rename", object{"session_id": first, "name": "private"})
	second := owner.call("exec.run", object{"command": "NOTE=shared"}).str("session_id")
	guest, _ := owner.shared(g, object{"session_id": second, "mode": "control"})
	other, _ := owner.shared(g, object{"session_id": second, "mode": "control"})
	if out := guest.call("exec.run", ask["exec.run"]).str("stdout"); out != "shared\n" {
		t.Errorf("the guest gets %q", out)
	}
	guests := made(guest)
	for method, theirs := range private {
		if guests[method] == theirs {
			t.Errorf("%s answers the guest with the owner's %s", method, theirs)
		}
		if again := owner.call(method, ask[method]).str(id[method]); again != theirs {
			t.Errorf("%s tried again by the owner: %s, was %s", method, again, theirs)
		}
		if again := guest.call(method, ask[method]).str(id[method]); again != guests[method] {
			t.Errorf("%s tried again by the guest: %s, was %s", method, again, guests[method])
		}
	}
	owner.call("exec.cancel", object{"exec_id": guests["exec.stream"]})
	if again := other.call("exec.run", ask["exec.run"]).str("exec_id"); again == guests["exec.run"] {
		t.Error("two links share a key")
	}

	// What a guest did under a key is not there for the owner to find.
	planted := object{"command": "deploy", "request_key": "deploy"}
	guest.call("exec.run", object{"command": "deploy() { echo planted; }"})
	guest.call("exec.run", planted)
	owner.call("session.destroy", object{"session_id": second, "force": true})
	owner.call("exec.run", object{"command": "deploy() { echo real; }"})
	if out := owner.call("exec.run", planted).str("stdout"); out != "real\n" {
		t.Errorf("the owner's own command: %q", out)
	}
}
