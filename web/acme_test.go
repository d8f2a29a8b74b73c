package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/web/listen"
)

// authority is an ACME server (RFC 8555). It signs for a client that passes tls-alpn-01 (RFC 8737) at one address. It does not check signatures,
// because the tests are about our side.
type authority struct {
	t    *testing.T
	http *httptest.Server
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	at   string // where names lead

	mu     sync.Mutex
	thumb  string // of the account's key; guarded by mu
	domain string // of the latest order; guarded by mu
	status string // of that; guarded by mu
	chain  []byte // for it; guarded by mu
	orders int    // guarded by mu
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.http = httptest.NewServer(a)
	t.Cleanup(a.http.Close)
	return a
}

func (a *authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var jws struct{ Protected, Payload string }
	json.NewDecoder(r.Body).Decode(&jws)
	payload, _ := base64.RawURLEncoding.DecodeString(jws.Payload)
	w.Header().Set("Replay-Nonce", rand.Text())
	url := func(path string) string { return a.http.URL + path }
	order := func() any {
		return map[string]any{"status": a.status, "authorizations": []string{url("/authz")}, "finalize": url("/finalize"), "certificate": url("/cert"),
			"identifiers": []any{map[string]string{"type": "dns", "value": a.domain}}}
	}
	challenge := func() any {
		return map[string]string{"type": "tls-alpn-01", "url": url("/look"), "token": "a-token", "status": a.status}
	}
	say := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(v)
	}
	switch r.URL.Path {
	case "/directory":
		say(200, map[string]string{"newNonce": url("/nonce"), "newAccount": url("/account"), "newOrder": url("/order")})
	case "/nonce":
	case "/account":
		var head struct{ JWK struct{ Crv, X, Y string } }
		text, _ := base64.RawURLEncoding.DecodeString(jws.Protected)
		json.Unmarshal(text, &head)
		sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":%q,"kty":"EC","x":%q,"y":%q}`, head.JWK.Crv, head.JWK.X, head.JWK.Y)) // RFC 7638
		a.thumb = base64.RawURLEncoding.EncodeToString(sum[:])
		w.Header().Set("Location", url("/account/1"))
		say(201, map[string]string{"status": "valid"})
	case "/order":
		var asked struct{ Identifiers []struct{ Value string } }
		json.Unmarshal(payload, &asked)
		a.orders++
		a.domain, a.status = asked.Identifiers[0].Value, "pending"
		w.Header().Set("Location", url("/order/1"))
		say(201, order())
	case "/order/1":
		say(200, order())
	case "/authz":
		status := "pending"
		if a.status != "pending" {
			status = "valid"
		}
		say(200, map[string]any{"status": status, "identifier": map[string]string{"type": "dns", "value": a.domain}, "challenges": []any{challenge()}})
	case "/look":
		if err := a.look(); err != nil {
			a.t.Errorf("the authority's challenge failed: %v", err)
			a.status = "invalid"
		} else {
			a.status = "ready"
		}
		say(200, challenge())
	case "/finalize":
		var asked struct{ CSR string }
		json.Unmarshal(payload, &asked)
		der, _ := base64.RawURLEncoding.DecodeString(asked.CSR)
		if csr, err := x509.ParseCertificateRequest(der); err == nil && a.status == "ready" {
			leaf := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: csr.DNSNames, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
				KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
			signed, _ := x509.CreateCertificate(rand.Reader, leaf, a.cert, csr.PublicKey, a.key)
			a.chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
			a.status = "valid"
		}
		w.Header().Set("Location", url("/order/1"))
		say(200, order())
	case "/cert":
		w.Write(a.chain)
	default:
		http.NotFound(w, r)
	}
}

