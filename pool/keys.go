package pool

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"trl/protocol"
)

const (
	keyTime = 10 * time.Minute // PROTOCOL.md §4, from completion: a retry of a long command must find it, too
	maxKeys = 10_000           // completed ones; what is under way is bounded by sessions and their queues
)

// keyRef is whose request_key, where: scope is the session of an exec, a process or a terminal, "default" for all that are that one by
// turns, and "" for session.create. guest is the id of the share that it came by, "" for the owner's own.
type keyRef struct{ who, guest, scope, key string }

// keyRef: a request that names no session, tried again, meets another one when the first has ended. It must not run there again. A guest's
// is always its session's: the others that are the default one by turns are not for it.
func (s *Session) keyRef(key string, by *Share) keyRef {
	if by != nil {
		return keyRef{s.owner, by.id, s.id, key}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name == defaultSession {
		return keyRef{s.owner, "", defaultSession, key}
	}
	return keyRef{s.owner, "", s.id, key}
}

// keyed is one remembered request.
type keyed struct {
	params [sha256.Size]byte
	made   chan struct{} // closed when value or err is set
	value  any           // guarded by keys.mu: *Session, *Exec, *Process or *Terminal
	err    error         // set once before made is closed
	done   time.Time     // guarded by keys.mu; zero until completed
}

// keys remembers requests with a request_key, so that a retry gets the first one's result and nothing runs twice.
type keys struct {
	mu        sync.Mutex
	entries   map[keyRef]*keyed
	completed []completedKey // oldest first; entries replaced since are skipped
}

type completedKey struct {
	ref   keyRef
	entry *keyed
}

// fingerprint is what two requests with one key must share: the method and every param but the words for the session.
func fingerprint(method string, params any) [sha256.Size]byte {
	text, err := json.Marshal(params, json.Deterministic(true))
	if err != nil {
		panic(err) // params were decoded from JSON
	}
	return sha256.Sum256(append([]byte(method), text...))
}

// once returns what start made under this key, starting it unless that was done before. What fails is forgotten.
func once[T any](ctx context.Context, k *keys, ref keyRef, params [sha256.Size]byte, start func() (T, error)) (T, error) {
	var none T
	k.mu.Lock()
	if k.entries == nil {
		k.entries = map[keyRef]*keyed{}
	}
	if e := k.entries[ref]; e != nil {
		k.mu.Unlock()
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
		defer k.mu.Unlock()
		return e.value.(T), nil
	}
	e := &keyed{params: params, made: make(chan struct{}), err: errors.New("request was abandoned")}
	k.entries[ref] = e
	k.mu.Unlock()

	defer close(e.made) // also when start panics: those who joined must not wait for ever
	value, err := start()
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.err = err; err == nil {
		e.value = value
	} else if k.entries[ref] == e {
		delete(k.entries, ref)
	}
	return value, err
}

// complete starts the clock of a key.
func (k *keys) complete(ref keyRef, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entries[ref]
	if e == nil || !e.done.IsZero() {
		return
	}
	e.done = now
	k.completed = append(k.completed, completedKey{ref, e})
	if len(k.completed) > maxKeys {
		k.dropOldestLocked()
	}
}

// drop forgets a key whose request turned out not to have run.
func (k *keys) drop(ref keyRef) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.entries, ref)
}

// replace puts a lighter value in the place of one whose output is no longer kept.
func (k *keys) replace(ref keyRef, value any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.entries[ref]; e != nil && e.value != nil {
		e.value = value
	}
}

// forget drops the keys whose time is over.
func (k *keys) forget(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.completed) > 0 && now.Sub(k.completed[0].entry.done) >= keyTime {
		k.dropOldestLocked()
	}
}

// forgetScope drops the keys of a session that is not known any more: nobody can ask with them, and they would hold it.
func (k *keys) forgetScope(scope string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.completed {
		c := &k.completed[i]
		if c.ref.scope != scope {
			continue
		}
		if k.entries[c.ref] == c.entry {
			delete(k.entries, c.ref)
		}
		c.entry = &keyed{done: c.entry.done} // its place in the order
	}
}

func (k *keys) dropOldestLocked() {
	oldest := k.completed[0]
	k.completed[0] = completedKey{}
	k.completed = k.completed[1:] // append moves the rest down when it next grows
	if k.entries[oldest.ref] == oldest.entry {
		delete(k.entries, oldest.ref)
	}
}

// restore remembers a request of another gateway's time; done is zero while it is under way.
func (k *keys) restore(ref keyRef, params []byte, value any, done time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.entries == nil {
		k.entries = map[keyRef]*keyed{}
	}
	if e := k.entries[ref]; e != nil && !done.IsZero() && (e.done.IsZero() || e.done.After(done)) {
		return // of a default session after this one
	}
	e := &keyed{made: make(chan struct{}), value: value, done: done}
	copy(e.params[:], params)
	close(e.made)
	k.entries[ref] = e
	if !done.IsZero() {
		k.completed = append(k.completed, completedKey{ref, e})
	}
}

// sort puts what was restored in order.
func (k *keys) sort() {
	k.mu.Lock()
	defer k.mu.Unlock()
	slices.SortStableFunc(k.completed, func(a, b completedKey) int { return cmp.Compare(a.entry.done.UnixNano(), b.entry.done.UnixNano()) })
}
