package screen

import (
	"fmt"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// fill is what erased cells look like.
func (s *Screen) fill() cell { return cell{bg: s.pen.bg} }

// ascii prints p, which is printable ASCII.
func (s *Screen) ascii(p []byte) {
	if s.charsets[s.shift] {
		for _, c := range p {
			s.print(drawing(c))
		}
		return
	}
	g, pen := s.g, s.pen
	s.last, s.joins = pen, true
	s.last.char = uint32(p[len(p)-1])
	for len(p) > 0 {
		if g.wrapNext {
			s.wrap()
		}
		n := min(len(p), g.cols-g.x)
		if n < len(p) && !s.autowrap { // all that follows goes to the last column
			p = append(append(make([]byte, 0, n), p[:n-1]...), p[len(p)-1])
		}
		cells := s.place(n)
		for i := range cells {
			pen.char = uint32(p[i])
			cells[i] = pen
		}
		s.advance(n, 1)
		p = p[n:]
	}
}

// place returns the next n cells of the line to write to, after moving what is there when inserting.
func (s *Screen) place(n int) []cell {
	g := s.g
	if s.has(insertMode) {
		g.insert(g.y, g.x, n, s.fill())
	}
	return g.span(g.y, g.x, g.x+n)
}

// advance moves the cursor behind n cells that were written, with characters of a width.
func (s *Screen) advance(n, width int) {
	g := s.g
	s.lastX = g.x + n - width
	if g.x += n; g.x >= g.cols {
		g.x, g.wrapNext = g.cols-1, s.autowrap
	}
}

func (s *Screen) wrap() {
	s.g.x, s.g.wrapNext = 0, false
	s.lineFeed()
}

// print prints a character, or adds it to the one before.
func (s *Screen) print(r rune) {
	if r < 0xa0 && r >= 0x80 { // control characters in 8 bits: nobody uses them with UTF-8
		return
	}
	if s.joins && s.join(r) {
		return
	}
	width := runeWidth(r)
	if width == 0 {
		return // nothing to combine with
	}
	s.last = s.pen
	s.last.char = uint32(r)
	if width == 2 && s.g.cols > 1 {
		s.last.style |= wide
	}
	s.repeat(1)
	s.joins = true
}

// repeat prints the last character n times.
func (s *Screen) repeat(n int) {
	g, c, w := s.g, s.last, 1
	if c.style&wide != 0 {
		w = 2
	}
	for n > 0 {
		if g.wrapNext || g.x+w > g.cols && s.autowrap {
			s.wrap()
		}
		fit := min(n, (g.cols-g.x)/w)
		if fit == 0 { // a wide one at the end of a line that does not wrap
			return
		}
		if fit == g.cols { // a line of it, which takes no longer than a blank one
			g.clearRows(g.y, g.y+1, c)
		} else if cells := s.place(fit * w); w == 1 {
			fillCells(cells, c)
		} else {
			half := c
			half.char, half.style = right, half.style&^wide
			cells[0], cells[1] = c, half
			for n := 2; n < len(cells); n *= 2 {
				copy(cells[n:], cells[:n])
			}
		}
		s.advance(fit*w, w)
		if n -= fit; !s.autowrap {
			n = 0 // the others would go over the last one
		}
	}
}

// join adds r to the character before, if they are one.
func (s *Screen) join(r rune) bool {
	if alone(r) {
		return false
	}
	text := utf8.AppendRune(s.appendText(make([]byte, 0, 2*maxCluster), &s.last), r)
	first, width := ansi.FirstGraphemeCluster(text, ansi.GraphemeWidth)
	if len(first) != len(text) {
		return false
	}
	if len(text) > maxCluster {
		return true // left out
	}
	char, ok := s.cluster(string(text))
	if !ok {
		return true
	}
	g, x := s.g, s.lastX
	s.last.char = char
	g.extend(g.y, x+1)
	cells := g.row(g.y).cells
	cells[x].char = char
	if width == 2 && s.last.style&wide == 0 && !g.wrapNext {
		s.last.style |= wide
		cells[x].style |= wide
		half := cells[x]
		half.char, half.style = right, half.style&^wide
		s.place(1)[0] = half
		s.advance(1, 2)
	}
	return true
}

// alone reports of the most frequent characters that they join with nothing before them.
func alone(r rune) bool {
	return r < 0x300 || r >= 0x2500 && r < 0x25a0 || r >= 0x2800 && r < 0x2900 || r >= 0x3041 && r <= 0x3096 || r >= 0x30a1 && r <= 0x30fa ||
		r >= 0x3400 && r < 0xa000
}

func runeWidth(r rune) int {
	switch {
	case !alone(r):
		var b [utf8.UTFMax]byte
		_, width := ansi.FirstGraphemeCluster(utf8.AppendRune(b[:0], r), ansi.GraphemeWidth)
		return min(width, 2)
	case r >= 0x3000:
		return 2
	}
	return 1
}

// drawing is a character of the line drawing set of VT100.
func drawing(c byte) rune {
	if c < 0x5f || c > 0x7e {
		return rune(c)
	}
	return drawings[c-0x5f]
}

var drawings = []rune("\u00a0◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")

func (s *Screen) lineFeed() {
	switch g := s.g; {
	case g.y == g.bot:
		g.scroll(g.top, g.bot, 1, s.fill())
	case g.y < g.rows-1:
		g.y++
	}
}

// control carries out a C0 control character.
func (s *Screen) control(c byte) {
	g := s.g
	s.joins = false
	switch c {
	case '\b':
		g.x, g.wrapNext = max(0, g.x-1), false
	case '\t':
		s.tab(1)
	case '\n', '\v', '\f':
		if g.wrapNext = false; s.has(newLineMode) {
			g.x = 0
		}
		s.lineFeed()
	case '\r':
		g.x, g.wrapNext = 0, false
	case 0x0e:
		s.shift = 1
	case 0x0f:
		s.shift = 0
	}
}

// tab moves to the nth next tab stop, or the nth before.
func (s *Screen) tab(n int) {
	g := s.g
	step := 1
	if n < 0 {
		n, step = -n, -1
	}
	for ; n > 0 && g.x+step >= 0 && g.x+step < g.cols; n-- {
		for g.x += step; g.x > 0 && g.x < g.cols-1 && !s.tabs[g.x]; g.x += step {
		}
	}
	if step < 0 {
		g.wrapNext = false
	}
}

// designate carries out an escape sequence with an intermediate byte: character sets, and the test picture.
func (s *Screen) designate(c byte) {
	switch s.intermediate {
	case '(', ')':
		s.charsets[s.intermediate-'('] = c == '0'
	case '#':
		if g := s.g; c == '8' {
			g.clear(cell{char: 'E'})
			g.top, g.bot, g.x, g.y, g.wrapNext = 0, g.rows-1, 0, 0, false
		}
	}
}

// esc carries out an escape sequence.
func (s *Screen) esc(c byte) {
	g := s.g
	switch c {
	case '7':
		s.save()
	case '8':
		s.restore()
	case 'D':
		g.wrapNext = false
		s.lineFeed()
	case 'E':
		g.x, g.wrapNext = 0, false
		s.lineFeed()
	case 'H':
		s.tabs[g.x] = true
	case 'M':
		if g.wrapNext = false; g.y == g.top {
			g.scroll(g.top, g.bot, -1, s.fill())
		} else if g.y > 0 {
			g.y--
		}
	case 'c':
		s.reset(g.cols, g.rows)
	case '=', '>':
		s.keypad = c == '='
	}
}

func (s *Screen) save() {
	g := s.g
	g.saved = saved{g.x, g.y, g.wrapNext, s.pen, s.has(originMode), s.charsets, s.shift}
}

func (s *Screen) restore() {
	g := s.g
	v := &g.saved
	g.x, g.y, g.wrapNext = min(v.x, g.cols-1), min(v.y, g.rows-1), v.wrapNext
	s.pen, s.charsets, s.shift = v.pen, v.charsets, v.shift
	s.set(originMode, v.origin)
	e := s.table.extras[s.pen.style>>extraShift]
	s.link, s.underline = e.link, e.underline
}

// move puts the cursor at column x and row y, both from 0, or as near as it may be.
func (s *Screen) move(x, y int) {
	g := s.g
	low, high := 0, g.rows-1
	if s.has(originMode) {
		low, high = g.top, g.bot
		y += low
	}
	g.x, g.y, g.wrapNext = max(0, min(x, g.cols-1)), max(low, min(y, high)), false
}

// vertical moves the cursor by n rows. It does not leave the scroll region if it is in it.
func (s *Screen) vertical(n int) {
	g := s.g
	low, high := 0, g.rows-1
	if g.y >= g.top {
		low = g.top
	}
	if g.y <= g.bot {
		high = g.bot
	}
	g.y, g.wrapNext = max(low, min(g.y+n, high)), false
}

// csi carries out a control sequence.
func (s *Screen) csi(final byte) {
	switch {
	case s.prefix == '?' && (final == 'h' || final == 'l'):
		for i := range s.n {
			s.mode(s.params[i], final == 'h')
		}
	case s.prefix == '?' && final == 'J', s.prefix == '?' && final == 'K':
		s.erase(final)
	case s.prefix != 0:
	case s.intermediate == ' ' && final == 'q':
		s.cursor = fmt.Sprintf("\x1b[%d q", s.param(0, 0))
	case s.intermediate == '!' && final == 'p':
		s.softReset()
	case s.intermediate != 0:
	default:
		s.plain(final)
	}
}

// plain carries out a control sequence without prefix and intermediate bytes.
func (s *Screen) plain(final byte) {
	g := s.g
	n := s.param(0, 1)
	row := g.y
	if s.has(originMode) {
		row -= g.top
	}
	inside := g.y >= g.top && g.y <= g.bot
	switch final {
	case 'm':
		s.sgr()
	case 'A':
		s.vertical(-n)
	case 'B', 'e':
		s.vertical(n)
	case 'C', 'a':
		s.move(g.x+n, row)
	case 'D':
		s.move(g.x-n, row)
	case 'E', 'F':
		g.x = 0
		s.vertical(map[byte]int{'E': n, 'F': -n}[final])
	case 'G', '`':
		s.move(n-1, row)
	case 'd':
		s.move(g.x, n-1)
	case 'H', 'f':
		s.move(s.param(1, 1)-1, n-1)
	case 'I':
		s.tab(n)
	case 'Z':
		s.tab(-n)
	case 'J', 'K':
		s.erase(final)
	case 'X':
		g.erase(g.y, s.column(), min(g.x+n, g.cols), s.fill())
	case '@':
		g.insert(g.y, s.column(), n, s.fill())
	case 'P':
		g.remove(g.y, s.column(), n, s.fill())
	case 'L', 'M':
		if inside {
			if g.x, g.wrapNext = 0, false; final == 'L' {
				n = -n
			}
			g.scroll(g.y, g.bot, n, s.fill())
		}
	case 'S':
		g.scroll(g.top, g.bot, n, s.fill())
	case 'T':
		if s.n == 1 { // with more it is about the mouse
			g.scroll(g.top, g.bot, -n, s.fill())
		}
	case 'b':
		if s.last.char != 0 {
			s.repeat(min(n, g.cols*g.rows))
		}
	case 'g':
		switch s.param(0, 0) {
		case 0:
			s.tabs[g.x] = false
		case 3:
			clear(s.tabs)
		}
	case 'h', 'l':
		for i := range s.n {
			switch s.params[i] {
			case 4:
				s.set(insertMode, final == 'h')
			case 20:
				s.set(newLineMode, final == 'h')
			}
		}
	case 'r':
		top, bottom := s.param(0, 1), min(s.param(1, g.rows), g.rows)
		if top < bottom {
			g.top, g.bot = top-1, bottom-1
			s.move(0, 0)
		}
	case 's':
		if s.params[0] < 0 { // with parameters it sets margins left and right, which are not supported
			s.save()
		}
	case 'u':
		s.restore()
	}
}

// column is where erasing begins: beyond the last column when the next character goes to the next line, as in xterm.js and tmux.
func (s *Screen) column() int {
	if s.g.wrapNext {
		return s.g.cols
	}
	return s.g.x
}

// erase carries out ED and EL.
func (s *Screen) erase(final byte) {
	g, fill := s.g, s.fill()
	first, end := 0, g.cols
	above, below := final == 'J', final == 'J'
	switch s.param(0, 0) {
	case 0:
		first, above = s.column(), false
	case 1:
		end, below = g.x+1, false
	case 2:
	default:
		return
	}
	if above && below {
		g.clear(fill)
		return
	}
	if below && first == 0 {
		g.clearRows(g.y, g.rows, fill) // all of the screen if this is its first row
		return
	}
	g.erase(g.y, first, end, fill)
	if above {
		g.clearRows(0, g.y, fill)
	}
	if below {
		g.clearRows(g.y+1, g.rows, fill)
	}
}

// mode sets or resets a private mode.
func (s *Screen) mode(n int, on bool) {
	switch n {
	case 7:
		s.autowrap = on
		s.g.wrapNext = s.g.wrapNext && on
	case 25:
		s.visible = on
	case 6:
		s.set(originMode, on)
		s.move(0, 0)
	case 47, 1047, 1049:
		s.alternate(n, on)
	case 1048:
		if on {
			s.save()
		} else {
			s.restore()
		}
	default:
		if i := restoredMode(n); i >= 0 {
			s.set(1<<i, on)
		}
	}
}

// alternate shows the alternate screen, or the main one again.
func (s *Screen) alternate(n int, on bool) {
	if on && n == 1049 {
		s.save()
	}
	from, to := s.g, s.main
	if on {
		to = s.alt
	}
	if from != to {
		if on && n != 47 || !on && n == 1047 {
			s.alt.clear(s.fill())
		}
		if on {
			to.top, to.bot = 0, to.rows-1
		}
		to.x, to.y, to.wrapNext = from.x, from.y, from.wrapNext
		s.g = to
	}
	if !on && n == 1049 {
		s.restore()
	}
}

func (s *Screen) softReset() {
	g := s.g
	g.top, g.bot, g.wrapNext, g.saved = 0, g.rows-1, false, saved{}
	s.set(insertMode|originMode|1<<restoredMode(1), false)
	s.autowrap, s.visible, s.keypad = true, true, false
	s.pen, s.link, s.underline, s.charsets, s.shift = cell{}, "", 0, [2]bool{}, 0
}
