package pool

import (
	"slices"
	"sync"
	"time"

	"trl/runtime/ledger"
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

// record is an exec, a process or a terminal that has ended and may still be asked about.
type record interface {
	ID() string
	ended() time.Time
	weight() int64 // bytes that it takes now
	grows() bool   // jobs left behind may add some
	letGo()        // it is not asked about any more: its request_key, if that lives longer, shall hold no output
}

// records is what a session retains, by end, oldest first.
type records struct {
	all    []*kept
	open   []*kept // those of all that may weigh more now: what a beat of the reaper costs is theirs alone
	weight int64   // sum of what all weigh
	output int64   // bytes ever written by what has ended, for the log
}

type kept struct {
	record
	weighed int64
}

// buried is what answers a retry when its exec, process or terminal is not retained any more.
type buried interface {
	epitaph
	key() *keyed
	where() *ledger.Span
	line() []byte
}

// retainLocked keeps what has just ended, and lets go of what that is too much for. s.mu is held.
func (s *Session) retainLocked(r record) {
	k := &kept{record: r}
	s.records.all = append(s.records.all, k)
	if s.weighLocked(k) {
		s.records.open = append(s.records.open, k)
	}
	s.trimLocked()
}

// retainExecLocked is retainLocked for a command, of which another object is kept, for who asks from now on. s.mu is held.
func (s *Session) retainExecLocked(e *Exec) {
	s.retainLocked(s.keepEndedLocked(e))
	s.records.output += e.end
}

func (s *Session) keepEndedLocked(e *Exec) *endedExec {
	x := e.asEnded()
	if e.key != (keyRef{}) && e.failure == nil {
		if x.keyed = s.pool.keys.find(e.key); x.keyed != nil {
			s.pool.keys.bury(x.keyed, x)
		}
	}
	delete(s.execs, x.ID())
	s.past[x.ID()] = x
	return x
}

// buryLocked keeps what answers a retry, unless nobody can try any more. s.mu is held.
func (s *Session) buryLocked(x buried) {
	if k := x.key(); k != nil {
		s.pool.keys.bury(k, x)
		s.epitaphs = append(s.epitaphs, x)
	}
}

// weighLocked says whether k is to be weighed again. s.mu is held.
func (s *Session) weighLocked(k *kept) (again bool) {
	again = k.grows() // asked first: nothing comes behind a no
	w := k.weight()
	s.records.weight += w - k.weighed
	s.pool.weights.add(s.owner, w-k.weighed)
	k.weighed = w
	return again
}

func (s *Session) trimLocked() {
	for len(s.records.all) > maxRecords || s.records.weight > maxRecordBytes && len(s.records.all) > 1 {
		s.letGoOldestLocked()
	}
}

func (s *Session) letGoOldestLocked() {
	oldest := s.records.all[0]
	s.records.all[0] = nil
	s.records.all = s.records.all[1:]
	if i := slices.Index(s.records.open, oldest); i >= 0 {
		s.records.open = slices.Delete(s.records.open, i, i+1)
	}
	s.records.weight -= oldest.weighed
	s.pool.weights.add(s.owner, -oldest.weighed)
	id := oldest.ID()
	delete(s.past, id)
	delete(s.processes, id)
	delete(s.terminals, id)
	s.record(entry{Forgot: id}) // before its output goes
	oldest.letGo()
}

// forget lets go of what ended before then, and weighs again what jobs still write to.
func (s *Session) forget(now, then time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.records.all) > 0 && s.records.all[0].ended().Before(then) {
		s.letGoOldestLocked()
	}
	s.records.open = slices.DeleteFunc(s.records.open, func(k *kept) bool { return !s.weighLocked(k) })
	s.trimLocked()
	over := 0
	for over < len(s.epitaphs) && s.pool.keys.isOver(s.epitaphs[over].key(), now) {
		over++
	}
	s.epitaphs = slices.Delete(s.epitaphs, 0, over)
	s.tidyLocked()
}

// letGo empties a session whose own retention is over. Its keys go, too: nobody can ask with them. But for those that are their
// principal's. Pool.mu is held.
func (s *Session) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.records.all) > 0 {
		s.letGoOldestLocked()
	}
	for _, x := range s.epitaphs {
		if k := x.key(); k.alias == (keyID{}) {
			s.pool.keys.remove(k)
		}
	}
	s.epitaphs = nil
	s.endSharesLocked(func(*Share) bool { return true })
	s.ledger = nil // its owner, the shell, is about to close it
}

// Forget lets go of whatever has been kept for the retention time: sessions, execs, processes, and request keys, share links and recordings
// after theirs. For the reaper.
func (p *Pool) Forget(now time.Time) {
	p.keys.forget(now)
	p.recordings.trim(now)
	then := now.Add(-p.rules.Load().Retention)
	p.mu.Lock()
	for len(p.retained) > 0 && p.retained[0].burial.at.Before(then) {
		p.letGoSessionLocked(0)
	}
	p.mu.Unlock()
	for _, s := range p.all() {
		s.forget(now, then)
		s.endShares(func(sh *Share) bool { return sh.expired(now) })
	}
	p.trim()
	if p.base.Keeper.Short() {
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
		p.letGoSessionLocked(i)
		left--
	}
}

// weights is what is retained of each principal.
type weights struct {
	budget
	trimming sync.Mutex // held by the goroutine that lets go of what is too much
}

// excess is the principal who is to let go of something, and whether anybody is.
func (w *weights) excess() (who string, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := int64(-1)
	for name, n := range w.of {
		if n > most {
			who, most = name, n
		}
	}
	return who, most > w.each || w.sum > w.all
}

// over is excess at the price of a look at one principal.
func (w *weights) over(who string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of[who] > w.each || w.sum > w.all
}

// trim lets go of what is too much for all of a principal's sessions, or for all. One goroutine at a time does that: every command that
// ends meanwhile asks for it, too, and together they would let go of many times as much. No lock is held.
func (p *Pool) trim() {
	if !p.weights.trimming.TryLock() {
		return
	}
	defer p.weights.trimming.Unlock()
	for {
		who, any := p.weights.excess()
		if !any || !p.trimOf(who) {
			return
		}
	}
}

// trimShare of what a principal has goes at once, so that it is not looked for at each command.
const trimShare = 16

// trimOf lets go of the oldest that who has. False: there is nothing.
func (p *Pool) trimOf(who string) (some bool) {
	p.mu.Lock()
	for i, s := range p.retained {
		if s.owner == who && s.recordsWeight() > 0 {
			p.letGoSessionLocked(i)
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
		for _, k := range s.records.all[:max(0, len(s.records.all)-1)] { // the newest stays
			ends = append(ends, k.ended())
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
		for len(s.records.all) > 1 && !s.records.all[0].ended().After(last) {
			s.letGoOldestLocked()
			some = true
		}
		s.mu.Unlock()
	}
	return some
}

func (s *Session) recordsWeight() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records.weight
}
