package pool

import "slices"

// maxQueue is how many commands may wait for one session (PROTOCOL.md §4).
const maxQueue = 64

// queue is the commands that wait for their session's turn, first come first served. Its memory is bounded by maxQueue.
type queue []*Exec

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

// drain empties the queue and returns what waited.
func (q *queue) drain() []*Exec {
	all := *q
	*q = nil
	return all
}
