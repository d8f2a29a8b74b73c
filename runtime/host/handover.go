package host

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"trl/protocol"
	"trl/runtime/cgroup"
	"trl/runtime/confine"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// A HandoverState is what a Host knows, for a Host that goes on in its place after an exec of this process: children stay
// children, cgroups stay where they are, and descriptors keep their numbers. Taking it up cannot fail: nothing is opened.
type HandoverState struct {
	Instance      Instance
	Begin         uint64 // of the first Host, in clock ticks after boot
	Tier, Why     string
	Tiers         []own.TierReport
	Unenforceable map[string]string `json:"Cannot"`
	Root          *cgroup.RootState // tier "cgroup"
	Controllers   map[string]bool
	Hierarchies   map[string]cgroup.HierarchyState
	Spaces        *[3]int // nil. Builds that had tier "pidns" send it
	Groups        []GroupState
	Children      []ChildState // who has not been reaped

	SessionUser  *confine.Account   `json:"As"`
	WritableDirs []int              `json:"Write"`
	FIFODir      string             `json:"Ports"`
	FIFODirLock  *int               `json:"Lock"` // of Ports; nil: there is none
	Confinements []ConfinementState `json:"Tenants"`
	UIDs         map[uint32]string
	NextUID      uint32
}

// A ConfinementState is a confinement.
type ConfinementState struct {
	ID            string
	UID, GID      uint32
	Dir           string
	Rules, Serial int
	HasGroup      bool `json:"Grouped"`
	Released      bool `json:"Leaving"`
}

// A GroupState is a Group that has not ended.
type GroupState struct {
	ID, Dir string
	Orphans int // -1. Builds that had tier "pidns" take it for a descriptor
	Init    int // 0. Builds that had tier "pidns" send it
	Closed  bool
	Leaders []int
	Serial  int
	Bounds  *LimitsState
	Scopes  []ScopeState `json:"Cells"`
}

// A LimitsState is a bounds.
type LimitsState struct {
	Limits     protocol.Limits
	V1         map[string]string
	CountedDir string `json:"Counted"`
	StagingDir string `json:"Staged"`
	Resources  []int
	Most       []uint64
}

// A ScopeState is a Scope. List is only kept where it is the cgroup's.
type ScopeState struct {
	Number int
	Mark   uint64
	Begin  uint64
	Dir    string
	List   int
}

// A ChildState is a Child: of scope Scope in Group, or of no session.
type ChildState struct {
	Pid, Pidfd int
	Closed     bool
	Group      string
	Scope      int `json:"Cell"`
}

// Files lists the descriptors that must stay open across the exec.
func (b *HandoverState) Files() (fds []int) {
	roots := []*cgroup.RootState{b.Root}
	for _, y := range b.Hierarchies {
		roots = append(roots, y.Root)
	}
	for _, r := range roots {
		if r != nil {
			fds = append(fds, r.Lock)
		}
	}
	fds = append(fds, b.WritableDirs...)
	if b.FIFODirLock != nil {
		fds = append(fds, *b.FIFODirLock)
	}
	for _, t := range b.Confinements {
		fds = append(fds, t.Rules)
	}
	for _, g := range b.Groups {
		for _, c := range g.Scopes {
			fds = append(fds, c.List)
		}
	}
	for _, c := range b.Children {
		fds = append(fds, c.Pidfd)
	}
	return slices.DeleteFunc(fds, func(fd int) bool { return fd < 0 })
}

// HandOver calls f with everything while nobody is forked or reaped, and returns what f does, if it returns. No other
// method of the Host or its groups may be under way.
func (h *Host) HandOver(f func(*HandoverState) error) error {
	h.childReaper.reapMu.Lock()
	defer h.childReaper.reapMu.Unlock()
	h.childReaper.forkMu.Lock()
	defer h.childReaper.forkMu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("hand over: %w", fs.ErrClosed)
	}
	b := &HandoverState{
		Instance: h.Instance(), Begin: h.startTicks, Tier: h.tier, Why: h.why, Tiers: h.tiers, Unenforceable: h.unenforceable,
		Root: h.root.HandoverState(), Controllers: h.controllers, Hierarchies: map[string]cgroup.HierarchyState{},
		SessionUser: h.sessionUser, WritableDirs: h.writableDirs, FIFODir: h.fifoDir, UIDs: h.uids, NextUID: h.nextUID,
	}
	if h.fifoDirLock >= 0 {
		b.FIFODirLock = &h.fifoDirLock
	}
	for _, t := range h.confinements {
		b.Confinements = append(b.Confinements, ConfinementState{t.id, t.uid, t.gid, t.dir, t.Rules, t.lastFileNumber, t.hasGroup, t.released})
	}
	for name, y := range h.hierarchies {
		b.Hierarchies[name] = y.HandoverState()
	}
	for _, g := range h.groups {
		b.Groups = append(b.Groups, g.handoverState())
	}
	h.childReaper.mu.Lock()
	defer h.childReaper.mu.Unlock()
	for _, c := range h.childReaper.children {
		child := ChildState{Pid: c.pid, Pidfd: c.pidfd, Closed: c.closed}
		if c.scope != nil {
			child.Group, child.Scope = c.scope.group.id, c.scope.number
		}
		b.Children = append(b.Children, child)
	}
	return f(b)
}

