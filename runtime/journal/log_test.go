package journal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trl/internal/testkit"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// fatal is the common part of testing.T and rapid.T.
type fatal interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func newLog(t fatal) *Log {
	t.Helper()
	l, err := NewLog()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// reopen simulates a crash: only the keeper's descriptors are left of l, and live of its owner's notes.
func reopen(t fatal, l *Log, live ...Span) *Log {
	t.Helper()
	fds := l.Fds()
	for i, fd := range fds {
		var err error
		if fds[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	again, err := OpenLog(fds, live)
	if err != nil {
		t.Fatal(err)
	}
	again.batch = l.batch
	return again
}

// pack returns what Pack writes for one span.
func pack(t fatal, l *Log, s Span) []byte {
	t.Helper()
	var b bytes.Buffer
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.packLocked(s, func(_ Span, size int64, write func(io.Writer) error) error {
		err := write(&b)
		if size != int64(b.Len()) {
			t.Fatalf("%d bytes packed, %d announced", b.Len(), size)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := PackedSpan(bytes.NewReader(b.Bytes())); got != s || err != nil {
		t.Fatalf("%+v is called %+v, %v", s, got, err)
	}
	return b.Bytes()
}

// held returns the memory of the log's files.
func held(t fatal, l *Log) (n [3]int64) {
	t.Helper()
	for f, fd := range l.Fds() {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		n[f] = st.Blocks * 512
	}
	return n
}

// pipe is a pipe that never blocks.
type pipe struct{ r, w int }

func newPipe(t fatal) *pipe {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		p := &pipe{fds[0], fds[1]}
		// A pipe of an ordinary user is short while the user has a thousand pipes (fs.pipe-user-pages-soft), which other tests may have.
		size, err := unix.FcntlInt(uintptr(p.w), unix.F_GETPIPE_SZ, 0)
		if err == nil && size >= 64<<10 {
			return p
		}
		p.close()
		if time.Now().After(end) {
			t.Fatalf("a pipe of %d bytes: %v", size, err)
		}
	}
}

func (p *pipe) close() {
	unix.Close(p.r)
	unix.Close(p.w)
}

func (p *pipe) put(t fatal, data []byte) {
	t.Helper()
	if n, err := unix.Write(p.w, data); err != nil || n != len(data) {
		t.Fatalf("wrote %d of %d: %v", n, len(data), err)
	}
}

// fill moves data through the pipe into j.
func (p *pipe) fill(t fatal, j *Journal, s Stream, data []byte, scratch []byte) {
	t.Helper()
	for len(data) > 0 {
		n := min(len(data), 32<<10)
		p.put(t, data[:n])
		for data = data[n:]; n > 0; {
			k, err := j.Fill(s, p.r, MaxWrite, scratch)
			if err != nil {
				t.Fatal(err)
			}
			n -= k
		}
	}
}

// watched is a journal with the ends of its streams, as the pool keeps them.
type watched struct {
	*Journal
	ends map[Stream]*HeadTail
}

func watch(ring, limit int) *watched {
	w := &watched{New(ring), map[Stream]*HeadTail{Stdout: NewHeadTail(limit), Stderr: NewHeadTail(limit), TTY: NewHeadTail(limit)}}
	w.Tap(func(s Stream, p []byte) { w.ends[s].Write(p) })
	w.OnSkip(func(s Stream, n int64) { w.ends[s].Skip(n) })
	return w
}

// text is the journal's text, with the stream before each run.
func (w *watched) text(t fatal) string {
	t.Helper()
	r, err := w.Attach(-1, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var b strings.Builder
	var last Stream
	for {
		c, ok, _ := r.TryNext()
		if !ok {
			return b.String()
		}
		if c.Stream != last {
			last = c.Stream
			fmt.Fprintf(&b, "<%s@%d>", last, c.Offset)
		}
		b.Write(c.Data)
	}
}

// same compares everything that is visible of two journals.
func same(t fatal, got, want *watched) {
	t.Helper()
	gotOut, gotErr := got.Totals()
	wantOut, wantErr := want.Totals()
	if gotOut != wantOut || gotErr != wantErr || got.Size() != want.Size() {
		t.Fatalf("%d bytes, %d and %d; want %d, %d and %d", got.Size(), gotOut, gotErr, want.Size(), wantOut, wantErr)
	}
	for s := range want.ends {
		gotKept, gotTotal, gotAt, gotOmitted := got.ends[s].Bytes()
		wantKept, wantTotal, wantAt, wantOmitted := want.ends[s].Bytes()
		if gotTotal != wantTotal || gotAt != wantAt || gotOmitted != wantOmitted || !bytes.Equal(gotKept, wantKept) {
			t.Fatalf("ends of %s: %d of %d, %d left out at %d; want %d of %d, %d at %d", s, len(gotKept), gotTotal,
				gotOmitted, gotAt, len(wantKept), wantTotal, wantOmitted, wantAt)
		}
	}
	// A journal whose buffer grew in other steps may keep more, so compare only what both promise.
	bound := int64(want.bound)
	if a, b := got.Start(), want.Start(); a > max(0, got.Size()-bound) || b > max(0, got.Size()-bound) {
		t.Fatalf("starts %d and %d with a size of %d and a ring of %d", a, b, got.Size(), bound)
	}
	if a, b := got.text(t), want.text(t); a != b {
		t.Fatalf("text of %d bytes, %.200q; want %d, %.200q", len(a), a, len(b), b)
	}
}

// logModel drives a journal with a log and one without in the same way, and crashes the first one.
type logModel struct {
	l          *Log
	got, want  *watched
	ended      []watchedSpan
	saved      Span // the owner's note from the start of the journal
	ring, most int
	pipes      map[Stream]*pipe
	scratch    []byte
}

type watchedSpan struct {
	Span
	want *watched
}

// TestCrashesAreNotSeen writes, crashes, ends and drops at random, and also crashes in the middle of Fill.
func TestCrashesAreNotSeen(t *testing.T) {
	testkit.TakesLong(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &logModel{l: newLog(t), scratch: make([]byte, MaxWrite), pipes: map[Stream]*pipe{Stdout: newPipe(t), Stderr: newPipe(t)}}
		defer func() {
			m.l.Close()
			m.pipes[Stdout].close()
			m.pipes[Stderr].close()
		}()
		m.ring = rapid.SampledFrom([]int{1, 5000, 100_000}).Draw(t, "ring")
		m.most = rapid.SampledFrom([]int{0, 1, 100, 10_000, 300_000}).Draw(t, "most")
		m.l.batch = rapid.SampledFrom([]int64{1, page, 100_000, trimBatch}).Draw(t, "batch")
		m.begin()
		t.Repeat(map[string]func(*rapid.T){
			"fill":  m.fill,
			"turns": m.turns,
			"write": m.write,
			"probe": func(t *rapid.T) { m.nothing(t) },
			"crash": func(t *rapid.T) { m.crash(t) },
			"torn":  m.torn,
			"end":   m.end,
			"drop":  m.drop,
		})
		m.crash(t)
		same(t, m.got, m.want)
		m.got.Close()
		for _, s := range m.ended {
			m.l.Drop(s.Span)
		}
		m.l.Drop(m.got.Span())
		if n := held(t, m.l); n != [3]int64{} {
			t.Fatalf("an empty log holds %d bytes", n)
		}
	})
}

func (m *logModel) begin() {
	m.got, m.want = watch(m.ring, m.most), watch(m.ring, m.most)
	m.got.AttachLog(m.l, int64(m.most/2), int64(m.most-m.most/2))
	m.saved = m.got.Span()
}

func (m *logModel) data(t *rapid.T) (Stream, []byte) {
	n := rapid.IntRange(1, rapid.SampledFrom([]int{1, 100, 5000, 200_000}).Draw(t, "about")).Draw(t, "n")
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	return rapid.SampledFrom([]Stream{Stdout, Stderr}).Draw(t, "stream"), p
}

func (m *logModel) fill(t *rapid.T) {
	s, p := m.data(t)
	m.pipes[s].fill(t, m.got.Journal, s, p, m.scratch)
	m.want.Write(s, p)
}

func (m *logModel) write(t *rapid.T) {
	s, p := m.data(t)
	m.got.Write(s, p)
	m.want.Write(s, p)
}

func (m *logModel) turns(t *rapid.T) {
	for i := range rapid.IntRange(1, 3000).Draw(t, "turns") {
		s, p := Stdout+Stream(i&1), []byte{byte(i), byte(i >> 8)}[:1+i%3/2]
		m.pipes[s].fill(t, m.got.Journal, s, p, m.scratch)
		m.want.Write(s, p)
	}
}

func (m *logModel) nothing(t *rapid.T) {
	s := rapid.SampledFrom([]Stream{Stdout, Stderr}).Draw(t, "stream")
	if n, err := m.got.Fill(s, m.pipes[s].r, MaxWrite, m.scratch); n != 0 || err != unix.EAGAIN {
		t.Fatalf("%d, %v of an empty pipe", n, err)
	}
}

func (m *logModel) crash(t *rapid.T) {
	live := []Span{m.saved}
	for _, s := range m.ended {
		live = append(live, s.Span)
	}
	rand.Shuffle(len(live), func(i, k int) { live[i], live[k] = live[k], live[i] })
	m.l = reopen(t, m.l, live...)
	for _, s := range m.ended {
		again := watch(m.ring, m.most)
		if err := m.l.Replay(again.Journal, s.Span); err != nil {
			t.Fatal(err)
		}
		if same(t, again, s.want); !again.Closed() || again.Span() != s.Span {
			t.Fatalf("%+v came back as %+v", s.Span, again.Span())
		}
		again = watch(m.ring, m.most)
		if err := Unpack(again.Journal, bytes.NewReader(pack(t, m.l, s.Span))); err != nil {
			t.Fatal(err)
		}
		if same(t, again, s.want); !again.Closed() || again.Span() != s.Span {
			t.Fatalf("%+v was unpacked as %+v", s.Span, again.Span())
		}
	}
	m.got = watch(m.ring, m.most)
	if err := m.l.Replay(m.got.Journal, m.saved); err != nil {
		t.Fatal(err)
	}
	same(t, m.got, m.want)
}

// torn is a crash inside Fill, before or after the splice.
func (m *logModel) torn(t *rapid.T) {
	after := rapid.Bool().Draw(t, "after")
	s, p := m.data(t)
	p = p[:min(len(p), 30_000)]
	m.pipes[s].put(t, p)
	m.l.splice = func(from, to, n int) (int, error) {
		if after {
			if k, err := splice(from, to, n); err != nil || k != len(p) {
				t.Fatalf("spliced %d of %d: %v", k, len(p), err)
			}
		}
		panic("killed")
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = m.got.Fill(s, m.pipes[s].r, MaxWrite, m.scratch)
	}()
	if after {
		m.want.Write(s, p)
	}
	m.crash(t)
	if !after {
		if _, err := m.got.Fill(s, m.pipes[s].r, MaxWrite, m.scratch); err != nil {
			t.Fatal(err)
		}
		m.want.Write(s, p)
	}
}

func (m *logModel) end(t *rapid.T) {
	if len(m.ended) > 5 {
		t.Skip("enough")
	}
	m.got.Close()
	m.want.Close()
	if s := m.got.Span(); s.Open() || s.Begin != m.saved.Begin || s.Keep != m.saved.Keep {
		t.Fatalf("%+v ended as %+v", m.saved, s)
	}
	m.ended = append(m.ended, watchedSpan{m.got.Span(), m.want})
	m.begin()
}

func (m *logModel) drop(t *rapid.T) {
	if len(m.ended) == 0 {
		t.Skip("none")
	}
	i := rapid.IntRange(0, len(m.ended)-1).Draw(t, "which")
	m.l.Drop(m.ended[i].Span)
	m.ended = append(m.ended[:i], m.ended[i+1:]...)
}

// TestEndsAreTheSameAfterReplay tries totals around every relevant size.
func TestEndsAreTheSameAfterReplay(t *testing.T) {
	const ring, limit = 8192, 200_001
	head, tail := int64(limit/2), int64(limit-limit/2)
	window := int64(ring + MaxWrite)
	scratch, p := make([]byte, MaxWrite), newPipe(t)
	defer p.close()
	for _, about := range []int64{0, head, window, tail, limit, head + window, head + window + page, head + tail + page, 900_000} {
		for _, d := range []int64{-page - 1, -page, -1, 0, 1, page, page + 1} {
			n := about + d
			if n < 0 {
				continue
			}
			l := newLog(t)
			l.batch = page
			got, want := watch(ring, limit), watch(ring, limit)
			got.AttachLog(l, head, tail)
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(rand.Uint32())
			}
			for len(data) > 0 {
				s, k := Stdout, min(len(data), 30_000)
				if rand.IntN(10) == 0 {
					s, k = Stderr, min(k, 10)
				}
				p.fill(t, got.Journal, s, data[:k], scratch)
				want.Write(s, data[:k])
				data = data[k:]
			}
			l = reopen(t, l, got.Span())
			again := watch(ring, limit)
			if err := l.Replay(again.Journal, got.Span()); err != nil {
				t.Fatal(err)
			}
			same(t, again, want)
			l.Close()
		}
	}
}

// ownTime returns the processor time of this process: what else the machine does is not in it.
func ownTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestALongSpanIsTrimmed: a gigabyte of output needs only the memory of the kept part, and its replay needs no more.
func TestALongSpanIsTrimmed(t *testing.T) {
	testkit.TakesLong(t)
	l := newLog(t)
	defer func() { l.Close() }()
	got, p, scratch, chunk := watch(1<<20, 100_000), newPipe(t), make([]byte, MaxWrite), full()
	defer p.close()
	got.AttachLog(l, 50_000, 50_000)
	for i := range 1 << 14 {
		p.put(t, chunk)
		if n, err := got.Fill(Stdout, p.r, MaxWrite, scratch); n != MaxWrite || err != nil {
			t.Fatal(n, err)
		}
		p.fill(t, got.Journal, Stderr, []byte{byte(i)}, scratch)
	}
	if n := held(t, l); n[0] > 3<<20 || n[1] > 1<<20 || n[2] > 300<<10 {
		t.Fatalf("holds %d bytes", n)
	}
	l = reopen(t, l, got.Span())
	again := watch(1<<20, 100_000)
	from := ownTime(t)
	if err := l.Replay(again.Journal, got.Span()); err != nil {
		t.Fatal(err)
	}
	if took := ownTime(t) - from; took > 3*time.Second { // a gigabyte takes longer under -race
		t.Errorf("replay took %v", took)
	}
	same(t, again, got)
}

// TestTheIndexIsTrimmed: a span of very many runs needs only the index of the part that is kept in order.
func TestTheIndexIsTrimmed(t *testing.T) {
	testkit.TakesLong(t)
	l := newLog(t)
	defer func() { l.Close() }()
	l.batch = 1 // to the page
	got := watch(1, 100)
	got.AttachLog(l, 50, 50)
	for i := range 200_000 {
		got.Write(Stdout+Stream(i&1), []byte{byte(i)})
	}
	if n := held(t, l); n[2] > 8*int64(got.bound)+2*memPage {
		t.Fatalf("holds %d bytes", n)
	}
	l = reopen(t, l, got.Span())
	again := watch(1, 100)
	if err := l.Replay(again.Journal, got.Span()); err != nil {
		t.Fatal(err)
	}
	same(t, again, got)
}

// TestDroppedSpansLeaveNothing: many small spans share pages, which must be freed with the last of them.
func TestDroppedSpansLeaveNothing(t *testing.T) {
	for name, order := range map[string]func(n int) []int{
		"as they came": func(n int) []int {
			o := make([]int, n)
			for i := range o {
				o[i] = i
			}
			return o
		},
		"at random": rand.Perm,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog(t)
			defer l.Close()
			spans := make([]Span, 100_000)
			for i := range spans {
				j := New(1)
				j.AttachLog(l, 1000, 1000)
				j.Write(Stdout, make([]byte, 60+i%80))
				if i%3 == 0 {
					j.Write(Stderr, make([]byte, 10))
				}
				j.Close()
				spans[i] = j.Span()
			}
			before := held(t, l)
			for k, i := range order(len(spans)) {
				if k == len(spans)*9/10 {
					if n := held(t, l); name != "at random" && n[0] > before[0]/8 {
						t.Errorf("holds %d of %d with a tenth left", n, before)
					}
				}
				l.Drop(spans[i])
			}
			if n := held(t, l); n[0] > memPage || n[1] > memPage || n[2] > memPage {
				t.Errorf("holds %d bytes of %d", n, before)
			}
		})
	}
}

// TestALogThatIsEmptyNowAndThenLeavesNothing: the page in which one span ends and the next begins is freed as well.
func TestALogThatIsEmptyNowAndThenLeavesNothing(t *testing.T) {
	l := newLog(t)
	defer l.Close()
	for range 1000 {
		j := New(1)
		j.AttachLog(l, 0, 0)
		j.Write(Stdout, make([]byte, 100))
		j.Write(Stderr, make([]byte, 100))
		if n := held(t, l); n[0] > 2*memPage || n[1] > 2*memPage || n[2] > 2*memPage {
			t.Fatalf("holds %d bytes", n)
		}
		j.Close()
		l.Drop(j.Span())
		l.Drop(j.Span())
	}
	if n := held(t, l); n != [3]int64{} {
		t.Errorf("holds %d bytes", n)
	}
}

// TestAnotherRingMayBringASpanBack: the next gateway may have another ring size.
func TestAnotherRingMayBringASpanBack(t *testing.T) {
	l := newLog(t)
	defer l.Close()
	was := watch(100_000, 1000)
	was.AttachLog(l, 500, 500)
	for range 300 {
		s, n := Stdout+Stream(rand.IntN(2)), 1+rand.IntN(4000)
		was.Write(s, bytes.Repeat([]byte{'a' + byte(n%26)}, n))
	}
	was.Close()
	for _, ring := range []int{1, 5000, 100_000, 150_000, 1 << 20} {
		again := watch(ring, 1000)
		if err := l.Replay(again.Journal, was.Span()); err != nil {
			t.Fatal(err)
		}
		kept := again.Size() - again.Start()
		if want := min(int64(again.bound), was.Span().Keep.window()); kept != want {
			t.Errorf("ring of %d: keeps %d, want %d", ring, kept, want)
		}
		r := attach(t, was.Journal, max(was.Start(), again.Start()), Options{})
		for q := attach(t, again.Journal, r.Offset(), Options{}); ; {
			a, ok, _ := r.TryNext()
			b, _, _ := q.TryNext()
			if a.Offset != b.Offset || a.Stream != b.Stream || !bytes.Equal(a.Data, b.Data) {
				t.Fatalf("ring of %d: %s at %d, want %s at %d", ring, b.Stream, b.Offset, a.Stream, a.Offset)
			}
			if !ok {
				break
			}
		}
	}
}

// TestOpenLogGivesBackWhatIsNotWanted: OpenLog makes up for a Drop that a crash prevented.
func TestOpenLogGivesBackWhatIsNotWanted(t *testing.T) {
	l := newLog(t)
	defer func() { l.Close() }()
	var spans []Span
	for range 5 {
		j := New(1 << 20)
		j.AttachLog(l, 1<<20, 1<<20)
		j.Write(Stdout, make([]byte, 1<<20))
		j.Close()
		spans = append(spans, j.Span())
	}
	l = reopen(t, l, spans[3], spans[1])
	if n := held(t, l); n[0] != 2<<20 {
		t.Errorf("holds %d bytes", n)
	}
	if err := l.Replay(New(1), spans[2]); err == nil {
		t.Error("brought back a span that was not wanted")
	}
}

func TestFillSaysWhatThePipeIs(t *testing.T) {
	for _, logged := range []bool{false, true} {
		j, p, scratch := New(1), newPipe(t), make([]byte, 10)
		if logged {
			l := newLog(t)
			defer l.Close()
			j.AttachLog(l, 0, 0)
		}
		if n, err := j.Fill(Stdout, p.r, MaxWrite, scratch); n != 0 || err != unix.EAGAIN {
			t.Errorf("empty: %d, %v", n, err)
		}
		p.put(t, []byte("0123456789abc"))
		for _, want := range []int{3, 10} {
			if n, err := j.Fill(Stdout, p.r, want, scratch); n != want || err != nil {
				t.Errorf("full: %d, %v; want %d", n, err, want)
			}
		}
		unix.Close(p.w)
		if n, err := j.Fill(Stdout, p.r, MaxWrite, scratch); n != 0 || err != nil {
			t.Errorf("over: %d, %v", n, err)
		}
		unix.Close(p.r)
		if j.Size() != 13 {
			t.Errorf("%d bytes", j.Size())
		}
	}
}

// TestLogWithoutSplice: the output is complete and can be restored, and Exact says that this is not guaranteed.
func TestLogWithoutSplice(t *testing.T) {
	for _, err := range []error{unix.EINVAL, unix.ENOSYS, unix.EPERM} {
		l, p, scratch := newLog(t), newPipe(t), make([]byte, MaxWrite)
		l.splice = func(int, int, int) (int, error) { return 0, err }
		got := watch(1<<20, 1000)
		got.AttachLog(l, 500, 500)
		if !l.isExact() {
			t.Error("not exact before its first use")
		}
		p.fill(t, got.Journal, Stderr, full(), scratch)
		p.fill(t, got.Journal, Stdout, full(), scratch)
		if l.isExact() {
			t.Error("exact without splice")
		}
		l = reopen(t, l, got.Span())
		again := watch(1<<20, 1000)
		if err := l.Replay(again.Journal, got.Span()); err != nil {
			t.Fatal(err)
		}
		same(t, again, got)
		l.Close()
		p.close()
	}
}

// TestOutputGoesOnWithoutALog: a lack of memory for the log loses no output, and the next gateway knows of it after a crash.
func TestOutputGoesOnWithoutALog(t *testing.T) {
	for name, fail := range map[string]func(*Log){
		"splice": func(l *Log) {
			l.splice = func(int, int, int) (int, error) { return 0, unix.ENOSPC }
		},
		"write": func(l *Log) {
			l.splice = func(int, int, int) (int, error) { return 0, unix.EINVAL }
			l.exact = false
			l.write = func(fd int, p []byte) (int, error) {
				if len(p) > 10 {
					return unix.Write(fd, p[:10])
				}
				return 0, unix.ENOMEM
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, p, scratch := newLog(t), newPipe(t), make([]byte, MaxWrite)
			defer func() { l.Close() }()
			defer p.close()
			var broke []error
			l.OnBreak(func(err error) { broke = append(broke, err) })
			first := watch(1, 100)
			first.AttachLog(l, 50, 50)
			first.Write(Stdout, []byte("first"))
			first.Close()
			got, want := watch(1, 100), watch(1, 100)
			got.AttachLog(l, 50, 50)
			p.fill(t, got.Journal, Stdout, []byte("before"), scratch)
			fail(l)
			for range 3 {
				p.fill(t, got.Journal, Stderr, full(), scratch)
				got.Write(Stdout, []byte("direct"))
			}
			want.Write(Stdout, []byte("before"))
			for range 3 {
				want.Write(Stderr, full())
				want.Write(Stdout, []byte("direct"))
			}
			same(t, got, want)
			if l.isExact() || len(broke) != 1 {
				t.Errorf("exact %v, broke %v", l.isExact(), broke)
			}
			got.Close()
			if !got.Span().Open() {
				t.Errorf("an end that the log does not have: %+v", got.Span())
			}
			later := New(1)
			later.AttachLog(l, 0, 0)
			later.Write(Stdout, []byte("later"))
			later.Close()
			if later.Span() != (Span{}) {
				t.Errorf("%+v in a broken log", later.Span())
			}
			l = reopen(t, l, first.Span(), got.Span())
			if l.isExact() {
				t.Error("exact again")
			}
			again := watch(1, 100)
			if err := l.Replay(again.Journal, first.Span()); err != nil {
				t.Error(err)
			}
			same(t, again, first)
			again = watch(1, 100)
			if err := l.Replay(again.Journal, got.Span()); !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
			if s := again.text(t); !strings.HasPrefix(s, "<stdout@0>before") {
				t.Errorf("kept %.100q", s)
			}
			again.Write(Stdout, []byte("goes on"))
			again.Close()
			l.Drop(got.Span())
			l.Drop(first.Span())
			if n := held(t, l); n != [3]int64{} {
				t.Errorf("holds %d bytes", n)
			}
		})
	}
}

// TestAClosedLogTakesNothing: a gateway that leaves a pipe to the next one must not empty it.
func TestAClosedLogTakesNothing(t *testing.T) {
	l, p, scratch := newLog(t), newPipe(t), make([]byte, MaxWrite)
	defer p.close()
	j := New(1)
	j.AttachLog(l, 0, 0)
	p.put(t, []byte("x"))
	l.Close()
	l.Close()
	if n, err := j.Fill(Stdout, p.r, 10, scratch); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("%d, %v", n, err)
	}
	j.Close()
	if !j.Span().Open() {
		t.Error("the span ended")
	}
	if n, _ := unix.Read(p.r, scratch); n != 1 {
		t.Error("the pipe is empty")
	}
}

func TestATerminalComesBackAsOne(t *testing.T) {
	l := newLog(t)
	defer func() { l.Close() }()
	j := New(1)
	j.AttachLog(l, 10, 10)
	for range 5 {
		j.Write(TTY, full())
	}
	l = reopen(t, l, j.Span())
	again := New(1)
	if err := l.Replay(again, j.Span()); err != nil {
		t.Fatal(err)
	}
	r := attach(t, again, -1, Options{})
	if c, ok, err := r.TryNext(); !ok || err != nil || c.Stream != TTY {
		t.Errorf("%v, %v, %v", c.Stream, ok, err)
	}
	again.Write(TTY, []byte("x")) // a third stream would panic
}

func TestLogOwnersBugsPanic(t *testing.T) {
	for want, bug := range map[string]func(*Log){
		"has a writer":    func(l *Log) { New(1).AttachLog(l, 0, 0); New(1).AttachLog(l, 0, 0) },
		"after the first": func(l *Log) { j := New(1); j.Write(Stdout, []byte("x")); j.AttachLog(l, 0, 0) },
		"after close": func(l *Log) {
			j := New(1)
			j.AttachLog(l, 0, 0)
			j.Close()
			_, _ = j.Fill(Stdout, -1, 1, make([]byte, 1))
		},
		"being written": func(l *Log) { j := New(1); j.AttachLog(l, 0, 0); l.Drop(j.Span()) },
	} {
		func() {
			l := newLog(t)
			defer l.Close()
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want) {
					t.Errorf("panic %q, want %q", got, want)
				}
			}()
			bug(l)
		}()
	}
}

