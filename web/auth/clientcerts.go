package auth

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"trl/web/filewatch"

	"github.com/rs/zerolog"
)

// ClientCertsConfig says whose certificates let clients in.
type ClientCertsConfig struct {
	CAFile      string // of those who issue them, PEM; read again when it changes
	Require     bool   // nobody gets as far as HTTP without one
	Name        string // the part that is the subject: cn, dns, email or uri (the first of its kind)
	Roles       map[string]Role
	DefaultRole Role // of a subject that Roles does not have; "": that one is refused
}

// ClientCertNames are the parts of a certificate that may be the subject.
var ClientCertNames = []string{"cn", "dns", "email", "uri"}

// ClientCerts judges TLS client certificates. That they are their bearer's, and signed, TLS has seen to.
type ClientCerts struct {
	c      ClientCertsConfig
	cas    atomic.Pointer[x509.CertPool]
	reload *filewatch.Follower
}

func (c *ClientCerts) open(log zerolog.Logger) (err error) {
	if err = c.load(); err == nil {
		c.reload, err = filewatch.Follow(log, c.load, c.c.CAFile)
	}
	return err
}

func (c *ClientCerts) load() error {
	text, err := os.ReadFile(c.c.CAFile)
	if err != nil {
		return fmt.Errorf("client CA: %w", err)
	}
	cas := x509.NewCertPool()
	if !cas.AppendCertsFromPEM(text) {
		return fmt.Errorf("client CA: %s: no certificate", c.c.CAFile)
	}
	c.cas.Store(cas)
	return nil
}

// requestOn has base ask for certificates of the CAs that count now. No session is resumed: a resumed one was checked against those of then.
func (c *ClientCerts) requestOn(base *tls.Config) {
	base.ClientAuth = tls.VerifyClientCertIfGiven
	if c.c.Require {
		base.ClientAuth = tls.RequireAndVerifyClientCert
	}
	base.SessionTicketsDisabled = true
	base.ClientCAs = c.cas.Load()
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := base.Clone()
		now.ClientCAs = c.cas.Load()
		return now, nil
	}
}

func (c *ClientCerts) authenticate(r *http.Request) (*Grant, method, Outcome) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil, byCertificate, missing
	}
	cert := r.TLS.VerifiedChains[0][0]
	name := c.name(cert)
	role := cmp.Or(c.c.Roles[name], c.c.DefaultRole)
	if name == "" || len(name) > 255 || !printable(name) || !role.isValid() {
		return nil, byCertificate, Unknown
	}
	return newGrant(Principal{Subject: "cert:" + name, Role: role}, Terms{Expires: cert.NotAfter}), byCertificate, Accepted
}

func (c *ClientCerts) name(cert *x509.Certificate) string {
	switch {
	case c.c.Name == "dns" && len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	case c.c.Name == "email" && len(cert.EmailAddresses) > 0:
		return cert.EmailAddresses[0]
	case c.c.Name == "uri" && len(cert.URIs) > 0:
		return cert.URIs[0].String()
	case c.c.Name == "cn" || c.c.Name == "":
		return cert.Subject.CommonName
	}
	return ""
}
