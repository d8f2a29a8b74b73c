package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A log to which nobody writes any more can be packed: the bytes of each span that Replay would read are copied elsewhere, and the log's three
// descriptors can be closed.
//
// A packed span consists of the numbers of its Point and Keep, its first run that still exists, and then pieces: the head and the tail of stdout and
// of stderr that the span promises, and the words of the index with the order of the tails.

// packedHeader is the size of Begin, End, Keep, and the first run.
const packedHeader = 10 * 8

// ErrNotPacked says that a log cannot be packed, because it is being written or is broken.
var ErrNotPacked = errors.New("output log cannot be packed")

// piece is a part of one of a log's files, [from, to).
type piece struct {
	file     int
	from, to int64
}

// pieces are the parts of a packed span, in order. first is the first run that still exists.
func (s Span) pieces(first int64) (all [5]piece) {
	for f := range logIndex {
		begin, end := s.Begin.in(f), s.End.in(f)
		head := min(end, begin+s.Keep.Head)
		all[2*f] = piece{f, begin, head}
		all[2*f+1] = piece{f, max(head, end-s.Keep.tail()), end}
	}
	all[4] = piece{logIndex, 8 * first, 8 * s.End.Run}
	return all
}

// Pack calls store for each span, with its packed size and a function that writes it. If Pack succeeds, the log can be closed for good: Unpack
// restores each span.
func (l *Log) Pack(store func(s Span, size int64, write func(io.Writer) error) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writer != nil || l.broken != nil || l.closedLocked() {
		return ErrNotPacked
	}
	for sp := l.root.next; sp != &l.root; sp = sp.next {
		if sp.Open() {
			return ErrNotPacked
		}
	}
	for sp := l.root.next; sp != &l.root; sp = sp.next {
		if err := l.packLocked(sp.Span, store); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) packLocked(s Span, store func(s Span, size int64, write func(io.Writer) error) error) error {
	first := s.End.Run
	if s.End.merged() > s.Begin.merged() {
		first = l.searchLocked(s.Begin.Run, s.End.Run, max(s.Begin.merged(), s.End.merged()-s.Keep.window()))
	}
	pieces := s.pieces(first)
	size := int64(packedHeader)
	for _, p := range pieces {
		size += p.to - p.from
	}
	return store(s, size, func(w io.Writer) error { return l.writePackedLocked(w, s, first, pieces) })
}

func (l *Log) writePackedLocked(w io.Writer, s Span, first int64, pieces [5]piece) error {
	header := make([]byte, 0, packedHeader)
	for _, n := range []int64{s.Begin.Out, s.Begin.Err, s.Begin.Run, s.End.Out, s.End.Err, s.End.Run, s.Keep.Ring, s.Keep.Head, s.Keep.Tail, first} {
		header = binary.LittleEndian.AppendUint64(header, uint64(n))
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	buf := make([]byte, min(s.End.merged()-s.Begin.merged()+8*(s.End.Run-first), MaxWrite))
	for _, p := range pieces {
		err := error(nil)
		copied := l.pieceLocked(p.file, p.from, p.to, buf, func(b []byte) {
			if err == nil {
				_, err = w.Write(b)
			}
		})
		if err = errors.Join(copied, err); err != nil {
			return err
		}
	}
	return nil
}

// packed is the source from which a log without descriptors reads its only span.
type packed struct {
	io.ReaderAt
	pieces [5]piece
}

// read is Log.readLocked. Parts of the index that were not packed read like punched-out parts: as zero.
func (k *packed) read(f int, p []byte, off int64) error {
	if f == logIndex && off+int64(len(p)) <= k.pieces[4].from {
		clear(p)
		return nil
	}
	at := int64(packedHeader)
	for _, c := range k.pieces {
		if c.file == f && c.from <= off && off < c.to && len(p) > 0 {
			n := min(int64(len(p)), c.to-off)
			if _, err := k.ReadAt(p[:n], at+off-c.from); err != nil {
				return err
			}
			p, off = p[n:], off+n // the head and the tail of a short stream follow each other
		}
		at += c.to - c.from
	}
	if len(p) > 0 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// PackedSpan reads to which span the packed data belongs.
func PackedSpan(from io.ReaderAt) (s Span, err error) {
	s, _, err = unpackHeader(from)
	return s, err
}

func unpackHeader(from io.ReaderAt) (s Span, first int64, err error) {
	var header [packedHeader]byte
	if _, err := from.ReadAt(header[:], 0); err != nil {
		return Span{}, 0, err
	}
	for i, n := range []*int64{&s.Begin.Out, &s.Begin.Err, &s.Begin.Run, &s.End.Out, &s.End.Err, &s.End.Run, &s.Keep.Ring, &s.Keep.Head, &s.Keep.Tail, &first} {
		*n = int64(binary.LittleEndian.Uint64(header[8*i:]))
	}
	if !s.sane() || s.Open() || first < s.Begin.Run || first > s.End.Run {
		return Span{}, 0, fmt.Errorf("%+v is not a packed span", s)
	}
	return s, first, nil
}

// Unpack fills j, which is new, from a packed span, like Replay from a log, and closes j. Set Tap and OnSkip before.
func Unpack(j *Journal, from io.ReaderAt) error {
	s, first, err := unpackHeader(from)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	l := makeLog([3]int{-1, -1, -1})
	l.packed = &packed{from, s.pieces(first)}
	l.mu.Lock()
	defer l.mu.Unlock()
	sp := &span{log: l, Span: s}
	l.linkLocked(sp)
	if err := l.replayLocked(j, sp); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	l.packed = nil
	j.span = sp
	j.close()
	return nil
}

// ClosedLog returns a log without content: its spans are packed elsewhere.
func ClosedLog() *Log { return makeLog([3]int{-1, -1, -1}) }

// Retire says that no journal will be attached to the log any more.
func (l *Log) Retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = true
}

// Descriptors returns how many descriptors Drop closes in this process, and as many in the keeper: those of a log that serves no other journal.
// Usually it is 0, because the log serves others, too, or is packed.
func (j *Journal) Descriptors() int {
	if j.span == nil {
		return 0
	}
	l := j.span.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.retired || l.closedLocked() || len(l.spans) != 1 || l.spans[j.span.Begin.Run] != j.span {
		return 0
	}
	return len(l.fds)
}
