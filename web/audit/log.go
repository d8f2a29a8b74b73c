// Package audit is the log of who did what: append-only lines, each bound to the one before, so that a change of any shows.
package audit

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Config of a Log. The zero value of a bound means none, but of maxWaiting.
type Config struct {
	Path     string
	Commands CommandPolicy
	MaxBytes int64         // of a file, then it is put aside
	MaxAge   time.Duration // of a file
	Keep     int           // files put aside that stay; 0: all
	Sync     time.Duration // fsync no more often than that; 0: after each write, of however many lines
	Required bool          // refuse what could not be written down, see Admit

	Lost    prometheus.Counter // entries that there was no room for; nil: nobody counts
	Failing prometheus.Gauge   // 1 while the file cannot be written; with Lost

	maxWaiting int                                  // entries that wait at most; maxWaiting, but in tests
	written    func(f *file, p []byte) (int, error) // write(2); tests let it fail
}

const (
	// maxWaiting entries take some 4 MB, and a disk that stands still for a second fills them at 10,000 requests a second.
	maxWaiting = 10_000
	// retry is between two attempts to write to a disk that is full.
	retry = time.Second
	// headEvery is how often the log of the gateway tells the head, for who keeps that elsewhere.
	headEvery = time.Hour
	// What costs nobody more than to ask: a line each for these many, and then one in so long, of all strangers together, and of each who is
	// known. Without a bound, anybody who can connect could make the lines of others be put aside and dropped. One in 10 s is 4 MB a day.
	freeLines     = 50
	strangerEvery = 100 * time.Millisecond
	knownEvery    = 10 * time.Second
	// maxBuckets is how many are told apart, at some 600 bytes: links can be made by the thousand. Who comes beyond them is a stranger.
	maxBuckets = 4096
)

// A Log is one file and what was put aside of it. Append never waits for the disk: one goroutine writes.
type Log struct {
	c   Config
	key HashKey
	log zerolog.Logger

	wake chan struct{} // one token: there is something to do
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	waiting []Entry            // guarded by mu; not taken by the writer yet
	lost    uint64             // guarded by mu; since the last line that told
	failing bool               // guarded by mu; the last write failed
	closed  bool               // guarded by mu
	buckets map[string]*bucket // guarded by mu; by who is bounded, "" for strangers; those that are full may be missing

	// owned by the writer
	file            *file
	head            chainHead
	pending         []byte    // encoded and not written
	dirty           bool      // written and not synced
	synced          time.Time // when it last was
	headLoggedAt    time.Time // when the head last was
	failureLoggedAt time.Time // when it last was logged that it does not go
}

// Open goes on with the log of path, or begins it. What a crash left of a line stays, and the next line says so.
func Open(c Config, log zerolog.Logger) (*Log, error) {
	if c.maxWaiting == 0 {
		c.maxWaiting = maxWaiting
	}
	if c.Lost == nil {
		c.Lost, c.Failing = prometheus.NewCounter(prometheus.CounterOpts{Name: "lost"}), prometheus.NewGauge(prometheus.GaugeOpts{Name: "failing"})
	}
	if c.written == nil {
		c.written = func(f *file, p []byte) (int, error) { return f.Write(p) }
	}
	l := &Log{c: c, log: log, wake: make(chan struct{}, 1), done: make(chan struct{}), buckets: map[string]*bucket{}, headLoggedAt: time.Now()}
	var err error
	if c.Commands == HashCommands {
		if l.key, err = makeHashKey(HashKeyFile(c.Path)); err != nil {
			return nil, err
		}
	}
	var torn []byte
	if l.file, l.head, torn, err = openFile(c.Path); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if len(torn) > 0 {
		log.Warn().Int("bytes", len(torn)).Msg("the audit log ends in the middle of a line; goes on after it")
		if torn[len(torn)-1] != '\n' {
			l.pending = append(l.pending, '\n')
		}
		l.waiting = append(l.waiting, Entry{Time: time.Now().UTC(), Action: ActionTorn, Gap: Gap{TornBytes: len(torn), TornHash: hashOf(torn)}})
	}
	go l.write() // writes what waits; ends after Close, when all of it is written or cannot be; Close waits for it
	return l, nil
}

