package web

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
)

// unixTransport is a Unix-socket connection: one JSON object a line, both ways.
type unixTransport struct {
	sock  *socket
	out   *outbox
	limit int           // of a line; set once
	stall time.Duration // set once

	large       func() error // set once in beforeLarge
	buf         []byte       // owned by read: what came and is not used up
	next        int          // owned by read: where the next line begins in buf
	deadlineSet bool         // owned by read: a deadline is set, for the rest of a line
	eof         bool         // owned by read
}

func newUnixTransport(s *Server, sock *socket) *unixTransport {
	out := &outbox{w: sock, seal: sealLine, long: longLine}
	return &unixTransport{sock: sock, out: out, limit: int(s.live.Load().maxFrame), stall: s.cfg.stall}
}

// sealLine ends a line; there are no binary messages here.
func sealLine(msg []byte, _ bool) []byte { return append(msg, '\n')[headroom:] }

func (t *unixTransport) beforeLarge(f func() error) { t.large = f }

func longLine(int64) (before, after []byte) { return nil, []byte{'\n'} }

func (t *unixTransport) name() string { return transportUnix }

func (t *unixTransport) read() ([]byte, error) {
	scanned := t.next
	for {
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
				return rest, nil // a last line need not end
			}
			return nil, errHalfClosed
		}
		if len(rest) == 0 && cap(t.buf) > keepBuffer {
			t.buf = nil
		}
		t.buf = append(t.buf[:0], rest...)
		scanned, t.next = len(t.buf), 0
		if err := t.fill(); err != nil {
			return nil, err
		}
	}
}

// fill reads more. An idle client may take for ever; one that has begun a line may not.
func (t *unixTransport) fill() error {
	if begun := len(t.buf) > 0; begun != t.deadlineSet {
		var until time.Time
		if begun {
			until = time.Now().Add(t.stall)
		}
		t.deadlineSet = begun
		t.sock.SetReadDeadline(until)
	}
	if len(t.buf) == cap(t.buf) {
		if 2*len(t.buf) > keepBuffer {
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
		t.sock.SetReadDeadline(time.Time{}) // a last line need not end, and awaitHangup waits for as long as its answer takes
	}
	return err
}

func (t *unixTransport) tooLarge() error {
	return protocol.Errorf(protocol.RequestTooLarge, "request exceeds %d bytes", t.limit).With("limit", t.limit)
}

func (t *unixTransport) keepAlive(*conn) {} // the kernel tells when a local peer is gone

// awaitHangup waits in the poller: a peer that closes its receiving side too raises EPOLLHUP, which wakes a reader (unix(7), epoll_ctl(2)).
func (t *unixTransport) awaitHangup() {
	raw, err := t.sock.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		return n > 0 && err == nil && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
}

func (t *unixTransport) sendClose(why closeReason) {
	if why == reasonSlow {
		t.sock.Close()
		return
	}
	t.sock.setFinalDeadline(closeTimeout)
	t.out.frame(nil, true) // a message that is being written goes out whole, none comes after
	t.sock.Close()
}

func (t *unixTransport) close() { t.sock.Close() }

// peerPrincipal is the principal behind a Unix connection: the user that the kernel says is there. Only our own user, and root, get in, whatever
// the socket's mode says.
func peerPrincipal(sock *socket) (Principal, error) {
	raw, err := sock.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return Principal{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Principal{}, err
	}
	if credErr != nil {
		return Principal{}, credErr
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return Principal{}, protocol.Errorf(protocol.AuthFailed, "this socket serves another user")
	}
	return Principal{Subject: "uid:" + strconv.Itoa(int(cred.Uid)), Role: Admin}, nil
}

// listenUnix binds path. The socket is there with mode 0600 or not at all: it is bound inside a directory that is ours alone and linked to
// its place from there. What stands in that place is only removed when it is a socket on which nobody answers.
func listenUnix(path string) (net.Listener, func(), error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".trl") // 0700
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	temporary := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // it is not there any more
	err = os.Chmod(temporary, 0o600)
	if err == nil {
		err = os.Link(temporary, path) // refuses to replace: of two that start at once, one gets it
	}
	var remove func()
	if err == nil {
		remove, err = removal(path)
	}
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, remove, nil
}

// removal takes back the name that a socket has now. It is called before the socket is closed: as long as that lives, its
// inode number is nobody else's.
func removal(path string) (remove func(), err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	ours, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	return func() {
		if now, err := os.Lstat(path); err == nil && os.SameFile(now, ours) {
			os.Remove(path)
		}
	}, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is no socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s is in use", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
