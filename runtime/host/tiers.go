package host

import (
	"fmt"
	"path/filepath"
	"slices"

	"trl/runtime/cgroup"
	"trl/runtime/own"
)

// TierNames are the ways of keeping a session's processes together, the surest first.
var TierNames = []string{"cgroup", "none"}

// TierAtLeast: tier is as sure as wanted, or surer.
func TierAtLeast(tier, wanted string) bool {
	return slices.Contains(TierNames[:slices.Index(TierNames, wanted)+1], tier)
}

// Tiers tries each of them. In force is what "auto" would choose.
func Tiers() []own.TierReport {
	var h Host
	_ = h.chooseTier("probe") // which keeps nothing, and cannot fail
	return h.tiers
}

// Tiers tells for each which it is, the surest first.
func (h *Host) Tiers() []own.TierReport { return slices.Clone(h.tiers) }

// chooseTier sets the tier, why it is in force, and the reports, and keeps the cgroup that tier "cgroup" needs. "auto" takes cgroups
// where they can be had; "probe" does, too, and keeps nothing.
func (h *Host) chooseTier(isolation string) error {
	root, noCgroup := cgroup.OpenRoot()
	cgroups := own.TierReport{Tier: "cgroup", Available: root != nil}
	none := own.TierReport{Tier: "none", Available: true, Why: "subreaper, and a mark that processes inherit"}
	switch {
	case root == nil:
		cgroups.Why = noCgroup.Error()
	case isolation == "probe": // root.dir will be gone
		cgroups.Why = "cgroup v2 at " + filepath.Dir(root.Dir)
	default:
		cgroups.Why = "cgroup v2 at " + root.Dir
	}
	cgroups.InForce = isolation == "cgroup" || isolation != "none" && root != nil
	none.InForce = !cgroups.InForce
	h.tiers = []own.TierReport{cgroups, none}
	if cgroups.InForce {
		h.tier, h.why = cgroups.Tier, cgroups.Why
		if root == nil {
			return fmt.Errorf("isolation cgroup: %w", noCgroup)
		}
	} else if h.tier, h.why = none.Tier, "not asked for"; isolation != "none" {
		h.why = noCgroup.Error()
	}
	switch {
	case root == nil:
	case cgroups.InForce && isolation != "probe":
		cgroup.RemoveLeftovers(filepath.Dir(root.Dir), cgroup.KillLeftover, h.Log)
		h.root = root
	default:
		_ = root.Close()
	}
	return nil
}
