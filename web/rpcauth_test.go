package web

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/issuer"
	"trl/web/auth"
)

// cutOff reads to the end of a response and reports whether the client sees that more should come.
func (f *following) cutOff() bool {
	f.t.Helper()
	for {
		if _, err := f.next(); err != nil {
			return err != io.EOF
		}
	}
}

// over returns the same client with another TLS configuration, and connections of its own.
func (c *rpcClient) over(config *tls.Config) *rpcClient {
	q := *c
	tr := &http.Transport{TLSClientConfig: config}
	c.t.Cleanup(tr.CloseIdleConnections)
	q.http = &http.Client{Transport: tr}
	return &q
}

// TestRPCOverTLS: who a client is comes from its token or its certificate; answers, streams and connections are as without TLS.
func TestRPCOverTLS(t *testing.T) {
	ours, others := newCertIssuer(t), newCertIssuer(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key, "server")
	g := start(t, withTokens, func(c *Config) {
		c.TLSCert, c.TLSKey = cert, key
		c.ClientCerts = &auth.ClientCertsConfig{CAFile: ours.file, Roles: map[string]auth.Role{"eve": auth.Viewer}, DefaultRole: auth.User}
	})
	with := func(token string, certs ...tls.Certificate) *rpcClient {
		return g.rpc(token).over(&tls.Config{InsecureSkipVerify: true, Certificates: certs})
	}
	named := func(a *certIssuer, name string) tls.Certificate {
		return a.issue(t, func(c *x509.Certificate) { c.Subject.CommonName = name })
	}
	kim := named(ours, "kim")
	for what, c := range map[string]*rpcClient{"a token": with(gateway.UserToken), "a certificate": with("", kim)} {
		session := c.call("session.create", nil).Str("session_id")
		f, _ := c.follow("exec.stream", object{"session_id": session, "command": "seq 100000"})
		if got, last := f.rest(); len(got) != 588_895 || last.Event != "exec.exit" {
			t.Errorf("%s: %d bytes, the last event is %v", what, len(got), last)
		}
		dials := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			if !i.Reused {
				dials++
			}
		}})
		for range 3 {
			resp, err := c.post(ctx, rpcRequest("exec.run", object{"session_id": session, "command": "pwd"}))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Errorf("%s: %s", what, resp.Status)
			}
		}
		if dials > 1 {
			t.Errorf("%s: %d connections", what, dials)
		}
	}
	eve, nobody := with("", named(ours, "eve")), with("", named(ours, ""))
	if who := eve.call("system.capabilities", nil).Obj("principal"); who.Str("subject") != "cert:eve" || who.Str("role") != "viewer" {
		t.Errorf("%v", who)
	}
	for what, c := range map[string]struct {
		who    *rpcClient
		method string
		status int
	}{
		"a viewer runs a command":              {eve, "exec.run", 403},
		"a viewer lists":                       {eve, "session.list", 200},
		"no credential":                        {with(""), "session.list", 401},
		"a certificate without a name":         {nobody, "session.list", 401},
		"a certificate beside a wrong token":   {with("wrong", kim), "session.list", 401},
		"a certificate beside another's token": {with(gateway.UserToken, kim), "session.list", 200},
	} {
		var params object
		if c.method == "exec.run" {
			params = object{"command": "pwd"}
		}
		if status, f := c.who.try(c.method, params); status != c.status {
			t.Errorf("%s: %d %s", what, status, f.Raw)
		}
	}
	if _, err := with("", named(others, "kim")).post(t.Context(), `{"method":"system.ping"}`); err == nil {
		t.Error("a certificate of another authority is accepted")
	}
}

// TestRPCReaderThatStopsOverTLS: a client that reads nothing is ended below TLS, too.
func TestRPCReaderThatStopsOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key, "server")
	g := start(t, withTokens, func(c *Config) { c.TLSCert, c.TLSKey, c.SlowClient = cert, key, time.Second })
	c := g.rpc(gateway.UserToken).over(&tls.Config{InsecureSkipVerify: true})
	f, opened := c.follow("exec.stream", object{"command": "head -c 20000000 /dev/zero | tr '\\0' x"})
	testkit.Eventually(t, "the response ends", func() bool { return g.Series("trl_connections_closed_total", "slow") == 1 })
	if got := c.call("exec.wait", object{"exec_id": opened.Str("exec_id")}); got.Num("exit_code") != 0 {
		t.Errorf("the command: %v", got)
	}
	if !f.cutOff() {
		t.Error("the response looks complete")
	}
}

