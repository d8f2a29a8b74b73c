// Package claims gets names and request keys for a pool's sessions in the directory of a cluster, where each belongs to one session of all nodes.
// Without a directory there is one node, and its pool's own table decides.
package claims

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Directory is what the nodes of a cluster share. Claims wait for it, at most for the directory's own bound, and fail with its error then. The
// pool holds no lock meanwhile, but for SetLive and Rebuild, which only note something and do not wait.
type Directory interface {
	// ClaimName gives a principal's name to a session, or returns the session that has it: of all that claim it at the same time, one wins.
	ClaimName(ctx context.Context, principal, name, session string) (owner string, err error)
	// ClaimKey does the same with the request key of a session.create.
	ClaimKey(ctx context.Context, principal, key, session string) (owner string, err error)
	// ReleaseName frees a name if the session has it. If ctx ends first, the directory frees the name later.
	ReleaseName(ctx context.Context, principal, name, session string)
	// ReleaseKey is ReleaseName for a request key.
	ReleaseKey(ctx context.Context, principal, key, session string)
	// LiveElsewhere returns how many live sessions a principal has on other nodes, as far as that is known.
	LiveElsewhere(principal string) int
	// SetLive tells how many live sessions a principal has on this node.
	SetLive(principal string, live int)
	// TakeOver tells that a session of another node is on this one now. It does not wait: the directory writes that until it has succeeded.
	TakeOver(m Moved)
	// AwaitTakeOver returns when everything is written that TakeOver was told. If ctx ends first, it fails.
	AwaitTakeOver(ctx context.Context) error
	// MovesAway tells that another node is about to take over a session of this one. Until GiveUp nobody else gets its name. It does not wait.
	MovesAway(m Moved)
	// GiveUp tells that another node has taken over a session of this one. It frees nothing, and does not wait.
	GiveUp(m Moved)
	// ReleaseMoved tells that a session that has moved here has ended. It frees the name also if the node that had the session has it in the directory.
	ReleaseMoved(ctx context.Context, m Moved)
	// Rebuild tells what this node has, once, when its sessions are restored.
	Rebuild(names []Name, moved []Moved, live map[string]int)
}

// Name is a name of a session of this node.
type Name struct {
	Principal, Name, Session string
	Left                     bool // see Directory.MovesAway
}

// Wanted is what a session is to have; empty fields are not claimed.
type Wanted struct{ Principal, Name, Key, Session string }

// Moved is a session that is not on the node that made it.
type Moved struct {
	Wanted
	Marks []string // by which requests find it: its id, and the marks of its work from other nodes
}

// TakenError says that another session has the name, or comes from the request with the key.
type TakenError struct{ Session string }

func (e *TakenError) Error() string { return fmt.Sprintf("taken by session %s", e.Session) }

// Table claims for one pool. A nil *Table is that of a single node: it grants everything and knows of nobody else.
type Table struct {
	directory Directory
	isOpen    func(session string) (ours, open bool)

	mu   sync.Mutex
	busy map[[2]string]chan struct{} // names that are being claimed, by principal and name; closed when that is over
}

// New returns the Table of a directory, nil for nil. isOpen reports whether an id is of this node, and whether its session is open.
func New(d Directory, isOpen func(session string) (ours, open bool)) *Table {
	if d == nil {
		return nil
	}
	return &Table{directory: d, isOpen: isOpen, busy: map[[2]string]chan struct{}{}}
}

// bound is how long a claim takes at most, including the wait for another claim of the same name.
const bound = 10 * time.Second

// releaseWait is how long a release is waited for. What is not freed by then, the directory frees later.
const releaseWait = time.Second

// Claim is what Take got. Settle ends it. A nil *Claim is empty.
type Claim struct {
	table  *Table
	got    Wanted
	unlock func()
}

// Take claims what w wants, or returns a *TakenError. Until Settle, other calls of Take for the same name of the same principal wait: the session that
// they lose to is in the pool's tables then.
func (t *Table) Take(w Wanted) (*Claim, error) {
	if t == nil || w.Name == "" && w.Key == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	c := &Claim{table: t, got: Wanted{Principal: w.Principal, Session: w.Session}, unlock: t.lock(ctx, w)}
	d := t.directory
	err := t.claim(ctx, d.ClaimKey, d.ReleaseKey, w, w.Key, &c.got.Key)
	if err == nil {
		err = t.claim(ctx, d.ClaimName, d.ReleaseName, w, w.Name, &c.got.Name)
	}
	if err != nil {
		c.Settle(false)
		return nil, err
	}
	return c, nil
}

