package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/protocol"
)

// A Bequest is what a Host knows, for a Host that goes on in its place after an exec of this process: children stay
// children, cgroups stay where they are, and descriptors keep their numbers. Taking it up cannot fail: nothing is opened.
type Bequest struct {
	Instance    Instance
	Begin       uint64 // of the first Host, in clock ticks after boot
	Tier, Why   string
	Tiers       []TierReport
	Cannot      map[string]string
	Root        *RootBequest // tier "cgroup"
	Controllers map[string]bool
	Hierarchies map[string]HierarchyBequest
	Spaces      *[3]int // tier "pidns": the descriptors of namespaces
	Groups      []GroupBequest
	Children    []ChildBequest // who has not been reaped

	As      *Account
	Write   []int
	Ports   string
	Lock    *int // of Ports; nil: there is none
	Tenants []TenantBequest
	UIDs    map[uint32]string
	NextUID uint32
}

// A TenantBequest is a tenant.
type TenantBequest struct {
	ID               string
	UID, GID         uint32
	Dir              string
	Rules, Serial    int
	Grouped, Leaving bool
}

// A RootBequest is a cgroupRoot.
type RootBequest struct {
	Dir, Path string
	Lock      int
}

// A HierarchyBequest is a hierarchy.
type HierarchyBequest struct {
	Dir, Path, Why string
	Root           *RootBequest
}

// A GroupBequest is a Group that has not ended.
type GroupBequest struct {
	ID, Dir string
	Orphans int
	Init    int // pid of one of the Children, unless that has been reaped; 0: none
	Closed  bool
	Leaders []int
	Serial  int
	Bounds  *BoundsBequest
	Cells   []CellBequest
}

// A BoundsBequest is a bounds.
type BoundsBequest struct {
	Limits          protocol.Limits
	V1              map[string]string
	Counted, Staged string
	Resources       []int
	Most            []uint64
}

// A CellBequest is a Cell. List is only kept where it is the cgroup's.
type CellBequest struct {
	Number int
	Mark   uint64
	Begin  uint64
	Dir    string
	List   int
}

// A ChildBequest is a Child: of cell Cell in Group, or of no session.
type ChildBequest struct {
	Pid, Pidfd int
	Closed     bool
	Group      string
	Cell       int
}

// Files lists the descriptors that must stay open across the exec.
func (b *Bequest) Files() (fds []int) {
	roots := []*RootBequest{b.Root}
	for _, y := range b.Hierarchies {
		roots = append(roots, y.Root)
	}
	for _, r := range roots {
		if r != nil {
			fds = append(fds, r.Lock)
		}
	}
	if b.Spaces != nil {
		fds = append(fds, b.Spaces[:]...)
	}
	fds = append(fds, b.Write...)
	if b.Lock != nil {
		fds = append(fds, *b.Lock)
	}
	for _, t := range b.Tenants {
		fds = append(fds, t.Rules)
	}
	for _, g := range b.Groups {
		fds = append(fds, g.Orphans)
		for _, c := range g.Cells {
			fds = append(fds, c.List)
		}
	}
	for _, c := range b.Children {
		fds = append(fds, c.Pidfd)
	}
	return slices.DeleteFunc(fds, func(fd int) bool { return fd < 0 })
}

// Bequeath calls f with everything while nobody is forked or reaped, and returns what f does, if it returns. No other
// method of the Host or its groups may be under way.
func (h *Host) Bequeath(f func(*Bequest) error) error {
	h.nursery.reaping.Lock()
	defer h.nursery.reaping.Unlock()
	h.nursery.forking.Lock()
	defer h.nursery.forking.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("bequeath: %w", fs.ErrClosed)
	}
	b := &Bequest{
		Instance: h.Instance(), Begin: h.begin, Tier: h.tier, Why: h.why, Tiers: h.tiers, Cannot: h.cannot,
		Root: h.root.bequest(), Controllers: h.controllers, Hierarchies: map[string]HierarchyBequest{},
		As: h.as, Write: h.write, Ports: h.ports, UIDs: h.uids, NextUID: h.nextUID,
	}
	if h.portsLock >= 0 {
		b.Lock = &h.portsLock
	}
	for _, t := range h.tenants {
		b.Tenants = append(b.Tenants, TenantBequest{t.id, t.uid, t.gid, t.dir, t.rules, t.serial, t.grouped, t.leaving})
	}
	for name, y := range h.hierarchies {
		b.Hierarchies[name] = HierarchyBequest{y.dir, y.path, y.why, y.root.bequest()}
	}
	if n := h.spaces; n != nil {
		b.Spaces = &[3]int{n.program, n.life[0], n.life[1]}
	}
	for _, g := range h.groups {
		b.Groups = append(b.Groups, g.bequest())
	}
	h.nursery.mu.Lock()
	defer h.nursery.mu.Unlock()
	for _, c := range h.nursery.children {
		child := ChildBequest{Pid: c.pid, Pidfd: c.pidfd, Closed: c.closed}
		if c.cell != nil {
			child.Group, child.Cell = c.cell.group.id, c.cell.no
		}
		b.Children = append(b.Children, child)
	}
	return f(b)
}

