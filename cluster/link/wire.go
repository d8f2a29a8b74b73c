package link

import (
	"cmp"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// socket is a TCP connection below TLS. A write fails when the peer takes nothing for a while. It must be below TLS, because a TLS connection is
// unusable after a write that was given up.
type socket struct {
	net.Conn
	stall   time.Duration
	final   atomic.Bool // expireAfter has set the last deadline
	onClose func()      // called when the other end is no stranger any more, and by each Close
}

func newSocket(c net.Conn, stall time.Duration, onClose func()) *socket {
	return &socket{Conn: c, stall: stall, onClose: onClose}
}

// stallChecks is how often, within stall, a write checks whether the peer has taken something.
const stallChecks = 8

// Write goes on as long as the peer takes anything.
func (s *socket) Write(p []byte) (n int, err error) {
	for took := time.Now(); ; {
		start := time.Now()
		if !s.final.Load() {
			s.SetWriteDeadline(start.Add(s.stall / stallChecks))
			if s.final.Load() { // expireAfter was called meanwhile, and its deadline has been overwritten
				s.SetWriteDeadline(start)
			}
		}
		m, err := s.Conn.Write(p[n:])
		n += m
		if m > 0 {
			took = time.Now()
		}
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case s.final.Load():
			return n, ErrClosed
		case time.Since(took) >= s.stall:
			return n, ErrStalled
		}
	}
}

// expireAfter bounds all later reading and writing.
func (s *socket) expireAfter(d time.Duration) {
	s.final.Store(true)
	s.SetDeadline(time.Now().Add(d))
}

func (s *socket) Close() error {
	s.onClose()
	return s.Conn.Close()
}

// wire is the connection that coder/websocket reads from, above TLS. Data and pings are written past the library, one system call for each, because
// the library drops a connection whose control frame waits for five seconds, and a client that is slow to read makes frames wait. The library writes
// only the close frame, which passes through Write.
type wire struct {
	net.Conn // TLS, or sock
	sock     *socket
	masks    bool          // this end masks its frames, as RFC 6455 wants it of the dialer
	silence  time.Duration // a read fails when nothing comes for this long

	waitUntil time.Time // owned by the reader; the read deadline

	errMu    sync.Mutex // not mu, which a writer holds as long as it waits
	readErr  error      // guarded by errMu; the first error of a read
	writeErr error      // guarded by errMu; the first error of a write

	mu      sync.Mutex
	left    int64 // guarded by mu; how many bytes of the frame in progress are still to be written
	closing bool  // guarded by mu; a close frame has been written: no frame may follow
	fault   error // guarded by mu; why nothing more can be written
}

// Read fails with ErrSilent when nothing comes for the time of silence. It counts only while it waits: a relay that does not read, because its client
// is slow, is not told that its peer is silent.
func (w *wire) Read(p []byte) (int, error) {
	if !w.sock.final.Load() {
		if now := time.Now(); w.waitUntil.Sub(now) < w.silence*7/8 {
			w.waitUntil = now.Add(w.silence)
			w.SetReadDeadline(w.waitUntil)
			if w.sock.final.Load() { // as in socket.Write
				w.SetReadDeadline(now)
			}
		}
	}
	n, err := w.Conn.Read(p)
	if err == nil {
		return n, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && !w.sock.final.Load() {
		err = ErrSilent
	}
	w.errMu.Lock()
	w.readErr = cmp.Or(w.readErr, err)
	w.errMu.Unlock()
	return n, err
}

// errors returns the first error of a read and that of a write; nil: there was none.
func (w *wire) errors() (read, write error) {
	w.errMu.Lock()
	defer w.errMu.Unlock()
	return w.readErr, w.writeErr
}

// Write writes what the library writes: the request that opens the connection, and close frames, each in one call.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkLocked(); err != nil {
		return 0, err
	}
	if len(p) > 0 && p[0] == fin|opClose {
		w.closing = true
	}
	return w.putLocked(p)
}

// checkLocked returns why no frame can begin now. mu is held.
func (w *wire) checkLocked() error {
	switch {
	case w.fault != nil:
		return w.fault
	case w.closing:
		return ErrClosed
	case w.left > 0:
		return errInsideFrame
	}
	return nil
}

