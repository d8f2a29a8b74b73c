package web

import (
	"errors"
	"io"
	"sync"
)

const (
	// headroom is left free before every message, for the longest header that a WebSocket server writes (RFC 6455 §5.2).
	headroom = 10
	// keepBuffer is the largest buffer worth keeping: a 32 KiB chunk of output in which every byte is escaped.
	keepBuffer = 256 << 10
)

var errClosing = errors.New("connection is closing")

// outbox is the one way out of a connection. Whoever has something to say writes it here itself, under the lock: no queue to
// overflow and no goroutine to wait for, and what a connection holds is one encoded message. A writer that finds the client slow waits
// in Write; the rest wait for the lock, and with them, through their journals, the commands that they report.
type outbox struct {
	w io.Writer // set once
	// set once: puts a message, which begins after headroom, into the transport's frame
	seal func(msg []byte, binary bool) []byte
	mu   sync.Mutex
	err  error // guarded by mu; why nothing can follow: the first failed write, or errClosing after a close frame
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// send encodes a message and writes it. A message is written whole or the connection is over.
func (o *outbox) send(encode func(dst []byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sendLocked(encode, false)
}

// sendBinary is send for a message that is not text.
func (o *outbox) sendBinary(encode func(dst []byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sendLocked(encode, true)
}

// trySend is send, unless somebody is writing just now.
func (o *outbox) trySend(encode func(dst []byte) []byte) (sent bool, err error) {
	if !o.mu.TryLock() {
		return false, nil
	}
	defer o.mu.Unlock()
	return true, o.sendLocked(encode, false)
}

func (o *outbox) sendLocked(encode func(dst []byte) []byte, binary bool) error {
	if o.err != nil {
		return o.err
	}
	b := buffers.Get().(*[]byte)
	msg := encode((*b)[:headroom])
	_, o.err = o.w.Write(o.seal(msg, binary))
	if cap(msg) <= keepBuffer {
		*b = msg[:0]
		buffers.Put(b)
	}
	return o.err
}

// frame writes a frame that is already in the transport's form; last says that none may follow it.
func (o *outbox) frame(p []byte, last bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	_, o.err = o.w.Write(p)
	err := o.err
	if last && err == nil {
		o.err = errClosing
	}
	return err
}
