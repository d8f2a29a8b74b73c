package wire

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// A link is one end of the socket between keeper and gateway: messages with descriptors, in order. One goroutine
// receives, any may send. Nothing here times out: a stopped process is not a dead one. Its owner ends it with close.
type Link struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	text []byte // owned by the receiver
	oob  []byte // owned by the receiver

	mu       sync.Mutex
	queue    []packet       // guarded by mu; what the socket had no room for
	peerGone bool           // guarded by mu: nobody reads what we send
	sender   sync.WaitGroup // sendWhenRoom, which runs while the queue is not empty
}

// NewLink takes f.
func NewLink(f *os.File) (*Link, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("keeper socket: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok || conn.LocalAddr().Network() != "unixpacket" {
		c.Close()
		return nil, fmt.Errorf("keeper socket %s: %w", f.Name(), fs.ErrInvalid)
	}
	l := &Link{conn: conn, text: make([]byte, MaxInline+1), oob: make([]byte, unix.CmsgSpace(4*MaxRights))}
	if l.raw, err = conn.SyscallConn(); err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

// Send never waits, so that it may be called with locks held: what the socket has no room for is queued. The queue is as
// long as the other side's requests and children are many. The files become the link's. An error is the message's own;
// what nobody will read any more is dropped, and the receiver learns of that.
func (l *Link) Send(m Message, files ...int) error { return l.SendBorrowed(m, files, files) }

// SendBorrowed is send, but only those of the files that are its own become the link's: the others are closed by after.
func (l *Link) SendBorrowed(m Message, files, own []int) error {
	packets, err := Pack(m, files, own)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range packets {
		if len(l.queue) == 0 && !l.peerGone {
			sent, err := l.try(p, false)
			if l.brokenLocked(err); !sent && err == nil {
				l.sender.Go(l.sendWhenRoom) // ends with the queue, or with close, which waits for it
				l.queue = append(l.queue, p)
				continue
			}
		} else if !l.peerGone {
			l.queue = append(l.queue, p)
			continue
		}
		p.Finish()
	}
	return nil
}

// OnSent calls f, which neither waits nor sends, when all that was sent before has gone out or never will: mostly at once.
func (l *Link) OnSent(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.queue); n > 0 {
		l.queue[n-1].after = append(l.queue[n-1].after, f)
		return
	}
	f()
}

// brokenLocked: nothing can be sent after err. What was sent to us before can still be received if the other side is
// gone; after any other error, half a message may be on its way. mu is held.
func (l *Link) brokenLocked(err error) {
	if err != nil {
		l.peerGone = true
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			l.conn.Close()
		}
	}
}

// try sends p; wait: once there is room.
func (l *Link) try(p packet, wait bool) (sent bool, err error) {
	var rights []byte
	if len(p.files) > 0 {
		rights = unix.UnixRights(p.files...)
	}
	failed := l.raw.Write(func(fd uintptr) bool {
		for {
			_, err = unix.SendmsgN(int(fd), p.text, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			switch err {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				return !wait
			default:
				return true
			}
		}
	})
	switch {
	case failed != nil:
		return false, failed
	case err == unix.EAGAIN, err == unix.ETOOMANYREFS, err == unix.ENOBUFS, err == unix.ENOMEM:
		return false, nil
	}
	return err == nil, os.NewSyscallError("sendmsg", err)
}

// retryPause is the pause when too many descriptors are on their way, or the kernel has no memory; nothing tells the end.
const retryPause = time.Millisecond

// sendWhenRoom empties the queue.
func (l *Link) sendWhenRoom() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 && !l.peerGone {
		p := l.queue[0] // stays there meanwhile, so that nothing overtakes it
		l.mu.Unlock()
		sent, err := l.try(p, true)
		if !sent && err == nil {
			time.Sleep(retryPause)
		}
		l.mu.Lock()
		l.brokenLocked(err)
		if sent {
			l.queue[0].Finish() // p may have got more meanwhile
			l.queue = l.queue[1:]
		}
	}
	for _, p := range l.queue { // nobody will take it
		p.Finish()
	}
	l.queue = nil
}

// Receive returns the next message and its descriptors, which become the caller's. An error ends the link: io.EOF when the
// other side has.
func (l *Link) Receive() (m Message, files []int, err error) { return decodeBody(l.receiveBody()) }

