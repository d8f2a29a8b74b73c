package directory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trl/cluster/kv"
	"trl/cluster/node"
	"trl/internal/natsrig"
	"trl/internal/testkit"
)

func TestNodesLearnOfEachOther(t *testing.T) {
	t.Parallel()
	all := three(t, natsrig.Start(t, 1), withShortLease)
	n1, n2, n3 := all[0], all[1], all[2]
	n1.Describe(func(n *node.Node) { n.Draining, n.Zone = true, "a" })
	testkit.Eventually(t, "n2 hears that n1 drains", func() bool {
		n, ok := n2.Node("epochn1")
		return ok && n.Draining && n.Zone == "a"
	})
	testkit.Eventually(t, "placements are counted", func() bool { // until a heartbeat of n3 comes
		n2.Placed("epochn3")
		n, _ := n2.Node("epochn3")
		return n.Live > 0
	})
	n3.Describe(func(n *node.Node) { n.Live = 50 })
	testkit.Eventually(t, "n2 hears of the sessions of n3", func() bool { n, ok := n2.Node("epochn3"); return ok && n.Live == 50 })
	testkit.Eventually(t, "n2 lists all", func() bool { return len(n2.Nodes()) == 3 })

	if err := n3.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	n1.forgets("n3")
	n2.Close() // as if it had died
	n1.forgets("n2")
	if !n1.knows("n1") {
		t.Error("n1 has forgotten itself")
	}
}

// Of all that claim a name at the same time, one wins, and all learn who. A name that is released is free at once.
func TestNamesHaveOneOwner(t *testing.T) {
	t.Parallel()
	all := three(t, natsrig.Start(t, 1))
	var claims sync.WaitGroup
	var wins [8]atomic.Int32
	for i, m := range all {
		for g := range 3 {
			claims.Go(func() {
				for n := range wins {
					session := fmt.Sprintf("s-%d-%d-%d", i, g, n)
					c, err := m.ClaimName(t.Context(), "ann", fmt.Sprint("name", n), session)
					if err != nil {
						t.Error(err)
					} else if c.Won {
						wins[n].Add(1)
					} else if c.Session == session || c.Epoch == "" {
						t.Errorf("%+v", c)
					}
				}
			})
		}
	}
	claims.Wait()
	for n := range wins {
		if got := wins[n].Load(); got != 1 {
			t.Errorf("name%d has %d owners", n, got)
		}
	}

	n1, n2 := all[0], all[1]
	n1.wins("mine", "s1")
	n1.wins("mine", "s1") // asked again
	if got := n2.claims("mine", "s2"); got != "s1" {
		t.Errorf("n2 got %s", got)
	}
	if got := n2.finds("mine"); got != "s1" {
		t.Errorf("n2 finds %q", got)
	}
	if c, err := n2.ClaimName(t.Context(), "bob", "mine", "s3"); err != nil || !c.Won {
		t.Errorf("the same name of another principal: %+v, %v", c, err)
	}
	if err := n2.ReleaseName(t.Context(), "ann", "mine", "s2"); err != nil {
		t.Error(err)
	}
	if got := n2.finds("mine"); got != "s1" {
		t.Errorf("a release by one who does not have it: %q", got)
	}
	if err := n1.ReleaseName(t.Context(), "ann", "mine", "s1"); err != nil {
		t.Error(err)
	}
	if got := n1.finds("mine"); got != "" {
		t.Errorf("a released name: %q", got)
	}
	n2.wins("mine", "s2")

	c, err := n1.ClaimKey(t.Context(), "ann", "key", "s5")
	if err != nil || !c.Won {
		t.Fatalf("%+v, %v", c, err)
	}
	if c, err := n2.ClaimKey(t.Context(), "ann", "key", "s6"); err != nil || c.Session != "s5" || c.Epoch != "epochn1" {
		t.Errorf("%+v, %v", c, err)
	}
	moves := Moved{Principal: "ann", Session: "s-moves", Name: "travels", Key: "key of it", Marks: []string{"s-moves", "epochtag"}}
	n1.wins("travels", "s-moves")
	for i, m := range []*member{n2, n1, n2, n1} { // a session that moves
		[]*member{n1, n2, n1, n2}[i].MovesAway(moves)
		m.TakeOver(moves)
		if err := m.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, mark := range moves.Marks {
			if c, found, err := all[2].FindMoved(t.Context(), mark); err != nil || !found || c.Epoch != "epoch"+m.name || c.Session != "s-moves" {
				t.Errorf("%s: %+v, %v, %v", mark, c, found, err)
			}
		}
		if i < 3 { // in the other case ReleaseName comes without it
			[]*member{n1, n2, n1}[i].GiveUp(moves)
		}
		if err := []*member{n1, n2, n1, n2}[i].ReleaseName(t.Context(), "ann", "travels", "s-moves"); err != nil {
			t.Error(err)
		}
		if c, found, err := all[2].FindName(t.Context(), "ann", "travels"); err != nil || !found || c.Epoch != "epoch"+m.name {
			t.Errorf("the name of a session that moved: %+v, %v, %v", c, found, err)
		}
		if c, err := all[2].ClaimKey(t.Context(), "ann", "key of it", "s-other"); err != nil || c.Session != "s-moves" || c.Epoch != "epoch"+m.name {
			t.Errorf("the key of a session that moved: %+v, %v", c, err)
		}
	}
	if err := n1.ReleaseMoved(t.Context(), moves); err != nil {
		t.Error(err)
	}
	if _, found, err := n2.FindMoved(t.Context(), "s-moves"); found || err != nil {
		t.Errorf("%v, %v", found, err)
	}
}

