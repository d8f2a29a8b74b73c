package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

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
	// Spawn starts a process in the scope; s.Cell is ignored.
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

// Local makes h a Keeper for the process it lives in.
func Local(h *Host) Keeper { return localKeeper{h} }

type localKeeper struct{ *Host }

func (l localKeeper) DescriptorsShort() bool { return DescriptorsShort(Descriptors()) }

func (l localKeeper) Gone() bool { return false }

func (l localKeeper) Group(id string) (KeptGroup, error) {
	g, err := l.NewGroup(id)
	if err != nil {
		return nil, err
	}
	return localGroup{g}, nil
}

func (l localKeeper) StartSession(id string, f StartRequest) (d StartedSession, err error) {
	if d.Group, err = l.Group(id); err != nil {
		return StartedSession{}, err
	}
	defer func() {
		if err != nil {
			_ = d.Group.Close(context.Background())
			d.Group.DropAll()
			if d.Child != nil {
				_ = d.Child.Close()
			}
			d = StartedSession{}
		}
	}()
	if err = d.Group.Limit(f.Limits); err != nil {
		return d, err
	}
	if d.Scope, err = d.Group.NewScope(); err != nil {
		return d, err
	}
	if d.Child, err = d.Scope.Spawn(f.Shell); err != nil {
		return d, err
	}
	return d, f.Parallel(d.Group)
}

type localGroup struct{ *Group }

func (g localGroup) NewScope() (KeptScope, error) {
	c, err := g.Group.NewScope()
	if err != nil {
		return nil, err
	}
	return localScope{c}, nil
}

func (g localGroup) Gauge() *Gauge { return g.Meters().Open() }

func (g localGroup) Dir() string {
	if g.UsesFIFOs() {
		return g.confinement.dir
	}
	return ownFDDir()
}

func (g localGroup) MakeChannels(kinds []ChannelKind, also ...int) ([]Channel, []int, error) {
	if !g.UsesFIFOs() {
		return MakeAnonymousChannels(g, kinds, also...)
	}
	made, err := g.Group.MakeChannels(kinds)
	return made, also, err
}

// Hold: the caller's own descriptors are found in Dir as long as it keeps them open.
func (g localGroup) Hold(fds ...int) ([]int, error) { return fds, nil }
func (g localGroup) Drop(numbers ...int)            { g.Unlink(numbers...) }

// Nobody closes a descriptor that is held here.
func (g localGroup) WriteHeld(int, []byte, int64) {}
func (g localGroup) PunchHeld(int, int64, int64)  {}
func (g localGroup) ReleaseConfinement()          { g.host.ReleaseConfinement(g.id) }
func (g localGroup) DropAll()                     { g.host.ReleaseConfinement(g.id) }

// MakeAnonymousChannels is Make for a group that is not Private: everything has a path below /proc as it is.
func MakeAnonymousChannels(g KeptGroup, kinds []ChannelKind, also ...int) (made []Channel, numbers []int, err error) {
	defer func() {
		if err != nil {
			CloseChannels(made)
			made, numbers = nil, nil
		}
	}()
	var fds []int
	for _, k := range kinds {
		m := Channel{R: -1, W: -1, HeldR: -1, HeldW: -1}
		if k == MemFile {
			m.W, err = memfd("file")
		} else {
			var fd [2]int
			ours := 0
			if k == InPipe {
				ours = 1
			}
			if fd, err = halfPipe(ours); err == nil {
				m.R, m.W = fd[0], fd[1]
			}
		}
		if err != nil {
			return made, nil, err
		}
		made = append(made, m)
		if m.R >= 0 {
			fds = append(fds, m.R)
		}
		fds = append(fds, m.W)
	}
	if numbers, err = g.Hold(append(fds, also...)...); err != nil {
		return made, nil, fmt.Errorf("hold: %w", err)
	}
	for i := range made {
		m := &made[i]
		if m.R >= 0 {
			m.HeldR, numbers = numbers[0], numbers[1:]
		}
		m.HeldW, numbers = numbers[0], numbers[1:]
		m.FileNumber = m.HeldW
		if kinds[i] == InPipe {
			m.FileNumber = m.HeldR
		}
	}
	return made, numbers, nil
}

// Cwd is where a process is. It asks the kernel, which tells those who may trace the process.
func Cwd(pid int) string {
	var room [512]byte
	link := procPath(pid, "/cwd")
	n, err := unix.Readlink(link, room[:])
	if err != nil {
		return ""
	}
	dir := string(room[:n])
	if n == len(room) {
		dir, _ = os.Readlink(link)
	}
	if name, found := strings.CutSuffix(dir, " (deleted)"); found && !isLinked(link) {
		return name
	}
	return dir
}

// isLinked says whether a directory is still in the one above it, as the number of its links tells: a removed one has none. One link
// tells nothing: each directory of btrfs has one, and so has a removed directory of a lower layer of overlayfs. The file system is
// not asked, as it may not answer.
func isLinked(link string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_NLINK, &st)
	return err == nil && st.Nlink >= 2
}

type localScope struct{ *Scope }

func (c localScope) Spawn(s Spec) (KeptChild, error) {
	s.Scope = c.Scope
	child, err := c.group.host.Spawn(s)
	if err != nil {
		return nil, err
	}
	return child, nil
}
