// Package statemachine is which states a session has and which moves are legal.
//
// It decides and remembers, nothing more: the caller of Fire acts afterwards, on
// what Fire returned.
package statemachine

import (
	"context"
	"fmt"
	"sync"

	"github.com/looplab/fsm"
)

// State is where a session is; the words are the wire's.
type State string

// The states of PROTOCOL.md §1.
const (
	Creating   State = "CREATING"   // the shell is starting
	Idle       State = "IDLE"       // the shell waits for a command
	Running    State = "RUNNING"    // a command has the shell
	Terminated State = "TERMINATED" // final: nothing of the session is left
)

// Event is what happened to a session, in the past tense.
type Event string

// The events. Whoever fires Began and gets no error has the turn.
const (
	Ready    Event = "ready"    // the shell answers
	Began    Event = "began"    // a command took the turn
	Finished Event = "finished" // it ended, and the shell is usable again
	Ended    Event = "ended"    // the session is over, for whatever reason
)

// States and Events are the whole of both lists, in the order of a session's life.
var (
	States = []State{Creating, Idle, Running, Terminated}
	Events = []Event{Ready, Began, Finished, Ended}
)

// moves is the table; every pair that is not in it is an error.
var moves = []fsm.EventDesc{
	{Name: string(Ready), Src: []string{string(Creating)}, Dst: string(Idle)},
	{Name: string(Began), Src: []string{string(Idle)}, Dst: string(Running)},
	{Name: string(Finished), Src: []string{string(Running)}, Dst: string(Idle)},
	{Name: string(Ended), Src: []string{string(Creating), string(Idle), string(Running)}, Dst: string(Terminated)},
}

// Machine is one session's state. It has no callbacks on purpose: an event fired
// from inside one would meet the lock of the move that is under way.
type Machine struct {
	mu    sync.Mutex
	table *fsm.FSM // guarded by mu: in fsm v1.0.3 two concurrent events race
}

// New is a machine in the state given. A state that is not in the list panics: it
// would refuse every event, and only a bug can ask for it.
func New(initial State) *Machine {
	for _, s := range States {
		if s == initial {
			return &Machine{table: fsm.NewFSM(string(initial), moves, nil)}
		}
	}
	panic(fmt.Sprintf("statemachine: no state %q", initial))
}

// Fire moves. On an illegal move it returns an error and from == to == the state
// that the machine is in and stays in.
//
// There is no context parameter: in fsm v1.0.3 an event with a cancelled context
// leaves its transition pending and the machine refuses every later event.
func (m *Machine) Fire(e Event) (from, to State, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from = State(m.table.Current())
	if err := m.table.Event(context.Background(), string(e)); err != nil {
		return from, from, fmt.Errorf("session %s, event %s: %w", from, e, err)
	}
	return from, State(m.table.Current()), nil
}

// State is where the machine is now; another goroutine's Fire may change it at once.
func (m *Machine) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return State(m.table.Current())
}

// Diagram is the table as a Mermaid state diagram. docs/ARCHITECTURE.md shows it, and
// a test compares the two.
func Diagram() string {
	text, err := fsm.VisualizeForMermaidWithGraphType(New(Creating).table, fsm.StateDiagram)
	if err != nil {
		panic(err) // only an unknown kind of diagram fails
	}
	return text
}
