// Package own says what a shell needs of the owner of its processes: interfaces, and the values that they pass.
package own

import (
	"context"
	"errors"
	"syscall"

	"trl/protocol"
)

// ErrKeeperGone is what a Keeper answers when the process that owns all others has died, and every session with it.
var ErrKeeperGone = errors.New("keeper is gone")

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
	// Gone tells whether the keeper has died: what is not known by then of what ran will never be.
	Gone() bool
	// Group opens the place for a session's processes. Its owner ends it with Close.
	Group(id string) (KeptGroup, error)
	// StartSession is Group and a session's first process, in one round trip. Where it fails, nothing is left.
	StartSession(id string, f StartRequest) (StartedSession, error)
	// DescriptorsShort says that descriptors are short, here or where children are owned (DescriptorsShort), or that one was not to be had. It asks
	// for more than what is at hand only where they seem to be.
	DescriptorsShort() bool
	// KillOrphans ends what escaped from sessions that are gone, and returns how many that were.
	KillOrphans(live func(sessionID string) bool) int
}

// StartRequest is what a session begins with.
type StartRequest struct {
	Shell  Spec // in a scope of its own
	Limits protocol.Limits
	// Parallel does what the process need not wait for: with a keeper, while that is at work. What it asks of the group is
	// done after, or refused where there is none in the end; then StartSession says why. An id that is in use already is a mistake
	// that it is not protected from.
	Parallel func(KeptGroup) error
}

// StartedSession is what came of a StartRequest.
type StartedSession struct {
	Group KeptGroup
	Scope KeptScope
	Child KeptChild
}

// KeptGroup is one session's processes and what is held for it. See Group.
type KeptGroup interface {
	NewScope() (KeptScope, error)
	// Limit is called before anything of the user's runs, and once. A *LimitError: not here.
	Limit(l protocol.Limits) error
	// Gauge opens the meters of its usage, for the caller to close; asked for after Limit.
	Gauge() *Gauge
	// Dir is where the session's shells find what Make made, by its number there: /proc/PID/fd, or a confinement's directory.
	Dir() string
	// UsesFIFOs: nothing else can be opened by the shells, so also what nobody needs after us is made by Make.
	UsesFIFOs() bool
	// MakeChannels makes what the shells open, and holds it beside also as Hold does, in one go. The descriptors are the caller's.
	MakeChannels(kinds []ChannelKind, also ...int) (made []Channel, numbers []int, err error)
	// Hold keeps descriptors beyond our own end, until Drop or DropAll. The descriptors given stay the caller's.
	Hold(fds ...int) (numbers []int, err error)
	Drop(numbers ...int)
	// WriteHeld writes to a file that is held, and PunchHeld gives back the memory of a part of one: for who has closed its
	// own descriptor. Neither waits, and what fails is not told.
	WriteHeld(number int, p []byte, at int64)
	PunchHeld(number int, from, to int64)
	// HeldElsewhere tells whether another process holds what is held: what the shells open need not be open here.
	HeldElsewhere() bool
	// Enterable says whether the session's shells may enter a directory. It waits for a bounded time, so nobody calls it who
	// has the shell's turn.
	Enterable(dir string) error
	// Cwd is where one of the session's processes is, "" when that cannot be known.
	Cwd(pid int) string
	// ReleaseConfinement says that nothing will run in the session any more: after Close.
	ReleaseConfinement()
	// DropAll forgets everything held, and with it the group: the last call, after Close.
	DropAll()
	Members() []int
	Signal(sig syscall.Signal, except ...int)
	Close(ctx context.Context) error
}

// KeptScope is what one command started. See Scope.
type KeptScope interface {
	Number() int // within its group, never given twice
	Spawn(s Spec) (KeptChild, error)
	AddChild(pid int) error      // one of the group's own children
	AddForkedCopy(pid int) error // what such a child has forked and holds at a gate
	MembersExcept(shell int) []int
	Signal(sig syscall.Signal, shell int)
	SignalSome(sig syscall.Signal, pids ...int) // those that are in the scope
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

// HeldSession is what a keeper still has of a session whose gateway ended.
type HeldSession struct {
	ID       string
	Group    KeptGroup
	Scopes   map[int]KeptScope // by number
	Children map[int]KeptChild // by pid; those that ended meanwhile too, with their status
	Held     map[int]int       // our new descriptor, by the keeper's number
}

// The directory of a group that UsesFIFOs has a startup file for zsh, the same for all terminals of the session. zsh reads it first when
// that directory is its ZDOTDIR.
const (
	ZshenvName = ".zshenv"
	Zshenv     = `. "$TRL_ZSHENV"` + "\n"
)
