package pool

import (
	"slices"

	"trl/protocol"
)

// How many commands may wait for one session (PROTOCOL.md §4), and how many bytes of text, stdin and variables they may hold together.
const (
	maxQueue      = 64
	maxQueueBytes = 16 << 20
)

// queue is the commands that wait for their session's turn, first come first served. Its memory is bounded by maxQueue and maxQueueBytes.
type queue []*Exec

// hasRoom reports whether one more command may wait.
func (q queue) hasRoom(e *Exec) bool {
	if len(q) >= maxQueue {
		return false
	}
	size := e.size
	for _, other := range q {
		size += other.size
	}
	return size <= maxQueueBytes || len(q) == 0
}

// sizeOf is how many bytes a command holds while it waits; its stdin is in a file in memory then.
func sizeOf(q *protocol.Exec) int {
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

func (q *queue) push(e *Exec) { *q = append(*q, e) }

// pop is nil when nobody waits.
func (q *queue) pop() *Exec {
	if len(*q) == 0 {
		return nil
	}
	e := (*q)[0]
	*q = slices.Delete(*q, 0, 1) // 64 pointers at most: moving them is cheaper than a ring's bookkeeping
	return e
}

// remove reports whether e was waiting.
func (q *queue) remove(e *Exec) bool {
	i := slices.Index(*q, e)
	if i < 0 {
		return false
	}
	*q = slices.Delete(*q, i, i+1)
	return true
}

// takeAll empties the queue and returns what waited.
func (q *queue) takeAll() []*Exec {
	all := *q
	*q = nil
	return all
}
