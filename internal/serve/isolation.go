package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/runtime/confine"
	"trl/runtime/host"
	"trl/runtime/own"
)

// isolationHint is the hint for an --isolation that this machine does not offer.
const isolationHint = "use --isolation auto; `trl doctor` says what this machine offers"

// hintHost is the hint if the host cannot be made.
func hintHost(err error) string {
	switch {
	case strings.Contains(err.Error(), "tmpfs"):
		return "mount one (docker: --tmpfs /run)"
	case strings.HasPrefix(err.Error(), "isolation"):
		return isolationHint
	}
	return "`trl doctor` says what this machine offers"
}

// requireTier returns an error if the tier in force is below the one that the operator requires.
func requireTier(tiers []own.TierReport, wanted string) error {
	force := tiers[slices.IndexFunc(tiers, func(r own.TierReport) bool { return r.InForce })]
	if host.TierAtLeast(force.Tier, wanted) {
		return nil
	}
	why, hint := "", "see `trl doctor` for what this machine lacks, or require less"
	for _, r := range tiers {
		if !host.TierAtLeast(r.Tier, wanted) {
			continue
		}
		if r.Available {
			hint = fmt.Sprintf("use --isolation %s", r.Tier)
		} else {
			why += fmt.Sprintf("; no %s: %s", r.Tier, r.Why)
		}
	}
	return cmdline.WithHint(fmt.Errorf("isolation %s is in force, and %s is required%s", force.Tier, wanted, why), "%s", hint)
}

// inSandbox runs this command line in a sandbox and exits with its exit code. It gives the sandbox the files and directories that trl
// needs.
func inSandbox(s *config.Settings) error {
	if err := os.MkdirAll(s.StateDir, 0o700); err != nil {
		return cmdline.WithHint(fmt.Errorf("make state directory: %w", err), "choose another one with --state-dir")
	}
	box := confine.Sandbox{}
	for _, path := range []string{s.File, s.Web.TLSCert, s.Web.TLSKey, s.TokenFile} {
		if path != "" {
			box.Read = append(box.Read, path)
		}
	}
	let := func(flag, dir string) error {
		real, err := filepath.Abs(dir)
		if err == nil {
			real, err = filepath.EvalSymlinks(real)
		}
		if err != nil {
			return cmdline.WithHint(fmt.Errorf("%s: %w", s.Source(flag), err), "name an existing directory")
		}
		own := real == "/tmp" && (flag == "default-dir" || flag == "allow-write") // the sandbox has a /tmp of its own, which is enough
		if real == "/" || slices.Contains(confine.SandboxOwn, real) && !own {
			return cmdline.WithHint(fmt.Errorf("%s: %s would be writable in the sandbox", s.Source(flag), real), "choose a directory of its own for it")
		}
		box.Write = append(box.Write, real)
		return nil
	}
	dirs := [][2]string{{"state-dir", s.StateDir}}
	if s.Web.Unix != "" {
		dirs = append(dirs, [2]string{"unix", filepath.Dir(s.Web.Unix)})
	}
	if s.Operation.Audit.Path != "" {
		dirs = append(dirs, [2]string{"audit-log", filepath.Dir(s.Operation.Audit.Path)})
	}
	if _, err := os.Stat(s.TokenFile); s.TokenFile != "" && err != nil { // trl will create the file
		dirs = append(dirs, [2]string{"token-file", filepath.Dir(s.TokenFile)})
	}
	if s.IsSet("record-dir") && s.Pool.Record.Dir != "" { // without the flag the directory is in the state dir
		if err := os.MkdirAll(s.Pool.Record.Dir, 0o700); err != nil {
			return cmdline.WithHint(fmt.Errorf("directory for recordings: %w", err), "choose another --record-dir")
		}
		dirs = append(dirs, [2]string{"record-dir", s.Pool.Record.Dir})
	}
	for _, dir := range s.AllowWrite {
		dirs = append(dirs, [2]string{"allow-write", dir})
	}
	if len(s.AllowWrite) > 0 { // then sessions may write nowhere else
		box.Read = append(box.Read, s.Pool.DefaultDir)
	} else {
		dirs = append(dirs, [2]string{"default-dir", s.Pool.DefaultDir})
	}
	for _, d := range dirs {
		if err := let(d[0], d[1]); err != nil {
			return err
		}
	}
	code, err := box.Run(fmt.Sprint(config.SandboxedVar, "=", os.Getpid()))
	if err != nil {
		return cmdline.WithHint(fmt.Errorf("sandbox bwrap: %w", err), "install bubblewrap 0.5 or later, and allow user namespaces, or leave --sandbox out; `trl doctor` says what this machine offers")
	}
	if code != 0 {
		return cmdline.ExitCode(code)
	}
	return nil
}
