package serve

import (
	"fmt"
	"os"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/cmdline"
	"trl/internal/config"
)

// checkRecordable refuses to start if the recordings that the policy demands could not be written. A gateway that comes back to its
// sessions logs the error instead and serves.
func checkRecordable(s *config.Settings, first bool, log zerolog.Logger) error {
	r := s.Pool.Record
	if r.Policy == "off" {
		return nil
	}
	err := os.MkdirAll(r.Dir, 0o700)
	if err == nil {
		err = unix.Access(r.Dir, unix.W_OK|unix.X_OK)
	}
	switch {
	case err == nil:
		return nil
	case first:
		return cmdline.WithHint(fmt.Errorf("directory for recordings %s: %w", r.Dir, err), "choose another --record-dir, or leave --record out")
	}
	log.Error().Err(err).Msg("nothing can be recorded")
	return nil
}
