package mcp

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"trl/client"
)

// feed gives an excerpt a text in chunks of n bytes.
func feed(e *excerpt, text string, n int) {
	for at := 0; at < len(text); at += n {
		e.add(client.Event{Offset: int64(at), Data: []byte(text[at:min(at+n, len(text))])})
	}
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

// TestShortOutputIsWhole, whatever the chunks.
func TestShortOutputIsWhole(t *testing.T) {
	for _, text := range []string{"", "a", "a\nb", lines(1000), strings.Repeat("ä€🙂", 4000), strings.Repeat("\n", 100) + "x"} {
		for _, n := range []int{1, 3, 7, 32 << 10} {
			e := newExcerpt(0, headChars, tailChars)
			feed(e, text, n)
			e.end(false)
			if got := e.text(); got != strings.TrimRight(text, "\n") || e.next != int64(len(text)) {
				t.Fatalf("%d bytes by %d: %d bytes, next %d", len(text), n, len(got), e.next)
			}
		}
	}
}

// TestLongOutputIsCutWithItsOffset: an answer has at most 30,000 characters and names the offset at which the rest begins; from there on the pages
// have every byte once.
func TestLongOutputIsCutWithItsOffset(t *testing.T) {
	for name, text := range map[string]string{"lines": lines(20_000), "one line": strings.Repeat("0123456789", 20_000), "wide": strings.Repeat("ä€🙂日本\n", 10_000)} {
		e := newExcerpt(0, headChars, tailChars)
		feed(e, text, 1000)
		e.end(false)
		got := e.text()
		if n := utf8.RuneCountInString(got); n > headChars+tailChars+100 || n < headChars+tailChars-2*maxPiece {
			t.Errorf("%s: %d characters", name, n)
		}
		head, tail, ok := strings.Cut(got, "[… ")
		var left string
		var from int64
		if _, err := fmt.Sscanf(tail, "%s bytes left out; wait with offset %d shows them …]", &left, &from); !ok || err != nil {
			t.Fatalf("%s: no note in %.300s (%v)", name, tail, err)
		}
		if head = strings.TrimSuffix(head, "\n"); !strings.HasPrefix(text, head) || int64(len(head)) > from {
			t.Errorf("%s: the beginning is not the output's", name)
		}
		if _, end, _ := strings.Cut(tail, "…]\n"); !strings.HasSuffix(strings.TrimRight(text, "\n"), end) {
			t.Errorf("%s: the end is not the output's", name)
		}
		var whole strings.Builder
		whole.WriteString(text[:from])
		for pages := 0; from < int64(len(text)); pages++ {
			if pages > 50 {
				t.Fatalf("%s: no end", name)
			}
			p := newExcerpt(from, headChars+tailChars, 0)
			for at := from; at < int64(len(text)) && !p.full; at += 1000 {
				p.add(client.Event{Offset: at, Data: []byte(text[at:min(at+1000, int64(len(text)))])})
			}
			if !p.full {
				p.end(false)
			}
			whole.WriteString(text[from:p.keptEnd])
			if shown, _, _ := strings.Cut(p.text(), "\n[… more"); strings.TrimRight(text[from:p.keptEnd], "\n") != strings.TrimRight(shown, "\n") {
				t.Fatalf("%s: page from %d is not the output", name, from)
			}
			from = p.keptEnd
		}
		if whole.String() != text {
			t.Errorf("%s: the pages are not the whole", name)
		}
	}
}

// TestProgressBarsAreOneLine: what a terminal would have overwritten is not shown.
func TestProgressBarsAreOneLine(t *testing.T) {
	var b strings.Builder
	for i := range 20_001 {
		fmt.Fprintf(&b, "\r\x1b[32m%d of 20000\x1b[0m", i)
	}
	e := newExcerpt(0, headChars, tailChars)
	feed(e, "begin\n"+b.String()+"\nend\n", 999)
	e.end(false)
	if got := e.text(); got != "begin\n20000 of 20000\nend" {
		t.Errorf("%d bytes: %.200q", len(got), got)
	}
}

// TestLostOutputIsNamed: bytes that the gateway no longer has are no silent hole.
func TestLostOutputIsNamed(t *testing.T) {
	e := newExcerpt(0, headChars, tailChars)
	e.add(client.Event{Type: client.EventGap, Offset: 1_000_000})
	e.add(client.Event{Offset: 1_000_000, Data: []byte("rest\n")})
	e.end(false)
	if got := e.text(); got != "[… 1,000,000 bytes are gone: the gateway keeps only the latest output …]\nrest" {
		t.Errorf("%q", got)
	}
}

// TestNoteOfAGatewayThatDidNotAnswer promises nothing that may be gone.
func TestNoteOfAGatewayThatDidNotAnswer(t *testing.T) {
	e := newExcerpt(0, 10, 10)
	feed(e, strings.Repeat("line\n", 10), 7)
	e.end(false)
	e.unsure = true
	if got := e.text(); !strings.Contains(got, "wait with offset 10 shows those that the gateway still has") {
		t.Errorf("%q", got)
	}
}

// TestHalfACharacterWaits for its other half, in the next answer.
func TestHalfACharacterWaits(t *testing.T) {
	e := newExcerpt(0, headChars, tailChars)
	e.add(client.Event{Data: []byte("a\xe2\x82")})
	e.end(true)
	if e.text() != "a" || e.next != 1 {
		t.Errorf("%q, next %d", e.text(), e.next)
	}
}

// TestPatternSeesLines: also one that has no end yet, such as a prompt.
func TestPatternSeesLines(t *testing.T) {
	e := newExcerpt(0, headChars, tailChars)
	var seen []string
	e.onLine = func(line string) { seen = append(seen, line) }
	e.add(client.Event{Data: []byte("one\ntwo\nPassword: ")})
	if got := strings.Join(seen, "|"); got != "one|two|Password: " {
		t.Errorf("%q", got)
	}
}
