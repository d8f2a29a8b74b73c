// Package cast is recordings of what a terminal showed: asciicast files, as they are written, taken up again after a crash,
// read and converted. https://docs.asciinema.org/manual/asciicast/v3/ is the format, v2 is read and made as well.
//
// A recording is output, sizes, marks and the exit status. What was typed is not in it, nor is any environment: passwords
// are typed, and tokens stand in environments.
package cast

import (
	"time"
	"unicode/utf8"
)

// Codes of events. Readers meet others, too: 'i' is input, which we never write.
const (
	Output = 'o'
	Resize = 'r' // COLSxROWS
	Mark   = 'm' // a place to jump to, and its label
	Exit   = 'x' // exit status
)

// Header is a file's first line.
type Header struct {
	Version    int
	Cols, Rows int
	Type       string // of terminal: TERM
	Timestamp  int64  // Unix seconds of the beginning; 0: not known
	Command    string
	Title      string
	IdleLimit  float64 // seconds that a player should wait at most; 0: none given
}

// Event is one thing that happened.
type Event struct {
	At     time.Duration // since the beginning
	Code   rune
	Data   string
	Stderr bool // output: of a command's standard error
}

// stderrComment stands in a v3 file before an output event that came from standard error. A comment, since to everybody else
// it is output, and players show nothing of codes that they do not know.
const stderrComment = "# stderr"

const replacement = "\ufffd"

// appendString appends p as a JSON string. What is not UTF-8 becomes U+FFFD, a byte at a time; controls are escaped, DEL and
// C1 among them, so that a file can be looked at with cat.
func appendString(dst, p []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(p); {
		c := p[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		r, n := rune(c), 1
		if c >= utf8.RuneSelf {
			if r, n = utf8.DecodeRune(p[i:]); r >= 0xa0 && (r != utf8.RuneError || n > 1) {
				i += n
				continue
			}
		}
		dst = append(dst, p[from:i]...)
		switch {
		case r == utf8.RuneError:
			dst = append(dst, replacement...)
		case r == '"' || r == '\\':
			dst = append(dst, '\\', c)
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\r':
			dst = append(dst, '\\', 'r')
		case r == '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4&15], hex[r&15])
		}
		i += n
		from = i
	}
	dst = append(dst, p[from:]...)
	return append(dst, '"')
}
