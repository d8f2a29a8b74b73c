package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/coder/websocket"
)

// maxPieces is how many fragments a message may have: 4 MiB in pieces of 64 bytes, the most that the Autobahn suite tries. Without this bound a
// message could go on without end, because a fragment may be empty.
const maxPieces = 1 << 16

var errPieces = errors.New("too many fragments")

// frames is the connection from which coder/websocket reads. It parses the frame headers (RFC 6455, section 5.2) as they pass, and bounds what the
// library does not: the time of a message from the first byte of its first header, its number of fragments, and its announced size, before any of it
// is read. It refuses nothing else, because the library checks the rules.
type frames struct {
	net.Conn
	most  int64      // how many bytes a message may have; set once
	since atomicTime // when the clock of the message in progress was started; none: no message is awaited

	// Owned by the goroutine that reads.
	header [14]byte      // the header of the next frame
	have   int           // how many bytes of the header have come
	left   uint64        // how many bytes of the payload are still to come, once the header is complete
	final  bool          // this frame is the last of its message
	open   bool          // a message is in progress
	pieces int           // how many frames it has
	size   uint64        // how many bytes it has, according to its headers
	waited time.Duration // how long the reader has waited for the rest of it
	fault  error         // the error to report once, instead of reading on
	told   bool          // fault has been reported; what is read now belongs to the close handshake
}

// Read counts only the time in which it waits. A client does not stall while the server handles earlier messages or the client is slow to read
// answers.
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

// follow parses the bytes that have come.
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

// headerSize returns the length of a header from its second byte: lengths of 126 and more take more room, and so does a mask.
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

// begins handles a complete header.
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
		case f.left > uint64(f.most) || f.size > uint64(f.most): // both, because the sum may overflow
			f.fault = fmt.Errorf("%w: %d bytes", websocket.ErrMessageTooBig, f.size)
		case f.pieces > maxPieces:
			f.fault = errPieces
		}
	}
	f.ends()
}

// ends handles the end of a frame, when its payload is complete.
func (f *frames) ends() {
	if f.left > 0 {
		return
	}
	if control := f.header[0]&0x8 != 0; !control && f.final {
		f.open = false
	}
	f.have = 0
}
