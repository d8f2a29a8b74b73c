package gone

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// TestAwaitWaitsForEveryCall: a session may be made again only when the last goroutine that makes the keeper forget it is done.
func TestAwaitWaitsForEveryCall(t *testing.T) {
	var s Sessions
	if err := s.Await(t.Context(), "a"); err != nil {
		t.Errorf("nobody makes the keeper forget it: %v", err)
	}
	first, second := s.Begin("a"), s.Begin("a")
	waits := func() bool {
		t.Helper()
		over := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(over)
		switch err := s.Await(ctx, "a"); {
		case err == nil:
			return false
		case !errors.Is(err, over):
			t.Errorf("instead of the cause: %v", err)
		}
		return true
	}
	if !waits() {
		t.Error("it does not wait")
	}
	if err := s.Await(t.Context(), "b"); err != nil {
		t.Errorf("another session: %v", err)
	}
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() { // ends with the last call
			if err := s.Await(t.Context(), "a"); err != nil {
				t.Error(err)
			}
		})
	}
	first()
	if !waits() {
		t.Error("it does not wait for the second call")
	}
	second()
	waiting.Wait()
	if len(s.going) != 0 {
		t.Errorf("%d sessions are kept in mind", len(s.going))
	}

	again := s.Begin("a")
	if !waits() {
		t.Error("it does not wait for a call after the first ones")
	}
	again()
	if waits() {
		t.Error("it waits for nobody")
	}
}
