package screen

import (
	"slices"
	"strings"
	"testing"
)

const nonce = "n0nce"

// feed gives the marks a text, cut everywhere in turn, and returns what ended in it.
func feed(t *testing.T, text string) []Command {
	t.Helper()
	whole := NewMarks(nonce)
	whole.Live()
	whole.Write([]byte(text))
	want := whole.Take()
	for _, piece := range []int{1, 2, 3, 5} {
		m := NewMarks(nonce)
		m.Live()
		for p := []byte(text); len(p) > 0; p = p[min(piece, len(p)):] {
			m.Write(p[:min(piece, len(p))])
		}
		got := m.Take()
		if !slices.EqualFunc(got, want, func(a, b Command) bool {
			return a.Text == b.Text && a.Offset == b.Offset && a.End == b.End && (a.Code == nil) == (b.Code == nil) && (a.Code == nil || *a.Code == *b.Code)
		}) || m.Alternate() != whole.Alternate() {
			t.Errorf("in pieces of %d: %+v, whole %+v", piece, got, want)
		}
	}
	return want
}

func run(text, out, code string) string {
	return "\x1b]133;A;aid=n0nce\x07$ \x1b]133;B;aid=n0nce\x07" + "\x1b]633;E;" + text + ";n0nce\x07\x1b]133;C;aid=n0nce\x07" + out + "\x1b]133;D;" + code + ";aid=n0nce\x07"
}

func TestMarksTellOfCommands(t *testing.T) {
	text := run("ls", "a b\r\n", "0") + run(`echo a\x3b b \\n\x0aecho \xe2`, "x\x1b[1mbold\x1b]0;title\x07\x1b]8;;http://x\x1b\\", "130")
	got := feed(t, text)
	if len(got) != 2 || got[0].Text != "ls" || *got[0].Code != 0 || got[0].Duration < 0 || got[1].Text != "echo a; b \\n\necho \xe2" || *got[1].Code != 130 {
		t.Fatalf("%+v", got)
	}
	if out := text[got[0].Offset:got[0].End]; out != "a b\r\n" {
		t.Errorf("the output is %q", out)
	}
	if out := text[got[1].Offset:got[1].End]; !strings.HasPrefix(out, "x\x1b[1mbold") || !strings.HasSuffix(out, "\x1b\\") {
		t.Errorf("the output is %q", out)
	}
}

// TestMarksOfOthersDoNotCount: a file that is printed, a shell at the other end of ssh, a string in a string.
func TestMarksOfOthersDoNotCount(t *testing.T) {
	for _, text := range []string{
		strings.ReplaceAll(run("rm -rf /", "", "0"), nonce, "other"),
		strings.ReplaceAll(run("rm -rf /", "", "0"), "aid=n0nce", ""),
		strings.ReplaceAll(run("rm -rf /", "", "0"), "\x1b]133", "\x1bP133"),
		"\x1b]133;D;0;aid=n0nce\x07",
		"\x1b]133;C;aid=n0nce\x18\x1b]133;D;0;aid=n0nce\x07",
		"\x1b]133;C;" + strings.Repeat("x", maxSeq) + ";aid=n0nce\x07\x1b]133;D;0;aid=n0nce\x07",
	} {
		if got := feed(t, text); len(got) != 0 {
			t.Errorf("%.80q: %+v", text, got)
		}
	}
	if got := feed(t, "\x1b]133;C;aid=n0nce\x1b\\out\x1b]133;D;aid=n0nce\x1b\\"); len(got) != 1 || got[0].Code != nil || got[0].Text != "" {
		t.Errorf("without code and text: %+v", got)
	}
}

// TestMarksBeforeTheyAreLive: after a crash the output is read again, and what ended then is no news.
func TestMarksBeforeTheyAreLive(t *testing.T) {
	m := NewMarks(nonce)
	text := run("old", "x", "0") + "\x1b]633;E;going on;n0nce\x07\x1b]133;C;aid=n0nce\x07"
	if m.Write([]byte(text)) {
		t.Error("news")
	}
	m.Skip(1000)
	m.Live()
	m.Write([]byte("out\x1b]133;D;3;aid=n0nce\x07"))
	got := m.Take()
	if len(got) != 1 || got[0].Text != "going on" || got[0].Duration >= 0 || got[0].End != int64(len(text))+1003 {
		t.Errorf("%+v", got)
	}
}

func TestMarksSeeTheAlternateScreen(t *testing.T) {
	for text, want := range map[string]bool{
		"\x1b[?1049h": true, "\x1b[?1049h\x1b[?1049l": false, "\x1b[?1;47h": true, "\x1b[1049h": false, "\x1b[?25h": false, "\x1b[?1049h\x1bc": false,
		"\x1b]0;\x1b[?1049h\x07": true, "\x1bP\x1b[?1049h": true, "\x1b[?\x1b[?1047h": true, "\x1b[?1049": false,
	} {
		m := NewMarks(nonce)
		feed(t, text)
		m.Write([]byte(text))
		if m.Alternate() != want {
			t.Errorf("%q: %v", text, m.Alternate())
		}
	}
}

func BenchmarkMarks(b *testing.B) {
	text := []byte(strings.Repeat("drwxr-xr-x 2 root root 4096 Jan  1 00:00 \x1b[01;34mdirectory\x1b[0m\r\n", 500))
	m := NewMarks(nonce)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		m.Write(text)
	}
}
