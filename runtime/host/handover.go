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

// A HandoverState is everything that a Host passes to the Host that replaces it after an exec of this process. Children
// remain children, cgroups stay where they are, and descriptors keep their numbers. Restoring from it cannot fail,
// because it opens nothing.
type HandoverState struct {
	Instance      Instance
	Begin         uint64 // when the first Host started, in clock ticks after boot
	Tier, Why     string
	Tiers         []own.TierReport
	Unenforceable map[string]string `json:"Cannot"`
	Root          *cgroup.RootState // nil except in tier "cgroup"
	Controllers   map[string]bool
	Hierarchies   map[string]cgroup.HierarchyState
	Spaces        *[3]int // always nil; builds that had tier "pidns" send it
	Groups        []GroupState
	Children      []ChildState // those that have not been reaped

	SessionUser  *confine.Account   `json:"As"`
	WritableDirs []int              `json:"Write"`
	FIFODir      string             `json:"Ports"`
	FIFODirLock  *int               `json:"Lock"` // of FIFODir; nil: there is no lock
	Confinements []ConfinementState `json:"Tenants"`
	UIDs         map[uint32]string
	NextUID      uint32
}

// A ConfinementState is the part of a confinement that is handed over.
type ConfinementState struct {
	ID            string
	UID, GID      uint32
	Dir           string
	Rules, Serial int
	HasGroup      bool `json:"Grouped"`
	Released      bool `json:"Leaving"`
}

// A GroupState is the part of a Group that is handed over. The group has not ended.
type GroupState struct {
	ID, Dir string
	Orphans int // always -1; builds that had tier "pidns" read a descriptor here
	Init    int // always 0; builds that had tier "pidns" send it
	Closed  bool
	Leaders []int
	Serial  int
	Bounds  *LimitsState
	Scopes  []ScopeState `json:"Cells"`
}

// A LimitsState is the part of a bounds that is handed over.
type LimitsState struct {
	Limits     protocol.Limits
	V1         map[string]string
	CountedDir string `json:"Counted"`
	StagingDir string `json:"Staged"`
	Resources  []int
	Most       []uint64
}

// A ScopeState is the part of a Scope that is handed over. List is -1 unless it is a cgroup's list.
type ScopeState struct {
	Number int
	Mark   uint64
	Begin  uint64
	Dir    string
	List   int
}

// A ChildState is the part of a Child that is handed over. Group is empty for a child of no session; otherwise Scope is
// the number of its scope in Group.
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

// HandOver calls f with the state of the host, while no process is forked or reaped, and returns the error of f. f does
// not return if its exec succeeds. No other method of the Host or of its groups may run at the same time.
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
		if c.Pidfd() < 0 { // an older version signals through it
			c.mu.Lock()
			c.keepPidfdLocked()
			c.mu.Unlock()
			defer c.DropPidfd()
		}
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

// restore fills h, which owns nothing yet, from b. The gateway's user comes from the configuration instead, because the
// next gateway has not started yet.
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

// scope returns the scope with that number. If the scope was removed, scope makes it again, for a child that outlived
// it.
func (g *Group) scope(number int) *Scope {
	for _, c := range g.scopes {
		if c.number == number {
			return c
		}
	}
	return &Scope{group: g, number: number, dir: g.dir, pidList: -1}
}

// Group returns the group of the session id, or nil if it has ended. The owner of a restored Host uses it.
func (h *Host) Group(id string) *Group { return h.group(id) }

// EndedGroup returns a Group for a session whose processes are gone.
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

// Scopes returns the group's scopes.
func (g *Group) Scopes() []*Scope {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.scopes)
}

// RestoredChild returns a child of the HandoverState. It returns each child once, and nil afterwards. The child may
// have ended and been reaped since the handover.
func (h *Host) RestoredChild(pid int) *Child {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.restoredChildren[pid]
	delete(h.restoredChildren, pid)
	return c
}

// EndedChild returns a Child for a process that has been reaped. The Child owns pidfd; -1 means that there is none.
func EndedChild(pid, pidfd int, s own.Status) *Child {
	c := &Child{pid: pid, pidfd: pidfd, reaped: true, status: s, exited: make(chan struct{})}
	close(c.exited)
	return c
}
