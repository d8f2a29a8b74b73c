package mcp

import (
	"container/list"
	"sync"
)

// maxSeen is of how many commands, processes and terminals of a principal Seen knows what it has shown.
const maxSeen = 1024

// Seen knows up to which byte of each output the client has read. Beyond maxSeen ids it forgets the one that was used longest ago; a wait for such an
// id shows the end of its output.
type Seen struct{ offsets *lru[int64] }

// NewSeen returns a Seen that knows nothing.
func NewSeen() *Seen { return &Seen{newLRU[int64](maxSeen)} }

func (s *Seen) offset(id string) (offset int64, known bool) { return s.offsets.get(id) }

func (s *Seen) set(id string, offset int64) { s.offsets.set(id, offset) }

// lru is a map of bounded size that drops what was used longest ago.
type lru[V any] struct {
	max int

	mu     sync.Mutex
	byKey  map[string]*list.Element // guarded by mu
	recent *list.List               // guarded by mu; of lruEntry, the latest first
}

type lruEntry[V any] struct {
	key   string
	value V
}

func newLRU[V any](max int) *lru[V] {
	return &lru[V]{max: max, byKey: map[string]*list.Element{}, recent: list.New()}
}

func (l *lru[V]) get(key string) (value V, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.byKey[key]
	if !known {
		return value, false
	}
	l.recent.MoveToFront(e)
	return e.Value.(lruEntry[V]).value, true
}

func (l *lru[V]) set(key string, value V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLocked(key, value)
}

func (l *lru[V]) setLocked(key string, value V) {
	if e, known := l.byKey[key]; known {
		e.Value = lruEntry[V]{key, value}
		l.recent.MoveToFront(e)
		return
	}
	l.byKey[key] = l.recent.PushFront(lruEntry[V]{key, value})
	if l.recent.Len() > l.max {
		delete(l.byKey, l.recent.Remove(l.recent.Back()).(lruEntry[V]).key)
	}
}

// getOr returns the value of a key, which it makes if there is none.
func (l *lru[V]) getOr(key string, make func() V) V {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, known := l.byKey[key]; known {
		l.recent.MoveToFront(e)
		return e.Value.(lruEntry[V]).value
	}
	value := make()
	l.setLocked(key, value)
	return value
}
