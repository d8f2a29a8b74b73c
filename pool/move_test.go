package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"trl/internal/testkit"
	"trl/pool/clock"
	"trl/pool/moved"
	"trl/protocol"
	"trl/runtime/stream"
)

// export returns what goes over the link.
func export(t *testing.T, m *Move) *moved.Session {
	t.Helper()
	x := &moved.Session{Uptime: clock.UptimeAt(time.Now())}
	if err := m.Export(x); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	y := new(moved.Session)
	if err := json.Unmarshal(text, y); err != nil {
		t.Fatal(err)
	}
	return y
}

// moveTo moves s to another pool.
func moveTo(t *testing.T, s *Session, to *rig) *Session {
	t.Helper()
	there, lost := moveLosing(t, s, to)
	if len(lost) > 0 {
		t.Errorf("lost %q", lost)
	}
	return there
}

// moveLosing moves s to another pool, and returns what it has lost there.
func moveLosing(t *testing.T, s *Session, to *rig) (there *Session, lost []string) {
	t.Helper()
	m, err := s.BeginMove(t.Context(), to.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Stop()
	arriving, lost, err := to.Receive(t.Context(), m.ID, s.pool.epoch, export(t, m))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Commit(lost); err != nil {
		t.Fatal(err)
	}
	if err := arriving.Keep(); err != nil {
		t.Fatal(err)
	}
	arriving.Told()
	m.Told()
	return arriving.Session(), lost
}

// TestNextCommandTellsWhatAMoveLost: its client may not have asked for the move. A session that moves on before that command keeps it in mind.
func TestNextCommandTellsWhatAMoveLost(t *testing.T) {
	t.Parallel()
	a, b, c := newRig(t, Config{}), newRig(t, Config{}), newRig(t, Config{})
	s := a.create(protocol.SessionCreate{Shell: "/bin/dash"})
	want(t, s, "f() { echo f; }; x=kept", "")
	s, lost := moveLosing(t, s, b)
	if !slices.Equal(lost, []string{"functions"}) {
		t.Errorf("lost %q", lost)
	}
	s, _ = moveLosing(t, s, c)
	if r := want(t, s, "echo $x", "kept\n"); !r.ShellRestored || !slices.Equal(r.StateLost, lost) {
		t.Errorf("%+v", r)
	}
	if r := want(t, s, "echo $x", "kept\n"); r.ShellRestored || len(r.StateLost) > 0 {
		t.Errorf("it tells again: %+v", r)
	}
	if r := want(t, moveTo(t, s, a), "echo $x", "kept\n"); r.ShellRestored || len(r.StateLost) > 0 {
		t.Errorf("a move that loses nothing: %+v", r)
	}
}

// TestSessionMoves: what a session is, and what it has done, goes along. It can move on, and come back.
func TestSessionMoves(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, shell string) {
		t.Parallel()
		a, b := newRig(t, Config{}), newRig(t, Config{})
		dir := t.TempDir()
		s := a.create(protocol.SessionCreate{Name: "build", Shell: shell, Env: protocol.Env{"GIVEN": of("1")}, Labels: map[string]string{"l": "v"}, Timeout: of(protocol.Seconds(100))})
		want(t, s, "cd "+dir+"; A='a b'; export B=c; set -o noglob", "")
		if shell == "/bin/bash" {
			want(t, s, "f() { echo \"f $1\"; }; alias l=ls", "")
		}
		first := start(t, s, protocol.Exec{Command: "echo out; echo err >&2; seq 100000", RequestKey: "k"})
		wait(t, "first", first.Done())
		p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "echo from a process"})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "process", p.Done())
		term, err := s.OpenTerminal(t.Context(), &protocol.TermOpen{Command: "echo from a terminal", Cols: 80, Rows: 24})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "terminal", term.Done())
		id, commands := s.ID(), s.Info().CommandsRun
		before, created := first.Result(false), s.Info().CreatedAt

		at := a
		for _, to := range []*rig{b, a, b} {
			old := s
			s = moveTo(t, s, to)
			wait(t, "end of the old one", old.Ended())
			if s.ID() != id {
				t.Fatalf("the id is %s, was %s", s.ID(), id)
			}
			testkit.WantCode(t, func() error { _, err := at.Find(me, id, ""); return err }(), moved.Code)
			testkit.WantCode(t, func() error { _, err := at.FindExec(me, first.ID()); return err }(), moved.Code)
			if at.HasOpen(me, "build") || at.LiveCount() != 0 || to.LiveCount() != 1 {
				t.Error("the old node still has it")
			}
			if found, err := to.Find(me, "", "build"); err != nil || found != s {
				t.Errorf("by name: %v", err)
			}
			want(t, s, "pwd; echo $A $B $GIVEN; sh -c 'echo $B'; echo /b*n; echo $TRL_SESSION_ID", dir+"\na b c 1\nc\n/b*n\n"+id+"\n")
			if shell == "/bin/bash" {
				want(t, s, "f x; alias l", "f x\nalias l='ls'\n")
			}
			commands++
			if shell == "/bin/bash" {
				commands++
			}
			i := s.Info()
			if i.Name != "build" || i.Labels["l"] != "v" || i.Timeout != 100 || i.CommandsRun != commands || !i.CreatedAt.Equal(created) || i.State != "IDLE" || i.WorkingDir != dir {
				t.Errorf("%+v", i)
			}
			e, err := to.FindExec(me, first.ID())
			if err != nil {
				t.Fatal(err)
			}
			if r := e.Result(false); r.Stdout != before.Stdout || r.Stderr != "err\n" || *r.ExitCode != 0 {
				t.Errorf("output of %d bytes, was %d; stderr %q", len(r.Stdout), len(before.Stdout), r.Stderr)
			}
			again, err := s.Exec(&protocol.Exec{Command: "echo out; echo err >&2; seq 100000", RequestKey: "k"})
			if err != nil || again.ID() != first.ID() {
				t.Errorf("the retry of a command ran: %v", err)
			}
			q, err := to.FindProcess(me, p.ID())
			if err != nil {
				t.Fatal(err)
			}
			if text := all(t, q.Journal()); text != "from a process\n" || q.Info().ExitCode == nil || *q.Info().ExitCode != 0 {
				t.Errorf("process: %q, %+v", text, q.Info())
			}
			tt, err := to.FindTerminal(me, term.ID())
			if err != nil {
				t.Fatal(err)
			}
			if text := all(t, tt.Journal()); text != "from a terminal\r\n" || tt.Info().ExitCode == nil {
				t.Errorf("terminal: %q, %+v", text, tt.Info())
			}
			if n := len(s.Execs()); int64(n) != commands {
				t.Errorf("%d commands are listed of %d", n, commands)
			}
			at = to
		}
		if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
			t.Fatal(err)
		}
		if a.LiveCount()+b.LiveCount() != 0 {
			t.Error("something lives")
		}
	})
}

