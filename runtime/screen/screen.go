package screen

import (
	"slices"
	"strconv"
	"strings"
)

// Screen is a terminal's screen, fed with the terminal's output. It belongs to one goroutine at a time; the garbage collector frees it.
//
// It is written for floods. The work for one byte is bounded by some thousand cells that are moved or filled at once, and is usually far less. It uses
// 16 bytes for each written cell in two grids of the terminal's size, and little more (see table). It has no scrollback. When the width changes, lines
// are cut and not wrapped anew.
type Screen struct {
	scanner
	table
	main, alt *grid
	g         *grid // the grid that is shown

	pen       cell // the style of printed characters; its char is 0
	link      string
	underline color
	charsets  [2]bool // whether G0 and G1 are the line drawing set
	shift     int     // which of them is in use
	last      cell    // the last character that was printed; for REP and join
	lastX     int     // its column
	joins     bool    // nothing came since: the next character may combine with the last one

	modes    modes
	autowrap bool
	visible  bool // the cursor
	keypad   bool
	tabs     []bool
	cursor   string // DECSCUSR as it was sent; "": never
	title    string
}

// modes is a set of modes: a bit for each of restored, and those below.
type modes uint32

const (
	insertMode modes = 1 << (31 - iota)
	newLineMode
	originMode
)

// restored are the private modes that a program sets to change its terminal's behaviour. A terminal that shows the screen must have them, too.
var restored = [...]int{1, 5, 9, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 2004}

func restoredMode(n int) int { return slices.Index(restored[:], n) }

func (s *Screen) has(m modes) bool { return s.modes&m != 0 }

func (s *Screen) set(m modes, on bool) {
	if s.modes &^= m; on {
		s.modes |= m
	}
}

// New is an empty screen.
func New(cols, rows int) *Screen {
	s := &Screen{}
	s.reset(cols, rows)
	return s
}

// reset makes it an empty screen. It keeps the memory of grids of the right size.
func (s *Screen) reset(cols, rows int) {
	was := *s
	if len(was.clusters)+len(was.extras) != 1 {
		was.table = newTable()
	}
	*s = Screen{table: was.table, main: was.main, alt: was.alt, autowrap: true, visible: true, tabs: was.tabs}
	s.rune, s.text = was.rune[:0], was.text[:0]
	if s.main == nil || s.main.cols != cols || s.main.rows != rows {
		s.main, s.alt = newGrid(cols, rows), newGrid(cols, rows)
	}
	for _, g := range []*grid{s.main, s.alt} {
		g.clear(cell{})
		g.x, g.y, g.wrapNext, g.saved, g.top, g.bot = 0, 0, false, saved{}, 0, rows-1
	}
	s.g = s.main
	s.setTabs(cols)
}

// setTabs puts a tab stop into every eighth column.
func (s *Screen) setTabs(cols int) {
	if len(s.tabs) != cols {
		s.tabs = make([]bool, cols)
	}
	for x := range s.tabs {
		s.tabs[x] = x%8 == 0
	}
}

// Resize changes its size.
func (s *Screen) Resize(cols, rows int) {
	alternate := s.Alternate()
	s.main, s.alt = s.main.resized(cols, rows), s.alt.resized(cols, rows)
	if s.g = s.main; alternate {
		s.g = s.alt
	}
	s.joins = false
	s.setTabs(cols)
}

// Size returns its size.
func (s *Screen) Size() (cols, rows int) { return s.g.cols, s.g.rows }

// Memory returns the approximate number of bytes that it holds.
func (s *Screen) Memory() int {
	const entry = 100 // of the tables, without the text
	n := 16*(s.main.allocated+s.alt.allocated) + 64*(s.main.rows+s.alt.rows) + (entry+maxCluster)*len(s.table.clusters) + len(s.title) + cap(s.text)
	for i := range s.table.extras {
		n += entry + len(s.table.extras[i].link)
	}
	return n
}

// Alternate reports whether the alternate screen is shown.
func (s *Screen) Alternate() bool { return s.g == s.alt }

// Title returns the window title.
func (s *Screen) Title() string { return s.title }

// Cursor returns where the next character goes, from 0.
func (s *Screen) Cursor() (col, row int, visible bool) { return s.g.x, s.g.y, s.visible }

// Lines returns the text of each row, without blanks at its end.
func (s *Screen) Lines() []string {
	lines := make([]string, s.g.rows)
	var b []byte
	for y := range lines {
		b = b[:0]
		r := s.g.row(y)
		for x := range s.width(y) {
			c := &r.fill
			if x < len(r.cells) {
				c = &r.cells[x]
			}
			if c.char != right {
				b = s.appendText(b, c)
			}
		}
		lines[y] = strings.TrimRight(string(b), " ")
	}
	return lines
}

// width is how many cells of row y differ from those of an empty screen.
func (s *Screen) width(y int) int {
	r := s.g.row(y)
	if !r.fill.blank() {
		return s.g.cols
	}
	n := len(r.cells)
	for n > 0 && r.cells[n-1].blank() {
		n--
	}
	return n
}