// A session that moves has its name at every moment, and another one can have it as soon as the session has ended, wherever the directory was.
func TestNameOfAMovingSession(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	all := three(t, c)
	n1, n2 := all[0], all[1]
	for _, m := range all {
		if err := m.Rebuild(t.Context(), Owned{}); err != nil {
			t.Fatal(err)
		}
	}
	moves := Moved{Principal: "ann", Session: "s-moves", Name: "travels", Marks: []string{"s-moves"}}
	n1.wins("travels", "s-moves")
	n1.MovesAway(moves)
	for _, m := range all {
		if got := m.claims("travels", "s-other"); got != "s-moves" {
			t.Errorf("%s gives the name of a session that moves to %s", m.name, got)
		}
	}
	n2.TakeOver(moves)
	if err := n2.ReleaseMoved(t.Context(), moves); err != nil { // it has ended before that was written
		t.Fatal(err)
	}
	if got := n1.finds("travels"); got != "" {
		t.Errorf("the name of a session that has moved and ended is of %s", got)
	}
	if err := n1.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n2.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n1.finds("travels"); got != "" {
		t.Errorf("the name was written again for %s", got)
	}
	n1.GiveUp(moves)
	n1.wins("travels", "s-other")
	if err := all[2].Rebuild(t.Context(), Owned{Names: []OwnedName{{Principal: "ann", Name: "gone", Session: "s-gone", Left: true}}}); err != nil {
		t.Fatal(err)
	}
	if got := n1.finds("gone"); got != "" {
		t.Errorf("a new gateway has written the name of %s, which has moved and ended", got)
	}

	// A node that is about to write what it has taken over, and whose session has moved on, does not undo the next node's write.
	n1.wins("far", "s-far")
	far := Moved{Principal: "ann", Session: "s-far", Name: "far"}
	n1.MovesAway(far)
	n2.TakeOver(far)
	n2.MovesAway(far)
	n1.TakeOver(far)
	if err := n1.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n2.restoreOne(t.Context(), n2.nameKey("ann", "far")); err != nil {
		t.Fatal(err)
	}
	if c, found, err := n2.FindName(t.Context(), "ann", "far"); err != nil || !found || c.Epoch != "epochn1" {
		t.Errorf("%+v, %v, %v", c, found, err)
	}
}

// Nobody who reads NATS learns names or principals.
func TestKeysTellNothing(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	n1 := join(t, "n1", c.URLs())
	n1.becomesHealthy()
	n1.wins("project-x", "s1")
	n1.SetLive("ann", 1)
	testkit.Eventually(t, "presence is written", func() bool {
		all, err := n1.presence.List(t.Context(), ">")
		return err == nil && len(all) == 1
	})
	for _, b := range n1.buckets() {
		entries, err := b.List(t.Context(), ">")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			for _, secret := range []string{"ann", "project-x"} {
				if strings.Contains(e.Key, secret) {
					t.Errorf("%s has the key %s", b.Name, e.Key)
				}
			}
		}
	}
	if hashed("a", "bc") == hashed("ab", "c") {
		t.Error("different parts give one key")
	}
}

func TestNamesOfDeadNodesAreFree(t *testing.T) {
	t.Parallel()
	all := three(t, natsrig.Start(t, 1), withShortLease)
	n1, n2 := all[0], all[1]
	n1.wins("a", "s1")
	closing := time.Now()
	n1.Close()
	if got := n2.claims("a", "s2"); got != "s1" && (n2.knows("n1") || time.Since(closing) < time.Second) { // a busy machine may be late
		t.Errorf("before the lease has run out: %s", got)
	}
	n2.forgets("n1")
	n2.wins("a", "s2")
	if got := all[2].claims("a", "s3"); got != "s2" {
		t.Errorf("n3 got %s", got)
	}
}

