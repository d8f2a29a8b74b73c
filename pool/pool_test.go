package pool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/pool/ids"
	"trl/pool/warm"
	"trl/protocol"
	"trl/runtime/host"
	"trl/runtime/own"
)

// K7: another principal's ids answer like ids that do not exist. I4: those of an earlier epoch are lost.
func TestIdsOfOthersAndOfEarlierEpochs(t *testing.T) {
	before, now := newRig(t, Config{}), newRig(t, Config{})
	s := now.create(protocol.SessionCreate{Name: "n"})
	e := start(t, s, protocol.Exec{Command: "sleep 71010"})
	p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "sleep 71010"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind     byte
		id       string
		find     func(who, id string) error
		notFound protocol.Code
	}{
		{'s', s.ID(), func(who, id string) error { _, err := now.Find(who, id, ""); return err }, protocol.SessionNotFound},
		{'x', e.ID(), func(who, id string) error { _, err := now.FindExec(who, id); return err }, protocol.ExecNotFound},
		{'p', p.ID(), func(who, id string) error { _, err := now.FindProcess(who, id); return err }, protocol.ProcessNotFound},
	} {
		if err := c.find(me, c.id); err != nil {
			t.Errorf("own %s: %v", c.id, err)
		}
		made := testkit.WantCode(t, c.find(me, string(c.kind)+"-none"), c.notFound)
		changed := "a"
		if c.id[20] == 'a' {
			changed = "b"
		}
		for _, id := range []string{c.id, c.id[:20] + changed + c.id[21:], c.id[:len(c.id)-1], "", "é" + c.id} {
			who := me
			if id == c.id {
				who = "another"
			} else if id == "" && c.kind == 's' {
				continue // the default session
			}
			if fault := testkit.WantCode(t, c.find(who, id), c.notFound); fault.Message != made.Message || fmt.Sprint(fault.Details) != fmt.Sprint(made.Details) {
				t.Errorf("%q answers %v, a made-up one %v", id, fault, made)
			}
		}
		tag := ""
		random := ids.RandomLen
		if c.kind != 's' {
			tag, random = s.tag, ids.MemberLen
		}
		testkit.WantCode(t, c.find(me, ids.New("", c.kind, before.Epoch(), tag, random)), protocol.SessionLost)
	}
	if _, err := now.Find("another", "", "n"); protocol.AsError(err).Code != protocol.SessionNotFound {
		t.Errorf("another's name: %v", err)
	}
	if len(now.List("another", &protocol.SessionList{})) != 0 {
		t.Error("another's list")
	}
	if before.Epoch() == now.Epoch() {
		t.Error("one epoch for two lives")
	}
}

func TestNames(t *testing.T) {
	r := newRig(t, Config{})
	a := r.create(protocol.SessionCreate{Name: "a", Labels: map[string]string{"k": "v"}})
	_, err := r.Create(t.Context(), me, &protocol.SessionCreate{Name: "a"})
	if d := testkit.WantCode(t, err, protocol.SessionExists).Details; d["session_id"] != a.ID() {
		t.Errorf("details %v", d)
	}
	if s := r.create(protocol.SessionCreate{Name: "a", IfExists: "return"}); s != a {
		t.Error("if_exists: return made another")
	}
	if _, err := r.Create(t.Context(), "another", &protocol.SessionCreate{Name: "a"}); err != nil {
		t.Errorf("another principal's: %v", err)
	}
	b := r.create(protocol.SessionCreate{Name: "b"})
	testkit.WantCode(t, b.Rename("a"), protocol.SessionExists)
	if err := b.Rename("c"); err != nil {
		t.Error(err)
	}
	if _, err := r.Find(me, "", "b"); err == nil {
		t.Error("the old name is still known")
	}
	if s, err := r.Find(me, "", "c"); err != nil || s != b || s.Summary().Name != "c" {
		t.Error(err)
	}
	for label, n := range map[string]int{"": 2, "k": 1, "k=v": 1, "k=w": 0, "x": 0} {
		if got := r.List(me, &protocol.SessionList{Label: label}); len(got) != n || got == nil {
			t.Errorf("label %q: %d sessions", label, len(got))
		}
	}
	// M5: the name is free the moment its session begins to end, and the id answers on.
	want(t, a, "trap '' TERM; sleep 71011 &", "")
	go a.Destroy(context.Background(), &protocol.SessionDestroy{Grace: of(protocol.Seconds(.3))})
	testkit.Eventually(t, "the end begins", func() bool { return !a.IsOpen() })
	again := r.create(protocol.SessionCreate{Name: "a"})
	if s, err := r.Find(me, "", "a"); err != nil || s != again {
		t.Errorf("found %v %v", s, err)
	}
	wait(t, "end", a.Ended())
	if s, err := r.Find(me, a.ID(), ""); err != nil || s.Info().State != "TERMINATED" {
		t.Error(err)
	}
	if got := r.List(me, &protocol.SessionList{State: "TERMINATED"}); len(got) != 1 || got[0].SessionID != a.ID() {
		t.Errorf("%+v", got)
	}
	if got := r.List(me, &protocol.SessionList{}); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	// A name of which only an ended session is known says so, and the default one is made anew.
	if _, err := b.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
		t.Error(err)
	}
	if s, err := r.Find(me, "", "c"); err != nil || s != b {
		t.Error(err)
	}
	r.DropExpired(time.Now().Add(2 * time.Minute))
	if _, err := r.Find(me, b.ID(), ""); protocol.AsError(err).Code != protocol.SessionNotFound {
		t.Errorf("after the retention time: %v", err)
	}
	if _, err := r.Find(me, "", "c"); protocol.AsError(err).Code != protocol.SessionNotFound {
		t.Errorf("its name: %v", err)
	}
}

