package pool

import (
	"slices"
	"testing"

	"trl/protocol"
)

// TestAnEndedTerminalHasNoEmulator: who looks at it, before its end or after, is shown the same, and its emulator (4 MiB) has gone.
func TestAnEndedTerminalHasNoEmulator(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{Shell: "/bin/bash"})
	for _, looked := range []bool{false, true} {
		term := openTerm(t, s, protocol.TermOpen{Command: `printf 'one\r\n\033[1mtwo'; read -r x`})
		shownBy(t, term, "two")
		if looked && term.Snapshot().State != "running" {
			t.Error("it runs, and is shown as ended")
		}
		if err := term.Input(nil, []byte("\r")); err != nil {
			t.Fatal(err)
		}
		wait(t, "the terminal's end", term.Done())
		first, again := term.Snapshot(), term.Snapshot()
		if first.State != "exited" || first.Offset != term.Journal().Size() || !slices.Equal(first.Lines[:2], []string{"one", "two"}) || !slices.Equal(first.Lines, again.Lines) {
			t.Errorf("looked at before %t: %+v, then %+v", looked, first, again)
		}
		if text, at := term.Screen(); len(text) == 0 || at != first.Offset {
			t.Errorf("%d bytes at %d", len(text), at)
		}
		term.shown.mu.Lock()
		if term.shown.screen != nil {
			t.Error("the emulator is still there")
		}
		term.shown.mu.Unlock()
	}
}
