package screen

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// recordings are what programs printed into a window of tmux, 80 by 24, and what tmux showed then: NAME.raw, NAME.ref (its
// text) and NAME.cur (cursor's column and row, whether it is visible, whether the alternate screen is shown).
func recordings(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.raw")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(f, ".raw")] = raw
	}
	return all
}

func shows(raw []byte, piece int) *Screen {
	s := New(80, 24)
	for len(raw) > 0 {
		n := min(piece, len(raw))
		_, _ = s.Write(raw[:n])
		raw = raw[n:]
	}
	return s
}

// TestScreenIsWhatTmuxShows: vim, less, top, htop, fzf, tmux itself, a prompt, Python.
func TestScreenIsWhatTmuxShows(t *testing.T) {
	for name, raw := range recordings(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			ref, err := os.ReadFile(name + ".ref")
			if err != nil {
				t.Fatal(err)
			}
			cur, err := os.ReadFile(name + ".cur")
			if err != nil {
				t.Fatal(err)
			}
			s := shows(raw, 4096)
			want := strings.Split(strings.TrimRight(string(ref), "\n"), "\n")
			for i, got := range s.Lines() {
				line := ""
				if i < len(want) {
					line = strings.TrimRight(want[i], " ")
				}
				if got != line {
					t.Errorf("line %d\n got %q\nwant %q", i, got, line)
				}
			}
			var x, y, visible, alt int
			if _, err := fmt.Sscanf(string(cur), "%d %d %d %d", &x, &y, &visible, &alt); err != nil {
				t.Fatal(err)
			}
			col, row, shown := s.Cursor()
			if col != min(x, 79) || row != y || shown != (visible == 1) || s.Alternate() != (alt == 1) {
				t.Errorf("cursor %d,%d visible %v, alternate %v; tmux: %s", col, row, shown, s.Alternate(), cur)
			}
		})
	}
}

// same compares two screens cell by cell.
func same(t *testing.T, got, want *Screen) {
	t.Helper()
	look := func(s *Screen, x, y int) string {
		c := s.g.at(x, y)
		text := strings.TrimSpace(string(s.appendText(nil, &c)))
		return fmt.Sprintf("%q %d %s %q", text, c.char>>30&1, s.appendStyle(nil, &c)[1:], s.table.extras[c.style>>extraShift].link)
	}
	for y := range want.g.rows {
		for x := range want.g.cols {
			if a, b := look(got, x, y), look(want, x, y); a != b {
				t.Fatalf("cell %d,%d: %s, want %s", x, y, a, b)
			}
		}
	}
	ax, ay, av := got.Cursor()
	bx, by, bv := want.Cursor()
	if ax != bx || ay != by || av != bv || got.Alternate() != want.Alternate() || got.Title() != want.Title() {
		t.Errorf("cursor %d,%d %v, want %d,%d %v; alternate %v, want %v; title %q, want %q", ax, ay, av, bx, by, bv, got.Alternate(), want.Alternate(), got.Title(), want.Title())
	}
	state := func(s *Screen) string {
		return fmt.Sprint(s.modes, s.autowrap, s.keypad, s.g.top, s.g.bot, s.g.wrapNext, s.charsets, s.shift, s.link, s.cursor, string(s.appendStyle(nil, &s.pen)[1:]))
	}
	if a, b := state(got), state(want); a != b {
		t.Errorf("modes, margins, pen: %s, want %s", a, b)
	}
}

const dirty = "\x1b[?1049h\x1b[?1h\x1b[?1000h\x1b[?2004h\x1b[4h\x1b=\x1b[3;9r\x1b[?6h\x1b[31;44mleft over\x1b[?25l"

