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

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/issuer"
	"trl/web/auth"
)

// share makes a share link and dials with it.
func (g *gateway) share(owner *rig.Client, params object) (guest *rig.Client, link object) {
	g.t.Helper()
	link = owner.Call("share.create", params)
	return g.dial(link.Str("token")), link
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
	session := owner.Session()
	term := owner.Call("term.open", object{"session_id": session, "cols": 80, "rows": 24}).Str("term_id")
	for _, link := range []struct {
		params         object
		control, whole bool
	}{
		{object{"session_id": session}, false, true},
		{object{"session_id": session, "mode": "control"}, true, true},
		{object{"term_id": term}, false, false},
		{object{"term_id": term, "mode": "control"}, true, false},
	} {
		guest, _ := g.share(owner, link.params)
		for _, method := range slices.Sorted(maps.Keys(handlers)) {
			wants, listed := guestMethods[method]
			may := listed && (link.control || !wants.control) && (link.whole || !wants.whole)
			// A field that no method has: what is allowed gets as far as the params, and does nothing.
			if got := guest.Try(method, object{"no_such_field": 1}).Code(); may != (got == "INVALID_PARAMS") || !may && got != "FORBIDDEN" {
				t.Errorf("%v: %s answers %s", link.params, method, got)
			}
		}
	}
}

func TestShareOfASession(t *testing.T) {
	g := start(t, withTokens)
	owner := g.dial(userToken)
	session, other := owner.Session(object{"name": "shown"}), owner.Session(object{"name": "private"})
	owner.Run(session, "cd /usr")
	hidden := owner.Call("exec.run", object{"session_id": other, "command": "echo hidden"}).Str("exec_id")
	hiddenProcess := owner.Call("process.start", object{"session_id": other, "command": "echo hidden"}).Str("process_id")
	hiddenTerm := owner.Call("term.open", object{"session_id": other, "cols": 80, "rows": 24}).Str("term_id")
	viewer, link := g.share(owner, object{"session": "shown", "name": "for the boss"})
	typist, _ := g.share(owner, object{"session_id": session, "mode": "control"})

	viewer.Call("session.watch", object{"session_id": session})
	if got := typist.Call("exec.run", object{"command": "pwd"}); got.Str("stdout") != "/usr\n" { // no session named: the shared one
		t.Fatalf("control: %v", got)
	}
	if got := viewer.Event("exec.exit"); got.Num("exit_code") != 0 {
		t.Fatalf("watching: %v", got)
	}
	for _, guest := range []*rig.Client{viewer, typist} {
		if all := guest.Call("session.list", nil)["sessions"].([]any); len(all) != 1 || object(all[0].(map[string]any)).Str("session_id") != session {
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
			got, want := guest.Try(method, q), guest.Try(method, made)
			if got.OK || got.Code() != want.Code() || got.Error.Message != want.Error.Message {
				t.Errorf("%s of what is not shared: %+v; of what does not exist: %+v", method, got.Error, want.Error)
			}
		}
	}
	if who := viewer.Call("system.capabilities", nil)["principal"].(map[string]any); who["role"] != "viewer" || who["share"].(map[string]any)["share_id"] != link.Str("share_id") {
		t.Errorf("capabilities: %v", who)
	}
	all := owner.Call("share.list", object{"session_id": session})["shares"].([]any)
	if first := object(all[0].(map[string]any)); len(all) != 2 || first.Str("name") != "for the boss" || first.Str("mode") != "view" || first.Num("clients") != 1 || first["token"] != nil {
		t.Errorf("share.list: %v", all)
	}
	if strings.Contains(g.log.String(), link.Str("token")) {
		t.Error("the token is in the log")
	}
}

