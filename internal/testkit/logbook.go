package testkit

import (
	"bytes"
	"sync"
)

// LogBook keeps everything written to it. Several goroutines may use it at once.
type LogBook struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *LogBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *LogBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Len returns how many bytes were written.
func (l *LogBook) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Len()
}
