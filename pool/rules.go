package pool

import "time"

// rules are the operator's Config with its defaults filled in, and what follows from it. Never changed, only replaced whole: who loads
// them twice in one request may see two of them, so each reads what belongs together from one.
type rules struct {
	Config
	shells shells
}

func newRules(c Config) *rules {
	orElse(&c.MaxSessions, 256)
	orElse(&c.MaxKeys, DefaultMaxKeys)
	orElse(&c.DefaultShell, "/bin/sh")
	orElse(&c.DefaultDir, "/tmp")
	orElse(&c.RingBytes, 1<<20)
	orElse(&c.MaxOutput, 64<<20)
	return &rules{Config: c, shells: newShells(c)}
}

// LongestTimeout is the most that a command may name where no maximum is set.
const LongestTimeout = 24 * time.Hour

// timeout is what a command that is to have d gets. 0 is no timeout, which is above every maximum.
func (r *rules) timeout(d time.Duration) time.Duration {
	if most := r.MaxTimeout; most > 0 && (d == 0 || d > most) {
		return most
	} else if most == 0 {
		return min(d, LongestTimeout)
	}
	return d
}

// Configure puts c in force for what is asked from now on. What sessions, streams and commands were promised when they were made they
// keep; bounds that are exceeded now end nothing; retention counts at once. What is the lifetime's stays: BaseEnv, Epoch, MaxOf, KeptOutput, Ended and Record.
func (p *Pool) Configure(c Config) {
	before := p.rules.Load()
	c.BaseEnv, c.Epoch, c.MaxOf, c.Ended, c.Record = before.BaseEnv, before.Epoch, before.MaxOf, before.Ended, before.Record
	p.rules.Store(newRules(c))
	p.keys.bound(c.MaxKeys)
	p.warm.nudge()
}
