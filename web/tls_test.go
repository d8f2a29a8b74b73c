package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
)

// writeCertificate writes a self-signed certificate for 127.0.0.1 and names.
func writeCertificate(t *testing.T, cert, key, name string, names ...string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: names,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kb, _ := x509.MarshalPKCS8PrivateKey(k)
	for path, block := range map[string]*pem.Block{key: {Type: "PRIVATE KEY", Bytes: kb}, cert: {Type: "CERTIFICATE", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key, "first")
	g := start(t, withTokens, func(c *Config) { c.TLSCert, c.TLSKey, c.Listen = cert, key, "0.0.0.0:0" })
	_, port, _ := net.SplitHostPort(g.Addr())
	addr := "127.0.0.1:" + port
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	ws, _, err := websocket.Dial(t.Context(), "wss://"+addr+"/v1/ws", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: tr}, HTTPHeader: http.Header{"Authorization": {"Bearer " + gateway.UserToken}, "Origin": {"https://" + addr}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	c := rig.NewClient(t, ws)
	s := c.Call("exec.stream", object{"command": "seq 100000"})
	if b, _ := c.Output(s.Str("stream_id"), 0); len(b) != 588_895 {
		t.Fatalf("%d bytes", len(b))
	}

	serves := func() string { return served(t, addr) }
	if got := serves(); got != "first" {
		t.Fatal(got)
	}
	writeCertificate(t, cert, key, "second")
	testkit.Eventually(t, "the new certificate is served", func() bool { return serves() == "second" })
	os.WriteFile(cert, []byte("nonsense"), 0o600)
	time.Sleep(200 * time.Millisecond) // not a synchronisation: whatever happens, the second must stay
	if got := serves(); got != "second" {
		t.Fatal(got)
	}
}

// served returns the name in the certificate that a server shows.
func served(t *testing.T, addr string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}
