package pool

import (
	"encoding/base64"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"trl/pool/entry"
	"trl/pool/requestkey"
	"trl/pool/share"
	"trl/protocol"
)

// TestMakersAreWrittenDown: what a link rests on can be read again.
func TestMakersAreWrittenDown(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	until := time.Now().Add(time.Minute)
	sh, _, err := s.Share(&protocol.ShareCreate{}, "a token", until)
	if err != nil {
		t.Fatal(err)
	}
	m, err := remember(t, s)
	if err != nil || len(m.Shares) != 1 {
		t.Fatalf("%+v %v", m, err)
	}
	s.endShares(func(*Share) bool { return true })
	r.mu.Lock()
	s.mu.Lock()
	again := s.addShareLocked(share.Restore(m.Shares[0]))
	s.mu.Unlock()
	r.mu.Unlock()
	if again.CredentialID() != "a token" || again.Hash() != sh.Hash() || !again.Info().ExpiresAt.Equal(until) {
		t.Errorf("%+v", again)
	}
}

// TestLinkDoesNotOutlastASuspend: a link's time goes on while the machine is suspended. A time namespace whose boot time is an hour ahead,
// and whose monotonic clock is not, is what a process sees after an hour of it: this test runs itself in there, with the link.
func TestLinkDoesNotOutlastASuspend(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	const inside = "TRL_TEST_LINKS"
	if text := os.Getenv(inside); text != "" {
		var links []*entry.Share
		if raw, err := base64.StdEncoding.DecodeString(text); err != nil || json.Unmarshal(raw, &links) != nil {
			t.Fatal(text)
		}
		r.mu.Lock()
		s.mu.Lock()
		for _, x := range links {
			s.addShareLocked(share.Restore(x))
		}
		s.mu.Unlock()
		r.mu.Unlock()
		var open []string
		for _, sh := range s.Shares() {
			open = append(open, sh.Name)
		}
		if got := strings.Join(open, " "); got != "long" {
			t.Errorf("open: %q, want those of more than an hour", got)
		}
		r.DropExpired(time.Now())
		if n := len(s.Shares()); n != 1 {
			t.Errorf("%d links", n)
		}
		return
	}
	if out, err := exec.Command("unshare", "--time", "--boottime", "3600", "true").CombinedOutput(); err != nil {
		t.Skipf("no time namespace (needs root): %v %s", err, out)
	}
	var links []*entry.Share
	for name, life := range map[string]time.Duration{"short": 50 * time.Minute, "long": 70 * time.Minute} {
		q := &protocol.ShareCreate{Name: name, ExpiresIn: new(protocol.Seconds(life.Seconds()))}
		sh, _, err := s.Share(q, "", time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, sh.Entry())
	}
	text, err := json.Marshal(links)
	if err != nil {
		t.Fatal(err)
	}
	again := exec.Command("unshare", "--time", "--boottime", "3600", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	again.Env = append(os.Environ(), inside+"="+base64.StdEncoding.EncodeToString(text))
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("an hour later: %v\n%s", err, out)
	}
}

// TestGuestKeysAreWrittenDown: whose a request_key is can be read again, also where an earlier version has written it.
func TestGuestKeysAreWrittenDown(t *testing.T) {
	r := newRig(t, Config{})
	s, err := r.Find(me, "", "") // the default one
	if err != nil {
		t.Fatal(err)
	}
	sh, _, err := s.Share(&protocol.ShareCreate{Mode: "control"}, "", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(in interface {
		Exec(*protocol.Exec) (*Exec, error)
	}) *Exec {
		e, err := in.Exec(&protocol.Exec{Command: "true", RequestKey: "k"})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "true", e.Done())
		return e
	}
	owners, guests := begin(s), begin(sh)
	p, err := sh.StartProcess(t.Context(), &protocol.ProcessStart{Command: "true", RequestKey: "p"})
	if err != nil {
		t.Fatal(err)
	}
	term, err := sh.OpenTerminal(t.Context(), &protocol.TermOpen{Cols: 80, Rows: 24, Command: "true", RequestKey: "t"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := remember(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Work) != 4 {
		t.Fatalf("%d commands, processes and terminals", len(m.Work))
	}
	for what, refs := range map[string][2]requestkey.Ref{
		"owner's command":  {s.loggedKeyRef(m.Work[0].Request().Key), owners.key},
		"guest's command":  {s.loggedKeyRef(m.Work[1].Request().Key), guests.key},
		"guest's process":  {s.loggedKeyRef(m.Work[2].Request().Key), p.key},
		"guest's terminal": {s.loggedKeyRef(m.Work[3].Request().Key), term.key},
	} {
		if refs[0] != refs[1] {
			t.Errorf("%s: %+v was written, %+v is read", what, refs[1], refs[0])
		}
	}
	if owners.key == guests.key || guests.key.Scope != s.id {
		t.Errorf("owner's %+v, guest's %+v", owners.key, guests.key)
	}
	for text, want := range map[string]requestkey.Ref{
		`{"key":"k","params":"","default":true}`: {Owner: me, Scope: s.id, Key: "k", NamesNoSession: true},
		`{"key":"k","params":""}`:                {Owner: me, Scope: s.id, Key: "k"},
	} {
		var old entry.Key
		if err := json.Unmarshal([]byte(text), &old); err != nil || s.loggedKeyRef(old) != want {
			t.Errorf("%s: %+v %v", text, s.loggedKeyRef(old), err)
		}
	}
}
