// Package cast is the file format of recordings, asciicast: it writes files, continues them after a crash, reads and converts them. The format is
// https://docs.asciinema.org/manual/asciicast/v3/; v2 can be read and made, too.
//
// A recording contains output, sizes, marks and the exit status. It contains no input and no environment, because people type passwords, and
// environments contain tokens.
package cast

import (
	"time"
	"unicode/utf8"
)

// Codes of events. Readers meet others, too: 'i' is input, which we never write.
const (
	Output = 'o'
	Resize = 'r' // COLSxROWS
	Mark   = 'm' // a place to jump to, with its label
	Exit   = 'x' // exit status
)

// Header is the first line of a file.
type Header struct {
	Version    int
	Cols, Rows int
	Type       string // the terminal's type: TERM
	Timestamp  int64  // Unix seconds of the beginning; 0: unknown
	Command    string
	Title      string
	IdleLimit  float64 // the longest pause in seconds that a player should make; 0: none given
}

// Event is one event.
type Event struct {
	At     time.Duration // since the beginning
	Code   rune
	Data   string
	Stderr bool // output from a command's standard error
}

// stderrComment precedes an output event from standard error in a v3 file. It is a comment because the event is output to other players, and players
// ignore events with codes that they do not know.
const stderrComment = "# stderr"

const replacement = "\ufffd"

// appendString appends p as a JSON string. Each byte that is not UTF-8 becomes U+FFFD. Controls are escaped, including DEL and C1, so that people can
// look at a file with cat.
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
