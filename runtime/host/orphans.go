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

// KillOrphans kills the processes that escaped from a session that is gone: orphans that the kernel gave to us, and
// their descendants. It is called again and again. It kills only processes that two calls in a row have chosen, so that
// processes which are just ending or just starting have time for that. It returns how many it killed.
//
// It does not kill children that we started or their descendants, members of a group that has not been closed, or
// processes that were never in a session, such as those that other code in this process started with os/exec.
func (h *Host) KillOrphans(live func(sessionID string) bool) int {
	h.scanMu.Lock()
	defer h.scanMu.Unlock()
	killNow, count := map[int]uint64{}, 0
	end := func(p procfs.Process) {
		if start, again := h.killNext[p.Pid]; again && start == p.Start && !p.Dead() &&
			procfs.SignalIf(p.Pid, unix.SIGKILL, p.IsStill) {
			count++
			h.Metrics.OrphansKilled.Inc()
			h.Log.Warn().Int("pid", p.Pid).Msg("killed an orphan of a session that is gone")
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
			kin[pid] = p.Start // it belongs to an open group; remembered for the time after that group
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

// killLeftovers kills the orphans that sessions have left, and their descendants, when no session is left. This
// includes processes that have left their cgroup or removed every sign of their session. It does not kill children of
// other code: those were there before the Host, or they are in our own process session, which no process of a session
// of ours is in.
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

// escaped reports whether p comes from a session that is gone. scanMu is held.
func (h *Host) escaped(p procfs.Process, live func(id string) bool) bool {
	if h.root != nil && cgroup.Contains(p.Pid, h.root.Path) {
		return false // its group still exists, because its cgroup does
	}
	c, given := h.scopeOf(p.Pid)
	if c != nil {
		return false // its group has not been closed, and will find p when it is
	}
	id := procfs.SessionOf(p.Pid)
	if id == os.Getenv("TRL_SESSION_ID") {
		id = "" // we run in a session of another trl, and p inherited the variable from us
	}
	if id != "" {
		return h.group(id) == nil && !live(id)
	}
	return given || h.sameSessionOrphans[p.Pid] == p.Start
}

// inOpenGroup reports whether p is in the process session of a child of a group that has not been closed.
func (h *Host) inOpenGroup(p procfs.Process) bool {
	h.mu.Lock()
	groups := slices.Collect(maps.Values(h.groups))
	h.mu.Unlock()
	return slices.ContainsFunc(groups, func(g *Group) bool { return g.inLeaderSession(p) })
}
