package directory

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"trl/cluster/node"
	"trl/internal/natsrig"
	"trl/internal/testkit"
)

func TestPlainConnectionsBeyondLoopbackAreRefused(t *testing.T) {
	n := node.Node{Epoch: "e", Name: "n"}
	for _, c := range []struct {
		servers  string
		insecure bool
		want     security
		refused  bool
	}{
		{servers: "nats://127.0.0.1:4222", want: loopbackOnly},
		{servers: "nats://localhost:4222,nats://[::1]:4222", want: loopbackOnly},
		{servers: "nats://nats.example:4222", refused: true},
		{servers: "nats://127.0.0.1:4222,nats://192.0.2.1:4222", refused: true},
		{servers: "nats://nats.example:4222", insecure: true, want: anything},
		{servers: "tls://nats.example:4222", want: demandTLS},
		{servers: "tls://nats.example:4222", insecure: true, want: demandTLS},
		{servers: "tls://a.example:4222,nats://b.example:4222", want: demandTLS}, // of both
	} {
		o := Options{Servers: strings.Split(c.servers, ","), Insecure: c.insecure, Node: n}
		got, err := o.check()
		if c.refused != errors.Is(err, ErrInsecure) || !c.refused && (err != nil || got != c.want) {
			t.Errorf("%s, insecure %v: %v, %v", c.servers, c.insecure, got, err)
		}
	}
	for what, o := range map[string]Options{
		"no server":        {Node: n},
		"another scheme":   {Servers: []string{"http://127.0.0.1"}, Node: n},
		"no epoch":         {Servers: []string{"nats://127.0.0.1"}, Node: node.Node{Name: "n"}},
		"a missing CA":     {Servers: []string{"tls://127.0.0.1"}, CA: "/nonexistent", Node: n},
		"missing creds":    {Servers: []string{"tls://127.0.0.1"}, Creds: "/nonexistent", Node: n},
		"plain and beyond": {Servers: []string{"nats://192.0.2.1"}, Node: n},
	} {
		if d, err := Open(o); err == nil {
			t.Errorf("%s: opened", what)
			d.Close()
		}
	}
}

// A name that looks like loopback must lead there. Servers name others to their clients, so this is checked at each connection.
func TestEveryConnectionIsChecked(t *testing.T) {
	d := &Directory{ctx: t.Context()}
	d.opts.dial = func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		b.Close()
		return elsewhere{a}, nil
	}
	if _, err := (&dialer{d, loopbackOnly}).Dial("tcp", "localhost:4222"); !errors.Is(err, ErrInsecure) {
		t.Errorf("loopback only: %v", err)
	}
	c, err := (&dialer{d, anything}).Dial("tcp", "localhost:4222")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

type elsewhere struct{ net.Conn }

func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4222} }

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t, "nats.example")
	secure := natsrig.StartWith(t, 1, natsrig.Options{Cert: cert, Key: key}).Servers[0]
	plain := natsrig.Start(t, 1).Servers[0]
	otherCA, _ := selfSigned(t, "nats.example")
	through := func(s *natsrig.Server) func(*Options) {
		return func(o *Options) {
			o.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+strconv.Itoa(s.Port))
			}
		}
	}
	good := join(t, "n1", []string{"tls://nats.example:4222"}, through(secure), func(o *Options) { o.CA = cert })
	good.becomesHealthy()
	for what, m := range map[string]*member{
		"a server without TLS":    join(t, "n2", []string{"tls://nats.example:4222"}, through(plain), func(o *Options) { o.CA = cert }),
		"another CA":              join(t, "n3", []string{"tls://nats.example:4222"}, through(secure), func(o *Options) { o.CA = otherCA }),
		"another name":            join(t, "n4", []string{"tls://other.example:4222"}, through(secure), func(o *Options) { o.CA = cert }),
		"no CA, unknown to all":   join(t, "n5", []string{"tls://nats.example:4222"}, through(secure)),
		"nats:// with a CA of it": join(t, "n6", []string{"nats://nats.example:4222"}, through(plain), func(o *Options) { o.CA = cert }),
	} {
		var why string
		testkit.Eventually(t, what+" is refused, with a reason", func() bool {
			var degraded bool
			degraded, why = m.Degraded()
			return degraded && (strings.Contains(why, "secure connection") || strings.Contains(why, "x509") || strings.Contains(why, "certificate"))
		})
		t.Log(what, "→", why)
	}
}

// selfSigned writes a certificate for a name that is its own CA.
func selfSigned(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(file, kind string, b []byte) string {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", pkcs8)
}
