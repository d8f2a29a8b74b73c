package pool

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"trl/internal/testkit"
	"trl/pool/answer"
	"trl/pool/entry"
	"trl/pool/outcome"
	"trl/pool/requestkey"
	"trl/pool/retained"
	"trl/protocol"
	"trl/runtime/journal"
)

// What is kept of a command that has ended, and what the next gateway reads of it, answers as the command itself did.
func TestEndedCommandAnswersAsItDid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Int64Range(0, 1<<40)
		text := rapid.StringN(0, 20, 60)
		s := &Session{identity: identity{id: "s-x", pool: &Pool{}}, dir: "/somewhere"}
		begin := time.Unix(1_800_000_000, r.Draw(t, "begin"))
		e := &Exec{
			work: work{
				stream: "st-x-" + fmt.Sprint(r.Draw(t, "id")), session: s, text: text.Draw(t, "text"), endedAt: begin.Add(time.Hour), done: closedChan, recording: text.Draw(t, "recording"),
			},
			clean:  rapid.Bool().Draw(t, "clean"),
			output: &answer.Output{KeepsText: rapid.Bool().Draw(t, "keeps"), Max: rapid.IntRange(0, 64<<20).Draw(t, "most")}, timeout: time.Duration(r.Draw(t, "timeout")), queuedAt: begin,
			accepted: true, shellDied: rapid.Bool().Draw(t, "died"),
		}
		if rapid.Bool().Draw(t, "begun") {
			e.startedAt = begin.Add(time.Second)
		}
		x := &e.exit
		*x = protocol.ExecExit{
			ExecID: e.ID(), SessionID: s.id, StreamID: e.stream, StdoutBytes: r.Draw(t, "out"), StderrBytes: r.Draw(t, "err"), DurationMS: r.Draw(t, "duration"), QueuedMS: r.Draw(t, "queued"),
			TimedOut: rapid.Bool().Draw(t, "timed out"), TimeoutS: protocol.Seconds(e.timeout.Seconds()), Cancelled: rapid.Bool().Draw(t, "cancelled"), LingerMS: r.Draw(t, "linger"),
			ShellRestored: rapid.Bool().Draw(t, "restored"), OOMKilled: rapid.Bool().Draw(t, "oom"), KillFailed: rapid.Bool().Draw(t, "kill"), WorkingDir: rapid.SampledFrom([]string{"/somewhere", "/else", "/a\xff"}).Draw(t, "dir"),
			Signal: rapid.SampledFrom([]string{"", "KILL"}).Draw(t, "signal"), LimitHit: rapid.SampledFrom([]string{"", "pids"}).Draw(t, "limit"),
		}
		e.endOffset = x.StdoutBytes + x.StderrBytes
		e.journal = journal.NewLengthOnly(x.StdoutBytes, x.StderrBytes)
		if x.TimedOut {
			x.TimeoutKind = rapid.SampledFrom([]string{"hard", "no_output"}).Draw(t, "kind")
		}
		if rapid.Bool().Draw(t, "lost") {
			x.StateLost, x.Background = []string{"functions", "options"}, []int{1, 1 << 20}
		}
		if rapid.Bool().Draw(t, "usage") {
			x.Usage = &protocol.Usage{CPUMS: rapid.Float64Range(0, 1e12).Draw(t, "cpu"), MaxRSSBytes: r.Draw(t, "rss"), MemoryPeakBytes: r.Draw(t, "peak")}
		}
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			e.code = rapid.IntRange(-1, 255).Draw(t, "code")
			x.ExitCode = &e.code
		case 1:
			x.Error = protocol.Errorf(protocol.InternalError, "end of the command is unknown")
		case 2:
			e.failure = protocol.Errorf(protocol.LimitExceeded, "no room").With("limit", "pids")
			x.Error = e.failure
		}
		kept := e.toEnded()
		kept.journal = nil // where that is, is another test's
		if rapid.Bool().Draw(t, "key") {
			kept.Request = &requestkey.Request{Own: requestkey.ID{1, 255}, Params: requestkey.Fingerprint{2, 200}}
		}
		line := kept.encode()
		var log entry.Log
		if err := log.ReadLine(line); err != nil || log.Ended[0].At != nil {
			t.Fatalf("%v %+v", err, log)
		}
		read := &endedExec{EndedExec: *log.Ended[0].EndedExec, session: s}
		if !bytes.Equal(read.encode(), line) {
			t.Errorf("written again it is another")
		}
		for of, again := range map[string]*Exec{"kept": kept.toExec(), "read": read.toExec()} {
			// A failure's details become what JSON makes of them; their words do not.
			if fmt.Sprint(again.failure) != fmt.Sprint(e.failure) || fmt.Sprint(again.exit.Error) != fmt.Sprint(x.Error) {
				t.Errorf("%s: fails with %v, %v; was %v, %v", of, again.failure, again.exit.Error, e.failure, x.Error)
			}
			got, was := again.exit, *x
			got.Error, was.Error = nil, nil
			if !reflect.DeepEqual(got, was) {
				t.Errorf("%s: %+v\nwas %+v", of, got, was)
			}
			if again.text != e.text || again.clean != e.clean || again.output.KeepsText != e.output.KeepsText || again.output.Max != e.output.Max || again.shellDied != e.shellDied || again.recording != e.recording ||
				!again.queuedAt.Equal(e.queuedAt) || !again.startedAt.Equal(e.startedAt) || again.startedAt.IsZero() != e.startedAt.IsZero() || !again.endedAt.Equal(e.endedAt) ||
				again.EndOffset() != e.endOffset || outcome.Of(&again.exit, again.shellDied) != outcome.Of(&e.exit, e.shellDied) {
				t.Errorf("%s: %+v\nwas %+v", of, again, e)
			}
		}
		for cut := range len(line) - 1 {
			if err := new(entry.Log).ReadLine(line[:cut+1]); err == nil {
				t.Fatalf("%d of %d bytes pass for an entry", cut+1, len(line))
			}
		}
	})
}

