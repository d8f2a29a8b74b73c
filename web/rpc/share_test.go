package rpc

import (
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
)

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
	owner := g.Dial(gateway.UserToken)
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
		guest, _ := g.Share(owner, link.params)
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
	owner := g.Dial(gateway.UserToken)
	session, other := owner.Session(object{"name": "shown"}), owner.Session(object{"name": "private"})
	owner.Run(session, "cd /usr")
	hidden := owner.Call("exec.run", object{"session_id": other, "command": "echo hidden"}).Str("exec_id")
	hiddenProcess := owner.Call("process.start", object{"session_id": other, "command": "echo hidden"}).Str("process_id")
	hiddenTerm := owner.Call("term.open", object{"session_id": other, "cols": 80, "rows": 24}).Str("term_id")
	viewer, link := g.Share(owner, object{"session": "shown", "name": "for the boss"})
	typist, _ := g.Share(owner, object{"session_id": session, "mode": "control"})

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
	if strings.Contains(g.Log.String(), link.Str("token")) {
		t.Error("the token is in the log")
	}
}

func TestShareOfATerminal(t *testing.T) {
	g := start(t, withTokens)
	owner := g.Dial(gateway.UserToken)
	session := owner.Session()
	open := func() string {
		return owner.Call("term.open", object{"session_id": session, "cols": 80, "rows": 24, "command": "cat"}).Str("term_id")
	}
	term, other := open(), open()
	viewer, _ := g.Share(owner, object{"term_id": term, "name": "a friend"})
	typist, _ := g.Share(owner, object{"term_id": term, "mode": "control"})

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
	for name, auth := range map[string]func(*config){"tokens": withTokens, "no auth": func(*config) {}} {
		t.Run(name, func(t *testing.T) {
			g := start(t, auth)
			owner := g.Dial(gateway.UserToken)
			session := owner.Session()
			token := func(link object) string { return link.Str("token") }
			refused := func(link object) {
				t.Helper()
				_, resp, err := g.DialWith(&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token(link)}}})
				if err == nil || resp.StatusCode != http.StatusUnauthorized {
					t.Errorf("a link that has ended opens something: %v %v", resp, err)
				}
			}

			guest, link := g.Share(owner, object{"session_id": session})
			stays, _ := g.Share(owner, object{"session_id": session})
			owner.Call("share.revoke", object{"share_id": link.Str("share_id")})
			if code := guest.CloseStatus(); code != 4403 {
				t.Errorf("revoked: closed with %d", code)
			}
			refused(link)
			stays.Call("session.info", object{"session_id": session})
			if got := owner.Try("share.revoke", object{"share_id": link.Str("share_id")}).Code(); got != "SHARE_NOT_FOUND" {
				t.Errorf("revoked twice: %s", got)
			}

			guest, link = g.Share(owner, object{"session_id": session, "expires_in_s": 5}) // time for the guest to connect
			if link.Str("path") != "/share#token="+token(link) {
				t.Errorf("path: %v", link)
			}
			testkit.Eventually(t, "the link expires", func() bool { return guest.Try("session.info", object{"session_id": session}).Code() == "FORBIDDEN" })
			refused(link)
			g.Pool.DropExpired(time.Now()) // the reaper's, every second
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
			g.Pool.DropExpired(time.Now().Add(time.Hour))
			if code := stays.CloseStatus(); code != 4403 {
				t.Errorf("session forgotten: closed with %d", code)
			}
		})
	}
}

// TestNothingIsDoneForARevokedLink: neither what waits for its turn on the guest's connection nor what waits in the session.
func TestNothingIsDoneForARevokedLink(t *testing.T) {
	g := start(t, withTokens)
	owner := g.Dial(gateway.UserToken)
	var session string
	const many, tries = 100, 10
	for try := 1; ; try++ {
		session = owner.Session()
		guest, link := g.Share(owner, object{"session_id": session, "mode": "control"})
		for range many {
			guest.Begin("process.start", object{"command": "sleep 100"})
		}
		processes := func() int {
			return len(owner.Call("process.list", object{"session_id": session})["processes"].([]any))
		}
		testkit.Eventually(t, "the first ones run", func() bool { return processes() > 2 })
		owner.Call("share.revoke", object{"share_id": link.Str("share_id")})
		before := processes()
		guest.CloseStatus()
		testkit.Eventually(t, "the guest is gone", func() bool { return g.Metric("trl_connections") == 1 })
		if after := processes(); after > before+1 || before == many && try == tries { // one may have been about to start
			t.Errorf("%d processes when the link was revoked, then %d", before, after)
		}
		if before < many || try == tries { // otherwise the revocation came too late: a busy machine
			break
		}
	}

	dir := t.TempDir()
	guest, link := g.Share(owner, object{"session_id": session, "mode": "control"})
	stays, _ := g.Share(owner, object{"session_id": session, "mode": "control"})
	file := func(name string) object {
		return object{"session_id": session, "command": "echo >" + dir + "/" + name}
	}
	running := guest.Call("exec.stream", object{"command": "until [ -e " + dir + "/go ]; do sleep 0.01; done; echo >" + dir + "/running"}).Str("exec_id")
	queued := guest.Call("exec.stream", file("guest")).Str("exec_id")
	guest.Begin("exec.run", file("guest"))
	others := []string{owner.Call("exec.stream", file("owner")).Str("exec_id"), stays.Call("exec.stream", file("stays")).Str("exec_id")}
	testkit.Eventually(t, "all wait", func() bool {
		return owner.Call("session.info", object{"session_id": session}).Num("queue_length") == 4
	})
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

// TestGuestKeysAreItsOwn: a guest's request_key stands for nothing of the owner's, and the owner's for nothing of the guest's, also where
// the session is the default one, whose keys outlive it.
func TestGuestKeysAreItsOwn(t *testing.T) {
	g := start(t, withTokens)
	owner := g.Dial(gateway.UserToken)
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
	guest, _ := g.Share(owner, object{"session_id": second, "mode": "control"})
	other, _ := g.Share(owner, object{"session_id": second, "mode": "control"})
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
