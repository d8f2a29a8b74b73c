package pool

import "time"

// effectiveConfig are the operator's Config with its defaults filled in, and what follows from it. Never changed, only replaced whole: who loads
// them twice in one request may see two of them, so each reads what belongs together from one.
type effectiveConfig struct {
	Config
	shells shells
}

func newEffectiveConfig(c Config) *effectiveConfig {
	valueOr(&c.MaxSessions, 256)
	valueOr(&c.MaxKeys, DefaultMaxKeys)
	valueOr(&c.DefaultShell, "/bin/sh")
	valueOr(&c.DefaultDir, "/tmp")
	valueOr(&c.RingBytes, 1<<20)
	valueOr(&c.MaxOutput, 64<<20)
	return &effectiveConfig{Config: c, shells: newShells(c)}
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

// Configure puts c in force for what is asked from now on. What sessions, streams and commands were promised when they were made they
// keep; bounds that are exceeded now end nothing; retention counts at once. What is the lifetime's stays: BaseEnv, Epoch, MaxOfPrincipal, KeptOutput, Ended and Record.
func (p *Pool) Configure(c Config) {
	before := p.config.Load()
	c.BaseEnv, c.Epoch, c.MaxOfPrincipal, c.OnEnd, c.Record = before.BaseEnv, before.Epoch, before.MaxOfPrincipal, before.OnEnd, before.Record
	p.config.Store(newEffectiveConfig(c))
	p.requestKeys.setLimit(c.MaxKeys)
	p.warm.wakeRun()
}
