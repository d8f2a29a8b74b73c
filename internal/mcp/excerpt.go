package mcp

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"trl/client"
	"trl/protocol"
)

// An answer has at most this many characters of output: the beginning and the end. Some clients keep more than 50,000 characters in a file that their
// model does not see.
const (
	headChars = 12_000
	tailChars = 18_000
)

// maxPiece is how many bytes of a line without end are kept together.
const maxPiece = 8 << 10

// excerpt collects the output of a stream, cleaned for reading, and keeps its beginning and its end. It cuts between lines, and knows at which byte of
// the stream it cut.
type excerpt struct {
	head, tail int // how many characters of each to keep

	kept      []piece // the beginning
	keptChars int
	keptEnd   int64 // the byte behind the beginning
	full      bool  // the beginning is complete

	last      []piece // the end
	lastChars int

	line   []byte // what has come of a line
	lineAt int64  // its first byte in the stream
	next   int64  // the byte behind everything that came

	available int64 // the gateway has the output from this byte on; 0: all of it
	unsure    bool  // the gateway did not say from which byte on it has the output

	onLine func(line string) // called with each cleaned line, and with what has come of one
}

// piece is a line, or a part of a long one.
type piece struct {
	text  string
	at    int64
	chars int
}

// newExcerpt returns an excerpt of the output from a byte on.
func newExcerpt(from int64, head, tail int) *excerpt {
	return &excerpt{head: head, tail: tail, keptEnd: from, lineAt: from, next: from}
}

// add takes the next piece of output, or a gap.
func (e *excerpt) add(k client.Event) {
	if k.Type == client.EventGap {
		e.flush(len(e.line))
		e.lineAt = k.Offset
		e.put(piece{text: fmt.Sprintf("[… %s bytes are gone: the gateway keeps only the latest output …]\n", count(k.Offset-k.From)), at: k.From}, k.Offset)
		e.next = k.Offset
		return
	}
	if len(e.line) == 0 {
		e.lineAt = k.Offset
	}
	e.line = append(e.line, k.Data...)
	e.next = k.Offset + int64(len(k.Data))
	rest := e.line
	for {
		n := pieceLength(rest)
		if n == 0 {
			break
		}
		if i := bytes.LastIndexByte(rest[:n], '\r'); n > maxPiece-utf8.UTFMax && i > 0 && rest[n-1] != '\n' { // a progress bar: what was before is overwritten
			e.lineAt += int64(i)
			rest = rest[i:]
			continue
		}
		e.putText(rest[:n])
		rest = rest[n:]
	}
	e.line = append(e.line[:0], rest...)
	if len(e.line) > 0 && e.onLine != nil {
		e.onLine(protocol.Clean(string(e.line)))
	}
}

// pieceLength returns how many bytes of text make a piece, 0 if there is none yet.
func pieceLength(text []byte) int {
	i := bytes.IndexByte(text, '\n')
	switch {
	case i >= 0 && i < maxPiece:
		return i + 1
	case len(text) <= maxPiece:
		return 0
	}
	n := maxPiece
	for n > maxPiece-utf8.UTFMax && !utf8.RuneStart(text[n]) {
		n--
	}
	return n
}

// flush makes the first n bytes of the line a piece.
func (e *excerpt) flush(n int) {
	if n > 0 {
		e.putText(e.line[:n])
		e.line = append(e.line[:0], e.line[n:]...)
	}
}

// putText keeps the text at the beginning of the line.
func (e *excerpt) putText(raw []byte) {
	text := protocol.Clean(string(raw))
	if e.onLine != nil {
		e.onLine(strings.TrimSuffix(text, "\n"))
	}
	p := piece{text: text, at: e.lineAt, chars: utf8.RuneCountInString(text)}
	e.lineAt += int64(len(raw))
	e.put(p, e.lineAt)
}

// put keeps a piece that ends before a byte of the stream.
func (e *excerpt) put(p piece, end int64) {
	if !e.full && e.keptChars+p.chars <= e.head {
		e.kept, e.keptChars, e.keptEnd = append(e.kept, p), e.keptChars+p.chars, end
		return
	}
	e.full = true
	if e.tail == 0 {
		return
	}
	e.last, e.lastChars = append(e.last, p), e.lastChars+p.chars
	for e.lastChars > e.tail && len(e.last) > 1 {
		e.lastChars -= e.last[0].chars
		e.last = e.last[1:]
	}
}

// end takes the rest of the last line. If more may come, it leaves an incomplete character for later.
func (e *excerpt) end(more bool) {
	n := len(e.line)
	if more {
		for i := 1; i <= min(n, utf8.UTFMax-1); i++ {
			if b := e.line[n-i]; utf8.RuneStart(b) {
				if !utf8.FullRune(e.line[n-i:]) {
					n -= i
				}
				break
			}
		}
	}
	e.flush(n)
	e.next = e.lineAt
}

// lastLine returns the latest line, for a message of progress.
func (e *excerpt) lastLine() string {
	text := string(e.line)
	for _, pieces := range [][]piece{e.last, e.kept} {
		if n := len(pieces); strings.TrimSpace(text) == "" && n > 0 {
			text = pieces[n-1].text
		}
	}
	runes := []rune(strings.TrimSpace(protocol.Clean(text)))
	return string(runes[:min(len(runes), 120)])
}

// cut returns what is missing between the beginning and the end: the bytes from ≤ offset < to.
func (e *excerpt) cut() (from, to int64) {
	if len(e.last) > 0 {
		return e.keptEnd, e.last[0].at
	}
	return e.keptEnd, max(e.keptEnd, e.next)
}

// text returns the excerpt, with a note where something is missing.
func (e *excerpt) text() string {
	var b strings.Builder
	for _, p := range e.kept {
		b.WriteString(p.text)
	}
	if from, to := e.cut(); from < to {
		if s := b.String(); s != "" && !strings.HasSuffix(s, "\n") {
			b.WriteByte('\n')
		}
		switch left := count(to - from); {
		case e.tail == 0:
			fmt.Fprintf(&b, "[… more output: wait with offset %d shows it …]\n", from)
		case e.available >= to:
			fmt.Fprintf(&b, "[… %s bytes left out, which the gateway has no longer …]\n", left)
		case e.unsure:
			fmt.Fprintf(&b, "[… %s bytes left out; wait with offset %d shows those that the gateway still has …]\n", left, from)
		case e.available > from:
			fmt.Fprintf(&b, "[… %s bytes left out; wait with offset %d shows those that the gateway still has …]\n", left, e.available)
		default:
			fmt.Fprintf(&b, "[… %s bytes left out; wait with offset %d shows them …]\n", left, from)
		}
	}
	for _, p := range e.last {
		b.WriteString(p.text)
	}
	return strings.TrimRight(b.String(), "\n")
}

// count writes a number with commas.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
