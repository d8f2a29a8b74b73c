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

// openCounted opens a terminal and counts the requests.
func openCounted(t *testing.T, s *session, spec TerminalSpec) (*Terminal, *countingGroup) {
	t.Helper()
	g := &countingGroup{KeptGroup: s.currentGroup()}
	s.mu.Lock()
	s.group = g
	s.mu.Unlock()
	term, err := s.PrepareTerminal(spec)
	s.mu.Lock()
	s.group = g.KeptGroup
	s.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	term.Start()
	return term, g
}

// collect returns a function that returns what a journal has got so far.
func collect(j *journal.Journal) func() string {
	var mu sync.Mutex
	var all strings.Builder
	j.Tap(func(_ journal.Stream, p []byte) {
		mu.Lock()
		defer mu.Unlock()
		all.Write(p)
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
}

// TestTerminalNeedsOneRequest: a terminal of a session with a fresh shell costs one round trip to the keeper.
func TestTerminalNeedsOneRequest(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		if s.Name() == "zsh" || s.currentGroup().UsesFIFOs() {
			t.Skip("needs files by name, which it requests first")
		}
		out := journal.New(1 << 20)
		printed := collect(out)
		term, g := openCounted(t, s, TerminalSpec{Cols: 80, Rows: 24, Nonce: "n0", Journal: out})
		if !slices.Equal(g.requests, []string{"start"}) {
			t.Errorf("requests: %q", g.requests)
		}
		if s.Name() == "bash" { // its startup file, which it inherits, is closed for what it starts
			if _, err := term.Input(stream.Anywhere, []byte("[ -e /proc/$$/fd/3 ] || echo no-$((3+1))-fd\n")); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the terminal's marks, and no descriptor 3", func() bool {
				text := printed()
				return strings.Contains(text, "133;A;aid=n0") && strings.Contains(text, "no-4-fd")
			})
		}
		if err := term.Close(t.Context(), 0); err != nil {
			t.Error(err)
		}
		term.Release()
	})
}
