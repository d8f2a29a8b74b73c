package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"trl/internal/testkit"
	"trl/protocol"
)

func is(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }

func isEpochError(err error) bool { _, ok := errors.AsType[*EpochError](err); return ok }

func isVersionError(err error) bool { _, ok := errors.AsType[*VersionError](err); return ok }

func TestStrangersAreRefused(t *testing.T) {
	secret, other := secretFile(t, strings.Repeat("a", minSecret)), secretFile(t, strings.Repeat("b", minSecret))
	ca, otherCA := newCA(t), newCA(t)
	good := func(names ...string) *Credentials { return credentials(t, ca.issue(t, names...)) }
	withSecret := func(f Files) *Credentials { f.Secret = secret; return credentials(t, f) }
	byAnother := ca.issue(t)
	otherCA.write(t, byAnother, time.Hour, gateway.Name)
	if err := os.WriteFile(byAnother.CA, ca.pem, 0o600); err != nil { // it trusts the cluster, and is not of it
		t.Fatal(err)
	}
	late := ca.issue(t)
	ca.write(t, late, -time.Minute, gateway.Name)
	type options struct {
		d *DialerOptions
		a *AcceptorOptions
	}
	tests := map[string]struct {
		scheme   string
		change   func(options)
		want     func(error) bool // at the dialer
		accepted bool             // the acceptor did not notice
	}{
		"another secret":        {"ws", func(o options) { o.d.Credentials = credentials(t, Files{Secret: other}) }, is(ErrSecret), true},
		"another secret in TLS": {"wss", func(o options) { o.d.Credentials = credentials(t, Files{Secret: other}) }, is(ErrSecret), true},
		"acceptor without secret": {"wss", func(o options) {
			o.a.Credentials, o.d.Credentials = good(owner.Name), withSecret(ca.issue(t, gateway.Name))
		}, is(ErrSecret), true},
		"dialer without secret": {"wss", func(o options) {
			o.a.Credentials, o.d.Credentials = withSecret(ca.issue(t, owner.Name)), good(gateway.Name)
		}, is(ErrSecret), false},
		"dialer without certificate": {"wss", func(o options) { o.a.Credentials = withSecret(ca.issue(t, owner.Name)) }, is(ErrUntrusted), false},
		"acceptor of another CA": {"wss", func(o options) {
			o.a.Credentials, o.d.Credentials = credentials(t, otherCA.issue(t, owner.Name)), good(gateway.Name)
		}, is(ErrUntrusted), true},
		"dialer of another CA":       {"wss", func(o options) { o.a.Credentials, o.d.Credentials = good(owner.Name), credentials(t, byAnother) }, is(ErrUntrusted), false},
		"dialer's is too old":        {"wss", func(o options) { o.a.Credentials, o.d.Credentials = good(owner.Name), credentials(t, late) }, is(ErrUntrusted), false},
		"dialer's is another node's": {"wss", func(o options) { o.a.Credentials, o.d.Credentials = good(owner.Name), good("n3") }, is(ErrUntrusted), false},
		"acceptor's is another's":    {"wss", func(o options) { o.a.Credentials, o.d.Credentials = good("n3"), good(gateway.Name) }, is(ErrUntrusted), true},
		"the owner's epoch":          {"ws", func(o options) { o.d.Self.Epoch = owner.Epoch }, is(ErrSelf), false},
		"the owner's name":           {"ws", func(o options) { o.d.Self.Name = owner.Name }, is(ErrSelf), false},
		"an epoch of another node": {"ws", func(o options) {
			o.a.Peer = func(from Node) error { return fmt.Errorf("%s is the epoch of n3", from.Epoch) }
		}, is(ErrPeer), false},
		"versions too far apart": {"ws", func(o options) { o.d.versions = Versions{3, 4} }, isVersionError, false},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			m := mode{"", c.scheme, func(testing.TB, Node) *Credentials { return credentials(t, Files{Secret: secret}) }}
			r := newRig(t, m, Limits{}, func(d *DialerOptions, a *AcceptorOptions) { c.change(options{d, a}) })
			_, err := r.dialer.Dial(within(t), r.to, aHello())
			if gone, ok := errors.AsType[*UnreachableError](err); !ok || !c.want(err) || gone.RetryAfter <= 0 {
				t.Errorf("the dialer got %v", err)
			}
			if !c.accepted {
				r.refused.wait(t, c.want)
			}
			select {
			case h := <-r.hellos:
				t.Errorf("%+v was served", h)
			default:
			}
		})
	}
}

