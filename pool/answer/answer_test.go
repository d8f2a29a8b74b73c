package answer

import (
	"bytes"
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"trl/pool/budget"
	"trl/protocol"
	"trl/runtime/journal"
)

// Whatever the ring lost: the text before the omission, the omission and the text after it are the stream from the offset on.
func TestAnswersAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := New(rapid.SampledFrom([]int{0, 8, 1000, 100_000, 1 << 20}).Draw(t, "most"))
		j := journal.New(rapid.SampledFrom([]int{1, 20_000, 100_000}).Draw(t, "ring"))
		running := true
		if rapid.Bool().Draw(t, "run") {
			x.KeepText(j)
			x.CountOn(&budget.Budget{PrincipalLimit: 1 << 40, TotalLimit: 1 << 40}, "o")
		}
		var all [2][]byte
		nexts := map[int64][2]int64{0: {}} // the offsets that answers gave, and what is before them
		ask := func() {
			size := int64(len(all[0]) + len(all[1]))
			known := slices.Sorted(maps.Keys(nexts))
			offset := rapid.SampledFrom(known).Draw(t, "offset")
			before, exact := nexts[offset], true
			if rapid.IntRange(0, 9).Draw(t, "stranger") == 0 {
				offset = rapid.Int64Range(0, size).Draw(t, "offset")
				before, exact = nexts[offset]
			}
			var answer protocol.ExecAnswer
			answer.Running = running
			answer.StdoutBytes, answer.StderrBytes = j.Totals()
			x.Fill(&answer, j, offset, false)
			r := answer.Result()
			var upTo [2]int64
			sum := int64(0)
			for i, side := range []struct {
				text, encoding string
				omitted        *protocol.Omitted
			}{{r.Stdout, r.StdoutEncoding, r.Omitted.Stdout}, {r.Stderr, r.StderrEncoding, r.Omitted.Stderr}} {
				b := []byte(side.text)
				if side.encoding == protocol.Base64 {
					b, _ = base64.StdEncoding.DecodeString(side.text)
				}
				o := protocol.Omitted{At: int64(len(b))}
				if side.omitted != nil {
					o = *side.omitted
				}
				if len(b) > x.Max || o.At > int64(len(b)) || o.Bytes < 0 {
					t.Fatalf("%d bytes, omitted %+v", len(b), o)
				}
				n := int64(len(b)) + o.Bytes
				sum += n
				if upTo[i] = before[i] + n; exact {
					if upTo[i] > int64(len(all[i])) || len(all[i]) > int(upTo[i])+utf8.UTFMax-1 {
						t.Fatalf("stream %d: answered up to %d of %d", i, upTo[i], len(all[i]))
					}
					want := append(slices.Clone(all[i][before[i]:][:o.At]), all[i][before[i]+o.At+o.Bytes:upTo[i]]...)
					if !bytes.Equal(b, want) {
						t.Fatalf("stream %d from %d: not what was written", i, before[i])
					}
				}
			}
			if offset+sum != *r.NextOffset || r.Running && *r.NextOffset < size-utf8.UTFMax+1 || !r.Running && *r.NextOffset != size {
				t.Fatalf("from %d to %d of %d, next is %d", offset, offset+sum, size, *r.NextOffset)
			}
			if exact {
				nexts[*r.NextOffset] = upTo
			}
		}
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			if len(nexts) < maxResumePoints && rapid.IntRange(0, 3).Draw(t, "ask") == 0 {
				ask()
				continue
			}
			i := rapid.IntRange(0, 1).Draw(t, "stream")
			p := string(rune('a'+len(all[i])%26)) + strings.Repeat(rapid.SampledFrom([]string{"0123456", "é", "\xf0\x9f", "\x99\x82", "\n"}).Draw(t, "scrap"), rapid.SampledFrom([]int{1, 1, 10, 5000}).Draw(t, "times"))
			p = p[rapid.IntRange(0, 1).Draw(t, "cut"):]
			j.Write([]journal.Stream{journal.Stdout, journal.Stderr}[i], []byte(p))
			all[i] = append(all[i], p...)
		}
		ask()
		x.End()
		running = false
		ask()
	})
}

// The output is counted until the last holder has released it; what the budget refuses is left out of the answer.
func TestOutputIsCountedWhileItIsHeld(t *testing.T) {
	b := &budget.Budget{PrincipalLimit: 1 << 20, TotalLimit: 1 << 20}
	x, j := New(8<<20), journal.New(1<<10)
	x.KeepText(j)
	x.CountOn(b, "o")
	x.Hold()
	for range 64 {
		j.Write(journal.Stdout, bytes.Repeat([]byte("x"), 64<<10))
	}
	if b.Reserve("o", 1<<19+1) {
		t.Error("less than half of the budget is used")
	}
	var r protocol.ExecAnswer
	r.StdoutBytes, r.StderrBytes = x.End()
	x.Fill(&r, j, 0, false)
	if got := r.Result(); r.StdoutBytes != 4<<20 || !r.Truncated || int64(len(got.Stdout))+r.Omitted.Stdout.Bytes != 4<<20 {
		t.Errorf("%d bytes, omitted %+v", len(got.Stdout), r.Omitted.Stdout)
	}
	x.Release()
	if b.Reserve("o", 1<<20) {
		t.Error("nothing is counted although a request holds it")
	}
	x.Release()
	if !b.Reserve("o", 1<<20) {
		t.Error("it is counted although nothing holds it")
	}
}
