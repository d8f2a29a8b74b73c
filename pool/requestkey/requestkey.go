// Package requestkey remembers requests by their request_key, so that a request that is sent twice runs once.
package requestkey

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

// Retention is how long a key is remembered after its request has completed (PROTOCOL.md, Request keys). It does not begin earlier, because
// the retry of a long command must find the key, too.
const Retention = 10 * time.Minute

// A key that was promised for ten minutes is not forgotten earlier. A principal that has too many keys is therefore refused another one.
// A key takes about 400 bytes.
const (
	DefaultMax      = 250_000   // keys of one principal
	defaultMaxOfAll = 1_000_000 // keys of all; beyond it, a principal that has more than an equal share is refused
)

// A Ref is a request_key, its owner and where the key counts.
//
// A request that names no session, or the default session by its name, is also known by its owner alone: a retry may meet another default
// session, and must not run there.
type Ref struct {
	Owner          string
	Guest          string // id of the share link by which the request came; "": the owner sent it
	Scope          string // the session of an exec, a process or a terminal; "" for session.create
	Key            string
	NamesNoSession bool
}

// An ID stands for a Ref in the table, so that an entry is small however long the key is.
type ID [16]byte

// aliasScope is the scope of a request's second ID. Session logs hold such IDs, so it must not change.
const aliasScope = "default"

// ids returns the IDs of a request: that of its session, and that of its owner, which is zero if the request named a session.
func (r Ref) ids() (own, alias ID) {
	own = newID(r.Owner, r.Guest, r.Scope, r.Key)
	if r.NamesNoSession {
		alias = newID(r.Owner, r.Guest, aliasScope, r.Key)
	}
	return own, alias
}

func newID(parts ...string) (id ID) {
	var text []byte
	for _, p := range parts {
		text = binary.AppendUvarint(text, uint64(len(p)))
		text = append(text, p...)
	}
	sum := sha256.Sum256(text)
	copy(id[:], sum[:])
	return id
}

// A Fingerprint is equal for two requests with the same method and the same params, apart from those that name the session.
type Fingerprint [16]byte

// FingerprintOf returns the fingerprint of a request.
func FingerprintOf(method string, params any) (f Fingerprint) {
	text, err := json.Marshal(params, json.Deterministic(true))
	if err != nil {
		panic(err) // params were decoded from JSON
	}
	sum := sha256.Sum256(append([]byte(method), text...))
	copy(f[:], sum[:])
	return f
}

// A Request is a remembered request.
type Request struct {
	Own, Alias  ID // Alias is zero if there is none
	Params      Fingerprint
	count       *principalCount
	made        chan struct{} // closed when value or err is set
	value       any           // guarded by Table.mu; what the request made, or the Tombstone of that
	err         error         // set once before made is closed
	completedAt clock.Uptime  // guarded by Table.mu; 0 until the request has completed
}

// New makes the request that a session log has, for Restore.
func New(ref Ref, params []byte) *Request {
	q := &Request{}
	q.Own, q.Alias = ref.ids()
	copy(q.Params[:], params)
	return q
}

// A Tombstone stands for what a request made when only the answer to a retry is kept. Answer makes that thing anew.
type Tombstone interface{ Answer() any }

// principalCount is how many keys a principal has. Guarded by Table.mu.
type principalCount struct {
	principal string
	n         int
}

// A Table has all remembered requests. The zero Table is empty.
type Table struct {
	maxOfAll int // set once in SetMaxOfAll; 0: defaultMaxOfAll

	mu             sync.Mutex
	requests       map[ID]*Request
	counts         map[string]*principalCount
	count          int        // requests, without their aliases
	completed      []*Request // oldest first; some may be forgotten already
	maxOfPrincipal int        // 0: DefaultMax
}

// SetMaxOfAll sets how many keys all principals may have together. It is called before the table is used.
func (t *Table) SetMaxOfAll(most int) { t.maxOfAll = most }

// SetMax sets how many keys a principal may have from now on.
func (t *Table) SetMax(most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.maxOfPrincipal = most
}

