package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"trl/internal/testkit"
	"trl/pool/claims"
	"trl/pool/ids"
	"trl/protocol"
)

// fakeDirectory is a directory in memory. Another node has what is in owners from the start.
type fakeDirectory struct {
	mu        sync.Mutex
	owners    map[string]string // principal, name or key: session
	live      map[string]int
	elsewhere int
	rebuilt   int
	down      error
}

func newFakeDirectory() *fakeDirectory {
	return &fakeDirectory{owners: map[string]string{}, live: map[string]int{}}
}

func (d *fakeDirectory) claim(key, session string) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down != nil {
		return "", d.down
	}
	if d.owners[key] == "" {
		d.owners[key] = session
	}
	return d.owners[key], nil
}

func (d *fakeDirectory) release(key, session string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owners[key] == session {
		delete(d.owners, key)
	}
}

func (d *fakeDirectory) ClaimName(_ context.Context, who, name, session string) (string, error) {
	return d.claim(who+" name "+name, session)
}

func (d *fakeDirectory) ClaimKey(_ context.Context, who, key, session string) (string, error) {
	return d.claim(who+" key "+key, session)
}

func (d *fakeDirectory) ReleaseName(_ context.Context, who, name, session string) {
	d.release(who+" name "+name, session)
}

func (d *fakeDirectory) ReleaseKey(_ context.Context, who, key, session string) {
	d.release(who+" key "+key, session)
}

func (d *fakeDirectory) LiveElsewhere(string) int { return d.elsewhere }

func (d *fakeDirectory) SetLive(who string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live[who] = n
}

// TakeOver, MovesAway, GiveUp and ReleaseMoved do nothing: owners says only which session has what.
func (d *fakeDirectory) TakeOver(claims.Moved) {}

func (d *fakeDirectory) AwaitTakeOver(context.Context) error { return nil }

func (d *fakeDirectory) MovesAway(claims.Moved) {}

func (d *fakeDirectory) GiveUp(claims.Moved) {}

func (d *fakeDirectory) ReleaseMoved(context.Context, claims.Moved) {}

func (d *fakeDirectory) Rebuild(names []claims.Name, here []claims.Moved, live map[string]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rebuilt++
}

func (d *fakeDirectory) keys() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.owners))
}

func (d *fakeDirectory) setDown(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = err
}

func TestNamesAreClaimedInTheDirectory(t *testing.T) {
	d := newFakeDirectory()
	theirs := ids.New("", 's', "abcdefgh", "", ids.RandomLen)
	d.owners[me+" name theirs"], d.owners[me+" key theirs"] = theirs, theirs
	r := newRig(t, Config{Directory: d, WarmShells: 1})
	has := func(what string, want ...string) {
		t.Helper()
		want = append(want, me+" key theirs", me+" name theirs")
		slices.Sort(want)
		if got := d.keys(); !slices.Equal(got, want) {
			t.Errorf("%s: the directory has %q, want %q", what, got, want)
		}
	}
	elsewhere := func(_ *Session, err error) {
		t.Helper()
		testkit.WantCode(t, err, protocol.SessionExists)
		if got := protocol.AsError(err).Details["session_id"]; got != theirs {
			t.Errorf("session_id is %v, want that of the other node's session", got)
		}
	}
	if d.rebuilt != 1 {
		t.Errorf("the directory was told %d times what the pool has", d.rebuilt)
	}
	elsewhere(r.Create(t.Context(), me, &protocol.SessionCreate{Name: "theirs", RequestKey: "k"}))
	elsewhere(r.Create(t.Context(), me, &protocol.SessionCreate{Name: "theirs", IfExists: "return"}))
	elsewhere(r.Create(t.Context(), me, &protocol.SessionCreate{RequestKey: "theirs"}))
	has("after lost claims")

	unnamed := r.create(protocol.SessionCreate{})
	s := r.create(protocol.SessionCreate{Name: "a", RequestKey: "k"})
	has("one session", me+" key k", me+" name a")
	elsewhere(nil, s.Rename("theirs"))
	if err := errors.Join(s.Rename("b"), s.Rename("b")); err != nil {
		t.Fatal(err)
	}
	has("renamed", me+" key k", me+" name b")
	if same, err := r.Create(t.Context(), me, &protocol.SessionCreate{Name: "b", IfExists: "return"}); err != nil || same != s {
		t.Errorf("if_exists return: %v", err)
	}

	d.setDown(errors.New("down"))
	if _, err := r.Create(t.Context(), me, &protocol.SessionCreate{Name: "c"}); err == nil {
		t.Error("a name was given out without the directory")
	}
	r.create(protocol.SessionCreate{}) // needs none
	d.setDown(nil)

	if _, err := unnamed.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
		t.Fatal(err)
	}
	has("ended", me+" key k") // a retry of the request finds the ended session
	d.mu.Lock()
	if d.live[me] != 1 {
		t.Errorf("%d live sessions are told, want 1", d.live[me])
	}
	d.mu.Unlock()

	_, err := r.Create(t.Context(), me, &protocol.SessionCreate{Name: "bad", RequestKey: "bad", WorkingDir: "/nowhere"})
	if err == nil {
		t.Fatal("a session in no directory")
	}
	testkit.Eventually(t, "nothing left of a session without a shell", func() bool { return len(d.keys()) == 3 })

	lost := r.create(protocol.SessionCreate{Name: "lost"})
	r.LoseName(lost.ID())
	if r.HasOpen(me, "lost") || !lost.IsOpen() {
		t.Error("the name is still the session's, or the session has ended")
	}
}

// Many ask for one name at once: one session is made, and all get it.
func TestOneSessionForANameOfMany(t *testing.T) {
	r := newRig(t, Config{Directory: newFakeDirectory(), WarmShells: 1})
	var got sync.Map
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			s, err := r.Create(t.Context(), me, &protocol.SessionCreate{Name: "n", IfExists: "return"})
			if err != nil {
				t.Error(err)
				return
			}
			got.Store(s.ID(), true)
		})
	}
	all.Wait()
	n := 0
	got.Range(func(any, any) bool { n++; return true })
	if n != 1 || r.LiveCount() != 1 {
		t.Errorf("%d sessions were answered, %d live; want one", n, r.LiveCount())
	}
}

func TestLimitsCountSessionsOfOtherNodes(t *testing.T) {
	d := newFakeDirectory()
	d.elsewhere = 2
	r := newRig(t, Config{Directory: d, MaxPerPrincipal: 3})
	r.create(protocol.SessionCreate{})
	_, err := r.Create(t.Context(), me, &protocol.SessionCreate{})
	testkit.WantCode(t, err, protocol.MaxSessionsReached)
}
