package pool

import (
	"context"
	"sync"
	"time"
)

const (
	// keptEach is how much memory the emulators of one principal's terminals may keep, keptAll that of all. Two of the
	// largest terminals with every cell in use fit in the first. The one that was used least recently goes beyond that,
	// and is made anew from the journal when it is needed.
	keptEach = 64 << 20
	keptAll  = 256 << 20
	// looks is how many principals may have a screen worked out at the same time. Each of them has one under way at
	// most: others of his wait.
	looks = 4
	// patience is how long an emulator reads before it skips to the last of the output.
	patience = 250 * time.Millisecond
	// rest is how many times as long as it has read the follower of a terminal pauses: it takes a tenth of a processor.
	rest = 9
)

// emulators is the budget of all terminals' emulators: of memory, and of processor time.
type emulators struct {
	patience time.Duration // tests change it, and rest
	rest     time.Duration
	turn     chan struct{} // held by the terminal whose screen is being followed
	looks    chan struct{} // held by each look at a screen

	mu      sync.Mutex
	lookers map[string]*looker  // guarded by mu; by principal
	kept    map[*shown]resident // guarded by mu
}

// looker lets one principal look at one screen at a time.
type looker struct {
	turn chan struct{}
	n    int // guarded by emulators.mu; who has it or waits for it
}

// resident is an emulator that is kept until its screen is asked for again.
type resident struct {
	owner string
	bytes int
	used  time.Time
}

func newEmulators() *emulators {
	return &emulators{
		patience: patience, rest: rest, turn: make(chan struct{}, 1), looks: make(chan struct{}, looks), lookers: map[string]*looker{}, kept: map[*shown]resident{},
	}
}

// enter waits for a place to work out a screen for one of owner's terminals. The caller calls leave.
func (e *emulators) enter(ctx context.Context, owner string) (leave func(), err error) {
	e.mu.Lock()
	l := e.lookers[owner]
	if l == nil {
		l = &looker{turn: make(chan struct{}, 1)}
		e.lookers[owner] = l
	}
	l.n++
	e.mu.Unlock()
	gone := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if l.n--; l.n == 0 {
			delete(e.lookers, owner)
		}
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		gone()
		return nil, context.Cause(ctx)
	}
	select {
	case e.looks <- struct{}{}:
	case <-ctx.Done():
		<-l.turn
		gone()
		return nil, context.Cause(ctx)
	}
	return func() {
		<-e.looks
		<-l.turn
		gone()
	}, nil
}

// keep notes that an emulator holds so much memory, and lets go of others when that is too much. s.mu is held.
func (e *emulators) keep(s *shown, owner string, bytes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept[s] = resident{owner, bytes, time.Now()}
	for {
		all, most := bytes, ""
		of := map[string]int{} // without s, which is not let go of
		for o, k := range e.kept {
			if o != s {
				all += k.bytes
				if of[k.owner] += k.bytes; of[k.owner] > of[most] {
					most = k.owner
				}
			}
		}
		switch {
		case of[owner] > 0 && of[owner]+bytes > keptEach:
			most = owner
		case all <= keptAll:
			return
		}
		if !e.evictLocked(most, s) {
			return
		}
	}
}

// evictLocked lets go of the emulator of owner's that was used least recently and is neither in use nor but. e.mu is held.
func (e *emulators) evictLocked(owner string, but *shown) bool {
	var oldest *shown
	for s, k := range e.kept {
		if k.owner == owner && s != but && (oldest == nil || k.used.Before(e.kept[oldest].used)) && s.mu.TryLock() {
			if oldest != nil {
				oldest.mu.Unlock()
			}
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	defer oldest.mu.Unlock()
	oldest.screen, oldest.fed, oldest.skipped, oldest.cut = nil, 0, 0, false
	delete(e.kept, oldest)
	return true
}

// forget notes that an emulator is gone.
func (e *emulators) forget(s *shown) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.kept, s)
}