// TestPlainCommandIsSmall: what is kept of an ended `:`, all that Go allocates for it included.
func TestPlainCommandIsSmall(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // what has a finalizer
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for range 50 {
		run(t, s, protocol.Exec{Command: ":"})
	}
	before := heap()
	const n = 800
	for range n {
		run(t, s, protocol.Exec{Command: ":"})
	}
	var each int64
	testkit.Eventually(t, "what is not kept has been collected", func() bool { // other tests' goroutines leave some, too
		each = (int64(heap()) - int64(before)) / n
		return each <= 450
	})
	t.Logf("%d bytes for each", each)
	s.mu.Lock()
	weight := s.retained.Weight() / int64(s.retained.Len())
	s.mu.Unlock()
	if weight < 200 || weight > 800 {
		t.Errorf("one is weighed with %d bytes", weight)
	}
}

// TestKeyOutlivesTheName: a request_key is its session's, whatever that is called, and a principal's where no session was named.
func TestKeyOutlivesTheName(t *testing.T) {
	r := newRig(t, Config{DefaultDir: t.TempDir()})
	s := r.create(protocol.SessionCreate{Name: "foo"})
	in := protocol.SessionRef{SessionID: s.ID()}
	first := run(t, s, protocol.Exec{SessionRef: in, Command: "echo x >>runs", RequestKey: "k"}).ExecID
	if err := s.Rename(defaultSession); err != nil {
		t.Fatal(err)
	}
	if again := run(t, s, protocol.Exec{SessionRef: in, Command: "echo x >>runs", RequestKey: "k"}).ExecID; again != first {
		t.Error("it ran again after it became the default session")
	}
	unnamed := run(t, s, protocol.Exec{Command: "echo y >>runs", RequestKey: "u"}).ExecID
	if err := s.Rename("bar"); err != nil {
		t.Fatal(err)
	}
	if again := run(t, s, protocol.Exec{SessionRef: in, Command: "echo y >>runs", RequestKey: "u"}).ExecID; again != unnamed {
		t.Error("asked for by its session, it ran again")
	}
	other, err := r.Find(me, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if again := run(t, other, protocol.Exec{Command: "echo y >>runs", RequestKey: "u"}).ExecID; other == s || again != unnamed {
		t.Error("asked for by no session, it ran again")
	}
	want(t, s, "cat runs", "x\ny\n")
}

// TestSessionLogHoldsWhatIsKept: what the next gateway has to read depends on what is kept, not on what has happened.
func TestSessionLogHoldsWhatIsKept(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	const kept, many = 100, 1500
	for i := range many {
		run(t, s, protocol.Exec{Command: ":", RequestKey: fmt.Sprint(i)})
		if i%kept == 0 {
			r.DropExpired(time.Now().Add(requestkey.Retention + time.Minute)) // their time is over
		}
	}
	testkit.Eventually(t, "it is written anew", func() bool { r.DropExpired(time.Now()); return !s.sessionLog.ShouldCompact() })
	m, err := remember(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.Ended) + len(m.Work); n > many/2 || n < kept-1 {
		t.Errorf("%d commands are in the session log, %d are kept", n, kept)
	}
	if m.Session.Commands+m.CommandsBegun != many {
		t.Errorf("%d commands are counted", m.Session.Commands+m.CommandsBegun)
	}
}

// TestTheHeaviestLetsGoFirst: beyond what all may keep, the principal with the most lets go, and first of ended sessions.
func TestTheHeaviestLetsGoFirst(t *testing.T) {
	r := newRig(t, Config{})
	modest := r.create(protocol.SessionCreate{})
	first := run(t, modest, protocol.Exec{Command: "echo kept"}).ExecID
	create := func() *Session {
		s, err := r.Create(t.Context(), "heavy", &protocol.SessionCreate{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	dead, alive := create(), create()
	run(t, dead, protocol.Exec{Command: "echo dead"})
	old := run(t, alive, protocol.Exec{Command: "echo old"}).ExecID
	last := run(t, alive, protocol.Exec{Command: "echo last"}).ExecID
	if _, err := dead.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
		t.Fatal(err)
	}
	known := func(who, id string) bool { _, err := r.FindExec(who, id); return err == nil }
	if _, err := r.Find("heavy", dead.ID(), ""); err != nil || !known("heavy", old) {
		t.Fatalf("%v", err)
	}
	r.retainedBytes.Add("heavy", maxRetainedOf) // as if it had more elsewhere
	defer r.retainedBytes.Add("heavy", -maxRetainedOf)
	if !r.trimPrincipal("heavy") {
		t.Error("nothing was let go")
	}
	if _, err := r.Find("heavy", dead.ID(), ""); err == nil || !known("heavy", old) {
		t.Errorf("the ended session is not the first: %v", err)
	}
	r.trim()
	if known("heavy", old) || !known("heavy", last) || !known(me, first) {
		t.Errorf("old %v, last %v, another's %v", known("heavy", old), known("heavy", last), known(me, first))
	}
}

// TestCommandsThatEndTogetherLetGoOnce: each of them finds that its principal has too much, and what one lets go is enough.
func TestCommandsThatEndTogetherLetGoOnce(t *testing.T) {
	r := newRig(t, Config{})
	const many, each = 8, 40
	var ids []string
	var s *Session
	for range many {
		s = r.create(protocol.SessionCreate{})
		for range each {
			ids = append(ids, run(t, s, protocol.Exec{Command: ":"}).ExecID)
		}
	}
	more := int64(maxRetainedOf + 1)
	for _, s := range r.all() {
		more -= s.recordsWeight()
	}
	r.retainedBytes.Add(me, more)
	defer r.retainedBytes.Add(me, -more)
	var all sync.WaitGroup
	var returned atomic.Int32
	s.mu.Lock() // so that nobody is done before all have begun
	release := sync.OnceFunc(s.mu.Unlock)
	defer release()
	for range 32 {
		all.Go(func() { r.trim(); returned.Add(1) })
	}
	testkit.Eventually(t, "all but one to leave it to that one", func() bool { return returned.Load() == 31 })
	release()
	all.Wait()
	left := 0
	for _, id := range ids {
		if _, err := r.FindExec(me, id); err == nil {
			left++
		}
	}
	if least := len(ids) - len(ids)/retained.TrimShare - 1; left < least || left == len(ids) {
		t.Errorf("%d of %d commands are left, want %d", left, len(ids), least)
	}
}

// TestShortDescriptorsCostEndedSessions: of the principal who left the most, the oldest first.
func TestShortDescriptorsCostEndedSessions(t *testing.T) {
	r := newRig(t, Config{})
	end := func(who string) string {
		s, err := r.Create(t.Context(), who, &protocol.SessionCreate{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
			t.Fatal(err)
		}
		return s.ID()
	}
	modest := end(me)
	var heavy []string
	for range 4 {
		heavy = append(heavy, end("heavy"))
	}
	r.freeDescriptors()
	for i, id := range heavy {
		if _, err := r.Find("heavy", id, ""); (err == nil) != (i >= 2) {
			t.Errorf("session %d of 4: %v", i, err)
		}
	}
	if _, err := r.Find(me, modest, ""); err != nil {
		t.Error(err)
	}
}
