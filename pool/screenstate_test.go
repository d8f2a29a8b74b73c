package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/screen"
)

// TestAnEndedTerminalHasNoEmulator: who looks at it, before its end or after, is shown the same, and its emulator (4 MiB) has gone.
func TestAnEndedTerminalHasNoEmulator(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{Shell: "/bin/bash"})
	for _, looked := range []bool{false, true} {
		term := openTerm(t, s, protocol.TermOpen{Command: `printf 'one\r\n\033[1mtwo'; read -r x`})
		shownBy(t, term, "two")
		if looked && snapshot(t, term).State != "running" {
			t.Error("it runs, and is shown as ended")
		}
		if err := term.Input(nil, []byte("\r")); err != nil {
			t.Fatal(err)
		}
		wait(t, "the terminal's end", term.Done())
		first, again := snapshot(t, term), snapshot(t, term)
		if first.State != "exited" || first.Offset != term.Journal().Size() || !slices.Equal(first.Lines[:2], []string{"one", "two"}) || !slices.Equal(first.Lines, again.Lines) {
			t.Errorf("looked at before %t: %+v, then %+v", looked, first, again)
		}
		if text, at, err := term.Screen(t.Context()); err != nil || len(text) == 0 || at != first.Offset {
			t.Errorf("%d bytes at %d", len(text), at)
		}
		term.screenState.mu.Lock()
		if term.screenState.screen != nil {
			t.Error("the emulator is still there")
		}
		term.screenState.mu.Unlock()
	}
}

func snapshot(t *testing.T, term *Terminal) protocol.TermSnapshot {
	t.Helper()
	shot, err := term.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return shot
}

// TestWhatEndsATerminalDoesNotWaitForItsScreen: whatever it prints, and however long the emulator takes: here it does not
// come to an end.
func TestWhatEndsATerminalDoesNotWaitForItsScreen(t *testing.T) {
	r := newRig(t, Config{})
	for name, command := range map[string]string{
		"lines": "yes", "lines/alternate": `printf '\033[?1049h'; yes`, "repeat/alternate": `printf '\033[?1049h'; yes "$(printf 'x\033[1000b')"`,
	} {
		t.Run(name, func(t *testing.T) {
			s := r.create(protocol.SessionCreate{Shell: "/bin/bash"})
			closed, destroyed := openTerm(t, s, protocol.TermOpen{Command: command}), openTerm(t, s, protocol.TermOpen{Command: command})
			for _, term := range []*Terminal{closed, destroyed} {
				if shot := snapshot(t, term); shot.State != "running" {
					t.Errorf("%+v", shot)
				}
				term.screenState.mu.Lock()
			}
			for _, term := range []*Terminal{closed, destroyed} {
				testkit.Eventually(t, "output that the screen lags behind", func() bool { return term.Journal().Size() > term.screenState.fedTo+maxScreenLag })
			}
			ctx, cancel := context.WithTimeout(t.Context(), generous)
			defer cancel()
			if err := closed.Close(ctx, of(protocol.Seconds(0))); err != nil {
				t.Errorf("term.close: %v", err)
			}
			if _, err := s.Destroy(ctx, &protocol.SessionDestroy{Force: true}); err != nil {
				t.Errorf("session.destroy: %v", err)
			}
			for _, term := range []*Terminal{closed, destroyed} {
				term.releaseScreen()
				testkit.Eventually(t, "the end of the emulator", func() bool {
					term.screenState.mu.Lock()
					defer term.screenState.mu.Unlock()
					return term.screenState.screen == nil
				})
			}
		})
	}
}

