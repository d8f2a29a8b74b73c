package web

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/issuer"
	"trl/pool"
	"trl/web/audit"
	"trl/web/auth"
)

// audited starts a gateway with an audit log. entries ends the gateway and returns the lines.
func audited(t *testing.T, change func(*Config)) (g *server, path string, entries func() []audit.Entry) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Config{Path: path, Commands: audit.HashCommands}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	g = startWith(t, func(c *pool.Config) { c.OnEnd, c.Record.Dir = AuditEnds(log), filepath.Join(t.TempDir(), "recordings") }, func(c *Config) { c.Audit = log; change(c) })
	return g, path, func() (all []audit.Entry) {
		t.Helper()
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
		if _, err := audit.Verify([]string{path}); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var e audit.Entry
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		return all
	}
}

func TestWhoDidWhatIsWrittenDown(t *testing.T) {
	const secret = "hunter2hunter2"
	g, path, entries := audited(t, func(c *Config) {
		c.AuthNone = false
		c.Tokens = gateway.Tokens{"good": {Subject: "alice", Role: auth.User}, "eyes": {Subject: "alice", Role: auth.Viewer}}
	})
	if _, resp, err := g.DialWith(nil); err == nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("%v, %v", resp, err)
	}
	c := g.Dial("good")
	id := c.Session(object{"name": secret, "env": object{"KEY": secret}, "labels": object{"l": secret}})
	f := c.Try("exec.run", object{"session_id": id, "command": "echo " + secret + "; exit 3", "stdin": secret, "env": object{"S": secret}})
	if f.Data.Num("exit_code") != 3 {
		t.Fatalf("%+v", f)
	}
	p := c.Call("process.start", object{"session_id": id, "command": ": " + secret + "; sleep 100"})
	c.Call("process.kill", object{"process_id": p.Str("process_id")})
	term := c.Call("term.open", object{"session_id": id, "command": "cat # " + secret, "cols": 80, "rows": 24})
	c.Call("term.input", object{"term_id": term.Str("term_id"), "data": secret})
	c.Call("term.close", object{"term_id": term.Str("term_id")})
	c.Try("process.kill", object{"process_id": secret})
	c.Try("session.destroy", object{"session": secret + "x"})
	v := g.Dial("eyes")
	if f := v.Try("exec.run", object{"session_id": id, "command": secret}); f.Code() != "FORBIDDEN" {
		t.Errorf("%+v", f)
	}
	v.Try("session.list", object{})
	c.Call("session.destroy", object{"session_id": id})
	c.Close()
	v.Close()

	got := entries()
	text, _ := os.ReadFile(path)
	if bytes.Contains(text, []byte(secret)) {
		t.Errorf("the audit log has a secret: %s", text)
	}
	find := func(action, outcome string) *audit.Entry {
		t.Helper()
		for i := range got {
			if e := &got[i]; e.Action == action && e.Outcome == outcome {
				return e
			}
		}
		t.Fatalf("no %s with %q in %s", action, outcome, text)
		return nil
	}
	if e := find("auth.refused", "AUTH_FAILED"); e.Remote == "" || e.Principal != "" || e.Reason != "token" {
		t.Errorf("%+v", e)
	}
	run := find("exec.run", "ok")
	if run.Principal != "alice" || run.Role != "user" || run.Remote == "" || run.Conn == "" || run.Session != id || run.Exec == "" ||
		!strings.HasPrefix(run.Command, "hmac-sha256:") || run.CommandBytes != len("echo "+secret+"; exit 3") {
		t.Errorf("%+v", run)
	}
	end := find("exec.end", "shell_died")
	if end.Exec != run.Exec || end.Principal != "alice" || end.ExitCode == nil || *end.ExitCode != 3 || end.Seq < run.Seq {
		t.Errorf("%+v", end)
	}
	if e := find("process.start", "ok"); e.Process != p.Str("process_id") || e.Session != id {
		t.Errorf("%+v", e)
	}
	for _, try := range [][2]string{
		{"session.create", "ok"}, {"process.kill", "ok"}, {"process.end", ""}, {"term.open", "ok"}, {"term.close", "ok"}, {"term.end", ""},
		{"session.destroy", "ok"}, {"session.end", ""}, {"client.connect", "ok"}, {"client.disconnect", "ok"},
		{"process.kill", "PROCESS_NOT_FOUND"}, {"session.destroy", "SESSION_NOT_FOUND"}, {"exec.run", "FORBIDDEN"},
	} {
		find(try[0], try[1])
	}
	for _, e := range got {
		if e.Action == "term.input" || e.Action == "session.list" {
			t.Errorf("%+v: input and reading must have no entries", e)
		}
	}
}

