package client

import (
	"bytes"
	"testing"
)

// TestAFeedOfSmallPiecesStaysSmall: the window counts bytes, and an event for each byte would take hundreds of times as much.
func TestAFeedOfSmallPiecesStaysSmall(t *testing.T) {
	f := newFeed("exec", "x-1")
	var want []byte
	for i := range 100_000 {
		b := []byte{byte(i)}
		want = append(want, b...)
		f.put(Event{Type: EventStdout, Offset: int64(i), Data: b}, nil)
	}
	f.put(Event{Type: EventStderr, Offset: int64(len(want)), Data: []byte("!")}, nil)
	if n := len(f.events); n > 200 {
		t.Errorf("%d events", n)
	}
	var got []byte
	for e, ok := f.take(); ok && e.Type == EventStdout; e, ok = f.take() {
		if e.Offset != int64(len(got)) {
			t.Fatalf("offset %d after %d bytes", e.Offset, len(got))
		}
		got = append(got, e.Data...)
	}
	if !bytes.Equal(got, want) || f.held != 0 {
		t.Errorf("%d bytes of %d, %d held", len(got), len(want), f.held)
	}
}
