package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// A stream has a number on its connection (stream_no, see "Binary frames" in PROTOCOL.md). The owner of a session numbers the streams of one link, and
// the gateway numbers those of its own sessions, so the same number may come from several of them. The client's number is the owner's times Stride,
// plus the number of the link. This needs no table, which would grow with every stream of a long connection, and it maps no two streams to one number.
const (
	// Stride is the step in which a gateway of a cluster numbers the streams of its own sessions: as link 0.
	Stride = 1 << 12
	// MaxLinks is how many links one connection of a client can have in its life.
	MaxLinks = Stride - 1
	// maxNumber is the largest number that the owner of a session may use: clients in JavaScript count up to 2^53 exactly.
	maxNumber = 1<<53/Stride - 1
)

// ErrStreamNumber means that an owner sent a message whose stream number cannot be mapped.
var ErrStreamNumber = errors.New("stream number out of range or malformed")

// Numbers maps the stream numbers of one link to those of the client's connection.
type Numbers struct{ link uint64 }

// NewNumbers returns the Numbers of the nth link of a client's connection; the first one is 1. A number must not be used for a second link of the same
// connection.
func NewNumbers(nth int) (Numbers, error) {
	if nth < 1 || nth > MaxLinks {
		return Numbers{}, fmt.Errorf("link %d of a connection: it can have %d", nth, MaxLinks)
	}
	return Numbers{uint64(nth)}, nil
}

// ToClient returns the client's number of a stream that the owner knows as no.
func (n Numbers) ToClient(no uint64) (uint64, error) {
	if no < 1 || no > maxNumber {
		return 0, fmt.Errorf("%w: %d", ErrStreamNumber, no)
	}
	return no*Stride + n.link, nil
}

// ToOwner is the reverse of ToClient. ok is false for a number of another link.
func (n Numbers) ToOwner(no uint64) (owner uint64, ok bool) {
	owner = no / Stride
	return owner, no%Stride == n.link && owner >= 1 && owner <= maxNumber
}

// AppendBinary appends a binary frame of the owner with the client's number. All other bytes stay as they are.
func (n Numbers) AppendBinary(dst, frame []byte) ([]byte, error) {
	if len(frame) < 2 {
		return dst, fmt.Errorf("%w: a frame of %d bytes", ErrStreamNumber, len(frame))
	}
	no, size := binary.Uvarint(frame[1:])
	if size <= 0 {
		return dst, fmt.Errorf("%w: no number in the frame", ErrStreamNumber)
	}
	mapped, err := n.ToClient(no)
	if err != nil {
		return dst, err
	}
	dst = binary.AppendUvarint(append(dst, frame[0]), mapped)
	return append(dst, frame[1+size:]...), nil
}

// AppendText appends a text message of the owner. If it is an answer or the event stream.started or input.refused, and its data has a stream_no, this
// gets the client's number. All other bytes stay as they are. msg is JSON that has no escapes in the names of its fields, as trl writes it.
func (n Numbers) AppendText(dst, msg []byte) ([]byte, error) {
	from, to := findStreamNo(msg)
	if from == 0 {
		return append(dst, msg...), nil
	}
	no, err := strconv.ParseUint(string(msg[from:to]), 10, 64)
	if err != nil {
		return dst, fmt.Errorf("%w: %.20q", ErrStreamNumber, msg[from:to])
	}
	mapped, err := n.ToClient(no)
	if err != nil {
		return dst, err
	}
	dst = strconv.AppendUint(append(dst, msg[:from]...), mapped, 10)
	return append(dst, msg[to:]...), nil
}

var (
	eventPrefix   = []byte(`{"event":"`)
	startedPrefix = []byte(`{"event":"stream.started"`)
	refusedPrefix = []byte(`{"event":"input.refused"`)
	streamNoName  = []byte(`"stream_no"`)
	dataName      = []byte(`"data"`)
	terminalName  = []byte(`"terminal"`)
)

// findStreamNo returns where the value of the field stream_no of the field data lies, or of the field terminal of data (session.create), or 0, 0 if there
// is none. Few messages contain the name at all, and only those are parsed: a command's environment or labels may contain a field of that name, too, but
// elsewhere.
func findStreamNo(msg []byte) (from, to int) {
	if bytes.HasPrefix(msg, eventPrefix) && !bytes.HasPrefix(msg, startedPrefix) && !bytes.HasPrefix(msg, refusedPrefix) {
		return 0, 0
	}
	if !bytes.Contains(msg, streamNoName) {
		return 0, 0
	}
	depth, inData, inTerminal := 0, false, false // the fields that are being read: of the outermost object, and of data
	for i := 0; i < len(msg); i++ {
		switch msg[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			start := i
			if i = endOfString(msg, i); i >= len(msg) {
				return 0, 0
			}
			value := skipSpace(msg, i+1)
			if value >= len(msg) || msg[value] != ':' { // not the name of a field
				continue
			}
			name := msg[start : i+1]
			switch {
			case depth == 1:
				inData = bytes.Equal(name, dataName)
			case depth == 2 && inData && bytes.Equal(name, terminalName):
				inTerminal = true
			case depth == 2 && inData && !bytes.Equal(name, streamNoName):
				inTerminal = false
			case depth == 2 && inData, depth == 3 && inData && inTerminal && bytes.Equal(name, streamNoName):
				from = skipSpace(msg, value+1)
				return from, from + endOfNumber(msg[from:])
			}
		}
	}
	return 0, 0
}

// endOfString returns the index of the quote that ends the string that begins at i, or len(p).
func endOfString(p []byte, i int) int {
	for i++; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return len(p)
}

func skipSpace(p []byte, i int) int {
	for i < len(p) && (p[i] == ' ' || p[i] == '\t' || p[i] == '\n' || p[i] == '\r') {
		i++
	}
	return i
}

// endOfNumber returns the length of the value at the beginning of p, which ends at a space, a comma or a bracket.
func endOfNumber(p []byte) int {
	if i := bytes.IndexAny(p, " \t\r\n,}]"); i >= 0 {
		return i
	}
	return len(p)
}