func TestDefaultSession(t *testing.T) {
	r := newRig(t, Config{})
	var all sync.WaitGroup
	found := make([]*Session, 16)
	for i := range found {
		all.Go(func() {
			s, err := r.Find(me, "", "")
			if err != nil {
				t.Error(err)
				return
			}
			found[i] = s
			if x := run(t, s, protocol.Exec{Command: "cd /usr; n=x$n"}); *x.ExitCode != 0 { // before its shell is up
				t.Errorf("%+v", x)
			}
		})
	}
	all.Wait()
	for _, s := range found {
		if s != found[0] {
			t.Fatal("two default sessions")
		}
	}
	want(t, found[0], "pwd; echo $n", "/usr\n"+strings.Repeat("x", 16)+"\n")
	if _, err := found[0].Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
		t.Fatal(err)
	}
	s, err := r.Find(me, "", "")
	if err != nil || s == found[0] {
		t.Fatalf("the ended one again, %v", err)
	}
	want(t, s, "echo $n", "\n")
}

// A request that names no session, tried again, finds what it did, though another session is the default one by now.
func TestKeysOfTheDefaultSession(t *testing.T) {
	r := newRig(t, Config{Retention: time.Millisecond, DefaultDir: t.TempDir()})
	find := func() *Session {
		t.Helper()
		s, err := r.Find(me, "", "")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := find()
	q := protocol.Exec{Command: "echo x >>runs; echo once", RequestKey: "k"}
	p := protocol.ProcessStart{Command: "echo x >>starts", RequestKey: "p"}
	x, proc := run(t, first, q), r.process(first, p)
	wait(t, "its exit", proc.Done())
	for _, forgotten := range []bool{false, true} {
		if _, err := find().Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
			t.Fatal(err)
		}
		if forgotten {
			r.DropExpired(time.Now().Add(time.Minute))
		}
		s := find()
		if again := run(t, s, q); s == first || again.ExecID != x.ExecID || again.SessionID != first.ID() || !forgotten && again.Stdout != "once\n" {
			t.Errorf("%+v", again)
		}
		if again := r.process(s, p); again.ID() != proc.ID() {
			t.Errorf("process %s, was %s", again.ID(), proc.ID())
		}
		want(t, s, "cat runs starts", "x\nx\n")
		other := r.create(protocol.SessionCreate{})
		if id := run(t, other, protocol.Exec{SessionRef: protocol.SessionRef{SessionID: other.id}, Command: ":", RequestKey: "k"}).ExecID; id == x.ExecID {
			t.Error("another session's keys are its own")
		}
	}
}