// TestGuestsDoNotFillTheLog: each watching guest has its own bound on lines, whatever it tries.
func TestGuestsDoNotFillTheLog(t *testing.T) {
	const visits = 100
	g, _, entries := audited(t, func(c *Config) {
		withTokens(c)
		c.MaxGuests = 2 * visits // a connection counts until the server has seen its end
	})
	owner, viewer := g.Dial(gateway.UserToken), g.Dial(gateway.ViewToken)
	session := owner.Session()
	guest, link := g.Share(owner, object{"session_id": session})
	const tries = 500
	for range tries {
		for _, c := range []*rig.Client{guest, viewer} {
			if f := c.Try("session.destroy", object{"session_id": session}); f.Code() != "FORBIDDEN" {
				t.Fatalf("%+v", f)
			}
		}
		if f := owner.Try("recording.list", object{"all": true}); f.Code() != "FORBIDDEN" {
			t.Fatalf("%+v", f)
		}
	}
	clients := g.Metric("trl_connections")
	for range visits {
		g.Dial(link.Str("token")).Close()
	}
	testkit.Eventually(t, "the visits are over", func() bool { return g.Metric("trl_connections") == clients })
	owner.Run(session, "true")
	lines, withheld, ran := map[string]int{}, map[string]int{}, false
	for _, e := range entries() {
		who := cmp.Or(e.Share, e.Principal)
		if e.Action == "share.create" {
			continue
		}
		withheld[who] += int(e.Suppressed)
		if e.Action != audit.ActionSuppressed {
			lines[who]++
		}
		ran = ran || e.Action == "exec.run" && e.Outcome == "ok"
	}
	for who, want := range map[string]int{link.Str("share_id"): tries + 2*(1+visits), "ann": tries + 2} {
		if n := lines[who]; n > want/4 || n+withheld[who] != want {
			t.Errorf("%s: %d lines, %d suppressed, of %d", who, n, withheld[who], want)
		}
	}
	if n := lines["bob"]; n > tries/4 || n+withheld["bob"] < tries {
		t.Errorf("the owner: %d lines, %d suppressed", n, withheld["bob"])
	}
	if !ran {
		t.Error("the owner's entry is missing")
	}
}

// A client that asks for control of a terminal has an entry, even if it gets control only later. A watching client has none.
func TestControlIsWrittenDown(t *testing.T) {
	g, _, entries := audited(t, withTokens)
	owner := g.Dial(gateway.UserToken)
	session := owner.Session()
	term := owner.Call("term.open", object{"session_id": session, "cols": 80, "rows": 24}).Str("term_id")
	later, link := g.Share(owner, object{"session_id": session, "mode": "control"})
	if mode := later.Call("term.attach", object{"term_id": term, "mode": "control", "claim": 1}).Str("mode"); mode != "view" {
		t.Fatalf("answered %q", mode)
	}
	owner.Call("term.detach", object{"term_id": term})
	later.Event("term.control")
	for _, mode := range []string{"view", ""} {
		viewer, _ := g.Share(owner, object{"session_id": session, "mode": "view"})
		viewer.Call("term.attach", object{"term_id": term, "mode": mode})
		viewer.Try("term.attach", object{"term_id": "t-none", "mode": mode})
	}
	var all []audit.Entry
	for _, e := range entries() {
		if e.Action == "term.attach" {
			all = append(all, e)
		}
	}
	if len(all) != 1 || all[0].Share != link.Str("share_id") || all[0].Terminal != term || all[0].Outcome != "ok" {
		t.Errorf("%+v", all)
	}
}