func TestShareOfATerminal(t *testing.T) {
	g := start(t, withTokens)
	owner := g.dial(userToken)
	session := owner.Session()
	open := func() string {
		return owner.Call("term.open", object{"session_id": session, "cols": 80, "rows": 24, "command": "cat"}).Str("term_id")
	}
	term, other := open(), open()
	viewer, _ := g.share(owner, object{"term_id": term, "name": "a friend"})
	typist, _ := g.share(owner, object{"term_id": term, "mode": "control"})

	if all := viewer.Call("term.list", object{"session_id": session})["terminals"].([]any); len(all) != 1 {
		t.Errorf("a guest of one terminal sees %d", len(all))
	}
	for _, guest := range []*rig.Client{viewer, typist} {
		if got := guest.Try("term.attach", object{"term_id": other}).Code(); got != "TERM_NOT_FOUND" {
			t.Errorf("the other terminal: %s", got)
		}
	}
	if got := viewer.Try("term.attach", object{"term_id": term, "mode": "control"}).Code(); got != "FORBIDDEN" {
		t.Errorf("control over a link to look: %s", got)
	}
	viewer.Call("term.attach", object{"term_id": term})
	typist.Call("term.attach", object{"term_id": term})
	for method, q := range map[string]object{"term.input": {"term_id": term, "data": "x"}, "term.resize": {"term_id": term, "cols": 10, "rows": 10}} {
		if got := viewer.Try(method, q).Code(); got != "FORBIDDEN" {
			t.Errorf("%s over a link to look: %s", method, got)
		}
	}
	var via []string
	for _, info := range owner.Call("term.list", object{"session_id": session})["terminals"].([]any) {
		if info := info.(map[string]any); info["term_id"] == term {
			for _, viewer := range info["attached"].([]any) {
				if name := object(viewer.(map[string]any)).Str("via"); name != "" {
					via = append(via, name)
				}
			}
		}
	}
	if len(via) != 2 || via[0] != "a friend" || !strings.HasPrefix(via[1], "l-") {
		t.Errorf("guests are listed as %q", via)
	}
	typist.Call("term.input", object{"term_id": term, "data": "typed\n"})
	var seen strings.Builder
	viewer.Await("what was typed", func(f *rig.Frame) bool {
		if f.Event == "term.output" {
			seen.WriteString(f.Data.Str("data"))
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
			session := owner.Session()
			token := func(link object) string { return link.Str("token") }
			refused := func(link object) {
				t.Helper()
				_, resp, err := g.dialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token(link)}}})
				if err == nil || resp.StatusCode != http.StatusUnauthorized {
					t.Errorf("a link that has ended opens something: %v %v", resp, err)
				}
			}

			guest, link := g.share(owner, object{"session_id": session})
			stays, _ := g.share(owner, object{"session_id": session})
			owner.Call("share.revoke", object{"share_id": link.Str("share_id")})
			if code := guest.CloseStatus(); code != 4403 {
				t.Errorf("revoked: closed with %d", code)
			}
			refused(link)
			stays.Call("session.info", object{"session_id": session})
			if got := owner.Try("share.revoke", object{"share_id": link.Str("share_id")}).Code(); got != "SHARE_NOT_FOUND" {
				t.Errorf("revoked twice: %s", got)
			}

			guest, link = g.share(owner, object{"session_id": session, "expires_in_s": 5}) // time for the guest to connect
			if link.Str("path") != "/share#token="+token(link) {
				t.Errorf("path: %v", link)
			}
			testkit.Eventually(t, "the link expires", func() bool { return guest.Try("session.info", object{"session_id": session}).Code() == "FORBIDDEN" })
			refused(link)
			g.pool.DropExpired(time.Now()) // the reaper's, every second
			if code := guest.CloseStatus(); code != 4403 {
				t.Errorf("expired: closed with %d", code)
			}
			if all := owner.Call("share.list", object{"session_id": session})["shares"].([]any); len(all) != 1 {
				t.Errorf("links left: %v", all)
			}

			owner.Call("session.destroy", object{"session_id": session, "force": true})
			if got := owner.Try("share.create", object{"session_id": session}).Code(); got != "SESSION_TERMINATED" {
				t.Errorf("link to a session that has ended: %s", got)
			}
			stays.Call("session.info", object{"session_id": session}) // it is retained
			g.pool.DropExpired(time.Now().Add(time.Hour))
			if code := stays.CloseStatus(); code != 4403 {
				t.Errorf("session forgotten: closed with %d", code)
			}
		})
	}
}

