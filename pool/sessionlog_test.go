package pool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/pool/entry"
	"trl/pool/ids"
	"trl/protocol"
	"trl/runtime/host"
	"trl/runtime/own"
	"trl/runtime/sessionlog"
	"trl/runtime/stream"
)

// remember is what another gateway would know of s now.
func remember(t *testing.T, s *Session) (*entry.Log, error) {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(s.shell.SessionLog().Fd()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	m := &entry.Log{}
	l, err := sessionlog.Open(fd, m.ReadLine)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	defer l.Close()
	return m, nil
}

// TestDirOfAnyNameIsWrittenDown: also one whose name is no text.
func TestDirOfAnyNameIsWrittenDown(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	run(t, s, protocol.Exec{Command: `d=$(printf '` + filepath.Join(t.TempDir(), `\377`) + `') && mkdir "$d" && cd "$d"`})
	if dir := s.Info().WorkingDir; !strings.HasSuffix(dir, "\xff") {
		t.Fatalf("in %q", dir)
	}
	m, err := remember(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Work) != 1 || m.Work[0].Done == nil {
		t.Errorf("%+v", m.Work)
	}
}

// TestStdinGivenBeforeTheShell: a command that came while its session was being made waits with its stdin.
func TestStdinGivenBeforeTheShell(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // #nosec G302 -- a session's shell is in it
		t.Fatal(err)
	}
	sh, hold := filepath.Join(dir, "bash"), filepath.Join(dir, "hold")
	if err := os.WriteFile(sh, []byte("#!/bin/sh\nwhile [ -e '"+hold+"' ]; do sleep 0.01; done\nexec /bin/bash \"$@\"\n"), 0o700); err != nil { // #nosec G306 -- is to be run
		t.Fatal(err)
	}
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{Shells: []string{sh}, DefaultShell: sh})
	s, err := r.Find(me, "", "")
	if err != nil {
		t.Fatal(err)
	}
	first := start(t, s, protocol.Exec{Command: "echo here; until [ -e " + hold + " ]; do sleep 0.01; done"})
	next := start(t, s, protocol.Exec{Command: "cat", Stdin: of("kept")})
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	output(t, first, "here")
	m, err := remember(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Work) != 2 || m.Work[0].Exec.Stdin != nil || len(m.Work[1].Exec.Stdin) == 0 {
		t.Errorf("%+v", m.Work)
	}
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if wait(t, "cat", next.Done()); next.Result(false).Stdout != "kept" {
		t.Errorf("%+v", next.Result(false))
	}
}

