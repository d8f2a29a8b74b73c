package screenstate

import (
	"context"
	"sync"
	"time"
)

const (
	// Memory of the kept emulators of one principal's terminals, and of all. Two of the largest terminals with every scope in use fit into
	// the first. Beyond the limit, the emulator that was used least recently is dropped, and made anew from the journal when it is needed.
	maxBytesOfPrincipal = 64 << 20
	maxBytes            = 256 << 20
	// maxRenders is how many principals may have a screen worked out at the same time. Each of them has at most one under way.
	maxRenders = 4
	// renderTimeout is how long an emulator reads before it leaves out all output but the last of it.
	renderTimeout = 250 * time.Millisecond
	// pauseFactor is how many times as long as it has read the follower of a terminal pauses. It thus takes a tenth of a processor.
	pauseFactor = 9
)

// Emulators is the budget of all terminals' emulators: their memory and their processor time.
type Emulators struct {
	RenderTimeout time.Duration // set once; tests change it
	PauseFactor   time.Duration // the same

	tasks       *sync.WaitGroup // waits for the goroutines of Follow
	followSlot  chan struct{}   // held by the terminal that is being followed
	renderSlots chan struct{}   // held by each call of With

	mu         sync.Mutex
	principals map[string]*renderQueue // guarded by mu; by principal
	kept       map[*State]keptEmulator // guarded by mu
}

// renderQueue lets one principal have one screen worked out at a time.
type renderQueue struct {
	slot  chan struct{}
	users int // guarded by Emulators.mu; calls of With that hold the slot or wait for it
}

// keptEmulator is an emulator that is kept until its screen is asked for again.
type keptEmulator struct {
	bytes int
	used  time.Time
}

// NewEmulators makes an empty budget. tasks waits for the goroutines of Follow.
func NewEmulators(tasks *sync.WaitGroup) *Emulators {
	return &Emulators{
		RenderTimeout: renderTimeout, PauseFactor: pauseFactor, tasks: tasks,
		followSlot: make(chan struct{}, 1), renderSlots: make(chan struct{}, maxRenders),
		principals: map[string]*renderQueue{}, kept: map[*State]keptEmulator{},
	}
}

// acquireSlot waits until a screen of one of owner's terminals may be worked out. The caller calls leave.
func (e *Emulators) acquireSlot(ctx context.Context, owner string) (leave func(), err error) {
	e.mu.Lock()
	q := e.principals[owner]
	if q == nil {
		q = &renderQueue{slot: make(chan struct{}, 1)}
		e.principals[owner] = q
	}
	q.users++
	e.mu.Unlock()
	gone := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(e.principals, owner)
		}
	}
	select {
	case q.slot <- struct{}{}:
	case <-ctx.Done():
		gone()
		return nil, context.Cause(ctx)
	}
	select {
	case e.renderSlots <- struct{}{}:
	case <-ctx.Done():
		<-q.slot
		gone()
		return nil, context.Cause(ctx)
	}
	return func() {
		<-e.renderSlots
		<-q.slot
		gone()
	}, nil
}

// setSize notes how much memory the emulator of s takes, and drops others while that is too much. s.mu is held.
func (e *Emulators) setSize(s *State, bytes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept[s] = keptEmulator{bytes, time.Now()}
	for {
		all, most := bytes, ""
		of := map[string]int{} // bytes by principal, without those of s, which is not dropped
		for o, k := range e.kept {
			if o != s {
				all += k.bytes
				if of[o.owner] += k.bytes; of[o.owner] > of[most] {
					most = o.owner
				}
			}
		}
		switch {
		case of[s.owner] > 0 && of[s.owner]+bytes > maxBytesOfPrincipal:
			most = s.owner
		case all <= maxBytes:
			return
		}
		if !e.evictLocked(most, s) {
			return
		}
	}
}

// evictLocked drops the emulator of owner's that was used least recently, is not in use, and is not that of spared. e.mu is held.
func (e *Emulators) evictLocked(owner string, spared *State) bool {
	var oldest *State
	for s, k := range e.kept {
		if s.owner == owner && s != spared && (oldest == nil || k.used.Before(e.kept[oldest].used)) && s.mu.TryLock() {
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
	oldest.dropLocked()
	delete(e.kept, oldest)
	return true
}

// forget notes that the emulator of s is dropped.
func (e *Emulators) forget(s *State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.kept, s)
}