// look does the challenge: a TLS handshake that must show a certificate with the hash of token and account.
func (a *authority) look() error {
	c, err := tls.Dial("tcp", a.at, &tls.Config{ServerName: a.domain, NextProtos: []string{"acme-tls/1"}, InsecureSkipVerify: true})
	if err != nil {
		return err
	}
	defer c.Close()
	leaf := c.ConnectionState().PeerCertificates[0]
	sum := sha256.Sum256([]byte("a-token." + a.thumb))
	want, _ := asn1.Marshal(sum[:])
	for _, e := range leaf.Extensions {
		if e.Id.Equal(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}) && e.Critical && string(e.Value) == string(want) && leaf.VerifyHostname(a.domain) == nil {
			return nil
		}
	}
	return fmt.Errorf("%s shows no answer", a.domain)
}

// TestCertificatesByACME: a server without a certificate gets one from an authority, uses it and keeps it for the next server. It requests none for
// names that are not its own.
func TestCertificatesByACME(t *testing.T) {
	a := newAuthority(t)
	dir := filepath.Join(t.TempDir(), "acme")
	tr := http.DefaultTransport.(*http.Transport).Clone()
	defer tr.CloseIdleConnections()
	serve := func() *server {
		g := start(t, withTokens, func(c *Config) {
			c.ACME = listen.ACME{Domains: []string{"trl.test"}, Directory: a.http.URL + "/directory", Dir: dir, Client: &http.Client{Transport: tr}}
		})
		a.at = g.Addr()
		return g
	}
	g := serve()
	if want := "https://" + g.Addr(); g.URL() != want {
		t.Errorf("%s, want %s", g.URL(), want)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	ask := func(g *server, name string) error {
		c, err := tls.Dial("tcp", g.Addr(), &tls.Config{ServerName: name, RootCAs: roots})
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := ask(g, "evil.test"); err == nil {
		t.Error("the server showed a certificate for another name")
	}
	if a.orders != 0 {
		t.Errorf("%d orders", a.orders)
	}
	testkit.Eventually(t, "a certificate", func() bool { return ask(g, "trl.test") == nil }) // the first who comes may be gone before it is there
	client := &http.Transport{TLSClientConfig: &tls.Config{ServerName: "trl.test", RootCAs: roots}}
	defer client.CloseIdleConnections()
	ws, resp, err := websocket.Dial(t.Context(), "wss://"+g.Addr()+"/v1/ws", &websocket.DialOptions{HTTPClient: &http.Client{Transport: client}, Host: "trl.test",
		HTTPHeader: http.Header{"Authorization": {"Bearer " + gateway.UserToken}, "Origin": {"https://trl.test"}}})
	if err != nil {
		t.Fatalf("%v %v", resp, err)
	}
	ws.CloseNow()
	if a.orders != 1 {
		t.Errorf("%d orders", a.orders)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%v: %v", info, err)
		}
	}
	g.stop()
	if err := ask(serve(), "trl.test"); err != nil || a.orders != 1 {
		t.Errorf("the next server: %v, %d orders", err, a.orders)
	}
}

// TestACMEFailureIsTold: the log reports a failing authority once and not for every handshake. It does not report requests of strangers for other
// names.
func TestACMEFailureIsTold(t *testing.T) {
	none := httptest.NewServer(http.NotFoundHandler())
	defer none.Close()
	tr := http.DefaultTransport.(*http.Transport).Clone()
	defer tr.CloseIdleConnections()
	g := start(t, withTokens, func(c *Config) {
		c.ACME = listen.ACME{Domains: []string{"trl.test"}, Directory: none.URL, Dir: t.TempDir(), Client: &http.Client{Transport: tr}}
	})
	for _, name := range []string{"evil.test", "trl.test", "trl.test", "trl.test"} {
		if c, err := tls.Dial("tcp", g.Addr(), &tls.Config{ServerName: name, InsecureSkipVerify: true}); err == nil {
			c.Close()
			t.Errorf("%s: the server showed a certificate", name)
		}
	}
	testkit.Eventually(t, "the log says so", func() bool { return strings.Contains(g.Log.String(), "no certificate by ACME") })
	told := 0
	for line := range strings.Lines(g.Log.String()) {
		if strings.Contains(line, "no certificate by ACME") {
			told++
			if !strings.Contains(line, `"domain":"trl.test"`) {
				t.Error(line)
			}
		}
	}
	if told != 1 {
		t.Errorf("the log reports the failure %d times, want once", told)
	}
}
