package link

import (
	"context"
	"fmt"
	"time"
)

// A link can serve one client after the other. The dialer says so in the Hello (Keep). When its client is done it sends an empty message, and the owner
// sends one back when it has nothing more for this client. Then the link is idle. Its next message is another Hello, with a proof of its own, and the
// owner answers with a welcome or a refusal, as in the handshake. So an idle link is nobody's, and each client gets what its own Hello says.

const (
	// idleTime is how long a dialer keeps an idle link.
	idleTime = 30 * time.Second
	// keptAge is how old a link may be that is kept: a link that is older than changed credentials ends in bounded time.
	keptAge = 10 * time.Minute
	// maxIdleOfNode and maxIdle are how many idle links a dialer keeps, to one node and in all.
	maxIdleOfNode = 8
	maxIdle       = 128
	// takeTimeout bounds the welcome on an idle link. Without it the dialer dials.
	takeTimeout = time.Second
)

// idle are the links that a dialer keeps.
type idle struct {
	byPeer map[Peer][]*idleLink // the newest last
	count  int
}

type idleLink struct {
	c      *Conn
	expiry *time.Timer
}

// SendEnd tells the other end that nothing more comes for the client of the link.
func (c *Conn) SendEnd() error { return c.Send(Text, nil) }

// IsEnd reports whether a message is that of SendEnd. No other message is empty.
func IsEnd(kind Kind, msg []byte) bool { return kind == Text && len(msg) == 0 }

// Release gives back a link of a client for which nothing more comes: the other end has sent the empty message. If the dialer has no place for it, the
// link ends.
func (c *Conn) Release() {
	c.large = nil
	if c.keep == nil || c.isOver() || !c.keep() {
		c.Drop()
	}
}

// Kept reports whether the link was an idle one when its client got it.
func (c *Conn) Kept() bool { return c.hellos > 1 }

// keepIdle keeps a link for the next client, if there is a place for it.
func (d *Dialer) keepIdle(to Peer, c *Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.idle.count >= maxIdle || len(d.idle.byPeer[to]) >= maxIdleOfNode || time.Since(c.begun) > keptAge {
		return false
	}
	if d.idle.byPeer == nil {
		d.idle.byPeer = map[Peer][]*idleLink{}
	}
	l := &idleLink{c: c}
	l.expiry = time.AfterFunc(d.idleTime, func() {
		if d.forget(to, l) {
			c.Drop()
		}
	})
	d.setIdleLocked(to, append(d.idle.byPeer[to], l))
	return true
}

// forget takes one link out of the idle ones, and reports whether it was there.
func (d *Dialer) forget(to Peer, l *idleLink) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.idle.byPeer[to]
	for i := range all {
		if all[i] == l {
			d.setIdleLocked(to, append(all[:i:i], all[i+1:]...))
			return true
		}
	}
	return false
}

func (d *Dialer) setIdleLocked(to Peer, all []*idleLink) {
	d.idle.count += len(all) - len(d.idle.byPeer[to])
	if len(all) == 0 {
		delete(d.idle.byPeer, to)
		return
	}
	d.idle.byPeer[to] = all
}

// takeIdle returns an idle link to a node, which serves the client that h describes from now on; nil: there is none. An error is about h.
func (d *Dialer) takeIdle(ctx context.Context, to Peer, h *Hello) (*Conn, error) {
	for ctx.Err() == nil {
		d.mu.Lock()
		all := d.idle.byPeer[to]
		if len(all) == 0 {
			d.mu.Unlock()
			return nil, nil
		}
		l := all[len(all)-1]
		d.setIdleLocked(to, all[:len(all)-1])
		d.mu.Unlock()
		l.expiry.Stop()
		err := l.c.sendHello(ctx, d.o.Credentials.key(), h)
		if err == nil {
			if !h.Keep {
				l.c.keep = nil
			}
			return l.c, nil
		}
		l.c.Drop()
		if isAboutHello(err) {
			return nil, err
		}
	}
	return nil, nil // Dial says that ctx has ended
}

// sendHello tells the owner for whom an idle link is from now on.
func (c *Conn) sendHello(ctx context.Context, secret []byte, h *Hello) error {
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, c.Drop)
	err := c.assert(secret, h)
	if !stop() { // c is over
		return ctx.Err()
	}
	return err
}

// proofRole returns the role of the dialer in the proof of its nth Hello, so that none fits in the place of another one.
func proofRole(nth int) string {
	if nth == 1 {
		return "dialer"
	}
	return fmt.Sprintf("dialer, hello %d", nth)
}

// next says that this end has nothing more for the client of a link, and takes the next one. It returns nil when the link is over or cannot be kept.
func (a *Acceptor) next(ctx context.Context, remote string, c *Conn) *Hello {
	for c.SendEnd() == nil {
		h, err := a.takeHello(ctx, c)
		switch {
		case err == nil:
			return h
		case !isAboutHello(err):
			if !c.isOver() {
				a.refused(remote, err)
			}
			return nil
		}
		a.refused(remote, err)
	}
	return nil
}

// AwaitNext begins to read the next message, which the next Read returns. The channel is closed when the message has come, or when the link is over. Only
// the goroutine that reads calls it, or one for which that waits.
func (c *Conn) AwaitNext() <-chan struct{} {
	if c.ahead == nil {
		a := &ahead{came: make(chan struct{})}
		c.ahead = a
		c.reading.Go(func() { // ends with the message or the link; the acceptor waits for it
			defer close(a.came)
			a.kind, a.msg, a.err = c.read()
		})
	}
	return c.ahead.came
}

// ahead is a message that is read before anybody wants it.
type ahead struct {
	came chan struct{} // closed when the others are set
	kind Kind
	msg  []byte
	err  error
}
