package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"trl/internal/cmdline"
	"trl/web/audit"
)

// operation has the operator's decisions: what trl logs, and how it ends.
type operation struct {
	Audit    audit.Config
	commands string

	onTerm       string
	drainTimeout time.Duration
}

func (s *Settings) defineOperate(f *pflag.FlagSet) {
	o := &s.Operation
	f.StringVar(&o.Audit.Path, "audit-log", "", "log who did what to this `file`, mode 0600; `trl audit verify` checks it")
	f.StringVar(&o.commands, "audit-commands", "hash", "how the audit log shows commands: `hash|redact|full`; hash uses the key in FILE.key")
	f.Var((*size)(&o.Audit.MaxBytes), "audit-max-bytes", "rotate the audit log at this `size` (100M); 0: never")
	f.DurationVar(&o.Audit.MaxAge, "audit-max-age", 0, "rotate the audit log when its first line is this old; 0: never")
	f.IntVar(&o.Audit.Keep, "audit-keep", 10, "how many rotated audit logs to keep; 0: all")
	f.DurationVar(&o.Audit.Sync, "audit-sync", time.Second, "how much of the audit log a power failure may lose; 0: nothing that was written")
	f.BoolVar(&o.Audit.Required, "audit-required", false, "refuse requests that change something while the audit log cannot be written")
	o.Audit.MaxBytes = 100 << 20

	f.StringVar(&s.Web.AdminListen, "admin-listen", "", "serve profiles (/debug/pprof) and /metrics on a Unix socket with this `path`, or on a loopback address")
	f.StringVar(&o.onTerm, "on-term", "stop", "what SIGTERM does: `stop|drain|move`; a second one stops. move is a drain that moves sessions to other nodes of the cluster")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 10*time.Minute, "how long a drain by SIGTERM waits for sessions")

	cmdline.MarkChoice(f, "audit-commands", "hash", "redact", "full")
	cmdline.MarkChoice(f, "on-term", "stop", "drain", "move")
}

// checkOperate refuses mistakes that no later step would notice.
func (s *Settings) checkOperate(fault faultFunc) error {
	o := &s.Operation
	o.Audit.Commands = audit.CommandPolicy(o.commands)
	if err := cmp.Or(atLeast(fault, "audit-keep", o.Audit.Keep, 0), atLeast(fault, "audit-max-age", o.Audit.MaxAge, 0),
		atLeast(fault, "audit-sync", o.Audit.Sync, 0), atLeast(fault, "drain-timeout", o.drainTimeout, 0)); err != nil {
		return err
	}
	if o.onTerm == "move" && len(s.Cluster.Servers) == 0 {
		return fault("on-term", "move", "--cluster, too: a gateway alone has no other node")
	}
	if n := o.Audit.MaxBytes; n != 0 && n < 4<<10 { // smaller files would have a line each
		return fault("audit-max-bytes", n, "0, or at least 4K")
	}
	if o.Audit.Path == "" {
		if o.Audit.Required {
			return fault("audit-required", true, "--audit-log FILE, too")
		}
		return nil
	}
	if path := o.Audit.Path; !filepath.IsAbs(path) { // an upgrade may run in another directory
		return fault("audit-log", fmt.Sprintf("%q", path), "a file's path, from /")
	}
	if info, err := os.Stat(filepath.Dir(o.Audit.Path)); !s.checkedByKeeper && (err != nil || !info.IsDir()) {
		return fault("audit-log", fmt.Sprintf("%q", o.Audit.Path), "a file in an existing directory")
	}
	return nil
}

// DrainTime is how long SIGTERM lets the sessions go on; 0 if SIGTERM stops the gateway.
func (s *Settings) DrainTime() time.Duration {
	if s.Operation.onTerm == "stop" {
		return 0
	}
	return s.Operation.drainTimeout
}

// MovesOnTerm reports whether SIGTERM moves sessions to other nodes.
func (s *Settings) MovesOnTerm() bool { return s.Operation.onTerm == "move" }
