package auth

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestThrottle(t *testing.T) {
	now := time.Now()
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var th wrongCredentials
	for range freeTries {
		th.add(one, now)
	}
	if th.wait(one, now) != 0 {
		t.Error("slowed down too soon")
	}
	before := time.Duration(0)
	for i := range 40 {
		th.add(one, now)
		w := th.wait(one, now)
		if w < before || w > maxDelay || i < 5 && w != firstDelay<<i {
			t.Fatalf("delay %d is %v after %v", i, w, before)
		}
		before = w
	}
	if before != maxDelay || th.wait(other, now) != 0 {
		t.Errorf("delay %v; another address waits %v", before, th.wait(other, now))
	}
	if w := th.wait(one, now.Add(maxDelay)); w != 0 {
		t.Errorf("still %v", w)
	}
	later := now.Add(maxDelay + forgetAfter)
	th.add(one, later)
	if th.wait(one, later) != 0 {
		t.Error("not forgotten")
	}
	// Whoever has a /64 has one try at a time, and the table is bounded whoever comes.
	th = wrongCredentials{}
	for i := range freeTries + 1 {
		th.add(netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1)), now)
	}
	if th.wait(netip.MustParseAddr("2001:db8::ffff:1"), now) == 0 || th.wait(netip.MustParseAddr("2001:db8:0:1::1"), now) != 0 {
		t.Error("an IPv6 network is not one address")
	}
	for i := range 3 * maxAddresses {
		th.add(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	if len(th.from) > maxAddresses {
		t.Errorf("%d addresses", len(th.from))
	}
}