// TestTwoFillWhileOthersRead: one goroutine for each pipe, as for a command's background jobs.
func TestTwoFillWhileOthersRead(t *testing.T) {
	l := newLog(t)
	defer func() { l.Close() }()
	got := watch(1<<20, 1000)
	got.AttachLog(l, 500, 500)
	var fillers, readers sync.WaitGroup
	for range 2 {
		readers.Go(func() { // ends with the journal; joined below
			r, _ := got.Attach(0, Options{})
			defer r.Close()
			for {
				if _, err := r.Next(t.Context()); err != nil {
					return
				}
			}
		})
	}
	for _, s := range []Stream{Stdout, Stderr} {
		fillers.Go(func() { // ends by itself; joined below
			p, scratch := newPipe(t), make([]byte, MaxWrite)
			defer p.close()
			for i := range 3000 {
				p.fill(t, got.Journal, s, bytes.Repeat([]byte{byte(i)}, 1+rand.IntN(2000)), scratch)
			}
		})
	}
	fillers.Wait()
	again := watch(1<<20, 1000)
	l = reopen(t, l, got.Span())
	if err := l.Replay(again.Journal, got.Span()); err != nil {
		t.Fatal(err)
	}
	same(t, again, got)
	got.Close()
	readers.Wait()
}

func TestFillAllocatesNothing(t *testing.T) {
	l, p, scratch := newLog(t), newPipe(t), make([]byte, MaxWrite)
	defer l.Close()
	defer p.close()
	j := New(1 << 16)
	j.AttachLog(l, 1000, 1000)
	i, data := 0, make([]byte, 30_000)
	step := func() {
		i++
		p.fill(t, j, Stdout+Stream(i&1), data, scratch)
	}
	for range 300 {
		step()
	}
	if n := testing.AllocsPerRun(300, step); n > 0 {
		t.Errorf("%v allocations a chunk", n)
	}
}

