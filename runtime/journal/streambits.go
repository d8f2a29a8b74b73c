package journal

import "math/bits"

// streamBits says which of two streams each byte of a ring belongs to, with one bit per byte. Run lengths would be smaller for long runs, but a
// command that alternates byte by byte would outgrow them or lose history.
type streamBits []uint64

func newStreamBits(n int) streamBits { return make(streamBits, (n+63)/64) }

// side returns the stream, 0 or 1, of the byte at i.
func (t streamBits) side(i int) int { return int(t[i/64] >> (i % 64) & 1) }

// mark gives the bytes [i, i+n) to side.
func (t streamBits) mark(i, n, side int) {
	fill := -uint64(side) // the bit of side, 64 times
	for n > 0 {
		if i%64 == 0 && n >= 64 {
			words := t[i/64 : (i+n)/64]
			for w := range words {
				words[w] = fill
			}
			i, n = i+64*len(words), n-64*len(words)
			continue
		}
		k := min(64-i%64, n)
		mask := ^uint64(0) >> (64 - k) << (i % 64)
		t[i/64] = t[i/64]&^mask | fill&mask
		i, n = i+k, n-k
	}
}

// run returns how many bytes from i on, at most n, belong to side.
func (t streamBits) run(i, n, side int) int {
	fill := -uint64(side)
	for k := 0; k < n; {
		other := (t[(i+k)/64] ^ fill) >> ((i + k) % 64) // a 1 for each byte of the other stream
		if other != 0 {
			return min(n, k+bits.TrailingZeros64(other))
		}
		k += 64 - (i+k)%64
	}
	return n
}
