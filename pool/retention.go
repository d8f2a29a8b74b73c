package pool

import (
	"slices"
	"time"

	"trl/pool/entry"
	"trl/pool/requestkey"
	"trl/pool/retained"
	"trl/runtime/sessionlog"
)

// Bounds of ended work, in addition to the retention time and those of a session, see package retained. Beyond the bounds of a principal,
// or of all, the principal with the most loses work: first that of ended sessions, then the oldest of live ones. Running work is never dropped.
const (
	maxRetained      = 1000      // sessions that have ended
	maxRetainedOf    = 128 << 20 // bytes of one principal, in all sessions
	maxRetainedBytes = 256 << 20 // bytes of all
)

// loggedTombstone answers a retry when its exec, process or terminal is not retained any more.
type loggedTombstone interface {
	requestkey.Tombstone
	key() *requestkey.Request
	loggedAt() *sessionlog.Position
	encode() []byte
}

// retainLocked retains what has just ended, and drops what exceeds the bounds. s.mu is held.
func (s *Session) retainLocked(r retained.Work) {
	s.retained.Add(r)
	s.trimLocked()
}

// retainExecLocked is retainLocked for a command, of which only the ended form is kept. s.mu is held.
func (s *Session) retainExecLocked(e *Exec) {
	s.retainLocked(s.keepEndedLocked(e))
	s.retained.OutputBytes += e.endOffset
}

func (s *Session) keepEndedLocked(e *Exec) *endedExec {
	x := e.toEnded()
	if e.key != (requestkey.Ref{}) && e.failure == nil {
		if x.Request = s.pool.requestKeys.Find(e.key); x.Request != nil {
			s.pool.requestKeys.KeepTombstone(x.Request, x)
		}
	}
	delete(s.execs, x.ID())
	s.endedExecs[x.ID()] = x
	return x
}

// keepTombstoneLocked keeps the answer to a retry, if its request_key is remembered. s.mu is held.
func (s *Session) keepTombstoneLocked(x loggedTombstone) {
	if k := x.key(); k != nil {
		s.pool.requestKeys.KeepTombstone(k, x)
		s.tombstones = append(s.tombstones, x)
	}
}

func (s *Session) trimLocked() {
	for s.retained.IsOver() {
		s.discardOldestLocked()
	}
}

func (s *Session) discardOldestLocked() {
	oldest := s.retained.TakeOldest()
	s.removeLocked(oldest.ID())
	s.appendLog(entry.Entry{Forgot: oldest.ID()}) // before its output is dropped
	oldest.Discard()
}

// removeLocked makes the id of ended work unknown. s.mu is held, or nobody else knows the session.
func (s *Session) removeLocked(id string) {
	delete(s.endedExecs, id)
	delete(s.processes, id)
	delete(s.terminals, id)
}

// forget drops what ended before then, and weighs again what jobs still write to.
func (s *Session) forget(now, then time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.retained.Len() > 0 && s.retained.At(0).EndTime().Before(then) {
		s.discardOldestLocked()
	}
	s.retained.WeighAgain()
	s.trimLocked()
	over := 0
	for over < len(s.tombstones) && s.pool.requestKeys.IsExpired(s.tombstones[over].key(), now) {
		over++
	}
	s.tombstones = slices.Delete(s.tombstones, 0, over)
	s.requestCompactLocked()
}

// discardRetained drops all work of a session whose own retention is over. It also forgets the session's request keys, which no request can have any
// more, but keeps those that belong to the principal. Pool.mu is held.
func (s *Session) discardRetained() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.retained.Len() > 0 {
		s.discardOldestLocked()
	}
	for _, x := range s.tombstones {
		if k := x.key(); k.Alias == (requestkey.ID{}) {
			s.pool.requestKeys.Remove(k)
		}
	}
	s.tombstones = nil
	s.endSharesLocked(func(*Share) bool { return true })
	s.sessionLog = nil // the shell is about to close it
}

// DropExpired drops what has been kept for its time: sessions, execs, processes, terminals, request keys, share links and recordings. The reaper
// calls it.
func (p *Pool) DropExpired(now time.Time) {
	p.requestKeys.DropExpired(now)
	p.recordings.Trim(now)
	then := now.Add(-p.config.Load().Retention)
	p.mu.Lock()
	for len(p.retained) > 0 && p.retained[0].final.at.Before(then) {
		p.discardSessionLocked(0)
	}
	p.mu.Unlock()
	for _, s := range p.all() {
		s.forget(now, then)
		s.endShares(func(sh *Share) bool { return sh.Expired(now) })
	}
	p.trim()
	if p.base.Keeper.DescriptorsShort() {
		p.freeDescriptors()
	}
}

// freeDescriptors drops the older half of the ended sessions of the principal with the most, because each holds a descriptor in the keeper. The
// keeper closes them soon; if that is not enough, the reaper's next call drops more.
func (p *Pool) freeDescriptors() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, i := range retained.OlderHalf(len(p.retained), func(i int) string { return p.retained[i].owner }) {
		p.discardSessionLocked(i - n) // n are gone that stood before it
	}
}

// trim drops ended work beyond the bounds of a principal and of all. One goroutine at a time does that: every command that ends meanwhile calls it,
// too, and together they would drop many times as much. No lock is held.
func (p *Pool) trim() {
	if !p.trimming.TryLock() {
		return
	}
	defer p.trimming.Unlock()
	for {
		who, any := p.retainedBytes.Heaviest()
		if !any || !p.trimPrincipal(who) {
			return
		}
	}
}

// trimPrincipal drops the oldest ended work of a principal. It returns false if there is none.
func (p *Pool) trimPrincipal(who string) (some bool) {
	p.mu.Lock()
	for i, s := range p.retained {
		if s.owner == who && s.recordsWeight() > 0 {
			p.discardSessionLocked(i)
			p.mu.Unlock()
			return true
		}
	}
	var live []*Session
	for _, s := range p.sessions {
		if s.owner == who {
			live = append(live, s)
		}
	}
	p.mu.Unlock()
	var ends []time.Time
	for _, s := range live {
		s.mu.Lock()
		ends = append(ends, s.retained.EndsBut(1)...) // the newest stays
		s.mu.Unlock()
	}
	last, any := retained.Oldest(ends)
	for _, s := range live {
		s.mu.Lock()
		for any && s.retained.Len() > 1 && !s.retained.At(0).EndTime().After(last) {
			s.discardOldestLocked()
			some = true
		}
		s.mu.Unlock()
	}
	return some
}

func (s *Session) recordsWeight() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retained.Weight()
}
