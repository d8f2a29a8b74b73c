package runtime

import (
	"context"
	"syscall"

	"trl/protocol"
)

// A Keeper owns every process below trl, and holds for the gateway what must outlive it: descriptors. There are two: a
// Host in this very process (Local), where nothing outlives anything, and the keeper process behind its socket
// (runtime/keeper). What a Shell needs of either is below, and no more.
type Keeper interface {
	// Isolation tells which way of keeping processes together is in force, and why that one.
	Isolation() (tier, why string)
	// Tiers tells of all ways whether this machine has them, the surest first.
	Tiers() []TierReport
	// Unenforceable tells which limits cannot be enforced, by their names on the wire, and why not.
	Unenforceable() map[string]string
	// Dir is where held descriptors are found by their number, by us and by the shells: /proc/PID/fd.
	Dir() string
	// Group opens the place for a session's processes. Its owner ends it with Close.
	Group(id string) (KeptGroup, error)
	// KillOrphans ends what escaped from sessions that are gone, and returns how many that were.
	KillOrphans(live func(sessionID string) bool) int
}

// KeptGroup is one session's processes and what is held for it. See Group.
type KeptGroup interface {
	NewCell() (KeptCell, error)
	// Limit is called before anything of the user's runs, and once. A *LimitError: not here.
	Limit(l protocol.Limits) error
	// Meters are where the caller reads the usage; asked for after Limit.
	Meters() Meters
	// Hold keeps descriptors beyond our own end, until Drop or DropAll. The numbers are those in Keeper.Dir; the
	// descriptors given stay the caller's.
	Hold(fds ...int) (numbers []int, err error)
	Drop(numbers ...int)
	// DropAll forgets everything held, and with it the group: the last call, after Close.
	DropAll()
	Members() []int
	Signal(sig syscall.Signal, except ...int)
	Close(ctx context.Context) error
}

// KeptCell is what one command started. See Cell.
type KeptCell interface {
	Number() int // within its group, never given twice
	// Spawn starts a process in the cell; s.Cell is ignored.
	Spawn(s Spec) (KeptChild, error)
	Adopt(pid int) error     // one of the group's own children
	AdoptCopy(pid int) error // what such a child has forked and holds at a gate
	Others(shell int) []int
	Signal(sig syscall.Signal, shell int)
	SignalSome(sig syscall.Signal, pids ...int) // those that are in the cell
	Kill(shell int) error
	Remove() bool
}

// KeptChild is one process that was started for us. See Child.
type KeptChild interface {
	Pid() int
	Pidfd() int
	Exited() <-chan struct{}
	Status() Status
	Signal(sig syscall.Signal) error
	Close() error
}

// Inherited is what a keeper still has of a session whose gateway ended.
type Inherited struct {
	ID       string
	Group    KeptGroup
	Cells    map[int]KeptCell  // by number
	Children map[int]KeptChild // by pid; those that ended meanwhile too, with their status
	Held     map[int]int       // our new descriptor, by its number in Keeper.Dir
}

// Local makes h a Keeper for the process it lives in.
func Local(h *Host) Keeper { return local{h} }

type local struct{ *Host }

func (l local) Dir() string { return self() }

func (l local) Group(id string) (KeptGroup, error) {
	g, err := l.NewGroup(id)
	if err != nil {
		return nil, err
	}
	return localGroup{g}, nil
}

type localGroup struct{ *Group }

func (g localGroup) NewCell() (KeptCell, error) {
	c, err := g.Group.NewCell()
	if err != nil {
		return nil, err
	}
	return localCell{c}, nil
}

// Hold: the caller's own descriptors are found in Dir as long as it keeps them open.
func (g localGroup) Hold(fds ...int) ([]int, error) { return fds, nil }
func (g localGroup) Drop(...int)                    {}
func (g localGroup) DropAll()                       {}

type localCell struct{ *Cell }

func (c localCell) Spawn(s Spec) (KeptChild, error) {
	s.Cell = c.Cell
	child, err := c.group.host.Spawn(s)
	if err != nil {
		return nil, err
	}
	return child, nil
}
