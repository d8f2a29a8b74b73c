package mcp

import (
	"container/list"
	"sync"
)

// maxSeen is of how many commands, processes and terminals of a principal Seen knows what it has shown.
const maxSeen = 1024

// Seen knows up to which byte of each output the client has read. Beyond maxSeen ids it forgets the one that was used longest ago; a wait for such an
// id shows the end of its output.
type Seen struct {
	mu     sync.Mutex
	byID   map[string]*list.Element // guarded by mu
	recent *list.List               // guarded by mu; of seenOffset, the latest first
}

type seenOffset struct {
	id     string
	offset int64
}

// NewSeen returns a Seen that knows nothing.
func NewSeen() *Seen { return &Seen{byID: map[string]*list.Element{}, recent: list.New()} }

func (s *Seen) offset(id string) (offset int64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, known := s.byID[id]
	if !known {
		return 0, false
	}
	return e.Value.(seenOffset).offset, true
}

func (s *Seen) set(id string, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, known := s.byID[id]; known {
		e.Value = seenOffset{id, offset}
		s.recent.MoveToFront(e)
		return
	}
	s.byID[id] = s.recent.PushFront(seenOffset{id, offset})
	if s.recent.Len() > maxSeen {
		delete(s.byID, s.recent.Remove(s.recent.Back()).(seenOffset).id)
	}
}
