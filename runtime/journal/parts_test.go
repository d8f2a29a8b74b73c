package journal

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestPartsAreBytes: the pieces of Parts are the result of Bytes, for texts and bytes of every length around the limit, in whatever pieces
// they came.
func TestPartsAreBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		limit := rnd.IntN(40)
		e := NewHeadTail(limit)
		for range rnd.IntN(6) {
			p := []byte("aä世🙂\xff"[:rnd.IntN(11)])
			e.Write(p)
			if rnd.IntN(8) == 0 {
				e.Skip(int64(rnd.IntN(5)))
			}
		}
		kept, total, at, omitted := e.Bytes()
		before, after, total2, at2, omitted2 := e.Parts()
		first, last := bytes.Join(before, nil), bytes.Join(after, nil)
		if !bytes.Equal(append(bytes.Clone(first), last...), kept) || total != total2 || omitted != omitted2 || omitted > 0 && (at != at2 || int64(len(first)) != at) {
			t.Fatalf("limit %d: %q %q, %d, %d, %d; want %q, %d, %d, %d", limit, first, last, total2, at2, omitted2, kept, total, at, omitted)
		}
	}
}

// grower allows so many bytes.
type grower struct{ left int }

func (g *grower) Grow(n int) bool {
	if n > g.left {
		return false
	}
	g.left -= n
	return true
}

// TestEndsThatMayNotGrow: head and tail stop growing, every byte is counted, and the kept text is the beginning and the end.
func TestEndsThatMayNotGrow(t *testing.T) {
	for _, given := range []int{0, 100 << 10, 300 << 10, 10 << 20} {
		e := NewHeadTail(8 << 20)
		g := &grower{given}
		e.OnGrow(g)
		var all []byte
		rnd := rand.New(rand.NewPCG(5, 6))
		for range 400 {
			p := bytes.Repeat([]byte{byte('a' + rnd.IntN(26))}, 1+rnd.IntN(60<<10))
			all = append(all, p...)
			e.Write(p)
		}
		kept, total, at, omitted := e.Bytes()
		if total != int64(len(all)) || int64(len(kept))+omitted != total {
			t.Fatalf("%d of %d kept, %d omitted", len(kept), total, omitted)
		}
		if len(kept) < 2*freeSize || len(kept) > 2*freeSize+given {
			t.Errorf("%d bytes kept with %d given", len(kept), given)
		}
		if !bytes.Equal(kept[:at], all[:at]) || !bytes.Equal(kept[at:], all[len(all)-(len(kept)-int(at)):]) {
			t.Errorf("%d given: not the beginning and the end", given)
		}
		if c := cap(e.head) + cap(e.tail); c > 2*freeSize+given+16<<10 {
			t.Errorf("%d bytes of memory with %d given", c, given)
		}
	}
}
