package main

import "path/filepath"

// checkRecord finds out where recordings go.
func (s *settings) checkRecord(fault func(flag string, value any, want string) error) (err error) {
	r := &s.pool.Record
	if r.TotalBytes == 0 {
		if r.Policy != "off" {
			return fault("record", r.Policy, "room for them: --record-total-bytes is 0")
		}
		r.Dir = ""
		return nil
	}
	if r.TotalBytes < r.MaxBytes {
		return fault("record-total-bytes", r.TotalBytes, "0, or at least --record-max-bytes")
	}
	if r.Dir == "" {
		r.Dir = filepath.Join(s.stateDir, recordingsDir)
	}
	r.Dir, err = filepath.Abs(r.Dir)
	return err
}