// Admit is asked before anything is done that must be written down. With Required it is an error while the file cannot be
// written, or what waits leaves no room for how things end that have begun. A nil Log admits everything.
func (l *Log) Admit() error {
	if l == nil || !l.c.Required {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.failing:
		return errors.New("the audit log cannot be written")
	case len(l.waiting) >= l.c.maxWaiting/2:
		return errors.New("the audit log does not keep up")
	}
	return nil
}

// Append adds a line. A nil Log takes everything and keeps nothing.
func (l *Log) Append(e Entry) {
	if l == nil {
		return
	}
	e.applyPolicy(l.c.Commands, l.key) // here, since what waits may wait for long, and a command may be long
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appendLocked(e)
}

func (l *Log) appendLocked(e Entry) {
	if l.closed || len(l.waiting) >= l.c.maxWaiting {
		l.lost++
		l.c.Lost.Inc()
		return
	}
	e.Time = time.Now().UTC() // here, so that times are in the order of the lines
	l.waiting = append(l.waiting, e)
	if len(l.waiting) == 1 {
		l.wakeWriter()
	}
}

// bucket bounds the lines of somebody.
type bucket struct {
	tokens     int           // lines that he may still have
	every      time.Duration // another one comes in so long
	filled     time.Time     // when it was looked at
	suppressed uint64        // entries without a line, since the last that has one
	who        Entry         // for the line that tells how many at the end
}

func (b *bucket) fill(now time.Time) {
	if more := int(now.Sub(b.filled) / b.every); more > 0 {
		b.tokens, b.filled = min(freeLines, b.tokens+more), now
	}
}

// AppendStranger adds a line of somebody who has not shown who he is, unless there were many.
func (l *Log) AppendStranger(e Entry) { l.bounded("", strangerEvery, e) }

// AppendBounded adds a line of who, unless there were many.
func (l *Log) AppendBounded(who string, e Entry) { l.bounded(who, knownEvery, e) }

func (l *Log) bounded(who string, every time.Duration, e Entry) {
	if l == nil {
		return
	}
	e.applyPolicy(l.c.Commands, l.key)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.buckets[who] == nil && len(l.buckets) >= maxBuckets {
		l.dropQuietBucketsLocked(now)
		if len(l.buckets) >= maxBuckets {
			who, every = "", strangerEvery
		}
	}
	b := l.buckets[who]
	if b == nil {
		b = &bucket{tokens: freeLines, every: every, filled: now, who: Entry{Action: ActionSuppressed, Principal: e.Principal, Role: e.Role, Share: e.Share}}
		l.buckets[who] = b
	}
	b.fill(now)
	if b.tokens == 0 {
		b.suppressed++
		return
	}
	b.tokens--
	e.Suppressed, b.suppressed = b.suppressed, 0
	l.appendLocked(e)
}

// dropQuietBucketsLocked forgets those who have been quiet for long enough, and tells what they have not been given a line for.
func (l *Log) dropQuietBucketsLocked(now time.Time) {
	for who, b := range l.buckets {
		if b.fill(now); b.tokens == freeLines {
			l.suppressedLocked(b)
			delete(l.buckets, who)
		}
	}
}

func (l *Log) suppressedLocked(b *bucket) {
	if b.suppressed > 0 {
		e := b.who
		e.Suppressed, b.suppressed = b.suppressed, 0
		l.appendLocked(e)
	}
}

func (l *Log) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close writes what waits, and returns when that is on the disk or cannot be. Idempotent. What is appended later is lost.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if !l.closed {
		for _, b := range l.buckets {
			l.suppressedLocked(b)
		}
	}
	l.closed = true
	l.mu.Unlock()
	l.wakeWriter()
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failing {
		return fmt.Errorf("audit log %s: %d entries were not written", l.c.Path, l.lost)
	}
	return nil
}

