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

// ACME is how a server gets its certificates by itself (RFC 8555). The zero value: it does not.
type ACME struct {
	Domains   []string // for which certificates are asked for, and no others
	Directory string   // URL of the authority's; Let's Encrypt's when empty
	Dir       string   // where keys and certificates are kept, for us alone
	Email     string   // whom the authority may write to

	Client *http.Client // that speaks to the authority; nil: a usual one; tests trust their own
}

// TLSConfig is a configuration whose certificates come when they are first asked for and are renewed a month before their end. The authority looks at
// us on the TLS port itself (tls-alpn-01, RFC 8737): its look ends within the handshake, before anything here would serve it.
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
	var told atomic.Int64 // when the log heard of a failure last, Unix seconds
	get := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := m.GetCertificate(hello)
		if err != nil && slices.Contains(a.Domains, hello.ServerName) { // of other names strangers may ask as they like
			if now, last := time.Now().Unix(), told.Load(); now-last >= 60 && told.CompareAndSwap(last, now) { // the next try is a minute away
				log.Error().Err(err).Str("domain", hello.ServerName).Msg("no certificate by ACME")
			}
		}
		return cert, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get, NextProtos: []string{"http/1.1", acme.ALPNProto}}
}