func (r *cgroupRoot) bequest() *RootBequest {
	if r == nil {
		return nil
	}
	return &RootBequest{r.dir, r.path, r.lock}
}

func (b *RootBequest) root() *cgroupRoot {
	if b == nil {
		return nil
	}
	return &cgroupRoot{dir: b.Dir, path: b.Path, lock: b.Lock}
}

func (g *Group) bequest() GroupBequest {
	b := GroupBequest{
		ID: g.id, Dir: g.dir, Orphans: g.orphans, Closed: g.closed,
		Leaders: slices.Collect(maps.Keys(g.leaders)), Serial: g.serial,
	}
	if g.init != nil {
		b.Init = g.init.pid
	}
	if o := g.bounds.Load(); o != nil {
		b.Bounds = &BoundsBequest{Limits: o.limits, V1: o.v1, Counted: o.counted, Staged: o.staged}
		for _, r := range o.rlimits {
			b.Bounds.Resources, b.Bounds.Most = append(b.Bounds.Resources, r.resource), append(b.Bounds.Most, r.most)
		}
	}
	for _, c := range g.cells {
		cell := CellBequest{Number: c.no, Mark: uint64(c.mark), Begin: c.begin, Dir: c.dir, List: -1}
		if c.dir != "" {
			cell.List = c.list
		}
		b.Cells = append(b.Cells, cell)
	}
	return b
}

// inherit makes h, which owns nothing yet, what b says, but for the gateway's user: gateways are still to come.
func (h *Host) inherit(b *Bequest, gateway *Account) {
	h.begin, h.as, h.write, h.ports, h.nextUID = b.Begin, b.As, b.Write, b.Ports, b.NextUID
	h.mounts = h.ports != "" && isMounted(h.ports)
	if b.Lock != nil {
		h.portsLock = *b.Lock
	}
	if gateway != nil {
		h.gateway = &gateway.GID
	}
	for uid, id := range b.UIDs {
		h.uids[uid] = id
	}
	for _, t := range b.Tenants {
		h.tenants[t.ID] = &tenant{
			id: t.ID, as: h.as, uid: t.UID, gid: t.GID, dir: t.Dir, fence: fence{rules: t.Rules}, gateway: h.gateway,
			serial: t.Serial, grouped: t.Grouped, leaving: t.Leaving,
		}
	}
	h.tier, h.why, h.tiers, h.cannot = b.Tier, b.Why, b.Tiers, b.Cannot
	h.root, h.controllers = b.Root.root(), b.Controllers
	h.hierarchies = map[string]*hierarchy{}
	for name, y := range b.Hierarchies {
		h.hierarchies[name] = &hierarchy{controller: name, dir: y.Dir, path: y.Path, why: y.Why, root: y.Root.root()}
	}
	if b.Spaces != nil {
		h.spaces = &namespaces{program: b.Spaces[0], life: [2]int{b.Spaces[1], b.Spaces[2]}}
	}
	for i := range b.Groups {
		h.inheritGroup(&b.Groups[i])
	}
	for _, c := range b.Children {
		child := &Child{pid: c.Pid, pidfd: c.Pidfd, closed: c.Closed, exited: make(chan struct{})}
		if g := h.groups[c.Group]; g != nil {
			child.cell = g.cell(c.Cell)
			g.children[child] = struct{}{}
		}
		h.nursery.children[c.Pid], h.heirs[c.Pid] = child, child
	}
	for _, g := range b.Groups { // once the children are there
		if g.Init == 0 {
			continue
		}
		init := h.nursery.children[g.Init]
		if init == nil { // nobody is to be started beside it, but outside of its namespace even less
			init = EndedChild(g.Init, -1, Status{})
		}
		h.groups[g.ID].init = init
	}
}

