// Package audit writes the log of who did what: lines are only appended, and each depends on the one before it, so that every change of a line shows.
package audit

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/protocol"
)

// Config configures a Log. A bound that is zero is no bound, except maxWaiting.
type Config struct {
	Path     string
	Commands CommandPolicy
	MaxBytes int64         // size of a file at which it is rotated
	MaxAge   time.Duration // age of a file at which it is rotated
	Keep     int           // how many rotated files stay; 0: all
	Sync     time.Duration // fsync at most this often; 0: after each write, which may have many lines
	Required bool          // refuse requests that could not be written down, see Admit

	Lost    prometheus.Counter // counts entries that found no room; nil: not counted
	Failing prometheus.Gauge   // 1 while the file cannot be written; set together with Lost

	maxWaiting int                                  // how many entries may wait; only tests change it
	written    func(f *file, p []byte) (int, error) // write(2); tests make it fail
}

const (
	// maxWaiting entries take some 4 MB. A disk that stands still for a second fills them at 10,000 requests a second.
	maxWaiting = 10_000
	// retry is the time between two attempts to write to a full disk.
	retry = time.Second
	// headEvery is how often the gateway's log gets the head, for programs that keep it elsewhere.
	headEvery = time.Hour
	// Bounds for entries that anybody can cause: first this many lines, and then one in this time, for all strangers together and for each known
	// client. Without a bound, everybody who can connect could make the lines of others be rotated away. One line in 10 s is 4 MB a day.
	freeLines     = 50
	strangerEvery = 100 * time.Millisecond
	knownEvery    = 10 * time.Second
	// maxBuckets is how many clients are counted separately, at some 600 bytes each, because links can be made by the thousand. Further clients count
	// as strangers.
	maxBuckets = 4096
)

// A Log is one file with its rotated files. Append never waits for the disk, because one goroutine writes.
type Log struct {
	c   Config
	key HashKey
	log zerolog.Logger

	wake chan struct{} // holds a token when there is something to do
	done chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	waiting []Entry            // guarded by mu; entries that the writer has not taken yet
	lost    uint64             // guarded by mu; entries lost since the last line that reported it
	failing bool               // guarded by mu; the last write failed
	closed  bool               // guarded by mu
	buckets map[string]*bucket // guarded by mu; by client, "" for strangers; a full bucket may be missing

	// Owned by the writer.
	file            *file
	head            chainHead
	pending         []byte    // bytes that are encoded and not written
	dirty           bool      // bytes are written and not synced
	synced          time.Time // when the file was last synced
	headLoggedAt    time.Time // when the head was last logged
	failureLoggedAt time.Time // when a failure was last logged
}

// Open continues the log at path, or begins it. An incomplete line that a crash left stays, and the next line reports it.
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
	go l.write() // writes waiting entries; ends after Close, when all are written or cannot be; Close waits for it
	return l, nil
}

// Admit must be called before anything is done that gets an entry. With Required it returns an error while the file cannot be written, or while the
// waiting entries leave no room for the ends of running work. A nil Log admits everything.
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

// Append adds an entry. A nil Log ignores it.
func (l *Log) Append(e Entry) {
	if l == nil {
		return
	}
	e.applyPolicy(l.c.Commands, l.key) // here, because a command may be long and the entry may wait for long
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
	e.Time = time.Now().UTC() // here, so that the times are in the order of the lines
	l.waiting = append(l.waiting, e)
	if len(l.waiting) == 1 {
		l.wakeWriter()
	}
}

// bucket bounds the lines of one client.
type bucket struct {
	tokens     int           // how many lines the client may still have
	every      time.Duration // the time after which it gets another one
	filled     time.Time     // when tokens was last updated
	suppressed uint64        // how many entries were left out since the client's last line
	who        Entry         // the client, for the line that says how many were left out
}

func (b *bucket) fill(now time.Time) {
	if more := int(now.Sub(b.filled) / b.every); more > 0 {
		b.tokens, b.filled = min(freeLines, b.tokens+more), now
	}
}

// viewer is the role that may change nothing, auth.Viewer.
const viewer = "viewer"

// AppendBy adds an entry of who. Entries that take no right but a credential are bounded, so that nobody can use them to push out the entries of others.
func (l *Log) AppendBy(who string, e Entry) {
	if e.Role == viewer || e.Outcome == string(protocol.Forbidden) {
		l.AppendBounded(who, e)
		return
	}
	l.Append(e)
}

// AppendStranger adds an entry of a client that has not authenticated, unless there were too many.
func (l *Log) AppendStranger(e Entry) { l.bounded("", strangerEvery, e) }

// AppendBounded adds an entry of who, unless there were too many.
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

// dropQuietBucketsLocked drops the buckets of clients that have been quiet for long enough, and reports their entries that were left out.
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

// Close writes the waiting entries, and returns when they are on the disk or cannot be written. It is idempotent. Later entries are lost.
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

// write is the writer's goroutine: it encodes, chains and writes lines, and rotates files.
func (l *Log) write() {
	defer close(l.done)
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		failed := !l.flush()
		if !failed { // until the pending bytes are written, further entries stay in waiting, which is bounded
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

// takeWaiting returns all waiting entries, and how many were lost before them.
func (l *Log) takeWaiting() (batch []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch, l.waiting = l.waiting, nil
	if l.lost > 0 { // after the entries that came before
		batch = append(batch, Entry{Time: time.Now().UTC(), Action: ActionLost, Gap: Gap{Lost: l.lost}})
		l.lost = 0
	}
	return batch
}

// pause returns how long the writer may sleep if nothing wakes it.
func (l *Log) pause(failed bool) time.Duration {
	switch {
	case failed:
		return retry
	case l.dirty:
		return max(time.Millisecond, l.c.Sync-time.Since(l.synced))
	}
	return headEvery
}

// add writes entries, in as few writes as the bounds of a file allow. It reports whether all were written.
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
		if err != nil { // no Entry can cause this
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

// mustRotate reports whether the next line belongs into a new file. Bytes that are not written yet count, too.
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

// flush writes the pending bytes and reports whether all were written. The rest stays for the next time, so a line that a full disk cut off continues
// where it ended.
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

// complain logs a failure as an error, but not at each attempt.
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

// logHead logs the head, so that another program can keep it: with it, a missing end is noticed.
func (l *Log) logHead() {
	l.headLoggedAt = time.Now()
	l.log.Info().Str("file", l.c.Path).Str("head", l.head.String()).Msg("audit head")
}
