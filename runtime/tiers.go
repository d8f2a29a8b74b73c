package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// TierNames are the ways of keeping a session's processes together, the surest first.
var TierNames = []string{"cgroup", "pidns", "none"}

// A TierReport is one of them, and what this machine has to say about it.
type TierReport struct {
	Tier      string `json:"tier"`
	Available bool   `json:"available"`
	InForce   bool   `json:"in_force"`
	Why       string `json:"why"` // what it rests on, or what is in its way
}

// TierAtLeast: tier is as sure as wanted, or surer.
func TierAtLeast(tier, wanted string) bool {
	return slices.Contains(TierNames[:slices.Index(TierNames, wanted)+1], tier)
}

// Tiers tries each of them. In force is what "auto" would choose.
func Tiers() []TierReport {
	var h Host
	_ = h.chooseTier("probe") // which keeps nothing, and cannot fail
	return h.tiers
}

// Tiers tells for each which it is, the surest first.
func (h *Host) Tiers() []TierReport { return slices.Clone(h.tiers) }

// chooseTier tries all of them and keeps what the one in force needs.
//
// "auto" takes cgroups or nothing. PID namespaces break what people do every day: a number from ps given to kill and, in
// the user namespace that an ordinary user needs for them, sudo, su and rootless containers. Who wants that asks for it.
func (h *Host) chooseTier(isolation string) error {
	root, noCgroup := openCgroupRoot()
	spaces, noSpaces := openNamespaces()
	inUserNamespace := errors.Is(noSpaces, errNoAdmin)
	if inUserNamespace {
		noSpaces = probeUserNamespace()
	}

	why := map[string]string{"none": "subreaper, and a mark that processes inherit"}
	failed := map[string]error{"cgroup": noCgroup, "pidns": noSpaces}
	if root != nil {
		why["cgroup"] = "cgroup v2 at " + root.dir
		if isolation == "probe" { // root.dir will be gone
			why["cgroup"] = "cgroup v2 at " + filepath.Dir(root.dir)
		}
	}
	if noSpaces == nil {
		why["pidns"] = "a PID namespace for each session"
	}
	if adminIsAmbient || inUserNamespace {
		why["pidns"] += ", in a user namespace"
	}

	h.tier = isolation
	if isolation == "auto" || isolation == "probe" {
		h.tier = "none"
		if root != nil {
			h.tier = "cgroup"
		}
	}
	err := failed[h.tier]
	if h.tier == "pidns" && inUserNamespace && err == nil {
		err = errNoAdmin // the caller has forgotten RunInUserNamespace
	}
	for _, name := range TierNames {
		r := TierReport{Tier: name, Available: failed[name] == nil, InForce: name == h.tier, Why: why[name]}
		if !r.Available {
			r.Why = failed[name].Error()
		} else if name == "pidns" && !r.InForce {
			r.Why += "; only if asked for, since it breaks kill by numbers from ps"
			if inUserNamespace {
				r.Why += ", and sudo"
			}
		}
		h.tiers = append(h.tiers, r)
	}
	if err == nil && h.tier == "cgroup" && isolation != "probe" {
		removeLeftovers(filepath.Dir(root.dir), killLeftover, h.log)
		h.root, root = root, nil
	}
	if err == nil && h.tier == "pidns" {
		h.spaces, spaces = spaces, nil
	}
	if root != nil {
		_ = root.close()
	}
	if spaces != nil {
		spaces.close()
	}
	if err != nil {
		return fmt.Errorf("isolation %s: %w", h.tier, err)
	}
	switch {
	case h.tier != "none":
		h.why = why[h.tier]
	case isolation == "none":
		h.why = "not asked for"
	default:
		h.why = noCgroup.Error()
	}
	return nil
}

// probeUserNamespace tries whether we could have PID namespaces in a user namespace of our own: some systems let
// anybody make those but forbid everything in them.
func probeUserNamespace() error {
	program, err := openProgram("trl-probe", probeText())
	if err != nil {
		return err
	}
	defer unix.Close(program)
	pid, err := syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(program), []string{"trl-probe"}, &syscall.ProcAttr{Dir: "/", Sys: userNamespace()})
	if err != nil {
		return fmt.Errorf("user namespace: %w", explainNamespaces(err))
	}
	var ws unix.WaitStatus
	if _, err := retryEINTR(func() (int, error) { return unix.Wait4(pid, &ws, 0, nil) }); err != nil {
		return os.NewSyscallError("wait4", err)
	}
	if ws != 0 {
		return fmt.Errorf("PID namespace in a user namespace: %w", explainNamespaces(syscall.Errno(ws.ExitStatus())))
	}
	return nil
}