func TestACertificateForEveryNode(t *testing.T) {
	ca := newCA(t)
	f := ca.issue(t, AnyNode)
	r := newRig(t, mode{"", "wss", func(testing.TB, Node) *Credentials { return credentials(t, f) }}, Limits{}, nil)
	r.link()
}

func TestAnotherNodeThanWanted(t *testing.T) {
	for _, m := range modes(t) {
		for _, want := range []Node{{owner.Name, "epochold"}, {"n3", owner.Epoch}} {
			t.Run(m.name+" "+want.Name, func(t *testing.T) {
				r := newRig(t, m, Limits{}, nil)
				r.to.Node = want
				_, err := r.dialer.Dial(within(t), r.to, aHello())
				if m.scheme == "wss" && m.name != "secret in TLS" && want.Name == "n3" {
					if !errors.Is(err, ErrUntrusted) {
						t.Errorf("the certificate names %s: %v", owner.Name, err)
					}
					return
				}
				if e, ok := errors.AsType[*EpochError](err); !ok || e.Want != want || e.Got != owner {
					t.Errorf("the dialer got %v", err)
				}
				r.refused.wait(t, isEpochError)
			})
		}
	}
}

// The nodes speak the highest version of the lower one, and name both when there is none.
func TestVersions(t *testing.T) {
	for _, c := range []struct {
		d, a Versions
		want int // 0: refused
	}{{Versions{1, 1}, Versions{1, 1}, 1}, {Versions{1, 2}, Versions{1, 1}, 1}, {Versions{1, 2}, Versions{2, 3}, 2}, {Versions{2, 3}, Versions{1, 2}, 2}, {Versions{1, 2}, Versions{3, 4}, 0}, {Versions{3, 4}, Versions{1, 2}, 0}, {Versions{-1, 0}, Versions{-1, 0}, 0}} {
		r := newRig(t, modes(t)[0], Limits{}, func(d *DialerOptions, a *AcceptorOptions) { d.versions, a.versions = c.d, c.a })
		conn, err := r.dialer.Dial(within(t), r.to, aHello())
		if c.want != 0 {
			if err != nil || conn.Version() != c.want || (<-r.accepted).Version() != c.want {
				t.Errorf("%v and %v: %v", c.d, c.a, err)
			}
			continue
		}
		if e, ok := errors.AsType[*VersionError](err); !ok || e.Ours != c.d || e.Theirs != c.a || !strings.Contains(err.Error(), c.d.String()) || !strings.Contains(err.Error(), c.a.String()) {
			t.Errorf("%v and %v: %v", c.d, c.a, err)
		}
	}
}

