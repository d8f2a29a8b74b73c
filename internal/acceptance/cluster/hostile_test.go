package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/cluster/kv"
	"trl/cluster/link"
	"trl/internal/rig"
	"trl/internal/testkit"
)

const (
	tokenOfAnn  = "token-of-ann-0123456789abcdef-0123456789abcdef"
	tokenOfBob  = "token-of-bob-0123456789abcdef-0123456789abcdef"
	tokenOfRoot = "token-of-root-0123456789abcdef-0123456789abcdef"
)

// tokenFlags are those of nodes to which ann, bob and root may connect.
func tokenFlags(t *testing.T) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, fmt.Appendf(nil, "%s ann user\n%s bob user\n%s root admin\n", tokenOfAnn, tokenOfBob, tokenOfRoot), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--auth", "token", "--token-file", path}
}

// connectAs connects to a node with a token, and with more headers.
func connectAs(t *testing.T, g *rig.Server, token string, headers http.Header) *rig.Client {
	t.Helper()
	h := http.Header{"Authorization": {"Bearer " + token}}
	for name, values := range headers {
		h[name] = values
	}
	ws, err := g.Open(t, &websocket.DialOptions{HTTPHeader: h})
	if err != nil {
		t.Fatal(err)
	}
	return rig.NewClient(t, ws)
}

// A client cannot say who it is by anything but its credential, whatever it puts into messages and headers that reach a link, and its token opens none.
func TestPrincipalsCannotBeForged(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	auth := tokenFlags(t)
	gate, owner := n.start("gate", append(auth, "--no-sessions")...), n.start("owner", auth...)
	root := connectAs(t, gate, tokenOfRoot, nil)
	testkit.Eventually(t, "the gate knows the owner", func() bool { return root.Try("session.create", object{"name": "probe", "if_exists": "return"}).OK })
	bobs := connectAs(t, gate, tokenOfBob, nil).Session(object{"name": "work"})

	headers := http.Header{}
	for _, name := range []string{"Trl-Principal", "X-Trl-Principal", "Principal", "X-Forwarded-User", "Remote-User", "Trl-Role"} {
		headers.Set(name, "root")
	}
	ann := connectAs(t, gate, tokenOfAnn, headers)
	id := ann.Session(object{"name": "work"})
	if id == bobs {
		t.Fatal("ann got bob's session")
	}
	if s := connectAs(t, owner, tokenOfRoot, nil).Info(id); s.Str("owner") != "ann" || s.Str("node") != "owner" {
		t.Errorf("ann's session is %v", s)
	}
	for what, text := range map[string]string{
		"a member of the request": `{"id":%q,"method":"exec.run","params":{"session_id":%q,"command":"true"},"principal":"bob"}`,
		"a param":                 `{"id":%q,"method":"exec.run","params":{"session_id":%q,"command":"true","principal":"bob"}}`,
		"a hello":                 `{"id":%q,"principal":"bob","role":"admin","transport":"websocket","log_prefix":%q}`,
		"nothing":                 `{"id":%q,"method":"exec.run","params":{"session_id":%q,"command":"true"}}`,
	} {
		ann.SendText(fmt.Sprintf(text, what, bobs))
		if f := ann.Answer(what); f.OK || !slices.Contains([]string{"INVALID_PARAMS", "INVALID_MESSAGE", "INVALID_REQUEST", "SESSION_NOT_FOUND", "METHOD_NOT_FOUND", "UNKNOWN_METHOD"}, f.Code()) {
			t.Errorf("%s: %+v", what, f)
		}
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gate.Addr+"/v1/rpc", strings.NewReader(fmt.Sprintf(`{"method":"session.info","params":{"session_id":%q}}`, bobs)))
	if err != nil {
		t.Fatal(err)
	}
	q.Header = headers
	q.Header.Set("Authorization", "Bearer "+tokenOfAnn)
	q.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), "SESSION_NOT_FOUND") {
		t.Errorf("bob's session over HTTP: %s, %v", text, err)
	}
	rig.Expect(t, ann.Run(id, "echo hi"), 0, "hi\n", "")

	// A token is no secret of the cluster, and no header of a link.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(tokenOfRoot), 0o600); err != nil {
		t.Fatal(err)
	}
	url := linkURL(t, owner)
	c, err := dialLink(t, secret, link.Node{Name: "new", Epoch: "aaaaaaaa"}, link.Peer{Node: link.Node{Name: "owner", Epoch: root.Call("session.locate", object{"session": "probe"}).Str("epoch")}, URL: url})
	if err == nil {
		c.Drop()
		t.Error("a token opens a link")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, url+link.Path, &websocket.DialOptions{
		Subprotocols: []string{link.Subprotocol}, HTTPHeader: http.Header{"Authorization": {"Bearer " + tokenOfRoot}},
		HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if err := ws.Write(ctx, websocket.MessageText, []byte(`{"id":1,"method":"session.list"}`)); err != nil {
		t.Fatal(err)
	}
	if _, text, err := ws.Read(ctx); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("a client at the link listener: %s, %v", text, err)
	}
	for _, g := range []*rig.Server{gate, owner} {
		if ws, err := g.Open(t, &websocket.DialOptions{Subprotocols: []string{link.Subprotocol}}); err == nil {
			ws.CloseNow()
			t.Error("the listener for clients takes links")
		}
	}
}