// TestBytesMakeAnyTerminalShowTheScreen: with cursor, modes, margins and pen, whatever it showed before; and when the
// full-screen program ends, what was below it.
func TestBytesMakeAnyTerminalShowTheScreen(t *testing.T) {
	all := recordings(t)
	all["margins"] = []byte("one\r\ntwo\x1b[5;10r\x1b[?6h\x1b[2;3H\x1b[1;32mgreen\x1b[?7l\x1b[?1002h\x1b[?1006h\x1b[4 q\x1b]2;a title\x07")
	all["colours"] = []byte("\x1b[38;5;208morange\x1b[48;2;1;2;3mtrue\x1b[0m\x1b[4:3mcurly\x1b[m \x1b[7mreverse \x1b]8;;http://a/\x1b\\link\x1b]8;;\x1b\\\x1b[K\r\n\x1b[44m\x1b[2K blue line\x1b[m\r\n日本語 e\u0301 👩‍👩‍👧 end")
	for name, raw := range all {
		t.Run(filepath.Base(name), func(t *testing.T) {
			want := shows(raw, 4096)
			for before, on := range map[string]*Screen{"empty": New(80, 24), "dirty": shows([]byte(dirty), 4096)} {
				_, _ = on.Write(want.Bytes())
				if t.Run(before, func(t *testing.T) { same(t, on, want) }); want.Alternate() {
					_, _ = on.Write([]byte("\x1b[?1049l"))
					left := shows(slices.Concat(raw, []byte("\x1b[?1049l")), 4096)
					if got, want := strings.Join(on.Lines(), "\n"), strings.Join(left.Lines(), "\n"); got != want {
						t.Errorf("below:\n%s\nwant\n%s", got, want)
					}
				}
			}
		})
	}
}

// TestPiecesDoNotMatter: wherever the output is cut.
func TestPiecesDoNotMatter(t *testing.T) {
	all := recordings(t)
	all["clusters"] = []byte("e\u0301e\u0301 👩‍👩‍👧👩‍👩‍👧 日本\r\n🇩🇪🇫🇷")
	for name, raw := range all {
		want := shows(raw, len(raw))
		for _, piece := range []int{1, 2, 3, 7, 64} {
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(name), piece), func(t *testing.T) { same(t, shows(raw, piece), want) })
		}
	}
}

// TestBytesAskNothing: a terminal that is shown the screen must not answer anything.
func TestBytesAskNothing(t *testing.T) {
	raw := []byte("\x1b[6n\x1b[c\x1b[>c\x1b[5n\x1b[?6n\x1b]10;?\x07\x1b]11;?\x1b\\\x1b[?2026$p\x1bP$qm\x1b\\\x1b[14t\x1b[?u\x1b]2;\x1b[6n\x07\x05text")
	s := shows(raw, 4096)
	if s.Lines()[0] != "text" {
		t.Errorf("%q", s.Lines()[0])
	}
	for name, b := range map[string][]byte{"queries": s.Bytes()} {
		p := ansi.NewParser()
		p.SetHandler(ansi.Handler{
			HandleCsi: func(c ansi.Cmd, _ ansi.Params) {
				if strings.ContainsRune("nctxpu", rune(c.Final())) {
					t.Errorf("%s: CSI %c in %q", name, c.Final(), b)
				}
			},
			HandleOsc: func(cmd int, data []byte) {
				if cmd != 2 && cmd != 8 || bytes.HasSuffix(data, []byte("?")) {
					t.Errorf("%s: OSC %q in %q", name, data, b)
				}
			},
			HandleDcs: func(c ansi.Cmd, _ ansi.Params, data []byte) { t.Errorf("%s: DCS %q in %q", name, data, b) },
			Execute: func(c byte) {
				if c == 5 {
					t.Errorf("%s: ENQ in %q", name, b)
				}
			},
		})
		for _, c := range b {
			p.Advance(c)
		}
	}
}

func TestResize(t *testing.T) {
	s := New(80, 24)
	_, _ = s.Write([]byte("a\r\nb\r\n" + strings.Repeat("x", 100)))
	s.Resize(40, 10)
	if cols, rows := s.Size(); cols != 40 || rows != 10 || len(s.Lines()) != 10 {
		t.Errorf("%d by %d", cols, rows)
	}
	s.Resize(120, 1)
	s.Resize(1, 1)
	_, _ = s.Write([]byte("日本\r\n\x1b[5;5Hx"))
	_ = s.Bytes()
}

func FuzzScreen(f *testing.F) {
	f.Add([]byte(dirty), uint8(80), uint8(24))
	f.Add([]byte("日本語 \x1b[1;1r\x1b[?1049h\x1b[5L\x1b[3M\x1b[2@\x1b[9P\x1b[1000b"), uint8(3), uint8(1))
	f.Fuzz(func(t *testing.T, p []byte, cols, rows uint8) {
		s := New(max(1, int(cols)), max(1, int(rows)))
		_, _ = s.Write(p)
		s.Resize(max(1, int(rows)), max(1, int(cols)))
		_, _ = s.Write(p)
		if len(s.Lines()) != max(1, int(cols)) {
			t.Fatal("lines")
		}
		_ = s.Bytes()
	})
}

