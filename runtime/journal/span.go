package journal

import (
	"encoding/binary"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

// Point is a place in a log: the number of bytes of each stream before it, and the number of runs.
type Point struct {
	Out int64 `json:"out"`
	Err int64 `json:"err"`
	Run int64 `json:"run"`
}

// maxPoint is larger than every log (a petabyte) and far from an overflow.
const maxPoint = 1 << 50

// merged is the place in the order of both streams.
func (p Point) merged() int64 { return p.Out + p.Err }

// in is the place in one of the files.
func (p Point) in(f int) int64 { return [3]int64{p.Out, p.Err, 8 * p.Run}[f] }

// before reports whether p is not after q.
func (p Point) before(q Point) bool { return p.Out <= q.Out && p.Err <= q.Err && p.Run <= q.Run }

// Keep says how much of a span is available: the first Head and the last Tail bytes of each stream and, in order, the last Ring+MaxWrite bytes of both
// together. Other bytes may still exist but do not count, so that nobody has to record which are gone.
type Keep struct {
	Ring int64 `json:"ring"`
	Head int64 `json:"head"`
	Tail int64 `json:"tail"`
}

// window is how many bytes of the end are available in order.
func (k Keep) window() int64 { return k.Ring + MaxWrite }

// tail is how many bytes of the end of each stream are available. The last bytes of both may all belong to one.
func (k Keep) tail() int64 { return max(k.window(), k.Tail) }

// Span is a journal's place in a log, for code that restores the journal after a crash. Only End changes, once. Begin.Run identifies the span: it is
// reused only when the span is gone. The zero Span means no span.
type Span struct {
	Begin Point `json:"begin"`
	End   Point `json:"end,omitzero"` // zero while the journal is open
	Keep  Keep  `json:"keep"`
}

// Open reports whether the journal was not closed.
func (s Span) Open() bool { return s.End == Point{} }

// Empty reports whether the journal was closed without a byte.
func (s Span) Empty() bool { return !s.Open() && s.Begin.merged() == s.End.merged() }

// sane reports whether a log could have made s.
func (s Span) sane() bool {
	b, e := s.Begin, s.End
	for _, n := range []int64{b.Out, b.Err, b.Run, e.Out, e.Err, e.Run, s.Keep.Head, s.Keep.Tail} {
		if n < 0 || n > maxPoint {
			return false
		}
	}
	ends := s.Open() || s.Begin.before(s.End) && s.Begin.Run < s.End.Run
	return ends && s.Keep.Ring > 0 && s.Keep.Ring < maxPoint
}

// span is a live Span, in its log's ring. log.mu guards all of it; log is set once.
type span struct {
	Span
	log        *Log
	prev, next *span
	trimmed    [3]int64 // up to where each file was trimmed behind the head
	looked     int64    // the newest run when the index was last searched for that
}

const (
	// trimBatch is the least that is punched out at a time: a fallocate takes 1 µs and more, a MiB of output 200.
	trimBatch = 1 << 20
	// indexBatch is the same for the index, where a search is needed, too.
	indexBatch = trimBatch / 16
)

// memPage is the unit of memory: 64 KiB on some arm64.
var memPage = int64(os.Getpagesize())

// down and up round to whole memPages.
func down(n int64) int64 { return n / memPage * memPage }
func up(n int64) int64   { return down(n + memPage - 1) }

// linkLocked puts sp at the end of the ring.
func (l *Log) linkLocked(sp *span) {
	sp.prev, sp.next = l.root.prev, &l.root
	sp.prev.next, sp.next.prev = sp, sp
	l.spans[sp.Begin.Run] = sp
	sp.looked = sp.Begin.Run
	for f := range sp.trimmed {
		sp.trimmed[f] = sp.Begin.in(f)
		if f != logIndex {
			sp.trimmed[f] += sp.Keep.Head
		}
	}
}

// endOf is the end of s, or the end of the log.
func (l *Log) endOf(s Span) Point {
	if s.Open() {
		return l.endPointLocked()
	}
	return s.End
}

// endLocked is called when the span's journal is closed. A span that continues without its log, or in another gateway, has no end.
func (l *Log) endLocked(sp *span) {
	if l.writer != sp {
		return
	}
	if l.broken == nil && !l.closedLocked() {
		l.trimLocked(memPage)
		sp.End = l.endPointLocked()
	}
	l.writer = nil
}

// Drop forgets a span whose journal is closed or was never restored, and frees its memory. It is idempotent.
func (l *Log) Drop(s Span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sp := l.spans[s.Begin.Run]
	if sp == nil || sp.Begin != s.Begin || s.Keep.Ring == 0 {
		return
	}
	if l.writer == sp {
		panic("journal: drop of a span that is being written")
	}
	delete(l.spans, s.Begin.Run)
	sp.prev.next, sp.next.prev = sp.next, sp.prev
	l.reclaimLocked(sp.prev, sp.next)
}

// reclaimLocked punches out the bytes between two neighbours in the ring, and not only those of the dropped span: spans are often smaller than a page,
// and a shared page would remain after the last of them.
func (l *Log) reclaimLocked(prev, next *span) {
	here := l.endPointLocked()
	for f := range l.fds {
		from, to := l.root.trimmed[f], up(here.in(f))
		if prev != &l.root {
			from = l.endOf(prev.Span).in(f)
		}
		if next != &l.root {
			to = next.Begin.in(f)
		}
		to = l.punchLocked(f, from, to)
		if prev == &l.root {
			l.root.trimmed[f] = min(to, down(here.in(f))) // the last page will be written to
		}
	}
}

// trimLocked punches out the bytes that the current span no longer needs, if they are at least batch bytes.
func (l *Log) trimLocked(batch int64) {
	sp := l.writer
	if sp.Keep.Ring == 0 || l.closedLocked() {
		return
	}
	for f := range l.pos {
		if to := l.pos[f] - sp.Keep.tail(); to-sp.trimmed[f] >= batch {
			sp.trimmed[f] = l.punchLocked(f, sp.trimmed[f], to)
		}
	}
	if 8*(l.run-sp.looked) >= min(batch, indexBatch) {
		sp.looked = l.run
		first := l.searchLocked(sp.Begin.Run, l.run+1, l.endPointLocked().merged()-sp.Keep.window())
		sp.trimmed[logIndex] = l.punchLocked(logIndex, sp.trimmed[logIndex], 8*first)
	}
}

// punchLocked frees the whole pages in [from, to) and returns up to where everything is freed. It returns no error: bytes that cannot be freed stay,
// and nobody reads them.
func (l *Log) punchLocked(f int, from, to int64) int64 {
	from, to = up(from), down(to)
	if from >= to {
		return from
	}
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	for l.fds[f] >= 0 && unix.Fallocate(l.fds[f], mode, from, to-from) == unix.EINTR {
	}
	return to
}

// searchLocked returns the last of the runs [first, end) that does not begin after at, else first. Only the first runs of a span are ever punched out,
// and they read as 0, so the order is kept.
func (l *Log) searchLocked(first, end, at int64) int64 {
	n := sort.Search(int(end-first), func(i int) bool {
		if l.readLocked(logIndex, l.word[:], 8*(first+int64(i))) != nil {
			return true
		}
		return int64(binary.LittleEndian.Uint64(l.word[:])>>2) > at
	})
	return first + max(0, int64(n)-1)
}
