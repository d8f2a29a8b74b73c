package host

import (
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/cgroup"
	"trl/runtime/procfs"
)

// KillOrphans ends what escaped: processes given to us whose session is gone,
// and what is below them. It is called again and again; only what two calls in
// a row condemn is killed, so that what is just ending, or just starting, gets
// its time. It returns how many it killed.
//
// What it leaves alone: children that we started and all below them, members
// of a group that has not been closed, and everything that never was in a
// session, such as what other code in this process started with os/exec.
func (h *Host) KillOrphans(live func(sessionID string) bool) int {
	h.scanMu.Lock()
	defer h.scanMu.Unlock()
	killNow, count := map[int]uint64{}, 0
	end := func(p procfs.Process) {
		if start, again := h.killNext[p.Pid]; again && start == p.Start && !p.Dead() &&
			procfs.SignalIf(p.Pid, unix.SIGKILL, p.IsStill) {
			count++
			h.Metrics.OrphansKilled.Inc()
			h.Log.Warn().Int("pid", p.Pid).Msg("ended an orphan of a session that is gone")
		} else {
			killNow[p.Pid] = p.Start
		}
	}
	kin := map[int]uint64{}
	for _, pid := range h.childReaper.foreignChildren() {
		p, ok := procfs.Read(pid)
		if !ok || p.Ppid != h.pid {
			continue
		}
		if h.inOpenGroup(p) {
			kin[pid] = p.Start // its group claims it; remembered for when that is gone
		} else if h.escaped(p, live) {
			if h.sameSessionOrphans[pid] == p.Start {
				kin[pid] = p.Start
			}
			p.WalkTree(end)
		}
	}
	h.killNext, h.sameSessionOrphans = killNow, kin
	return count
}

// killLeftovers kills what sessions have left to us, and all below it, when no session is left: also what has left its
// cgroup, or hidden whose it was. Other code's children were there before us, or are in our own process session, where
// nothing is that comes from one of ours.
func (h *Host) killLeftovers() {
	var pause procfs.Backoff
	for until := time.Now().Add(cgroup.LeftoverTimeout); time.Now().Before(until); pause.Sleep() {
		found := false
		for _, pid := range h.childReaper.foreignChildren() {
			if p, ok := procfs.Read(pid); ok && p.Ppid == h.pid && p.Sid != h.sid && p.Start > h.startTicks {
				p.WalkTree(func(p procfs.Process) {
					found = !p.Dead() && procfs.SignalIf(p.Pid, unix.SIGKILL, p.IsStill) || found
				})
			}
		}
		if !found {
			return
		}
	}
}

// escaped: p came out of a session, and that is gone. scan is held.
func (h *Host) escaped(p procfs.Process, live func(id string) bool) bool {
	if h.root != nil && cgroup.Contains(p.Pid, h.root.Path) {
		return false // its group is there, else its directory would not be
	}
	c, given := h.scopeOf(p.Pid)
	if c != nil {
		return false // its group has not been closed, and will find it when it is
	}
	id := procfs.SessionOf(p.Pid)
	if id == os.Getenv("TRL_SESSION_ID") {
		id = "" // we run in a session of another trl, and p has it from us
	}
	if id != "" {
		return h.group(id) == nil && !live(id)
	}
	return given || h.sameSessionOrphans[p.Pid] == p.Start
}

// inOpenGroup: p is in the process session of a child of a group that has not been
// closed.
func (h *Host) inOpenGroup(p procfs.Process) bool {
	h.mu.Lock()
	groups := slices.Collect(maps.Values(h.groups))
	h.mu.Unlock()
	return slices.ContainsFunc(groups, func(g *Group) bool { return g.inLeaderSession(p) })
}
