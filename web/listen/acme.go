package listen

import (
	"crypto/tls"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"
)

// ACME configures how a server gets its certificates by itself (RFC 8555). The zero value means that it does not.
type ACME struct {
	Domains   []string // names to request certificates for; other names get none
	Directory string   // the URL of the authority's directory; empty: Let's Encrypt
	Dir       string   // the directory of keys and certificates, which only the server may read
	Email     string   // an address for the authority's messages

	Client *http.Client // the client for requests to the authority; nil: a default one; tests use one that trusts their authority
}

// TLSConfig returns a configuration that requests a certificate when a client first needs it, and renews it a month before it expires. The authority
// verifies the names on the TLS port itself (tls-alpn-01, RFC 8737), within the handshake, so no handler here serves it.
func (a *ACME) TLSConfig(log zerolog.Logger) *tls.Config {
	m := &autocert.Manager{
		Prompt:     autocert.AcceptTOS,
		Cache:      autocert.DirCache(a.Dir), // directory 0700, files 0600
		HostPolicy: autocert.HostWhitelist(a.Domains...),
		Email:      a.Email,
		Client:     &acme.Client{DirectoryURL: a.Directory, HTTPClient: a.Client},
	}
	if a.Directory == "" {
		m.Client.DirectoryURL = autocert.DefaultACMEDirectory
	}
	var told atomic.Int64 // when a failure was last logged, in Unix seconds
	get := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := m.GetCertificate(hello)
		if err != nil && slices.Contains(a.Domains, hello.ServerName) { // strangers may ask for other names as they like
			if now, last := time.Now().Unix(), told.Load(); now-last >= 60 && told.CompareAndSwap(last, now) { // at most one line a minute
				log.Error().Err(err).Str("domain", hello.ServerName).Msg("no certificate by ACME")
			}
		}
		return cert, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get, NextProtos: []string{"http/1.1", acme.ALPNProto}}
}
