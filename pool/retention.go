package pool

import (
	"slices"
	"time"

	"trl/runtime/journal"
)

// What a session keeps of what has ended, beside the retention time: enough for every client that comes back, bounded
// for those that never do. The oldest is let go first, what runs never, and the newest stays whatever it weighs.
const (
	maxRecords     = 1000
	maxRecordBytes = 16 << 20
)

// record is an exec, a process or a terminal that has ended and may still be asked about.
type record interface {
	ID() string
	ended() time.Time
	weight() int64 // bytes of text and output that it holds now
	grows() bool   // jobs left behind may add some
	letGo()        // its request_key, if it lives longer, shall hold no output
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

// retainLocked keeps what has just ended, and lets go of what that is too much for. s.mu is held.
func (s *Session) retainLocked(r record) {
	k := &kept{record: r}
	s.records.all = append(s.records.all, k)
	if s.weighLocked(k) {
		s.records.open = append(s.records.open, k)
	}
	s.trimLocked()
}

// weighLocked says whether k is to be weighed again.
func (s *Session) weighLocked(k *kept) (again bool) {
	again = k.grows() // asked first: nothing comes behind a no
	w := k.weight()
	s.records.weight += w - k.weighed
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
	delete(s.execs, oldest.ID())
	delete(s.processes, oldest.ID())
	delete(s.terminals, oldest.ID())
	s.record(entry{Forgot: oldest.ID()}) // before its output goes
	oldest.letGo()
}

// forget lets go of what ended before then, and weighs again what jobs still write to.
func (s *Session) forget(then time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.records.all) > 0 && s.records.all[0].ended().Before(then) {
		s.letGoOldestLocked()
	}
	s.records.open = slices.DeleteFunc(s.records.open, func(k *kept) bool { return !s.weighLocked(k) })
	s.trimLocked()
	s.tidyLocked()
}

// letGo empties a session whose own retention is over. Pool.mu is held.
func (s *Session) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.records.all) > 0 {
		s.letGoOldestLocked()
	}
	s.pool.keys.forgetScope(s.id)
	s.endSharesLocked(func(*Share) bool { return true })
}

// Forget lets go of whatever has been kept for the retention time: sessions, execs, processes, and request keys, share links and recordings
// after theirs. For the reaper.
func (p *Pool) Forget(now time.Time) {
	p.keys.forget(now)
	p.recordings.trim(now)
	then := now.Add(-p.rules.Load().Retention)
	p.mu.Lock()
	for len(p.retained) > 0 && p.retained[0].burial.at.Before(then) {
		p.letGoOldestLocked()
	}
	p.mu.Unlock()
	for _, s := range p.all() {
		s.forget(then)
		s.endShares(func(sh *Share) bool { return sh.expired(now) })
	}
}

func (e *Exec) ended() time.Time { return e.endedAt }

func (e *Exec) grows() bool { return !e.journal.Closed() }

func (e *Exec) weight() int64 {
	n := int64(len(e.text)) + e.journal.Size() - e.journal.Start()
	if e.keeps {
		n += min(e.exit.StdoutBytes, int64(e.most)) + min(e.exit.StderrBytes, int64(e.most))
	}
	return n
}

// letGo puts a husk behind the request_key (s.mu is held): how it ended, without the output. The command must still not run twice. Who
// waits for the result holds the exec itself.
func (e *Exec) letGo() {
	e.journal.Drop()
	if e.key == (keyRef{}) || e.failure != nil {
		return
	}
	h := &Exec{
		stream: e.stream, session: e.session, keeps: true, husk: true, timeout: e.timeout, key: e.key,
		journal: journal.Gone(e.exit.StdoutBytes, e.exit.StderrBytes), queuedAt: e.queuedAt, done: e.done, exit: e.exit, code: e.code, endedAt: e.endedAt, end: e.end,
	}
	h.params = e.params
	if h.exit.ExitCode != nil {
		h.exit.ExitCode = &h.code // not e's, which would hold all of e, and its output
	}
	e.session.husks = append(e.session.husks, h)
	e.session.pool.keys.replace(e.key, h)
}
