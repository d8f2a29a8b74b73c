package config

import (
	"path/filepath"

	"trl/internal/statedir"
)

// checkRecord decides where recordings are stored.
func (s *Settings) checkRecord(fault faultFunc) (err error) {
	r := &s.Pool.Record
	if r.TotalBytes == 0 {
		if r.Policy != "off" {
			return fault("record", r.Policy, "--record-total-bytes above 0")
		}
		r.Dir = ""
		return nil
	}
	if r.TotalBytes < r.MaxBytes {
		return fault("record-total-bytes", r.TotalBytes, "0, or at least --record-max-bytes")
	}
	if r.Dir == "" {
		r.Dir = filepath.Join(s.StateDir, statedir.RecordingsDir)
	}
	r.Dir, err = filepath.Abs(r.Dir)
	return err
}
