package journal

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// model does what a journal promises, with unbounded memory and simple code. It drives a real journal from one goroutine.
type model struct {
	j       *Journal
	ring    int
	all     []byte
	owner   []byte   // the stream of each byte of all
	totals  [4]int64 // bytes by stream
	closed  bool
	readers []*modelReader
	room    int // number of OnRoom calls
	tapped  []byte
}

type modelReader struct {
	*Reader
	o    Options
	pos  int // expected next offset
	mark int // size at Attach

	ahead int // of SetAhead
}

// TestReadersSeeTheModel writes, attaches, reads and closes at random, and compares every chunk with the model's bytes.
func TestReadersSeeTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{ring: rapid.SampledFrom([]int{0, 1, 4096, 5000, 100_000}).Draw(t, "ring")}
		m.j = New(m.ring)
		m.j.hold = rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "hold")
		m.j.OnRoom(func() { m.room++ })
		m.j.Tap(func(_ Stream, p []byte) { m.tapped = append(m.tapped, p...) })
		t.Repeat(map[string]func(*rapid.T){
			"write":  m.write,
			"attach": m.attach,
			"read":   m.read,
			"drain":  m.drain,
			"block":  m.setBlock,
			"ahead":  m.setAhead,
			"detach": m.detach,
			"close":  m.close,
			"":       m.check,
		})
		for _, r := range m.readers {
			for m.next(t, r) {
			}
		}
		if !bytes.Equal(m.tapped, m.all) {
			t.Fatalf("tap saw %d bytes of %d", len(m.tapped), len(m.all))
		}
	})
}

// scraps are pieces of text that can be divided: whole characters, parts of characters, and bytes that are no characters.
var scraps = []string{"a", "\n", "é", "─", "🙂", "\xe2", "\xe2\x94", "\x80", "\xf0\x9f", "\x99\x82", "\xff", "\xc0\xaf", "\xed\xa0", "\x1b[6n"}

func (m *model) write(t *rapid.T) {
	if m.closed {
		t.Skip("closed")
	}
	s := rapid.SampledFrom([]Stream{Stdout, Stderr}).Draw(t, "stream")
	var p []byte
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0: // long
		p = bytes.Repeat([]byte(rapid.SampledFrom(scraps).Draw(t, "pattern")), rapid.IntRange(1, 60_000).Draw(t, "times"))
	case 1: // byte by byte, alternating
		for i := range rapid.IntRange(1, 3000).Draw(t, "turns") {
			s, b := Stdout+Stream(i&1), []byte{byte(i)}
			m.j.Write(s, b)
			m.wrote(s, b)
		}
	default:
		for range rapid.IntRange(0, 6).Draw(t, "scraps") {
			p = append(p, rapid.SampledFrom(scraps).Draw(t, "scrap")...)
		}
	}
	m.j.Write(s, p)
	m.wrote(s, p)
}

func (m *model) wrote(s Stream, p []byte) {
	m.all = append(m.all, p...)
	m.owner = append(m.owner, bytes.Repeat([]byte{byte(s)}, len(p))...)
	m.totals[s] += int64(len(p))
}

func (m *model) attach(t *rapid.T) {
	if len(m.readers) > 4 {
		t.Skip("enough readers")
	}
	r := &modelReader{mark: len(m.all), o: Options{
		Block: rapid.Bool().Draw(t, "block"),
		Text:  rapid.Bool().Draw(t, "text"),
		Max:   rapid.SampledFrom([]int{0, 1, 3, 5, 1000, 200_000}).Draw(t, "max"),
	}}
	r.pos = rapid.IntRange(-1, len(m.all)).Draw(t, "offset")
	var err error
	if r.Reader, err = m.j.Attach(int64(r.pos), r.o); err != nil {
		t.Fatal(err)
	}
	if r.pos < 0 {
		r.pos = int(m.j.Start())
	}
	m.readers = append(m.readers, r)
	if _, err := m.j.Attach(int64(len(m.all))+1, r.o); !errors.Is(err, ErrOffsetBeyondEnd) {
		t.Fatalf("attach beyond the end: %v", err)
	}
}

func (m *model) pick(t *rapid.T) *modelReader {
	if len(m.readers) == 0 {
		t.Skip("no reader")
	}
	return rapid.SampledFrom(m.readers).Draw(t, "reader")
}

func (m *model) read(t *rapid.T) { m.next(t, m.pick(t)) }
func (m *model) drain(t *rapid.T) {
	r := m.pick(t)
	for m.next(t, r) {
	}
}

func (m *model) setBlock(t *rapid.T) {
	r := m.pick(t)
	r.o.Block = rapid.Bool().Draw(t, "block")
	m.expectRoom(t, func() { r.SetBlock(r.o.Block) })
}

func (m *model) setAhead(t *rapid.T) {
	r := m.pick(t)
	r.ahead = rapid.SampledFrom([]int{0, utf8.UTFMax, 1000, 1 << 20}).Draw(t, "ahead")
	m.expectRoom(t, func() { r.SetAhead(int64(r.ahead)) })
}

