package runtime

import (
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
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
	h.scan.Lock()
	defer h.scan.Unlock()
	condemned, count := map[int]uint64{}, 0
	var end func(p proc)
	end = func(p proc) {
		kids := p.children() // before p dies and they are given to us
		if start, again := h.runaways[p.pid]; again && start == p.start && !p.dead() &&
			signalPinned(p.pid, unix.SIGKILL, p.same) {
			count++
			h.metrics.OrphansKilled.Inc()
			h.log.Warn().Int("pid", p.pid).Msg("ended an orphan of a session that is gone")
		} else {
			condemned[p.pid] = p.start
		}
		for _, pid := range kids {
			if kid, ok := readProc(pid); ok && kid.ppid == p.pid {
				end(kid)
			}
		}
	}
	kin := map[int]uint64{}
	for _, pid := range h.nursery.strangers() {
		p, ok := readProc(pid)
		if !ok || p.ppid != h.pid {
			continue
		}
		if h.led(p) {
			kin[pid] = p.start // its group claims it; remembered for when that is gone
		} else if h.escaped(p, live) {
			if h.kin[pid] == p.start {
				kin[pid] = p.start
			}
			end(p)
		}
	}
	h.runaways, h.kin = condemned, kin
	return count
}

// escaped: p came out of a session, and that is gone. scan is held.
func (h *Host) escaped(p proc, live func(id string) bool) bool {
	if h.root != nil && inCgroup(p.pid, h.root.path) {
		return false // its group is there, else its directory would not be
	}
	c, given := h.cellOf(p.pid)
	if c != nil {
		return false // its group has not been closed, and will find it when it is
	}
	id := environSession(p.pid)
	if id == os.Getenv("TRL_SESSION_ID") {
		id = "" // we run in a session of another trl, and p has it from us
	}
	if id != "" {
		return h.group(id) == nil && !live(id)
	}
	return given || h.kin[p.pid] == p.start
}

// led: p is in the process session of a child of a group that has not been
// closed.
func (h *Host) led(p proc) bool {
	h.mu.Lock()
	groups := slices.Collect(maps.Values(h.groups))
	h.mu.Unlock()
	return slices.ContainsFunc(groups, func(g *Group) bool { return g.leads(p) })
}
