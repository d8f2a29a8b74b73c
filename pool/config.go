package pool

import (
	"time"

	"trl/pool/recording"
	"trl/pool/requestkey"
	"trl/pool/shells"
	"trl/protocol"
)

// maxKeptOutput is how many bytes of output are kept for the answers of exec.run, of one principal's commands, until a command has ended and its
// answers are written. All principals together have twice as much. The first 64 KiB of each half of a stream's text are not counted. Beyond the
// budget an answer has less of its command's output, as with a smaller max_output_bytes, and says so.
const maxKeptOutput = 512 << 20

// Config is the operator's. Zero durations mean: no timeout, no bound, let go at once. It may be replaced: Configure.
type Config struct {
	MaxSessions     int                  // 256 when 0 (PROTOCOL.md §9)
	MaxPerPrincipal int                  // 0: AllButReserve of MaxSessions, for who has all (ExemptFromReserve) MaxSessions
	MaxKeys         int                  // how many request keys of one principal are remembered; requestkey.DefaultMax when 0
	MaxOfPrincipal  func(who string) int // a principal's own bound, 0: none; not called with a lock held; nil: nobody has one
	DefaultShell    string               // path or name; /bin/sh when empty
	DefaultDir      string               // /tmp when empty
	Shells          []string             // allowed, paths or names; those of PROTOCOL.md §3 when empty
	BaseEnv         []string             // all of a session's environment but TRL_SESSION_ID
	AllowEnv        []string             // names that a request may set although they steer shells; one that ends in * stands for all that begin so

	Epoch string // names the lifetime of the sessions; random when empty

	IdleTimeout    time.Duration // of a session that names none
	MaxIdle        time.Duration // the most that one may name
	Retention      time.Duration // how long what has ended stays readable
	DefaultTimeout time.Duration // of a command whose session names none
	MaxTimeout     time.Duration // the most that any command gets, one without a timeout included; 0: LongestTimeout, of those that name one

	Limits protocol.Limits // of a session that names none, and the most that one may name; 0: none

	RingBytes  int   // per stream; 1 MiB when 0
	KeptOutput int64 // of one principal's running commands, for answers, and half of what all have; 512 MiB when 0
	MaxOutput  int   // the most of a stream that one answer holds; 64 MiB when 0
	WarmShells int   // shells of the default kind that wait for their session

	RetentionBounds
	Record recording.Config
	OnEnd  func(End) // told of every end; it does not wait, and asks nothing of the pool. nil: nobody keeps a record
}

// RetentionBounds bounds what has ended and is kept. No setting sets these, tests do; the bounds of docs/limits.md when 0.
type RetentionBounds struct {
	MaxRetained                 int   // sessions
	MaxRetainedBytesOfPrincipal int64 // bytes of one principal
	MaxRetainedBytes            int64 // bytes of all
	MaxKeysOfAll                int   // request keys of all
}

// effectiveConfig are the operator's Config with its defaults filled in, and what follows from it. Never changed, only replaced whole: who loads
// them twice in one request may see two of them, so each reads what belongs together from one.
type effectiveConfig struct {
	Config
	shells *shells.List
}

func newEffectiveConfig(c Config) *effectiveConfig {
	valueOr(&c.MaxSessions, 256)
	valueOr(&c.MaxKeys, requestkey.DefaultMax)
	valueOr(&c.DefaultShell, "/bin/sh")
	valueOr(&c.DefaultDir, "/tmp")
	valueOr(&c.RingBytes, 1<<20)
	valueOr(&c.MaxOutput, 64<<20)
	return &effectiveConfig{Config: c, shells: shells.NewList(c.Shells, c.DefaultShell, c.BaseEnv)}
}

// LongestTimeout is the most that a command may name where no maximum is set.
const LongestTimeout = 24 * time.Hour

// timeout is what a command that is to have d gets. 0 is no timeout, which is above every maximum.
func (r *effectiveConfig) timeout(d time.Duration) time.Duration {
	if most := r.MaxTimeout; most > 0 && (d == 0 || d > most) {
		return most
	} else if most == 0 {
		return min(d, LongestTimeout)
	}
	return d
}

// idle returns the idle timeout that a session gets which asks for d.
func (r *effectiveConfig) idle(d time.Duration) time.Duration {
	if most := r.MaxIdle; most > 0 && (d == 0 || d > most) { // "never" is above every maximum
		return most
	}
	return d
}

func secondsOr(s *protocol.Seconds, d time.Duration) time.Duration {
	if s == nil {
		return d
	}
	return s.Duration()
}

// Configure puts c in force for what is asked from now on. What sessions, streams and commands were promised when they were made they
// keep; bounds that are exceeded now end nothing; retention counts at once. What is the lifetime's stays: BaseEnv, Epoch, MaxOfPrincipal, KeptOutput, Ended and Record.
func (p *Pool) Configure(c Config) {
	before := p.config.Load()
	c.BaseEnv, c.Epoch, c.MaxOfPrincipal, c.OnEnd, c.Record = before.BaseEnv, before.Epoch, before.MaxOfPrincipal, before.OnEnd, before.Record
	p.config.Store(newEffectiveConfig(c))
	p.requestKeys.SetMax(c.MaxKeys)
	p.warm.Wake()
}
