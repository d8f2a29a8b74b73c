package web

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// quickConn is a connection whose reads and writes do not tell Go's scheduler that they might wait, because they do not:
// what cannot be done at once is Go's poller's to wait for. Told of each, the scheduler wakes its monitor thread for each
// where all was idle, see runtime/quick.
type quickConn struct {
	net.Conn
	raw     syscall.RawConn
	in, out transfer
}

// transfer is one way of a connection.
type transfer struct {
	mu  sync.Mutex // held while p is on its way, as net does
	p   []byte     // what is left to fill or to send
	n   int        // what is done
	err error
	try func(fd uintptr) bool // made once: it would be allocated for every read
}

// quick is c as it is where it is no socket of the kernel's.
func quick(c net.Conn) net.Conn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return c
	}
	q := &quickConn{Conn: c, raw: raw}
	q.in.try, q.out.try = q.in.read, q.out.write
	return q
}

func (q *quickConn) SyscallConn() (syscall.RawConn, error) { return q.raw, nil }

func (q *quickConn) Read(p []byte) (int, error) { return q.do("read", &q.in, p, q.raw.Read) }

func (q *quickConn) Write(p []byte) (int, error) { return q.do("write", &q.out, p, q.raw.Write) }

// do fails as net does, so that net/http knows what it sees.
func (q *quickConn) do(op string, t *transfer, p []byte, untilDone func(func(uintptr) bool) error) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p, t.n, t.err = p, 0, nil
	err := untilDone(t.try)
	t.p = nil
	if wrapped, ok := err.(*net.OpError); ok {
		err = wrapped.Err
	}
	if err == nil {
		err = t.err
	}
	if err == nil || err == io.EOF {
		return t.n, err
	}
	addr := q.RemoteAddr()
	return t.n, &net.OpError{Op: op, Net: addr.Network(), Source: q.LocalAddr(), Addr: addr, Err: err}
}

// read is true when it need not wait.
func (t *transfer) read(fd uintptr) bool {
	n, again := t.call("read", unix.SYS_READ, fd)
	if n == 0 && !again && t.err == nil && len(t.p) > 0 {
		t.err = io.EOF
	}
	return !again
}

// write is true when it need not wait.
func (t *transfer) write(fd uintptr) bool {
	for len(t.p) > 0 && t.err == nil {
		if _, again := t.call("write", unix.SYS_WRITE, fd); again {
			return false
		}
	}
	return true
}

// call moves what the kernel takes or has. again: nothing, for now.
func (t *transfer) call(name string, trap, fd uintptr) (n int, again bool) {
	for {
		r, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.p))), uintptr(len(t.p)))
		switch errno {
		case 0:
			t.p, t.n = t.p[r:], t.n+int(r)
			return int(r), false
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, true
		default:
			t.err = os.NewSyscallError(name, errno)
			return 0, false
		}
	}
}