// L1: typed errors with the number, and the slot is free the moment a session ends.
func TestBounds(t *testing.T) {
	r := newRig(t, Config{MaxSessions: 3, MaxPerPrincipal: 2})
	a := r.create(protocol.SessionCreate{})
	r.create(protocol.SessionCreate{})
	_, err := r.Create(t.Context(), me, &protocol.SessionCreate{})
	if d := testkit.WantCode(t, err, protocol.MaxSessionsReached).Details; d["max_sessions_per_principal"] != 2 {
		t.Errorf("details %v", d)
	}
	if _, err := r.Create(t.Context(), "another", &protocol.SessionCreate{}); err != nil {
		t.Error(err)
	}
	_, err = r.Create(t.Context(), "another", &protocol.SessionCreate{})
	if d := testkit.WantCode(t, err, protocol.MaxSessionsReached).Details; d["max_sessions"] != 3 {
		t.Errorf("details %v", d)
	}
	want(t, a, "echo fine", "fine\n")
	for range 20 {
		if _, err := a.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
			t.Fatal(err)
		}
		a = r.create(protocol.SessionCreate{})
	}
	var made, refused int
	var mu sync.Mutex
	var all sync.WaitGroup
	if _, err := a.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
		t.Fatal(err)
	}
	for range 10 { // creating ones count
		all.Go(func() {
			_, err := r.Create(t.Context(), me, &protocol.SessionCreate{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if protocol.AsError(err).Code == protocol.MaxSessionsReached {
				refused++
			}
		})
	}
	all.Wait()
	if made != 1 || refused != 9 {
		t.Errorf("%d made, %d refused", made, refused)
	}
	if st := r.Stats(); st.ActiveSessions != 3 || st.MaxSessions != 3 || st.ByState["IDLE"] != 3 || st.ByState["TERMINATED"] != 21 || st.TotalCommandsRun != 1 || st.MemoryRSSBytes == 0 {
		t.Errorf("%+v", st)
	}
	if n := testutil.ToFloat64(r.metrics.SessionsEnded.WithLabelValues("client")); n != 21 {
		t.Errorf("%v counted as ended", n)
	}
	if n := testutil.ToFloat64(r.metrics.SessionsCreated.WithLabelValues("MAX_SESSIONS_REACHED")); n != 11 {
		t.Errorf("%v counted as refused", n)
	}
}

func TestWhatCannotBeCreated(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "sh") // a program that calls itself sh
	if err := os.WriteFile(own, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "bash")); err != nil { // a shell under another's name
		t.Fatal(err)
	}
	r := newRig(t, Config{Shells: []string{"sh", "/bin/bash"}, MaxSessions: 4, WarmShells: 1})
	for _, c := range []struct {
		q    protocol.SessionCreate
		code protocol.Code
	}{
		{protocol.SessionCreate{Shell: "/no/shell"}, protocol.ShellNotFound},
		{protocol.SessionCreate{Shell: "no-such-shell"}, protocol.ShellNotFound},
		{protocol.SessionCreate{Shell: "/bin"}, protocol.ShellNotFound},
		{protocol.SessionCreate{Shell: "/bin/cat"}, protocol.ShellNotAllowed},
		{protocol.SessionCreate{Shell: "cat"}, protocol.ShellNotAllowed},
		{protocol.SessionCreate{Shell: own}, protocol.ShellNotAllowed},
		{protocol.SessionCreate{Shell: filepath.Join(dir, "bash")}, protocol.ShellNotAllowed},
		{protocol.SessionCreate{WorkingDir: "/no/dir"}, protocol.WorkingDirNotFound},
		{protocol.SessionCreate{WorkingDir: "/bin/sh"}, protocol.WorkingDirNotFound},
	} {
		_, err := r.Create(t.Context(), me, &c.q)
		testkit.WantCode(t, err, c.code)
	}
	for _, shell := range []string{"", "sh", "bash", "/bin/sh", "/usr/bin/sh"} {
		if _, err := os.Stat(shell); strings.HasPrefix(shell, "/") && err != nil {
			continue
		}
		s, err := r.Create(t.Context(), me, &protocol.SessionCreate{Shell: shell, Limits: &protocol.Limits{}})
		if err != nil {
			t.Errorf("%q: %v", shell, err)
			continue
		}
		want(t, s, "echo ok", "ok\n")
		if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
			t.Error(err)
		}
	}
	if len(r.Shells()) < 2 {
		t.Errorf("shells %v", r.Shells())
	}
}

