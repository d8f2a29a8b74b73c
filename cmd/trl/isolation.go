package main

import (
	"fmt"
	"slices"
	"strings"

	"trl/protocol"
	"trl/runtime"
)

// isolationHint is for an --isolation that cannot be had.
const isolationHint = "use --isolation auto; `trl doctor` says what there is"

// hintHost is for a host that cannot be made.
func hintHost(err error) string {
	switch {
	case strings.Contains(err.Error(), "tmpfs"):
		return "mount one (docker: --tmpfs /run)"
	case strings.HasPrefix(err.Error(), "isolation"):
		return isolationHint
	}
	return "`trl doctor` says what there is"
}

// inUserNamespace runs this very command line in a user namespace, without which tier pidns cannot be had, and ends as it does.
func inUserNamespace() error {
	code, err := runtime.RunInUserNamespace()
	if err != nil {
		return refuse(fmt.Errorf("isolation pidns: %w", err), isolationHint)
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// requireTier refuses to start with less than the operator will have.
func requireTier(tiers []runtime.TierReport, wanted string) error {
	force := tiers[slices.IndexFunc(tiers, func(r runtime.TierReport) bool { return r.InForce })]
	if runtime.TierAtLeast(force.Tier, wanted) {
		return nil
	}
	why, hint := "", "see `trl doctor` for what this machine lacks, or require less"
	for _, r := range tiers {
		if !runtime.TierAtLeast(r.Tier, wanted) {
			continue
		}
		if r.Available {
			hint = fmt.Sprintf("use --isolation %s", r.Tier)
		} else {
			why += fmt.Sprintf("; no %s: %s", r.Tier, r.Why)
		}
	}
	return refuse(fmt.Errorf("isolation %s is in force, and %s is required%s", force.Tier, wanted, why), "%s", hint)
}

// isolation is what clients may find out about the containment in force.
func isolation(keeper runtime.Keeper) protocol.Isolation {
	tier, why := keeper.Isolation()
	i := protocol.Isolation{Tier: tier, Why: why}
	for _, r := range keeper.Tiers() {
		i.Tiers = append(i.Tiers, protocol.IsolationTier(r))
	}
	return i
}
