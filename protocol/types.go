package protocol

import (
	"time"
)

// Seconds is a length of time on the wire: a number, fractional where wanted.
type Seconds float64

// Duration converts s to a time.Duration and saturates if s is too large for it. A positive s never becomes 0, because 0 often means none.
func (s Seconds) Duration() time.Duration {
	const most = float64(1<<63-1) / float64(time.Second)
	if float64(s) >= most {
		return 1<<63 - 1
	}
	d := time.Duration(float64(s) * float64(time.Second))
	if d == 0 && s > 0 {
		return 1
	}
	return d
}

// Env is variables to set; a null unsets.
type Env map[string]*string

// The smallest limits. Below them no shell starts, or it cannot save its state.
const (
	MinMemory    = 8 << 20
	MinPids      = 1
	MinCPU       = 0.01
	MinFileSize  = 1 << 20
	MinOpenFiles = 16
)

// Limits bounds the resources of a session's processes. In a request, zero means the server's limit; in an answer, none.
type Limits struct {
	MemoryBytes   int64   `json:"memory_bytes,omitzero"`
	Pids          int64   `json:"pids,omitzero"`
	CPU           float64 `json:"cpu,omitzero"`
	FileSizeBytes int64   `json:"file_size_bytes,omitzero"`
	OpenFiles     int64   `json:"open_files,omitzero"`
}

// Names returns the names of the limits that are set, as on the wire.
func (l Limits) Names() (names []string) {
	for _, x := range []struct {
		name string
		set  bool
	}{
		{"memory_bytes", l.MemoryBytes > 0}, {"pids", l.Pids > 0}, {"cpu", l.CPU > 0},
		{"file_size_bytes", l.FileSizeBytes > 0}, {"open_files", l.OpenFiles > 0},
	} {
		if x.set {
			names = append(names, x.name)
		}
	}
	return names
}
