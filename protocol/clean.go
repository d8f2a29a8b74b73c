package protocol

import (
	"strings"
	"unicode/utf8"
)

// Clean returns text as a person would have read it on a terminal, line by line. Escape sequences are removed, also one that the end cuts off.
// Carriage return, backspace and erase-in-line take effect. Sequences that move between lines have no effect: each line stands alone. Invalid UTF-8
// becomes U+FFFD. The result contains no control characters except tab and line feed. It takes linear time for every text.
func Clean(text string) string {
	text = strings.ToValidUTF8(text, "�")
	if strings.IndexFunc(text, movesCursor) < 0 {
		return text
	}
	c := cleaner{out: make([]byte, 0, len(text))}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == '\n':
			c.endLine()
			c.out = append(c.out, '\n')
			c.line = len(c.out)
		case r == '\r':
			if !strings.HasPrefix(text[i+1:], "\n") { // "\r\n" overwrites nothing
				c.left(len(c.out))
			}
		case r == '\b':
			c.left(1)
		case r == esc || r >= 0x80 && r < 0xa0:
			n = c.escape(text[i:], r, n)
		case !movesCursor(r):
			c.put(text[i : i+n])
		}
		i += n
	}
	c.endLine()
	return string(c.out)
}

const (
	bel = 0x07
	can = 0x18
	sub = 0x1a
	esc = 0x1b
	del = 0x7f
	// The one-character forms of ESC P, [, \, ] …, which terminals also understand.
	c1  = 0x80
	dcs = 0x90
	sos = 0x98
	csi = 0x9b
	st  = 0x9c
	osc = 0x9d
	pm  = 0x9e
	apc = 0x9f
)

// movesCursor reports whether r is a control other than tab and line feed.
func movesCursor(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' || r >= del && r < 0xa0
}

// cleaner is a gap buffer whose gap is the cursor: the text to its left is the end of out, the text to its right is in rest in reverse order. A
// character moves to the right only after it was written on the left, so moving costs no more than writing.
type cleaner struct {
	out  []byte
	line int // where the current line begins in out
	rest []byte
}

// put writes one character over the character at the cursor.
func (c *cleaner) put(char string) {
	c.out = append(c.out, char...)
	if len(c.rest) > 0 {
		_, n := utf8.DecodeLastRune(c.rest)
		c.rest = c.rest[:len(c.rest)-n]
	}
}

// left moves the cursor by up to n characters.
func (c *cleaner) left(n int) {
	for ; n > 0 && len(c.out) > c.line; n-- {
		_, size := utf8.DecodeLastRune(c.out)
		cut := len(c.out) - size
		c.rest = append(c.rest, c.out[cut:]...)
		c.out = c.out[:cut]
	}
}

func (c *cleaner) endLine() {
	for len(c.rest) > 0 {
		_, n := utf8.DecodeLastRune(c.rest)
		cut := len(c.rest) - n
		c.out = append(c.out, c.rest[cut:]...)
		c.rest = c.rest[:cut]
	}
}

// escape executes or skips the sequence at the beginning of s, whose first character r has n bytes, and returns the sequence's length.
func (c *cleaner) escape(s string, r rune, n int) int {
	if r == esc {
		if len(s) == 1 {
			return 1
		}
		switch b := s[1]; {
		case b >= 0x40 && b < 0x60:
			r, n = c1+rune(b)-0x40, 2
		case b >= 0x20 && b < 0x7f: // ESC, intermediates, final: character sets, modes, saved cursors
			for n = 1; n < len(s) && s[n] >= 0x20 && s[n] < 0x30; n++ {
			}
			if n < len(s) && s[n] >= 0x30 && s[n] < 0x7f {
				n++
			}
			return n
		default:
			return 1
		}
	}
	switch r {
	case csi:
		return c.control(s, n)
	case osc, dcs, sos, pm, apc:
		return n + payload(s[n:], r == osc)
	}
	return n
}

// control executes or skips a CSI sequence whose parameters begin at n. A character that does not belong to it ends the sequence and counts as text.
func (c *cleaner) control(s string, n int) int {
	from := n
	for n < len(s) && s[n] >= 0x30 && s[n] < 0x40 {
		n++
	}
	params := s[from:n]
	for n < len(s) && s[n] >= 0x20 && s[n] < 0x30 {
		n++
	}
	if n == len(s) || s[n] < 0x40 || s[n] >= 0x7f {
		return n
	}
	switch s[n] {
	case 'K': // erase in line: to the right of the cursor, or all of it; progress bars use this
		switch params {
		case "", "0":
			c.rest = c.rest[:0]
		case "2":
			c.rest, c.out = c.rest[:0], c.out[:c.line]
		}
	case 'G': // to a column: only to the first, because others could be beyond the written text
		if params == "" || params == "0" || params == "1" {
			c.left(len(c.out))
		}
	case 'D': // left
		count := 0
		for i := 0; i < len(params) && params[i] >= '0' && params[i] <= '9' && count <= len(c.out); i++ {
			count = count*10 + int(params[i]-'0')
		}
		c.left(max(count, 1))
	}
	return n + 1
}

// payload returns the length of a string sequence's content and its end. A title or a link contains no line feed; if there is one, the end is missing,
// and the text after it is worth keeping. Sixel images and the like contain line feeds; without an end they reach to the end of the text.
func payload(s string, oneLine bool) int {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\n':
			if oneLine {
				return i
			}
		case bel:
			if oneLine {
				return i + 1
			}
		case can, sub:
			return i + 1
		case esc: // ESC \ is the end; any other ESC aborts the sequence and counts as text
			if strings.HasPrefix(s[i:], "\x1b\\") {
				return i + 2
			}
			if i+1 < len(s) {
				return i
			}
		case 0xc2: // U+009C in UTF-8
			if i+1 < len(s) && s[i+1] == st {
				return i + 2
			}
		}
	}
	return len(s)
}
