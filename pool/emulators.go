package pool

import (
	"context"
	"sync"
	"time"
)

const (
	// maxEmulatorBytesOfPrincipal is how much memory the emulators of one principal's terminals may keep, maxEmulatorBytes that of all. Two of the
	// largest terminals with every scope in use fit in the first. The one that was used least recently goes beyond that,
	// and is made anew from the journal when it is needed.
	maxEmulatorBytesOfPrincipal = 64 << 20
	maxEmulatorBytes            = 256 << 20
	// maxScreenRenders is how many principals may have a screen worked out at the same time. Each of them has one under way at
	// most: others of his wait.
	maxScreenRenders = 4
	// renderTimeout is how long an emulator reads before it skips to the last of the output.
	renderTimeout = 250 * time.Millisecond
	// followPauseFactor is how many times as long as it has read the follower of a terminal pauses: it takes a tenth of a processor.
	followPauseFactor = 9
)

// emulators is the budget of all terminals' emulators: of memory, and of processor time.
type emulators struct {
	renderTimeout time.Duration // tests change it, and rest
	pauseFactor   time.Duration
	followSlot    chan struct{} // held by the terminal whose screen is being followed
	renderSlots   chan struct{} // held by each look at a screen

	mu         sync.Mutex
	principals map[string]*renderQueue       // guarded by mu; by principal
	kept       map[*screenState]keptEmulator // guarded by mu
}

// renderQueue lets one principal look at one screen at a time.
type renderQueue struct {
	slot  chan struct{}
	users int // guarded by emulators.mu; who has it or waits for it
}

// keptEmulator is an emulator that is kept until its screen is asked for again.
type keptEmulator struct {
	owner string
	bytes int
	used  time.Time
}

func newEmulators() *emulators {
	return &emulators{
		renderTimeout: renderTimeout, pauseFactor: followPauseFactor, followSlot: make(chan struct{}, 1), renderSlots: make(chan struct{}, maxScreenRenders), principals: map[string]*renderQueue{}, kept: map[*screenState]keptEmulator{},
	}
}

// acquireSlot waits for a place to work out a screen for one of owner's terminals. The caller calls leave.
func (e *emulators) acquireSlot(ctx context.Context, owner string) (leave func(), err error) {
	e.mu.Lock()
	l := e.principals[owner]
	if l == nil {
		l = &renderQueue{slot: make(chan struct{}, 1)}
		e.principals[owner] = l
	}
	l.users++
	e.mu.Unlock()
	gone := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(e.principals, owner)
		}
	}
	select {
	case l.slot <- struct{}{}:
	case <-ctx.Done():
		gone()
		return nil, context.Cause(ctx)
	}
	select {
	case e.renderSlots <- struct{}{}:
	case <-ctx.Done():
		<-l.slot
		gone()
		return nil, context.Cause(ctx)
	}
	return func() {
		<-e.renderSlots
		<-l.slot
		gone()
	}, nil
}

// setSize notes that an emulator holds so much memory, and lets go of others when that is too much. s.mu is held.
func (e *emulators) setSize(s *screenState, owner string, bytes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept[s] = keptEmulator{owner, bytes, time.Now()}
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
		case of[owner] > 0 && of[owner]+bytes > maxEmulatorBytesOfPrincipal:
			most = owner
		case all <= maxEmulatorBytes:
			return
		}
		if !e.evictLocked(most, s) {
			return
		}
	}
}

// evictLocked lets go of the emulator of owner's that was used least recently and is neither in use nor but. e.mu is held.
func (e *emulators) evictLocked(owner string, but *screenState) bool {
	var oldest *screenState
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
	oldest.screen, oldest.fedTo, oldest.skipped, oldest.startMissing = nil, 0, 0, false
	delete(e.kept, oldest)
	return true
}

// forget notes that an emulator is gone.
func (e *emulators) forget(s *screenState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.kept, s)
}