func TestHelloIsBounded(t *testing.T) {
	for field, change := range map[string]func(*Hello){
		"principal":      func(h *Hello) { h.Principal = "" },
		"principal ":     func(h *Hello) { h.Principal = "two words" },
		"principal  ":    func(h *Hello) { h.Principal = strings.Repeat("x", maxPrincipal+1) },
		"principal   ":   func(h *Hello) { h.Principal = "a\x00" },
		"principal    ":  func(h *Hello) { h.Principal = "\xff" },
		"role":           func(h *Hello) { h.Role = "root" },
		"role ":          func(h *Hello) { h.Role = "admin" }, // of a guest
		"expires_in_ms":  func(h *Hello) { h.Terms.ExpiresInMS = -1 },
		"expires_in_ms ": func(h *Hello) { h.Terms.ExpiresInMS = maxMS + 1 },
		"max_sessions":   func(h *Hello) { h.Terms.MaxSessions = -1 },
		"max_in_flight":  func(h *Hello) { h.Terms.MaxInFlight = maxCount + 1 },
		"rate":           func(h *Hello) { h.Terms.Rate = math.Inf(1) },
		"rate ":          func(h *Hello) { h.Terms.Rate = math.NaN() },
		"credential":     func(h *Hello) { h.Credential = "a\nb" },
		"share":          func(h *Hello) { h.Share = strings.Repeat("x", maxWord+1) },
		"transport":      func(h *Hello) { h.Transport = "carrier" },
		"log_prefix":     func(h *Hello) { h.LogPrefix = strings.Repeat("x", maxLogPrefix+1) },
	} {
		h := aHello()
		change(h)
		if e, ok := errors.AsType[*HelloError](h.Check()); !ok || e.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, h.Check())
		}
	}
	if err := aHello().Check(); err != nil {
		t.Error(err)
	}
	terms := Terms{}
	for _, c := range []struct {
		at time.Time
		ok bool
	}{{time.Time{}, true}, {time.Now().Add(time.Hour), true}, {time.Now().Add(-time.Hour), false}} {
		if ok := terms.SetExpires(c.at); ok != c.ok || ok && terms.Expires().Sub(c.at).Abs() > testkit.Patience {
			t.Errorf("%v: %v, %v", c.at, ok, terms.Expires())
		}
	}
	bare := &Hello{Principal: "local", Role: "admin", Transport: "unix"}
	r := newRig(t, modes(t)[0], Limits{}, nil)
	if _, err := r.dialer.Dial(within(t), r.to, bare); err != nil || *<-r.hellos != *bare {
		t.Errorf("a bare hello: %v", err)
	}
	if _, err := r.dialer.Dial(within(t), r.to, &Hello{}); err == nil {
		t.Error("an empty hello was sent")
	}
	// An acceptor checks for itself.
	bad := aHello()
	bad.Role = "root"
	a := startAttack(t, r)
	a.say(a.opening())
	rep := reply{}
	a.hear(&rep)
	hello, _ := json.Marshal(bad)
	tr := transcript{opening: a.said, reply: rep}
	a.say(&assertion{hello, tr.proof(a.secret, "dialer", hello)})
	w := welcome{}
	a.hear(&w)
	if w.Refusal == nil || w.Refusal.Reason != "hello" || w.Refusal.Field != "role" {
		t.Errorf("a wrong role was welcomed: %+v", w.Refusal)
	}
}

// The gateway's own refusal comes to the dialer whole, and says nothing about the node.
func TestAdmission(t *testing.T) {
	r := newRig(t, modes(t)[0], Limits{}, func(_ *DialerOptions, a *AcceptorOptions) {
		a.Admit = func(_ context.Context, from Node, h *Hello) error {
			if from != gateway || h.Share != "" {
				return protocol.Errorf(protocol.ShareNotFound, "no such share link").With("share", "x")
			}
			return nil
		}
	})
	_, err := r.dialer.Dial(within(t), r.to, aHello())
	if e := testkit.WantCode(t, err, protocol.ShareNotFound); e.Details["share"] != "x" {
		t.Errorf("details %v", e.Details)
	}
	if r.dialer.Unreachable(r.to.Node) != nil {
		t.Error("a refused client makes its node unreachable")
	}
	h := aHello()
	h.Share = ""
	if _, err := r.dialer.Dial(within(t), r.to, h); err != nil {
		t.Error(err)
	}
}

// attack is a WebSocket to an acceptor that speaks what a test tells it.
type attack struct {
	t      *testing.T
	ws     *websocket.Conn
	said   opening
	r      *rig
	secret []byte
}

func startAttack(t *testing.T, r *rig) *attack {
	ws, _, err := websocket.Dial(within(t), r.to.URL+Path, &websocket.DialOptions{Subprotocols: []string{Subprotocol}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.CloseNow() })
	return &attack{t: t, ws: ws, r: r, secret: []byte(strings.Repeat("s", minSecret))}
}

func (a *attack) opening() *opening {
	a.said = opening{ours, gateway, owner, a.r.to.URL + Path, newNonce()}
	return &a.said
}

