package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"
	"trl/protocol"
)

func TestFrameHeaders(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 1 << 20} {
		f := sealWebSocket(append(make([]byte, headroom), bytes.Repeat([]byte{'x'}, n)...), false)
		if f[0] != 0x81 {
			t.Fatalf("first byte %x", f[0])
		}
		length, head := int(f[1]), 2
		switch length {
		case 126:
			length, head = int(binary.BigEndian.Uint16(f[2:])), 4
		case 127:
			length, head = int(binary.BigEndian.Uint64(f[2:])), 10
		}
		if length != n || len(f) != head+n || (n < 126) != (head == 2) || (n > 65535) != (head == 10) {
			t.Errorf("%d bytes: length %d, header %d", n, length, head)
		}
	}
}

// both is one connection of the kernel's, from both ends.
func both(t *testing.T, network, addr string) (ours, peer net.Conn) {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if peer, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if ours, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); peer.Close() })
	return ours, peer
}

// unixPair is a transport and its other end.
func unixPair(t *testing.T, limit int) (*UnixSocket, *net.UnixConn) {
	t.Helper()
	ours, peer := both(t, "unix", t.TempDir()+"/s")
	return &UnixSocket{sock: NewSocket(ours, patience, func() {}), limit: limit, stall: patience}, peer.(*net.UnixConn)
}

func TestLinesHoweverTheyCome(t *testing.T) {
	tr, peer := unixPair(t, 100)
	want := []string{`{"a":1}`, `x`, strings.Repeat("y", 100), `{"last":true}`}
	text := want[0] + "\r\n\n  \n" + want[1] + "\n" + want[2] + "\n" + want[3]
	go func() {
		for len(text) > 0 {
			n := min(len(text), 1+rand.IntN(40))
			io.WriteString(peer, text[:n])
			text = text[n:]
		}
		peer.CloseWrite()
	}()
	for _, w := range want {
		if line, err := tr.Read(); err != nil || string(line) != w {
			t.Fatalf("%q %v, want %q", line, err, w)
		}
	}
	if _, err := tr.Read(); err != ErrHalfClosed {
		t.Fatal(err)
	}
}

func TestLineAboveTheLimit(t *testing.T) {
	for _, text := range []string{strings.Repeat("y", 101), strings.Repeat("y", 101) + "\n"} {
		tr, peer := unixPair(t, 100)
		io.WriteString(peer, text)
		_, err := tr.Read()
		if e, ok := errors.AsType[*protocol.Error](err); !ok || e.Code != protocol.RequestTooLarge {
			t.Fatal(err)
		}
	}
}

func TestUnfinishedLineTimesOut(t *testing.T) {
	tr, peer := unixPair(t, 100)
	tr.stall = 50 * time.Millisecond
	io.WriteString(peer, "ok\n{")
	if line, err := tr.Read(); err != nil || string(line) != "ok" {
		t.Fatal(err)
	}
	if _, err := tr.Read(); ReasonOf(err) != ReasonStalled {
		t.Fatal(err)
	}
}

// TestSlowPeer: a write ends when nothing is taken, and only then.
func TestSlowPeer(t *testing.T) {
	t.Parallel() // it mostly waits
	tr, peer := unixPair(t, 100)
	tr.sock.slowLimit = 3 * time.Second // longer than a busy machine keeps the peer waiting
	big := make([]byte, 4<<20)
	slowly := make(chan struct{})
	go func() { // takes a piece several times within patience: never slow, though the whole takes longer
		defer close(slowly)
		piece := make([]byte, 400<<10)
		for n := 0; n < len(big); {
			m, err := peer.Read(piece)
			if err != nil {
				return
			}
			n += m
			time.Sleep(350 * time.Millisecond)
		}
	}()
	if n, err := tr.sock.Write(big); n != len(big) || err != nil {
		t.Fatalf("%d %v", n, err)
	}
	<-slowly
	if tr.sock.lastTaken.ago(time.Now()) == never {
		t.Error("that the peer made room was not noticed")
	}
	if _, err := tr.sock.Write(big); !errors.Is(err, errSlow) {
		t.Fatal(err)
	}
}

// TestLongMessageOfAnotherLength: a frame whose header said another length ends the connection, since nobody could read what follows.
func TestLongMessageOfAnotherLength(t *testing.T) {
	for _, second := range []int{KeepBuffer, KeepBuffer + 2} {
		o := &Outbox{w: io.Discard, seal: sealWebSocket, long: frameHeader}
		calls := 0
		err := o.SendMessage(func(w io.Writer) error {
			calls++
			n := KeepBuffer + 1
			if calls > 2 {
				n = second
			}
			for range n {
				if _, err := w.Write([]byte{'x'}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != errUneven || o.err != errUneven {
			t.Errorf("%v, %v", err, o.err)
		}
	}
	o := &Outbox{w: io.Discard, seal: sealWebSocket, long: frameHeader}
	bad := errors.New("bad")
	if err := o.SendMessage(func(io.Writer) error { return bad }); err != (unwritable{bad}) || o.err != nil {
		t.Errorf("%v, %v", err, o.err)
	}
}

// FuzzFollow: however bytes are cut into reads, the follower of frames says the same of them, and never that more is under way than came.
func FuzzFollow(f *testing.F) {
	masked := func(first byte, length ...byte) []byte { return append(append([]byte{first}, length...), 1, 2, 3, 4) } // a header
	whole := append(masked(0x81, 0x80|2), "{}"...)
	for _, seed := range [][]byte{
		whole, append(whole, whole...), masked(0x88, 0x80), masked(0x82, 0x80|126, 0x40, 0), {0x81}, {0xf1, 0x02},
		append(masked(0x01, 0x80|1), append([]byte("{"), append(masked(0x80, 0x80|1), '}')...)...),                 // in fragments
		append(masked(0x01, 0x80|1), append([]byte("{"), append(masked(0x89, 0x80), masked(0x80, 0x80)...)...)...), // a ping within a message
		masked(0x81, 0x80|127, 0, 0, 0, 0, 0, 0, 4, 1), masked(0x81, 0x80|127, 0x40, 0, 0, 0, 0, 0, 0, 0), bytes.Repeat(masked(0, 0x80), 50),
	} {
		f.Add(seed, uint16(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		whole, pieces := &frames{most: 1 << 10}, &frames{most: 1 << 10}
		whole.follow(data)
		r := bytes.NewReader(data)
		for buf := make([]byte, 1+int(cut)%97); ; {
			n, err := r.Read(buf)
			pieces.follow(buf[:n])
			if err == io.EOF {
				break
			}
		}
		if fmt.Sprint(whole.fault) != fmt.Sprint(pieces.fault) {
			t.Fatalf("%v in one, %v in pieces", whole.fault, pieces.fault)
		}
		if whole.fault == nil && (whole.underway() != pieces.underway() || whole.left != pieces.left || whole.size != pieces.size || whole.pieces != pieces.pieces) {
			t.Fatalf("%+v\n%+v", whole, pieces)
		}
		if len(data) == 0 && whole.underway() {
			t.Fatal("nothing is under way")
		}
	})
}
