package move

import (
	"fmt"
	"testing"
	"time"

	"trl/protocol"
)

// TestUnmovedAreBounded: a drain names so many sessions that stay, in the order of their ids.
func TestUnmovedAreBounded(t *testing.T) {
	mv := &Mover{}
	d := mv.Drain()
	for i := range maxUnmoved + 20 {
		if d.begin(&protocol.SessionInfo{Session: protocol.Session{SessionID: fmt.Sprintf("s-%03d", i)}, Terminals: 1}) {
			t.Fatal("a session with a terminal may be moved")
		}
	}
	p := mv.Progress()
	if len(p.Unmoved) != maxUnmoved || p.Unmoved[0].SessionID != "s-000" || p.Unmoved[maxUnmoved-1].Reason != "terminals" {
		t.Errorf("%d: %v", len(p.Unmoved), p.Unmoved)
	}
}

// TestRetriesOfADrainAreBounded: each failed attempt doubles the wait until the next, up to lastRetry; a session that is only busy is tried again soon.
func TestRetriesOfADrainAreBounded(t *testing.T) {
	d := (&Mover{}).Drain()
	wait := func(err error) time.Duration {
		if !d.begin(&protocol.SessionInfo{Session: protocol.Session{SessionID: "s-1"}}) {
			t.Fatal("it is not tried")
		}
		before := time.Now()
		d.end("s-1", err)
		took := d.tries["s-1"].next.Sub(before)
		d.tries["s-1"].next = before // as if it had passed
		return took.Truncate(firstRetry)
	}
	unreachable := protocol.Errorf(protocol.NodeUnreachable, "no answer")
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10, 10, 10, 10, 10, 10} {
		if got := wait(unreachable); got != want*time.Second {
			t.Errorf("after attempt %d: %s", i+1, got)
		}
	}
	if got := wait(protocol.Errorf(protocol.SessionBusy, "busy").With("reason", "commands")); got != firstRetry {
		t.Errorf("a busy session: %s", got)
	}
}
