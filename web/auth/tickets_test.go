package auth

import (
	"net/http/httptest"
	"testing"
	"time"
)

// TestTicketsExpireAndAreBounded: an unused ticket is good for its time, and a subject has only so many.
func TestTicketsExpireAndAreBounded(t *testing.T) {
	now := time.Now()
	k := &tickets{now: func() time.Time { return now }, unused: map[[32]byte]ticket{}}
	g := &Grant{Principal: Principal{"ann", User}}
	use := func(text string) Outcome {
		r := httptest.NewRequest("GET", "/v1/ws", nil)
		r.Header.Set("Sec-WebSocket-Protocol", ticketProtocol+text)
		_, _, why := k.authenticate(r)
		return why
	}
	text, _ := k.issue(g, "")
	late, _ := k.issue(g, "")
	if why := use(text); why != Accepted {
		t.Errorf("in its time: %s", why)
	}
	now = now.Add(ticketLifetime)
	if why := use(late); why != expired {
		t.Errorf("after its time: %s", why)
	}
	for range 3 * maxOwnTickets {
		k.issue(g, "")
	}
	if n := len(k.unused); n != maxOwnTickets {
		t.Errorf("%d tickets of one subject", n)
	}
	if _, ok := k.issue(&Grant{Principal: Principal{"bob", User}}, ""); !ok {
		t.Error("nobody else gets one")
	}
}