// Nothing waits for NATS but what needs it, and that not for long.
func TestOpensWithoutNATS(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	c.Servers[0].Kill()
	n1 := join(t, "n1", c.URLs(), func(o *Options) { o.Wait = 300 * time.Millisecond })
	if degraded, why := n1.Degraded(); !degraded || why == "" {
		t.Errorf("%v %q", degraded, why)
	}
	if !n1.knows("n1") {
		t.Error("it does not know itself")
	}
	for what, f := range map[string]func() error{
		"claim":    func() error { _, err := n1.ClaimName(t.Context(), "ann", "a", "s1"); return err },
		"find":     func() error { _, _, err := n1.FindName(t.Context(), "ann", "a"); return err },
		"presence": func() error { _, err := n1.Presence(t.Context(), "ann"); return err },
		"rebuild": func() error {
			return n1.Rebuild(t.Context(), Owned{Names: []OwnedName{{Principal: "ann", Name: "b", Session: "s2"}}})
		},
		"release": func() error { return n1.ReleaseName(t.Context(), "ann", "c", "s3") },
	} {
		if err := f(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.Servers[0].Start()
	n1.becomesHealthy()
	testkit.Eventually(t, "what was rebuilt meanwhile is written", func() bool {
		c, _, err := n1.FindName(t.Context(), "ann", "b")
		return err == nil && c.Session == "s2"
	})
	if _, health := n1.reported(); len(health) == 0 || health[0] {
		t.Errorf("reported health %v, want false first", health)
	}
}

// When NATS has lost everything, the nodes write again what they own, and forget nobody.
func TestEverythingIsRebuilt(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	const lease = 6 * time.Second
	all := three(t, c, func(o *Options) { o.lease = lease })
	n1, n2 := all[0], all[1]
	n1.wins("a", "s1")
	n1.SetLive("ann", 2)
	for _, m := range []*member{n2, n1} {
		m.TakeOver(Moved{Session: "s-moved", Marks: []string{"s-moved"}})
		if err := m.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n2.GiveUp(Moved{Session: "s-moved", Marks: []string{"s-moved"}}) // it does not write it again
	if k, err := n1.ClaimKey(t.Context(), "ann", "k", "s1"); err != nil || !k.Won {
		t.Fatal(k, err)
	}
	forgotten := atomic.Bool{}
	watched := testkit.Repeat(func() {
		for _, m := range all {
			if len(m.Nodes()) != 3 {
				forgotten.Store(true)
			}
		}
		time.Sleep(time.Millisecond)
	})
	c.Servers[0].Kill()
	c.Servers[0].Forget()
	for _, m := range all {
		m.becomesDegraded()
	}
	time.Sleep(lease + time.Second) // every entry would have ended
	c.Servers[0].Start()
	for _, m := range all {
		m.becomesHealthy()
	}
	testkit.Eventually(t, "n2 finds what n1 owns", func() bool {
		name, _, err1 := n2.FindName(t.Context(), "ann", "a")
		key, _, err2 := n2.FindKey(t.Context(), "ann", "k")
		moved, _, err3 := n2.FindMoved(t.Context(), "s-moved")
		live, err4 := n2.Presence(t.Context(), "ann")
		return errors.Join(err1, err2, err3, err4) == nil && name.Session == "s1" && key.Session == "s1" && moved.Epoch == "epochn1" && live["epochn1"] == 2
	})
	watched()
	if forgotten.Load() {
		t.Error("a node was forgotten, although all of them lived")
	}
	for _, m := range all {
		if conflicts, _ := m.reported(); len(conflicts) > 0 {
			t.Errorf("%s reports %+v", m.name, conflicts)
		}
	}
}

// A node that was cut off for longer than its lease finds its names taken, and does not take them back.
func TestClaimedMeanwhile(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	proxy := natsrig.NewProxy(t, c.Servers[0])
	n1 := join(t, "n1", []string{proxy.URL()}, withShortLease)
	n2 := join(t, "n2", c.URLs(), withShortLease)
	n1.learnsOf("n2")
	n2.learnsOf("n1")
	n1.becomesHealthy()
	n2.becomesHealthy()
	n1.wins("taken", "s1")
	n1.wins("kept", "s2")
	proxy.Hold()
	n1.becomesDegraded()
	n2.forgets("n1")
	n2.wins("taken", "s3")
	if !n1.knows("n2") {
		t.Error("n1 has forgotten n2 because it was cut off itself")
	}
	proxy.Release()
	n1.becomesHealthy()
	testkit.Eventually(t, "n1 reports the conflict", func() bool {
		conflicts, _ := n1.reported()
		return len(conflicts) == 1 && conflicts[0].Kind == "name" && conflicts[0].Session == "s1" && conflicts[0].Owner.Session == "s3"
	})
	n2.learnsOf("n1")
	if got := n1.finds("taken"); got != "s3" {
		t.Errorf("%q", got)
	}
	if got := n2.claims("kept", "s4"); got != "s2" {
		t.Errorf("n2 got %s", got)
	}
}

// A claim whose answer is lost is recognised when it is sent again.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	proxy := natsrig.NewProxy(t, c.Servers[0])
	n1 := join(t, "n1", []string{proxy.URL()})
	n1.becomesHealthy()
	proxy.HoldAnswers()
	won := make(chan error, 1)
	go func() {
		c, err := n1.ClaimName(t.Context(), "ann", "a", "s1")
		if err == nil && !c.Won {
			err = fmt.Errorf("%+v", c)
		}
		won <- err
	}()
	direct := &kv.Bucket{Conn: c.Connect(), Name: "trl_names"}
	testkit.Eventually(t, "the claim is written", func() bool {
		e, err := direct.Latest(within(t, testkit.Patience), n1.nameKey("ann", "a").key)
		return err == nil && strings.Contains(string(e.Value), "s1")
	})
	proxy.Cut() // the answer is lost
	proxy.Release()
	if err := <-won; err != nil {
		t.Error(err)
	}
}

// A claim that failed leaves nothing behind, also if it arrives late.
func TestFailedClaimIsUndone(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	proxy := natsrig.NewProxy(t, c.Servers[0])
	n1 := join(t, "n1", []string{proxy.URL()}, func(o *Options) { o.Wait = 500 * time.Millisecond })
	n2 := join(t, "n2", c.URLs())
	n1.becomesHealthy()
	n2.becomesHealthy()
	n2.wins("other", "s0") // the bucket exists
	proxy.Hold()
	if _, err := n1.ClaimName(t.Context(), "ann", "a", "s1"); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	proxy.Release() // the claim arrives now
	testkit.Eventually(t, "n2 gets the name", func() bool { return n2.claims("a", "s2") == "s2" })
	testkit.Eventually(t, "n1 has nothing left to do", func() bool {
		n1.Directory.mu.Lock()
		defer n1.Directory.mu.Unlock()
		return len(n1.records.dropping) == 0
	})
	var found string
	testkit.Eventually(t, "n1 finds the name", func() bool { // an answer may take longer than its Wait
		c, _, err := n1.FindName(t.Context(), "ann", "a")
		found = c.Session
		return err == nil
	})
	if found != "s2" {
		t.Errorf("%q", found)
	}
}

func TestStoppedServer(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	all := three(t, c, withShortLease)
	c.Servers[0].Stop()
	for _, m := range all {
		m.becomesDegraded()
	}
	time.Sleep(4 * time.Second) // longer than the lease
	for _, m := range all {
		if got := len(m.Nodes()); got != 3 {
			t.Errorf("%s knows %d nodes", m.name, got)
		}
	}
	c.Servers[0].Continue()
	for _, m := range all {
		m.becomesHealthy()
	}
	all[0].wins("a", "s1")
	if got := all[1].claims("a", "s2"); got != "s1" {
		t.Errorf("n2 got %s", got)
	}
}

// Claims wait while the servers elect a leader, and each name still has one owner. No node is forgotten.
func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 3)
	all := three(t, c)
	all[0].wins("first", "s0")
	c.Leader("KV_trl_names").Kill()
	var claims sync.WaitGroup
	var wins [4]atomic.Int32
	for i, m := range all {
		claims.Go(func() {
			for n := range wins {
				claim := func() (Claim, error) {
					return m.ClaimName(t.Context(), "ann", fmt.Sprint("name", n), fmt.Sprintf("s-%d-%d", i, n))
				}
				c, err := claim()
				for end := time.Now().Add(testkit.Patience); errors.Is(err, ErrUnavailable) && time.Now().Before(end); { // an election may take longer than a claim
					c, err = claim()
				}
				if err != nil {
					t.Errorf("%s: %v", m.name, err)
				}
				if c.Won {
					wins[n].Add(1)
				}
			}
		})
	}
	claims.Wait()
	for n := range wins {
		if got := wins[n].Load(); got != 1 {
			t.Errorf("name%d has %d owners", n, got)
		}
	}
	for _, m := range all {
		if got := len(m.Nodes()); got != 3 {
			t.Errorf("%s knows %d nodes", m.name, got)
		}
		if got := m.finds("first"); got != "s0" {
			t.Errorf("%s finds %q", m.name, got)
		}
	}
}

