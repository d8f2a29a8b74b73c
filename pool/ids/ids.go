// Package ids makes ids and takes them apart.
package ids

import (
	"crypto/rand"
	"strings"
)

// An id is
//
//	kind "-" epoch(8) [tag(6)] random check(4)
//
// over a lower-case base-32 alphabet. kind is s, x (exec), p (process), t (terminal) or l (share link); the stream of x, p or t is "st-" and that id.
// The epoch mark and the check tell an id that an earlier life of the server gave out (SESSION_LOST) from one that
// somebody made up (SESSION_NOT_FOUND); neither is a secret, the random part is what nobody guesses. The tag finds
// the session of an exec, a process and the like, so that starting one touches no table that sessions share.
const (
	epochLen  = 8  // 40 bits: a server restarted every second for a year meets its own mark with 1 : 30,000
	TagLen    = 6  // unique by construction, see Pool.register
	RandomLen = 21 // 105 bits; PROTOCOL.md promises 100
	MemberLen = 13 // 65 bits: within one session, and behind the principal check
	checkLen  = 4  // 20 bits: one in a million made-up ids answers "lost", which is no secret

	StreamPrefix = "st-"
)

const alphabet = "abcdefghijklmnopqrstuvwxyz234567"

// EpochMark makes the mark of an epoch from its name, of which it needs the first letters; base 32 in either case.
func EpochMark(name string) string {
	if len(name) < epochLen {
		return Random(epochLen)
	}
	return strings.ToLower(name[:epochLen])
}

// Random is n letters of 5 random bits each.
func Random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails since Go 1.24
	for i := range b {
		b[i] = alphabet[b[i]&31]
	}
	return string(b)
}

// New makes an id, prefixed: one allocation for the id and the stream id that contains it.
func New(prefix string, kind byte, epoch, tag string, random int) string {
	var buf [64]byte
	b := append(buf[:0], prefix...)
	b = append(b, kind, '-')
	b = append(b, epoch...)
	b = append(b, tag...)
	n := len(b)
	b = b[:n+random]
	rand.Read(b[n:])
	for i := n; i < len(b); i++ {
		b[i] = alphabet[b[i]&31]
	}
	sum := checksum(b[len(prefix):])
	return string(append(b, sum[:]...))
}

// checksum is FNV-1a over all before it. (hash/crc32 works through function variables: what it is given escapes.)
func checksum[T string | []byte](id T) (sum [checkLen]byte) {
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	h ^= h >> 16 // the low bits alone mix least
	for i := range sum {
		sum[i] = alphabet[h>>(5*i)&31]
	}
	return sum
}

// EpochOf tells which epoch gave id out, and whether any did.
func EpochOf(kind byte, id string) (epoch string, ok bool) {
	want := 2 + epochLen + RandomLen + checkLen
	if kind != 's' {
		want = 2 + epochLen + TagLen + MemberLen + checkLen
	}
	if len(id) != want || id[0] != kind || id[1] != '-' {
		return "", false
	}
	body := id[:len(id)-checkLen]
	if sum := checksum(body); string(sum[:]) != id[len(body):] {
		return "", false
	}
	return id[2 : 2+epochLen], true
}

// TagOf is the tag of a minted exec or process id.
func TagOf(id string) string { return id[2+epochLen : 2+epochLen+TagLen] }
