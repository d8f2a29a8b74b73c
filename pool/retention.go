package pool

import (
	"slices"
	"time"

	"trl/runtime/sessionlog"

	"trl/pool/entry"
	"trl/pool/requestkey"
)

// What is kept of what has ended, beside the retention time: enough for every client that comes back, bounded for those that never do.
// A session has its own bounds, a principal and all of them together have theirs. Beyond its own bounds a session lets the oldest go.
// Beyond the others the principal with the most lets go: first what destroyed sessions left, then the oldest of those that live. What
// runs is never let go.
const (
	maxRecords     = 1000     // of a session
	maxRecordBytes = 16 << 20 // of a session, and the newest stays whatever it weighs

	maxRetained      = 1000      // sessions that have ended
	maxRetainedOf    = 128 << 20 // bytes of one principal, in all sessions
	maxRetainedBytes = 256 << 20 // bytes of all
)

// retainedWork is what a session retains, by end, oldest first.
type retainedWork struct {
	all         []*weighedWork
	growing     []*weighedWork // those of all that may weigh more now: what a beat of the reaper costs is theirs alone
	weight      int64          // sum of what all weigh
	outputBytes int64          // bytes ever written by what has ended, for the log
}

type weighedWork struct {
	endedWork
	weighed int64
}

// loggedTombstone is what answers a retry when its exec, process or terminal is not retained any more.
type loggedTombstone interface {
	requestkey.Tombstone
	key() *requestkey.Request
	loggedAt() *sessionlog.Position
	encode() []byte
}

// retainLocked keeps what has just ended, and lets go of what that is too much for. s.mu is held.
func (s *Session) retainLocked(r endedWork) {
	k := &weighedWork{endedWork: r}
	s.retained.all = append(s.retained.all, k)
	if s.weighLocked(k) {
		s.retained.growing = append(s.retained.growing, k)
	}
	s.trimLocked()
}

// retainExecLocked is retainLocked for a command, of which another object is kept, for who asks from now on. s.mu is held.
func (s *Session) retainExecLocked(e *Exec) {
	s.retainLocked(s.keepEndedLocked(e))
	s.retained.outputBytes += e.endOffset
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

// keepTombstoneLocked keeps what answers a retry, unless nobody can try any more. s.mu is held.
func (s *Session) keepTombstoneLocked(x loggedTombstone) {
	if k := x.key(); k != nil {
		s.pool.requestKeys.KeepTombstone(k, x)
		s.tombstones = append(s.tombstones, x)
	}
}

// weighLocked says whether k is to be weighed again. s.mu is held.
func (s *Session) weighLocked(k *weighedWork) (again bool) {
	again = k.mayGrow() // asked first: nothing comes behind a no
	w := k.weight()
	s.retained.weight += w - k.weighed
	s.pool.retainedBytes.Add(s.owner, w-k.weighed)
	k.weighed = w
	return again
}

func (s *Session) trimLocked() {
	for len(s.retained.all) > maxRecords || s.retained.weight > maxRecordBytes && len(s.retained.all) > 1 {
		s.discardOldestLocked()
	}
}

func (s *Session) discardOldestLocked() {
	oldest := s.retained.all[0]
	s.retained.all[0] = nil
	s.retained.all = s.retained.all[1:]
	if i := slices.Index(s.retained.growing, oldest); i >= 0 {
		s.retained.growing = slices.Delete(s.retained.growing, i, i+1)
	}
	s.retained.weight -= oldest.weighed
	s.pool.retainedBytes.Add(s.owner, -oldest.weighed)
	s.removeLocked(oldest.ID())
	s.appendLog(entry.Entry{Forgot: oldest.ID()}) // before its output goes
	oldest.discard()
}

// removeLocked makes the id of something that has ended unknown. s.mu is held, or nobody else knows the session.
func (s *Session) removeLocked(id string) {
	delete(s.endedExecs, id)
	delete(s.processes, id)
	delete(s.terminals, id)
}

// forget lets go of what ended before then, and weighs again what jobs still write to.
func (s *Session) forget(now, then time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.retained.all) > 0 && s.retained.all[0].endTime().Before(then) {
		s.discardOldestLocked()
	}
	s.retained.growing = slices.DeleteFunc(s.retained.growing, func(k *weighedWork) bool { return !s.weighLocked(k) })
	s.trimLocked()
	over := 0
	for over < len(s.tombstones) && s.pool.requestKeys.IsExpired(s.tombstones[over].key(), now) {
		over++
	}
	s.tombstones = slices.Delete(s.tombstones, 0, over)
	s.requestCompactLocked()
}

// discardRetained empties a session whose own retention is over. Its keys go, too: nobody can ask with them. But for those that are their
// principal's. Pool.mu is held.
func (s *Session) discardRetained() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.retained.all) > 0 {
		s.discardOldestLocked()
	}
	for _, x := range s.tombstones {
		if k := x.key(); k.Alias == (requestkey.ID{}) {
			s.pool.requestKeys.Remove(k)
		}
	}
	s.tombstones = nil
	s.endSharesLocked(func(*Share) bool { return true })
	s.sessionLog = nil // its owner, the shell, is about to close it
}

// DropExpired lets go of whatever has been kept for the retention time: sessions, execs, processes, and request keys, share links and recordings
// after theirs. For the reaper.
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

// freeDescriptors lets go of a part of what ended sessions left, each of which holds a descriptor in the keeper: the oldest of the
// principal with the most. It is asked again with the next beat, as the keeper closes them by then.
func (p *Pool) freeDescriptors() {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts, most := map[string]int{}, ""
	for _, s := range p.retained {
		if counts[s.owner]++; counts[s.owner] > counts[most] {
			most = s.owner
		}
	}
	left := (counts[most] + 1) / 2
	for i := 0; i < len(p.retained) && left > 0; {
		if p.retained[i].owner != most {
			i++
			continue
		}
		p.discardSessionLocked(i)
		left--
	}
}

// trim lets go of what is too much for all of a principal's sessions, or for all. One goroutine at a time does that: every command that
// ends meanwhile asks for it, too, and together they would let go of many times as much. No lock is held.
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

// trimShare of what a principal has goes at once, so that it is not looked for at each command.
const trimShare = 16

// trimPrincipal lets go of the oldest that who has. False: there is nothing.
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
		for _, k := range s.retained.all[:max(0, len(s.retained.all)-1)] { // the newest stays
			ends = append(ends, k.endTime())
		}
		s.mu.Unlock()
	}
	if len(ends) == 0 {
		return false
	}
	slices.SortFunc(ends, time.Time.Compare)
	last := ends[(len(ends)-1)/trimShare]
	for _, s := range live {
		s.mu.Lock()
		for len(s.retained.all) > 1 && !s.retained.all[0].endTime().After(last) {
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
	return s.retained.weight
}
