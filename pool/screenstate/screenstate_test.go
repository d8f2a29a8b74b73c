package screenstate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/runtime/journal"
	"trl/runtime/screen"
)

// newTerminal makes the state of a terminal of 80 by 24 that has no process. print writes its output.
func newTerminal(e *Emulators, ended chan struct{}) (s *State, print func(string)) {
	j, m := journal.New(4<<20), screen.NewMarks("")
	s = New(e, "me", j, m, ended)
	s.Resized(0, 80, 24)
	j.Tap(func(_ journal.Stream, p []byte) {
		m.Write(p)
		s.Printed(int64(len(p)))
	})
	return s, func(text string) { j.Write(journal.Stdout, []byte(text)) }
}

func firstLine(t *testing.T, s *State) (line string, at, skipped int64) {
	t.Helper()
	if err := s.With(t.Context(), func(sc *screen.Screen, a, n int64) { line, at, skipped = sc.Lines()[0], a, n }); err != nil {
		t.Fatal(err)
	}
	return line, at, skipped
}

// A terminal that has ended has no emulator (4 MiB), whether it was looked at before or not; a look makes one and drops it again.
func TestAnEndedTerminalHasNoEmulator(t *testing.T) {
	e := NewEmulators(nil)
	for _, looked := range []bool{false, true} {
		ended := make(chan struct{})
		s, print := newTerminal(e, ended)
		print("one\r\ntwo")
		if looked {
			firstLine(t, s)
			if s.screen == nil || len(e.kept) != 1 {
				t.Error("the emulator of a terminal that runs is not kept")
			}
		}
		close(ended)
		s.Drop()
		if s.screen != nil || len(e.kept) != 0 {
			t.Error("the emulator is still there")
		}
		if line, at, _ := firstLine(t, s); line != "one" || at != s.journal.Size() {
			t.Errorf("%q at %d", line, at)
		}
		if s.screen != nil || len(e.kept) != 0 {
			t.Error("the emulator is there again")
		}
	}
}

// An emulator that is in use when the terminal ends is dropped afterwards.
func TestEmulatorInUseIsDroppedAfterwards(t *testing.T) {
	e, ended := NewEmulators(nil), make(chan struct{})
	s, print := newTerminal(e, ended)
	print("one")
	if err := s.With(t.Context(), func(*screen.Screen, int64, int64) { close(ended); s.Drop() }); err != nil {
		t.Fatal(err)
	}
	if s.screen != nil || len(e.kept) != 0 {
		t.Error("the emulator is still there")
	}
}

// The emulator leaves output out when reading all would take too long, and only then, and says so.
func TestScreenSkipsAheadAndSaysSo(t *testing.T) {
	for _, patience := range []time.Duration{time.Hour, 0} {
		e := NewEmulators(nil)
		e.RenderTimeout = patience
		s, print := newTerminal(e, nil)
		print("\x1b[?1049htop\r\n" + strings.Repeat(strings.Repeat("x", 38)+"\r\n", 25_000) + "\x1b[Hthe end")
		line, at, skipped := firstLine(t, s)
		if !strings.HasPrefix(line, "the end") || at != s.journal.Size() {
			t.Errorf("%q at %d", line, at)
		}
		if most := at - window; patience == 0 && (skipped == 0 || skipped > most) || patience > 0 && skipped != 0 {
			t.Errorf("patience %v: skipped %d of %d", patience, skipped, at)
		}
	}
}

// Follow reads what a full-screen program prints, and nothing of one that uses the main screen.
func TestFollowReadsTheAlternateScreen(t *testing.T) {
	for start, want := range map[string]bool{"": false, "\x1b[?1049h": true} {
		var tasks sync.WaitGroup
		e := NewEmulators(&tasks)
		e.PauseFactor = 0
		exited := make(chan struct{})
		s, print := newTerminal(e, nil)
		print(start + strings.Repeat("x", maxLag))
		s.Follow(exited)
		if want {
			testkit.Eventually(t, "the output to be followed", func() bool { return !s.IsBehind() })
		}
		close(exited)
		tasks.Wait()
		if s.IsBehind() == want {
			t.Errorf("after %q: read %d", start, s.read.Load())
		}
	}
}

// A principal beyond its budget loses the emulator that it used least recently, and nobody else does.
func TestEmulatorsKeepWithinTheirBudget(t *testing.T) {
	e := NewEmulators(nil)
	holds := func(owner string, bytes int) *State {
		s := &State{owner: owner, screen: screen.New(80, 24), fedTo: 1}
		s.mu.Lock()
		defer s.mu.Unlock()
		e.setSize(s, bytes)
		return s
	}
	others := holds("other", 1)
	first, second := holds("me", maxBytesOfPrincipal/2), holds("me", maxBytesOfPrincipal/2)
	if first.screen == nil || second.screen == nil {
		t.Fatal("they are within the budget")
	}
	second.mu.Lock() // in use
	third := holds("me", maxBytesOfPrincipal/2)
	second.mu.Unlock()
	if first.screen != nil || first.fedTo != 0 || second.screen == nil || third.screen == nil || others.screen == nil {
		t.Error("not the one that was used least recently")
	}
	for i := range maxBytes / maxBytesOfPrincipal {
		holds(fmt.Sprint(i), maxBytesOfPrincipal)
	}
	all := 0
	for _, k := range e.kept {
		all += k.bytes
	}
	if all > maxBytes || others.screen == nil {
		t.Errorf("%d bytes in all", all)
	}
}

// One principal has one screen worked out at a time, others do meanwhile, and a client that has gone does not wait.
func TestOneLooksAtOneScreenAtATime(t *testing.T) {
	e := NewEmulators(nil)
	leave, err := e.acquireSlot(t.Context(), "me")
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.acquireSlot(gone, "me"); err == nil {
		t.Error("two at a time")
	}
	other, err := e.acquireSlot(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	other()
	leaves := []func(){leave}
	for i := range maxRenders - 1 {
		leave, err := e.acquireSlot(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := e.acquireSlot(gone, "one more"); err == nil {
		t.Errorf("%d at a time", maxRenders+1)
	}
	for _, leave := range leaves {
		leave()
	}
	if len(e.principals) != 0 || len(e.renderSlots) != 0 {
		t.Error("something is left")
	}
}
