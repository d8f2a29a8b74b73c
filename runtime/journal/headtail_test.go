package journal

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestEndsKeepHeadAndTail compares with the whole text: the kept parts are its ends, and the numbers are exact.
func TestEndsKeepHeadAndTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{0, 1, 2, 3, 7, 100, 1000}).Draw(t, "limit")
		e := NewHeadTail(limit)
		var all []byte
		for range rapid.IntRange(0, 30).Draw(t, "writes") {
			p := []byte(strings.Repeat(rapid.SampledFrom(scraps).Draw(t, "scrap"), rapid.IntRange(0, 300).Draw(t, "times")))
			e.Write(p)
			all = append(all, p...)
			kept, total, at, omitted := e.Bytes()
			want := append(all[:at:at], all[at+omitted:]...)
			switch {
			case total != int64(len(all)), int64(len(kept))+omitted != total, len(kept) > limit:
				t.Fatalf("kept %d and omitted %d of %d", len(kept), omitted, total)
			case !bytes.Equal(kept, want):
				t.Fatalf("kept %q, want %q", kept, want)
			case omitted == 0 && at != 0, len(all) <= limit && omitted > 0:
				t.Fatalf("omitted %d at %d of %d", omitted, at, len(all))
			case omitted > 0 && len(kept) < limit-2*(utf8.UTFMax-1):
				t.Fatalf("kept only %d of %d", len(kept), limit)
			case utf8.Valid(all) && !utf8.Valid(kept):
				t.Fatalf("cut at %d+%d tore a character: %q", at, omitted, kept)
			}
			if n := cap(e.head) + cap(e.tail); n > limit || n > 2*len(all) {
				t.Fatalf("%d bytes held for %d", n, len(all))
			}
		}
	})
}

func TestEndsNeverTearText(t *testing.T) {
	for _, c := range []string{"é", "─", "🙂"} {
		for limit := range 400 {
			e := NewHeadTail(limit)
			e.Write([]byte(strings.Repeat(c, 500)))
			if kept, _, at, _ := e.Bytes(); !utf8.Valid(kept) || at%int64(len(c)) != 0 || limit-len(kept) >= 2*len(c) {
				t.Fatalf("limit %d: kept %d, cut at %d: %q", limit, len(kept), at, kept)
			}
		}
	}
}

func TestEndsOfBinaryAreExact(t *testing.T) {
	e := NewHeadTail(1002) // the head ends in 0xc3, the tail begins with 0x80
	for range 100 {
		e.Write(bytes.Repeat([]byte{0x80, 0xff, 0xc3}, 33))
	}
	if kept, _, at, _ := e.Bytes(); len(kept) != 1002 || at != 501 {
		t.Fatalf("kept %d, cut at %d", len(kept), at)
	}
}

// TestEndsJoinNothingOverWhatIsSkipped: whatever comes before a skip, the kept text is the beginning and the end of the text.
func TestEndsJoinNothingOverWhatIsSkipped(t *testing.T) {
	all := []byte(strings.Repeat("0123456789", 30))
	for _, limit := range []int{0, 1, 20, 100} {
		for before := 0; before <= 120; before += 15 {
			for after := 0; after <= 120; after += 15 {
				e := NewHeadTail(limit)
				if before > 0 {
					e.Write(all[:before])
				}
				e.Skip(int64(len(all) - before - after))
				for i := range after {
					e.Write(all[len(all)-after+i:][:1])
				}
				kept, total, at, omitted := e.Bytes()
				if want := append(all[:at:at], all[at+omitted:]...); total != int64(len(all)) || !bytes.Equal(kept, want) {
					t.Fatalf("limit %d, %d and %d: kept %q, want %q", limit, before, after, kept, want)
				}
				if n := min(before, limit/2) + min(after, limit-limit/2); len(kept) != n {
					t.Fatalf("limit %d, %d and %d: kept %d, want %d", limit, before, after, len(kept), n)
				}
			}
		}
	}
}

func BenchmarkEnds(b *testing.B) {
	e, p := NewHeadTail(1<<20), full()
	b.SetBytes(MaxWrite)
	b.ReportAllocs()
	for b.Loop() {
		e.Write(p)
	}
}