func (w *wire) putLocked(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	if err != nil {
		w.fault = err // what was written may end inside a frame
		w.errMu.Lock()
		w.writeErr = err
		w.errMu.Unlock()
		w.sock.expireAfter(closeTimeout) // the other end may have said why: Read finds out
	}
	return n, err
}

// errInsideFrame means that a frame was to be written while the writer of Frames is inside another one.
var errInsideFrame = errors.New("inside a frame")

const (
	opClose = 0x8
	opPing  = 0x9
	fin     = 0x80
	masked  = 0x80
	// pieceSize is how much of a message is masked and written at a time.
	pieceSize = 256 << 10
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// send writes a message in one frame.
func (w *wire) send(kind Kind, p []byte) error {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	key := [4]byte{}
	if w.masks {
		binary.LittleEndian.PutUint32(key[:], rand.Uint32())
	}
	msg := w.appendHeader((*b)[:0], byte(kind), len(p), key)
	piece := p[:min(len(p), pieceSize)]
	msg = append(msg, piece...)
	mask(msg[len(msg)-len(piece):], key)
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.checkLocked()
	for err == nil {
		*b = msg[:0]
		if _, err = w.putLocked(msg); err != nil || len(piece) == len(p) {
			break
		}
		p = p[len(piece):] // pieceSize is a multiple of the key's length
		piece = p[:min(len(p), pieceSize)]
		msg = append(msg[:0], piece...)
		mask(msg, key)
	}
	return err
}

// ping writes a ping, unless a message is being written, which is a sign of life as well.
func (w *wire) ping() {
	if !w.mu.TryLock() {
		return
	}
	defer w.mu.Unlock()
	if w.checkLocked() == nil {
		_, _ = w.putLocked(w.appendHeader(make([]byte, 0, 6), opPing, 0, [4]byte{}))
	}
}

// appendHeader appends the header of a final frame with n bytes of payload (RFC 6455, section 5.2).
func (w *wire) appendHeader(dst []byte, op byte, n int, key [4]byte) []byte {
	mask := byte(0)
	if w.masks {
		mask = masked
	}
	dst = append(dst, fin|op)
	switch {
	case n < 126:
		dst = append(dst, mask|byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, mask|126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, mask|127), uint64(n))
	}
	if w.masks {
		dst = append(dst, key[:]...)
	}
	return dst
}

// mask masks p, which begins at a multiple of four bytes of its message.
func mask(p []byte, key [4]byte) {
	if key == [4]byte{} {
		return
	}
	var keys [1 << 10]byte
	n := copy(keys[:], key[:])
	for n < min(len(keys), len(p)) {
		n += copy(keys[n:], keys[:n])
	}
	for len(p) > 0 {
		p = p[subtle.XORBytes(p, p, keys[:n]):]
	}
}

// frameWriter is the writer that Conn.Frames returns.
type frameWriter struct{ w *wire }

var errUnevenFrame = errors.New("not a whole frame of a server")

// Write takes a frame, or the next piece of one. The header of a frame lies in one call.
func (f frameWriter) Write(p []byte) (int, error) {
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == 0 {
		if err := w.checkLocked(); err != nil {
			return 0, err
		}
		size, ok := frameSize(p)
		if !ok {
			return 0, errUnevenFrame
		}
		w.left = size
		if p[0] == fin|opClose {
			w.closing = true
		}
	} else if w.fault != nil {
		return 0, w.fault
	}
	if int64(len(p)) > w.left {
		return 0, errUnevenFrame
	}
	n, err := w.putLocked(p)
	w.left -= int64(n)
	return n, err
}

// frameSize returns the length of the unmasked frame whose header begins p.
func frameSize(p []byte) (size int64, ok bool) {
	if len(p) < 2 || p[1]&masked != 0 {
		return 0, false
	}
	switch n := int64(p[1]); {
	case n < 126:
		return 2 + n, true
	case n == 126 && len(p) >= 4:
		return 4 + int64(binary.BigEndian.Uint16(p[2:])), true
	case n == 127 && len(p) >= 10:
		long := binary.BigEndian.Uint64(p[2:])
		return 10 + int64(long), long < 1<<62
	}
	return 0, false
}

var _ io.Writer = frameWriter{}