// Once returns what start made under this key. It calls start if no earlier request with the key is remembered. A request that fails is
// forgotten.
func Once[T any](ctx context.Context, t *Table, ref Ref, params Fingerprint, start func() (T, error)) (T, error) {
	var none T
	q, first, err := t.findOrAdd(ref, params)
	if err != nil {
		return none, err
	}
	if !first {
		if q.Params != params {
			return none, protocol.InvalidParam("request_key", "request_key was used with other params")
		}
		select {
		case <-q.made:
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
		if q.err != nil {
			return none, q.err
		}
		t.mu.Lock()
		value := q.value
		t.mu.Unlock()
		if value == nil { // the request was forgotten meanwhile
			return Once(ctx, t, ref, params, start)
		}
		if kept, ok := value.(Tombstone); ok {
			value = kept.Answer()
		}
		return value.(T), nil
	}
	made := q.made
	defer close(made) // also when start panics: the retries that wait for it must not wait for ever
	value, err := start()
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.err = err; err != nil {
		t.removeLocked(q)
	} else if q.value == nil { // else the work has ended already, and the value is its tombstone
		q.value = value
	}
	return value, err
}

// findOrAdd finds a request or adds it. It fails if the principal may have no more keys.
func (t *Table) findOrAdd(ref Ref, params Fingerprint) (q *Request, first bool, err error) {
	own, alias := ref.ids()
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.requests[own]; q != nil {
		return q, false, nil
	}
	if q := t.requests[alias]; alias != (ID{}) && q != nil {
		return q, false, nil
	}
	most := cmp.Or(t.maxOfPrincipal, DefaultMax)
	if c := t.counts[ref.Owner]; c != nil && (c.n >= most || t.count >= cmp.Or(t.maxOfAll, defaultMaxOfAll) && c.n >= t.count/len(t.counts)) {
		return nil, false, protocol.Errorf(protocol.LimitExceeded, "%d request keys are remembered, each for 10 minutes; send the request without one, or later", c.n).
			With("limit", most).With("field", "request_key")
	}
	q = &Request{Own: own, Alias: alias, Params: params, made: make(chan struct{}), err: errors.New("request was abandoned")}
	t.addLocked(ref.Owner, q)
	return q, true, nil
}

func (t *Table) addLocked(owner string, q *Request) {
	if t.requests == nil {
		t.requests, t.counts = map[ID]*Request{}, map[string]*principalCount{}
	}
	if q.count = t.counts[owner]; q.count == nil {
		q.count = &principalCount{principal: owner}
		t.counts[owner] = q.count
	}
	q.count.n++
	t.count++
	t.requests[q.Own] = q
	if q.Alias != (ID{}) {
		t.requests[q.Alias] = q
	}
}

// removeLocked forgets q, unless it is forgotten already.
func (t *Table) removeLocked(q *Request) {
	known := false
	for _, id := range []ID{q.Own, q.Alias} {
		if t.requests[id] == q {
			delete(t.requests, id)
			known = true
		}
	}
	if !known {
		return
	}
	t.count--
	if q.count.n--; q.count.n == 0 {
		delete(t.counts, q.count.principal)
	}
}

// Find returns the remembered request, or nil.
func (t *Table) Find(ref Ref) *Request {
	own, _ := ref.ids()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requests[own]
}

// Complete starts the retention time of a key. The zero Ref is no key.
func (t *Table) Complete(ref Ref, now time.Time) {
	if ref == (Ref{}) {
		return
	}
	own, _ := ref.ids()
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.requests[own]
	if q == nil || q.completedAt != 0 {
		return
	}
	q.completedAt = clock.UptimeAt(now)
	t.completed = append(t.completed, q)
}

// Drop forgets a key whose request was accepted and then did not run. The zero Ref is no key.
func (t *Table) Drop(ref Ref) {
	if ref == (Ref{}) {
		return
	}
	own, _ := ref.ids()
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.requests[own]; q != nil {
		t.removeLocked(q)
	}
}

// Remove forgets a request, and what it made.
func (t *Table) Remove(q *Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(q)
	q.value = nil
}

// KeepTombstone replaces what a request made, and what has ended, by its tombstone.
func (t *Table) KeepTombstone(q *Request, kept Tombstone) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q.value = kept
}

// DropExpired forgets the keys whose retention time is over.
func (t *Table) DropExpired(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	over := clock.UptimeAt(now.Add(-Retention))
	n := 0
	for n < len(t.completed) && t.completed[n].completedAt <= over {
		t.removeLocked(t.completed[n])
		t.completed[n] = nil
		n++
	}
	t.completed = t.completed[n:] // append moves the rest down when it next grows
	if len(t.completed) == 0 {
		t.completed = nil
	}
}

// IsExpired reports whether no retry can find q any more.
func (t *Table) IsExpired(q *Request, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requests[q.Own] != q || q.completedAt != 0 && q.completedAt <= clock.UptimeAt(now.Add(-Retention))
}

// Restore remembers a request of an earlier gateway. completed is zero while the request is under way. If another request has the same
// alias, the later one of the two keeps it.
func (t *Table) Restore(owner string, q *Request, value any, completed time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q.made, q.value = alreadyMade, value
	if !completed.IsZero() {
		q.completedAt = clock.UptimeAt(completed)
		t.completed = append(t.completed, q)
	}
	other := t.requests[q.Alias]
	if q.Alias == (ID{}) {
		other = nil
	}
	t.addLocked(owner, q)
	if other != nil && (other.completedAt == 0 || q.completedAt != 0 && other.completedAt > q.completedAt) {
		t.requests[q.Alias] = other
	}
}

// alreadyMade is the made channel of all restored requests.
var alreadyMade = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Sort puts the restored requests in the order of their completion.
func (t *Table) Sort() {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.completed, func(a, b *Request) int { return cmp.Compare(a.completedAt, b.completedAt) })
}
