package rig

import (
	"bufio"
	numbers "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"trl/internal/testkit"
)

// RawConn is a WebSocket without a library, for frames that a library does not send.
type RawConn struct {
	net.Conn
	r    *bufio.Reader
	Head http.Header // of the answer to the upgrade
}

var frameMask = [4]byte{0x37, 0xfa, 0x21, 0x3d} // the one of RFC 6455, section 5.7

// RawFrame is a masked frame with the shortest length; first is its first byte.
func RawFrame(first byte, payload string) []byte {
	f := []byte{first}
	switch n := len(payload); {
	case n < 126:
		f = append(f, 0x80|byte(n))
	case n < 1<<16:
		f = numbers.BigEndian.AppendUint16(append(f, 0x80|126), uint16(n))
	default:
		f = numbers.BigEndian.AppendUint64(append(f, 0x80|127), uint64(n))
	}
	return MaskedFrame(f, payload)
}

// MaskedFrame puts a mask and the payload after a header that ends with the length.
func MaskedFrame(header []byte, payload string) []byte {
	f := append(slices.Clone(header), frameMask[:]...)
	for i := range len(payload) {
		f = append(f, payload[i]^frameMask[i%4])
	}
	return f
}

// Frame sends a masked frame. first is its first byte.
func (c RawConn) Frame(first byte, payload []byte) error {
	_, err := c.Write(RawFrame(first, string(payload)))
	return err
}

// Text sends a text message. An error shows at what comes next.
func (c RawConn) Text(message string) { _ = c.Frame(0x81, []byte(message)) }

// ReadRaw reads frames from a connection that a test has upgraded itself.
func ReadRaw(conn net.Conn, r *bufio.Reader) RawConn { return RawConn{Conn: conn, r: r} }

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

// Closed reads up to the close frame and returns its code; 0 if the connection ended without one.
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

// DialRaw dials the gateway without a library; headers are those beside what an upgrade needs.
func (g *Server) DialRaw(t testing.TB, headers string) RawConn {
	t.Helper()
	return DialRaw(t, g.Addr, headers)
}

// DialRaw is a connection to the gateway at addr until the test ends.
func DialRaw(t testing.TB, addr, headers string) RawConn {
	t.Helper()
	c, err := Upgrade(addr, headers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Upgrade makes the connection, which the caller closes.
func Upgrade(addr, headers string) (c RawConn, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return c, err
	}
	_ = conn.SetDeadline(time.Now().Add(2 * testkit.Patience))
	fmt.Fprintf(conn, "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%s\r\n", addr, headers)
	c = RawConn{Conn: conn, r: bufio.NewReader(conn)}
	resp, err := http.ReadResponse(c.r, nil)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("the upgrade was answered %s", resp.Status)
	}
	if err != nil {
		conn.Close()
		return c, err
	}
	c.Head = resp.Header
	return c, nil
}