func (a *attack) say(v any) {
	a.t.Helper()
	msg, err := json.Marshal(v)
	if err == nil {
		err = a.ws.Write(within(a.t), websocket.MessageText, msg)
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *attack) hear(v any) {
	a.t.Helper()
	_, msg, err := a.ws.Read(within(a.t))
	if err == nil {
		err = json.Unmarshal(msg, v)
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// Somebody without the secret cannot make a link of what an acceptor says, nor of what an honest dialer once said.
func TestForgedAndReflectedProofs(t *testing.T) {
	r := newRig(t, modes(t)[0], Limits{}, nil)
	hello, _ := json.Marshal(aHello())
	for name, proof := range map[string]func(rep reply) []byte{
		"none":      func(reply) []byte { return nil },
		"made up":   func(reply) []byte { return make([]byte, 32) },
		"reflected": func(rep reply) []byte { return rep.Proof },
	} {
		t.Run(name, func(t *testing.T) {
			a := startAttack(t, r)
			a.say(a.opening())
			rep := reply{}
			a.hear(&rep)
			a.say(&assertion{hello, proof(rep)})
			w := welcome{}
			a.hear(&w)
			if w.Refusal == nil || w.Refusal.Reason != "secret" {
				t.Errorf("welcome: %+v", w.Refusal)
			}
		})
	}
	r.refused.wait(t, is(ErrSecret))
	select {
	case h := <-r.hellos:
		t.Errorf("%+v was served", h)
	default:
	}
}

// middle is somebody between a dialer and an acceptor, who may change what passes. It serves TLS with a certificate of its own if the acceptor does.
type middle struct {
	url  string
	edit func(n int, msg map[string]any) // message n of the handshake, from 0
	said [][]byte                        // the messages of the last handshake
	mu   sync.Mutex
}

func newMiddle(t *testing.T, scheme string, to func() string) *middle {
	m := &middle{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		down, err := websocket.Accept(w, q, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}})
		if err != nil {
			return
		}
		defer down.CloseNow()
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		up, _, err := websocket.Dial(ctx, scheme+"://"+to()+Path, &websocket.DialOptions{Subprotocols: []string{Subprotocol}, HTTPClient: &http.Client{Transport: transport}})
		if err != nil {
			return
		}
		defer up.CloseNow()
		for n := range 4 {
			from, into := down, up
			if n%2 == 1 {
				from, into = up, down
			}
			_, msg, err := from.Read(ctx)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.said = append(m.said[:n], bytes.Clone(msg))
			edit := m.edit
			m.mu.Unlock()
			if edit != nil {
				all := map[string]any{}
				_ = json.Unmarshal(msg, &all)
				edit(n, all)
				msg, _ = json.Marshal(all)
			}
			if into.Write(ctx, websocket.MessageText, msg) != nil {
				return
			}
		}
	}))
	if scheme == "wss" {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	m.url = scheme + "://" + s.Listener.Addr().String() + Path
	return m
}

// rigWithMiddle is a rig whose acceptor has the URL of somebody in between, who is on the way.
func rigWithMiddle(t *testing.T, m mode) (*rig, *middle) {
	addr := ""
	mid := newMiddle(t, m.scheme, func() string { return addr })
	r := newRig(t, m, Limits{}, func(_ *DialerOptions, a *AcceptorOptions) { a.URL = mid.url })
	addr = r.proxy.addr
	return r, mid
}

