package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"trl/web/audit"
)

// operation is what whoever operates the gateway decides: what is written down, and how it ends.
type operation struct {
	audit    audit.Config
	commands string

	onTerm       string
	drainTimeout time.Duration
}

func (s *settings) defineOperate(f *pflag.FlagSet) {
	o := &s.operation
	f.StringVar(&o.audit.Path, "audit-log", "", "write down who did what in this `file`, mode 0600, and check it with `trl audit verify`")
	f.StringVar(&o.commands, "audit-commands", "hash", "what of a command's text: `hash|redact|full`; hash is keyed, with FILE.key")
	f.Var((*size)(&o.audit.MaxBytes), "audit-max-bytes", "put the file aside at this `size` (100M); 0: never")
	f.DurationVar(&o.audit.MaxAge, "audit-max-age", 0, "put the file aside when its first line is so old; 0: never")
	f.IntVar(&o.audit.Keep, "audit-keep", 10, "files put aside that stay; 0: all")
	f.DurationVar(&o.audit.Sync, "audit-sync", time.Second, "how much of it a power failure may take; 0: nothing that was written")
	f.BoolVar(&o.audit.Required, "audit-required", false, "refuse requests that could not be written down")
	o.audit.MaxBytes = 100 << 20

	f.StringVar(&s.web.AdminListen, "admin-listen", "", "serve profiles (/debug/pprof) and /metrics on this `path` of a Unix socket, or loopback address")
	f.StringVar(&o.onTerm, "on-term", "stop", "what SIGTERM does: `stop|drain`; a second one stops")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 10*time.Minute, "how long a drain by SIGTERM waits for sessions")

	markChoice(f, "audit-commands", "hash", "redact", "full")
	markChoice(f, "on-term", "stop", "drain")
}

// checkOperate refuses what no later step would notice.
func (s *settings) checkOperate(fault func(flag string, value any, want string) error) error {
	o := &s.operation
	o.audit.Commands = audit.CommandPolicy(o.commands)
	for _, c := range []struct {
		flag       string
		value, min int64
	}{
		{"audit-keep", int64(o.audit.Keep), 0},
		{"audit-max-age", int64(o.audit.MaxAge), 0},
		{"audit-sync", int64(o.audit.Sync), 0},
		{"drain-timeout", int64(o.drainTimeout), 0},
	} {
		if c.value < c.min {
			return fault(c.flag, c.value, fmt.Sprintf("at least %d", c.min))
		}
	}
	if n := o.audit.MaxBytes; n != 0 && n < 4<<10 { // files of a line each
		return fault("audit-max-bytes", n, "0, or at least 4K")
	}
	if o.audit.Path == "" {
		if o.audit.Required {
			return fault("audit-required", true, "--audit-log FILE, too")
		}
		return nil
	}
	if path := o.audit.Path; !filepath.IsAbs(path) { // an upgrade may be asked for from elsewhere
		return fault("audit-log", fmt.Sprintf("%q", path), "a file's path, from /")
	}
	if info, err := os.Stat(filepath.Dir(o.audit.Path)); !s.checkedByKeeper && (err != nil || !info.IsDir()) {
		return fault("audit-log", fmt.Sprintf("%q", o.audit.Path), "a file in a directory that is there")
	}
	return nil
}

// drainTime is how long SIGTERM lets the sessions live, 0 when it stops.
func (s *settings) drainTime() time.Duration {
	if s.operation.onTerm == "drain" {
		return s.operation.drainTimeout
	}
	return 0
}
