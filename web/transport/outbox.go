package transport

import (
	"errors"
	"io"
	"sync"
)

const (
	// headroom is how many bytes stay free before every message, for the longest header that a WebSocket server writes (RFC 6455, section 5.2).
	headroom = 10
	// KeepBuffer is the largest buffer worth keeping: 32 KiB of output in which every byte is escaped.
	KeepBuffer = 256 << 10
)

var errClosing = errors.New("connection is closing")

// Outbox writes all messages of a connection. Each goroutine that has a message writes it here itself, under the lock. So there is no queue that
// could overflow and no further goroutine, and a connection holds one encoded message. If the client is slow, the writer waits in Write and the
// others wait for the lock; through their journals, the commands wait whose output they send.
type Outbox struct {
	w io.Writer // set once
	// set once; puts a message, which begins after headroom, into the transport's frame
	seal func(msg []byte, binary bool) []byte
	// set once; returns what stands before and after a message of n bytes that is written in pieces and not sealed
	long func(n int64) (before, after []byte)
	mu   sync.Mutex
	err  error // guarded by mu; why nothing more can be written: the first failed write, or errClosing after a close frame
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// Send encodes a message and writes it. If it cannot write the whole message, the connection is over.
func (o *Outbox) Send(encode func(dst []byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sendLocked(encode, false)
}

// SendBinary is Send for a binary message.
func (o *Outbox) SendBinary(encode func(dst []byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sendLocked(encode, true)
}

// Message writes a message. Each call writes the same bytes.
type Message func(w io.Writer) error

// unwritable is the error of a message that could not be encoded. Nothing of it was sent.
type unwritable struct{ error }

// errLong means that a message does not fit into a buffer.
var errLong = errors.New("message is long")

// TrySendMessage is SendMessage, unless another goroutine is writing or the message is long, which takes time.
func (o *Outbox) TrySendMessage(m Message) (sent bool, err error) {
	if !o.mu.TryLock() {
		return false, nil
	}
	defer o.mu.Unlock()
	if err = o.shortLocked(m); err == errLong {
		return false, nil
	}
	return true, err
}

// SendMessage encodes a message and writes it. A message that does not fit into a buffer is encoded twice: first to count its bytes, because a frame
// begins with their number, and then in pieces as it is written. Others may write while the bytes are counted.
func (o *Outbox) SendMessage(m Message) error {
	o.mu.Lock()
	err := o.shortLocked(m)
	o.mu.Unlock()
	if err != errLong {
		return err
	}
	var size count
	if err := m(&size); err != nil {
		return unwritable{err}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.longLocked(m, int64(size))
}

// shortLocked writes a message that fits into a buffer, and returns errLong for a longer one. o.mu is held.
func (o *Outbox) shortLocked(m Message) error {
	if o.err != nil {
		return o.err
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	r := room{(*b)[:headroom]}
	err := m(&r)
	*b = r.buf[:0]
	switch {
	case errors.Is(err, errLong):
		return errLong
	case err != nil:
		return unwritable{err}
	}
	_, o.err = o.w.Write(o.seal(r.buf, false))
	return o.err
}

// longLocked writes a long message of the given number of bytes. o.mu is held.
func (o *Outbox) longLocked(m Message, size int64) error {
	if o.err != nil {
		return o.err
	}
	before, after := o.long(size)
	p := pieces{w: o.w, buf: append(make([]byte, 0, KeepBuffer), before...), left: size}
	err := m(&p)
	if err == nil && p.left != 0 {
		err = errUneven
	}
	if err == nil {
		p.buf = append(p.buf, after...)
		err = p.flush()
	}
	o.err = err
	return err
}

// count counts the bytes that are written to it.
type count int64

func (c *count) Write(p []byte) (int, error)       { *c += count(len(p)); return len(p), nil }
func (c *count) WriteString(s string) (int, error) { *c += count(len(s)); return len(s), nil }

// room collects a message that fits into a buffer.
type room struct{ buf []byte }

func (r *room) Write(p []byte) (int, error) {
	if len(r.buf)+len(p) > KeepBuffer {
		return 0, errLong
	}
	r.buf = append(r.buf, p...)
	return len(p), nil
}

func (r *room) WriteString(s string) (int, error) {
	if len(r.buf)+len(s) > KeepBuffer {
		return 0, errLong
	}
	r.buf = append(r.buf, s...)
	return len(s), nil
}

// errUneven means a bug: a message has another length than its frame's header says, so nothing more can be written.
var errUneven = errors.New("message has another length the second time")

// pieces writes a long message, one buffer at a time.
type pieces struct {
	w    io.Writer
	buf  []byte
	left int64
}

func (p *pieces) Write(b []byte) (int, error) {
	if p.left -= int64(len(b)); p.left < 0 {
		return 0, errUneven
	}
	if len(p.buf)+len(b) > KeepBuffer {
		if err := p.flush(); err != nil {
			return 0, err
		}
		if len(b) > KeepBuffer {
			return p.w.Write(b)
		}
	}
	p.buf = append(p.buf, b...)
	return len(b), nil
}

func (p *pieces) flush() error {
	_, err := p.w.Write(p.buf)
	p.buf = p.buf[:0]
	return err
}

func (o *Outbox) sendLocked(encode func(dst []byte) []byte, binary bool) error {
	if o.err != nil {
		return o.err
	}
	b := buffers.Get().(*[]byte)
	msg := encode((*b)[:headroom])
	_, o.err = o.w.Write(o.seal(msg, binary))
	if cap(msg) <= KeepBuffer {
		*b = msg[:0]
		buffers.Put(b)
	}
	return o.err
}

// frame writes a complete frame. last means that no other frame may follow.
func (o *Outbox) frame(p []byte, last bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	if len(p) > 0 { // a net.Pipe would wait for a reader even so
		_, o.err = o.w.Write(p)
	}
	err := o.err
	if last && err == nil {
		o.err = errClosing
	}
	return err
}

// close makes later messages fail. It waits for the one that is being written.
func (o *Outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = errClosing
	}
}