// lines returns n bytes of a stream of the kill test, from off on: numbered lines of 16 bytes, with a letter for the stream. It does not
// use fmt, which would take most of the writer's time.
func lines(s Stream, off int64, n int) []byte {
	p := make([]byte, 0, n+32)
	for l := fmt.Appendf(nil, "%c%014d\n", "oe"[fileOf(s)], off/16); len(p) < n+int(off%16); {
		p = append(p, l...)
		i := 14
		for ; l[i] == '9'; i-- {
			l[i] = '0'
		}
		l[i]++
	}
	return p[off%16:][:n]
}

// killRing and killEnds are small, so that much is punched out between two kills.
const killRing, killEnds = 100_000, 50_000

// watchLines returns a journal that checks and counts each byte that it gets.
func watchLines(fail func(string)) (*Journal, *[4]int64) {
	j, off := New(killRing), new([4]int64)
	j.Tap(func(s Stream, p []byte) {
		if want := lines(s, off[s], len(p)); !bytes.Equal(p, want) {
			fail(fmt.Sprintf("%s at %d: %.60q, want %.60q", s, off[s], p, want))
		}
		off[s] += int64(len(p))
	})
	j.OnSkip(func(s Stream, n int64) { off[s] += n })
	return j, off
}

// writer is the process that gets killed. Descriptors 3 to 5 are those of a log, 6 and 7 the pipes.
func writer(arg string) {
	fail := func(why string) {
		fmt.Println(why)
		os.Exit(1)
	}
	var s Span
	if err := json.Unmarshal([]byte(arg), &s); err != nil {
		fail(err.Error())
	}
	l, err := OpenLog([3]int{3, 4, 5}, []Span{s})
	if err != nil {
		fail(err.Error())
	}
	j, _ := watchLines(fail)
	if err := l.Replay(j, s); err != nil {
		fail(err.Error())
	}
	scratch := make([]byte, MaxWrite)
	fds := []unix.PollFd{{Fd: 6, Events: unix.POLLIN}, {Fd: 7, Events: unix.POLLIN}}
	for left := 2; left > 0; {
		_, _ = unix.Poll(fds, -1)
		for i, fd := range fds {
			if fd.Revents == 0 {
				continue
			}
			n, err := j.Fill(Stdout+Stream(i), int(fd.Fd), 1+rand.IntN(MaxWrite), scratch)
			if err != nil && err != unix.EAGAIN {
				fail(err.Error())
			}
			if n == 0 && err == nil {
				fds[i].Fd = -1
				left--
			}
		}
	}
	if !l.isExact() {
		fail("not exact")
	}
}

