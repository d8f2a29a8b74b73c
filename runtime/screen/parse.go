package screen

import (
	"bytes"
	"unicode/utf8"
)

// scanner reads control sequences in the states of the VT500 parser, as far as they matter here: ground, escaped, csi, osc
// and str, as Marks has them.
type scanner struct {
	state        int
	prefix       byte // of a control sequence: one of <=>? or 0
	intermediate byte // the last intermediate byte, 0x20 to 0x2f, or 0
	params       [maxParams]int
	sub          [maxParams]bool // the parameter came after a colon
	n            int             // parameters so far
	text         []byte          // of an operating system command
	rune         []byte          // the start of a character whose rest has not come
}

const (
	maxParams = 32
	// maxParam bounds the numbers of all sequences except SGR. No terminal is larger than 1000 by 1000.
	maxParam = 1000
	// maxText bounds an operating system command; a longer one has no effect.
	maxText = 4 << 10
)

// Write feeds the screen. It never fails. If a screen panics, an empty one takes its place, because the output of a program must never end the
// gateway.
func (s *Screen) Write(p []byte) (int, error) {
	defer func() {
		if recover() != nil {
			s.reset(s.g.cols, s.g.rows)
		}
	}()
	n := len(p)
	for len(p) > 0 {
		if s.state == ground {
			p = s.ground(p)
		} else {
			p = s.sequence(p)
		}
	}
	return n, nil
}

// ground reads text outside sequences from p and returns the rest.
func (s *Screen) ground(p []byte) []byte {
	if len(s.rune) > 0 {
		return s.completeRune(p)
	}
	for len(p) > 0 {
		switch c := p[0]; {
		case c >= 0x20 && c < 0x7f:
			n := 1
			for n < len(p) && p[n] >= 0x20 && p[n] < 0x7f {
				n++
			}
			s.ascii(p[:n])
			p = p[n:]
		case c >= 0x80:
			if !utf8.FullRune(p) {
				s.rune = append(s.rune[:0], p...)
				return nil
			}
			r, n := utf8.DecodeRune(p)
			s.print(r)
			p = p[n:]
		case c == 0x1b:
			s.escape()
			return p[1:]
		default:
			s.control(c)
			p = p[1:]
		}
	}
	return p
}

// completeRune reads the rest of a character that began in an earlier write.
func (s *Screen) completeRune(p []byte) []byte {
	for len(p) > 0 && !utf8.FullRune(s.rune) && p[0] >= 0x80 {
		s.rune = append(s.rune, p[0])
		p = p[1:]
	}
	if len(p) == 0 && !utf8.FullRune(s.rune) {
		return nil
	}
	r, n := utf8.DecodeRune(s.rune)
	rest := append([]byte(nil), s.rune[n:]...) // not empty only if r is invalid
	s.rune = s.rune[:0]
	s.print(r)
	if len(rest) > 0 {
		s.ground(rest)
	}
	return p
}

func (s *Screen) escape() {
	s.state, s.prefix, s.intermediate, s.n = escaped, 0, 0, 0
	s.joins = false
}

// sequence reads the next bytes of a sequence from p and returns the rest.
func (s *Screen) sequence(p []byte) []byte {
	for i, c := range p {
		if s.state == ground {
			return p[i:]
		}
		switch {
		case c == 0x18 || c == 0x1a:
			s.state = ground
		case c == 0x1b:
			if s.state == osc {
				s.command()
			}
			s.escape()
		case s.state == osc:
			if c == 0x07 {
				s.command()
				s.state = ground
			} else if c >= 0x20 && len(s.text) <= maxText {
				s.text = append(s.text, c)
			}
		case s.state == str: // ignored up to its end
		case c < 0x20:
			s.control(c)
		case c == 0x7f:
		case s.state == csi:
			s.csiByte(c)
		default:
			s.escByte(c)
		}
	}
	return nil
}

func (s *Screen) escByte(c byte) {
	switch {
	case c < 0x30:
		s.intermediate = c
	case s.intermediate != 0:
		s.state = ground
		s.designate(c)
	case c == '[':
		s.state = csi
		s.params[0], s.sub[0] = -1, false
	case c == ']':
		s.state, s.text = osc, s.text[:0]
	case c == 'P' || c == 'X' || c == '^' || c == '_':
		s.state = str
	default:
		s.state = ground
		s.esc(c)
	}
}

func (s *Screen) csiByte(c byte) {
	switch {
	case c >= '0' && c <= '9':
		if s.n < maxParams {
			s.params[s.n] = min(max(s.params[s.n], 0)*10+int(c-'0'), 1<<16)
		}
	case c == ';' || c == ':':
		if s.n++; s.n < maxParams {
			s.params[s.n], s.sub[s.n] = -1, c == ':'
		}
	case c < 0x30:
		s.intermediate = c
	case c < 0x40:
		s.prefix = c
	case c < 0x7f:
		s.state = ground
		s.n = min(s.n+1, maxParams)
		s.csi(c)
	default: // not ASCII
		s.state = ground
	}
}

// param returns parameter i, at most maxParam, or otherwise if it is absent. Zero counts as absent if otherwise is not zero, because all sequences
// with counts count from 1.
func (s *Screen) param(i, otherwise int) int {
	if i >= s.n || s.params[i] <= 0 {
		return otherwise
	}
	return min(s.params[i], maxParam)
}

// command executes an operating system command: the title, and links.
func (s *Screen) command() {
	if len(s.text) > maxText {
		return
	}
	number, text, _ := bytes.Cut(s.text, []byte(";"))
	switch string(number) {
	case "0", "2":
		s.title = string(bytes.ToValidUTF8(text, nil))
	case "8":
		params, address, _ := bytes.Cut(text, []byte(";"))
		s.link = ""
		if len(address) > 0 && len(text) <= maxLink {
			s.link = string(params) + ";" + string(address)
		}
		s.setExtra()
	}
}
