package serve

import (
	"path/filepath"

	"github.com/rs/zerolog"

	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/metrics"
	"trl/web/audit"
)

// openAudit opens the audit log; nil: there is none. Call it only when this gateway is the only one: during an upgrade, the predecessor
// writes to the log until it leaves.
func openAudit(s *config.Settings, counts *metrics.Metrics, log zerolog.Logger) (*audit.Log, error) {
	c := s.Operation.Audit
	if c.Path == "" {
		return nil, nil
	}
	c.Lost, c.Failing = counts.AuditLost, counts.AuditFailing
	l, err := audit.Open(c, log)
	if err != nil {
		return nil, cmdline.WithHint(err, "the gateway must own the file and %s next to it, mode 0600, in a directory where it may write", audit.HashKeyFile(filepath.Base(c.Path)))
	}
	return l, nil
}
