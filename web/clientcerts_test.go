package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/issuer"
	"trl/web/auth"
)

// certIssuer issues certificates.
type certIssuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newCertIssuer(t *testing.T) *certIssuer {
	t.Helper()
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	return &certIssuer{cert, key, issuer.PEMFile(t, "CERTIFICATE", der)}
}

func (a *certIssuer) issue(t *testing.T, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	change(c)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestClientCertificates(t *testing.T) {
	ours, others := newCertIssuer(t), newCertIssuer(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key, "server")
	named := func(name string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.Subject.CommonName = name }
	}
	for _, require := range []bool{false, true} {
		g := start(t, withTokens, func(c *Config) {
			c.TLSCert, c.TLSKey = cert, key
			c.ClientCerts = &auth.ClientCertsConfig{CAFile: ours.file, Require: require, Roles: map[string]auth.Role{"ann": auth.Viewer}, DefaultRole: auth.User}
		})
		ask := func(with *tls.Certificate, token string) (int, error) {
			c := &tls.Config{InsecureSkipVerify: true}
			if with != nil {
				c.Certificates = []tls.Certificate{*with}
				c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return with, nil } // whether they want it or not
			}
			b := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
			r, _ := http.NewRequest("GET", g.URL()+"/metrics", nil)
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := b.Do(r)
			if err != nil {
				return 0, err
			}
			resp.Body.Close()
			return resp.StatusCode, nil
		}
		ann, bob, foreign, nobody := ours.issue(t, named("ann")), ours.issue(t, named("bob")), others.issue(t, named("ann")), ours.issue(t, named(""))
		old := ours.issue(t, func(c *x509.Certificate) { c.Subject.CommonName, c.NotAfter = "ann", time.Now().Add(-time.Minute) })
		wrongUse := ours.issue(t, func(c *x509.Certificate) {
			c.Subject.CommonName, c.ExtKeyUsage = "ann", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		})
		for what, c := range map[string]struct {
			cert   *tls.Certificate
			token  string
			status int
		}{
			"ann": {&ann, "", 200}, "bob": {&bob, "", 200}, "without a name": {&nobody, "", 401}, "a wrong token beside it": {&ann, "wrong", 401},
			"of another CA": {&foreign, "", 0}, "expired": {&old, "", 0}, "a server's": {&wrongUse, "", 0}, "none, with a token": {nil, gateway.UserToken, 200}, "none": {nil, "", 401},
		} {
			want := c.status
			if require && c.cert == nil {
				want = 0
			}
			if got, err := ask(c.cert, c.token); got != want {
				t.Errorf("require %v, %s: %d, %v", require, what, got, err)
			}
		}
		// Another CA is in force at once.
		before, _ := os.ReadFile(ours.file)
		text, _ := os.ReadFile(others.file)
		os.WriteFile(ours.file+".new", text, 0o600)
		os.Rename(ours.file+".new", ours.file)
		testkit.Eventually(t, "the new CA", func() bool {
			a, _ := ask(&foreign, "")
			b, _ := ask(&ann, "")
			return a == 200 && b == 0
		})
		os.WriteFile(ours.file, before, 0o600)
	}
}
