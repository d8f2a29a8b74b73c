package pool

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/screen"
	"trl/runtime/stream"
)

// A client is shown the same screen before the end of a terminal and after it.
func TestAnEndedTerminalHasItsScreen(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{Shell: "/bin/bash"})
	for _, looked := range []bool{false, true} {
		term := openTerm(t, s, protocol.TermOpen{Command: `printf 'one\r\n\033[1mtwo'; read -r x`})
		shownBy(t, term, "two")
		if looked && snapshot(t, term).State != "running" {
			t.Error("it runs, and is shown as ended")
		}
		if _, err := term.Input(nil, stream.Anywhere, []byte("\r")); err != nil {
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

// The end of a terminal does not wait for its screen, whatever the terminal prints and however long the emulator takes: here it does not come to
// an end.
func TestWhatEndsATerminalDoesNotWaitForItsScreen(t *testing.T) {
	r := newRig(t, Config{})
	for name, command := range map[string]string{
		"lines": "yes", "lines/alternate": `printf '\033[?1049h'; yes`, "repeat/alternate": `printf '\033[?1049h'; yes "$(printf 'x\033[1000b')"`,
	} {
		for how, end := range map[string]func(context.Context, *Terminal) error{
			"close": func(ctx context.Context, term *Terminal) error { return term.Close(ctx, of(protocol.Seconds(0))) },
			"destroy": func(ctx context.Context, term *Terminal) error {
				_, err := term.session.Destroy(ctx, &protocol.SessionDestroy{Force: true})
				return err
			},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				s := r.create(protocol.SessionCreate{Shell: "/bin/bash"})
				term := openTerm(t, s, protocol.TermOpen{Command: command})
				inside, release, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
				go func() { // ends when release is closed
					left <- term.screen.With(t.Context(), func(*screen.Screen, int64, int64) { close(inside); <-release })
				}()
				wait(t, "the emulator", inside)
				testkit.Eventually(t, "output that the screen lags behind", term.screen.IsBehind)
				ctx, cancel := context.WithTimeout(t.Context(), generous)
				defer cancel()
				if err := end(ctx, term); err != nil {
					t.Error(err)
				}
				close(release)
				if err := <-left; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A program in the alternate screen that prints more than the ring holds has its screen, also the parts that it drew first.
func TestFullScreenIsFollowed(t *testing.T) {
	r := newRig(t, Config{RingBytes: 512 << 10})
	r.emulators.PauseFactor, r.emulators.RenderTimeout = 0, time.Hour
	s := r.create(protocol.SessionCreate{Shell: "/bin/bash"})
	term := openTerm(t, s, protocol.TermOpen{Command: `printf '\033[?1049htop'; while read -r x; do yes "$(printf '\033[9Hx')" | tr -d '\n' | head -c 800000; done`})
	shownBy(t, term, "top")
	for range 4 {
		before := term.Journal().Size()
		if _, err := term.Input(nil, stream.Anywhere, []byte("\n")); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "output that was followed", func() bool {
			return term.Journal().Size() >= before+800000 && !term.screen.IsBehind()
		})
	}
	if shot := snapshot(t, term); !strings.HasPrefix(shot.Lines[0], "top") || shot.SkippedBytes != 0 || term.Journal().Start() == 0 {
		t.Errorf("%+v, the ring begins at %d", shot, term.Journal().Start())
	}
}
