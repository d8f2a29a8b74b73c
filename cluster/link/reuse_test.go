package link

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"trl/internal/testkit"
	"trl/protocol"
)

// reuseRig is a rig whose owner answers each message with the principal of its client, and counts its links.
type reuseRig struct {
	*rig
	links atomic.Int64 // accepted and not ended
}

func newReuseRig(t *testing.T, m mode, change func(*DialerOptions, *AcceptorOptions)) *reuseRig {
	r := &reuseRig{}
	seen := map[*Conn]bool{}
	serving := make(chan struct{}, 1) // guards seen
	r.rig = newRig(t, m, Limits{PingEvery: 100 * time.Millisecond}, func(do *DialerOptions, ao *AcceptorOptions) {
		ao.Admit = func(_ context.Context, _ Node, h *Hello) error {
			if h.Principal == "nobody" {
				return protocol.Errorf(protocol.AuthFailed, "nobody")
			}
			return nil
		}
		ao.Serve = func(_ context.Context, h *Hello, c *Conn) {
			serving <- struct{}{}
			if !seen[c] {
				seen[c] = true
				r.links.Add(1)
				go func() { <-c.Over(); r.links.Add(-1) }() // ends with the link
			}
			<-serving
			for {
				kind, msg, err := c.Read()
				if err != nil || IsEnd(kind, msg) {
					return
				}
				if err := c.Send(Text, []byte(h.Principal+": "+string(msg))); err != nil {
					return
				}
			}
		}
		if change != nil {
			change(do, ao)
		}
	})
	return r
}

func helloOf(principal string) *Hello {
	h := aHello()
	h.Principal, h.Keep = principal, true
	return h
}

// use is one client: it dials, says something, and gives the link back.
func (r *reuseRig) use(h *Hello) *Conn {
	r.t.Helper()
	c := r.begin(h)
	r.end(c)
	return c
}

func (r *reuseRig) begin(h *Hello) *Conn {
	r.t.Helper()
	c, err := r.dialer.Dial(within(r.t), r.to, h)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := c.Send(Text, []byte("hi")); err != nil {
		r.t.Fatal(err)
	}
	if _, msg, err := c.Read(); err != nil || string(msg) != h.Principal+": hi" {
		r.t.Fatalf("%s got %q, %v", h.Principal, msg, err)
	}
	return c
}

func (r *reuseRig) end(c *Conn) {
	r.t.Helper()
	if err := c.SendEnd(); err != nil {
		r.t.Fatal(err)
	}
	if kind, msg, err := c.Read(); err != nil || !IsEnd(kind, msg) {
		r.t.Fatalf("instead of the end: %q, %v", msg, err)
	}
	c.Release()
}

// TestLinksServeOneClientAfterAnother: each client of a link is who its own Hello says, and a link is kept only for clients that want it.
func TestLinksServeOneClientAfterAnother(t *testing.T) {
	t.Parallel()
	for _, m := range modes(t) {
		t.Run(m.name, func(t *testing.T) {
			r := newReuseRig(t, m, nil)
			first := r.use(helloOf("ann"))
			for _, name := range []string{"bob", "ann", "carl"} {
				if c := r.use(helloOf(name)); c != first || !c.Kept() {
					t.Errorf("%s did not get the idle link", name)
				}
			}
			var refused *protocol.Error
			if _, err := r.dialer.Dial(within(t), r.to, helloOf("nobody")); !errors.As(err, &refused) || refused.Code != protocol.AuthFailed {
				t.Errorf("a client that the owner refuses: %v", err)
			}
			for range 100 { // a client that wants the link for itself ends it
				h := helloOf("dora")
				h.Keep = false
				c := r.begin(h)
				c.Release()
				if !c.isOver() {
					t.Fatal("a link is kept that its client has not given back")
				}
			}
			testkit.Eventually(t, "no link is left", func() bool { return r.links.Load() == 0 })
		})
	}
}

// TestIdleLinksAreBounded: so many are kept for one node, and each for a while.
func TestIdleLinksAreBounded(t *testing.T) {
	t.Parallel()
	r := newReuseRig(t, modes(t)[0], nil)
	var all []*Conn
	for i := range maxIdleOfNode + 3 {
		all = append(all, r.begin(helloOf(fmt.Sprint("client", i))))
	}
	for _, c := range all {
		r.end(c)
	}
	testkit.Eventually(t, "the others have ended", func() bool { return r.links.Load() == maxIdleOfNode })

	d := r.dialer
	d.mu.Lock()
	d.idle.count += maxIdle - maxIdleOfNode // as if there were so many to other nodes
	d.mu.Unlock()
	if c, other := r.begin(helloOf("ann")), r.begin(helloOf("bob")); true {
		d.mu.Lock()
		d.idle.count += 2
		d.mu.Unlock()
		for _, c := range []*Conn{c, other} {
			if r.end(c); !c.isOver() {
				t.Error("more links are kept than there may be in all")
			}
		}
	}
	d.mu.Lock()
	d.idle.count -= maxIdle - maxIdleOfNode + 2
	d.idleTime = time.Millisecond
	d.mu.Unlock()
	for range maxIdleOfNode {
		c := r.begin(helloOf("carl"))
		defer c.Drop()
		all = append(all, c)
	}
	for _, c := range all[len(all)-maxIdleOfNode:] {
		r.end(c)
	}
	testkit.Eventually(t, "idle links end, and none is counted", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return r.links.Load() == 0 && d.idle.count == 0 && len(d.idle.byPeer) == 0
	})
}

// TestIdleLinkThatBroke: it is noticed before a request is sent, and the node is dialled.
func TestIdleLinkThatBroke(t *testing.T) {
	t.Parallel()
	r := newReuseRig(t, modes(t)[1], nil)
	for range 3 {
		c := r.use(helloOf("ann"))
		r.proxy.cut()
		if other := r.use(helloOf("bob")); other == c || other.Kept() {
			t.Error("the broken link was used")
		}
	}
	c := r.use(helloOf("ann"))
	c.begun = time.Now().Add(-2 * keptAge)
	if c = r.use(helloOf("bob")); !c.isOver() {
		t.Error("an old link is kept")
	}
}

// TestForgedHelloOnAnIdleLink: whoever gets into a link without knowing the secret cannot become another client.
func TestForgedHelloOnAnIdleLink(t *testing.T) {
	t.Parallel()
	m := modes(t)[0]
	r := newReuseRig(t, m, nil)
	secret := m.cred(t, gateway).key()
	for name, proof := range map[string]func(c *Conn, hello []byte) []byte{
		"none":       func(*Conn, []byte) []byte { return nil },
		"replayed":   func(c *Conn, hello []byte) []byte { return c.transcript.proof(secret, proofRole(1), hello) },
		"other body": func(c *Conn, _ []byte) []byte { return c.transcript.proof(secret, proofRole(2), []byte("{}")) },
	} {
		c := r.begin(helloOf("ann"))
		if err := c.SendEnd(); err != nil {
			t.Fatal(err)
		}
		c.Read()
		hello, _ := json.Marshal(helloOf("root"))
		if err := c.say(&assertion{hello, proof(c, hello)}); err != nil {
			t.Fatal(err)
		}
		w := welcome{}
		if err := c.receive(&w); err != nil || w.Refusal == nil || w.Refusal.Reason != "secret" {
			t.Errorf("%s: %+v, %v", name, w.Refusal, err)
		}
		if _, _, err := c.Read(); err == nil {
			t.Errorf("%s: the link goes on", name)
		}
	}
	r.refused.wait(t, func(err error) bool { return errors.Is(err, ErrSecret) })
}