// maxColored bounds the coloured text of a screen; text beyond it is drawn without colours.
const maxColored = 8 << 20

// draw appends the sequences that draw the cells of grid g on an empty screen, with the cursor after them.
func (s *Screen) draw(b []byte, g *grid) []byte {
	defer func(shown *grid) { s.g = shown }(s.g)
	s.g = g
	for y := range g.rows {
		width := s.width(y)
		if width > 0 {
			b = appendMove(b, 0, y)
		}
		b = s.drawCells(b, y, 0, width)
	}
	return appendMove(b, g.x, g.y)
}

// drawCells appends the cells from x to end of row y.
func (s *Screen) drawCells(b []byte, y, x, end int) []byte {
	var pen cell
	link := ""
	for ; x < end; x++ {
		c := s.g.at(x, y)
		if c.char == right {
			continue
		}
		if len(b) > maxColored {
			c.fg, c.bg, c.style = 0, 0, c.style&wide
		}
		if c.fg != pen.fg || c.bg != pen.bg || (c.style^pen.style)&^wide != 0 {
			b = s.appendStyle(b, &c)
			if l := s.table.extras[c.style>>extraShift].link; l != link {
				if link = l; l == "" {
					l = ";"
				}
				b = append(append(append(b, "\x1b]8;"...), l...), "\x1b\\"...)
			}
			pen = c
		}
		b = s.appendText(b, &c)
		if c.char&cluster != 0 && x+2 < end { // a terminal that draws it wider or narrower continues in the same column
			next := x + 1
			if c.style&wide != 0 {
				next++
			}
			b = append(strconv.AppendInt(append(b, "\x1b["...), int64(next+1), 10), 'G')
		}
	}
	if link != "" {
		b = append(b, "\x1b]8;;\x1b\\"...)
	}
	if pen.fg != 0 || pen.bg != 0 || pen.style&^wide != 0 {
		b = append(b, "\x1b[m"...)
	}
	return b
}

// appendMove appends the sequence that moves the cursor.
func appendMove(b []byte, x, y int) []byte {
	b = strconv.AppendInt(append(b, "\x1b["...), int64(y+1), 10)
	b = strconv.AppendInt(append(b, ';'), int64(x+1), 10)
	return append(b, 'H')
}

// Bytes returns sequences that make any terminal of the same size show this screen, with cursor and modes, whatever it showed before. They contain no
// queries.
func (s *Screen) Bytes() []byte {
	// Leave the alternate screen, any mode that was left on, and margins; then everything is clear.
	b := []byte("\x1b[?1049l\x1b[?6l\x1b[?7h\x1b[4l\x1b[r\x1b(B\x1b)B\x0f\x1b[m\x1b[H\x1b[2J")
	if s.Alternate() {
		b = s.draw(b, s.main)
		b = append(b, "\x1b[?1049h\x1b[m\x1b[H\x1b[2J"...)
	}
	b = s.draw(b, s.g)
	// Resets come first: resetting one way of reporting the mouse also ends the others.
	for _, on := range []bool{false, true} {
		for i, n := range restored {
			if s.has(1<<i) == on {
				b = appendMode(append(b, "\x1b[?"...), n, on)
			}
		}
	}
	b = appendMode(append(b, "\x1b["...), 20, s.has(newLineMode))
	if b = append(b, "\x1b>"...); s.keypad {
		b[len(b)-1] = '='
	}
	if s.title != "" {
		b = append(append(append(b, "\x1b]2;"...), strings.Map(printable, s.title)...), 0x07)
	}
	b = append(b, s.cursor...)
	g := s.g
	row := g.y
	if g.top > 0 || g.bot < g.rows-1 { // this also sets the cursor
		b = appendMove(b, g.bot, g.top)
		b[len(b)-1] = 'r'
	}
	if s.has(originMode) { // rows then count from the margin
		b = append(b, "\x1b[?6h"...)
		row = max(0, row-g.top)
	}
	b = appendMove(b, g.x, row)
	if g.wrapNext { // printing the last character again has this effect
		x := g.x
		if g.at(x, g.y).char == right {
			x--
			b = appendMove(b, x, row)
		}
		b = s.drawCells(b, g.y, x, g.cols)
	}
	if !s.autowrap {
		b = append(b, "\x1b[?7l"...)
	}
	if s.has(insertMode) {
		b = append(b, "\x1b[4h"...)
	}
	for i, set := range []string{"\x1b(0", "\x1b)0"} {
		if s.charsets[i] {
			b = append(b, set...)
		}
	}
	if s.shift != 0 {
		b = append(b, 0x0e)
	}
	b = s.appendStyle(b, &s.pen)
	if s.link != "" {
		b = append(append(append(b, "\x1b]8;"...), s.link...), "\x1b\\"...)
	}
	return appendMode(append(b, "\x1b[?"...), 25, s.visible)
}

func appendMode(b []byte, n int, on bool) []byte {
	b = append(strconv.AppendInt(b, int64(n), 10), 'l')
	if on {
		b[len(b)-1] = 'h'
	}
	return b
}

func printable(r rune) rune {
	if r < 0x20 || r == 0x7f {
		return -1
	}
	return r
}