// A session that gets no shell leaves nothing: not a slot, not a name.
func TestNoHalfCreatedSession(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "sh")
	if err := os.WriteFile(broken, []byte("#!/bin/false\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{DefaultShell: broken, MaxSessions: 1})
	for range 3 {
		_, err := r.Create(t.Context(), me, &protocol.SessionCreate{Name: "n", RequestKey: "k"})
		testkit.WantCode(t, err, protocol.ShellFailed)
	}
	s, err := r.Find(me, "", "")
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Exec(&protocol.Exec{Command: "true"}) // was let in before the shell failed, or not
	if err == nil {
		wait(t, "refusal", e.Done())
		err = e.Err()
	}
	if c := protocol.AsError(err).Code; c != protocol.ShellFailed && c != protocol.SessionTerminated {
		t.Fatal(err)
	}
	wait(t, "end", s.Ended())
	if st := r.Stats(); len(st.ByState) != 0 {
		t.Errorf("%+v", st)
	}
	if s := r.create(protocol.SessionCreate{Name: "n", Shell: "/bin/sh", RequestKey: "k2"}); s == nil {
		t.Error("no session")
	}
	again := r.create(protocol.SessionCreate{Name: "n", Shell: "/bin/sh", RequestKey: "k2"})
	if again.ID() != r.List(me, &protocol.SessionList{})[0].SessionID {
		t.Error("the key made another")
	}
}

// Warm shells are of the kinds of the last sessions.
func TestWarmShellsOfTheKindsThatAreAskedFor(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "bash")
	if err := os.WriteFile(broken, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{WarmShells: 2, MaxSessions: 100, DefaultShell: "/bin/sh", Shells: []string{"/bin/sh", "/bin/bash", broken}})
	ready := func(kinds ...string) (found []*warm.Shell) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint(kinds, " are ready"), func() bool {
			found = r.warm.Ready()
			paths := []string{}
			for _, ws := range found {
				paths = append(paths, ws.Path)
			}
			slices.Sort(paths)
			return slices.Equal(paths, kinds)
		})
		return found
	}
	ready("/bin/sh", "/bin/sh")
	r.create(protocol.SessionCreate{Shell: "/bin/bash"})
	for _, ws := range ready("/bin/bash", "/bin/sh") {
		if s := r.create(protocol.SessionCreate{Shell: ws.Path}); s.ID() != ws.ID {
			t.Errorf("not the warm %s", ws.Path)
		}
	}
	for range 2 {
		want(t, r.create(protocol.SessionCreate{Shell: "/bin/bash"}), "echo ${BASH##*/}", "bash\n")
	}
	ready("/bin/bash", "/bin/bash")
	if s, err := r.Create(t.Context(), me, &protocol.SessionCreate{Shell: broken}); err == nil {
		t.Fatal("a broken shell: ", s)
	}
	ready("/bin/bash", "/bin/sh") // the broken kind does not keep a place
	r.Configure(Config{WarmShells: 2, MaxSessions: 100, DefaultShell: "/bin/sh", Shells: []string{"/bin/sh"}})
	ready("/bin/sh", "/bin/sh")
}

// Who begins sessions with a terminal finds it started, and who does not has no more processes than before.
func TestWarmTerminalsAreLearned(t *testing.T) {
	r := newRig(t, Config{WarmShells: 2, MaxSessions: 100, DefaultShell: "/bin/bash"})
	ready := func(terminals int) (found []*warm.Shell) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint("two shells are ready, with a terminal: ", terminals), func() bool {
			found = r.warm.Ready()
			n := 0
			for _, ws := range found {
				if ws.Terminal {
					n++
				}
			}
			return len(found) == 2 && n == terminals
		})
		return found
	}
	open := func(q protocol.SessionCreate) (*Session, *Terminal) {
		t.Helper()
		s, x, _, err := r.CreateOrFind(t.Context(), me, &q)
		if err != nil {
			t.Fatal(err)
		}
		return s, x
	}
	processes := func(id string) int {
		return len(testkit.PidsWhose("environ", func(text []byte) bool { return strings.Contains(string(text), "TRL_SESSION_ID="+id) }))
	}
	terminal := &protocol.FirstTerminal{Cols: 100, Rows: 30}
	ready(0)
	open(protocol.SessionCreate{Terminal: terminal})
	ready(1)
	for range 3 { // of the kind that is asked for, if there is one
		all := r.warm.Ready()
		with := all[slices.IndexFunc(all, func(ws *warm.Shell) bool { return ws.Terminal })].ID
		if s, _ := open(protocol.SessionCreate{Terminal: terminal}); s.ID() != with {
			t.Errorf("session %s, and %s had a terminal", s.ID(), with)
		}
		ready(2)
	}
	for _, c := range []struct {
		q         protocol.SessionCreate
		processes int
	}{
		{protocol.SessionCreate{}, 1},
		{protocol.SessionCreate{Env: protocol.Env{"V": of("v")}, Terminal: terminal}, 2},
		{protocol.SessionCreate{Terminal: &protocol.FirstTerminal{Cols: 80, Rows: 24, Command: "exec sleep 1000"}}, 2},
	} {
		id := ready(2)[0].ID
		s, _ := open(c.q)
		if s.ID() != id {
			t.Errorf("%+v: not a warm one", c.q)
		}
		testkit.Eventually(t, "the warm terminal is gone", func() bool { return processes(id) == c.processes })
		for range 2 {
			open(protocol.SessionCreate{Terminal: terminal})
		}
	}
}

