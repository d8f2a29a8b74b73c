package cast

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// events holds a file against the text of the format, by another parser than ours, and returns its events. v3 only.
func events(t testing.TB, text []byte) (all [][3]any) {
	t.Helper()
	lines := strings.SplitAfter(string(text), "\n")
	if last := lines[len(lines)-1]; last != "" {
		t.Fatalf("no line break after %q", last)
	}
	var h map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &h); err != nil {
		t.Fatalf("header: %v", err)
	}
	term, _ := h["term"].(map[string]any)
	if h["version"] != 3.0 || term["cols"].(float64) < 1 || term["rows"].(float64) < 1 {
		t.Fatalf("header %v", h)
	}
	for key := range h {
		if !strings.Contains(" version term timestamp idle_time_limit command title tags env ", " "+key+" ") {
			t.Errorf("the format's header has no %q", key)
		}
	}
	for i, line := range lines[1 : len(lines)-1] {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if !utf8.ValidString(line) {
			t.Fatalf("line %d: not UTF-8", i+2)
		}
		for _, c := range line[:len(line)-1] {
			if c < ' ' || c >= 0x7f && c < 0xa0 {
				t.Fatalf("line %d: control character %U", i+2, c)
			}
		}
		var e []any
		if err := json.Unmarshal([]byte(line), &e); err != nil || len(e) != 3 {
			t.Fatalf("line %d: %q: %v", i+2, line, err)
		}
		if e[0].(float64) < 0 {
			t.Fatalf("line %d: %q goes back", i+2, line)
		}
		switch code, data := e[1].(string), e[2].(string); code {
		case "o", "m":
		case "r":
			var cols, rows int
			if n, err := fmt.Sscanf(data, "%dx%d", &cols, &rows); n != 2 || err != nil {
				t.Fatalf("line %d: %q", i+2, line)
			}
		case "x":
			var status int
			if n, err := fmt.Sscan(data, &status); n != 1 || err != nil || i != len(lines)-3-strings.Count(lines[len(lines)-2][:1], "#") {
				t.Fatalf("line %d: %q, of %d", i+2, line, len(lines))
			}
		default:
			t.Fatalf("line %d: code %q", i+2, code)
		}
		all = append(all, [3]any{e[0], e[1], e[2]})
	}
	return all
}

func printed(all [][3]any) string {
	var b strings.Builder
	for _, e := range all {
		if e[1] == "o" {
			b.WriteString(e[2].(string))
		}
	}
	return b.String()
}

// TestEveryByteIsThere: whatever the pieces, the text is the same, with U+FFFD for what is no text.
func TestEveryByteIsThere(t *testing.T) {
	text := "plain \x1b[31mred\x1b[0m \"quoted\" \\ tab\t\r\n日本語 é 👩‍🚀 \u0085\u00a0 \x00\x7f </script> \u2028"
	for range 300 {
		raw := []byte(text + text)
		for range rand.N(4) {
			raw[rand.N(len(raw))] = byte(rand.Uint())
		}
		var w Writer
		w.Header(Header{Cols: 80, Rows: 24, Title: "caf\xe9"})
		for rest := raw; len(rest) > 0; {
			n := 1 + rand.N(min(7, len(rest)))
			w.Output(time.Duration(rand.N(5000))*time.Microsecond, false, rest[:n])
			rest = rest[n:]
		}
		w.Flush(0)
		var want strings.Builder
		for _, r := range string(raw) { // a range over a string is the rule: U+FFFD for each byte that is none of a character
			want.WriteRune(r)
		}
		if got := printed(events(t, w.lines)); got != want.String() {
			t.Fatalf("%q\ngot  %q\nwant %q", raw, got, want.String())
		}
	}
}

