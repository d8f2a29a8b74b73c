// Package settings has what the operator sets for a pool.
package settings

import (
	"cmp"
	"time"

	"trl/pool/claims"
	"trl/pool/ends"
	"trl/pool/recording"
	"trl/pool/requestkey"
	"trl/pool/shells"
	"trl/protocol"
)

// MaxKeptOutput is how many bytes of output are kept for the answers of exec.run, of one principal's commands, until a command has ended and its
// answers are written. All principals together have twice as much. The first 64 KiB of each half of a stream's text are not counted. Beyond the
// budget an answer has less of its command's output, as with a smaller max_output_bytes, and says so.
const MaxKeptOutput = 512 << 20

// Config has the operator's settings. A zero duration means no timeout, no bound, or no retention. Configure replaces it.
type Config struct {
	MaxSessions     int                  // 256 when 0
	MaxPerPrincipal int                  // 0: places.AllButReserve of MaxSessions, or MaxSessions for those of ExemptFromReserve
	MaxKeys         int                  // how many request keys of one principal are remembered; requestkey.DefaultMax when 0
	MaxOfPrincipal  func(who string) int // a principal's own bound, 0: none; called without a lock; nil: nobody has one
	DefaultShell    string               // path or name; /bin/sh when empty
	DefaultDir      string               // /tmp when empty
	Shells          []string             // allowed, paths or names; the usual ones when empty
	BaseEnv         []string             // all of a session's environment but TRL_SESSION_ID
	AllowEnv        []string             // variables that a request may set although they change what the shell does; * at the end stands for any rest

	Epoch     string           // names the lifetime of the sessions; random when empty
	Directory claims.Directory // what the nodes of a cluster share; nil: there is one node

	IdleTimeout    time.Duration // of a session without one
	MaxIdle        time.Duration // the most that a session may ask for
	Retention      time.Duration // how long ended work stays readable
	DefaultTimeout time.Duration // of a command, if neither it nor its session has one
	MaxTimeout     time.Duration // the most that any command gets, also one without a timeout; 0: timeouts.Longest, for those that have one

	Limits protocol.Limits // of a session without limits, and the most that one may ask for; 0: none

	RingBytes  int   // per stream; 1 MiB when 0
	KeptOutput int64 // bytes for the answers of one principal's commands, and half of those of all; MaxKeptOutput when 0
	MaxOutput  int   // the most of a stream that one answer holds; 64 MiB when 0
	WarmShells int   // how many warm shells there shall be

	RetentionBounds
	Record recording.Config
	OnEnd  func(ends.End) // called for every end, without a lock; it does not wait, and calls nothing of the pool; nil: no ends are reported
}

// RetentionBounds bounds what is retained. Only tests set them; zero means the bounds of docs/limits.md.
type RetentionBounds struct {
	MaxRetained                 int   // sessions
	MaxRetainedBytesOfPrincipal int64 // bytes of one principal
	MaxRetainedBytes            int64 // bytes of all
	MaxKeysOfAll                int   // request keys of all
}

// Effective is the Config with its defaults filled in, and the list of shells. It is never changed, only replaced. Code that needs values
// that belong together loads the pointer once.
type Effective struct {
	Config
	Allowed *shells.List
}

// NewEffective fills in the defaults.
func NewEffective(c Config) *Effective {
	c.MaxSessions = cmp.Or(c.MaxSessions, 256)
	c.MaxKeys = cmp.Or(c.MaxKeys, requestkey.DefaultMax)
	c.DefaultShell = cmp.Or(c.DefaultShell, "/bin/sh")
	c.DefaultDir = cmp.Or(c.DefaultDir, "/tmp")
	c.RingBytes = cmp.Or(c.RingBytes, 1<<20)
	c.MaxOutput = cmp.Or(c.MaxOutput, 64<<20)
	if c.OnEnd == nil {
		c.OnEnd = func(ends.End) {}
	}
	return &Effective{Config: c, Allowed: shells.NewList(c.Shells, c.DefaultShell, c.BaseEnv)}
}