// TestRPCWithJWT: the claims say who it is. When the JWT expires, a response that is followed is cut off and a request that waits is answered.
func TestRPCWithJWT(t *testing.T) {
	i := issuer.New(t)
	j, err := auth.OpenJWT(auth.JWTConfig{JWKS: i.URL + "/keys", Issuer: i.URL, Audience: "trl", Role: auth.RoleRule{DefaultRole: auth.User}}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, withTokens, func(c *Config) { c.JWT = j })
	long := g.rpc(i.Sign(nil))
	viewer := g.rpc(i.Sign(func(c issuer.Claims) { c["trl_role"] = "viewer" }))
	if status, f := viewer.try("exec.run", object{"command": "pwd"}); status != 403 {
		t.Errorf("a viewer: %d %s", status, f.Raw)
	}
	for _, name := range []string{"one", "two"} {
		long.call("session.create", object{"name": name})
	}
	for life := 3 * time.Second; ; life *= 2 { // on a busy machine it may be over before both requests have come
		if life > patience {
			t.Fatal("the JWT is over too early")
		}
		// A leeway in the past: it is let in, and over before long.
		short := g.rpc(i.Sign(func(c issuer.Claims) { c["exp"] = time.Now().Add(-5*time.Second + life).Unix() }))
		f, opened, status := short.tryFollow("exec.stream", object{"session": "one", "command": "echo begun; sleep 1000"})
		if status == 401 {
			continue
		} else if f == nil {
			t.Fatal(status)
		}
		waiting := make(chan string, 1)
		go func() {
			status, a := short.try("exec.run", object{"session": "two", "command": "sleep 1000"})
			waiting <- fmt.Sprint(status, " ", a.Code(), " ", a.Error.Details.Str("exec_id"))
		}()
		if !f.cutOff() {
			t.Error("the response looks complete")
		}
		got := <-waiting
		commands := []string{opened.Str("exec_id")}
		if exec, waited := strings.CutPrefix(got, "401 AUTH_FAILED x-"); waited {
			commands = append(commands, "x-"+exec)
		} else if got != "401 AUTH_FAILED " {
			t.Errorf("the request that waits: %s", got)
		}
		if status, a := short.try("system.ping", nil); status != 401 {
			t.Errorf("afterwards: %d %s", status, a.Raw)
		}
		for _, id := range commands { // they go on
			if got := long.call("exec.cancel", object{"exec_id": id}); !got.Yes("cancelled") {
				t.Errorf("%s: %v", id, got)
			}
		}
		if len(commands) == 2 || t.Failed() {
			break
		}
	}
	forged := i.Sign(nil)
	forged = forged[:len(forged)-4] + "AAAA"
	if status, a := g.rpc(forged).try("system.ping", nil); status != 401 {
		t.Errorf("a wrong signature: %d %s", status, a.Raw)
	}
}

// TestRPCOfWhoWatches: a viewer and a guest follow the output of what they may see and of nothing else, until their right ends.
func TestRPCOfWhoWatches(t *testing.T) {
	path, set := withFile(t, "ann-token ann user\nsees-token ann viewer\nother-token bob viewer\n")
	g := start(t, set)
	owner, viewer, other := g.rpc("ann-token"), g.rpc("sees-token"), g.rpc("other-token")
	proceed := filepath.Join(t.TempDir(), "go")
	wait := "; until [ -e " + proceed + " ]; do sleep 0.05; done; echo two"
	shared, private := owner.call("session.create", nil).Str("session_id"), owner.call("session.create", nil).Str("session_id")
	_, opened := owner.follow("exec.stream", object{"session_id": shared, "command": "echo one" + wait})
	exec := opened.Str("exec_id")
	process := owner.call("process.start", object{"session_id": shared, "command": "echo one" + wait}).Str("process_id")
	hidden := owner.call("exec.run", object{"session_id": private, "command": "echo secret"}).Str("exec_id")
	link := owner.call("share.create", object{"session_id": shared})
	guest := g.rpc(link.Str("token"))

	attach := func(c *rpcClient) *following {
		f, _ := c.follow("exec.attach", object{"exec_id": exec})
		if ev, err := f.next(); err != nil || ev.Data.Str("data") != "one\n" {
			t.Errorf("%v %v", ev, err)
		}
		return f
	}
	stays, leaves := attach(viewer), attach(guest)
	followed, _ := viewer.follow("process.logs", object{"process_id": process, "follow": true})
	for what, c := range map[string]struct {
		who    *rpcClient
		method string
		params object
		status int
	}{
		"a viewer starts a stream":              {viewer, "exec.stream", object{"session_id": shared, "command": "pwd"}, 403},
		"a viewer cancels":                      {viewer, "exec.cancel", object{"exec_id": exec}, 403},
		"a viewer writes":                       {viewer, "process.input", object{"process_id": process, "data": "x"}, 403},
		"a viewer of another subject attaches":  {other, "exec.attach", object{"exec_id": exec}, 404},
		"a guest attaches to another session":   {guest, "exec.attach", object{"exec_id": hidden}, 404},
		"a guest starts a stream":               {guest, "exec.stream", object{"session_id": shared, "command": "pwd"}, 403},
		"a guest makes a link of his own":       {guest, "share.create", object{"session_id": shared}, 403},
		"a guest takes his link for an owner's": {guest, "session.list", object{"all": true}, 403},
	} {
		if status, f := c.who.ndjson().try(c.method, c.params); status != c.status {
			t.Errorf("%s: %d %s", what, status, f.Raw)
		}
	}
	owner.call("share.revoke", object{"share_id": link.Str("share_id")})
	if !leaves.cutOff() {
		t.Error("the guest's response looks complete")
	}
	if status, f := guest.try("session.info", object{"session_id": shared}); status != 401 {
		t.Errorf("the guest afterwards: %d %s", status, f.Raw)
	}
	// Another role ends what the token follows, as on a WebSocket.
	changed := attach(other.with("Authorization", "Bearer sees-token"))
	os.WriteFile(path+".new", []byte("ann-token ann user\nsees-token ann user\nother-token bob viewer\n"), 0o600)
	os.Rename(path+".new", path)
	if !changed.cutOff() || !stays.cutOff() || !followed.cutOff() {
		t.Error("a response that was followed as a viewer looks complete")
	}
	again := attach(viewer) // who is a user now
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, last := again.rest(); got != "two\n" || last.Event != "exec.exit" {
		t.Errorf("%q %v", got, last)
	}
}