func (g *Group) handoverState() GroupState {
	b := GroupState{
		ID: g.id, Dir: g.dir, Orphans: -1, Closed: g.closed,
		Leaders: slices.Collect(maps.Keys(g.leaders)), Serial: g.serial,
	}
	if o := g.bounds.Load(); o != nil {
		b.Bounds = &LimitsState{Limits: o.limits, V1: o.v1, CountedDir: o.countedDir, StagingDir: o.stagingDir}
		for _, r := range o.rlimits {
			b.Bounds.Resources, b.Bounds.Most = append(b.Bounds.Resources, r.resource), append(b.Bounds.Most, r.most)
		}
	}
	for _, c := range g.scopes {
		scope := ScopeState{Number: c.number, Mark: uint64(c.mark), Begin: c.begin, Dir: c.dir, List: -1}
		if c.dir != "" {
			scope.List = c.pidList
		}
		b.Scopes = append(b.Scopes, scope)
	}
	return b
}

// restore makes h, which owns nothing yet, what b says, but for the gateway's user: gateways are still to come.
func (h *Host) restore(b *HandoverState, gateway *confine.Account) {
	h.startTicks, h.sessionUser, h.writableDirs, h.fifoDir, h.nextUID = b.Begin, b.SessionUser, b.WritableDirs, b.FIFODir, b.NextUID
	h.fifoDirMounted = h.fifoDir != "" && isMounted(h.fifoDir)
	if b.FIFODirLock != nil {
		h.fifoDirLock = *b.FIFODirLock
	}
	if gateway != nil {
		h.gatewayGID = &gateway.GID
	}
	for uid, id := range b.UIDs {
		h.uids[uid] = id
	}
	for _, t := range b.Confinements {
		h.confinements[t.ID] = &confinement{
			id: t.ID, user: h.sessionUser, uid: t.UID, gid: t.GID, dir: t.Dir, LandlockRules: confine.LandlockRules{Rules: t.Rules}, gatewayGID: h.gatewayGID,
			lastFileNumber: t.Serial, hasGroup: t.HasGroup, released: t.Released,
		}
	}
	h.tier, h.why, h.tiers, h.unenforceable = b.Tier, b.Why, b.Tiers, b.Unenforceable
	h.root, h.controllers = b.Root.Restore(), b.Controllers
	h.hierarchies = map[string]*cgroup.Hierarchy{}
	for name, y := range b.Hierarchies {
		h.hierarchies[name] = y.Restore(name)
	}
	for i := range b.Groups {
		h.restoreGroup(&b.Groups[i])
	}
	for _, c := range b.Children {
		child := &Child{pid: c.Pid, pidfd: c.Pidfd, closed: c.Closed, exited: make(chan struct{})}
		if g := h.groups[c.Group]; g != nil {
			child.scope = g.scope(c.Scope)
			g.children[child] = struct{}{}
		}
		h.childReaper.children[c.Pid], h.restoredChildren[c.Pid] = child, child
	}
}

func (h *Host) restoreGroup(b *GroupState) {
	g := &Group{
		id: b.ID, host: h, confinement: h.confinements[b.ID], dir: b.Dir, closed: b.Closed, serial: b.Serial,
		closeSlot: make(chan struct{}, 1), chdirSlot: make(chan struct{}, 1), children: map[*Child]struct{}{}, leaders: map[int]struct{}{},
	}
	for _, pid := range b.Leaders {
		g.leaders[pid] = struct{}{}
	}
	if o := b.Bounds; o != nil {
		made := &bounds{limits: o.Limits, v1: o.V1, countedDir: o.CountedDir, stagingDir: o.StagingDir, host: h, confinement: g.confinement}
		for i, resource := range o.Resources {
			made.rlimits = append(made.rlimits, rlimit{resource, o.Most[i]})
		}
		g.bounds.Store(made)
	}
	for _, c := range b.Scopes {
		scope := &Scope{group: g, number: c.Number, mark: procfs.Mark(c.Mark), begin: c.Begin, dir: c.Dir, pidList: c.List, listBuf: make([]byte, 256)}
		g.scopes = append(g.scopes, scope)
		h.scopes[scope.mark] = scope
	}
	h.groups[g.id] = g
}

// scope finds one by number; one that has been given up is made once more, for a child that outlived it.
func (g *Group) scope(number int) *Scope {
	for _, c := range g.scopes {
		if c.number == number {
			return c
		}
	}
	return &Scope{group: g, number: number, dir: g.dir, pidList: -1}
}

// Group finds one that has not ended, for who takes up a HandoverState.
func (h *Host) Group(id string) *Group { return h.group(id) }

// EndedGroup stands for one whose processes are gone.
func (h *Host) EndedGroup(id string) *Group {
	h.mu.Lock()
	t := h.confinements[id]
	h.mu.Unlock()
	if t == nil {
		t = &confinement{id: id, LandlockRules: confine.LandlockRules{Rules: -1}}
	}
	return &Group{
		id: id, host: h, confinement: t, closeSlot: make(chan struct{}, 1), chdirSlot: make(chan struct{}, 1), removed: true, closed: true,
		children: map[*Child]struct{}{}, leaders: map[int]struct{}{},
	}
}

// Scopes lists the group's.
func (g *Group) Scopes() []*Scope {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.scopes)
}

// RestoredChild gives out one of the HandoverState's, once. It may have ended since, and been reaped.
func (h *Host) RestoredChild(pid int) *Child {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.restoredChildren[pid]
	delete(h.restoredChildren, pid)
	return c
}

// EndedChild stands for one that has been reaped. The descriptor is its own; -1: none.
func EndedChild(pid, pidfd int, s own.Status) *Child {
	c := &Child{pid: pid, pidfd: pidfd, reaped: true, status: s, exited: make(chan struct{})}
	close(c.exited)
	return c
}