type (
	claimFunc   = func(ctx context.Context, principal, value, session string) (owner string, err error)
	releaseFunc = func(ctx context.Context, principal, value, session string)
)

// claim claims a name or a key, and sets got to it.
func (t *Table) claim(ctx context.Context, claim claimFunc, release releaseFunc, w Wanted, value string, got *string) error {
	if value == "" {
		return nil
	}
	for released := ""; ; {
		owner, err := claim(ctx, w.Principal, value, w.Session)
		if err != nil {
			return err
		}
		if owner == w.Session {
			*got = value
			return nil
		}
		if ours, open := t.isOpen(owner); !ours || open || ctx.Err() != nil || owner == released { // released: it was made here, and another node has it
			return &TakenError{owner}
		}
		released = owner
		release(ctx, w.Principal, value, owner) // that session is ending, or has ended
	}
}

// lock waits until no other goroutine claims the name, and keeps others out until unlock. If ctx ends first, the claim that follows fails.
func (t *Table) lock(ctx context.Context, w Wanted) (unlock func()) {
	if w.Name == "" {
		return func() {}
	}
	k, done := [2]string{w.Principal, w.Name}, make(chan struct{})
	for {
		t.mu.Lock()
		other := t.busy[k]
		if other == nil {
			t.busy[k] = done
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.busy, k)
				t.mu.Unlock()
				close(done)
			}
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return func() {}
		}
	}
}

// Settle ends a claim: the session is in the pool's tables, or it was not made and everything is free again.
func (c *Claim) Settle(kept bool) {
	if c == nil {
		return
	}
	if !kept {
		<-c.table.Release(c.got)
	}
	c.unlock()
}

// Release begins to free what a session had. freed is closed when others can have it, or soon after.
func (t *Table) Release(w Wanted) (freed <-chan struct{}) {
	done := make(chan struct{})
	if t == nil || w.Name == "" && w.Key == "" {
		close(done)
		return done
	}
	go func() { // ends after releaseWait; who gave the session up waits for it
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), releaseWait)
		defer cancel()
		if w.Name != "" {
			t.directory.ReleaseName(ctx, w.Principal, w.Name, w.Session)
		}
		if w.Key != "" {
			t.directory.ReleaseKey(ctx, w.Principal, w.Key, w.Session)
		}
	}()
	return done
}

// LiveElsewhere is Directory.LiveElsewhere.
func (t *Table) LiveElsewhere(principal string) int {
	if t == nil {
		return 0
	}
	return t.directory.LiveElsewhere(principal)
}

// SetLive is Directory.SetLive.
func (t *Table) SetLive(principal string, live int) {
	if t != nil {
		t.directory.SetLive(principal, live)
	}
}

// Rebuild is Directory.Rebuild. owned returns what this node has.
func (t *Table) Rebuild(owned func() ([]Name, []Moved, map[string]int)) {
	if t != nil {
		t.directory.Rebuild(owned())
	}
}

// TakeOver is Directory.TakeOver.
func (t *Table) TakeOver(m Moved) {
	if t != nil {
		t.directory.TakeOver(m)
	}
}

// takeOverWait is how long AwaitTakeOver waits for the directory.
const takeOverWait = 2 * time.Second

// AwaitTakeOver is Directory.AwaitTakeOver.
func (t *Table) AwaitTakeOver() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeOverWait)
	defer cancel()
	return t.directory.AwaitTakeOver(ctx)
}

// MovesAway is Directory.MovesAway.
func (t *Table) MovesAway(m Moved) {
	if t != nil {
		t.directory.MovesAway(m)
	}
}

// GiveUp is Directory.GiveUp.
func (t *Table) GiveUp(m Moved) {
	if t != nil {
		t.directory.GiveUp(m)
	}
}

// ReleaseEnded is Release for a session that has ended, wherever it was made.
func (t *Table) ReleaseEnded(m Moved) (freed <-chan struct{}) {
	if t == nil || len(m.Marks) == 0 {
		return t.Release(m.Wanted)
	}
	done := make(chan struct{})
	go func() { // ends after releaseWait; the directory goes on later
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), releaseWait)
		defer cancel()
		t.directory.ReleaseMoved(ctx, m)
	}()
	return done
}
