// Package queue holds the commands that wait for their session's turn, first come, first served.
package queue

import (
	"slices"

	"trl/protocol"
)

// How many commands may wait for one session (PROTOCOL.md, Sessions), and how many bytes of text, stdin and variables they may hold together.
const (
	maxLen   = 64
	maxBytes = 16 << 20
)

// Queue is what waits. The zero Queue is empty.
type Queue[T comparable] struct {
	items []T
	sizes []int // of items
}

// SizeOf returns how many bytes a command holds while it waits.
func SizeOf(q *protocol.Exec) int {
	n := len(q.Command)
	if q.Stdin != nil {
		n += len(*q.Stdin)
	}
	for name, value := range q.Env {
		n += len(name)
		if value != nil {
			n += len(*value)
		}
	}
	return n
}

// HasRoom reports whether one more item of this size may wait.
func (q *Queue[T]) HasRoom(size int) bool {
	for _, n := range q.sizes {
		size += n
	}
	return len(q.items) < maxLen && (size <= maxBytes || len(q.items) == 0)
}

// Push adds an item.
func (q *Queue[T]) Push(x T, size int) { q.items, q.sizes = append(q.items, x), append(q.sizes, size) }

// Pop removes the oldest item, and reports whether there was one.
func (q *Queue[T]) Pop() (x T, ok bool) {
	if len(q.items) == 0 {
		return x, false
	}
	x = q.items[0]
	return x, q.Remove(x) // at most 64 pointers: moving them costs less than managing a ring
}

// Remove removes an item, and reports whether it was there.
func (q *Queue[T]) Remove(x T) bool {
	i := slices.Index(q.items, x)
	if i >= 0 {
		q.items, q.sizes = slices.Delete(q.items, i, i+1), slices.Delete(q.sizes, i, i+1)
	}
	return i >= 0
}

// Clear removes and returns all items.
func (q *Queue[T]) Clear() []T {
	all := q.items
	*q = Queue[T]{}
	return all
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return len(q.items) }

// All returns the items, oldest first.
func (q *Queue[T]) All() []T { return slices.Clone(q.items) }
