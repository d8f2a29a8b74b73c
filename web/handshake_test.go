package web

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

const upgradeLines = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"

// says sends text as a request. It returns the status of the answer, or 0 without one, and the rest of the bytes.
func says(t *testing.T, g *server, text string) (int, http.Header, string) {
	t.Helper()
	c, err := net.Dial("tcp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	go io.WriteString(c, text) // the server may answer before it has taken all; ends with the connection
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0, nil, ""
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, resp.Header, ""
	}
	body, _ := io.ReadAll(resp.Body)
	rest, _ := io.ReadAll(r)
	return resp.StatusCode, resp.Header, string(body) + string(rest)
}

// TestRawHandshakes: the server gives each request the answer of the table, and other connections go on.
func TestRawHandshakes(t *testing.T) {
	g := start(t)
	bystander := g.Dial()
	session := bystander.Session()
	host := "Host: " + g.Addr() + "\r\n"
	without := func(name string) string {
		var kept strings.Builder
		for line := range strings.Lines(upgradeLines) {
			if !strings.HasPrefix(line, name) {
				kept.WriteString(line)
			}
		}
		return kept.String()
	}
	get := func(lines string) string { return "GET /v1/ws HTTP/1.1\r\n" + lines + "\r\n" }
	for i, c := range []struct {
		name, send string
		want       int
	}{
		{"as it should be", get(host + upgradeLines), 101},
		{"words in another case", get(host + strings.NewReplacer("Upgrade", "uPGRADE", "websocket", "WebSocket", "Sec-", "sec-").Replace(upgradeLines)), 101},
		{"Connection with other words", get(host + strings.Replace(upgradeLines, "Connection: Upgrade", "Connection: keep-alive, Upgrade", 1)), 101},
		{"a whole URL", "GET http://" + g.Addr() + "/v1/ws HTTP/1.1\r\nHost: other.example\r\n" + upgradeLines + "\r\n", 101}, // RFC 9112 §3.2.2: Host does not count
		{"line feeds alone", strings.ReplaceAll(get(host+upgradeLines), "\r\n", "\n"), 101},

		{"version 8", get(host + strings.Replace(upgradeLines, "13", "8", 1)), 400},
		{"no version", get(host + without("Sec-WebSocket-Version")), 400},
		{"no key", get(host + without("Sec-WebSocket-Key")), 400},
		{"a key that is no base64", get(host + strings.Replace(upgradeLines, "AAAA==", "!!!!==", 1)), 400},
		{"a short key", get(host + strings.Replace(upgradeLines, "AAAAAAAAAAAAAAAAAAAAAA==", "AAAA", 1)), 400},
		{"two keys", get(host + upgradeLines + "Sec-WebSocket-Key: BBBBBBBBBBBBBBBBBBBBBB==\r\n"), 400},
		{"HTTP/1.0", "GET /v1/ws HTTP/1.0\r\n" + host + upgradeLines + "\r\n", 426},
		{"no Connection", get(host + without("Connection")), 426},
		{"Connection without Upgrade", get(host + strings.Replace(upgradeLines, "Connection: Upgrade", "Connection: keep-alive", 1)), 426},
		{"no Upgrade", get(host + without("Upgrade")), 426},
		{"Upgrade to something else", get(host + strings.Replace(upgradeLines, "websocket", "h2c", 1)), 426},
		{"POST", "POST /v1/ws HTTP/1.1\r\n" + host + upgradeLines + "Content-Length: 0\r\n\r\n", 405},
		{"CONNECT", "CONNECT " + g.Addr() + " HTTP/1.1\r\n" + host + "\r\n", 405},
		{"OPTIONS of everything", "OPTIONS * HTTP/1.1\r\n" + host + "\r\n", 400},
		{"OPTIONS of everything, by another name", "OPTIONS * HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421},
		{"TRACE", "TRACE /v1/ws HTTP/1.1\r\n" + host + "\r\n", 405},

		{"no Host", get(upgradeLines), 400},
		{"two Hosts", get(host + "Host: other.example\r\n" + upgradeLines), 400},
		{"an empty Host", get("Host: \r\n" + upgradeLines), 421},
		{"a Host with a path", get("Host: " + g.Addr() + "/x\r\n" + upgradeLines), 400},
		{"a Host with a user", get("Host: a@" + g.Addr() + "\r\n" + upgradeLines), 400},
		{"a URL of another host", "GET http://evil.example/v1/ws HTTP/1.1\r\n" + host + upgradeLines + "\r\n", 421},
		{"two Origins", get(host + upgradeLines + "Origin: http://" + g.Addr() + "\r\nOrigin: http://evil.example\r\n"), 403},

		{"a body", get(host+upgradeLines+"Content-Length: 5\r\n") + "hello", 400},
		{"frames in a body", get(host+upgradeLines+"Content-Length: 40\r\n") + string(rig.RawFrame(0x81, ping("smuggled"))), 400},
		{"a chunked body", get(host+upgradeLines+"Transfer-Encoding: chunked\r\n") + "5\r\nhello\r\n0\r\n\r\n", 400},
		{"a body in two lengths", get(host+upgradeLines+"Content-Length: 5\r\nContent-Length: 6\r\n") + "hello!", 400},
		{"a length and chunks", get(host+upgradeLines+"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\nGET /metrics HTTP/1.1\r\n" + host + "\r\n", 400},
		{"chunked twice", get(host + upgradeLines + "Transfer-Encoding: chunked, chunked\r\n"), 501},
		{"a made-up encoding", get(host + upgradeLines + "Transfer-Encoding: xchunked\r\n"), 501},
		{"a signed length", get(host+upgradeLines+"Content-Length: +5\r\n") + "hello", 400},
		{"a negative length", get(host + upgradeLines + "Content-Length: -1\r\n"), 400},
		{"a length of hexadecimal digits", get(host + upgradeLines + "Content-Length: 0x5\r\n"), 400},

		{"a space before the colon", get(host + "Upgrade : websocket\r\n" + upgradeLines), 400},
		{"a header without a name", get(host + ": x\r\n" + upgradeLines), 400},
		{"a header of NUL", get(host + upgradeLines + "X-A: a\x00b\r\n"), 400},
		{"a carriage return in a header", get(host + upgradeLines + "X-A: a\rInjected: b\r\n"), 400},
		{"an escape in a header", get(host + upgradeLines + "X-A: \x1b[2J\r\n"), 400},
		{"a header that begins a line with a space", "GET /v1/ws HTTP/1.1\r\n Host: x\r\n" + host + upgradeLines + "\r\n", 400},
		{"too much of a header", get(host + "X-A: " + strings.Repeat("a", 64<<10) + "\r\n"), 431},
		{"too many headers", get(host + strings.Repeat("X-A: a\r\n", 10_000)), 431},
		{"a path without end", "GET /" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\n" + host + "\r\n", 431},
		{"no method", " /v1/ws HTTP/1.1\r\n" + host + "\r\n", 400},
		{"a made-up protocol", "GET /v1/ws HTTP/9.9\r\n" + host + "\r\n", 505},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 421},
		{"HTTP/0.9", "GET /v1/ws\r\n\r\n", 400},
		{"TLS", "\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + strings.Repeat("\x00", 32) + "\r\n\r\n", 400},
		{"no text at all", "\x00\xff\x00\xff\r\n\r\n", 400},
		{"a frame without an upgrade", string(rig.RawFrame(0x81, ping("a"))) + "\r\n\r\n", 400},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			got, head, body := says(t, g, c.send)
			if got != c.want {
				t.Errorf("answered %d, want %d: %s", got, c.want, body)
			}
			if strings.Contains(body, "HTTP/1.1 ") {
				t.Errorf("a second request was answered: %q", body)
			}
			if got == 101 && head.Get("Sec-WebSocket-Extensions") != "" {
				t.Error("the server chose an extension that the client did not offer")
			}
			if got := bystander.Run(session, "N=$((N+1)); echo $N").Stdout(); got != fmt.Sprintln(i+1) {
				t.Errorf("the other session says %q", got)
			}
		})
	}
	// One request each: what is sent behind it is not even looked at.
	if got, _, rest := says(t, g, strings.Repeat("GET /healthz HTTP/1.1\r\n"+host+"\r\n", 3)); got != 200 || rest != "ok\n" {
		t.Errorf("three requests in a row were answered with %d, %q", got, rest)
	}
	for _, path := range []string{"//evil.example/%2e%2e/", "//evil.example/..", "/\\evil.example/..", "/x/../../v1/ws"} {
		_, head, _ := says(t, g, "GET "+path+" HTTP/1.1\r\n"+host+"\r\n")
		if to := head.Get("Location"); to != "" && (!strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.HasPrefix(to, "/\\")) {
			t.Errorf("%s is sent to %s", path, to)
		}
	}
	testkit.Eventually(t, "all are gone", func() bool { return g.Metric("trl_connections") == 1 })
	if log := g.Log.String(); strings.Contains(log, `"level":"error"`) {
		t.Error(log)
	}
}

// TestHostsAndOrigins is a matrix of hosts and origins on loopback, on other addresses and with TLS. All routes answer alike.
func TestHostsAndOrigins(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key, "gateway", "trl.internal", "*.wild.internal")
	listed := func(c *Config) {
		c.Hosts, c.Origins = []string{"Trl.Example", "2001:DB8::1"}, []string{"https://app.example"}
	}
	beyond := func(c *Config) { c.Listen, c.Insecure = "0.0.0.0:0", true }
	servers := map[string]*server{
		"loopback": start(t, withTokens),
		"listed":   start(t, withTokens, listed),
		"beyond":   start(t, withTokens, beyond, listed),
		"TLS":      start(t, withTokens, beyond, listed, func(c *Config) { c.TLSCert, c.TLSKey = cert, key }),
	}
	const ok, misdirected, forbidden = 200, 421, 403
	for _, c := range []struct {
		server, host, origin string // PORT stands for the real one
		want                 int
	}{
		{"loopback", "127.0.0.1:PORT", "", ok},
		{"loopback", "localhost:PORT", "http://localhost:PORT", ok},
		{"loopback", "LOCALHOST:PORT", "http://localhost:PORT", ok},
		{"loopback", "[::1]:PORT", "http://[::1]:PORT", ok},
		{"loopback", "127.0.0.1", "http://127.0.0.1", ok}, // as behind a forwarded port
		{"loopback", "127.0.0.1:PORT", "http://localhost:PORT", forbidden},
		{"loopback", "127.0.0.1:PORT", "https://127.0.0.1:PORT", forbidden}, // the scheme counts
		{"loopback", "127.0.0.1:PORT", "http://127.0.0.1:1", forbidden},
		{"loopback", "127.0.0.1:PORT", "http://127.0.0.1", forbidden},
		{"loopback", "127.0.0.1:PORT", "null", forbidden},
		{"loopback", "127.0.0.1:PORT", "https://app.example", forbidden},
		{"loopback", "rebind.attacker.com:PORT", "", misdirected},
		{"loopback", "rebind.attacker.com:PORT", "http://rebind.attacker.com:PORT", misdirected}, // the attack itself
		{"loopback", "localhost.attacker.com:PORT", "", misdirected},
		{"loopback", "127.0.0.1.nip.io:PORT", "", misdirected},
		{"loopback", "localhost.:PORT", "", misdirected},
		{"loopback", "192.168.1.1:PORT", "", misdirected},
		{"loopback", "trl.example:PORT", "", misdirected},
		{"listed", "trl.example", "http://trl.example", ok},
		{"listed", "TRL.example:PORT", "http://trl.example:PORT", ok},
		{"listed", "[2001:db8:0::1]:PORT", "", ok},
		{"listed", "trl.example", "https://app.example", ok},
		{"listed", "trl.example", "http://app.example", forbidden},
		{"listed", "trl.example", "https://app.example:8443", forbidden},
		{"listed", "sub.trl.example", "", misdirected},
		{"listed", "xtrl.example", "", misdirected},
		{"listed", "trl.example.attacker.com", "", misdirected},
		{"listed", "attacker.com", "https://app.example", misdirected},
		{"beyond", "192.0.2.7:PORT", "http://192.0.2.7:PORT", ok}, // no name resolves to it but itself
		{"beyond", "[2001:db8::7]:PORT", "", ok},
		{"beyond", "localhost:PORT", "", ok},
		{"beyond", "trl.example:PORT", "http://trl.example:PORT", ok},
		{"beyond", "192.0.2.7:PORT", "http://192.0.2.8:PORT", forbidden},
		{"beyond", "rebind.attacker.com:PORT", "http://rebind.attacker.com:PORT", misdirected},
		{"beyond", "trl.internal:PORT", "", misdirected},
		{"TLS", "trl.internal:PORT", "https://trl.internal:PORT", ok}, // in the certificate
		{"TLS", "a.wild.internal:PORT", "https://a.wild.internal:PORT", ok},
		{"TLS", "a.b.wild.internal:PORT", "", misdirected},
		{"TLS", "trl.internal:PORT", "http://trl.internal:PORT", forbidden},
		{"TLS", "rebind.attacker.com:PORT", "https://rebind.attacker.com:PORT", misdirected},
		{"TLS", "gateway:PORT", "", misdirected}, // a common name is no name (RFC 9525)
	} {
		g := servers[c.server]
		_, port, _ := net.SplitHostPort(g.Addr())
		host, origin := strings.Replace(c.host, "PORT", port, 1), strings.Replace(c.origin, "PORT", port, 1)
		for _, route := range routes {
			lines := "Host: " + host + "\r\nConnection: close\r\n"
			if origin != "" {
				lines += "Origin: " + origin + "\r\n"
			}
			resp := overWire(t, c.server == "TLS", "127.0.0.1:"+port, "GET "+route+" HTTP/1.1\r\n"+lines+"\r\n")
			got := resp.StatusCode
			if got != misdirected && got != forbidden {
				got = ok // whatever the route says without a token
			}
			if got != c.want {
				t.Errorf("%s, Host %s, Origin %s, %s: %d, want %d", c.server, host, origin, route, resp.StatusCode, c.want)
			}
			for name, want := range map[string]string{
				"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin",
				"Cross-Origin-Resource-Policy": "same-origin", "Access-Control-Allow-Origin": "", "Server": "",
			} {
				if resp.Header.Get(name) != want {
					t.Errorf("%s: %s is %q", route, name, resp.Header.Get(name))
				}
			}
			if !resp.Close {
				t.Errorf("%s: the connection stays", route)
			}
			if policy := resp.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") {
				t.Errorf("%s: policy %q", route, policy)
			}
		}
	}
}

// overWire sends text unchanged.
func overWire(t *testing.T, secure bool, addr, text string) *http.Response {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if secure {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	io.WriteString(c, text)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	resp.Body.Close()
	return resp
}

// TestNewCertificateNewNames: the server accepts the host names of its present certificate.
func TestNewCertificateNewNames(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key, "gateway", "old.internal")
	g := start(t, withTokens, func(c *Config) { c.Listen, c.TLSCert, c.TLSKey = "0.0.0.0:0", cert, key })
	_, port, _ := net.SplitHostPort(g.Addr())
	status := func(host string) int {
		return overWire(t, true, "127.0.0.1:"+port, "GET /healthz HTTP/1.1\r\nHost: "+host+"\r\n\r\n").StatusCode
	}
	if status("old.internal") != 200 || status("new.internal") != 421 {
		t.Fatal("the server refuses the names of its certificate")
	}
	if err := os.Remove(cert); err != nil { // nothing is read between the two files
		t.Fatal(err)
	}
	writeCertificate(t, cert, key, "gateway", "new.internal")
	testkit.Eventually(t, "the new name counts", func() bool { return status("new.internal") == 200 })
	if got := status("old.internal"); got != 421 {
		t.Errorf("a request with the old name was answered with %d", got)
	}
}
