package testkit

import (
	"errors"
	"testing"
	"time"

	"trl/protocol"
)

// Patience is the time after which a test gives up a wait, also on a busy machine.
const Patience = 60 * time.Second

// Eventually polls until f returns true. It fails the test after Patience.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	EventuallyWithin(t, Patience, what, f)
}

// EventuallyWithin is Eventually with another limit. It pauses after each look, the longer the more a look costs and the longer it has waited
// already: waits for other processes do not need the processor that these need.
func EventuallyWithin(t testing.TB, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for begin := time.Now(); ; {
		look := time.Now()
		if f() {
			return
		}
		now := time.Now()
		if now.Sub(begin) > limit {
			t.Fatalf("did not happen within %v: %s", limit, what)
		}
		time.Sleep(min(max(2*time.Millisecond, 3*now.Sub(look), now.Sub(begin)/16), 50*time.Millisecond))
	}
}

// WantCode checks that err is a protocol.Error with this code, and returns it.
func WantCode(t testing.TB, err error, code protocol.Code) *protocol.Error {
	t.Helper()
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("error %v, want %s", err, code)
	}
	return e
}

// Repeat calls f repeatedly until end is called. end waits for the last call.
func Repeat(f func()) (end func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop; end waits for it
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				f()
			}
		}
	}()
	return func() { close(stop); <-stopped }
}