// TestNothingIsLostWhenTheWriterIsKilled floods stdout and stderr with numbered lines and kills the process that moves them to the log a
// hundred times, at random moments. Each process checks what it restores and what it moves, so one of them has seen every byte that is no
// longer kept. In the end everything that was written has come through, once and in order.
func TestNothingIsLostWhenTheWriterIsKilled(t *testing.T) {
	testkit.StartsProcesses(t)
	const kills = 100
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := newLog(t)
	defer func() { l.Close() }()
	first := New(killRing)
	first.AttachLog(l, killEnds, killEnds)
	span := first.Span()
	arg, err := json.Marshal(span)
	if err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for _, fd := range l.Fds() {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, os.NewFile(uintptr(dup), "log"))
	}
	var stop atomic.Bool
	var written [2]int64
	var producers sync.WaitGroup
	for i := range written {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(int(r.Fd()), true); err != nil { // Fd made it block
			t.Fatal(err)
		}
		files = append(files, r)
		producers.Go(func() { // ends when stop is set and its pipe is empty; joined below
			defer w.Close()
			for s := Stdout + Stream(i); !stop.Load(); {
				p := lines(s, written[i], 16*(1+rand.IntN(1+rand.IntN(10_000))))
				if _, err := w.Write(p); err != nil {
					t.Error(err)
					return
				}
				written[i] += int64(len(p))
			}
		})
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for k := 0; ; k++ {
		cmd := exec.Command(self, "writer", string(arg))
		cmd.ExtraFiles = files
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if k < kills {
			time.Sleep(time.Duration(rand.IntN(80)) * time.Millisecond) // a start with -race takes half of that
			_ = cmd.Process.Kill()
		} else {
			stop.Store(true)
		}
		if err := cmd.Wait(); out.Len() > 0 || k == kills && err != nil {
			stop.Store(true)
			t.Fatalf("after %d kills: %v, %s", k, err, out.Bytes())
		}
		if k == kills {
			break
		}
	}
	producers.Wait()
	l = reopen(t, l, span)
	j, off := watchLines(func(why string) { t.Error(why) })
	if err := l.Replay(j, span); err != nil {
		t.Fatal(err)
	}
	if off[Stdout] != written[0] || off[Stderr] != written[1] {
		t.Errorf("%d and %d bytes came through of %d", off[Stdout], off[Stderr], written)
	}
	t.Logf("%d bytes moved, %d runs", written, l.run+1)
}

