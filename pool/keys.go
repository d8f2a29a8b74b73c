package pool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"trl/pool/clock"
	"trl/protocol"
)

// keyRetention is PROTOCOL.md's §4, from completion: a retry of a long command must find it, too.
const keyRetention = 10 * time.Minute

const (
	// A key that was promised for ten minutes is not forgotten before: who has too many is refused another one. One takes some 400 bytes.
	DefaultMaxKeys = 250_000   // of one principal
	maxKeysOfAll   = 1_000_000 // of all: beyond it, who has more than an equal share is refused
)

// newKeyRef is whose request_key, where: scope is the session of an exec, a process or a terminal, and "" for session.create. guest is the
// id of the share that it came by, "" for the owner's own.
//
// A request that names no session (or the default one by its name) is also known by its principal alone: tried again, it may meet
// another default session, and must not run there. unnamed says so.
type keyRef struct {
	owner, guest, scope, key string
	namesNoSession           bool
}

func (s *Session) newKeyRef(key string, of protocol.SessionRef, by *Share) keyRef {
	if by != nil {
		return keyRef{owner: s.owner, guest: by.id, scope: s.id, key: key}
	}
	return keyRef{owner: s.owner, scope: s.id, key: key, namesNoSession: of.SessionID == "" && (of.Session == "" || of.Session == defaultSession)}
}

// keyID stands for a newKeyRef in the table, so that an entry is small whatever clients call their keys.
type keyID [16]byte

// ids are the names of a request in the table: its session's, and its principal's, which is zero unless no session was named.
func (r keyRef) ids() (own, alias keyID) {
	own = idOf(r.owner, r.guest, r.scope, r.key)
	if r.namesNoSession {
		alias = idOf(r.owner, r.guest, defaultSession, r.key)
	}
	return own, alias
}

func idOf(parts ...string) (id keyID) {
	var text []byte
	for _, p := range parts {
		text = binary.AppendUvarint(text, uint64(len(p)))
		text = append(text, p...)
	}
	sum := sha256.Sum256(text)
	copy(id[:], sum[:])
	return id
}

// fingerprint is what two requests with one key must share: the method and every param but the words for the session.
type fingerprint [16]byte

func fingerprintOf(method string, params any) (f fingerprint) {
	text, err := json.Marshal(params, json.Deterministic(true))
	if err != nil {
		panic(err) // params were decoded from JSON
	}
	sum := sha256.Sum256(append([]byte(method), text...))
	copy(f[:], sum[:])
	return f
}

// keyedRequest is one remembered request.
type keyedRequest struct {
	own, alias  keyID // alias is zero where there is none
	params      fingerprint
	count       *keyCount
	made        chan struct{} // closed when value or err is set
	value       any           // guarded by keys.mu: what the request made, or a tombstone of that
	err         error         // set once before made is closed
	completedAt clock.Uptime  // guarded by keys.mu; 0 until completed
}

// tombstone stands for what was made by a request, when only its answer is kept. again makes that anew.
type tombstone interface{ answer() any }

// keyCount is how many keys a principal has. All of it is guarded by keys.mu.
type keyCount struct {
	principal string
	n         int
}

// requestKeys remembers requests with a request_key, so that a retry gets the first one's result and nothing runs twice.
type requestKeys struct {
	mu             sync.Mutex
	entries        map[keyID]*keyedRequest
	counts         map[string]*keyCount
	count          int             // entries, without their aliases
	completed      []*keyedRequest // oldest first; some are forgotten already
	maxOfPrincipal int             // of one principal; 0: DefaultMaxKeys
	maxOfAll       int             // of all; 0: maxKeysOfAll
}

// closedChan is a channel that is.
var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// once is onceIn. What another gateway knew of keys that are not a session's own is waited for.
func once[T any](ctx context.Context, p *Pool, ref keyRef, params fingerprint, start func() (T, error)) (T, error) {
	if ref.namesNoSession || ref.scope == "" {
		if err := p.awaitRecovered(""); err != nil {
			var none T
			return none, err
		}
	}
	return onceIn(ctx, &p.requestKeys, ref, params, start)
}

