// Package recent remembers the last requests of a connection, and ids that it used.
package recent

import "slices"

// Last has the last requests. The zero value is empty. The caller guards it.
type Last[T any] struct {
	all  []T
	next int // index in all that is overwritten next
}

// Add adds a request, in place of the oldest one if there are most, which is always the same number.
func (l *Last[T]) Add(x T, most int) {
	if len(l.all) < most {
		l.all = append(l.all, x)
		return
	}
	l.all[l.next] = x
	l.next = (l.next + 1) % most
}

// All returns the requests, in no order.
func (l *Last[T]) All() []T { return slices.Clone(l.all) }

// Find returns the latest request for which is returns true, or the zero value.
func (l *Last[T]) Find(is func(T) bool) (x T) {
	for i := range l.all { // the newest stands before the oldest one
		if x := l.all[(l.next+len(l.all)-1-i)%len(l.all)]; is(x) {
			return x
		}
	}
	return x
}
