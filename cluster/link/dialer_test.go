package link

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/testkit"
)

// knocks is a port that counts connections and closes them.
type knocks struct {
	net.Listener
	n atomic.Int64
}

func newKnocks(t *testing.T) *knocks {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &knocks{Listener: l}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.n.Add(1)
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); accepting.Wait() })
	return k
}

// A node that cannot be dialled is left alone for a while. Requests to it fail at once meanwhile.
func TestUnreachableNodesFailFast(t *testing.T) {
	r := newRig(t, modes(t)[1], Limits{}, nil)
	k := newKnocks(t)
	dead := Peer{Node{"n9", "epochnin"}, "wss://" + k.Addr().String()}
	if r.dialer.Unreachable(dead.Node) != nil {
		t.Error("unreachable before the first dial")
	}
	_, err := r.dialer.Dial(within(t), dead, aHello())
	first, ok := errors.AsType[*UnreachableError](err)
	if !ok || first.Node != dead.Node || first.RetryAfter <= 0 || first.RetryAfter > firstRetry || first.Cause == nil {
		t.Fatalf("a dead node: %v", err)
	}
	began := time.Now()
	var dials sync.WaitGroup
	for range 50 {
		dials.Go(func() {
			if _, err := r.dialer.Dial(within(t), dead, aHello()); err == nil {
				t.Error("a dead node answered")
			}
		})
	}
	dials.Wait()
	if most := 2 + int64(time.Since(began)/time.Second); k.n.Load() > most { // one, and others if all this took longer than the first pauses
		t.Errorf("%d connections within the pause", k.n.Load())
	}
	r.link() // another node is dialled all the same
}