// TestScreenSkipsAheadAndSaysSo: when reading all would take too long, and only then.
func TestScreenSkipsAheadAndSaysSo(t *testing.T) {
	for _, patience := range []time.Duration{time.Hour, 0} {
		r := newRig(t, Config{})
		r.emulators.renderTimeout = patience
		r.emulators.followSlot <- struct{}{} // nobody follows
		s := r.create(protocol.SessionCreate{Shell: "/bin/bash"})
		term := openTerm(t, s, protocol.TermOpen{Command: `printf '\033[?1049htop\r\n'; yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c 1000000; printf '\033[Hthe end'; read -r x`})
		shownBy(t, term, "the end")
		shot := snapshot(t, term)
		if !strings.HasPrefix(shot.Lines[0], "the end") || !shot.Alternate || shot.Offset != term.Journal().Size() {
			t.Errorf("%+v", shot)
		}
		if most := shot.Offset - screenWindow; patience == 0 && (shot.SkippedBytes == 0 || shot.SkippedBytes > most) || patience > 0 && shot.SkippedBytes != 0 {
			t.Errorf("patience %v: skipped %d of %d", patience, shot.SkippedBytes, shot.Offset)
		}
		<-r.emulators.followSlot
		if err := term.Input(nil, []byte("\n")); err != nil {
			t.Fatal(err)
		}
		wait(t, "the terminal's end", term.Done())
	}
}

// TestFullScreenIsFollowed: a program in the alternate screen that prints more than the ring holds has its screen, also what
// it drew first.
func TestFullScreenIsFollowed(t *testing.T) {
	r := newRig(t, Config{RingBytes: maxScreenLag})
	r.emulators.pauseFactor, r.emulators.renderTimeout = 0, time.Hour
	s := r.create(protocol.SessionCreate{Shell: "/bin/bash"})
	term := openTerm(t, s, protocol.TermOpen{Command: `printf '\033[?1049htop'; while read -r x; do yes "$(printf '\033[9Hx')" | tr -d '\n' | head -c 800000; done`})
	shownBy(t, term, "top")
	for range 4 {
		before := term.Journal().Size()
		if err := term.Input(nil, []byte("\n")); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "output that was followed", func() bool {
			if term.Journal().Size() < before+800000 {
				return false
			}
			term.screenState.mu.Lock()
			defer term.screenState.mu.Unlock()
			return term.screenState.fedTo > before
		})
	}
	if shot := snapshot(t, term); !strings.HasPrefix(shot.Lines[0], "top") || shot.SkippedBytes != 0 || term.Journal().Start() == 0 {
		t.Errorf("%+v, the ring begins at %d", shot, term.Journal().Start())
	}
}

// TestEmulatorsKeepWithinTheirBudget: who takes more than his share loses what he used least recently, and nobody else does.
func TestEmulatorsKeepWithinTheirBudget(t *testing.T) {
	e := newEmulators()
	holds := func(owner string, bytes int) *screenState {
		s := &screenState{screen: screen.New(80, 24), fedTo: 1}
		s.mu.Lock()
		defer s.mu.Unlock()
		e.setSize(s, owner, bytes)
		return s
	}
	others := holds("other", 1)
	first, second := holds("me", maxEmulatorBytesOfPrincipal/2), holds("me", maxEmulatorBytesOfPrincipal/2)
	if first.screen == nil || second.screen == nil {
		t.Fatal("they are within the budget")
	}
	second.mu.Lock() // in use
	third := holds("me", maxEmulatorBytesOfPrincipal/2)
	second.mu.Unlock()
	if first.screen != nil || first.fedTo != 0 || second.screen == nil || third.screen == nil || others.screen == nil {
		t.Error("not the one that was used least recently")
	}
	for i := range maxEmulatorBytes / maxEmulatorBytesOfPrincipal {
		holds(fmt.Sprint(i), maxEmulatorBytesOfPrincipal)
	}
	all := 0
	for _, k := range e.kept {
		all += k.bytes
	}
	if all > maxEmulatorBytes || others.screen == nil {
		t.Errorf("%d bytes in all", all)
	}
}

// TestOneLooksAtOneScreenAtATime: others do meanwhile, and who has gone does not wait.
func TestOneLooksAtOneScreenAtATime(t *testing.T) {
	e := newEmulators()
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
	for i := range maxScreenRenders - 1 {
		leave, err := e.acquireSlot(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := e.acquireSlot(gone, "one more"); err == nil {
		t.Errorf("%d at a time", maxScreenRenders+1)
	}
	for _, leave := range leaves {
		leave()
	}
	if len(e.principals) != 0 || len(e.renderSlots) != 0 {
		t.Error("something is left")
	}
}