// FuzzLog opens a log that nobody wrote. The result is an error or some text, at once.
func FuzzLog(f *testing.F) {
	word := func(at int64, s Stream) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(at)<<2|uint64(s)) }
	good := bytes.Join([][]byte{word(0, Stdout), word(10, Stderr), word(30, Stdout)}, nil)
	f.Add(good, int64(90), int64(20), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(4096))
	f.Add(good, int64(90), int64(20), int64(0), int64(0), int64(0), int64(10), int64(10), int64(2), int64(4096))
	f.Add(good[:13], int64(1<<40), int64(1<<41), int64(1<<20), int64(0), int64(0), int64(1<<40), int64(1<<41), int64(1<<45), int64(1))
	f.Add([]byte{}, int64(0), int64(0), int64(0), int64(0), int64(7), int64(0), int64(0), int64(8), int64(1<<49))
	f.Fuzz(func(t *testing.T, index []byte, out, err, bo, be, br, eo, ee, er, keep int64) {
		l := newLog(t)
		defer func() { l.Close() }()
		fds := l.Fds()
		for i, n := range []int64{out, err} {
			n &= 1<<42 - 1
			_ = unix.Ftruncate(fds[i], n)
			_, _ = unix.Seek(fds[i], n, 0)
		}
		_, _ = unix.Pwrite(fds[2], index, 0)
		for i, fd := range fds {
			fds[i], _ = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		s := Span{Begin: Point{bo, be, br}, End: Point{eo, ee, er}, Keep: Keep{Ring: keep, Head: keep & 0xfffff, Tail: keep & 0xfffff}}
		again, e := OpenLog(fds, []Span{s})
		if e != nil {
			return
		}
		defer again.Close()
		j := watch(4096, 1000)
		if again.Replay(j.Journal, s) != nil {
			return
		}
		if s.Open() {
			j.Write(Stderr, []byte("on"))
			j.Close()
		}
		again.Drop(j.Span())
		if n := held(t, again); n != [3]int64{} {
			t.Fatalf("holds %d bytes", n)
		}
	})
}

