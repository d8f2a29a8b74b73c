package screen

import (
	"strconv"
	"unicode/utf8"
)

// attributes are the SGR numbers that set the bits of a style, in their order, and those that reset them.
var attributes = [...]struct{ on, off int }{{1, 22}, {2, 22}, {3, 23}, {5, 25}, {7, 27}, {8, 28}, {9, 29}, {53, 55}}

// sgr carries out SGR.
func (s *Screen) sgr() {
	for i := 0; i < s.n; i++ {
		if s.sub[i] { // of a parameter that is not known
			continue
		}
		pen := &s.pen
		switch n := max(s.params[i], 0); {
		case n == 0:
			*pen = cell{}
			s.underline = 0
			s.setExtra() // the link stays
		case n == 4:
			kind := 1
			if i+1 < s.n && s.sub[i+1] {
				kind = max(0, min(s.params[i+1], 5))
			}
			pen.style = pen.style&^underlineMask | style(kind)<<underlineShift
		case n == 21:
			pen.style = pen.style&^underlineMask | 2<<underlineShift
		case n == 24:
			pen.style &^= underlineMask
		case n >= 30 && n <= 37:
			pen.fg = indexed | color(n-30)
		case n == 38:
			i = s.color(i, &pen.fg)
		case n == 39:
			pen.fg = 0
		case n >= 40 && n <= 47:
			pen.bg = indexed | color(n-40)
		case n == 48:
			i = s.color(i, &pen.bg)
		case n == 49:
			pen.bg = 0
		case n >= 90 && n <= 97:
			pen.fg = indexed | color(n-90+8)
		case n >= 100 && n <= 107:
			pen.bg = indexed | color(n-100+8)
		case n == 58:
			i = s.color(i, &s.underline)
			s.setExtra()
		case n == 59:
			s.underline = 0
			s.setExtra()
		default:
			if n == 6 {
				n = 5
			}
			for bit, a := range attributes {
				if n == a.on {
					pen.style |= 1 << bit
				} else if n == a.off {
					pen.style &^= 1 << bit
				}
			}
		}
	}
}

// color reads the colour behind parameter i, which is 38, 48 or 58, and returns the index of its last parameter.
func (s *Screen) color(i int, c *color) int {
	at := func(k int) int {
		if k < s.n {
			return max(0, min(s.params[k], 255))
		}
		return 0
	}
	first, last := i+1, i
	colons := first < s.n && s.sub[first]
	for colons && last+1 < s.n && s.sub[last+1] {
		last++
	}
	switch at(first) {
	case 5:
		*c = indexed | color(at(first+1))
		last = max(last, i+2)
	case 2:
		k := first + 1
		if colons && last-first >= 4 { // a colour space comes first
			k++
		}
		*c = rgb | color(at(k)<<16|at(k+1)<<8|at(k+2))
		last = max(last, i+4)
	}
	return last
}

// setExtra gives the pen the link and the colour of underlines that are in force.
func (s *Screen) setExtra() {
	s.pen.style = s.pen.style&(1<<extraShift-1) | style(s.extra(extra{s.link, s.underline}))<<extraShift
}

// appendStyle appends the SGR sequence after which characters look like c.
func (s *Screen) appendStyle(b []byte, c *cell) []byte {
	b = append(b, "\x1b[0"...)
	for bit, a := range attributes {
		if c.style&(1<<bit) != 0 {
			b = strconv.AppendInt(append(b, ';'), int64(a.on), 10)
		}
	}
	switch kind := c.style & underlineMask >> underlineShift; kind {
	case 0:
	case 1:
		b = append(b, ";4"...)
	default:
		b = strconv.AppendInt(append(b, ";4:"...), int64(kind), 10)
	}
	b = appendColor(b, 38, c.fg)
	b = appendColor(b, 48, c.bg)
	b = appendColor(b, 58, s.table.extras[c.style>>extraShift].underline)
	return append(b, 'm')
}

func appendColor(b []byte, what int64, c color) []byte {
	number := func(n int64) { b = strconv.AppendInt(append(b, ';'), n, 10) }
	switch value := int64(c & 0xffffff); {
	case c == 0:
	case c&rgb != 0:
		number(what)
		number(2)
		number(value >> 16)
		number(value >> 8 & 0xff)
		number(value & 0xff)
	case what == 58 || value >= 16:
		number(what)
		number(5)
		number(value)
	case value >= 8:
		number(what + 52 + value - 8) // 90 to 97, 100 to 107
	default:
		number(what - 8 + value)
	}
	return b
}

// appendText appends the character in c.
func (s *Screen) appendText(b []byte, c *cell) []byte {
	switch {
	case c.char == 0 || c.char == right:
		return append(b, ' ')
	case c.char&cluster != 0:
		return append(b, s.table.clusters[c.char&^cluster]...)
	case c.char < utf8.RuneSelf:
		return append(b, byte(c.char))
	}
	return utf8.AppendRune(b, rune(c.char))
}
