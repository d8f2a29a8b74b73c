package credit

import (
	"context"
	"math"
	"testing"
	"time"

	"trl/internal/testkit"
)

// TestWindowOfEverything: a window that nothing fills holds nothing back, wherever the stream begins.
func TestWindowOfEverything(t *testing.T) {
	never := func(bool) { t.Error("it waits") }
	if !New(math.MaxInt64, 8).Await(t.Context(), 100, testkit.Patience, nil, never) || !New(0, 8).Await(t.Context(), 100, 0, nil, never) {
		t.Error("nothing may be sent")
	}
	c := New(10, 0)
	c.Ack(math.MaxInt64)
	if !c.Await(t.Context(), 100, testkit.Patience, nil, never) {
		t.Error("nothing may be sent after an acknowledgement of everything")
	}
}

// A full window waits for an acknowledgement; the program does not wait for a client that acknowledges nothing.
func TestFullWindowWaits(t *testing.T) {
	c := New(10, 0)
	blocks := make(chan bool, 2)
	sent := make(chan bool, 1)
	go func() { sent <- c.Await(t.Context(), 10, time.Millisecond, nil, func(on bool) { blocks <- on }) }()
	if <-blocks {
		t.Error("the program waits for a silent client")
	}
	c.Ack(0)
	c.Ack(1)
	if !<-sent || !<-blocks {
		t.Error("an acknowledgement does not end the wait")
	}

	stopped := make(chan struct{})
	close(stopped)
	if c.Await(t.Context(), 100, testkit.Patience, stopped, nil) {
		t.Error("a stream that is not followed any more may be sent")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c.Await(ctx, 100, testkit.Patience, nil, nil) {
		t.Error("a connection that has ended may be sent something")
	}
}
