package pool

import (
	"time"

	"trl/protocol"
)

// expiryWarning is how long before its end an idle session's watchers are told, half the timeout where that is shorter.
const expiryWarning = time.Minute

// idleBase is what idleness is counted from: a wall clock that is set must end nobody.
var idleBase = time.Now()

// Touch restarts the idle clock. A session that is ending has none any more.
func (s *Session) Touch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending != nil {
		return s.errEndedLocked()
	}
	s.touchLocked(time.Now())
	return nil
}

func (s *Session) touchLocked(now time.Time) {
	s.lastActive.Store(int64(now.Sub(idleBase)))
	s.warned = false
}

// idleTimeLocked reports for how long nothing has happened, false while something does: a command, a queue, a process, a
// shell on its way, a client at a terminal. Jobs that commands left behind, and what runs in terminals that nobody looks at,
// are not looked for here. s.mu is held.
func (s *Session) idleTimeLocked(now time.Time) (idle time.Duration, rests bool) {
	if !s.isIdleLocked() || s.liveProcesses > 0 || s.hasViewersLocked() {
		return 0, false
	}
	return now.Sub(idleBase) - time.Duration(s.lastActive.Load()), true
}

// hasViewersLocked: a client is attached to a terminal that has not ended. s.mu is held.
func (s *Session) hasViewersLocked() bool {
	for _, t := range s.terminals {
		if t.endedAt.IsZero() && t.isViewed() {
			return true
		}
	}
	return false
}

// terminalsAreBusy: something runs in a terminal besides a shell at its prompt.
func (s *Session) terminalsAreBusy() bool {
	for _, t := range s.Terminals() {
		if !t.hasEnded() && (t.text != "" || t.terminal.Busy()) {
			return true
		}
	}
	return false
}

// isIdleFor reports whether the session has rested for that long. What is at work is touched, so that the clock starts when it
// ends; so is what has jobs, which are only asked for when it matters, as that asks the operating system.
func (s *Session) isIdleFor(now time.Time, after time.Duration) bool {
	s.mu.Lock()
	idle, rests := s.idleTimeLocked(now)
	if !rests && s.ending == nil {
		s.touchLocked(now)
	}
	s.mu.Unlock()
	if !rests || idle < after {
		return false
	}
	if len(s.Background()) > 0 || s.terminalsAreBusy() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.touchLocked(now)
		return false
	}
	return true
}

// endIfIdle ends the session if nothing has come to it since due looked: due asks the operating system, which takes a while.
func (s *Session) endIfIdle(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if idle, rests := s.idleTimeLocked(now); !rests || idle < s.idleLimit() {
		return false
	}
	s.endLocked(protocol.ReasonIdle, defaultGrace)
	return true
}

// idleLimit is how long the session may rest; 0: for ever. One whose connection went with an earlier gateway has a minute, until its client
// has come back.
func (s *Session) idleLimit() time.Duration {
	idle := s.settings.Load().idle
	if s.connLost.Load() && (idle == 0 || idle > lostConnIdle) {
		return lostConnIdle
	}
	return idle
}

// EndIdle begins the end of the sessions that have been idle for too long, and counts them. For the reaper.
func (p *Pool) EndIdle(now time.Time) (ended int) {
	for _, s := range p.all() {
		if most := s.idleLimit(); most > 0 && s.isIdleFor(now, most) {
			if s.endIfIdle(now) {
				ended++
			}
		}
	}
	return ended
}

// WarnExpiring tells the watchers of sessions that EndIdle will end soon, once for each rest. For the reaper.
func (p *Pool) WarnExpiring(now time.Time) {
	for _, s := range p.all() {
		most := s.idleLimit()
		ahead := min(expiryWarning, most/2)
		if most <= 0 || !s.isIdleFor(now, most-ahead) {
			continue
		}
		s.mu.Lock()
		if idle, rests := s.idleTimeLocked(now); rests && !s.warned {
			s.warned = true
			s.watchers.Publish("session.expiring", func() any {
				return protocol.SessionExpiring{SessionID: s.id, In: protocol.Seconds(max(0, most-idle).Seconds())}
			})
		}
		s.mu.Unlock()
	}
}
