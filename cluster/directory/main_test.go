package directory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"trl/cluster/node"
	"trl/internal/natsrig"
	"trl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// member is a directory under test, with what it has reported.
type member struct {
	*Directory
	t    *testing.T
	name string

	mu        sync.Mutex
	conflicts []Conflict // guarded by mu
	health    []bool     // guarded by mu: degraded, as reported
}

// withShortLease is for tests that wait for the end of a lease. In all others the lease is longer than a busy machine keeps a node waiting.
func withShortLease(o *Options) { o.lease = 3 * time.Second }

// join opens a directory. It closes with the test, or before it.
func join(t *testing.T, name string, servers []string, change ...func(*Options)) *member {
	t.Helper()
	m := &member{t: t, name: name}
	o := Options{
		Servers: servers,
		Node:    node.Node{Epoch: "epoch" + name, Name: name, Max: 100},
		lease:   12 * time.Second,
		OnConflict: func(c Conflict) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.conflicts = append(m.conflicts, c)
		},
		OnHealth: func(degraded bool, _ string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.health = append(m.health, degraded)
		},
	}
	for _, f := range change {
		f(&o)
	}
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	m.Directory = d
	t.Cleanup(d.Close)
	return m
}

func (m *member) reported() (conflicts []Conflict, health []bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(conflicts, m.conflicts...), append(health, m.health...)
}

func (m *member) becomesHealthy() {
	m.t.Helper()
	testkit.Eventually(m.t, m.name+" is healthy", func() bool { degraded, _ := m.Degraded(); return !degraded })
}

func (m *member) becomesDegraded() {
	m.t.Helper()
	testkit.Eventually(m.t, m.name+" is degraded", func() bool { degraded, _ := m.Degraded(); return degraded })
}

func (m *member) knows(other string) bool { _, ok := m.Node("epoch" + other); return ok }

func (m *member) learnsOf(others ...string) {
	m.t.Helper()
	for _, other := range others {
		testkit.Eventually(m.t, m.name+" knows "+other, func() bool { return m.knows(other) })
	}
}

// forgets waits until a node is forgotten.
func (m *member) forgets(other string) {
	m.t.Helper()
	testkit.Eventually(m.t, m.name+" forgets "+other, func() bool { return !m.knows(other) })
}

// claims claims a name and returns the session that has it then.
func (m *member) claims(name, session string) string {
	m.t.Helper()
	c, err := m.ClaimName(m.t.Context(), "ann", name, session)
	if err != nil {
		m.t.Fatalf("%s claims %s: %v", m.name, name, err)
	}
	if c.Won != (c.Session == session) {
		m.t.Fatalf("%s claims %s for %s: %+v", m.name, name, session, c)
	}
	return c.Session
}

func (m *member) wins(name, session string) {
	m.t.Helper()
	if got := m.claims(name, session); got != session {
		m.t.Fatalf("%s claims %s: %s has it", m.name, name, got)
	}
}

// finds returns the session that has a name, or "".
func (m *member) finds(name string) string {
	m.t.Helper()
	c, _, err := m.FindName(m.t.Context(), "ann", name)
	if err != nil {
		m.t.Fatalf("%s looks for %s: %v", m.name, name, err)
	}
	return c.Session
}

// three joins n1, n2 and n3 to the servers, and waits until they know each other.
func three(t *testing.T, c *natsrig.Cluster, change ...func(*Options)) (all []*member) {
	t.Helper()
	for i := range 3 {
		all = append(all, join(t, fmt.Sprint("n", i+1), c.URLs(), change...))
	}
	for _, m := range all {
		m.learnsOf("n1", "n2", "n3")
		m.becomesHealthy()
	}
	return all
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func countInto(n *atomic.Int32) nats.MsgHandler { return func(*nats.Msg) { n.Add(1) } }
