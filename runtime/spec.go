package runtime

import (
	"os"
	"syscall"
	"time"

	"trl/runtime/confine"
)

// A Spec says what to start. The child gets its own process session, default
// dispositions for all signals and an empty signal mask.
type Spec struct {
	Path      string // absolute, or relative to Dir; not searched for in PATH
	Argv, Env []string
	Dir       string
	Files     []*os.File       // its descriptors 0, 1, 2…; nil is a closed one. Each is switched to blocking, as os/exec does
	TTY       bool             // its descriptor 0 is a terminal, which becomes the one that controls its process session
	Scope     *Scope           // where it belongs; nil: to no session
	User      *confine.Account // of a process of no session: its user; nil: ours
}

// Status is how a child ended.
type Status struct {
	Code   int            // 0…255; 128+n after signal n; -1 when it cannot be known
	Signal syscall.Signal // 0 when it was none
	CPU    time.Duration  // user and system, its own and that of the children it waited for
	MaxRSS int64          // bytes
}

// LimitError: a limit that cannot be enforced here. To ignore it would be a lie.
type LimitError struct{ Limit, Why string }

func (e *LimitError) Error() string { return "limit " + e.Limit + ": " + e.Why }

// A TierReport is one of them, and what this machine has to say about it.
type TierReport struct {
	Tier      string `json:"tier"`
	Available bool   `json:"available"`
	InForce   bool   `json:"in_force"`
	Why       string `json:"why"` // what it rests on, or what is in its way
}