// onceIn returns what start made under this key, starting it unless that was done before. What fails is forgotten.
func onceIn[T any](ctx context.Context, k *requestKeys, ref keyRef, params fingerprint, start func() (T, error)) (T, error) {
	var none T
	e, first, err := k.findOrAdd(ref, params)
	if err != nil {
		return none, err
	}
	if !first {
		if e.params != params {
			return none, protocol.InvalidParam("request_key", "request_key was used with other params")
		}
		select {
		case <-e.made:
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
		if e.err != nil {
			return none, e.err
		}
		k.mu.Lock()
		value := e.value
		k.mu.Unlock()
		if value == nil { // its time was over while we looked
			return onceIn(ctx, k, ref, params, start)
		}
		if kept, ok := value.(tombstone); ok {
			value = kept.answer()
		}
		return value.(T), nil
	}
	made := e.made
	defer close(made) // also when start panics: those who joined must not wait for ever
	value, err := start()
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.err = err; err != nil {
		k.removeLocked(e)
	} else if e.value == nil { // else it has ended meanwhile, and that is kept
		e.value = value
	}
	return value, err
}

// findOrAdd finds the request, or makes an entry for it, or says why there is no place for one.
func (k *requestKeys) findOrAdd(ref keyRef, params fingerprint) (e *keyedRequest, first bool, err error) {
	own, alias := ref.ids()
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.entries[own]; e != nil {
		return e, false, nil
	}
	if e := k.entries[alias]; alias != (keyID{}) && e != nil {
		return e, false, nil
	}
	most := cmp.Or(k.maxOfPrincipal, DefaultMaxKeys)
	if c := k.counts[ref.owner]; c != nil && (c.n >= most || k.count >= cmp.Or(k.maxOfAll, maxKeysOfAll) && c.n >= k.count/len(k.counts)) {
		return nil, false, protocol.Errorf(protocol.LimitExceeded, "%d request keys are remembered, each for 10 minutes; send the request without one, or later", c.n).
			With("limit", most).With("field", "request_key")
	}
	e = &keyedRequest{own: own, alias: alias, params: params, made: make(chan struct{}), err: errors.New("request was abandoned")}
	k.addLocked(ref.owner, e)
	return e, true, nil
}

// setLimit sets how many a principal may have from now on.
func (k *requestKeys) setLimit(most int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.maxOfPrincipal = most
}

func (k *requestKeys) addLocked(who string, e *keyedRequest) {
	if k.entries == nil {
		k.entries, k.counts = map[keyID]*keyedRequest{}, map[string]*keyCount{}
	}
	if e.count = k.counts[who]; e.count == nil {
		e.count = &keyCount{principal: who}
		k.counts[who] = e.count
	}
	e.count.n++
	k.count++
	k.entries[e.own] = e
	if e.alias != (keyID{}) {
		k.entries[e.alias] = e
	}
}

// removeLocked forgets e, unless that was done.
func (k *requestKeys) removeLocked(e *keyedRequest) {
	known := false
	for _, id := range []keyID{e.own, e.alias} {
		if k.entries[id] == e {
			delete(k.entries, id)
			known = true
		}
	}
	if !known {
		return
	}
	k.count--
	if e.count.n--; e.count.n == 0 {
		delete(k.counts, e.count.principal)
	}
}

// find is the entry of a request, nil: none.
func (k *requestKeys) find(ref keyRef) *keyedRequest {
	own, _ := ref.ids()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[own]
}

// complete starts the clock of a key.
func (k *requestKeys) complete(ref keyRef, now time.Time) {
	own, _ := ref.ids()
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entries[own]
	if e == nil || e.completedAt != 0 {
		return
	}
	e.completedAt = clock.UptimeAt(now)
	k.completed = append(k.completed, e)
}

// drop forgets a key whose request turned out not to have run.
func (k *requestKeys) drop(ref keyRef) {
	own, _ := ref.ids()
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.entries[own]; e != nil {
		k.removeLocked(e)
	}
}

// remove forgets an entry, and what it holds.
func (k *requestKeys) remove(e *keyedRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeLocked(e)
	e.value = nil
}

// replaceByTombstone puts a tombstone in the place of what has ended.
func (k *requestKeys) replaceByTombstone(e *keyedRequest, value tombstone) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.value = value
}

// dropExpired drops the keys whose time is over.
func (k *requestKeys) dropExpired(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	over := clock.UptimeAt(now.Add(-keyRetention))
	n := 0
	for n < len(k.completed) && k.completed[n].completedAt <= over {
		k.removeLocked(k.completed[n])
		k.completed[n] = nil
		n++
	}
	k.completed = k.completed[n:] // append moves the rest down when it next grows
	if len(k.completed) == 0 {
		k.completed = nil
	}
}

// isExpired says that nobody can ask with e any more.
func (k *requestKeys) isExpired(e *keyedRequest, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[e.own] != e || e.completedAt != 0 && e.completedAt <= clock.UptimeAt(now.Add(-keyRetention))
}

// restore remembers a request of another gateway's time; done is zero while it is under way. Of two that have the same alias, the later
// one keeps it.
func (k *requestKeys) restore(who string, e *keyedRequest, value any, done time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.made, e.value = closedChan, value
	if !done.IsZero() {
		e.completedAt = clock.UptimeAt(done)
		k.completed = append(k.completed, e)
	}
	other := k.entries[e.alias]
	if e.alias == (keyID{}) {
		other = nil
	}
	k.addLocked(who, e)
	if other != nil && (other.completedAt == 0 || e.completedAt != 0 && other.completedAt > e.completedAt) {
		k.entries[e.alias] = other
	}
}

// sort puts what was restored in order.
func (k *requestKeys) sort() {
	k.mu.Lock()
	defer k.mu.Unlock()
	slices.SortStableFunc(k.completed, func(a, b *keyedRequest) int { return cmp.Compare(a.completedAt, b.completedAt) })
}
