package link

import (
	"net"
	"time"
)

// streamPiece is how many bytes of a stream a message has at most.
const streamPiece = 64 << 10

// Stream is a link that carries bytes instead of messages: an HTTP connection from one node to another. net/http uses it as a net.Conn, so it has read
// deadlines. A write needs no deadline: it fails when the other end takes nothing for Limits.Stall, or when the link ends. There is no queue: what the
// reader does not take stays on the network.
type Stream struct {
	link    *Conn
	out, in net.Conn      // a pipe; the goroutine of NewStream writes to in, Read reads from out
	ended   chan struct{} // closed when that goroutine has ended
}

// NewStream makes a stream of a link from which nothing has been read. Close ends both.
func NewStream(c *Conn) *Stream {
	s := &Stream{link: c, ended: make(chan struct{})}
	s.out, s.in = net.Pipe()
	go func() { // passes on what comes; ends with the link, or in Close, which waits for it
		defer close(s.ended)
		defer s.in.Close()
		for {
			_, msg, err := c.Read()
			if err != nil {
				return
			}
			if _, err := s.in.Write(msg); err != nil {
				return
			}
		}
	}()
	return s
}

func (s *Stream) Read(p []byte) (int, error) { return s.out.Read(p) }

func (s *Stream) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), streamPiece)]
		if err := s.link.Send(Binary, piece); err != nil {
			return n, err
		}
		n, p = n+len(piece), p[len(piece):]
	}
	return n, nil
}

// Close ends the stream. At the end that has taken the link it waits until the other end has got everything, about a second at most: a socket that is
// closed while something has come that nobody has read would make the kernel drop what is still on its way.
func (s *Stream) Close() error {
	s.in.Close()
	s.out.Close()
	if s.link.wire.masks {
		s.link.Drop()
	} else {
		s.link.Close(1000, "")
	}
	<-s.ended
	return nil
}

// LocalAddr returns the address of the link's socket.
func (s *Stream) LocalAddr() net.Addr { return s.link.wire.LocalAddr() }

// RemoteAddr returns the address of the other node.
func (s *Stream) RemoteAddr() net.Addr { return s.link.wire.RemoteAddr() }

// SetDeadline bounds reads.
func (s *Stream) SetDeadline(t time.Time) error { return s.SetReadDeadline(t) }

// SetReadDeadline bounds reads.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.out.SetReadDeadline(t) }

// SetWriteDeadline does nothing, see Stream.
func (s *Stream) SetWriteDeadline(time.Time) error { return nil }
