package shell

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"trl/internal/testkit"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/stream"
)

// countingGroup counts the requests that a terminal makes before it runs. Each of the group's methods below is one.
type countingGroup struct {
	own.KeptGroup
	requests []string
}

func (g *countingGroup) StartInNewScope(s own.Spec, hold ...int) (own.Started, error) {
	g.requests = append(g.requests, "start")
	return g.KeptGroup.StartInNewScope(s, hold...)
}

func (g *countingGroup) NewScope() (own.KeptScope, error) {
	g.requests = append(g.requests, "scope")
	return g.KeptGroup.NewScope()
}

func (g *countingGroup) Hold(fds ...int) ([]int, error) {
	g.requests = append(g.requests, "hold")
	return g.KeptGroup.Hold(fds...)
}

func (g *countingGroup) MakeChannels(kinds []own.ChannelKind, also ...int) ([]own.Channel, []int, error) {
	g.requests = append(g.requests, "make")
	return g.KeptGroup.MakeChannels(kinds, also...)
}

// TestTerminalNeedsOneRequest: a terminal of a session with a fresh shell costs one round trip to the keeper.
func TestTerminalNeedsOneRequest(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		if s.Name() == "zsh" || s.currentGroup().UsesFIFOs() {
			t.Skip("needs files by name, which it requests first")
		}
		g := &countingGroup{KeptGroup: s.currentGroup()}
		s.mu.Lock()
		s.group = g
		s.mu.Unlock()
		out := journal.New(1 << 20)
		var mu sync.Mutex
		var printed strings.Builder
		out.Tap(func(_ journal.Stream, p []byte) {
			mu.Lock()
			defer mu.Unlock()
			printed.Write(p)
		})
		term, err := s.PrepareTerminal(TerminalSpec{Cols: 80, Rows: 24, Nonce: "n0", Journal: out})
		s.mu.Lock()
		s.group = g.KeptGroup
		s.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(g.requests, []string{"start"}) {
			t.Errorf("requests: %q", g.requests)
		}
		if s.Name() == "bash" { // its startup file, which it inherits, is closed for what it starts
			if _, err := term.Input(stream.Anywhere, []byte("[ -e /proc/$$/fd/3 ] || echo no-$((3+1))-fd\n")); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the terminal's marks, and no descriptor 3", func() bool {
				mu.Lock()
				defer mu.Unlock()
				text := printed.String()
				return strings.Contains(text, "133;A;aid=n0") && strings.Contains(text, "no-4-fd")
			})
		}
		if err := term.Close(t.Context(), 0); err != nil {
			t.Error(err)
		}
		term.Release()
	})
}
