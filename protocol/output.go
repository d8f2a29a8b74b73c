package protocol

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The encodings of bytes in JSON.
const (
	UTF8   = "utf-8"
	Base64 = "base64"
)

// AppendOutput appends the event of a piece of output, with the same bytes as AppendEvent. Every byte that a command prints passes through here, so it
// allocates nothing if dst has room.
func AppendOutput(dst []byte, event string, o *Output) []byte {
	const frame = 256                                        // names, ids and numbers
	dst = slices.Grow(dst, frame+len(o.Data)+len(o.Data)/16) // a line feed in sixteen bytes; text with more escapes makes dst grow further
	dst = appendQuoted(append(dst, `{"event":`...), event)
	return append(o.append(append(dst, `,"data":`...)), '}')
}

func (o *Output) append(dst []byte) []byte {
	dst = appendQuoted(append(dst, `{"stream_id":`...), o.StreamID)
	if o.ExecID != "" {
		dst = appendQuoted(append(dst, `,"exec_id":`...), o.ExecID)
	}
	if o.ProcessID != "" {
		dst = appendQuoted(append(dst, `,"process_id":`...), o.ProcessID)
	}
	if o.TermID != "" {
		dst = appendQuoted(append(dst, `,"term_id":`...), o.TermID)
	}
	dst = strconv.AppendInt(append(dst, `,"offset":`...), o.Offset, 10)
	dst = appendQuoted(append(dst, `,"stream":`...), o.Stream)
	dst = append(dst, `,"data":"`...)
	if utf8.Valid(o.Data) {
		dst = append(appendEscaped(dst, o.Data), '"')
	} else {
		dst = append(base64.StdEncoding.AppendEncode(dst, o.Data), `","encoding":"base64"`...)
	}
	if o.Replay {
		dst = append(dst, `,"replay":true`...)
	}
	if o.Snapshot {
		dst = append(dst, `,"snapshot":true`...)
	}
	return append(dst, '}')
}

// appendEscaped appends p, which is valid UTF-8, as the content of a JSON string. Text consists of long runs of bytes that need no escape, with a line
// feed between them. Runs are found eight bytes at a time.
func appendEscaped(dst, p []byte) []byte {
	for {
		n := plain(p)
		dst = append(dst, p[:n]...)
		if n == len(p) {
			return dst
		}
		switch c := p[n]; c {
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		default:
			const hex = "0123456789abcdef"
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		p = p[n+1:]
	}
}

// plain counts the leading bytes of p that need no escape: all but controls, quote and backslash.
func plain(p []byte) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	i := 0
	for ; i+8 <= len(p); i += 8 {
		w := binary.LittleEndian.Uint64(p[i:])
		quote, slash := w^('"'*ones), w^('\\'*ones)
		// Each term sets the high bit of every byte that is below the subtracted one. A borrow can also set the bit of a byte above the first such
		// byte, but only the lowest set bit counts.
		if found := ((w-' '*ones)&^w | (quote-ones)&^quote | (slash-ones)&^slash) & highs; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(p); i++ {
		if c := p[i]; c < ' ' || c == '"' || c == '\\' {
			break
		}
	}
	return i
}

// EncodeBytes returns p as text: unchanged if it is UTF-8, else in base64.
func EncodeBytes(p []byte) (text, encoding string) {
	if utf8.Valid(p) {
		return string(p), UTF8
	}
	return base64.StdEncoding.EncodeToString(p), Base64
}

// DecodeBytes is the reverse of EncodeBytes. An empty encoding means UTF-8. An error names the field data.
func DecodeBytes(text, encoding string) ([]byte, *Error) {
	switch encoding {
	case "", UTF8:
		return []byte(text), nil
	case Base64:
		p, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, InvalidParam("data", "data is not base64")
		}
		return p, nil
	}
	return nil, InvalidParam("encoding", "encoding is not utf-8 or base64")
}

// MarshalJSONTo writes o with its bytes as data and encoding.
func (o *Output) MarshalJSONTo(e *jsontext.Encoder) error {
	return e.WriteValue(o.append(nil))
}

// UnmarshalJSONFrom reads what MarshalJSONTo writes, for clients.
func (o *Output) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	type plain Output // without these methods
	wire := struct {
		plain
		Data     string `json:"data"`
		Encoding string `json:"encoding"`
	}{}
	if err := json.UnmarshalDecode(d, &wire); err != nil {
		return err
	}
	data, err := DecodeBytes(wire.Data, wire.Encoding)
	if err != nil {
		return err
	}
	*o = Output(wire.plain)
	o.Data = data
	return nil
}

// The kinds of a binary frame, which are its first byte. Output of terminals and commands comes in such frames if the client asked for the subprotocol
// trl.v1+bin: kind, the stream's number, the offset (both as unsigned varints), the bytes.
const (
	KindStdout   = 0x01
	KindStderr   = 0x02
	KindTTY      = 0x03
	KindInput    = 0x04 // from the client
	KindReplay   = 0x10 // added where Output has Replay
	KindSnapshot = 0x20 // added where it has Snapshot
	KindEOF      = 0x40 // added where the input ends
)

// AppendBinary appends the binary frame of a piece of output.
func AppendBinary(dst []byte, streamNo uint64, o *Output) []byte {
	kind := byte(KindStdout)
	switch o.Stream {
	case "stderr":
		kind = KindStderr
	case "tty":
		kind = KindTTY
	}
	if o.Replay {
		kind |= KindReplay
	}
	if o.Snapshot {
		kind |= KindSnapshot
	}
	dst = slices.Grow(dst, 1+2*binary.MaxVarintLen64+len(o.Data))
	dst = binary.AppendUvarint(append(dst, kind), streamNo)
	dst = binary.AppendUvarint(dst, uint64(o.Offset))
	return append(dst, o.Data...)
}

// InputFrame is a binary frame of a client: a piece of input for what the stream comes from.
type InputFrame struct {
	StreamNo uint64
	Offset   int64
	Data     []byte
	EOF      bool
}

// AppendInput appends the binary frame of a piece of input.
func AppendInput(dst []byte, f *InputFrame) []byte {
	kind := byte(KindInput)
	if f.EOF {
		kind |= KindEOF
	}
	dst = binary.AppendUvarint(append(dst, kind), f.StreamNo)
	dst = binary.AppendUvarint(dst, uint64(f.Offset))
	return append(dst, f.Data...)
}

// ParseInput reads a frame of AppendInput. The data is part of the frame. ok is false for any other frame.
func ParseInput(frame []byte) (f InputFrame, ok bool) {
	if len(frame) == 0 || frame[0]&^KindEOF != KindInput {
		return f, false
	}
	no, n := binary.Uvarint(frame[1:])
	if n <= 0 {
		return f, false
	}
	offset, m := binary.Uvarint(frame[1+n:])
	if m <= 0 || offset > math.MaxInt64 {
		return f, false
	}
	return InputFrame{StreamNo: no, Offset: int64(offset), Data: frame[1+n+m:], EOF: frame[0]&KindEOF != 0}, true
}
