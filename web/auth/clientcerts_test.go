package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http/httptest"
	"testing"
	"time"
)

// TestGrantOfACertificate: it is worth what the list says, and no longer than the certificate.
func TestGrantOfACertificate(t *testing.T) {
	c := &ClientCerts{c: ClientCertsConfig{Roles: map[string]Role{"ann": Viewer}}}
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "ann"}, NotAfter: time.Now().Add(time.Hour)}
	r := httptest.NewRequest("GET", "/", nil)
	r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}
	grant, _, why := c.authenticate(r)
	if why != Accepted || grant.Principal != (Principal{"cert:ann", Viewer}) || !grant.Expires().Equal(leaf.NotAfter) {
		t.Errorf("%+v %s", grant, why)
	}
}
