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

// ClientCertsConfig says which client certificates are accepted.
type ClientCertsConfig struct {
	CAFile      string // the CAs that issue them, PEM; read again when the file changes
	Require     bool   // TLS refuses clients without a certificate
	Name        string // the part that names the subject: cn, dns, email or uri (the first of its kind)
	Roles       map[string]Role
	DefaultRole Role // the role of a subject that is not in Roles; "": such a subject is refused
}

// ClientCertNames are the parts of a certificate that may name the subject.
var ClientCertNames = []string{"cn", "dns", "email", "uri"}

// ClientCerts checks TLS client certificates. TLS has already verified the signature, and that the client has the key.
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

// requestOn makes base ask for certificates of the CAs that count now. TLS sessions are not resumed, because a resumed session was checked against
// earlier CAs.
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