// TestLargeNumbersAreBounded: it would not end, if they were not.
func TestLargeNumbersAreBounded(t *testing.T) {
	for _, c := range "@ABCDEFGHIJKLMPSTXZ`abcdefghilmnqrstu" {
		for _, before := range []string{"", "x\x1b[?1049h", "日"} {
			s := New(80, 24)
			_, _ = s.Write([]byte(before + "x\x1b[999999999" + string(c) + "y\x1b[2147483647;2147483647" + string(c) + "\x1b[0;0" + string(c) + "\r\n"))
		}
	}
}

// TestMemoryIsBounded: a large screen takes next to nothing when empty, 16 bytes for a cell that is in use, and what is
// beside the cells has a bound.
func TestMemoryIsBounded(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := New(1000, 1000)
	if n := s.Memory(); n > 256<<10 {
		t.Errorf("empty: %d", n)
	}
	for range 1000 {
		_, _ = s.Write(bytes.Repeat([]byte("\x1b[31mx\x1b[32my"), 500))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n, most := s.Memory(), 17<<20; n > most || int64(after.HeapAlloc)-int64(before.HeapAlloc) > int64(most) {
		t.Errorf("full: %d, heap %d", n, int64(after.HeapAlloc)-int64(before.HeapAlloc))
	}
	s = New(100, 100)
	for i := range 3000 {
		_, _ = fmt.Fprintf(s, "\x1b]8;;http://%d/%s\x1b\\%c\u0301%c\x1b[58;2;%d;%d;1m\x1b]2;%[4]d\x07", i, strings.Repeat("a", 1800), 'a'+i%26, 0x300+i%0x60, i%256, i/256%256)
	}
	if n := s.Memory(); n > 4<<20 {
		t.Errorf("with %d clusters and %d extras: %d", len(s.clusters), len(s.extras), n)
	}
	_, _ = s.Write([]byte("\x1b[m\x1b]8;;\x1b\\\x1b[2J\x1b[H"))
	places := 0 // what is not in use any more makes place
	for i := range 2 * (s.work() + maxExtras) {
		_, _ = fmt.Fprintf(s, "\r\x1b]8;;http://new/%d\x1b\\x", i)
		if s.extras[s.g.at(0, 0).style>>extraShift].link == fmt.Sprintf(";http://new/%d", i) {
			places++
		}
	}
	if places < maxExtras/2 {
		t.Errorf("place for %d links", places)
	}
}

// TestFloodsAllocateNothing: whatever is printed without end, at any size; but for combined characters and links, which are
// remembered.
func TestFloodsAllocateNothing(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 50}} {
		for name, flood := range floods {
			if name == "combining" || name == "links" {
				continue
			}
			s := New(size[0], size[1])
			p := bytes.Repeat([]byte(flood), 100)
			_, _ = s.Write(bytes.Repeat([]byte("full"), size[0]*size[1]/4))
			_, _ = s.Write(append([]byte("\x1b[?1049h"), bytes.Repeat([]byte("full"), size[0]*size[1]/4)...))
			_, _ = s.Write(p)
			if n := testing.AllocsPerRun(2, func() { _, _ = s.Write(p) }); n > 0 {
				t.Errorf("%s at %v: %v", name, size, n)
			}
		}
	}
}

// TestMouseIsReportedAsBefore: to reset one way of reporting it ends the others in xterm.js, so what is set comes last.
func TestMouseIsReportedAsBefore(t *testing.T) {
	s := New(80, 24)
	_, _ = s.Write([]byte("\x1b[?1000h\x1b[?1006h"))
	b := string(s.Bytes())
	if on, off := strings.Index(b, "\x1b[?1000h"), strings.LastIndex(b, "\x1b[?1003l"); on < off {
		t.Errorf("%q", b)
	}
}

// TestScreenGoesOnWhereItWas: what comes after a screen is shown as if all had been seen, also where the last column was written.
func TestScreenGoesOnWhereItWas(t *testing.T) {
	for _, before := range []string{strings.Repeat("x", 80), strings.Repeat("日", 40), "\x1b[31;1m" + strings.Repeat("y", 80) + "\x1b[m", "\x1b[5;9r\x1b[?6h\x1b[2H" + strings.Repeat("z", 80), "a\x1b[4h\x1b[G", "\x1b(0q", "e"} {
		want, got := New(80, 24), New(80, 24)
		_, _ = want.Write([]byte(before))
		_, _ = got.Write(want.Bytes())
		for _, s := range []*Screen{want, got} {
			_, _ = s.Write([]byte("next\r\nq"))
		}
		same(t, got, want)
	}
}
