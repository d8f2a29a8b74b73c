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

// Link is one end of the socket between keeper and gateway. It sends messages with descriptors, in order. One goroutine receives; any
// goroutine may send. Nothing here has a timeout, because a stopped process is not a dead one. Its owner ends it with Close.
type Link struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	text []byte // owned by the receiver
	oob  []byte // owned by the receiver

	mu       sync.Mutex
	queue    []packet       // guarded by mu; packets for which the socket had no room
	peerGone bool           // guarded by mu: nobody reads what we send
	sender   sync.WaitGroup // sendWhenRoom, which runs while the queue is not empty
}

// NewLink becomes the owner of f.
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

// Send never blocks, so it may be called with locks held; the link queues packets for which the socket has no room. The other side's
// requests and children bound the queue's length. The link becomes the owner of files. An error concerns the message itself. Messages that
// nobody will read are dropped, and Receive reports that.
func (l *Link) Send(m Message, files ...int) error { return l.SendBorrowed(m, files, files) }

// SendBorrowed is Send, but the link becomes the owner only of own; the caller closes the other files, with OnSent.
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
				l.sender.Go(l.sendWhenRoom) // ends with the queue, or with Close, which waits for it
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

// OnSent calls f, which must neither block nor send, when everything sent before has gone out or never will; usually at once.
func (l *Link) OnSent(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.queue); n > 0 {
		l.queue[n-1].after = append(l.queue[n-1].after, f)
		return
	}
	f()
}

// brokenLocked notes that nothing can be sent after err. If the other side is gone, its earlier messages can still be received; after any
// other error half a message may be on its way, so the connection ends. mu is held.
func (l *Link) brokenLocked(err error) {
	if err != nil {
		l.peerGone = true
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			l.conn.Close()
		}
	}
}

// try sends p. wait: it waits for room.
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

// retryPause is the pause when too many descriptors are in flight or the kernel has no memory, because no event reports the end of either.
const retryPause = time.Millisecond

// sendWhenRoom sends the queue.
func (l *Link) sendWhenRoom() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 && !l.peerGone {
		p := l.queue[0] // stays in the queue, so that nothing overtakes it
		l.mu.Unlock()
		sent, err := l.try(p, true)
		if !sent && err == nil {
			time.Sleep(retryPause)
		}
		l.mu.Lock()
		l.brokenLocked(err)
		if sent {
			l.queue[0].Finish() // OnSent may have added functions to it meanwhile
			l.queue = l.queue[1:]
		}
	}
	for _, p := range l.queue { // nobody will receive these
		p.Finish()
	}
	l.queue = nil
}

// Receive returns the next message and its descriptors; the caller becomes their owner. An error ends the link: io.EOF if the other side
// has ended.
func (l *Link) Receive() (m Message, files []int, err error) { return decodeBody(l.receiveBody()) }

// ReceiveHello is Receive for the first message. theirs is the version of the other side; if it is not ours, nothing else is returned.
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

// decodeBody decodes the results of receiveBody.
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

// receiveBody returns the next message undecoded, valid until the next call. The caller becomes the owner of files, also with an error.
func (l *Link) receiveBody() (body []byte, files []int, lost bool, err error) {
	for {
		n, oobn, flags, _, err := l.conn.ReadMsgUnix(l.text, l.oob) // with MSG_CMSG_CLOEXEC
		got, wrong := parseRights(l.oob[:oobn])                     // an empty packet may carry descriptors, and otherwise looks like the end
		files = append(files, got...)
		if errors.Is(err, os.ErrDeadlineExceeded) && len(files) > 0 { // do not stop in the middle of a message
			l.ResumeReceive()
			continue
		}
		if errors.Is(err, unix.ECONNRESET) { // the other side ended without reading everything; its earlier messages come after this error
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

// parseRights returns the descriptors in a control message, also with an error.
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

// InterruptReceive makes Receive return os.ErrDeadlineExceeded, now or after the message that it is receiving.
func (l *Link) InterruptReceive() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) }

// ResumeReceive undoes InterruptReceive.
func (l *Link) ResumeReceive() { _ = l.conn.SetReadDeadline(time.Time{}) }

// Idle says whether everything sent has gone out.
func (l *Link) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) == 0
}

func (l *Link) Descriptor() (fd int) {
	_ = l.raw.Control(func(n uintptr) { fd = int(n) })
	return fd
}

// EndInput makes Receive return what has arrived and then io.EOF, although the other side is still open.
func (l *Link) EndInput() { _ = l.conn.CloseRead() }

// Close ends both directions. It drops queued packets.
func (l *Link) Close() {
	l.mu.Lock()
	l.peerGone = true
	l.mu.Unlock()
	l.conn.Close() // wakes the receiver and the sender
	l.sender.Wait()
}
