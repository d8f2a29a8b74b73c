package journal

import (
	"sync"
	"unicode/utf8"
)

// HeadTail keeps the beginning (head) and the end (tail) of a text that may be too long to return, and counts all of it. Its memory grows with the
// text, up to the limit. It is safe for concurrent use: a journal's Tap feeds it (mu is taken under the journal's lock), and the code that answers
// reads it.
type HeadTail struct {
	grower Grower // set once in OnGrow; nil: memory may grow to the limit

	mu      sync.Mutex
	headMax int
	tailMax int
	head    []byte // only appended to, because Bytes may return it
	tail    []byte // the text after the head; a ring once it is tailMax long, with the oldest byte at next
	next    int
	total   int64
}

// NewHeadTail keeps at most limit bytes, half of them from each end. With limit 0 it only counts.
func NewHeadTail(limit int) *HeadTail {
	limit = max(limit, 0)
	return &HeadTail{headMax: limit / 2, tailMax: limit - limit/2}
}

// freeSize is how long a head or a tail may become without asking the Grower.
const freeSize = 64 << 10

// A Grower is asked before the head or the tail uses n more bytes of memory. If it returns false, the length stays, and more text is left out.
type Grower interface{ Grow(n int) bool }

// OnGrow sets the Grower. Call it before use.
func (e *HeadTail) OnGrow(g Grower) { e.grower = g }

// Write adds the next piece. It never fails.
func (e *HeadTail) Write(p []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.total += int64(len(p))
	p = e.extend(&e.head, p, &e.headMax)
	p = e.extend(&e.tail, p, &e.tailMax)
	p = p[max(0, len(p)-e.tailMax):]
	for len(p) > 0 {
		n := copy(e.tail[e.next:], p)
		e.next = (e.next + n) % e.tailMax
		p = p[n:]
	}
}

// Skip counts n bytes that nobody has any more (Journal.OnSkip). Text before and after them cannot be joined: the head is complete, and the tail
// starts again. HeadTail still keeps the same text as from all the bytes if half of the limit came before, and at least as much comes after.
func (e *HeadTail) Skip(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.total += n
	e.headMax = len(e.head)
	e.tail, e.next = e.tail[:0], 0
}

// extend appends to b the part of p that fits below limit, and returns the rest. It doubles b itself, because append may exceed the limit. If b may
// not grow any more, its current capacity becomes its limit.
func (e *HeadTail) extend(b *[]byte, p []byte, limit *int) []byte {
	n := min(len(p), *limit-len(*b))
	if need := len(*b) + n; need > cap(*b) {
		size := min(*limit, max(need, 2*cap(*b)))
		if size > freeSize && e.grower != nil && !e.grower.Grow(size-cap(*b)) {
			size = max(cap(*b), min(freeSize, *limit))
			*limit = size
			n = min(n, size-len(*b))
		}
		if size > cap(*b) {
			grown := make([]byte, len(*b), size)
			copy(grown, *b)
			*b = grown
		}
	}
	*b = append(*b, p[:n]...)
	return p[n:]
}

// Memory returns the memory of the kept text.
func (e *HeadTail) Memory() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return int64(cap(e.head) + cap(e.tail))
}

// Bytes returns the kept text, joined, and the total length. If bytes were left out, kept[:omittedAt] is from the beginning and the rest from the end,
// and omitted is exact: len(kept)+omitted == total. The cut never divides a UTF-8 character.
func (e *HeadTail) Bytes() (kept []byte, total, omittedAt, omitted int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	head := e.head[:len(e.head):len(e.head)]
	if e.total == int64(len(head)) { // nothing was left out
		return head, e.total, 0, e.total - int64(len(head))
	}
	kept = make([]byte, 0, len(head)+len(e.tail))
	kept = append(kept, head...)
	kept = append(kept, e.tail[e.next:]...)
	kept = append(kept, e.tail[:e.next]...)
	if e.total == int64(len(kept)) {
		return kept, e.total, 0, 0
	}
	a := len(head) - cutAtEnd(head)
	b := len(head) + cutAtStart(kept[len(head):])
	kept = append(kept[:a], kept[b:]...)
	return kept, e.total, int64(a), e.total - int64(len(kept))
}

// Parts is Bytes without a copy, in pieces, for a text that is complete. The pieces in before are from the beginning; those in after follow the
// omission.
func (e *HeadTail) Parts() (before, after [][]byte, total, omittedAt, omitted int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	head, older, newer := e.head[:len(e.head):len(e.head)], e.tail[e.next:len(e.tail):len(e.tail)], e.tail[:e.next:e.next]
	kept := int64(len(head) + len(e.tail))
	if e.total == kept {
		return [][]byte{head, older, newer}, nil, e.total, 0, 0
	}
	a := len(head) - cutAtEnd(head)
	begin := append(append(make([]byte, 0, utf8CheckSize+utf8.UTFMax), older[:min(len(older), utf8CheckSize+utf8.UTFMax)]...), newer[:min(len(newer), utf8CheckSize+utf8.UTFMax)]...)
	b := cutAtStart(begin)
	omitted = e.total - kept + int64(len(head)-a) + int64(b)
	cut := min(b, len(older))
	return [][]byte{head[:a]}, [][]byte{older[cut:], newer[b-cut:]}, e.total, int64(a), omitted
}

// utf8CheckSize is how much text next to a cut must be UTF-8 for the cut to be moved. Binary output is returned to the exact byte.
const utf8CheckSize = 64

// cutAtEnd returns how many bytes of a divided character are at the end of p, if p ends in text.
func cutAtEnd(p []byte) int {
	n := TornTail(p)
	text := p[:len(p)-n]
	text = text[max(0, len(text)-utf8CheckSize):]
	if !utf8.Valid(text[continuationBytes(text):]) {
		return 0
	}
	return n
}

// cutAtStart returns how many bytes of a divided character are at the start of p, if p begins with text.
func cutAtStart(p []byte) int {
	n := continuationBytes(p)
	text := p[n:min(len(p), n+utf8CheckSize)]
	if !utf8.Valid(text[:len(text)-TornTail(text)]) {
		return 0
	}
	return n
}

// continuationBytes returns how many bytes at the start of p can only be the rest of an earlier character.
func continuationBytes(p []byte) int {
	n := 0
	for n < min(len(p), utf8.UTFMax-1) && !utf8.RuneStart(p[n]) {
		n++
	}
	return n
}