// ReceiveHello is receive for the first message. theirs is the version of the other side, when that is all we understand.
func (l *Link) ReceiveHello() (m Message, files []int, theirs int, err error) {
	body, files, lost, err := l.receiveBody()
	if v := VersionOf(body); err == nil && v != Version {
		descriptor.CloseAll(files)
		return m, nil, v, nil
	}
	m, files, err = decodeBody(body, files, lost, err)
	if err == nil && m.Op != OpHello {
		descriptor.CloseAll(files)
		err = fmt.Errorf("message %s before hello: %w", m.Op, fs.ErrInvalid)
	}
	return m, files, Version, err
}

// decodeBody decodes what receiveBody returned.
func decodeBody(body []byte, files []int, lost bool, err error) (Message, []int, error) {
	var m Message
	if err == nil {
		m, err = decode(body)
	}
	if err == nil && !lost && len(files) != m.Files {
		err = fmt.Errorf("message %s with %d descriptors instead of %d: %w", m.Op, len(files), m.Files, fs.ErrInvalid)
	}
	if err != nil || lost {
		descriptor.CloseAll(files)
		files = nil
	}
	m.Lost = lost
	return m, files, err
}

// receiveBody returns the next message as it came, valid until the next call. The files are the caller's, also with an
// error.
func (l *Link) receiveBody() (body []byte, files []int, lost bool, err error) {
	for {
		n, oobn, flags, _, err := l.conn.ReadMsgUnix(l.text, l.oob) // with MSG_CMSG_CLOEXEC
		got, wrong := parseRights(l.oob[:oobn])                     // there may be some with an empty packet too, which reads like the end
		files = append(files, got...)
		if errors.Is(err, os.ErrDeadlineExceeded) && len(files) > 0 { // not in the midst of a message
			l.ResumeReceive()
			continue
		}
		if errors.Is(err, unix.ECONNRESET) { // it ended without reading all; what it sent before comes after this
			continue
		}
		if err = errors.Join(err, wrong); err != nil {
			return nil, files, false, err
		}
		lost = lost || flags&unix.MSG_CTRUNC != 0
		if n == 0 || flags&unix.MSG_TRUNC != 0 || len(files) > maxFiles {
			return nil, files, false, fmt.Errorf("packet of %d bytes, %d descriptors: %w", n, len(files), fs.ErrInvalid)
		}
		switch kind, rest := l.text[0], l.text[1:n]; {
		case kind == Inline:
			return rest, files, lost, nil
		case kind == InFile && n == 1 && len(got) > 0:
			first := len(files) - len(got)
			body, err := ReadSealed(got[0])
			unix.Close(got[0])
			return body, append(files[:first], got[1:]...), lost, err
		case kind == Parcel && n == 1:
		default:
			return nil, files, false, fmt.Errorf("packet %#x of %d bytes: %w", kind, n, fs.ErrInvalid)
		}
	}
}

// parseRights are the descriptors in a control message; what is there is returned also with an error.
func parseRights(oob []byte) (files []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		fds, wrong := unix.ParseUnixRights(&m)
		files, err = append(files, fds...), errors.Join(err, wrong)
	}
	return files, err
}

// InterruptReceive makes receive return os.ErrDeadlineExceeded, now or after the message that it has begun with.
func (l *Link) InterruptReceive() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) }

// ResumeReceive undoes hush.
func (l *Link) ResumeReceive() { _ = l.conn.SetReadDeadline(time.Time{}) }

// Idle: all that was sent has gone out.
func (l *Link) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) == 0
}

// Descriptor is the socket's number.
func (l *Link) Descriptor() (fd int) {
	_ = l.raw.Control(func(n uintptr) { fd = int(n) })
	return fd
}

// EndInput makes receive return what has been sent to us, and then io.EOF, although the other side is still open.
func (l *Link) EndInput() { _ = l.conn.CloseRead() }

// Close ends both directions. What is queued is dropped.
func (l *Link) Close() {
	l.mu.Lock()
	l.peerGone = true
	l.mu.Unlock()
	l.conn.Close() // wakes the receiver and the sender
	l.sender.Wait()
}
