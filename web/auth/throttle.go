package auth

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// freeTries is how many wrong credentials an address may bring before it is slowed down: a person who pastes the wrong one, a
	// few programs behind one address that missed a change.
	freeTries = 20
	// The delay doubles with each wrong one after that.
	firstDelay = time.Second
	maxDelay   = time.Minute
	// forgetAfter is how long an address must bring nothing wrong to begin anew.
	forgetAfter = 10 * time.Minute
	// maxAddresses bounds the table: about 400 KiB.
	maxAddresses = 4096
)

// throttle slows down who brings wrong credentials, each address for itself. What it is for is a quiet log, flat load and tokens that
// somebody thought up: 256 random bits are guessed by nobody. Therefore the right one of those passes at any time (see
// Server.authenticate), and a program that hammers 127.0.0.1, from inside a session for one, locks nobody out.
type throttle struct {
	mu   sync.Mutex
	from map[netip.Prefix]*failures // guarded by mu
}

type failures struct {
	count int
	last  time.Time
	until time.Time // nothing is looked at before
}

// addressPrefix is what counts as one address: one IPv4 address, or the 64 bits of IPv6 that a customer gets to choose from.
func addressPrefix(a netip.Addr) netip.Prefix {
	bits := 64
	if a.Is4() {
		bits = 32
	}
	p, _ := a.WithZone("").Prefix(bits)
	return p
}

// wait is how long the address must wait; 0: not at all.
func (t *throttle) wait(a netip.Addr, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.from[addressPrefix(a)]; o != nil {
		return max(0, o.until.Sub(now))
	}
	return 0
}

// wrong notes a wrong credential that was looked at.
func (t *throttle) wrong(a netip.Addr, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := addressPrefix(a)
	o := t.from[p]
	if o == nil {
		t.makeRoomLocked(now)
		o = &failures{}
		t.from[p] = o
	}
	if now.Sub(o.last) > forgetAfter {
		o.count = 0
	}
	o.last = now
	if o.count++; o.count > freeTries {
		o.until = now.Add(min(maxDelay, firstDelay<<min(o.count-freeTries-1, 10)))
	}
}

// makeRoomLocked lets go of the address, of a few that the map gives at random, that has been quiet for longest.
func (t *throttle) makeRoomLocked(now time.Time) {
	if t.from == nil {
		t.from = map[netip.Prefix]*failures{}
	}
	if len(t.from) < maxAddresses {
		return
	}
	var oldest netip.Prefix
	var last time.Time
	looked := 0
	for p, o := range t.from {
		if looked == 0 || o.last.Before(last) {
			oldest, last = p, o.last
		}
		if looked++; looked == 16 {
			break
		}
	}
	delete(t.from, oldest)
}