func TestPausesGrowAndEnd(t *testing.T) {
	var told []error // by OnReach; the dials of this test come one after the other
	r := newRig(t, modes(t)[1], Limits{}, func(o *DialerOptions, _ *AcceptorOptions) {
		o.OnReach = func(to Node, cause error) {
			if to != owner {
				t.Errorf("told of %v", to)
			}
			told = append(told, cause)
		}
	})
	d := r.dialer
	n, err := d.enter(within(t), r.to.Node)
	if err != nil {
		t.Fatal(err)
	}
	d.leave(n)
	broken := errors.New("broken")
	for i, most := range []time.Duration{1, 2, 4, 8, 8, 8} {
		most *= time.Second
		err := d.note(within(t), n, r.to.Node, broken)
		gone, ok := errors.AsType[*UnreachableError](err)
		if !ok || !errors.Is(err, broken) || gone.RetryAfter > most || gone.RetryAfter < most/2-testkit.Patience/100 {
			t.Errorf("failure %d: %v, again after %v", i, err, gone.RetryAfter)
		}
		if err := d.note(within(t), n, r.to.Node, broken); err.(*UnreachableError).RetryAfter > most || n.fails != i+1 {
			t.Error("dials at the same time count as several failures")
		}
		d.mu.Lock()
		n.until = time.Now().Add(-time.Second)
		d.mu.Unlock()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fails := n.fails
	if err := d.note(ctx, n, r.to.Node, broken); !errors.Is(err, context.Canceled) || n.fails != fails {
		t.Errorf("a caller that gave up: %v", err)
	}
	r.link()
	if d.Unreachable(r.to.Node) != nil || n.fails != 0 {
		t.Error("unreachable after a link")
	}
	r.link()
	if len(told) != 2 || !errors.Is(told[0], broken) || told[1] != nil {
		t.Errorf("told %v: want one failure, and that the node can be reached again", told)
	}
}

func TestRetriesUntilTheNodeIsBack(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	m := modes(t)[1]
	back := newRig(t, m, Limits{}, nil)
	back.proxy.l.Close() // the port is closed
	time.AfterFunc(300*time.Millisecond, func() {
		l, err := net.Listen("tcp", back.proxy.addr)
		if err != nil {
			t.Error(err)
			return
		}
		back.proxy.tasks.Go(func() { // one connection passes
			defer l.Close()
			if c, err := l.Accept(); err == nil {
				back.proxy.pass(c)
			}
		})
	})
	if _, err := back.dialer.DialRetry(within(t), back.to, aHello()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	dead := Peer{Node{"n9", "epochnin"}, "wss://" + newKnocks(t).Addr().String()}
	if _, err := back.dialer.DialRetry(ctx, dead, aHello()); err == nil {
		t.Error("a dead node answered")
	}
}

// Connecting is bounded in time at both ends, wherever it stops.
func TestHandshakesAreBounded(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	r := newRig(t, modes(t)[1], Limits{Handshake: 500 * time.Millisecond}, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // never accepts: the kernel connects
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, err = r.dialer.Dial(within(t), Peer{owner, "wss://" + silent.Addr().String()}, aHello())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent node: %v", err)
	}
	for _, say := range []string{"", "GET /v1/link HTTP/1.1\r\n"} {
		c, err := net.Dial("tcp", r.proxy.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte(say))
		_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a stranger may stay")
		}
	}
	slow := newRig(t, modes(t)[0], Limits{Handshake: 500 * time.Millisecond}, nil)
	var ws *websocket.Conn
	testkit.Eventually(t, "an upgrade in time", func() bool {
		ws, _, err = websocket.Dial(within(t), slow.to.URL+Path, &websocket.DialOptions{Subprotocols: []string{Subprotocol}})
		return err == nil
	})
	defer ws.CloseNow()
	if _, _, err := ws.Read(within(t)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("somebody who says nothing after the upgrade: %v", err)
	}
}

// Strangers that hold connections open keep no node out.
func TestStrangersAreBounded(t *testing.T) {
	testkit.TakesLong(t)
	r := newRig(t, modes(t)[1], Limits{}, nil)
	before := openFiles(t)
	var held []net.Conn
	for range maxStrangers + 20 {
		c, err := net.Dial("tcp", r.proxy.to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	r.link()
	testkit.Eventually(t, "the oldest strangers are closed", func() bool { return openFiles(t) <= before+len(held)+maxStrangers+10 })
	_ = held[0].SetReadDeadline(time.Now().Add(testkit.Patience))
	if _, err := held[0].Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest stranger is still there")
	}
}

// Only a link's upgrade gets an answer, and a handshake has a bounded size.
func TestOnlyLinksAreServed(t *testing.T) {
	r := newRig(t, modes(t)[0], Limits{}, nil)
	for _, c := range []struct {
		path   string
		header http.Header
		status int
	}{
		{"/", nil, 404}, {Path + "?x", nil, 404}, {"/v1/ws", nil, 404}, {Path, nil, 400}, {Path, http.Header{"Sec-Websocket-Protocol": {"trl.v1"}}, 400},
		{Path, http.Header{"Sec-Websocket-Protocol": {Subprotocol}, "Origin": {"http://" + r.proxy.addr}}, 403}, {Path, http.Header{"Sec-Websocket-Protocol": {Subprotocol}}, 426},
	} {
		q, _ := http.NewRequestWithContext(within(t), "GET", "http://"+r.proxy.addr+c.path, nil)
		if c.header != nil {
			q.Header = c.header
		}
		got, err := new(http.Transport).RoundTrip(q)
		if err != nil || got.StatusCode != c.status {
			t.Errorf("%s %v: %v, %v", c.path, c.header, got, err)
			continue
		}
		got.Body.Close()
	}
	for name, msg := range map[string][]byte{
		"no JSON": []byte("hello"), "a list": []byte("[]"), "nothing": []byte("{}"), "too long": []byte(`{"url":"` + strings.Repeat("x", maxHandshake) + `"}`),
		"a short nonce": []byte(`{"versions":{"min":1,"max":1},"from":{"name":"a","epoch":"b"},"want":{"name":"a","epoch":"b"},"url":"ws://x","nonce":"YQ=="}`),
		"two words":     []byte(`{"versions":{"min":1,"max":1},"from":{"name":"a b","epoch":"b"},"want":{"name":"a","epoch":"b"},"url":"ws://x","nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`),
	} {
		a := startAttack(t, r)
		a.sayRaw(msg)
		if _, _, err := a.ws.Read(within(t)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := startAttack(t, r)
	if err := a.ws.Write(within(t), websocket.MessageBinary, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.ws.Read(within(t)); err == nil {
		t.Error("a binary handshake is answered")
	}
}

func TestSecretFiles(t *testing.T) {
	good := strings.Repeat("x", minSecret)
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		ok   bool
	}{
		"long enough": {good, 0o600, true}, "read-only": {good, 0o400, true}, "too short": {good[1:], 0o600, false}, "short with lines": {good[1:] + "\n\n", 0o600, false},
		"for the group": {good, 0o640, false}, "for all": {good, 0o644, false}, "writable for all": {good, 0o602, false}, "empty": {"", 0o600, false},
	} {
		path := secretFile(t, c.text)
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCredentials(Files{Secret: path}, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, f := range map[string]Files{"nothing": {}, "no such file": {Secret: t.TempDir() + "/none"}, "a directory": {Secret: t.TempDir()}, "half": {CA: "a", Cert: "b"}, "no such CA": {CA: "/none", Cert: "/none", Key: "/none"}} {
		if _, err := OpenCredentials(f, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	path := secretFile(t, good+" \r\n")
	if c := credentials(t, Files{Secret: path}); string(c.key()) != good {
		t.Errorf("the secret is %q", c.key())
	}
}

// Changed files are in force for the next link. Files that cannot be used change nothing and are reported.
func TestCredentialsAreReadAgain(t *testing.T) {
	secret, ca, next := secretFile(t, strings.Repeat("a", minSecret)), newCA(t), newCA(t)
	files := map[Node]Files{gateway: ca.issue(t, gateway.Name), owner: ca.issue(t, owner.Name)}
	var warned atomic.Int64
	m := mode{"", "wss", func(t testing.TB, n Node) *Credentials {
		f := files[n]
		f.Secret = secret
		c, err := OpenCredentials(f, func(error) { warned.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}}
	r := newRig(t, m, Limits{}, nil)
	old, _ := r.link()
	next.write(t, files[owner], time.Hour, owner.Name)
	d := func() *Dialer { // one that remembers nothing
		d, err := NewDialer(context.Background(), r.dialer.o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		return d
	}
	if _, err := d().Dial(within(t), r.to, aHello()); !errors.Is(err, ErrUntrusted) {
		t.Errorf("the owner has changed its CA: %v", err)
	}
	next.write(t, files[gateway], time.Hour, gateway.Name)
	if _, err := d().Dial(within(t), r.to, aHello()); err != nil {
		t.Errorf("both have changed: %v", err)
	}
	if err := os.WriteFile(secret, []byte(strings.Repeat("b", minSecret)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d().Dial(within(t), r.to, aHello()); err != nil {
		t.Errorf("another secret at both: %v", err)
	}
	if warned.Load() != 0 {
		t.Errorf("%d warnings about good files", warned.Load())
	}
	if err := errors.Join(os.Remove(files[owner].Cert), os.WriteFile(secret, []byte("short"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d().Dial(within(t), r.to, aHello()); err != nil || warned.Load() == 0 {
		t.Errorf("bad files: %v, %d warnings", err, warned.Load())
	}
	if err := old.Send(Text, []byte("x")); err != nil {
		t.Errorf("a link from before: %v", err)
	}
}