// A request of an admin about another principal's recording has an entry with the recording and its owner. The owner's reading has none.
func TestAdminsAtRecordingsAreSeen(t *testing.T) {
	g, _, entries := audited(t, withTokens)
	owner, admin := g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken)
	session := owner.Session()
	owner.Call("exec.run", object{"session_id": session, "command": "true", "record": true})
	id := object(owner.Call("recording.list", nil)["recordings"].([]any)[0].(map[string]any)).Str("recording_id")
	admin.Call("term.open", object{"session_id": admin.Session(), "command": "true", "record": true, "cols": 80, "rows": 24}) // it may have ended by now, and then its recording, too
	own := object(admin.Call("recording.list", nil)["recordings"].([]any)[0].(map[string]any)).Str("recording_id")
	ref, path := object{"recording_id": id}, "/v1/recordings/"
	testkit.Eventually(t, "there is something to download", func() bool {
		status, _, _ := g.download(path+id, gateway.UserToken)
		mine, _, _ := g.download(path+own, gateway.AdminToken)
		return status == http.StatusOK && mine == http.StatusOK
	})
	owner.Call("recording.info", ref)
	admin.Call("recording.info", object{"recording_id": own})
	admin.Call("recording.list", nil)

	admin.Call("recording.list", object{"all": true})
	admin.Call("recording.info", ref)
	if status, _, _ := g.download(path+id, gateway.AdminToken); status != http.StatusOK {
		t.Errorf("download: %d", status)
	}
	if n := strings.Count(g.Log.String(), `"recording":"`+id+`","owner":"bob","message":"admin uses a recording of another principal"`); n != 2 { // one of them of the connection
		t.Errorf("the log has the warning %d times, want 2: %s", n, g.Log)
	}
	admin.Call("recording.delete", ref)
	admin.Call("recording.delete", object{"recording_id": own})
	var got []string
	for _, e := range entries() {
		if strings.HasPrefix(e.Action, "recording.") {
			if e.Principal != "ann" || e.Role != "admin" || e.Remote == "" || e.Outcome != "ok" || e.Owner != "" && e.Session != session {
				t.Errorf("%+v", e)
			}
			got = append(got, e.Action+" "+e.Recording+" "+e.Owner)
		}
	}
	want := []string{"recording.list  ", "recording.info " + id + " bob", "recording.download " + id + " bob", "recording.delete " + id + " bob", "recording.delete " + own + " "}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Each way to log a browser in has an entry.
func TestLoginsAreWrittenDown(t *testing.T) {
	i := issuer.New(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("client-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	conf := &auth.OIDCConfig{Issuer: i.URL, ClientID: "trl", SecretFile: secret, Role: auth.RoleRule{DefaultRole: auth.User}}
	g, _, entries := audited(t, func(c *Config) {
		withTokens(c)
		c.OIDC = conf
	})
	conf.RedirectURL = g.URL() + auth.CallbackPath
	g.logIn(gateway.ViewToken)
	jar, _ := cookiejar.New(nil)
	resp, err := (&http.Client{Jar: jar}).Get(g.URL() + auth.OIDCPath)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Request.URL.Path != auth.CallbackPath {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	if resp, err = http.Get(g.URL() + auth.CallbackPath + "?code=none"); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	var logins []string
	for _, e := range entries() {
		if e.Action == audit.ActionLogin && e.Outcome == "ok" && e.Remote != "" {
			logins = append(logins, e.Principal+" "+e.Role)
		}
	}
	if want := []string{"ann viewer", i.URL + "#ann user"}; !slices.Equal(logins, want) {
		t.Errorf("%q, want %q", logins, want)
	}
}

// The end of a command that outlives its client has an entry, too.
func TestEndIsWrittenDownWithoutTheClient(t *testing.T) {
	g, path, entries := audited(t, func(*Config) {})
	fifo := filepath.Join(t.TempDir(), "go")
	c := g.Dial()
	id := c.Session()
	c.Begin("exec.run", object{"session_id": id, "command": "mkfifo " + fifo + "; read x <" + fifo})
	testkit.Eventually(t, "the command runs", func() bool { _, err := os.Stat(fifo); return err == nil })
	c.Close()
	if err := os.WriteFile(fifo, []byte("x\n"), 0); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "its end", func() bool {
		text, _ := os.ReadFile(path)
		return bytes.Contains(text, []byte(`"exec.end","outcome":"ok"`))
	})
	entries()
}
