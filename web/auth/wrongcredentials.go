package auth

import (
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// freeTries is how many wrong credentials an address may send before it is slowed down: a person may paste a wrong one, or some programs behind
	// one address may have missed a change.
	freeTries = 20
	// The delay doubles with each further wrong credential.
	firstDelay = time.Second
	maxDelay   = time.Minute
	// forgetAfter is how long an address must send no wrong credential to be forgotten.
	forgetAfter = 10 * time.Minute
	// maxAddresses bounds the table: about 400 KiB.
	maxAddresses = 4096
)

// wrongCredentials slows down each address that sends wrong credentials. It keeps the log quiet and the load flat, and protects tokens that a person has
// chosen; nobody guesses 256 random bits. The right one of those therefore passes at any time (see bearer.verify), so a program that floods
// 127.0.0.1, for example from inside a session, locks nobody out.
type wrongCredentials struct {
	mu   sync.Mutex
	from map[netip.Prefix]*failures // guarded by mu
}

type failures struct {
	count int
	last  time.Time
	until time.Time // credentials are not checked before
}

// addressPrefix returns what counts as one address: an IPv4 address, or the 64 bits of an IPv6 address that a provider assigns.
func addressPrefix(a netip.Addr) netip.Prefix {
	bits := 64
	if a.Is4() {
		bits = 32
	}
	p, _ := a.WithZone("").Prefix(bits)
	return p
}

// wait returns how long the address must wait; 0: not at all.
func (t *wrongCredentials) wait(a netip.Addr, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.from[addressPrefix(a)]; o != nil {
		return max(0, o.until.Sub(now))
	}
	return 0
}

// add records a wrong credential that was checked.
func (t *wrongCredentials) add(a netip.Addr, now time.Time) {
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

// guard checks a credential that other nodes must be asked for, unless its client's address is slowed down.
func (t *wrongCredentials) guard(r *http.Request, check func() Outcome) Outcome {
	if t.wait(ClientAddr(r), time.Now()) > 0 {
		return throttled
	}
	why := check()
	if why == Unknown {
		t.add(ClientAddr(r), time.Now())
	}
	return why
}

// makeRoomLocked forgets one address: of a few random ones, the one that has been quiet for longest.
func (t *wrongCredentials) makeRoomLocked(now time.Time) {
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
