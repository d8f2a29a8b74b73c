package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/cmdline"
	"trl/internal/statedir"
)

// TestCertificateForAName checks the hint for a certificate that has only a name, while the address in the state dir is an IP address.
func TestCertificateForAName(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"gw.example"}, NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == "localhost" {
			return nil, errors.New("as ACME where it has none")
		}
		return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, statedir.AddressFile), []byte("https://"+l.Addr().String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	for _, c := range []struct{ url, hint string }{
		{"", "--url https://gw.example:" + port + ","},
		{"https://localhost:" + port, "--url https://NAME,"},
	} {
		_, err := (&target{stateDir: dir, url: c.url}).dial(t.Context(), nil)
		var r *cmdline.HintedError
		if !errors.As(err, &r) || !strings.Contains(r.Hint, c.hint) {
			t.Errorf("%v: %+v", err, r)
		}
	}
}