func (h *Host) inheritGroup(b *GroupBequest) {
	g := &Group{
		id: b.ID, host: h, tenant: h.tenants[b.ID], dir: b.Dir, orphans: b.Orphans, closed: b.Closed, serial: b.Serial,
		ending: make(chan struct{}, 1), entering: make(chan struct{}, 1), children: map[*Child]struct{}{}, leaders: map[int]struct{}{},
	}
	for _, pid := range b.Leaders {
		g.leaders[pid] = struct{}{}
	}
	if o := b.Bounds; o != nil {
		made := &bounds{limits: o.Limits, v1: o.V1, counted: o.Counted, staged: o.Staged, host: h, tenant: g.tenant}
		for i, resource := range o.Resources {
			made.rlimits = append(made.rlimits, rlimit{resource, o.Most[i]})
		}
		g.bounds.Store(made)
	}
	for _, c := range b.Cells {
		cell := &Cell{group: g, no: c.Number, mark: mark(c.Mark), begin: c.Begin, dir: c.Dir, list: c.List, buf: make([]byte, 256)}
		g.cells = append(g.cells, cell)
		h.cells[cell.mark] = cell
	}
	h.groups[g.id] = g
}

// cell finds one by number; one that has been given up is made once more, for a child that outlived it.
func (g *Group) cell(number int) *Cell {
	for _, c := range g.cells {
		if c.no == number {
			return c
		}
	}
	return &Cell{group: g, no: number, dir: g.dir, list: -1}
}

// Group finds one that has not ended, for who takes up a Bequest.
func (h *Host) Group(id string) *Group { return h.group(id) }

// EndedGroup stands for one whose processes are gone.
func (h *Host) EndedGroup(id string) *Group {
	h.mu.Lock()
	t := h.tenants[id]
	h.mu.Unlock()
	if t == nil {
		t = &tenant{id: id, fence: fence{rules: -1}}
	}
	return &Group{
		id: id, host: h, tenant: t, orphans: -1, ending: make(chan struct{}, 1), entering: make(chan struct{}, 1), gone: true, closed: true,
		children: map[*Child]struct{}{}, leaders: map[int]struct{}{},
	}
}

// Cells lists the group's.
func (g *Group) Cells() []*Cell {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.cells)
}

// Child gives out one of the Bequest's, once. It may have ended since, and been reaped.
func (h *Host) Child(pid int) *Child {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.heirs[pid]
	delete(h.heirs, pid)
	return c
}

// EndedChild stands for one that has been reaped. The descriptor is its own; -1: none.
func EndedChild(pid, pidfd int, s Status) *Child {
	c := &Child{pid: pid, pidfd: pidfd, reaped: true, status: s, exited: make(chan struct{})}
	close(c.exited)
	return c
}

// keepOpen lets fds through an exec, or not.
func keepOpen(fds []int, keep bool) error {
	for _, fd := range fds {
		flags := unix.FD_CLOEXEC
		if keep {
			flags = 0
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags); err != nil {
			return fmt.Errorf("descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// Exec turns this process into program, with fds open. It returns only if that fails, and nothing has changed then. It is to
// be called on the main thread: one that execs while it is another waits for the main one to end, takes its place, and in
// between, a millisecond or more, /proc/PID/fd is empty for the shells, whose commands would not be read and whose reports
// be lost. Only a capability that the main thread may not have is worth that.
//
// Our children are in the main thread's list afterwards, where before there were only orphans: tier "none" looks twice
// from then on (Cell.Others).
func Exec(program string, argv, env []string, fds []int) error {
	syscall.ForkLock.Lock() // a child would have fds, too
	defer syscall.ForkLock.Unlock()
	err := keepOpen(fds, true)
	switch {
	case err != nil:
	case granted:
		err = onCapableThread(func() error {
			if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(leash), 0, 0, 0); err != nil {
				return os.NewSyscallError("prctl", err)
			}
			return syscall.Exec(program, argv, env)
		})
	case unix.Gettid() != unix.Getpid():
		err = errors.New("not on the main thread")
	default:
		err = syscall.Exec(program, argv, env)
	}
	_ = keepOpen(fds, false)
	return fmt.Errorf("exec %s: %w", program, err)
}