// TestPackedEndsAreTheSame: the head, the tail and the ring of long output can be restored from a packed span, and no more than that is
// packed.
func TestPackedEndsAreTheSame(t *testing.T) {
	for _, most := range []int{0, 100, 200 << 10} {
		l := newLog(t)
		defer l.Close()
		l.batch = memPage
		got, want := watch(1, most), watch(1, most)
		got.AttachLog(l, int64(most/2), int64(most-most/2))
		data := bytes.Repeat([]byte("0123456789abcdef"), 64)
		for i := range 1000 {
			s := []Stream{Stdout, Stdout, Stderr}[i%3]
			got.Write(s, data)
			want.Write(s, data)
		}
		if err := l.Pack(nil); !errors.Is(err, ErrNotPacked) {
			t.Errorf("packed while it is written: %v", err)
		}
		got.Close()
		want.Close()
		p := pack(t, l, got.Span())
		again := watch(1, most)
		if err := Unpack(again.Journal, bytes.NewReader(p)); err != nil {
			t.Fatal(err)
		}
		same(t, again, want)
		if bound := 2*(2*MaxWrite+page+most) + 8*1000 + packedHeader; len(p) > bound {
			t.Errorf("%d bytes packed of %d, with %d of each stream wanted", len(p), 1000*len(data), most)
		}
		if err := Unpack(New(1), bytes.NewReader(p[:len(p)-1])); err == nil {
			t.Error("half of it was unpacked")
		}
	}
}

// isExact is false if a crash may lose output: without splice, and when the log is broken.
func (l *Log) isExact() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.copies && l.broken == nil
}
