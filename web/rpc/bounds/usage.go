// Package bounds has the bounds of what the clients of a gateway may take: connections, and what their requests make the gateway hold.
package bounds

import (
	"context"
	"sync"
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
	PrincipalReading  = 64 << 20 // large messages that are being read, each counted as the largest possible one; more wait
	AllReading        = 4 * PrincipalReading
	PrincipalRequests = 64 << 20 // requests that have been read and not answered; beyond it RATE_LIMITED
	AllRequests       = 4 * PrincipalRequests
	PrincipalAnswers  = 256 << 20 // output that answers hold until they have been written; more wait
	AllAnswers        = 4 * PrincipalAnswers
	PrincipalStreams  = 4096 // number of streams that are followed; beyond it LIMIT_EXCEEDED
)

// Usage counts what the clients of one principal hold, or all clients together.
type Usage struct {
	Requests     atomic.Int64 // bytes
	Streams      atomic.Int64
	HTTPInFlight atomic.Int64 // HTTP requests that are in flight; all of them together have the bound of one connection

	Reading *semaphore.Weighted
	Answers *semaphore.Weighted

	all *Usage // of all clients; nil: this is it
}

// New returns the usage of all clients together.
func New() *Usage {
	return &Usage{Reading: semaphore.NewWeighted(AllReading), Answers: semaphore.NewWeighted(AllAnswers)}
}

// Of returns the usage of one principal.
func (u *Usage) Of() *Usage {
	return &Usage{Reading: semaphore.NewWeighted(PrincipalReading), Answers: semaphore.NewWeighted(PrincipalAnswers), all: u}
}

// Usages are the usages of the principals that are connected.
type Usages struct {
	Total *Usage // of all clients together; set once

	mu sync.Mutex
	of map[string]*shared // guarded by mu
}

type shared struct {
	*Usage
	conns int // guarded by Usages.mu; how many connections use it
}

// Of returns the usage of the principal, or of its guests; leave gives it back.
func (us *Usages) Of(g *auth.Grant) (u *Usage, leave func()) {
	name := g.Subject
	if g.GuestID() != "" {
		name = "guests of " + name // no subject has spaces
	}
	us.mu.Lock()
	defer us.mu.Unlock()
	a := us.of[name]
	if a == nil {
		a = &shared{Usage: us.Total.Of()}
		if us.of == nil {
			us.of = map[string]*shared{}
		}
		us.of[name] = a
	}
	a.conns++
	return a.Usage, func() {
		us.mu.Lock()
		defer us.mu.Unlock()
		if a.conns--; a.conns == 0 {
			delete(us.of, name)
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

// ReserveReading waits until a message above transport.KeepBuffer may be read. maxFrame is the largest message of a client.
func (u *Usage) ReserveReading(ctx context.Context, maxFrame int64) (release func(), err error) {
	n := min(max(maxFrame, transport.KeepBuffer), PrincipalReading)
	return acquire(ctx, u.Reading, u.all.Reading, n)
}

// ReserveAnswer waits until an answer may hold n bytes.
func (u *Usage) ReserveAnswer(ctx context.Context, n int64) (release func(), err error) {
	return acquire(ctx, u.Answers, u.all.Answers, min(n, PrincipalAnswers))
}

// ReserveRequest counts the bytes of a request until ReleaseRequest. An urgent request is always accepted, because it makes room.
func (u *Usage) ReserveRequest(n int64, urgent bool) *protocol.Error {
	for _, x := range []struct {
		a    *Usage
		most int64
		of   string
	}{{u, PrincipalRequests, "this principal's"}, {u.all, AllRequests, "all"}} {
		if x.a.Requests.Add(n) > x.most && !urgent {
			x.a.Requests.Add(-n)
			if x.a == u.all {
				u.Requests.Add(-n)
			}
			return protocol.Errorf(protocol.RateLimited, "%s requests in flight have %d bytes", x.of, x.most).With("limit", x.most)
		}
	}
	return nil
}

// ReleaseRequest undoes ReserveRequest.
func (u *Usage) ReleaseRequest(n int64) {
	u.Requests.Add(-n)
	u.all.Requests.Add(-n)
}

// ReserveStream counts a stream that is followed, until Streams counts one less.
func (u *Usage) ReserveStream() *protocol.Error {
	if u.Streams.Add(1) > PrincipalStreams {
		u.Streams.Add(-1)
		return protocol.Errorf(protocol.LimitExceeded, "this principal's connections follow %d streams", PrincipalStreams).With("limit", PrincipalStreams)
	}
	return nil
}