func (m *model) detach(t *rapid.T) {
	r := m.pick(t)
	for i := range m.readers {
		if m.readers[i] == r {
			m.readers = append(m.readers[:i], m.readers[i+1:]...)
			break
		}
	}
	m.expectRoom(t, r.Close)
	if _, _, err := r.TryNext(); !errors.Is(err, ErrReaderClosed) {
		t.Fatalf("read after close: %v", err)
	}
}

func (m *model) close(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "really") > 0 {
		t.Skip("not yet")
	}
	m.closed = true
	m.j.Close()
}

// hasRoom is the definition of Room.
func (m *model) hasRoom() bool {
	for _, r := range m.readers {
		if r.o.Block && len(m.all)+MaxWrite-r.pos > m.j.bound {
			return false
		}
		if r.o.Block && r.ahead > 0 && len(m.all)-max(r.pos, r.mark) > r.ahead {
			return false
		}
	}
	return true
}

// expectRoom runs f, which may make room, and checks that OnRoom is called exactly then.
func (m *model) expectRoom(t *rapid.T, f func()) {
	before, want := m.j.Room(), m.room
	f()
	if m.hasRoom() && !before {
		want++
	}
	if m.room != want {
		t.Fatalf("OnRoom called %d times, want %d", m.room, want)
	}
}

// check must succeed after every step.
func (m *model) check(t *rapid.T) {
	size, start := int(m.j.Size()), int(m.j.Start())
	if size != len(m.all) {
		t.Fatalf("size %d, want %d", size, len(m.all))
	}
	if kept := size - start; kept < min(size, m.ring) || kept > m.j.bound {
		t.Fatalf("keeps %d of %d bytes with a ring of %d", kept, size, m.ring)
	}
	if m.j.Room() != m.hasRoom() {
		t.Fatalf("room %v, want %v", m.j.Room(), m.hasRoom())
	}
	if out, err := m.j.Totals(); out != m.totals[Stdout] || err != m.totals[Stderr] {
		t.Fatalf("totals %d %d, want %v", out, err, m.totals)
	}
}

// next reads one chunk of r, if there is one, and compares it.
func (m *model) next(t *rapid.T, r *modelReader) (more bool) {
	start := int(m.j.Start())
	var c Chunk
	m.expectRoom(t, func() {
		var err error
		if c, more, err = r.TryNext(); err != nil && (err != io.EOF || !m.closed || r.pos < len(m.all)) {
			t.Fatalf("at %d of %d: %v", r.pos, len(m.all), err)
		}
		if more {
			r.pos = int(c.Offset) + len(c.Data)
		}
	})
	if !more {
		rest := m.all[r.pos:]
		waits := r.o.Text && m.j.hold > 0 && !m.closed && TornTail(rest) == len(rest)
		if len(rest) > 0 && !waits {
			t.Fatalf("nothing at %d of %d", r.pos, len(m.all))
		}
		return false
	}
	off, end := int(c.Offset), r.pos
	was := off - int(c.Gap)
	limit := r.o.Max
	if limit == 0 {
		limit = defaultMax
	}
	if r.o.Text {
		limit = max(limit, utf8.UTFMax)
	}
	switch {
	case len(c.Data) == 0 || len(c.Data) > limit:
		t.Fatalf("chunk of %d bytes, at most %d", len(c.Data), limit)
	case c.Gap != int64(max(0, start-was)):
		t.Fatalf("gap %d at %d, kept from %d", c.Gap, was, start)
	case !bytes.Equal(c.Data, m.all[off:end]):
		t.Fatalf("data at %d differs", off)
	case c.Replay != (off < r.mark):
		t.Fatalf("replay %v at %d, attached at %d", c.Replay, off, r.mark)
	}
	run := off // the end of the stream's run, as far as it is relevant
	for run < min(len(m.all), end+limit) && m.owner[run] == byte(c.Stream) {
		run++
	}
	if end > run {
		t.Fatalf("chunk [%d, %d) of %s holds another stream's bytes from %d on", off, end, c.Stream, run)
	}
	if c.Replay && end > r.mark && !(r.o.Text && r.mark-off < utf8.UTFMax && len(c.Data) <= utf8.UTFMax) {
		t.Fatalf("replayed chunk [%d, %d) goes beyond %d", off, end, r.mark)
	}
	if !r.o.Text {
		if want := min(off+limit, run); end != want && !(c.Replay && end == r.mark) {
			t.Fatalf("chunk ends at %d, could at %d", end, want)
		}
		return true
	}
	if n := divides(m.all[off:run], end-off); n > 0 {
		t.Fatalf("chunk [%d, %d) ends %d bytes into a character: %q", off, end, n, m.all[end-n:min(run, end+3)])
	}
	if m.j.hold > 0 && !m.closed && end == len(m.all) && TornTail(c.Data) > 0 {
		t.Fatalf("chunk [%d, %d) did not wait for the rest of its last character", off, end)
	}
	return true
}

// divides returns how many bytes before p[at:] begin a valid character that goes on there.
func divides(p []byte, at int) int {
	for n := 1; n < utf8.UTFMax && n <= at; n++ {
		if r, w := utf8.DecodeRune(p[at-n:]); w > n && r != utf8.RuneError {
			return n
		}
	}
	return 0
}
