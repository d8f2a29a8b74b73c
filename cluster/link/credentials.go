package link

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// AnyNode is the DNS name in a certificate that every node of the cluster may use. Any other certificate names the nodes that may use it.
const AnyNode = "link.trl.internal"

// minSecret is the least length of the cluster's secret, in bytes.
const minSecret = 32

// Files are the credentials of a node, as paths. Secret, or CA, Cert and Key, or all of them: then both ends check both.
type Files struct {
	Secret        string // at least 32 bytes, which nobody but the node's user may read
	CA, Cert, Key string // PEM; the CA signs nothing but this cluster's nodes
}

// Credentials prove that this node belongs to the cluster. They are read again when their files change.
type Credentials struct {
	secret *followed[[]byte]   // nil: none
	pair   *followed[*tlsPair] // nil: none
	own    tls.Certificate     // made in memory, for encryption alone, when there is no pair
}

type tlsPair struct {
	ca   *x509.CertPool
	cert tls.Certificate
}

// OpenCredentials reads the files. Later, warn is told when changed files cannot be used, and the earlier content stays in force; it may be nil.
func OpenCredentials(f Files, warn func(error)) (*Credentials, error) {
	c := &Credentials{}
	var err error
	someTLS, allTLS := f.CA != "" || f.Cert != "" || f.Key != "", f.CA != "" && f.Cert != "" && f.Key != ""
	switch {
	case someTLS != allTLS:
		return nil, errors.New("a cluster's CA, certificate and key belong together")
	case f.Secret == "" && !allTLS:
		return nil, errors.New("a cluster needs a secret, or a CA, a certificate and a key")
	}
	if f.Secret != "" {
		if c.secret, err = follow(warn, func() ([]byte, error) { return readSecret(f.Secret) }, f.Secret); err != nil {
			return nil, err
		}
	}
	if allTLS {
		c.pair, err = follow(warn, func() (*tlsPair, error) { return readPair(f) }, f.CA, f.Cert, f.Key)
	} else {
		c.own, err = ownCertificate()
	}
	return c, err
}

// readSecret reads the cluster's secret. Space at its end does not count, because editors and echo add it.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cluster secret: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cluster secret: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("cluster secret: %s is not a regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("cluster secret: %s is open to others (mode %04o): chmod 600 it", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("cluster secret: %w", err)
	}
	if text = bytes.TrimRight(text, " \t\r\n"); len(text) < minSecret {
		return nil, fmt.Errorf("cluster secret: %s has %d bytes, it needs %d: head -c 32 /dev/urandom | base64", path, len(text), minSecret)
	}
	return text, nil
}

func readPair(f Files) (*tlsPair, error) {
	text, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("cluster CA: %w", err)
	}
	p := &tlsPair{ca: x509.NewCertPool()}
	if !p.ca.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("cluster CA: no certificate in %s", f.CA)
	}
	if p.cert, err = tls.LoadX509KeyPair(f.Cert, f.Key); err != nil {
		return nil, fmt.Errorf("cluster certificate: %w", err)
	}
	return p, nil
}

// ownCertificate makes a certificate that nobody trusts. With a secret and without a CA it encrypts the link, and the proofs of the handshake cover the
// TLS session, so that somebody in between would have to know the secret.
func ownCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	as := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{AnyNode}, NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, as, as, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// key returns the secret that is in force, or nil if there is none.
func (c *Credentials) key() []byte {
	if c.secret == nil {
		return nil
	}
	return c.secret.get()
}

// dialTLS returns the configuration for a link to the node of this name.
func (c *Credentials) dialTLS(node string) *tls.Config {
	t := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, DynamicRecordSizingDisabled: true, // a link carries much, and no page
		InsecureSkipVerify: true, // #nosec G402 -- VerifyConnection checks chain and node, or the proofs cover the TLS session: see ownCertificate
	}
	if c.pair == nil {
		return t
	}
	p := c.pair.get()
	t.Certificates = []tls.Certificate{p.cert}
	t.VerifyConnection = func(s tls.ConnectionState) error {
		if err := p.verify(s, x509.ExtKeyUsageServerAuth); err != nil {
			return err
		}
		return checkNode(s, node)
	}
	return t
}

// acceptTLS returns the configuration of an acceptor. It calls refused with the remote address and the reason when it does not trust a certificate.
func (c *Credentials) acceptTLS(refused func(remote string, err error)) *tls.Config {
	t := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, DynamicRecordSizingDisabled: true,
		SessionTicketsDisabled: true, // each link shows a certificate anew, so a changed CA counts at once
		Certificates:           []tls.Certificate{c.own},
	}
	if c.pair == nil {
		return t
	}
	return &tls.Config{
		MinVersion: t.MinVersion,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			p, t := c.pair.get(), t.Clone()
			t.Certificates = []tls.Certificate{p.cert}
			t.ClientAuth = tls.RequestClientCert // VerifyConnection wants one; this way it sees the lack of one
			t.VerifyConnection = func(s tls.ConnectionState) error {
				err := p.verify(s, x509.ExtKeyUsageClientAuth)
				if err != nil {
					refused(addrOf(hello.Conn), err)
				}
				return err
			}
			return t, nil
		},
	}
}

func addrOf(c net.Conn) string { return c.RemoteAddr().String() }

// verify checks that the other end has a certificate of the cluster's CA.
func (p *tlsPair) verify(s tls.ConnectionState, usage x509.ExtKeyUsage) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: it shows none", ErrUntrusted)
	}
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: p.ca, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	return nil
}

// checkNode checks that the other end's certificate may be used by the node of this name.
func checkNode(s tls.ConnectionState, node string) error {
	if cert := s.PeerCertificates[0]; cert.VerifyHostname(AnyNode) != nil && cert.VerifyHostname(node) != nil {
		return fmt.Errorf("%w: the certificate is for %v, not for %s", ErrUntrusted, cert.DNSNames, node)
	}
	return nil
}

// followed is the content of files, read again when they have changed. It looks at them when it is asked, so it needs no goroutine and no descriptor.
type followed[T any] struct {
	paths []string
	read  func() (T, error)
	warn  func(error)

	mu      sync.Mutex
	value   T         // guarded by mu
	readAt  time.Time // guarded by mu; when value was read, or an attempt failed
	present []os.FileInfo
}

// follow reads the files for the first time.
func follow[T any](warn func(error), read func() (T, error), paths ...string) (*followed[T], error) {
	f := &followed[T]{paths: paths, read: read, warn: warn, readAt: time.Now(), present: stat(paths)}
	var err error
	f.value, err = read()
	return f, err
}

func (f *followed[T]) get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := stat(f.paths)
	if slices.EqualFunc(f.present, now, f.sameLocked) {
		return f.value
	}
	f.present, f.readAt = now, time.Now()
	if value, err := f.read(); err == nil {
		f.value = value
	} else if f.warn != nil {
		f.warn(err)
	}
	return f.value
}

// settled is how long before a reading a file must have changed last. A later change could have the same time of change.
const settled = time.Second

// sameLocked reports whether a file is as it was when it was read. mu is held.
func (f *followed[T]) sameLocked(was, is os.FileInfo) bool {
	if was == nil || is == nil {
		return was == nil && is == nil
	}
	return os.SameFile(was, is) && was.Size() == is.Size() && was.Mode() == is.Mode() && was.ModTime().Equal(is.ModTime()) && f.readAt.Sub(is.ModTime()) > settled
}

// stat returns nil for a file that is not there.
func stat(paths []string) []os.FileInfo {
	all := make([]os.FileInfo, len(paths))
	for i, path := range paths {
		all[i], _ = os.Stat(path)
	}
	return all
}
