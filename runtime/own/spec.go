package own

import (
	"os"
	"syscall"
	"time"

	"trl/protocol"
)

// A Spec says what to start. The child gets its own process session, default dispositions for all signals and an empty
// signal mask.
type Spec struct {
	Path      string // absolute, or relative to Dir; not searched for in PATH
	Argv, Env []string
	Dir       string
	Files     []*os.File // the child's descriptors 0, 1, 2…; nil means closed. Each is switched to blocking mode, as os/exec does
	TTY       bool       // descriptor 0 is a terminal and becomes the controlling terminal of the process session
}

// Status is how a child ended.
type Status struct {
	Code   int            // 0…255; 128+n after signal n; -1 if it is not known
	Signal syscall.Signal // 0 if no signal ended the child
	CPU    time.Duration  // user and system time of the child and of the children that it waited for
	MaxRSS int64          // bytes
}

// SignalStatus returns the Status of a child that a signal ended.
func SignalStatus(sig syscall.Signal) Status {
	return Status{Code: protocol.SignalExitCode(sig), Signal: sig}
}

// These are the names of the limits on the wire and in LimitError.
const (
	LimitMemory    = "memory_bytes"
	LimitPIDs      = "pids"
	LimitCPU       = "cpu"
	LimitFileSize  = "file_size_bytes"
	LimitOpenFiles = "open_files"
)

// LimitError says that a limit cannot be enforced here.
type LimitError struct{ Limit, Why string }

func (e *LimitError) Error() string { return "limit " + e.Limit + ": " + e.Why }

// TierReport says whether this machine has a tier.
type TierReport struct {
	Tier      string `json:"tier"`
	Available bool   `json:"available"`
	InForce   bool   `json:"in_force"`
	Why       string `json:"why"` // what makes the tier possible here, or what prevents it
}
