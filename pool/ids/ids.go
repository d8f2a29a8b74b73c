// Package ids makes and parses ids.
package ids

import (
	"crypto/rand"
	"strings"
)

// An id is
//
//	kind "-" epoch(8) [tag(6)] random check(4)
//
// in a lower-case base-32 alphabet. kind is s (session), x (exec), p (process), t (terminal), r (recording) or l (share link). The id of a
// stream is "st-" and the id of its exec, process or terminal. The epoch and the check distinguish an id that an earlier run of the server
// gave out (SESSION_LOST) from one that somebody invented (SESSION_NOT_FOUND). Neither is secret; the random part cannot be guessed. The
// tag of an exec, a process or a terminal leads to its session. So these need no table that all sessions share.
const (
	epochLen  = 8  // 40 bits: a server that restarts every second for a year uses an epoch twice with a probability of 1 : 30,000
	TagLen    = 6  // no two sessions have the same, see Pool.register
	RandomLen = 21 // 105 bits; PROTOCOL.md promises 100
	MemberLen = 13 // 65 bits: it only distinguishes the work of one session, after the check of the principal
	checkLen  = 4  // 20 bits: one in a million invented ids is answered with "lost", which reveals nothing

	StreamPrefix = "st-"
)

const alphabet = "abcdefghijklmnopqrstuvwxyz234567"

// EpochMark returns the epoch part of ids. It consists of the first letters of the epoch's name, which is in base
// 32, in lower case. A name that is too short gets a random epoch part.
func EpochMark(name string) string {
	if len(name) < epochLen {
		return Random(epochLen)
	}
	return strings.ToLower(name[:epochLen])
}

// Random returns n letters with 5 random bits each.
func Random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails since Go 1.24
	for i := range b {
		b[i] = alphabet[b[i]&31]
	}
	return string(b)
}

// New returns a new id after prefix. With a prefix, one allocation holds both the stream id and the id within it.
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

// checksum returns the check part: FNV-1a of the rest of the id. hash/crc32 would move its argument to the heap, because it calls function
// variables.
func checksum[T string | []byte](id T) (sum [checkLen]byte) {
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	h ^= h >> 16 // the low bits are mixed least
	for i := range sum {
		sum[i] = alphabet[h>>(5*i)&31]
	}
	return sum
}

// EpochOf returns the epoch in which id was given out. ok is false if no server gave it out.
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

// TagOf returns the tag of the id of an exec, a process or a terminal.
func TagOf(id string) string { return id[2+epochLen : 2+epochLen+TagLen] }

// MarkOf returns the part of an id that says where it belongs: the epoch and the tag of the id of an exec, a process or a terminal, and all of the id of
// a session. ok is false for ids of other kinds, and for what no server gave out.
func MarkOf(id string) (mark string, ok bool) {
	if id == "" {
		return "", false
	}
	switch _, ok = EpochOf(id[0], id); {
	case !ok:
		return "", false
	case id[0] == 's':
		return id, true
	case id[0] == 'x' || id[0] == 'p' || id[0] == 't':
		return id[2 : 2+epochLen+TagLen], true
	}
	return "", false
}