func TestWarmShells(t *testing.T) {
	r := newRig(t, Config{WarmShells: 3, DefaultDir: "/usr", MaxSessions: 100})
	testkit.Eventually(t, "three warm ones", func() bool { return len(r.warm.Ready()) == 3 })
	if st := r.Stats(); st.ActiveSessions != 0 || st.WarmShells != 3 {
		t.Errorf("%+v", st)
	}
	ready := r.warm.Ready()
	id, pid := ready[0].ID, ready[2].Pid()
	if !r.IsLive(id) {
		t.Error("a warm shell is an orphan")
	}
	s := r.create(protocol.SessionCreate{Env: protocol.Env{"V": of("v'w"), "HOME": nil, "TRL_SESSION_ID": nil}, WorkingDir: "/tmp"})
	if s.ID() != id || !r.IsLive(id) {
		t.Errorf("not the warm one: %s, %s", s.ID(), id)
	}
	want(t, s, `pwd; echo "$V ${HOME-none} $TRL_SESSION_ID"`, "/tmp\nv'w none "+id+"\n")
	want(t, r.create(protocol.SessionCreate{}), "pwd", "/usr\n")
	want(t, r.create(protocol.SessionCreate{Shell: "/bin/bash"}), "echo ${BASH##*/} $SHELL", "bash /bin/bash\n") // another kind
	testkit.Eventually(t, "three again", func() bool { return len(r.warm.Ready()) == 3 })

	proc, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Kill(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the dead one is replaced", func() bool {
		ready := r.warm.Ready()
		for _, ws := range ready {
			if ws.Pid() == pid {
				return false
			}
		}
		return len(ready) == 3
	})
	over := r.create(protocol.SessionCreate{OnShellExit: "terminate"})
	wait(t, "exit", start(t, over, protocol.Exec{Command: "exit"}).Done())
	wait(t, "end", over.Ended())
	var all sync.WaitGroup
	for range 20 { // faster than they are refilled
		all.Go(func() { want(t, r.create(protocol.SessionCreate{}), "echo ok", "ok\n") })
	}
	all.Wait()
}

