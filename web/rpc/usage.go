package rpc

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"trl/protocol"
	"trl/web/auth"
	"trl/web/transport"
)

// Bounds of what the clients of one principal, and all clients, may make the gateway hold, in bytes unless it says otherwise. The guests of a
// principal's links may use as much again. A single user does not reach these bounds. They exist for many connections that each stay within their own
// bounds.
const (
	principalReading  = 64 << 20 // large messages that are being read, each counted as the largest possible one; more wait
	allReading        = 4 * principalReading
	principalRequests = 64 << 20 // requests that have been read and not answered; beyond it RATE_LIMITED
	allRequests       = 4 * principalRequests
	principalAnswers  = 256 << 20 // output that answers hold until they have been written; more wait
	allAnswers        = 4 * principalAnswers
	principalStreams  = 4096 // number of streams that are followed; beyond it LIMIT_EXCEEDED
)

// principalUsage counts what the clients of one principal hold.
type principalUsage struct {
	conns    int // guarded by Clients.mu; how many connections use it
	requests atomic.Int64
	streams  atomic.Int64

	httpInFlight atomic.Int64 // HTTP requests that are in flight; all of them together have the bound of one connection

	reading *semaphore.Weighted
	answers *semaphore.Weighted
}

func newPrincipalUsage(reading, answers int64) *principalUsage {
	return &principalUsage{reading: semaphore.NewWeighted(reading), answers: semaphore.NewWeighted(answers)}
}

// usageOf returns the usage of the client's principal; leave gives it back.
func (cs *Clients) usageOf(g *auth.Grant) (a *principalUsage, leave func()) {
	name := g.Subject
	if g.GuestID() != "" {
		name = "guests of " + name // no subject has spaces
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if a = cs.usages[name]; a == nil {
		a = newPrincipalUsage(principalReading, principalAnswers)
		cs.usages[name] = a
	}
	a.conns++
	return a, func() {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if a.conns--; a.conns == 0 {
			delete(cs.usages, name)
		}
	}
}

// acquire takes n bytes of a principal's share and then of everybody's. It waits for them until ctx ends.
func acquire(ctx context.Context, own, all *semaphore.Weighted, n int64) (release func(), err error) {
	if err := own.Acquire(ctx, n); err != nil {
		return nil, err
	}
	if err := all.Acquire(ctx, n); err != nil {
		own.Release(n)
		return nil, err
	}
	return func() { all.Release(n); own.Release(n) }, nil
}

// beginLargeRead waits until a message above KeepBuffer may be read. endLargeRead undoes it.
func (c *conn) beginLargeRead() error {
	if c.releaseLarge != nil {
		return nil
	}
	release, err := c.srv.reserveReading(c.ctx, c.usage)
	c.releaseLarge = release
	return err
}

// reserveReading waits until a message above KeepBuffer may be read.
func (cs *Clients) reserveReading(ctx context.Context, own *principalUsage) (release func(), err error) {
	n := min(max(cs.live().MaxFrame, transport.KeepBuffer), principalReading)
	return acquire(ctx, own.reading, cs.totalUsage.reading, n)
}

func (c *conn) endLargeRead() {
	if c.releaseLarge != nil {
		c.releaseLarge()
		c.releaseLarge = nil
	}
}

// reserveRequest counts the bytes of a request until releaseRequest. An urgent request is always accepted, because it makes room.
func (cs *Clients) reserveRequest(own *principalUsage, n int64, urgent bool) *protocol.Error {
	for _, x := range []struct {
		a    *principalUsage
		most int64
		of   string
	}{{own, principalRequests, "this principal's"}, {cs.totalUsage, allRequests, "all"}} {
		if x.a.requests.Add(n) > x.most && !urgent {
			x.a.requests.Add(-n)
			if x.a == cs.totalUsage {
				own.requests.Add(-n)
			}
			return protocol.Errorf(protocol.RateLimited, "%s requests in flight have %d bytes", x.of, x.most).With("limit", x.most)
		}
	}
	return nil
}

func (cs *Clients) releaseRequest(own *principalUsage, n int64) {
	own.requests.Add(-n)
	cs.totalUsage.requests.Add(-n)
}

// reserveAnswer waits until an answer may hold n more bytes. They are given back when the answer has been written.
func (k *call) reserveAnswer(n int64) error {
	if n = min(n, principalAnswers); n <= transport.KeepBuffer { // as much as a message that is encoded in one piece
		return nil
	}
	release, err := acquire(k.c.ctx, k.c.usage.answers, k.c.srv.totalUsage.answers, n)
	if err != nil {
		return errClientGone
	}
	k.onAnswered = append(k.onAnswered, release)
	return nil
}

// reserveStream counts a stream that is followed.
func (c *conn) reserveStream() *protocol.Error {
	if c.usage.streams.Add(1) > principalStreams {
		c.usage.streams.Add(-1)
		return protocol.Errorf(protocol.LimitExceeded, "this principal's connections follow %d streams", principalStreams).With("limit", principalStreams)
	}
	return nil
}