// TestNothingBehindAGap: what could not be written down is not read over.
func TestNothingBehindAGap(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	fd, err := unix.FcntlInt(uintptr(s.sessionLog.Fd()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	s.mu.Lock()
	s.appendLog(entry.Entry{Unwanted: strings.Repeat("x", 16<<20)})
	s.mu.Unlock()
	want(t, s, "echo goes on", "goes on\n")
	if _, err := sessionlog.Open(fd, nil); !errors.Is(err, sessionlog.ErrNotSessionLog) {
		t.Errorf("the next gateway reads on: %v", err)
	}
}

// TestSessionLogOfProcessesAlone: what is written down of a session that runs no commands does not grow for ever, and is whole.
func TestSessionLogOfProcessesAlone(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	begin := func(text string, key string) *Process {
		p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: text + " #" + strings.Repeat("x", 8<<10), RequestKey: key})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	lives := begin("sleep 1000", "")
	forgotten := begin("exit 1", "k")
	wait(t, "exit", forgotten.Done())
	r.DropExpired(time.Now().Add(2 * time.Minute))
	ended := map[string]bool{}
	grow := func() *entry.Log {
		t.Helper()
		for !s.sessionLog.ShouldCompact() {
			p := begin("exit 3", "")
			wait(t, "exit", p.Done())
			ended[p.ID()] = true
		}
		r.DropExpired(time.Now())
		testkit.Eventually(t, "it is written anew", func() bool { return !s.sessionLog.ShouldCompact() })
		m, err := remember(t, s)
		if err != nil {
			t.Fatal(err)
		}
		processes := slices.DeleteFunc(slices.Clone(m.Work), func(x *entry.LoggedWork) bool { return x.Process == nil })
		if len(processes) != len(ended)+1 || len(m.Tombstones) != 1 || m.Tombstones[0].Stream != forgotten.stream || m.Session == nil || m.Shell == nil {
			t.Errorf("%d processes, %+v", len(processes), m)
		}
		return m
	}
	m := grow()
	for _, x := range m.Work {
		id := strings.TrimPrefix(x.Request().Stream, ids.StreamPrefix)
		switch {
		case id == lives.ID() && x.Exited == nil:
		case ended[id] && x.Exited != nil && x.Exited.Code == 3:
		default:
			t.Errorf("%s: %+v", id, x.Exited)
		}
	}
	want(t, s, "echo goes on", "goes on\n")

	e, err := s.Stream(&protocol.Exec{Command: "env --ignore-signal=TERM --ignore-signal=INT sh -c 'echo up; read line'", InteractiveStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it has begun", func() bool { return e.Journal().Size() > 0 })
	runs := func(m *entry.Log, cancelled bool) {
		t.Helper()
		if x := m.Find('x', e.ID()); x == nil || x.Begun == nil || x.Done != nil || cancelled != (x.Cancel != nil) || m.CommandsBegun+m.Session.Commands != 2 {
			t.Errorf("%+v, %d and %d commands", x, m.Session.Commands, m.CommandsBegun)
		}
	}
	runs(grow(), false)
	long := time.Hour
	e.Cancel(&long)
	runs(grow(), true)
	if _, err := e.Input(stream.Anywhere, []byte("it\n"), true); err != nil {
		t.Fatal(err)
	}
	wait(t, "exit", e.Done())
	m, err = remember(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if x := m.Find('x', e.ID()); x == nil || x.Done == nil || m.CommandsBegun+m.Session.Commands != 2 {
		t.Errorf("%+v", m)
	}
}

// TestNonsenseCostsOneSession: a session whose session log makes no sense is lost, and no other.
func TestNonsenseCostsOneSession(t *testing.T) {
	for _, nonsense := range []string{
		`{"exec":{"stream":"x"}}`, `{"exec":{"stream":""},"begun":{"id":""}}`, `{"process":{"stream":"p"}}`, `{"terminal":{"stream":"st-t-"}}`, `{"exec":7}`, `"`,
	} {
		r := newRig(t, Config{})
		id := ids.New("", 's', r.epoch, "", ids.RandomLen)
		group, err := host.Local(r.host).Group(id)
		if err != nil {
			t.Fatal(err)
		}
		l, err := sessionlog.New()
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{nonsense, `{"session":{"tag":"aaaaaa","owner":"tester","shell":"/bin/sh","dir":"/"}}`, `{"shell":{"pid":1}}`, `{"begun":{"id":"y"}}`} {
			if _, err := l.Append([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		fd, err := unix.FcntlInt(uintptr(l.Fd()), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		r.Recover([]own.HeldSession{{ID: id, Group: group, Held: map[int]int{1: fd}}})
		r.Recovered()
		if _, err := r.Find(me, id, ""); err == nil {
			t.Errorf("%s: the session is there", nonsense)
		}
		want(t, r.create(protocol.SessionCreate{}), "echo others are", "others are\n")
	}
}

// TestForgottenAfterTheStop: what a session retained may be let go of while the stop still waits for clients, when its session log
// is closed. That is no fault.
func TestForgottenAfterTheStop(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	run(t, s, protocol.Exec{Command: ":"})
	if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.DropExpired(time.Now().Add(time.Hour))
	told := true
	s.logFailure.Do(func() { told = false })
	if told {
		t.Error(`"session is no longer written down" was logged`)
	}
}
