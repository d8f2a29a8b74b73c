package entry

import (
	"sync"

	"trl/runtime/saved"
)

// A Shell keeps the last entry of a session's shell. Compaction holds it, so that no newer entry comes between its reading and the new beginning, which
// would not have that entry.
type Shell struct {
	mu   sync.Mutex
	last *saved.Shell // guarded by mu
}

// Set sets the last entry, which an earlier gateway has written.
func (s *Shell) Set(r *saved.Shell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = r
}

// Append appends an entry.
func (s *Shell) Append(r saved.Shell, to func(Entry)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to(Entry{Shell: &r})
	r.After = nil // an event, which is told once
	s.last = &r
}

// Hold returns the last entry. Append waits until release is called.
func (s *Shell) Hold() (r *saved.Shell, release func()) {
	s.mu.Lock()
	return s.last, s.mu.Unlock
}
