package statemachine

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// legal is written out a second time, by hand, so that a slip in the table shows.
var legal = map[State]map[Event]State{
	Creating:   {Ready: Idle, Ended: Terminated},
	Idle:       {Began: Running, Ended: Terminated},
	Running:    {Finished: Idle, Ended: Terminated},
	Terminated: {},
}

func TestEveryPairIsDecided(t *testing.T) {
	for _, from := range States {
		for _, e := range append(Events[:len(Events):len(Events)], "no such event") {
			m := New(from)
			got, to, err := m.Fire(e)
			want, ok := legal[from][e]
			if !ok {
				want = from
			}
			if (err == nil) != ok || got != from || to != want || m.State() != want {
				t.Errorf("%s + %s: %s → %s (now %s), %v; want %s, legal %v", from, e, got, to, m.State(), err, want, ok)
			}
			if err != nil && (!strings.Contains(err.Error(), string(from)) || !strings.Contains(err.Error(), string(e))) {
				t.Errorf("%s + %s: %q does not say which", from, e, err)
			}
		}
	}
}

func TestRefusalLeavesTheMachineUsable(t *testing.T) {
	m := New(Idle)
	for range 3 {
		if _, _, err := m.Fire(Finished); err == nil {
			t.Fatal("finished while idle: accepted")
		}
	}
	for _, e := range []Event{Began, Finished, Began, Ended} {
		if _, _, err := m.Fire(e); err != nil {
			t.Fatal(err)
		}
	}
	if m.State() != Terminated {
		t.Fatalf("state %s", m.State())
	}
}

// ACCEPTANCE M1.
func TestOneOfManyGetsTheTurn(t *testing.T) {
	for range 500 {
		m := New(Idle)
		race(t, m, 2, Began, 1)
		if m.State() != Running {
			t.Fatalf("state %s", m.State())
		}
	}
	race(t, New(Running), 8, Ended, 1) // whoever ends a session does so once
	race(t, New(Terminated), 8, Began, 0)
}

func race(t *testing.T, m *Machine, n int, e Event, want int) {
	t.Helper()
	start, won := make(chan struct{}), make(chan bool, n)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			<-start
			_ = m.State()
			_, _, err := m.Fire(e)
			won <- err == nil
		})
	}
	close(start)
	all.Wait()
	close(won)
	winners := 0
	for w := range won {
		if w {
			winners++
		}
	}
	if winners != want {
		t.Fatalf("%s fired by %d: %d succeeded, want %d", e, n, winners, want)
	}
}

func TestUnknownStatePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New accepted a state that does not exist")
		}
	}()
	New("PAUSED")
}

func TestDocumentShowsTheTable(t *testing.T) {
	page, err := os.ReadFile("../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	const open, shut = "<!-- statemachine.Diagram -->\n```mermaid\n", "```\n<!-- end -->"
	_, rest, ok := strings.Cut(string(page), open)
	block, _, ok2 := strings.Cut(rest, shut)
	if !ok || !ok2 {
		t.Fatal("no diagram between the markers")
	}
	if block != Diagram() {
		t.Errorf("docs/ARCHITECTURE.md shows\n%s\nand the table is\n%s", block, Diagram())
	}
}
