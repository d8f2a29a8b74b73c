package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"trl/internal/buildinfo"
	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/statedir"
	"trl/pool/shells"
	"trl/runtime/doctor"
	"trl/runtime/host"
	"trl/runtime/own"
)

// diagnosis is the document of trl doctor --json.
type diagnosis struct {
	Version string           `json:"version"`
	Kernel  string           `json:"kernel"`
	UID     int              `json:"uid"`
	OK      bool             `json:"ok"` // everything that trl needs is there
	Tiers   []own.TierReport `json:"tiers"`
	Checks  []doctor.Finding `json:"checks"`
}

func NewDoctor() *cobra.Command {
	var asJSON bool
	var dir string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check what this machine provides for the gateway", Args: cmdline.NoArgs,
		Long: `Check what this machine provides for the gateway: tiers of containment, features of the kernel, shells, limits.

Run it as the user, and in the unit or container, in which the gateway will run.
The exit code is 1 if something is missing that the gateway requires.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := examine(dir)
			var err error
			if asJSON {
				err = cmdline.PrintJSON(cmd.OutOrStdout(), d)
			} else {
				err = d.print(cmd.OutOrStdout())
			}
			if err == nil && !d.OK {
				err = cmdline.ExitCode(1)
			}
			return err
		},
	}
	standard := os.Getenv("TRL_STATE_DIR")
	if standard == "" {
		standard = statedir.Default()
	}
	cmd.Flags().StringVar(&dir, "state-dir", standard, "the gateway's state dir")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func examine(stateDir string) diagnosis {
	var u unix.Utsname
	_ = unix.Uname(&u)
	d := diagnosis{
		Version: buildinfo.Version(), Kernel: unix.ByteSliceToString(u.Release[:]), UID: os.Geteuid(), OK: true,
		Tiers: host.Tiers(), Checks: doctor.Examine(),
	}
	d.Checks = append(d.Checks, examineShells()...)
	d.Checks = append(d.Checks, examineStateDir(stateDir))
	for _, c := range d.Checks {
		d.OK = d.OK && c.State != doctor.Missing
	}
	return d
}

func (d *diagnosis) print(w io.Writer) error {
	fmt.Fprintf(w, "trl %s, Linux %s, uid %d\n\nContainment, the surest first:\n", d.Version, d.Kernel, d.UID)
	var rows [][]string
	for _, r := range d.Tiers {
		state := "no"
		switch {
		case r.InForce:
			state = "in force"
		case r.Available:
			state = "available"
		}
		rows = append(rows, []string{"  " + r.Tier, state, r.Why})
	}
	if err := cmdline.PrintTable(w, nil, rows); err != nil {
		return err
	}
	if hint := tierHint(d.Tiers); hint != "" {
		fmt.Fprintf(w, "  %s\n", hint)
	}
	fmt.Fprintln(w, "\nWhat else counts:")
	rows = nil
	for _, c := range d.Checks {
		rows = append(rows, []string{"  " + c.Name, c.State, c.What})
	}
	if err := cmdline.PrintTable(w, nil, rows); err != nil {
		return err
	}
	if !d.OK {
		fmt.Fprintln(w, "\nSomething is missing: the gateway does not run here.")
	}
	return nil
}

// tierHint says how to get a better containment.
func tierHint(tiers []own.TierReport) string {
	switch {
	case tiers[0].Available:
		return ""
	case os.Geteuid() == 0:
		return "For tier cgroup, mount cgroup v2 so that it can be written (docker: --cgroupns=private and a writable /sys/fs/cgroup)."
	}
	return "For tier cgroup, run trl where a cgroup is yours: systemd-run --user --scope -p Delegate=yes trl serve, or a unit with Delegate=yes."
}

// examineShells reports the shells that sessions can have by default.
func examineShells() []doctor.Finding {
	found := []doctor.Finding{}
	normal := false
	for _, path := range shells.NewList(nil, "sh", config.SessionEnv(nil)).Present() {
		kind, err := doctor.ShellNameOf(path)
		if err != nil {
			found = append(found, doctor.Finding{Name: "shell", State: doctor.Weak, What: err.Error()})
			continue
		}
		normal = normal || filepath.Base(path) == "sh"
		found = append(found, doctor.Finding{Name: "shell", State: doctor.Fine, What: strings.TrimSuffix(path+": "+kind+" "+shellVersion(path, kind), " ")})
	}
	if !normal {
		state := doctor.Missing
		if len(found) > 0 {
			state = doctor.Weak
		}
		found = append(found, doctor.Finding{Name: "shell", State: state, What: "/bin/sh is none that trl drives: choose a --default-shell"})
	}
	return found
}

// shellVersion asks the shell for its version. dash has no answer.
func shellVersion(path, kind string) string {
	var args []string
	switch kind {
	case "bash", "zsh":
		args = []string{"-c", "echo $BASH_VERSION$ZSH_VERSION"}
	case "ash":
		args = []string{"-c", "busybox 2>&1"}
	default:
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // a shell that takes longer is not worth the wait
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	if filepath.Base(path) == "busybox" {
		cmd.Args = append([]string{"ash"}, args...)
	}
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.WaitDelay = time.Second
	text, _ := cmd.Output()
	line, _, _ := bytes.Cut(text, []byte("\n"))
	if kind == "ash" { // BusyBox v1.35.0 (Debian …) multi-call binary.
		f := strings.Fields(string(line))
		if len(f) < 2 || f[0] != "BusyBox" {
			return ""
		}
		return f[1]
	}
	return string(line)
}

// examineStateDir examines the directory, or the nearest parent that exists. It changes nothing.
func examineStateDir(dir string) doctor.Finding {
	finding := func(state, what string) doctor.Finding {
		return doctor.Finding{Name: "state dir", State: state, What: dir + ": " + what}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return finding(doctor.Missing, err.Error())
	}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		above := filepath.Dir(dir)
		for ; above != "/"; above = filepath.Dir(above) {
			if _, err := os.Stat(above); err == nil {
				break
			}
		}
		if err := unix.Access(above, unix.W_OK|unix.X_OK); err != nil {
			return finding(doctor.Missing, fmt.Sprintf("cannot be made in %s: %v", above, err))
		}
		return finding(doctor.Fine, "will be made at the first start")
	}
	switch {
	case err != nil:
		return finding(doctor.Missing, err.Error())
	case !info.IsDir():
		return finding(doctor.Missing, syscall.ENOTDIR.Error())
	case info.Mode().Perm()&0o022 != 0:
		return finding(doctor.Missing, "can be written by others")
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return finding(doctor.Missing, err.Error())
	}
	return finding(doctor.Fine, "can be written")
}