func TestWhatIsWritten(t *testing.T) {
	w := Writer{Newlines: true}
	w.Header(Header{Cols: 80, Rows: 24, Type: "dumb", Timestamp: 1504467315, Command: "make \"x\"", Title: "work"})
	w.Output(1234567*time.Microsecond, false, []byte("a\nb\r"))
	w.Output(1300*time.Millisecond, false, []byte("\nc\xe2\x82"))
	w.Output(1300*time.Millisecond, true, []byte("err\n"))         // the character that was begun is none any more
	w.Output(1200*time.Millisecond, false, []byte("\xac earlier")) // a clock that goes back
	w.Resize(2*time.Second, 90, 30)
	w.Mark(62*time.Second, "next")
	w.Exit(62*time.Second, 3)
	const want = `{"version":3,"term":{"cols":80,"rows":24,"type":"dumb"},"timestamp":1504467315,"command":"make \"x\"","title":"work"}
[1.234, "o", "a\r\nb\r"]
[0.066, "o", "\nc"]
[0.000, "o", "` + "\ufffd\ufffd" + `"]
# stderr
[0.000, "o", "err\r\n"]
[0.000, "o", "` + "\ufffd" + ` earlier"]
[0.700, "r", "90x30"]
[60.000, "m", "next"]
[0.000, "x", "3"]
`
	if string(w.lines) != want {
		t.Fatalf("got\n%s\nwant\n%s", w.lines, want)
	}
	events(t, w.lines)

	r, err := NewReader(strings.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	if r.Header != (Header{Version: 3, Cols: 80, Rows: 24, Type: "dumb", Timestamp: 1504467315, Command: "make \"x\"", Title: "work"}) {
		t.Fatalf("header %+v", r.Header)
	}
	var read []string
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, fmt.Sprintf("%v %c %v %q", e.At, e.Code, e.Stderr, e.Data))
	}
	if got := strings.Join(read, "\n"); got != `1.234s o false "a\r\nb\r"
1.3s o false "\nc"
1.3s o false "��"
1.3s o true "err\r\n"
1.3s o false "� earlier"
2s r false "90x30"
1m2s m false "next"
1m2s x false "3"` {
		t.Fatal(got)
	}

	var v2 bytes.Buffer
	if err := V2(&v2, strings.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	const want2 = `{"version":2,"width":80,"height":24,"timestamp":1504467315,"command":"make \"x\"","title":"work","env":{"TERM":"dumb"}}
[1.234, "o", "a\r\nb\r"]
[1.300, "o", "\nc"]
[1.300, "o", "` + "\ufffd\ufffd" + `"]
[1.300, "o", "err\r\n"]
[1.300, "o", "` + "\ufffd" + ` earlier"]
[2.000, "r", "90x30"]
[62.000, "m", "next"]
`
	if v2.String() != want2 {
		t.Fatalf("got\n%s\nwant\n%s", v2.String(), want2)
	}
	if r, err := NewReader(&v2); err != nil || r.Header.Cols != 80 || r.Header.Type != "dumb" {
		t.Fatalf("our own v2: %+v, %v", r, err)
	}
}

type testNotes struct {
	Who string `json:"who"`
}

// TestTornAnywhere: wherever a writer was killed in the middle of a write, the next one goes on, and nothing is lost or twice.
func TestTornAnywhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.cast")
	stream := []byte(strings.Repeat("naïve ✓ text\r\n", 12))
	write := func(f *File, from, to int) {
		for at := from; at < to; {
			n := min(17, to-at)
			f.Output(time.Duration(at)*time.Millisecond, false, stream[at:at+n])
			at += n
			if _, err := f.Commit(Progress{Offset: int64(at - f.PendingBytes())}); err != nil {
				t.Fatal(err)
			}
		}
	}
	f, err := Create(path, Header{Cols: 80, Rows: 24}, testNotes{"me"})
	if err != nil {
		t.Fatal(err)
	}
	least := f.Size()
	write(f, 0, len(stream))
	f.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := int(least); cut <= len(whole); cut++ {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		var n testNotes
		found, err := Inspect(path, &n)
		if err != nil || n.Who != "me" || found.Header.Cols != 80 {
			t.Fatalf("cut at %d: %+v, %v", cut, found, err)
		}
		f, err := Resume(path, found.Progress, found.Size)
		if err != nil {
			t.Fatal(err)
		}
		if cut%2 == 0 { // else it ends here, and what was torn must not stand behind its end
			write(f, int(found.Progress.Offset), len(stream))
		}
		f.Exit(f.At(), 0)
		status := 0
		if _, err := f.Commit(Progress{Offset: int64(len(stream)), End: "exit", Status: &status}); err != nil {
			t.Fatal(err)
		}
		f.Close()
		text, _ := os.ReadFile(path)
		want := string(stream)
		if cut%2 != 0 {
			want = want[:found.Progress.Offset]
		}
		if got := printed(events(t, text)); got != want {
			t.Fatalf("cut at %d: %q", cut, got)
		}
		if found, err = Inspect(path, &n); err != nil || found.Progress.End != "exit" || *found.Progress.Status != 0 || found.Progress.Offset != int64(len(stream)) || found.Size != int64(len(text)) {
			t.Fatalf("cut at %d: %+v, %v", cut, found, err)
		}
		var plain bytes.Buffer
		if err := WithoutNotes(&plain, bytes.NewReader(text)); err != nil || bytes.Contains(plain.Bytes(), []byte("#")) {
			t.Fatalf("%q, %v", plain.String(), err)
		}
		if got := printed(events(t, plain.Bytes())); got != want {
			t.Fatalf("plain: %q", got)
		}
	}
}