func TestNobodyInBetweenCanChangeAHandshake(t *testing.T) {
	r, mid := rigWithMiddle(t, modes(t)[0])
	if _, err := r.dialer.Dial(within(t), r.to, aHello()); err != nil {
		t.Fatalf("unchanged: %v", err)
	}
	set := func(want int, field string, value any) func(int, map[string]any) {
		return func(n int, msg map[string]any) {
			if n != want {
				return
			}
			at := msg
			names := strings.Split(field, ".")
			for _, name := range names[:len(names)-1] {
				at = at[name].(map[string]any)
			}
			at[names[len(names)-1]] = value
		}
	}
	for name, c := range map[string]struct {
		edit func(int, map[string]any)
		want func(error) bool
	}{
		"who dials":        {set(0, "from.name", "n3"), is(ErrSecret)},
		"which epoch":      {set(0, "from.epoch", "epochxxx"), is(ErrSecret)},
		"dialer's version": {set(0, "versions.max", 2), is(ErrSecret)},
		"dialer's nonce":   {set(0, "nonce", bytes.Repeat([]byte{1}, 32)), is(ErrSecret)},
		"owner's epoch":    {set(1, "from.epoch", "epochxxx"), is(ErrSecret)},
		"owner's name":     {set(1, "from.name", "n3"), is(ErrSecret)},
		"owner's version":  {set(1, "versions.max", 2), is(ErrSecret)},
		"owner's nonce":    {set(1, "nonce", bytes.Repeat([]byte{1}, 32)), is(ErrSecret)},
		"a refusal":        {set(1, "refusal", map[string]any{"reason": "epoch"}), is(ErrSecret)},
		"no proof":         {set(1, "proof", nil), is(ErrSecret)},
		"the principal":    {set(2, "hello.principal", "mallory"), is(ErrSecret)},
		"the role":         {set(2, "hello.role", "viewer"), is(ErrSecret)},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := NewDialer(context.Background(), r.dialer.o) // one that remembers nothing
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			mid.mu.Lock()
			mid.edit = c.edit
			mid.mu.Unlock()
			if _, err := d.Dial(within(t), r.to, aHello()); !c.want(err) {
				t.Errorf("the dialer got %v", err)
			}
		})
	}
}

// What a dialer said in one handshake is worth nothing in another one, and neither is what an acceptor said.
func TestReplaysAreRefused(t *testing.T) {
	r, mid := rigWithMiddle(t, modes(t)[0])
	if _, err := r.dialer.Dial(within(t), r.to, aHello()); err != nil {
		t.Fatal(err)
	}
	<-r.hellos
	testkit.Eventually(t, "the handshake is recorded", func() bool { mid.mu.Lock(); defer mid.mu.Unlock(); return len(mid.said) == 4 })
	said := mid.said
	ws, _, err := websocket.Dial(within(t), "ws://"+r.proxy.addr+Path, &websocket.DialOptions{Subprotocols: []string{Subprotocol}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	a := &attack{t: t, ws: ws, r: r}
	a.sayRaw(said[0])
	a.hear(&reply{})
	a.sayRaw(said[2])
	w := welcome{}
	if a.hear(&w); w.Refusal == nil || w.Refusal.Reason != "secret" {
		t.Errorf("a replayed dialer was welcomed: %+v", w.Refusal)
	}
	r.refused.wait(t, is(ErrSecret))

	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		ws, err := websocket.Accept(w, q, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}})
		if err != nil {
			return
		}
		defer ws.CloseNow()
		_, _, _ = ws.Read(q.Context())
		_ = ws.Write(q.Context(), websocket.MessageText, said[1])
		_, _, _ = ws.Read(q.Context())
	}))
	defer fake.Close()
	r.to.URL = "ws://" + fake.Listener.Addr().String()
	d, err := NewDialer(context.Background(), r.dialer.o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Dial(within(t), r.to, aHello()); !errors.Is(err, ErrSecret) {
		t.Errorf("a replayed acceptor: %v", err)
	}
}

func (a *attack) sayRaw(msg []byte) {
	a.t.Helper()
	if err := a.ws.Write(within(a.t), websocket.MessageText, msg); err != nil {
		a.t.Fatal(err)
	}
}