// write is the goroutine: encodes, chains, writes, puts files aside.
func (l *Log) write() {
	defer close(l.done)
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		failed := !l.flush()
		if !failed { // until what is pending is through, the rest waits where it is bounded
			failed = !l.add(l.takeWaiting())
		}
		l.mu.Lock()
		closed, rest := l.closed, len(l.waiting) > 0 && !failed
		if failed != l.failing {
			l.failing = failed
			l.c.Failing.Set(map[bool]float64{true: 1}[failed])
		}
		if closed && !rest {
			l.lost += uint64(len(l.waiting) + bytes.Count(l.pending, []byte("\n")))
			l.mu.Unlock()
			l.sync(true)
			l.logHead()
			l.file.Close()
			return
		}
		l.mu.Unlock()
		if rest {
			continue
		}
		again.Reset(l.pause(failed))
		select {
		case <-l.wake:
		case <-again.C:
			l.sync(true)
		}
		if time.Since(l.headLoggedAt) >= headEvery {
			l.logHead()
		}
	}
}

// takeWaiting is all that waits, and how much did not get so far.
func (l *Log) takeWaiting() (batch []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch, l.waiting = l.waiting, nil
	if l.lost > 0 { // after what came before them
		batch = append(batch, Entry{Time: time.Now().UTC(), Action: ActionLost, Gap: Gap{Lost: l.lost}})
		l.lost = 0
	}
	return batch
}

// pause is how long the writer may sleep when nobody wakes it.
func (l *Log) pause(failed bool) time.Duration {
	switch {
	case failed:
		return retry
	case l.dirty:
		return max(time.Millisecond, l.c.Sync-time.Since(l.synced))
	}
	return headEvery
}

// add writes entries, as few times as the bounds of a file allow, and reports whether all went.
func (l *Log) add(batch []Entry) bool {
	ok := true
	for i := range batch {
		e := &batch[i]
		if ok && l.mustRotate(e.Time) {
			if ok = l.flush(); ok {
				l.rotate()
			}
		}
		before := l.head
		line, err := appendLine(l.pending, e, &l.head)
		if err != nil { // nothing in an Entry can bring that about
			l.log.Error().Err(err).Str("action", e.Action).Msg("audit entry not encoded")
			l.head = before
			continue
		}
		l.pending = line
		if l.file.first == 0 {
			l.file.first, l.file.firstAt = e.Seq, e.Time
		}
		if ok && len(l.pending) >= 64<<10 {
			ok = l.flush()
		}
	}
	return ok && l.flush()
}

// mustRotate: the next line belongs into a new file. What is not written yet counts, too.
func (l *Log) mustRotate(now time.Time) bool {
	f := l.file
	if f.first == 0 {
		return false
	}
	return l.c.MaxBytes > 0 && f.size+int64(len(l.pending)) >= l.c.MaxBytes || l.c.MaxAge > 0 && now.Sub(f.firstAt) >= l.c.MaxAge
}

func (l *Log) rotate() {
	next, err := l.file.rotate(l.c.Keep)
	if err != nil {
		l.complain(err, "audit log not rotated")
	}
	if next != l.file {
		l.file, l.dirty = next, false
		l.logHead()
	}
}

// flush writes what is pending and reports whether all of it went. The rest stays for the next time: a line that a full disk
// cut short goes on where it was cut.
func (l *Log) flush() bool {
	if len(l.pending) == 0 {
		return true
	}
	n, err := l.c.written(l.file, l.pending)
	l.file.size += int64(n)
	l.dirty = l.dirty || n > 0
	l.pending = l.pending[n:]
	if err != nil {
		l.complain(err, "audit log cannot be written")
		return false
	}
	l.pending = nil
	l.sync(false)
	return true
}

// complain says it loudly, but not with each attempt.
func (l *Log) complain(err error, what string) {
	if time.Since(l.failureLoggedAt) < time.Minute {
		return
	}
	l.failureLoggedAt = time.Now()
	l.log.Error().Err(err).Str("file", l.c.Path).Bool("required", l.c.Required).Msg(what)
}

func (l *Log) sync(now bool) {
	if !l.dirty || !now && l.c.Sync > 0 && time.Since(l.synced) < l.c.Sync {
		return
	}
	if err := l.file.Sync(); err != nil {
		l.complain(err, "audit log not synced")
	}
	l.dirty, l.synced = false, time.Now()
}

// logHead leaves the head where another program may keep it: with it, a cut off end is noticed.
func (l *Log) logHead() {
	l.headLoggedAt = time.Now()
	l.log.Info().Str("file", l.c.Path).Str("head", l.head.String()).Msg("audit head")
}