// dialLink makes a link as a node that has a secret.
func dialLink(t *testing.T, secret string, self link.Node, to link.Peer) (*link.Conn, error) {
	t.Helper()
	creds, err := link.OpenCredentials(link.Files{Secret: secret}, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := link.NewDialer(context.Background(), link.DialerOptions{Self: self, Credentials: creds})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d.Dial(t.Context(), to, &link.Hello{Principal: "local", Role: "admin", Transport: "websocket"})
}

// Somebody who may write to NATS points a node at another address, hides it, and gives a name to another principal's session. No request goes to that
// address, nobody reads what clients send, no request reaches the wrong session, and all is well with the node's next word.
func TestHostileNATS(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	auth := tokenFlags(t)
	n.start("a", auth...)
	b := n.start("b", auth...)
	root := connectAs(t, b, tokenOfRoot, nil)
	var epoch string
	testkit.Eventually(t, "b knows a", func() bool {
		for _, node := range root.Call("system.nodes", nil).Objs("nodes") {
			if node.Str("node") == "a" && node.Num("max_sessions") > 0 {
				epoch = node.Str("epoch")
			}
		}
		return epoch != ""
	})
	ann, bob := connectAs(t, b, tokenOfAnn, nil), connectAs(t, b, tokenOfBob, nil)
	id := ann.Session(object{"node": "a", "name": "work"})
	rig.Expect(t, ann.Run(id, "WHO=ann"), 0, "", "")
	bobs := bob.Session(object{"node": "a"})
	rig.Expect(t, bob.Run(bobs, "WHO=bob"), 0, "", "")
	who := func(session object) *rig.Frame { // over a connection that has no link yet
		c := connectAs(t, b, tokenOfAnn, nil)
		defer c.Close()
		return c.Try("exec.run", rig.With(object{"command": "echo $WHO # a private command"}, session))
	}

	entries := &kv.Bucket{Name: "trl_nodes", TTL: lease, Memory: true, Conn: n.nats.Connect()}
	entry, err := entries.Latest(t.Context(), epoch)
	if err != nil {
		t.Fatal(err)
	}
	var said map[string]any
	if err := json.Unmarshal(entry.Value, &said); err != nil {
		t.Fatal(err)
	}
	trap := newTrap(t, link.Node{Name: "a", Epoch: epoch})
	said["url"] = trap.url
	pointed, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(testkit.Repeat(func() { // the node itself writes its entry every 5 s
		_, _ = entries.Put(t.Context(), epoch, pointed, 0)
		time.Sleep(50 * time.Millisecond)
	}))
	defer stop()
	testkit.Eventually(t, "the node cannot be reached any more", func() bool {
		f := who(object{"session_id": id})
		if !f.OK && f.Code() != "NODE_UNREACHABLE" {
			t.Fatalf("%+v", f.Error)
		}
		return !f.OK && trap.messages() > 0
	})
	rig.Expect(t, ann.Run(id, "echo $WHO"), 0, "ann\n", "") // links that exist go on
	stop()
	if got := trap.text(); strings.Contains(got, "ann") || strings.Contains(got, "private") || strings.Contains(got, "exec.run") {
		t.Errorf("the other address was told %q", got)
	}
	testkit.Eventually(t, "the log of b tells of it", func() bool {
		log := b.Log()
		return strings.Contains(log, "node cannot be reached") && strings.Contains(log, link.ErrSecret.Error())
	})
	works := func(session object) {
		t.Helper()
		testkit.Eventually(t, "the session works", func() bool {
			f := who(session)
			if f.OK {
				rig.Expect(t, f.Data, 0, "ann\n", "")
			}
			return f.OK
		})
	}
	works(object{"session_id": id})

	if err := entries.Drop(t.Context(), epoch, time.Second); err != nil {
		t.Fatal(err)
	}
	works(object{"session_id": id}) // after the node's next word

	names := &kv.Bucket{Name: "trl_names", TTL: 24 * time.Hour, Conn: entries.Conn}
	all, err := names.List(t.Context(), "*")
	if err != nil || len(all) != 1 || bytes.Contains(all[0].Value, []byte("work")) || bytes.Contains(all[0].Value, []byte("ann")) {
		t.Fatalf("the names in NATS: %+v, %v", all, err)
	}
	if _, err := names.Put(t.Context(), all[0].Key, fmt.Appendf(nil, `{"session":%q,"epoch":%q}`, bobs, epoch), 0); err != nil {
		t.Fatal(err)
	}
	works(object{"session": "work"}) // by its name, which leads to bob's session
}

// trap is a server that claims to be a node, without the cluster's secret.
type trap struct {
	url string

	mu    sync.Mutex
	heard []string // guarded by mu
}

func newTrap(t *testing.T, as link.Node) *trap {
	t.Helper()
	p := &trap{}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{link.Subprotocol}})
		if err != nil {
			return
		}
		defer ws.CloseNow()
		for {
			_, text, err := ws.Read(r.Context())
			if err != nil {
				return
			}
			p.mu.Lock()
			p.heard = append(p.heard, string(text))
			p.mu.Unlock()
			reply, err := json.Marshal(map[string]any{
				"versions": link.Versions{Min: 1, Max: link.Version}, "from": as, "nonce": make([]byte, 32), "proof": make([]byte, 32),
			})
			if err != nil || ws.Write(r.Context(), websocket.MessageText, reply) != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	p.url = "wss" + strings.TrimPrefix(s.URL, "https")
	return p
}