// TestAFullDiskTakesNothingBack: what could not be written is not there by half, and what was stays.
func TestAFullDiskTakesNothingBack(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	f := &File{f: full}
	f.Output(time.Second, false, []byte("x"))
	if _, err := f.Commit(Progress{Offset: 1}); err == nil || f.Size() != 0 || f.Waiting() != 0 || f.At() != 0 {
		t.Fatalf("%v, size %d, %d waiting, at %v", err, f.Size(), f.Waiting(), f.At())
	}
}

func TestWhatIsNoRecording(t *testing.T) {
	for _, text := range []string{
		"", "\n", "hello\n", "{}\n", `{"version":1,"width":80,"height":24,"stdout":[]}` + "\n", `{"version":3,"width":80,"height":24}` + "\n",
		`{"version":3,"term":{"cols":0,"rows":24}}` + "\n", `{"version":2,"width":80,"height":100000}` + "\n", `{"version":3,"term":{"cols":80,"rows":24}}`,
	} {
		if _, err := NewReader(strings.NewReader(text)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, line := range []string{`[]`, `[1,"o"]`, `["1","o","x"]`, `[-1,"o","x"]`, `[1,"","x"]`, `[1,"oo","x"]`, `[1,"o",3]`, `[1e300,"o","x"]`, `[1,"r","80"]`, `[1,"r","0x0"]`, `{}`} {
		r, err := NewReader(strings.NewReader(`{"version":3,"term":{"cols":80,"rows":24}}` + "\n" + line + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		if e, err := r.Next(); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %+v, %v", line, e, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("{\"version\":3,\"term\":{\"cols\":80,\"rows\":24}}\n# c\n[0.248, \"o\", \"\\u001b[1mHi\"]\n[1,\"r\",\"90x30\"]\n[1, \"x\", \"0\"]\n"))
	f.Add([]byte("{\"version\":2,\"width\":80,\"height\":24}\n[0.2, \"o\", \"Hi\"]\n[1,\"z\",\"\"]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := NewReader(bytes.NewReader(text))
		if err != nil {
			return
		}
		var at time.Duration
		var said strings.Builder
		for {
			e, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					return
				}
				break
			}
			if e.At < at {
				t.Fatalf("%v after %v", e.At, at)
			}
			at = e.At
			if e.Code == Output {
				said.WriteString(e.Data)
			}
		}
		var v2 bytes.Buffer // what we read we can convert, and read again
		if err := V2(&v2, bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		r, err = NewReader(&v2)
		if err != nil {
			t.Fatal(err)
		}
		var again strings.Builder
		for e, err := r.Next(); !errors.Is(err, io.EOF); e, err = r.Next() {
			if err != nil {
				t.Fatal(err)
			}
			if e.Code == Output {
				again.WriteString(e.Data)
			}
		}
		if again.String() != said.String() {
			t.Fatalf("%q became %q", said.String(), again.String())
		}
	})
}

func BenchmarkOutput(b *testing.B) {
	p := []byte(strings.Repeat("\x1b[32m+\x1b[0m a line of a build, with its name/of/a/file.go\r\n", 256))
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		w := Writer{}
		w.Output(0, false, p)
	}
}