func TestPresence(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	all := three(t, c, withShortLease)
	n1, n2, n3 := all[0], all[1], all[2]
	writes := atomic.Int32{}
	if _, err := c.Connect().Subscribe(n1.presence.Subject(">"), countInto(&writes)); err != nil {
		t.Fatal(err)
	}
	n1.SetLive("ann", 1)
	n2.SetLive("ann", 3)
	n3.SetLive("bob", 1)
	see := func(want map[string]int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint("n2 sees ", want), func() bool {
			live, err := n2.Presence(t.Context(), "ann")
			return err == nil && maps.Equal(live, want)
		})
	}
	see(map[string]int{"epochn1": 1, "epochn2": 3})
	before, began := writes.Load(), time.Now()
	for i := range 1000 {
		n1.SetLive("ann", i%7+1)
	}
	n1.SetLive("ann", 5)
	see(map[string]int{"epochn1": 5, "epochn2": 3})
	if got, most := writes.Load()-before, int32(time.Since(began)/time.Second)+3; got > most {
		t.Errorf("%d writes, at most %d are allowed", got, most)
	}
	n1.SetLive("ann", 0)
	see(map[string]int{"epochn2": 3})
	n1.SetLive("ann", 1)
	see(map[string]int{"epochn1": 1, "epochn2": 3})
	n1.Close()
	see(map[string]int{"epochn2": 3}) // the lease has run out
	testkit.Eventually(t, "the presence of a node that died is deleted", func() bool {
		all, err := n2.presence.List(t.Context(), "*.epochn1")
		return err == nil && len(all) == 0
	})
}