// all reads a journal.
func all(t *testing.T, j *Journal) string {
	t.Helper()
	r, err := j.Attach(0, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var text strings.Builder
	for {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			return text.String()
		}
		if c.Gap > 0 {
			fmt.Fprintf(&text, "[%d missing]", c.Gap)
		}
		text.Write(c.Data)
	}
}

// TestPinnedSessions: what cannot go along keeps a session where it is, and the error says what that is.
func TestPinnedSessions(t *testing.T) {
	t.Parallel()
	a := newRig(t, Config{})
	refused := func(s *Session, why string) {
		t.Helper()
		testkit.Eventually(t, "it cannot be moved because of its "+why, func() bool { // jobs may end for a moment yet
			m, err := s.BeginMove(t.Context(), "elsewher")
			if err == nil {
				m.Stop()
				return false
			}
			return testkit.WantCode(t, err, protocol.SessionBusy).Details["reason"] == why
		})
		if i := s.Info(); i.State == "TERMINATED" {
			t.Error("the session has ended")
		}
	}
	s := a.create(protocol.SessionCreate{})
	e := start(t, s, protocol.Exec{Command: "read x", InteractiveStdin: true})
	refused(s, "commands")
	if _, err := e.Input(stream.Anywhere, nil, true); err != nil {
		t.Fatal(err)
	}
	wait(t, "command", e.Done())
	want(t, s, "sleep 1000 >/dev/null 2>&1 & echo", "\n")
	refused(s, "jobs")
	want(t, s, "kill $!; wait", "")
	p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	refused(s, "processes")
	if err := p.Kill(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	term, err := s.OpenTerminal(t.Context(), &protocol.TermOpen{Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	refused(s, "terminals")
	if err := term.Close(t.Context(), of(protocol.Seconds(0))); err != nil {
		t.Fatal(err)
	}
	sh, _, err := s.Share(&protocol.ShareCreate{}, "", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	refused(s, "shares")
	if err := a.Revoke(me, sh.ID()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "nothing is left", func() bool {
		m, err := s.BeginMove(t.Context(), "elsewher")
		if err == nil {
			m.Stop()
		}
		return err == nil
	})
	refused(a.create(protocol.SessionCreate{OnDisconnect: "destroy"}), "connection")
}

// TestStoppedMove: a move that does not end leaves the session as it was; requests have waited, and nothing is left on the other node.
func TestStoppedMove(t *testing.T) {
	t.Parallel()
	a, b := newRig(t, Config{}), newRig(t, Config{MaxSessions: 1})
	s := a.create(protocol.SessionCreate{Name: "build"})
	want(t, s, "A=1", "")
	m, err := s.BeginMove(t.Context(), b.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	x := export(t, m)
	there, _, err := b.Receive(t.Context(), m.ID, a.Epoch(), x)
	if err != nil {
		t.Fatal(err)
	}
	busy := func(_ any, err error) {
		t.Helper()
		if e := testkit.WantCode(t, err, moved.Code); e.Unwrap() != error(m) && e.Unwrap() != error(there) || e.Details["epoch"] != nil {
			t.Errorf("%v", e)
		}
	}
	exec := func(s *Session) (any, error) { return s.Exec(&protocol.Exec{Command: "echo"}) }
	busy(exec(s))
	busy(s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "echo"}))
	busy(nil, s.Rename("other"))
	busy(nil, s.Update(&protocol.SessionUpdate{}))
	busy(s.BeginMove(t.Context(), b.Epoch()))
	busy(b.Find(me, s.ID(), ""))
	busy(exec(there.Session()))
	busy(b.Find(me, "", "build")) // the other node may hear of it before this one
	if n := len(a.List(me, &protocol.SessionList{})) + len(b.List(me, &protocol.SessionList{})); n != 1 {
		t.Errorf("%d sessions are listed", n)
	}
	_, err = b.Create(t.Context(), me, &protocol.SessionCreate{})
	testkit.WantCode(t, err, protocol.MaxSessionsReached)
	m.Stop()
	wait(t, "move", m.Over())
	testkit.WantCode(t, m.Commit(nil), protocol.SessionNotFound)
	there.Drop()
	wait(t, "other session", there.Session().Ended())
	want(t, s, "echo $A", "1\n")
	if b.LiveCount() != 0 || b.Has(s.ID()) || b.HasOpen(me, "build") || !a.HasOpen(me, "build") {
		t.Error("the other node still has it")
	}
	b.create(protocol.SessionCreate{})
	m, err = s.BeginMove(t.Context(), b.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = b.Receive(t.Context(), m.ID, a.Epoch(), export(t, m))
	testkit.WantCode(t, err, protocol.MaxSessionsReached)
	if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil { // which ends the move
		t.Fatal(err)
	}
	if err := m.Commit(nil); err == nil {
		t.Error("a destroyed session moves")
	}
	if !slices.Contains([]string{"TERMINATED"}, s.Info().State) {
		t.Error(s.Info().State)
	}
}

// TestFreshSessionMoves: a session that has not run anything has the environment of one.
func TestFreshSessionMoves(t *testing.T) {
	t.Parallel()
	eachShell(t, func(t *testing.T, shell string) {
		t.Parallel()
		a, b := newRig(t, Config{}), newRig(t, Config{})
		s := a.create(protocol.SessionCreate{Shell: shell})
		want(t, moveTo(t, s, b), "echo ${PATH:+has a path}", "has a path\n")
	})
}

// TestArrivalAfterAnotherOne: a session that comes waits for the end of an earlier try, within bounds.
func TestArrivalAfterAnotherOne(t *testing.T) {
	t.Parallel()
	a, b := newRig(t, Config{}), newRig(t, Config{})
	s := a.create(protocol.SessionCreate{})
	m, err := s.BeginMove(t.Context(), b.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := b.Receive(t.Context(), m.ID, a.Epoch(), export(t, m))
	if err != nil {
		t.Fatal(err)
	}
	m.Stop()
	if m, err = s.BeginMove(t.Context(), b.Epoch()); err != nil {
		t.Fatal(err)
	}
	defer m.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err = b.Receive(ctx, m.ID, a.Epoch(), export(t, m))
	if e := testkit.WantCode(t, err, protocol.SessionBusy); e.Details["reason"] != "move" {
		t.Errorf("%+v", e)
	}
	go first.Drop() // ends with the shell
	if _, _, err = b.Receive(t.Context(), m.ID, a.Epoch(), export(t, m)); err != nil {
		t.Fatal(err)
	}
}

// TestNameAfterTheDeathOfTheNewNode: the old node gives the name away when the node to which its session has moved is gone.
func TestNameAfterTheDeathOfTheNewNode(t *testing.T) {
	t.Parallel()
	a, b := newRig(t, Config{}), newRig(t, Config{})
	s := a.create(protocol.SessionCreate{Name: "build"})
	m, err := s.BeginMove(t.Context(), b.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Receive(t.Context(), m.ID, a.Epoch(), export(t, m)); err != nil {
		t.Fatal(err)
	}
	if err := m.Commit(nil); err != nil {
		t.Fatal(err)
	}
	wait(t, "end of the old one", s.Ended())
	a.DropExpired(time.Now().Add(time.Hour)) // it is kept until the other node has told
	_, err = a.Create(t.Context(), me, &protocol.SessionCreate{Name: "build"})
	testkit.WantCode(t, err, protocol.SessionExists)
	m.PeerGone()
	a.create(protocol.SessionCreate{Name: "build"})
	a.DropExpired(time.Now().Add(time.Hour))
	if a.Has(s.ID()) || len(a.all()) != 1 {
		t.Error("the session is not forgotten")
	}
}

// TestUnfinishedMovesAreThoseOfEarlierGateways: a session that this gateway just receives is not kept before it has its shell.
func TestUnfinishedMovesAreThoseOfEarlierGateways(t *testing.T) {
	a, b := newRig(t, Config{}), newRig(t, Config{})
	s := a.create(protocol.SessionCreate{})
	m, err := s.BeginMove(t.Context(), b.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Stop()
	over := make(chan struct{})
	go func() { // ends when the session has been received; waited for below
		defer close(over)
		arriving, _, err := b.Receive(t.Context(), m.ID, a.Epoch(), export(t, m))
		if err != nil {
			t.Error(err)
			return
		}
		arriving.Drop()
	}()
	for {
		if all := b.Unfinished(); len(all) > 0 {
			t.Fatal("it is to be finished before it was received")
		}
		select {
		case <-over:
			return
		default:
		}
	}
}
