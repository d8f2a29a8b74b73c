//go:build soak

package directory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/natsrig"
	"trl/internal/testkit"
)

// For two minutes nodes claim and release names, while servers are killed and stopped and connections are cut. No name ever has two owners, no
// node that lives is forgotten, and nobody loses what it owns.
func TestOneOwnerThroughFaults(t *testing.T) {
	c := natsrig.Start(t, 3)
	var proxies []*natsrig.Proxy
	var all []*member
	for i := range 3 {
		var urls []string
		for _, s := range c.Servers {
			p := natsrig.NewProxy(t, s)
			proxies = append(proxies, p)
			urls = append(urls, p.URL())
		}
		// A longer lease than in other tests: no fault below cuts a node off for as long.
		all = append(all, join(t, fmt.Sprint("n", i+1), urls, func(o *Options) { o.lease = 9 * time.Second }))
	}
	for _, m := range all {
		m.learnsOf("n1", "n2", "n3")
		m.becomesHealthy()
		if err := m.Rebuild(t.Context(), Owned{}); err != nil {
			t.Fatal(err)
		}
	}

	var mu sync.Mutex
	owner := map[string]string{} // name: the session that has it; guarded by mu
	counts := map[string]int{}   // guarded by mu
	count := func(what string) { mu.Lock(); counts[what]++; mu.Unlock() }
	until := time.Now().Add(2 * time.Minute)
	var work sync.WaitGroup
	for _, m := range all {
		for w := range 3 {
			work.Go(func() {
				for i := 0; time.Now().Before(until); i++ {
					name, session := fmt.Sprint("name", rand.IntN(5)), fmt.Sprintf("s-%s-%d-%d", m.name, w, i)
					c, err := m.ClaimName(t.Context(), "ann", name, session)
					if err != nil {
						if !errors.Is(err, ErrUnavailable) {
							t.Error(err)
						}
						count("unavailable")
						continue
					}
					if !c.Won {
						count("taken")
						continue
					}
					mu.Lock()
					counts["won"]++
					if other := owner[name]; other != "" {
						t.Errorf("%s was won for %s while %s had it", name, session, other)
					}
					owner[name] = session
					mu.Unlock()
					time.Sleep(rand.N(20 * time.Millisecond))
					if found, _, err := m.FindName(t.Context(), "ann", name); err == nil && found.Session != session {
						t.Errorf("%s of %s belongs to %q", name, session, found.Session)
					}
					mu.Lock()
					delete(owner, name)
					mu.Unlock()
					if err := m.ReleaseName(t.Context(), "ann", name, session); err != nil {
						count("released later")
					}
				}
			})
		}
	}
	faults := 0
	for time.Now().Before(until) {
		time.Sleep(2*time.Second + rand.N(4*time.Second))
		faults++
		s := c.Servers[rand.IntN(3)]
		switch rand.IntN(5) {
		case 0:
			c.Leader("KV_trl_names").Kill()
		case 1:
			for _, s := range c.Servers {
				s.Kill()
			}
		case 2:
			s.Stop()
			time.Sleep(5 * time.Second)
			s.Continue()
		case 3:
			for _, p := range proxies[3*rand.IntN(3):][:3] {
				p.Hold()
				defer p.Release()
			}
			time.Sleep(3 * time.Second)
			for _, p := range proxies {
				p.Release()
			}
		case 4:
			for _, p := range proxies {
				p.Cut()
			}
		}
		for _, s := range c.Servers {
			s.Start() // those that are down
		}
		c.WaitReady()
	}
	work.Wait()
	t.Log(faults, "faults:", counts)
	for _, m := range all {
		m.becomesHealthy()
		if got := len(m.Nodes()); got != 3 {
			t.Errorf("%s knows %d nodes", m.name, got)
		}
		if conflicts, _ := m.reported(); len(conflicts) > 0 {
			t.Errorf("%s reports %+v", m.name, conflicts)
		}
	}
	for n := range 5 { // nothing is left behind
		name := fmt.Sprint("name", n)
		testkit.Eventually(t, name+" is free", func() bool {
			session := fmt.Sprint("s-last-", n)
			c, err := all[0].ClaimName(t.Context(), "ann", name, session)
			return err == nil && c.Session == session || err == nil && strings.HasPrefix(c.Session, "s-last-")
		})
	}
	if counts["won"] < 100 {
		t.Errorf("only %d names were won", counts["won"])
	}
}

// With one of three servers left nobody may claim, and nothing is forgotten.
func TestWithoutQuorum(t *testing.T) {
	c := natsrig.Start(t, 3)
	all := three(t, c)
	all[0].wins("a", "s1")
	c.Servers[0].Stop()
	c.Servers[1].Stop()
	for _, m := range all {
		m.becomesDegraded()
		if _, err := m.ClaimName(t.Context(), "ann", "b", "s-"+m.name); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", m.name, err)
		}
		if got := len(m.Nodes()); got != 3 {
			t.Errorf("%s knows %d nodes", m.name, got)
		}
	}
	c.Servers[0].Continue()
	c.Servers[1].Continue()
	for _, m := range all {
		m.becomesHealthy()
	}
	testkit.Eventually(t, "the failed claims have left nothing", func() bool { return all[2].claims("b", "s9") == "s9" })
	if got := all[1].finds("a"); got != "s1" {
		t.Errorf("%q", got)
	}
}
