package rig

import (
	"bufio"
	numbers "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"trl/internal/testkit"
)

// RawConn is a WebSocket without a library, for what a library does not do.
type RawConn struct {
	net.Conn
	r    *bufio.Reader
	Head http.Header // of the answer to the upgrade
}

// Frame sends one, masked with zeros; head is its first byte.
func (c RawConn) Frame(head byte, payload []byte) error {
	b := []byte{head, 0x80 | 127}
	b = numbers.BigEndian.AppendUint64(b, uint64(len(payload)))
	b = append(b, 0, 0, 0, 0)
	_, err := c.Write(append(b, payload...))
	return err
}

// Next reads a frame.
func (c RawConn) Next() (opcode byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := uint64(head[1])
	switch n {
	case 126:
		var b [2]byte
		_, err = io.ReadFull(c.r, b[:])
		n = uint64(numbers.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		_, err = io.ReadFull(c.r, b[:])
		n = numbers.BigEndian.Uint64(b[:])
	}
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(c.r, payload)
	return head[0] & 0xf, payload, err
}

// Closed reads to the close frame and returns its code; 0 when the connection ended without one.
func (c RawConn) Closed() int {
	for {
		op, payload, err := c.Next()
		switch {
		case err != nil:
			return 0
		case op == 8 && len(payload) < 2:
			return 1005
		case op == 8:
			return int(numbers.BigEndian.Uint16(payload))
		}
	}
}

func (g *Server) DialRaw(t testing.TB, headers string) RawConn {
	t.Helper()
	conn, err := net.Dial("tcp", g.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(2 * testkit.Patience))
	fmt.Fprintf(conn, "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%s\r\n", g.Addr, headers)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	return RawConn{conn, r, resp.Header}
}
