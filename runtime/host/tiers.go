package host

import (
	"fmt"
	"path/filepath"
	"slices"

	"trl/runtime/cgroup"
	"trl/runtime/own"
)

// TierNames are the ways of keeping a session's processes together, the most reliable first.
var TierNames = []string{"cgroup", "none"}

// TierAtLeast reports whether tier is wanted or a more reliable one.
func TierAtLeast(tier, wanted string) bool {
	return slices.Contains(TierNames[:slices.Index(TierNames, wanted)+1], tier)
}

// Tiers tries each tier on this machine. InForce is true for the one that "auto" would choose.
func Tiers() []own.TierReport {
	var h Host
	_ = h.chooseTier("probe") // "probe" keeps nothing and cannot fail
	return h.tiers
}

// Tiers returns the report of each tier, the most reliable first.
func (h *Host) Tiers() []own.TierReport { return slices.Clone(h.tiers) }

// chooseTier sets the tier, the reason for it and the reports. In tier "cgroup" it also keeps the root cgroup. "auto"
// uses cgroups if the machine has them. "probe" chooses in the same way but keeps nothing.
func (h *Host) chooseTier(isolation string) error {
	root, noCgroup := cgroup.OpenRoot()
	cgroups := own.TierReport{Tier: "cgroup", Available: root != nil}
	none := own.TierReport{Tier: "none", Available: true, Why: "trl is the subreaper, and processes inherit a mark"}
	switch {
	case root == nil:
		cgroups.Why = noCgroup.Error()
	case isolation == "probe": // root.Dir is removed below
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