// A node that gets a dialer to dial it cannot pass the handshake on to the node that the dialer wants.
func TestAHandshakeCannotBePassedOn(t *testing.T) {
	for _, m := range modes(t)[:2] {
		t.Run(m.name, func(t *testing.T) {
			r := newRig(t, m, Limits{}, nil)
			mid := newMiddle(t, m.scheme, func() string { return r.proxy.addr })
			right := r.to.URL + Path
			r.to.URL = mid.url
			_, err := r.dialer.Dial(within(t), r.to, aHello())
			if m.scheme == "ws" && !errors.Is(err, ErrURL) || m.scheme == "wss" && !errors.Is(err, ErrSecret) {
				t.Errorf("the dialer got %v", err)
			}
			r.refused.wait(t, is(ErrURL))
			mid.mu.Lock()
			mid.edit = func(n int, msg map[string]any) {
				if n == 0 {
					msg["url"] = right
				}
			}
			mid.mu.Unlock()
			d, err := NewDialer(context.Background(), r.dialer.o)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if _, err := d.Dial(within(t), r.to, aHello()); !errors.Is(err, ErrSecret) {
				t.Errorf("with a changed URL the dialer got %v", err)
			}
			// The dialer's own acceptor is no help either.
			mid.mu.Lock()
			mid.edit = nil
			mid.mu.Unlock()
			own := r.dialer.o
			own.Self = owner
			self, err := NewDialer(context.Background(), own)
			if err != nil {
				t.Fatal(err)
			}
			defer self.Close()
			r.to.Node = Node{"n3", "epochthr"}
			if _, err := self.Dial(within(t), r.to, aHello()); err == nil {
				t.Error("a node made a link to itself")
			}
			r.refused.wait(t, is(ErrSelf))
		})
	}
}

// With a secret and no CA, TLS encrypts, and the proofs say that it is the acceptor's TLS.
func TestTLSOfAnotherIsNoticed(t *testing.T) {
	r, _ := rigWithMiddle(t, modes(t)[1])
	if _, err := r.dialer.Dial(within(t), r.to, aHello()); !errors.Is(err, ErrSecret) {
		t.Errorf("the dialer got %v", err)
	}
}

func TestPlainLinksStayOnTheMachine(t *testing.T) {
	cred := credentials(t, Files{Secret: secretFile(t, strings.Repeat("s", minSecret))})
	certs := credentials(t, newCA(t).issue(t, gateway.Name))
	o := DialerOptions{Self: gateway, Credentials: cred}
	for _, c := range []struct {
		url      string
		cred     *Credentials
		insecure bool
		refused  bool
	}{
		{"ws://192.0.2.1:1", cred, false, true}, {"ws://node.example:1", cred, false, true}, {"ws://127.0.0.1:1", cred, false, false}, {"ws://[::1]:1", cred, false, false},
		{"ws://localhost:1", cred, false, false}, {"ws://127.0.0.1:1", certs, false, true}, {"ws://127.0.0.1:1", certs, true, true},
	} {
		o.Credentials, o.Insecure = c.cred, c.insecure
		d, err := NewDialer(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Dial(within(t), Peer{owner, c.url}, aHello()); errors.Is(err, ErrInsecure) != c.refused || err == nil {
			t.Errorf("%s: %v", c.url, err)
		}
		d.Close()
	}
	for _, insecure := range []bool{false, true} {
		a, err := NewAcceptor(AcceptorOptions{Self: owner, URL: "ws://node.example:1", Credentials: cred, Insecure: insecure})
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "0.0.0.0:0") // refused before anybody can connect, or stopped at once
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := a.Serve(ctx, l); errors.Is(err, ErrInsecure) == insecure {
			t.Errorf("insecure %v: %v", insecure, err)
		}
	}
	if _, err := NewAcceptor(AcceptorOptions{Self: owner, URL: "ws://127.0.0.1:1", Credentials: certs}); !errors.Is(err, ErrInsecure) {
		t.Errorf("certificates without TLS: %v", err)
	}
	for _, bad := range []string{"", "http://x:1", "wss://x", "wss://:1", "wss://u:p@x:1", "wss://x:1/other", "wss://x:1?q", "wss://x:1#f", "wss://x:1/" + strings.Repeat("x", maxURL)} {
		if _, err := canonicalURL(bad); err == nil {
			t.Errorf("%q is a link URL", bad)
		}
	}
}

func TestCanonicalURL(t *testing.T) {
	for _, s := range []string{"wss://Node.Example:7682", "wss://node.example:7682/", "wss://node.example:7682/v1/link"} {
		if u, err := canonicalURL(s); err != nil || u.String() != "wss://node.example:7682/v1/link" {
			t.Errorf("%s: %v, %v", s, u, err)
		}
	}
}
