package events

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
)

// publish publishes n events with a command of size bytes.
func publish(all *Watchers, n, size int) {
	for range n {
		all.Publish("exec.started", func() any { return protocol.ExecStarted{Command: strings.Repeat("x", size)} })
	}
}

// A watcher that does not take its events ends, and holds none of them: many small ones overflow it as a few large ones do.
func TestWatcherThatFallsBehind(t *testing.T) {
	for size, most := range map[int]int{0: maxEvents, protocol.MaxText: maxBytes / (protocol.MaxText + 512)} {
		all := New(&sync.Mutex{})
		w := all.Subscribe()
		publish(all, most, size)
		if _, err := w.Next(t.Context()); err != nil {
			t.Errorf("%d events of %d bytes: %v", most, size, err)
		}
		publish(all, 2, size)
		if _, err := w.Next(t.Context()); err != ErrOverflow {
			t.Errorf("%d events of %d bytes more than it takes: %v, want %v", 2, size, err, ErrOverflow)
		}
		if w.weight != 0 || w.events != nil {
			t.Errorf("%d events of %d bytes are kept", len(w.events), w.weight)
		}
		w.Close()
		w.Close()
	}
}

// One watcher more than maxWatchers is refused, and a place that is given back is free.
func TestWatchersOfASession(t *testing.T) {
	all := New(&sync.Mutex{})
	var list []*Watcher
	for range maxWatchers {
		w := all.Subscribe()
		if w.Refused() != nil {
			t.Fatal(w.Refused())
		}
		list = append(list, w)
	}
	w := all.Subscribe()
	if e := testkit.WantCode(t, w.Refused(), protocol.LimitExceeded); e.Details["limit"] != maxWatchers {
		t.Error(e.Details)
	}
	w.Close()
	list[0].Close()
	if w = all.Subscribe(); w.Refused() != nil {
		t.Error(w.Refused())
	}
}

// Watchers get the events in order, and io.EOF after the last one; one that comes later gets io.EOF alone.
func TestEventsComeInOrder(t *testing.T) {
	all := New(&sync.Mutex{})
	all.Publish("before", func() any { t.Error("an event was made for nobody"); return nil })
	w := all.Subscribe()
	for i := range 3 {
		all.Publish(fmt.Sprint(i), func() any { return nil })
	}
	all.Close()
	for i := range 3 {
		if ev, err := w.Next(t.Context()); err != nil || ev.Name != fmt.Sprint(i) {
			t.Errorf("event %d is %+v, %v", i, ev, err)
		}
	}
	for _, w := range []*Watcher{w, all.Subscribe()} {
		if ev, err := w.Next(t.Context()); err != io.EOF || w.Refused() != nil {
			t.Errorf("after the end: %+v, %v, %v", ev, err, w.Refused())
		}
	}
}