// TestNothingIsDoneForARevokedLink: neither what waits for its turn on the guest's connection nor what waits in the session.
func TestNothingIsDoneForARevokedLink(t *testing.T) {
	g := start(t, withTokens)
	owner := g.dial(userToken)
	session, dir := owner.Session(), t.TempDir()
	guest, link := g.share(owner, object{"session_id": session, "mode": "control"})
	const many = 100
	for range many {
		guest.Begin("process.start", object{"command": "sleep 100"})
	}
	processes := func() int { return len(owner.Call("process.list", object{"session_id": session})["processes"].([]any)) }
	testkit.Eventually(t, "the first ones run", func() bool { return processes() > 2 })
	owner.Call("share.revoke", object{"share_id": link.Str("share_id")})
	before := processes()
	guest.CloseStatus()
	testkit.Eventually(t, "the guest is gone", func() bool { return g.metric("trl_connections") == 1 })
	if after := processes(); before == many || after > before+1 { // one may have been about to start
		t.Errorf("%d processes when the link was revoked, then %d", before, after)
	}

	guest, link = g.share(owner, object{"session_id": session, "mode": "control"})
	stays, _ := g.share(owner, object{"session_id": session, "mode": "control"})
	file := func(name string) object { return object{"session_id": session, "command": "echo >" + dir + "/" + name} }
	running := guest.Call("exec.stream", object{"command": "until [ -e " + dir + "/go ]; do sleep 0.01; done; echo >" + dir + "/running"}).Str("exec_id")
	queued := guest.Call("exec.stream", file("guest")).Str("exec_id")
	guest.Begin("exec.run", file("guest"))
	others := []string{owner.Call("exec.stream", file("owner")).Str("exec_id"), stays.Call("exec.stream", file("stays")).Str("exec_id")}
	testkit.Eventually(t, "all wait", func() bool { return owner.Call("session.info", object{"session_id": session}).Num("queue_length") == 4 })
	owner.Call("share.revoke", object{"share_id": link.Str("share_id")})
	if n := owner.Call("session.info", object{"session_id": session}).Num("queue_length"); n != 2 {
		t.Errorf("%d wait after the revocation", n)
	}
	if got := owner.Call("exec.wait", object{"exec_id": queued}); got["cancelled"] != true {
		t.Errorf("a guest's command that waited: %v", got)
	}
	owner.Call("process.start", file("go"))
	for _, id := range append(others, running) {
		if got := owner.Call("exec.wait", object{"exec_id": id}); got.Num("exit_code") != 0 || got["cancelled"] == true {
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
	session := owner.Session()
	q := object{"session_id": session, "mode": "control"}
	ws, _, err := g.dialCookie(g.logIn("first-token"))
	if err != nil {
		t.Fatal(err)
	}
	byLogin, byLoginLink := g.share(rig.NewClient(t, ws), q)
	byToken, byTokenLink := g.share(g.dial("first-token"), q)
	stays, _ := g.share(owner, q)
	demoted, demotedLink := g.share(g.dial("third-token"), q)
	foreign, foreignLink := g.share(g.dial("boss-token"), q)
	_, short := g.share(g.dial("short-token"), object{"session_id": session, "expires_in_s": 86400})
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
		owner := rig.NewClient(t, ws)
		guest, _ := g.share(owner, object{"session_id": owner.Session()})
		post(t, g.URL()+"/logout", "Cookie", cookie.Name+"="+cookie.Value)
		owner.CloseStatus()
		if kept {
			guest.Call("system.ping", nil)
		} else if code := guest.CloseStatus(); code != 4403 {
			t.Errorf("by a login with %s: closed with %d", name, code)
		}
	}
}

// TestGuestsCountForTheirMaker: a link gives nobody more requests than its token is good for.
func TestGuestsCountForTheirMaker(t *testing.T) {
	_, set := withFile(t, "slow-token ann user rate=2\nbusy-token ann user max_in_flight=1\n")
	g := start(t, set)
	owner := g.dial("slow-token")
	guest, _ := g.share(owner, object{"session_id": owner.Session()})
	refused := 0
	for range 5 { // two seconds' worth comes at once
		if guest.Try("system.ping", nil).Code() == "RATE_LIMITED" {
			refused++
		}
	}
	if refused == 0 {
		t.Error("the guest may ask as often as it likes")
	}

	owner = g.dial("busy-token")
	guest, _ = g.share(owner, object{"session_id": owner.Session(), "mode": "control"})
	begun := filepath.Join(t.TempDir(), "begun")
	guest.Begin("exec.run", object{"command": ": >" + begun + "; sleep 300"})
	// The owner asks nothing before the command runs: a request of its own may take the one place, and then the guest's is refused.
	testkit.Eventually(t, "the guest's command runs", func() bool { _, err := os.Stat(begun); return err == nil })
	if code := owner.Try("system.ping", nil).Code(); code != "RATE_LIMITED" {
		t.Errorf("beside the guest's request the owner's is answered with %q", code)
	}
}

func TestShareIsTheOwners(t *testing.T) {
	g := start(t, withTokens)
	owner, other, viewer := g.dial(adminToken), g.dial(userToken), g.dial(viewToken)
	session := owner.Session()
	guest, link := g.share(owner, object{"session_id": session, "mode": "control"})
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
			t.Errorf("%s answers a guest", path)
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
	made := func(c *rig.Client) map[string]string {
		t.Helper()
		all := map[string]string{}
		for _, method := range methods {
			all[method] = c.Call(method, ask[method]).Str(id[method])
		}
		return all
	}

	first := owner.Call("exec.run", object{"command": "NOTE=private"}).Str("session_id")
	private := made(owner)
	owner.Call("session.rename", object{"session_id": first, "name": "private"})
	second := owner.Call("exec.run", object{"command": "NOTE=shared"}).Str("session_id")
	guest, _ := g.share(owner, object{"session_id": second, "mode": "control"})
	other, _ := g.share(owner, object{"session_id": second, "mode": "control"})
	if out := guest.Call("exec.run", ask["exec.run"]).Str("stdout"); out != "shared\n" {
		t.Errorf("the guest gets %q", out)
	}
	guests := made(guest)
	for method, theirs := range private {
		if guests[method] == theirs {
			t.Errorf("%s answers the guest with the owner's %s", method, theirs)
		}
		if again := owner.Call(method, ask[method]).Str(id[method]); again != theirs {
			t.Errorf("%s tried again by the owner: %s, was %s", method, again, theirs)
		}
		if again := guest.Call(method, ask[method]).Str(id[method]); again != guests[method] {
			t.Errorf("%s tried again by the guest: %s, was %s", method, again, guests[method])
		}
	}
	owner.Call("exec.cancel", object{"exec_id": guests["exec.stream"]})
	if again := other.Call("exec.run", ask["exec.run"]).Str("exec_id"); again == guests["exec.run"] {
		t.Error("two links share a key")
	}

	// What a guest did under a key is not there for the owner to find.
	planted := object{"command": "deploy", "request_key": "deploy"}
	guest.Call("exec.run", object{"command": "deploy() { echo planted; }"})
	guest.Call("exec.run", planted)
	owner.Call("session.destroy", object{"session_id": second, "force": true})
	owner.Call("exec.run", object{"command": "deploy() { echo real; }"})
	if out := owner.Call("exec.run", planted).Str("stdout"); out != "real\n" {
		t.Errorf("the owner's own command: %q", out)
	}
}
