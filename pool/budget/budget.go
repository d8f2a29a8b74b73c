// Package budget counts bytes of each principal, and of all principals together, against limits.
package budget

import "sync"

// A Budget counts bytes.
type Budget struct {
	PrincipalLimit, TotalLimit int64 // set once

	mu          sync.Mutex
	byPrincipal map[string]int64
	total       int64
}

// Add counts n bytes more of a principal, or fewer, whatever the limits are.
func (b *Budget) Add(who string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(who, n)
}

func (b *Budget) addLocked(who string, n int64) {
	if b.byPrincipal == nil {
		b.byPrincipal = map[string]int64{}
	}
	b.total += n
	if b.byPrincipal[who] += n; b.byPrincipal[who] == 0 {
		delete(b.byPrincipal, who)
	}
}

// Reserve counts n bytes of a principal if that exceeds no limit, and reports whether it did.
func (b *Budget) Reserve(who string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byPrincipal[who]+n > b.PrincipalLimit || b.total+n > b.TotalLimit {
		return false
	}
	b.addLocked(who, n)
	return true
}

// Exceeds reports whether the principal has too much, or all together have.
func (b *Budget) Exceeds(who string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byPrincipal[who] > b.PrincipalLimit || b.total > b.TotalLimit
}

// Heaviest returns the principal that has the most, and reports whether that is too much, or all together have too much.
func (b *Budget) Heaviest() (who string, exceeds bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := int64(-1)
	for name, n := range b.byPrincipal {
		if n > most {
			who, most = name, n
		}
	}
	return who, most > b.PrincipalLimit || b.total > b.TotalLimit
}
