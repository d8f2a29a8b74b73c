// Package own defines what a shell needs from the owner of its processes: interfaces, and the values that they use.
package own

import (
	"context"
	"errors"
	"syscall"

	"trl/protocol"
)

// ErrKeeperGone is the error of a Keeper whose process has died. All sessions have ended with it.
var ErrKeeperGone = errors.New("keeper is gone")

// A Keeper owns every process below trl. It also holds descriptors for the gateway that must survive the gateway. There
// are two implementations: a Host in this process (host.Local), which ends with it, and the keeper process behind its
// socket (runtime/keeper). The interface contains only what a Shell needs.
type Keeper interface {
	// Isolation returns the tier that keeps processes together here, and why that one is used.
	Isolation() (tier, why string)
	// Tiers returns for each tier whether this machine has it, the most reliable tier first.
	Tiers() []TierReport
	// Unenforceable returns the limits that cannot be enforced, by their names on the wire, and why not.
	Unenforceable() map[string]string
	// Gone reports whether the keeper has died. If so, how a process ended will never be known if it is not known yet.
	Gone() bool
	// Group makes the group for a session's processes. Its owner ends it with Close.
	Group(id string) (KeptGroup, error)
	// StartSession makes the group and starts the session's first process, in one round trip. If it fails, nothing
	// remains.
	StartSession(id string, f StartRequest) (StartedSession, error)
	// DescriptorsShort reports whether few descriptors are free in this process or in the process that owns the
	// children, or whether one could not be had. It asks that process only if a cheap sign says that descriptors may be
	// short.
	DescriptorsShort() bool
	// KillOrphans kills processes that escaped from sessions that are gone, and returns how many it killed.
	KillOrphans(live func(sessionID string) bool) int
}

// StartRequest describes the start of a session.
type StartRequest struct {
	Shell  Spec // starts in a scope of its own
	Limits protocol.Limits
	// Parallel does the work that the start of the process does not depend on. With a keeper it runs while the keeper
	// works. The keeper handles its requests about the group after the start. If the start fails, the keeper refuses
	// them, and StartSession returns the reason. The caller must not use an id that is in use already; StartSession
	// does not protect the existing group.
	Parallel func(KeptGroup) error
}

// StartedSession is the result of StartSession.
type StartedSession struct {
	Group KeptGroup
	Scope KeptScope
	Child KeptChild
}

// Started is the result of KeptGroup.StartInNewScope.
type Started struct {
	Scope KeptScope
	Child KeptChild
	Held  []int // the keeper's numbers of the descriptors, in their order
}

// KeptGroup is the processes of one session, and the descriptors that are held for it. See host.Group.
type KeptGroup interface {
	NewScope() (KeptScope, error)
	// Limit limits the group. It is called once, before anything of the user's runs. A *LimitError says that the limit
	// cannot be enforced here.
	Limit(l protocol.Limits) error
	// Gauge opens the meters of the group's usage; the caller closes it. It is called after Limit.
	Gauge() *Gauge
	// Dir returns the directory in which the session's shells find channels and held descriptors by their numbers:
	// /proc/PID/fd, or the session's FIFO directory.
	Dir() string
	// StartInNewScope makes a scope, holds descriptors as Hold does, and starts the scope's first process, in one request. If a
	// part fails, nothing remains.
	StartInNewScope(s Spec, hold ...int) (Started, error)
	// UsesFIFOs reports whether the shells can open only what MakeChannels makes. If so, MakeChannels also makes what
	// need not survive us.
	UsesFIFOs() bool
	// MakeChannels makes the channels that the shells open, and holds them and also, as Hold does, in one request. The
	// caller owns the descriptors.
	MakeChannels(kinds []ChannelKind, also ...int) (made []Channel, numbers []int, err error)
	// Hold keeps descriptors open beyond the end of this process, until Drop or DropAll. The caller keeps its own
	// descriptors.
	Hold(fds ...int) (numbers []int, err error)
	// Lend returns the caller's own descriptors again, which it had closed, and gives child its pidfd again, which Rest had
	// closed. HeldElsewhere is true.
	Lend(child KeptChild, numbers ...int) (fds []int, err error)
	Drop(numbers ...int)
	// WriteHeld writes to a held file, and PunchHeld frees the memory of a part of one. They are for callers that have
	// closed their own descriptor. Neither waits, and neither reports an error.
	WriteHeld(number int, p []byte, at int64)
	PunchHeld(number int, from, to int64)
	// HeldElsewhere reports whether another process holds the descriptors. If so, this process need not keep the
	// shells' channels open.
	HeldElsewhere() bool
	// Enterable returns an error if the session's shells may not enter a directory. It may wait, for a bounded time, so
	// it must not be called by the goroutine that has the shell's turn.
	Enterable(dir string) error
	// Cwd returns the working directory of one of the session's processes, or "" if it is not known.
	Cwd(pid int) string
	// ReleaseConfinement ends the session's confinement. It is called after Close, when nothing will run in the session
	// any more.
	ReleaseConfinement()
	// DropAll drops all held descriptors and the group. It is the last call, after Close.
	DropAll()
	Members() []int
	Signal(sig syscall.Signal, except ...int)
	Close(ctx context.Context) error
}

// KeptScope is the processes that one command started. See host.Scope.
type KeptScope interface {
	Number() int // unique within its group, also after the scope was removed
	Spawn(s Spec) (KeptChild, error)
	AddChild(pid int) error      // pid is one of the group's own children
	AddForkedCopy(pid int) error // pid was forked by such a child, which holds it at a gate
	MembersExcept(shell int) []int
	Signal(sig syscall.Signal, shell int)
	SignalSome(sig syscall.Signal, pids ...int) // signals those that are in the scope
	Kill(shell int) error
	Remove() bool
	Rest() // closes what MembersExcept keeps open, until it is needed again
}

// KeptChild is one process that the keeper started for us. See host.Child.
type KeptChild interface {
	Pid() int
	Pidfd() int // -1 after Rest and Close
	// Rest closes the pidfd until KeptGroup.Lend.
	Rest()
	Exited() <-chan struct{}
	Status() Status
	Signal(sig syscall.Signal) error
	Close() error
}

// HeldSession is what a keeper still holds of a session after its gateway ended.
type HeldSession struct {
	ID       string
	Group    KeptGroup
	Scopes   map[int]KeptScope // by number
	Children map[int]KeptChild // by pid; also those that have ended meanwhile, with their status
	Held     map[int]int       // our new descriptors, by the keeper's numbers
}

// The directory of a group that uses FIFOs contains a startup file for zsh, which is the same for all terminals of the
// session. zsh reads it first if that directory is its ZDOTDIR.
const (
	ZshenvName = ".zshenv"
	Zshenv     = `. "$TRL_ZSHENV"` + "\n"
)