// The new gateway of a node tells what the node owns. What the old one has left beyond it is free.
func TestGatewayIsReplaced(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	old := join(t, "n1", c.URLs())
	n2 := join(t, "n2", c.URLs())
	old.becomesHealthy()
	n2.becomesHealthy()
	old.wins("kept", "s1")
	old.wins("lost", "s2")
	old.SetLive("ann", 2)
	old.Close()
	n1 := join(t, "n1", c.URLs())
	if err := n1.Rebuild(t.Context(), Owned{Names: []OwnedName{{Principal: "ann", Name: "kept", Session: "s1"}}, Live: map[string]int{"ann": 1}}); err != nil {
		t.Fatal(err)
	}
	n1.becomesHealthy()
	if got := n1.claims("kept", "s3"); got != "s1" {
		t.Errorf("kept: %s", got)
	}
	n1.wins("lost", "s4")
	if live, err := n2.Presence(t.Context(), "ann"); err != nil || live["epochn1"] != 1 {
		t.Errorf("%v, %v", live, err)
	}
	if conflicts, _ := n2.reported(); len(conflicts) > 0 {
		t.Errorf("%+v", conflicts)
	}
}

// A node hears of another one that uses its epoch, for example on a copy of its machine, and keeps what it owns.
func TestStolenEpochIsTold(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	short := func(o *Options) { o.lease = time.Second }
	n1 := join(t, "n1", c.URLs(), short)
	n1.becomesHealthy()
	n1.wins("a", "s1")
	thief := join(t, "n1", c.URLs(), short, func(o *Options) { o.Node.Name = "thief" })
	testkit.Eventually(t, "n1 hears of the other one", func() bool {
		conflicts, _ := n1.reported()
		return slices.Contains(conflicts, Conflict{Kind: "node", Key: "epochn1", Session: "thief"})
	})
	if got := thief.claims("a", "s2"); got != "s1" {
		t.Errorf("the other one has taken the name from %s", got)
	}
}

// Close ends everything, also while nothing answers.
func TestCloseWhileNothingAnswers(t *testing.T) {
	t.Parallel()
	c := natsrig.Start(t, 1)
	proxy := natsrig.NewProxy(t, c.Servers[0])
	proxy.Hold()
	n1 := join(t, "n1", []string{proxy.URL()})
	claimed := make(chan error, 1)
	go func() { _, err := n1.ClaimName(t.Context(), "ann", "a", "s1"); claimed <- err }()
	n1.Close()
	n1.Close()
	if err := <-claimed; !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}
