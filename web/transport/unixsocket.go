package transport

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
)

// UnixSocket is a connection over a Unix socket, or inside this process: one JSON object per line, both ways.
type UnixSocket struct {
	name  string // set once
	sock  *Socket
	out   *Outbox
	limit int           // bytes of a line; set once
	stall time.Duration // set once

	large       func() error // set once in BeforeLarge
	buf         []byte       // owned by Read; bytes that have come and are not used yet
	next        int          // owned by Read; where the next line begins in buf
	deadlineSet bool         // owned by Read; a deadline is set for the rest of a line
	eof         bool         // owned by Read
	spoke       bool         // owned by Read; the first bytes have shown that the client sends lines
	http        atomic.Bool  // the client speaks HTTP, so the connection goes on without this transport
}

// NewUnixSocket returns the transport of an accepted connection.
func NewUnixSocket(sock *Socket, limits Limits) *UnixSocket {
	out := &Outbox{w: sock, seal: sealLine, long: longLine}
	return &UnixSocket{name: UnixName, sock: sock, out: out, limit: int(limits.MaxFrame), stall: limits.Stall}
}

// NewInProcess returns a transport over one end of a net.Pipe, whose other end is a client in this process. The connection ends when the client reads
// nothing for slowLimit.
func NewInProcess(end net.Conn, limits Limits, slowLimit time.Duration) *UnixSocket {
	t := NewUnixSocket(NewSocket(end, slowLimit, func() {}), limits)
	t.name = InProcessName
	return t
}

// IsBinary returns false: every message is a line.
func (t *UnixSocket) IsBinary() bool { return false }

// TakesInput returns false.
func (t *UnixSocket) TakesInput() bool { return false }

// Outbox returns the connection's Outbox.
func (t *UnixSocket) Outbox() *Outbox { return t.out }

// sealLine ends a line. A Unix socket has no binary messages.
func sealLine(msg []byte, _ bool) []byte { return append(msg, '\n')[headroom:] }

// BeforeLarge sets what Read calls before a line above KeepBuffer.
func (t *UnixSocket) BeforeLarge(f func() error) { t.large = f }

func longLine(int64) (before, after []byte) { return nil, []byte{'\n'} }

// Name is UnixName or InProcessName.
func (t *UnixSocket) Name() string { return t.name }

// httpMethods begin the first request of a client that speaks HTTP. No JSON object begins like this.
var httpMethods = [][]byte{[]byte("POST /"), []byte("GET /"), []byte("HEAD /"), []byte("OPTIONS /"), []byte("DELETE /")}

// speaksHTTP reports whether the first bytes are those of HTTP, and whether they are enough to decide.
func speaksHTTP(first []byte) (http, decided bool) {
	decided = true
	for _, m := range httpMethods {
		if bytes.HasPrefix(first, m) {
			return true, true
		}
		decided = decided && !bytes.HasPrefix(m, first)
	}
	return false, decided
}

// Read returns the next line that is not empty. It returns ErrHTTP if the first bytes are those of HTTP. Then this transport leaves the connection alone:
// HTTP returns it.
func (t *UnixSocket) Read() ([]byte, error) {
	scanned := t.next
	for {
		if !t.spoke && len(t.buf) > 0 {
			http, decided := speaksHTTP(t.buf)
			if http {
				t.sock.unread, t.buf = t.buf, nil
				t.sock.SetReadDeadline(time.Time{})
				t.http.Store(true)
				return nil, ErrHTTP
			}
			t.spoke = decided
		}
		if i := bytes.IndexByte(t.buf[scanned:], '\n'); i >= 0 {
			line := t.buf[t.next : scanned+i]
			t.next = scanned + i + 1
			scanned = t.next
			if len(line) > t.limit {
				return nil, t.tooLarge()
			}
			if line = bytes.TrimSpace(line); len(line) > 0 {
				return line, nil
			}
			continue
		}
		rest := t.buf[t.next:]
		if len(rest) > t.limit {
			return nil, t.tooLarge()
		}
		if t.eof {
			t.buf, t.next = nil, 0
			if rest = bytes.TrimSpace(rest); len(rest) > 0 {
				return rest, nil // the last line need not have a newline
			}
			return nil, ErrHalfClosed
		}
		if len(rest) == 0 && cap(t.buf) > KeepBuffer {
			t.buf = nil
		}
		t.buf = append(t.buf[:0], rest...)
		scanned, t.next = len(t.buf), 0
		if err := t.fill(); err != nil {
			return nil, err
		}
	}
}

// fill reads more bytes. An idle client may stay silent for ever; one that has begun a line may not.
func (t *UnixSocket) fill() error {
	if begun := len(t.buf) > 0; begun != t.deadlineSet {
		var until time.Time
		if begun {
			until = time.Now().Add(t.stall)
		}
		t.deadlineSet = begun
		t.sock.SetReadDeadline(until)
	}
	if len(t.buf) == cap(t.buf) {
		if 2*len(t.buf) > KeepBuffer {
			if err := t.large(); err != nil {
				return err
			}
		}
		t.buf = append(t.buf, make([]byte, max(len(t.buf), 1<<10))...)[:len(t.buf)]
	}
	n, err := t.sock.Read(t.buf[len(t.buf):cap(t.buf)])
	t.buf = t.buf[:len(t.buf)+n]
	if err == io.EOF {
		t.eof, err = true, nil
		t.sock.SetReadDeadline(time.Time{}) // the last line need not have a newline, and AwaitHangup waits as long as its answer takes
	}
	return err
}

func (t *UnixSocket) tooLarge() error {
	return protocol.Errorf(protocol.RequestTooLarge, "request exceeds %d bytes", t.limit).With("limit", t.limit)
}

// HTTP returns the connection, from its first byte on, if Read has returned ErrHTTP; else nil.
func (t *UnixSocket) HTTP() *Socket {
	if t.http.Load() {
		return t.sock
	}
	return nil
}

// KeepAlive does nothing: the kernel reports when a local peer is gone.
func (t *UnixSocket) KeepAlive(context.Context, func(CloseReason), func(error)) {}

// AwaitHangup waits in the poller. When the peer closes its receiving side too, it gets EPOLLHUP, which wakes a reader (unix(7), epoll_ctl(2)). A
// client in this process cannot close one side only, so it is gone.
func (t *UnixSocket) AwaitHangup() {
	c, ok := t.sock.Conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		return n > 0 && err == nil && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
}

// SendClose lets a message that is being written go out, and closes the connection.
func (t *UnixSocket) SendClose(why CloseReason) {
	if t.http.Load() {
		return
	}
	if why == ReasonSlow {
		t.sock.Close()
		return
	}
	t.sock.setFinalDeadline(CloseTimeout)
	t.out.frame(nil, true) // a message that is being written goes out complete, and none follows
	t.sock.Close()
}

// Close drops the connection.
func (t *UnixSocket) Close() {
	if !t.http.Load() {
		t.sock.Close()
	}
}
