package main

import (
	"context"
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

	"trl/client"
	"trl/internal/testkit"
	"trl/protocol"
)

// TestAFullGatewayIsNoWrongAddress: the words are the gateway's own.
func TestAFullGatewayIsNoWrongAddress(t *testing.T) {
	testkit.StartsProcesses(t)
	for _, flag := range []string{"--max-connections", "--max-connections-per-principal"} {
		o := client.Options{URL: "http://" + startGateway(t, flag, "1").addr}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := client.Dial(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		second, err := client.Dial(ctx, o)
		if err == nil {
			second.Close()
			t.Fatal("let in")
		}
		var (
			e *protocol.Error
			r *hintedError
		)
		err = hintDial(err, o)
		if !errors.As(err, &e) || e.Code != protocol.LimitExceeded || !errors.As(err, &r) || !strings.Contains(r.hint, flag) {
			t.Errorf("%s: %v, %+v", flag, err, r)
		}
	}
}

// TestCertificateForAName: the address in the state dir is a number, for which a certificate is seldom made; what to do is said.
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
	if err := os.WriteFile(filepath.Join(dir, addressFile), []byte("https://"+l.Addr().String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	for _, c := range []struct{ url, hint string }{
		{"", "--url https://gw.example:" + port + ","},
		{"https://localhost:" + port, "--url https://NAME,"},
	} {
		_, err := (&target{stateDir: dir, url: c.url}).dial(t.Context(), nil)
		var r *hintedError
		if !errors.As(err, &r) || !strings.Contains(r.hint, c.hint) {
			t.Errorf("%v: %+v", err, r)
		}
	}
}
