package screen

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/ansi/parser"
	"github.com/charmbracelet/x/vt"
)

// Screen is a terminal's screen as an emulator has it, fed with what the terminal prints. It belongs to one goroutine at a
// time, and ends with the garbage collector.
//
// The emulator is charmbracelet/x/vt. What it does not give away is noted here, by handlers that look and let it go on:
// the main screen below the alternate one, modes, margins, the pen.
type Screen struct {
	e *vt.Emulator

	tail    []byte // printable bytes that may be the start of a character that goes on
	modes   map[ansi.Mode]bool
	keypad  bool
	below   string // the main screen, drawn, while the alternate one is shown
	top     int    // margins as they were set, from 1; 0: the whole screen
	bottom  int
	pen     uv.Style
	cursor  string // DECSCUSR as it was sent; "": never
	title   string
	visible bool
}

// New is an empty screen.
func New(cols, rows int) *Screen {
	s := &Screen{}
	s.reset(cols, rows)
	return s
}

func (s *Screen) reset(cols, rows int) {
	*s = Screen{e: vt.NewEmulator(cols, rows), modes: map[ansi.Mode]bool{}, visible: true}
	s.e.SetScrollbackSize(1) // nobody asks for it
	// Answers to queries have nowhere to go: a program has got them from its user's terminal. Unread, they would block.
	_ = s.e.InputPipe().(io.Closer).Close()
	s.e.SetCallbacks(vt.Callbacks{
		Title:            func(t string) { s.title = t },
		CursorVisibility: func(v bool) { s.visible = v },
		EnableMode:       func(m ansi.Mode) { s.modes[m] = true },
		DisableMode:      func(m ansi.Mode) { s.modes[m] = false },
	})
	s.e.RegisterCsiHandler(ansi.Command('?', 0, 'h'), func(p ansi.Params) bool {
		for _, n := range p {
			if n := n.Param(0); (n == 47 || n == 1047 || n == 1049) && !s.e.IsAltScreen() {
				s.below = s.draw()
			}
		}
		return false
	})
	s.e.RegisterCsiHandler('r', func(p ansi.Params) bool {
		s.top, _, _ = p.Param(0, 1)
		s.bottom, _, _ = p.Param(1, s.e.Height())
		if s.top <= 1 && s.bottom >= s.e.Height() {
			s.top, s.bottom = 0, 0
		}
		return false
	})
	s.e.RegisterCsiHandler('m', func(p ansi.Params) bool { uv.ReadStyle(p, &s.pen); return false })
	s.e.RegisterCsiHandler(ansi.Command(0, ' ', 'q'), func(p ansi.Params) bool {
		n, _, _ := p.Param(0, 0)
		s.cursor = fmt.Sprintf("\x1b[%d q", n)
		return false
	})
	for final := '@'; final <= '~'; final++ {
		if final != 'm' { // its numbers are colours
			s.e.RegisterCsiHandler(int(final), bound)
		}
	}
	s.e.RegisterEscHandler('=', func() bool { s.keypad = true; return false })
	s.e.RegisterEscHandler('>', func() bool { s.keypad = false; return false })
	s.e.RegisterEscHandler('c', func() bool {
		clear(s.modes)
		s.keypad, s.below, s.top, s.bottom, s.pen, s.cursor, s.title, s.visible = false, "", 0, 0, uv.Style{}, "", "", true
		return false
	})
}

// maxParam bounds the numbers in control sequences: the emulator would repeat a character two thousand million times if it
// is told so. No terminal is larger (PROTOCOL §6: 1000 by 1000).
const maxParam = 1000

// bound comes before every other handler of a sequence, and lets it go on.
func bound(p ansi.Params) bool {
	for i := range p {
		if n := p[i].Param(0); n > maxParam {
			p[i] = ansi.Param(maxParam) | p[i]&parser.HasMoreFlag
		}
	}
	return false
}

// maxTail is more than any character has bytes, with all that combines with it.
const maxTail = 4 << 10

// Write feeds it. An emulator that does not survive what it is fed is replaced by an empty one: no output of a program's
// may end the gateway. What is printable at the end of p waits for the next call: the emulator would take a character that goes
// on there for two. It never fails.
func (s *Screen) Write(p []byte) (int, error) {
	defer s.survive()
	cut := bytes.LastIndexFunc(p, func(r rune) bool { return r < 0x20 }) + 1
	if cut == 0 && len(s.tail)+len(p) <= maxTail {
		s.tail = append(s.tail, p...)
		return len(p), nil
	}
	if len(p)-cut > maxTail {
		cut = len(p)
	}
	s.Flush()
	_, _ = s.e.Write(p[:cut])
	s.tail = append(s.tail, p[cut:]...)
	return len(p), nil
}

// survive is deferred around the emulator.
func (s *Screen) survive() {
	if recover() != nil {
		s.reset(s.e.Width(), s.e.Height())
	}
}

// Flush takes in what waits. Before anything is asked.
func (s *Screen) Flush() {
	defer s.survive()
	if len(s.tail) > 0 {
		_, _ = s.e.Write(s.tail)
		s.tail = s.tail[:0]
	}
}

// Resize gives it another size.
func (s *Screen) Resize(cols, rows int) {
	s.Flush()
	defer func() {
		if recover() != nil {
			s.reset(cols, rows)
		}
	}()
	s.top, s.bottom = 0, 0
	s.e.Resize(cols, rows)
}

