package own

import (
	"os"
	"syscall"
	"time"

	"trl/protocol"
)

// A Spec says what to start. The child gets its own process session, default
// dispositions for all signals and an empty signal mask.
type Spec struct {
	Path      string // absolute, or relative to Dir; not searched for in PATH
	Argv, Env []string
	Dir       string
	Files     []*os.File // its descriptors 0, 1, 2…; nil is a closed one. Each is switched to blocking, as os/exec does
	TTY       bool       // its descriptor 0 is a terminal, which becomes the one that controls its process session
}

// Status is how a child ended.
type Status struct {
	Code   int            // 0…255; 128+n after signal n; -1 when it cannot be known
	Signal syscall.Signal // 0 when it was none
	CPU    time.Duration  // user and system, its own and that of the children it waited for
	MaxRSS int64          // bytes
}

// SignalStatus returns the Status of a child that a signal ended.
func SignalStatus(sig syscall.Signal) Status {
	return Status{Code: protocol.SignalExitCode(sig), Signal: sig}
}

// The names of the limits, as on the wire and in LimitError.
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

// TierReport says of one way of keeping processes together whether this machine has it.
type TierReport struct {
	Tier      string `json:"tier"`
	Available bool   `json:"available"`
	InForce   bool   `json:"in_force"`
	Why       string `json:"why"` // what it rests on, or what is in its way
}
