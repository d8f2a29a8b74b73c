// Package memory keeps measurements of the memory of sessions.
package memory

import "time"

// maxAge is how long a measurement is used.
const maxAge = time.Second

// Use is the last measurement of one session's memory. Its owner makes sure that one goroutine at a time calls its methods.
type Use struct {
	bytes   int64
	at      time.Time
	pending bool // another measurement is under way
}

// Bytes returns the last measurement.
func (u *Use) Bytes() int64 { return u.bytes }

// IsDue reports whether another measurement shall begin. Set ends it.
func (u *Use) IsDue() bool {
	if u.pending || time.Since(u.at) <= maxAge {
		return false
	}
	u.pending = true
	return true
}

// Set ends a measurement.
func (u *Use) Set(bytes int64) { *u = Use{bytes: bytes, at: time.Now()} }
