package warm

import (
	"testing"
	"testing/synctest"
	"time"
)

const bash = "/bin/bash"

// TestNextShellWaitsForATerminal: when the last shell was taken, the next one is started at once, but not while a terminal starts that would wait for the
// same processors. Further terminals do not make it wait longer.
func TestNextShellWaitsForATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a clock that stands still
		w := New(Config{})
		w.Take(bash, false)
		if next, wait := w.due(1, bash); next != bash || wait != 0 {
			t.Errorf("%s in %v, not at once", next, wait)
		}
		w.Take(bash, true)
		until := w.pauseEnd
		if _, wait := w.due(1, bash); wait != terminalPause {
			t.Errorf("in %v", wait)
		}
		w.Take(bash, true)
		if w.pauseEnd != until {
			t.Error("a second terminal makes the pause longer")
		}
		time.Sleep(terminalPause)
		if _, wait := w.due(1, bash); wait != 0 {
			t.Errorf("in %v after the pause", wait)
		}
	})
}