// G7: a hundred busy sessions are gone at once, and everybody has got an answer.
func TestCloseEndsAHundredBusySessions(t *testing.T) {
	const n = 100
	r := newRig(t, Config{MaxSessions: n, MaxPerPrincipal: n, WarmShells: 2})
	var execs []*Exec
	for i := range n {
		s := r.create(protocol.SessionCreate{})
		command := "sleep 71012"
		if i%10 == 0 {
			command = "trap '' TERM; setsid sleep 71012 & sleep 71012; sleep 71012"
		}
		execs = append(execs, start(t, s, protocol.Exec{Command: command}), start(t, s, protocol.Exec{Command: "echo never"}))
		if i%2 == 0 {
			if _, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "sleep 71012"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	short, cancelShort := context.WithTimeout(ctx, 2500*time.Millisecond) // a grace of half a second
	defer cancelShort()
	began := time.Now()
	_ = r.Close(short)
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d sessions in %v", n, time.Since(began))
	if left := survivors("sleep 71012"); left != 0 {
		t.Errorf("%d survivors", left)
	}
	for i, e := range execs {
		select {
		case <-e.Done():
		default:
			t.Fatal("somebody waits for ever")
		}
		if i%2 == 0 && !e.Exit().Cancelled {
			t.Errorf("running: %+v", e.Exit())
		} else if i%2 == 1 {
			testkit.WantCode(t, e.Err(), protocol.SessionTerminated)
		}
	}
	_, err := r.Create(t.Context(), me, &protocol.SessionCreate{})
	testkit.WantCode(t, err, protocol.ShuttingDown)
	for _, i := range r.List(me, &protocol.SessionList{State: "TERMINATED"}) {
		if i.Reason != protocol.ReasonShutdown {
			t.Errorf("reason %s", i.Reason)
		}
	}
}

func TestNothingIsRetainedWithoutRetention(t *testing.T) {
	r := newRig(t, Config{Retention: -1})
	s := r.create(protocol.SessionCreate{Name: "n"})
	if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Find(me, s.ID(), ""); protocol.AsError(err).Code != protocol.SessionNotFound {
		t.Error(err)
	}
	if len(r.sessions)+len(r.tags)+len(r.names)+len(r.live.Of()) != 0 {
		t.Error("something is left")
	}
}

// Everything at once, for the race detector: no deadlock, and whoever asks gets an answer.
func TestEverythingAtOnce(t *testing.T) {
	r := newRig(t, Config{WarmShells: 2, MaxSessions: 64, IdleTimeout: time.Hour})
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for j := range 8 {
				s, err := r.Create(t.Context(), me, &protocol.SessionCreate{Name: fmt.Sprintf("n%d", i), IfExists: "return", Shell: []string{"/bin/sh", "/bin/bash"}[i%2]})
				if err != nil {
					t.Error(err)
					continue
				}
				w := s.Watch()
				var inner sync.WaitGroup
				for k := range 6 {
					inner.Go(func() {
						e, err := s.Exec(&protocol.Exec{Command: "echo a; exit 3", RequestKey: fmt.Sprintf("%d/%d", j, k/2)})
						if err != nil {
							wantTerminated(t, err)
							return
						}
						if k == 3 {
							e.Cancel(of(time.Duration(0)))
						}
						wait(t, "exec", e.Done())
						_ = e.Result(true)
					})
				}
				inner.Go(func() {
					p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "sleep 71013"})
					if err == nil {
						err = p.Kill(t.Context(), time.Second)
					}
					if err != nil {
						wantTerminated(t, err)
					}
				})
				inner.Go(func() {
					_, _, _ = s.Info(), r.Stats(), r.List(me, &protocol.SessionList{})
					r.EndIdle(time.Now())
					r.WarnExpiring(time.Now())
					r.DropExpired(time.Now())
				})
				if j%3 == 1 {
					inner.Go(func() {
						if err := s.Reset(t.Context()); err != nil {
							wantTerminated(t, err)
						}
					})
				}
				if j%3 == 2 {
					inner.Go(func() { _, _ = s.Destroy(t.Context(), &protocol.SessionDestroy{Grace: of(protocol.Seconds(.1))}) })
				}
				inner.Wait()
				w.Close()
			}
		})
	}
	all.Wait()
	if n := survivors("sleep 71013"); n != 0 {
		t.Errorf("%d survivors", n)
	}
}

func wantTerminated(t *testing.T, err error) {
	t.Helper()
	if e := protocol.AsError(err); e.Code != protocol.SessionTerminated {
		t.Errorf("error %v, cause %v", err, e.Unwrap())
	}
}

// full has room for a number of shells.
type full struct {
	own.Keeper
	pool *Pool // set before Start
	room int
}

func (f *full) StartSession(id string, w own.StartRequest) (own.StartedSession, error) {
	f.pool.mu.RLock()
	shells := f.pool.live.Live // the one that asks among them
	f.pool.mu.RUnlock()
	if f.pool.warm.Contains(id) { // but not a warm one
		shells++
	}
	if shells += len(f.pool.warm.Ready()); shells > f.room {
		return own.StartedSession{}, unix.EMFILE
	}
	return f.Keeper.StartSession(id, w)
}

func TestWarmShellsMakeRoom(t *testing.T) {
	testkit.StartsProcesses(t)
	m := metrics.New(prometheus.NewRegistry())
	h, err := host.NewHost(host.Config{Isolation: "none", Metrics: m, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	k := &full{Keeper: host.Local(h), room: 2}
	p := New(Config{WarmShells: 2, DefaultShell: "/bin/sh", Shells: []string{"/bin/sh", "/bin/bash"}, BaseEnv: []string{"PATH=" + os.Getenv("PATH")}}, k, m, zerolog.Nop())
	k.pool = p
	p.Start()
	defer p.Close(t.Context())
	testkit.Eventually(t, "shells are warm", func() bool { return p.Stats().WarmShells == 2 })
	for range 2 {
		s, err := p.Create(t.Context(), me, &protocol.SessionCreate{Shell: "/bin/bash"})
		if err != nil {
			t.Fatal(err)
		}
		want(t, s, "echo ok", "ok\n")
		testkit.Eventually(t, "as many shells are warm as there is room for", func() bool { return p.Stats().WarmShells == 2-len(p.all()) }) // and none is being started
	}
	_, err = p.Create(t.Context(), me, &protocol.SessionCreate{Shell: "/bin/bash"})
	testkit.WantCode(t, err, protocol.LimitExceeded)
}
