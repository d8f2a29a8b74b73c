package shell

import (
	"sync"
	"testing"
	"time"

	"trl/runtime/journal"
	"trl/runtime/own"
)

// meetingGroup is a group whose requests wait until all that a terminal needs before its start have been made.
type meetingGroup struct {
	own.KeptGroup
	t       *testing.T
	missing sync.WaitGroup
}

func (g *meetingGroup) meet(what string) {
	g.missing.Done()
	all := make(chan struct{})
	go func() { g.missing.Wait(); close(all) }() // ends with the last request
	select {
	case <-all:
	case <-time.After(10 * time.Second):
		g.t.Errorf("%s waited for its turn, and not all others had been requested", what)
	}
}

func (g *meetingGroup) NewScope() (own.KeptScope, error) {
	g.meet("the scope")
	return g.KeptGroup.NewScope()
}

func (g *meetingGroup) Hold(fds ...int) ([]int, error) {
	g.meet("a file")
	return g.KeptGroup.Hold(fds...)
}

func (g *meetingGroup) MakeChannels(kinds []own.ChannelKind, also ...int) ([]own.Channel, []int, error) {
	return own.MakeAnonymousChannels(g, kinds, also...)
}

// TestTerminalNeedsTwoRoundTrips: scope, PTY, stdin and startup file of a terminal are requested at the same time. Its first process needs them all.
func TestTerminalNeedsTwoRoundTrips(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		if s.Name() == "zsh" || s.currentGroup().UsesFIFOs() {
			t.Skip("requests other things")
		}
		g := &meetingGroup{KeptGroup: s.currentGroup(), t: t}
		g.missing.Add(3) // the scope, the PTY with its log, the stdin
		if s.Name() == "bash" {
			g.missing.Add(1) // the startup file
		}
		s.mu.Lock()
		s.group = g
		s.mu.Unlock()
		term, err := s.PrepareTerminal(TerminalSpec{Cols: 80, Rows: 24, Journal: journal.New(1 << 20)})
		s.mu.Lock()
		s.group = g.KeptGroup
		s.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if err := term.Close(t.Context(), 0); err != nil {
			t.Error(err)
		}
		term.Release()
	})
}