func (p *trap) messages() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.heard)
}

func (p *trap) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.heard, "\n")
}

// A node does not start with plain connections to NATS beyond loopback, or for links, unless it is told that the network encrypts itself.
func TestPlainConnectionsOfAClusterAreRefused(t *testing.T) {
	t.Parallel()
	testkit.StartsProcesses(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := func(nats, listen string, more ...string) []string {
		return append([]string{"--cluster", nats, "--cluster-listen", listen, "--cluster-secret", secret, "--node", "n"}, more...)
	}
	const beyond = "nats://192.0.2.1:4222" // of an example network; nobody answers
	for what, refused := range map[string]struct {
		flags []string
		want  []string
	}{
		"NATS":  {flags(beyond, "127.0.0.1:0"), []string{beyond + " is beyond loopback, without TLS", "--insecure when the network encrypts itself"}},
		"links": {flags("nats://127.0.0.1:4222", "0.0.0.0:0", "--cluster-advertise", "ws://127.0.0.1:1"), []string{link.ErrInsecure.Error()}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, rig.Binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--auth", "none", "--state-dir", t.TempDir()}, refused.flags...)...).CombinedOutput()
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() < 1 {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
		for _, want := range refused.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in\n%s", what, want, out)
			}
		}
	}
	g := rig.Gateway(t, flags(beyond, "127.0.0.1:0", "--insecure")...)
	c := g.Dial(t)
	rig.Expect(t, c.Run(c.Session(), "echo alone"), 0, "alone\n", "")
}