// Size is the screen's.
func (s *Screen) Size() (cols, rows int) { return s.e.Width(), s.e.Height() }

// Alternate tells whether the alternate screen is shown.
func (s *Screen) Alternate() bool { return s.e.IsAltScreen() }

// Title is the window's, as set last.
func (s *Screen) Title() string { return s.title }

// Cursor is where the next character goes, from 0.
func (s *Screen) Cursor() (col, row int, visible bool) {
	p := s.e.CursorPosition()
	return min(p.X, s.e.Width()-1), min(p.Y, s.e.Height()-1), s.visible
}

// Lines is the text of each row, without blanks at its end.
func (s *Screen) Lines() []string {
	lines := make([]string, s.e.Height())
	var b strings.Builder
	for y := range lines {
		b.Reset()
		for x := 0; x < s.e.Width(); {
			c := s.e.CellAt(x, y)
			if c == nil || c.Content == "" {
				b.WriteByte(' ')
				x++
				continue
			}
			b.WriteString(c.Content)
			x += max(1, c.Width)
		}
		lines[y] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// draw returns the sequences that draw the cells of the screen that is shown, on an empty one, with the cursor after them.
func (s *Screen) draw() string {
	var b strings.Builder
	for y := range s.e.Height() {
		end := s.e.Width()
		for end > 0 && blank(s.e.CellAt(end-1, y)) {
			end--
		}
		if end > 0 {
			fmt.Fprintf(&b, "\x1b[%dH", y+1)
		}
		from := uv.Style{}
		for x := 0; x < end; {
			c := s.e.CellAt(x, y)
			if c == nil || c.Content == "" {
				c = &uv.EmptyCell
			}
			b.WriteString(c.Style.Diff(&from))
			from = c.Style
			if c.Link.URL != "" {
				b.WriteString("\x1b]8;" + c.Link.Params + ";" + c.Link.URL + "\x1b\\" + c.Content + "\x1b]8;;\x1b\\")
			} else {
				b.WriteString(c.Content)
			}
			x += max(1, c.Width)
		}
		if !from.IsZero() {
			b.WriteString("\x1b[m")
		}
	}
	col, row, _ := s.Cursor()
	fmt.Fprintf(&b, "\x1b[%d;%dH", row+1, col+1)
	return b.String()
}

// blank is a cell as an empty screen has it.
func blank(c *uv.Cell) bool {
	return c == nil || (c.Content == "" || c.Content == " ") && c.Style.IsZero() && c.Link.URL == ""
}

// restored are the modes that a program sets for its terminal to behave otherwise, and which a terminal that shows the
// screen must have. Not autowrap and origin, which change how the screen is drawn: they come last.
var restored = []ansi.Mode{
	ansi.DECMode(1), ansi.DECMode(5), ansi.DECMode(9), ansi.DECMode(66), ansi.DECMode(1000), ansi.DECMode(1001), ansi.DECMode(1002), ansi.DECMode(1003),
	ansi.DECMode(1004), ansi.DECMode(1005), ansi.DECMode(1006), ansi.DECMode(1007), ansi.DECMode(1015), ansi.DECMode(1016), ansi.DECMode(2004),
	ansi.ANSIMode(4), ansi.ANSIMode(20),
}

// Bytes are sequences that give any terminal of the size this screen, with cursor and modes, whatever it showed before.
// They ask nothing.
func (s *Screen) Bytes() []byte {
	var b bytes.Buffer
	// Out of the alternate screen, of any mode that was left on, of margins; then everything is clear.
	b.WriteString("\x1b[?1049l\x1b[?6l\x1b[?7h\x1b[4l\x1b[r\x1b(B\x0f\x1b[m\x1b[H\x1b[2J")
	if s.e.IsAltScreen() {
		b.WriteString(s.below)
		b.WriteString("\x1b[?1049h\x1b[m\x1b[H\x1b[2J")
	}
	b.WriteString(s.draw())
	for _, m := range restored {
		if s.modes[m] {
			b.WriteString(ansi.SetMode(m))
		} else {
			b.WriteString(ansi.ResetMode(m))
		}
	}
	if wraps, told := s.modes[ansi.DECMode(7)]; told && !wraps {
		b.WriteString("\x1b[?7l")
	}
	b.WriteString(map[bool]string{false: "\x1b>", true: "\x1b="}[s.keypad])
	if s.title != "" {
		b.WriteString("\x1b]2;" + strings.Map(printable, s.title) + "\x07")
	}
	if s.cursor != "" {
		b.WriteString(s.cursor)
	}
	col, row, visible := s.Cursor()
	if s.top > 0 { // sets the cursor, too
		fmt.Fprintf(&b, "\x1b[%d;%dr", s.top, s.bottom)
	}
	if s.modes[ansi.DECMode(6)] { // rows count from the margin then
		b.WriteString("\x1b[?6h")
		row = max(0, row-max(0, s.top-1))
	}
	fmt.Fprintf(&b, "\x1b[%d;%dH", row+1, col+1)
	b.WriteString(s.pen.String())
	b.WriteString(map[bool]string{false: "\x1b[?25l", true: "\x1b[?25h"}[visible])
	return b.Bytes()
}

func printable(r rune) rune {
	if r < 0x20 || r == 0x7f {
		return -1
	}
	return r
}
