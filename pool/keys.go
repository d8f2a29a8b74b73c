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

	"trl/protocol"
)

// keyTime is PROTOCOL.md's §4, from completion: a retry of a long command must find it, too.
const keyTime = 10 * time.Minute

const (
	// A key that was promised for ten minutes is not forgotten before: who has too many is refused another one. One takes some 400 bytes.
	DefaultMaxKeys = 250_000   // of one principal
	manyKeys       = 1_000_000 // of all: beyond it, who has more than an equal share is refused
)

// keyRef is whose request_key, where: scope is the session of an exec, a process or a terminal, and "" for session.create. guest is the
// id of the share that it came by, "" for the owner's own.
//
// A request that names no session (or the default one by its name) is also known by its principal alone: tried again, it may meet
// another default session, and must not run there. unnamed says so.
type keyRef struct {
	who, guest, scope, key string
	unnamed                bool
}

func (s *Session) keyRef(key string, of protocol.SessionRef, by *Share) keyRef {
	if by != nil {
		return keyRef{who: s.owner, guest: by.id, scope: s.id, key: key}
	}
	return keyRef{who: s.owner, scope: s.id, key: key, unnamed: of.SessionID == "" && (of.Session == "" || of.Session == defaultSession)}
}

// keyID stands for a keyRef in the table, so that an entry is small whatever clients call their keys.
type keyID [16]byte

// ids are the names of a request in the table: its session's, and its principal's, which is zero unless no session was named.
func (r keyRef) ids() (own, alias keyID) {
	own = idOf(r.who, r.guest, r.scope, r.key)
	if r.unnamed {
		alias = idOf(r.who, r.guest, defaultSession, r.key)
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

// keyed is one remembered request.
type keyed struct {
	own, alias keyID // alias is zero where there is none
	params     fingerprint
	count      *keyCount
	made       chan struct{} // closed when value or err is set
	value      any           // guarded by keys.mu: what the request made, or an epitaph of that
	err        error         // set once before made is closed
	done       uptime        // guarded by keys.mu; 0 until completed
}

// epitaph stands for what was made by a request, when only its answer is kept. again makes that anew.
type epitaph interface{ again() any }

// keyCount is how many keys a principal has. All of it is guarded by keys.mu.
type keyCount struct {
	who string
	n   int
}

// keys remembers requests with a request_key, so that a retry gets the first one's result and nothing runs twice.
type keys struct {
	mu        sync.Mutex
	entries   map[keyID]*keyed
	counts    map[string]*keyCount
	all       int      // entries, without their aliases
	completed []*keyed // oldest first; some are forgotten already
	most      int      // of one principal; 0: DefaultMaxKeys
	many      int      // of all; 0: manyKeys
}

// closed is a channel that is.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// once is onceIn. What another gateway knew of keys that are not a session's own is waited for.
func once[T any](ctx context.Context, p *Pool, ref keyRef, params fingerprint, start func() (T, error)) (T, error) {
	if ref.unnamed || ref.scope == "" {
		if err := p.await(""); err != nil {
			var none T
			return none, err
		}
	}
	return onceIn(ctx, &p.keys, ref, params, start)
}

// onceIn returns what start made under this key, starting it unless that was done before. What fails is forgotten.
func onceIn[T any](ctx context.Context, k *keys, ref keyRef, params fingerprint, start func() (T, error)) (T, error) {
	var none T
	e, first, err := k.enter(ref, params)
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
		if kept, ok := value.(epitaph); ok {
			value = kept.again()
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

// enter finds the request, or makes an entry for it, or says why there is no place for one.
func (k *keys) enter(ref keyRef, params fingerprint) (e *keyed, first bool, err error) {
	own, alias := ref.ids()
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.entries[own]; e != nil {
		return e, false, nil
	}
	if e := k.entries[alias]; alias != (keyID{}) && e != nil {
		return e, false, nil
	}
	most := cmp.Or(k.most, DefaultMaxKeys)
	if c := k.counts[ref.who]; c != nil && (c.n >= most || k.all >= cmp.Or(k.many, manyKeys) && c.n >= k.all/len(k.counts)) {
		return nil, false, protocol.Errorf(protocol.LimitExceeded, "%d request keys are remembered, each for 10 minutes; send the request without one, or later", c.n).
			With("limit", most).With("field", "request_key")
	}
	e = &keyed{own: own, alias: alias, params: params, made: make(chan struct{}), err: errors.New("request was abandoned")}
	k.addLocked(ref.who, e)
	return e, true, nil
}

// bound sets how many a principal may have from now on.
func (k *keys) bound(most int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.most = most
}

func (k *keys) addLocked(who string, e *keyed) {
	if k.entries == nil {
		k.entries, k.counts = map[keyID]*keyed{}, map[string]*keyCount{}
	}
	if e.count = k.counts[who]; e.count == nil {
		e.count = &keyCount{who: who}
		k.counts[who] = e.count
	}
	e.count.n++
	k.all++
	k.entries[e.own] = e
	if e.alias != (keyID{}) {
		k.entries[e.alias] = e
	}
}

// removeLocked forgets e, unless that was done.
func (k *keys) removeLocked(e *keyed) {
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
	k.all--
	if e.count.n--; e.count.n == 0 {
		delete(k.counts, e.count.who)
	}
}

// find is the entry of a request, nil: none.
func (k *keys) find(ref keyRef) *keyed {
	own, _ := ref.ids()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[own]
}

// complete starts the clock of a key.
func (k *keys) complete(ref keyRef, now time.Time) {
	own, _ := ref.ids()
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entries[own]
	if e == nil || e.done != 0 {
		return
	}
	e.done = uptimeAt(now)
	k.completed = append(k.completed, e)
}

// drop forgets a key whose request turned out not to have run.
func (k *keys) drop(ref keyRef) {
	own, _ := ref.ids()
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.entries[own]; e != nil {
		k.removeLocked(e)
	}
}

// remove forgets an entry, and what it holds.
func (k *keys) remove(e *keyed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeLocked(e)
	e.value = nil
}

// bury puts an epitaph in the place of what has ended.
func (k *keys) bury(e *keyed, value epitaph) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.value = value
}

// forget drops the keys whose time is over.
func (k *keys) forget(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	over := uptimeAt(now.Add(-keyTime))
	n := 0
	for n < len(k.completed) && k.completed[n].done <= over {
		k.removeLocked(k.completed[n])
		k.completed[n] = nil
		n++
	}
	k.completed = k.completed[n:] // append moves the rest down when it next grows
	if len(k.completed) == 0 {
		k.completed = nil
	}
}

// isOver says that nobody can ask with e any more.
func (k *keys) isOver(e *keyed, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[e.own] != e || e.done != 0 && e.done <= uptimeAt(now.Add(-keyTime))
}

// restore remembers a request of another gateway's time; done is zero while it is under way. Of two that have the same alias, the later
// one keeps it.
func (k *keys) restore(who string, e *keyed, value any, done time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e.made, e.value = closed, value
	if !done.IsZero() {
		e.done = uptimeAt(done)
		k.completed = append(k.completed, e)
	}
	other := k.entries[e.alias]
	if e.alias == (keyID{}) {
		other = nil
	}
	k.addLocked(who, e)
	if other != nil && (other.done == 0 || e.done != 0 && other.done > e.done) {
		k.entries[e.alias] = other
	}
}

// sort puts what was restored in order.
func (k *keys) sort() {
	k.mu.Lock()
	defer k.mu.Unlock()
	slices.SortStableFunc(k.completed, func(a, b *keyed) int { return cmp.Compare(a.done, b.done) })
}
