package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/coder/websocket"
)

// maxPieces is of how many fragments a message may be: 4 MiB, 64 bytes at a time, which is the most that the Autobahn suite tries. Without a
// bound one message is endless for nothing: a fragment may be empty.
const maxPieces = 1 << 16

var errPieces = errors.New("too many fragments")

// frames is what coder/websocket reads from. It follows the headers (RFC 6455 §5.2) as they pass and bounds what the library does not:
// the time that a message takes, from the first byte of its first header on, the number of its fragments, and what it says it will
// have in all, before any of that is read. It refuses nothing else: the library knows the rules.
type frames struct {
	net.Conn
	most  int64      // bytes of a message; set once
	since atomicTime // when the clock of a message that is under way was started; none: nobody waits for one

	// Owned by who reads.
	header [14]byte      // of the frame that is coming
	have   int           // bytes of it
	left   uint64        // bytes of the payload still to come, once the header is whole
	final  bool          // nothing of the message follows this frame
	open   bool          // a message is under way
	pieces int           // frames of it
	size   uint64        // bytes of it, as its headers say
	waited time.Duration // for the rest of it
	fault  error         // what to report instead of reading on; once
	told   bool          // it was: all else is for the close handshake, which reads to the client's answer
}

// Read counts only the time in which it waits: who is slow to handle what came before, or to take our answers, has not stalled.
func (f *frames) Read(p []byte) (int, error) {
	if f.fault != nil && !f.told {
		f.told = true
		return 0, f.fault
	}
	if !f.underway() {
		f.waited = 0
		n, err := f.Conn.Read(p)
		f.follow(p[:n])
		return n, err
	}
	start := time.Now()
	f.since.set(start.Add(-f.waited))
	n, err := f.Conn.Read(p)
	f.since.clear()
	f.waited += time.Since(start)
	f.follow(p[:n])
	return n, err
}

func (f *frames) underway() bool { return f.open || f.have > 0 }

// follow looks at what has come.
func (f *frames) follow(p []byte) {
	for len(p) > 0 && f.fault == nil {
		if f.left > 0 {
			n := min(f.left, uint64(len(p)))
			f.left -= n
			p = p[n:]
			f.ends()
			continue
		}
		f.header[f.have] = p[0]
		f.have++
		p = p[1:]
		if f.have >= 2 && f.have == headerSize(f.header[1]) {
			f.begins()
		}
	}
}

// headerSize is told by a header's second byte: lengths from 126 on take more room, and a mask does.
func headerSize(second byte) int {
	n := 2
	switch second & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if second&0x80 != 0 {
		n += 4
	}
	return n
}

// begins takes a whole header.
func (f *frames) begins() {
	f.left = uint64(f.header[1] & 0x7f)
	switch f.left {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.header[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(f.header[2:])
	}
	if control := f.header[0]&0x8 != 0; !control {
		if !f.open {
			f.open, f.pieces, f.size = true, 0, 0
		}
		f.final = f.header[0]&fin != 0
		f.pieces++
		f.size += f.left
		switch {
		case f.left > uint64(f.most) || f.size > uint64(f.most): // either: the sum may wrap
			f.fault = fmt.Errorf("%w: %d bytes", websocket.ErrMessageTooBig, f.size)
		case f.pieces > maxPieces:
			f.fault = errPieces
		}
	}
	f.ends()
}

// ends is the end of a frame, when nothing of it is left.
func (f *frames) ends() {
	if f.left > 0 {
		return
	}
	if control := f.header[0]&0x8 != 0; !control && f.final {
		f.open = false
	}
	f.have = 0
}
