// Package statemachine holds the states of a session and the legal moves between them.
//
// It decides and remembers, and does nothing else: the caller of Fire acts afterwards, on what Fire returned.
package statemachine

import (
	"context"
	"fmt"
	"sync"

	"github.com/looplab/fsm"
)

// State is a session's state, in the words of the wire.
type State string

// The states, as PROTOCOL.md describes them under Sessions.
const (
	Creating   State = "CREATING"   // the shell is starting
	Idle       State = "IDLE"       // the shell waits for a command
	Running    State = "RUNNING"    // a command has the shell
	Terminated State = "TERMINATED" // final: nothing of the session is left
)

// Event is what happened to a session, in the past tense.
type Event string

// The events. A caller that fires Began without an error has the turn.
const (
	Ready    Event = "ready"    // the shell answers
	Began    Event = "began"    // a command took the turn
	Finished Event = "finished" // the command ended, and the shell is usable again
	Ended    Event = "ended"    // the session is over, for whatever reason
)

// States and Events list all states and events, in the order of a session's life.
var (
	States = []State{Creating, Idle, Running, Terminated}
	Events = []Event{Ready, Began, Finished, Ended}
)

// moves is the table. Every pair that is not in it is an error.
var moves = []fsm.EventDesc{
	{Name: string(Ready), Src: []string{string(Creating)}, Dst: string(Idle)},
	{Name: string(Began), Src: []string{string(Idle)}, Dst: string(Running)},
	{Name: string(Finished), Src: []string{string(Running)}, Dst: string(Idle)},
	{Name: string(Ended), Src: []string{string(Creating), string(Idle), string(Running)}, Dst: string(Terminated)},
}

// Machine is one session's state. It has no callbacks: an event fired inside a callback would wait for the lock of the move in progress.
type Machine struct {
	mu    sync.Mutex
	table *fsm.FSM // guarded by mu: in fsm v1.0.3 two concurrent events race
}

// New makes a machine in the given state. It panics on a state that is not in the list, because only a bug can ask for one.
func New(initial State) *Machine {
	for _, s := range States {
		if s == initial {
			return &Machine{table: fsm.NewFSM(string(initial), moves, nil)}
		}
	}
	panic(fmt.Sprintf("statemachine: no state %q", initial))
}

// Fire makes a move. On an illegal move it returns an error, and from and to are both the current state, which does not change.
//
// It takes no context: in fsm v1.0.3 an event with a cancelled context leaves its transition pending, and the machine refuses every later event.
func (m *Machine) Fire(e Event) (from, to State, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from = State(m.table.Current())
	if err := m.table.Event(context.Background(), string(e)); err != nil {
		return from, from, fmt.Errorf("session %s, event %s: %w", from, e, err)
	}
	return from, State(m.table.Current()), nil
}

// State returns the current state. Another goroutine's Fire may change it at once.
func (m *Machine) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return State(m.table.Current())
}

// Diagram returns the table as a Mermaid state diagram. docs/ARCHITECTURE.md shows it, and a test compares them.
func Diagram() string {
	text, err := fsm.VisualizeForMermaidWithGraphType(New(Creating).table, fsm.StateDiagram)
	if err != nil {
		panic(err) // only an unknown kind of diagram fails
	}
	return text
}
