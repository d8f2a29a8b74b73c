package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errIndex says that we did not write this index.
var errIndex = errors.New("index of the output log is invalid")

// run is a piece of one stream, in the order of both.
type run struct {
	stream Stream
	n      int64
}

// Replay fills j, which is new, with the bytes of a span in the log. If the span is open, j continues to write to the log; else Replay closes j. The
// ring, the offsets, the totals, and the head and the tail that a HeadTail on the tap keeps are the same as before. Set Tap and OnSkip before. After
// an error j is useless. The exception is ErrBroken: then j has what the log has, nobody knows how much came after that, and j goes on without the
// log.
func (l *Log) Replay(j *Journal, s Span) error {
	if s.Keep.Ring == 0 {
		return ErrBroken
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	sp := l.spans[s.Begin.Run]
	switch {
	case l.closedLocked() || sp == nil || sp.Begin != s.Begin:
		return fmt.Errorf("replay: no span %d", s.Begin.Run)
	case j.span != nil || j.Size() > 0:
		panic("journal: replay comes after the first byte")
	case sp.Open() && l.writer != nil:
		panic("journal: log has a writer")
	}
	if err := l.replayLocked(j, sp); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	switch {
	case !sp.Open():
		j.span = sp
		j.close()
	case l.broken != nil:
		return ErrBroken
	default:
		j.span, l.writer = sp, sp
		l.runStream = 0 // as before the first byte
		if l.readLocked(logIndex, l.word[:], 8*l.run) == nil {
			word := binary.LittleEndian.Uint64(l.word[:])
			l.runStream, l.start = Stream(word&3), int64(word>>2)
		}
	}
	return nil
}

// replayLocked fills j with the bytes of a span.
func (l *Log) replayLocked(j *Journal, sp *span) error {
	end := l.endOf(sp.Span)
	at, runs, err := l.orderLocked(sp.Span, end, min(sp.Keep.window(), int64(j.bound)))
	if err != nil {
		return err
	}
	return l.feedLocked(j, sp.Span, end, at, runs)
}

// orderLocked returns the runs of the last window bytes of a span, and where these begin. It counts back from the end, because earlier parts of the
// index may be gone.
func (l *Log) orderLocked(s Span, end Point, window int64) (at Point, runs []run, err error) {
	from, to := max(s.Begin.merged(), end.merged()-window), end.merged()
	at = end
	if from == to {
		return at, nil, nil
	}
	first := l.searchLocked(s.Begin.Run, end.Run, from)
	if end.Run-first > to-from+1 { // only the last run may have no bytes
		return at, nil, errIndex
	}
	raw := make([]byte, 8*(end.Run-first))
	if err := l.readLocked(logIndex, raw, 8*first); err != nil {
		return at, nil, err
	}
	runs = make([]run, len(raw)/8)
	for i := len(runs) - 1; i >= 0; i-- {
		word := binary.LittleEndian.Uint64(raw[8*i:])
		start := int64(word >> 2)
		if i == 0 && start < from {
			start = from
		}
		runs[i] = run{Stream(word & 3), to - start}
		if runs[i].stream == 0 || runs[i].n < 0 || start < from {
			return at, nil, errIndex
		}
		if to = start; fileOf(runs[i].stream) == logStderr {
			at.Err -= runs[i].n
		} else {
			at.Out -= runs[i].n
		}
	}
	if to != from || at.Out < s.Begin.Out || at.Err < s.Begin.Err {
		return at, nil, errIndex
	}
	return at, runs, nil
}

// feedLocked fills j with the span. The ring would no longer hold bytes before at, the start of the window. They matter only to the totals and to the
// tap, which treat each stream separately, so their order may be lost.
func (l *Log) feedLocked(j *Journal, s Span, end, at Point, runs []run) error {
	names := [2]Stream{Stdout, Stderr}
	if len(runs) > 0 && runs[0].stream == TTY { // a terminal has only one stream
		names[logStdout] = TTY
	}
	for _, r := range runs {
		if r.stream != names[fileOf(r.stream)] {
			return errIndex
		}
	}
	buf := make([]byte, MaxWrite)
	for f, name := range names {
		begin, stop := s.Begin.in(f), at.in(f)
		head := min(stop, begin+s.Keep.Head)
		tail := min(stop, max(head, end.in(f)-s.Keep.Tail))
		past := func(p []byte) { j.skipLocked(name, int64(len(p)), p) }
		if err := l.pieceLocked(f, begin, head, buf, past); err != nil {
			return err
		}
		if tail > head {
			j.skipLocked(name, tail-head, nil)
		}
		if err := l.pieceLocked(f, tail, stop, buf, past); err != nil {
			return err
		}
	}
	next := [2]int64{at.Out, at.Err}
	for _, r := range runs {
		f := fileOf(r.stream)
		if err := l.pieceLocked(f, next[f], next[f]+r.n, buf, func(p []byte) { j.write(r.stream, p) }); err != nil {
			return err
		}
		next[f] += r.n
	}
	return nil
}

// pieceLocked passes the bytes [from, to) of a file to use, a buf at a time.
func (l *Log) pieceLocked(f int, from, to int64, buf []byte, use func([]byte)) error {
	for from < to {
		p := buf[:min(int64(len(buf)), to-from)]
		if err := l.readLocked(f, p, from); err != nil {
			return err
		}
		use(p)
		from += int64(len(p))
	}
	return nil
}
