package pool

import (
	"time"

	"trl/pool/timeouts"
	"trl/protocol"
)

// expiryWarning is how long before the end of an idle session its watchers are told. It is half the timeout if that is shorter.
const expiryWarning = time.Minute

// idleBase is where idle times count from, because a wall clock that is set must end no session.
var idleBase = time.Now()

// Touch restarts the idle time. It fails if the session is ending.
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

// idleTimeLocked returns for how long nothing has happened. rests is false while the shell starts, a command waits or runs, a process runs, or a
// terminal has a viewer. Jobs that commands left behind, and programs in terminals without viewers, are not considered here. s.mu is held.
func (s *Session) idleTimeLocked(now time.Time) (idle time.Duration, rests bool) {
	if !s.isIdleLocked() || s.liveProcesses > 0 || s.hasViewersLocked() {
		return 0, false
	}
	return now.Sub(idleBase) - time.Duration(s.lastActive.Load()), true
}

// hasViewersLocked reports whether an open terminal has a viewer. s.mu is held.
func (s *Session) hasViewersLocked() bool {
	for _, t := range s.terminals {
		if t.endedAt.IsZero() && t.viewers.IsViewed() {
			return true
		}
	}
	return false
}

// terminalsAreBusy reports whether anything but a shell at its prompt runs in a terminal.
func (s *Session) terminalsAreBusy() bool {
	for _, t := range s.Terminals() {
		if !t.hasEnded() && (t.text != "" || t.terminal.Busy()) {
			return true
		}
	}
	return false
}

// isIdleFor reports whether the session has been idle for that long. If something runs, it restarts the idle time, which thus begins when that
// ends. It looks for jobs only if the session would be idle otherwise, because that asks the operating system.
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

// endIfIdle ends the session if nothing has happened since isIdleFor, which takes a while because it asks the operating system.
func (s *Session) endIfIdle(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if idle, rests := s.idleTimeLocked(now); !rests || idle < s.idleLimit() {
		return false
	}
	s.endLocked(protocol.ReasonIdle, timeouts.DefaultGrace)
	return true
}

// idleLimit returns how long the session may be idle; 0: for ever. A session with on_disconnect: destroy, whose connection ended with an earlier
// gateway, has a minute until its client has come back.
func (s *Session) idleLimit() time.Duration {
	idle := s.settings.Load().Idle
	if s.connLost.Load() && (idle == 0 || idle > lostConnIdle) {
		return lostConnIdle
	}
	return idle
}

// EndIdle begins the end of the sessions that have been idle for too long, and returns their number. The reaper calls it.
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

// WarnExpiring tells the watchers of sessions that EndIdle will end soon, once in each idle time. The reaper calls it.
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
