package pool

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/stream"
)

func TestStateOutlivesCommands(t *testing.T) {
	r := newRig(t, Config{})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell, WorkingDir: "/tmp", Env: protocol.Env{"A_B": of("c d"), "HOME": nil}})
		if d := s.Summary(); d.State != "IDLE" || d.WorkingDir != "/tmp" || d.Shell != shell || d.Pid == 0 || !strings.HasPrefix(d.SessionID, "s-") {
			t.Fatalf("data %+v", d)
		}
		want(t, s, `echo "$A_B $PWD ${HOME-none}"; test "$TRL_SESSION_ID" = `+s.ID()+" && echo id", "c d /tmp none\nid\n")
		want(t, s, "cd /usr; X=1; f() { echo F; }", "")
		want(t, s, "pwd; echo $X; f", "/usr\n1\nF\n")
		if i := s.Info(); i.CommandsRun != 3 || i.WorkingDir != "/usr" || i.State != "IDLE" || i.EnvCount == 0 {
			t.Fatalf("info %+v", i)
		}
	})
}

// M1: of two that come at once one gets the turn, the other is told whose it is.
func TestOneOfTwoGetsTheTurn(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	for range 20 {
		var ran, busy atomic.Int32
		var both sync.WaitGroup
		fifo := t.TempDir() + "/f"
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		execs := make(chan *Exec, 2)
		for range 2 {
			both.Go(func() {
				e, err := s.Exec(&protocol.Exec{Command: "read x <" + fifo, WhenBusy: "reject"})
				if err == nil {
					ran.Add(1)
					execs <- e
					return
				}
				if fault := protocol.AsError(err); fault.Code == protocol.SessionBusy && fault.Details["exec_id"] != nil {
					busy.Add(1)
				}
			})
		}
		both.Wait()
		if ran.Load() != 1 || busy.Load() != 1 {
			t.Fatalf("%d ran, %d busy", ran.Load(), busy.Load())
		}
		if st := s.Info().State; st != "RUNNING" {
			t.Fatalf("state %s", st)
		}
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(f, "go")
		f.Close()
		wait(t, "the one with the turn", (<-execs).Done())
		if st := s.Info().State; st != "IDLE" {
			t.Fatalf("state %s after the result", st)
		}
	}
}

// D12: commands queue in order; 64 wait, the 65th is refused with the id of the one that runs.
func TestQueueIsFIFOAndBounded(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	first := start(t, s, protocol.Exec{Command: "read x", InteractiveStdin: true})
	var all []*Exec
	for i := range 64 {
		all = append(all, start(t, s, protocol.Exec{Command: fmt.Sprintf("n=$n,%d; echo $n", i)}))
	}
	_, err := s.Exec(&protocol.Exec{Command: "true"})
	if d := testkit.WantCode(t, err, protocol.SessionBusy).Details; d["exec_id"] != first.ID() || d["queue_length"] != 64 {
		t.Fatalf("details %v", d)
	}
	done, was := all[10].Cancel(nil)
	if wait(t, "withdrawn", done); !was {
		t.Fatal("nothing withdrawn")
	}
	if x := all[10].Exit(); !x.Cancelled || x.ExitCode == nil || *x.ExitCode != 143 || x.Signal != "TERM" {
		t.Fatalf("withdrawn: %+v", x)
	}
	all = append(slices.Delete(all, 10, 11), start(t, s, protocol.Exec{Command: "n=$n,64; echo $n"})) // its place is free
	if _, err := first.Input(stream.Anywhere, []byte("x\n"), true); err != nil {
		t.Fatal(err)
	}
	text := ""
	for i, e := range all {
		wait(t, "queued", e.Done())
		n := i
		if i >= 10 {
			n++
		}
		text += fmt.Sprintf(",%d", n)
		if got := e.Result(false).Stdout; got != text+"\n" {
			t.Fatalf("command %d printed %q, want %q", i, got, text)
		}
	}
	if was := func() bool { _, was := all[0].Cancel(nil); return was }(); was {
		t.Fatal("cancelled what has ended")
	}
}

func TestCancelKeepsState(t *testing.T) {
	r := newRig(t, Config{})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell})
		want(t, s, "X=keep", "")
		e := start(t, s, protocol.Exec{Command: "echo part; sleep 71001"})
		output(t, e, "part")
		done, was := e.Cancel(nil)
		wait(t, "cancel", done)
		x := e.Result(false)
		if !was || !x.Cancelled || x.TimedOut || x.Stdout != "part\n" {
			t.Fatalf("%v %+v", was, x)
		}
		if survivors("sleep 71001") != 0 {
			t.Fatal("survivors")
		}
		want(t, s, "echo $X", "keep\n")
		e = start(t, s, protocol.Exec{Command: "trap 'echo int; exit 3' INT; sleep 71001; echo after"})
		testkit.Eventually(t, "sleep runs", func() bool { return survivors("sleep 71001") > 0 })
		told, _ := e.Signal(syscall.SIGINT)
		if got := <-told; got.Processes != 2 { // the sleep, and the shell, which has a trap
			t.Fatalf("%+v", got)
		}
		e.Cancel(nil)
		wait(t, "end", e.Done())
	})
}

// E9, E8: which timeout is in force, and what it looks like.
func TestTimeoutInForce(t *testing.T) {
	free := newRig(t, Config{}).create(protocol.SessionCreate{}) // no maximum
	r := newRig(t, Config{DefaultTimeout: 50 * time.Second, MaxTimeout: 100 * time.Second})
	plain := r.create(protocol.SessionCreate{})
	own := r.create(protocol.SessionCreate{Timeout: of(protocol.Seconds(7))})
	none := r.create(protocol.SessionCreate{Timeout: of(protocol.Seconds(0))})
	long := r.create(protocol.SessionCreate{Timeout: of(protocol.Seconds(200))})
	for _, c := range []struct {
		s    *Session
		ask  *protocol.Seconds
		want protocol.Seconds
	}{
		{plain, nil, 50}, {plain, of(protocol.Seconds(0)), 100}, {plain, of(protocol.Seconds(1e15)), 100}, {plain, of(protocol.Seconds(40.5)), 40.5},
		{own, nil, 7}, {none, nil, 100}, {long, nil, 100}, {own, of(protocol.Seconds(0)), 100},
		{free, nil, 0}, {free, of(protocol.Seconds(0)), 0}, {free, of(protocol.Seconds(1e9)), 86400},
	} {
		if x := run(t, c.s, protocol.Exec{Command: ":", Timeout: c.ask}); x.TimeoutS != c.want || x.TimedOut {
			t.Errorf("asked for %v: %v in force, want %v", c.ask, x.TimeoutS, c.want)
		}
	}
	counts := map[string]float64{"ok": 8}
	timesOut := func(outcome string, set func(*protocol.Exec, *protocol.Seconds)) (x protocol.ExecResult) {
		for limit := protocol.Seconds(.2); x.Stdout == "" && limit < 30; limit *= 4 { // on a busy machine it may be over before the output
			q := protocol.Exec{Command: "echo a; sleep 71002"}
			set(&q, &limit)
			x = run(t, plain, q)
			counts[outcome]++
		}
		return x
	}
	x := timesOut("timeout", func(q *protocol.Exec, limit *protocol.Seconds) { q.Timeout = of(*limit) })
	if !x.TimedOut || x.TimeoutKind != "hard" || x.Cancelled || x.Stdout != "a\n" || *x.ExitCode == 0 {
		t.Errorf("hard: %+v", x)
	}
	x = timesOut("no_output", func(q *protocol.Exec, limit *protocol.Seconds) { q.NoOutputTimeout = of(*limit) })
	if !x.TimedOut || x.TimeoutKind != "no_output" || x.Stdout != "a\n" {
		t.Errorf("no_output: %+v", x)
	}
	for outcome, n := range counts {
		if got := testutil.ToFloat64(r.metrics.Execs.WithLabelValues(outcome)); got != n {
			t.Errorf("%v commands counted as %s, want %v", got, outcome, n)
		}
	}
}

// D5 with on_shell_exit terminate, M4: the result first, then TERMINATED once, and nothing more.
func TestShellExitTerminates(t *testing.T) {
	r := newRig(t, Config{})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell, OnShellExit: "terminate"})
		w := s.Watch()
		defer w.Close()
		gate := filepath.Join(t.TempDir(), "gate")
		e := start(t, s, protocol.Exec{Command: "while [ ! -e " + gate + " ]; do sleep 0.01; done; exit 7"})
		late := start(t, s, protocol.Exec{Command: "echo never"}) // waits for its turn
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wait(t, "exit", e.Done())
		if x := e.Exit(); x.ExitCode == nil || *x.ExitCode != 7 || x.ShellRestored {
			t.Fatalf("%+v", x)
		}
		wait(t, "end", s.Ended())
		wait(t, "late one", late.Done())
		testkit.WantCode(t, late.Err(), protocol.SessionTerminated)
		if i := s.Info(); i.State != "TERMINATED" || i.Reason != protocol.ReasonShellExited || i.TerminatedAt == nil || i.Pid != 0 {
			t.Fatalf("info %+v", i)
		}
		_, err := s.Exec(&protocol.Exec{Command: "true"})
		if d := testkit.WantCode(t, err, protocol.SessionTerminated).Details; d["reason"] != protocol.ReasonShellExited {
			t.Fatalf("details %v", d)
		}
		var seen []string
		for {
			ev, err := w.Next(t.Context())
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			name := ev.Name
			if st, ok := ev.Data.(protocol.SessionState); ok {
				name += " " + st.To + string(st.Reason)
			}
			seen = append(seen, name)
		}
		if got := strings.Join(seen, ", "); got != "session.state RUNNING, exec.started, exec.exit, session.state TERMINATEDshell_exited" {
			t.Fatalf("events: %s", got)
		}
	})
}

func TestShellExitIsRestored(t *testing.T) {
	r := newRig(t, Config{})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell})
		want(t, s, "cd /usr; X=1", "")
		if x := run(t, s, protocol.Exec{Command: "exit 7"}); !x.ShellRestored || *x.ExitCode != 7 {
			t.Fatalf("%+v", x)
		}
		want(t, s, "pwd; echo $X", "/usr\n1\n")
		for rest := 5 * snapshotDelay; ; rest *= 4 { // what is killed while idle has its last snapshot; a busy machine needs a longer rest for it
			time.Sleep(rest)
			pid := s.Info().Pid
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "another shell", func() bool { p := s.Info().Pid; return p != pid && p != 0 })
			x := run(t, s, protocol.Exec{Command: "pwd; echo $X"})
			if !x.ShellRestored {
				t.Errorf("nobody is told: %+v", x)
			}
			if x.Stdout == "/usr\n1\n" {
				break
			}
			if rest > generous/6 {
				t.Fatalf("after a rest of %v: %q", rest, x.Stdout)
			}
			want(t, s, "cd /usr; X=1", "")
		}
		if x := want(t, s, "pwd; echo $X", "/usr\n1\n"); x.ShellRestored || x.StateLost != nil {
			t.Errorf("told twice: %+v", x)
		}
	})
}

// What was lost with a shell that died while no command ran is told with the next result, and with no other.
func TestLostWhileIdleIsTold(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{Shell: "/bin/dash"})
	for rest := 5 * snapshotDelay; ; rest *= 4 { // without a rest, all would be lost; a busy machine needs a longer one
		want(t, s, "f() { :; }; X=1", "")
		time.Sleep(rest)
		for range 2 { // the second one before anybody was told of the first
			pid := s.Info().Pid
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "another shell", func() bool { p := s.Info().Pid; return p != pid && p != 0 })
		}
		e := start(t, s, protocol.Exec{Command: ":", WorkingDir: "/no/such"})
		wait(t, "refusal", e.Done())
		testkit.WantCode(t, e.Err(), protocol.WorkingDirNotFound)
		x := run(t, s, protocol.Exec{Command: ":"})
		if x.ShellRestored && slices.Equal(x.StateLost, []string{"functions"}) {
			break
		}
		if !x.ShellRestored || rest > generous/6 {
			t.Fatalf("after a rest of %v: %v, lost %q", rest, x.ShellRestored, x.StateLost)
		}
	}
	if x := run(t, s, protocol.Exec{Command: ":"}); x.ShellRestored || x.StateLost != nil {
		t.Errorf("told twice: %q", x.StateLost)
	}
}

func TestResetGivesAFreshShell(t *testing.T) {
	r := newRig(t, Config{})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell, WorkingDir: "/usr", Env: protocol.Env{"E": of("v")}})
		want(t, s, "cd /tmp; X=1; E=2; sleep 71003 &", "")
		p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "trap '' TERM; sleep 71003"})
		if err != nil {
			t.Fatal(err)
		}
		running := start(t, s, protocol.Exec{Command: "trap '' TERM; sleep 71003; sleep 71003"})
		waiting := start(t, s, protocol.Exec{Command: "echo never"})
		testkit.Eventually(t, "the first one runs", func() bool { return s.Info().State == "RUNNING" })
		if err := s.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, e := range []*Exec{running, waiting} {
			if wait(t, "cancelled", e.Done()); !e.Exit().Cancelled || e.Err() != nil {
				t.Fatalf("%+v", e.Exit())
			}
		}
		wait(t, "process", p.Done())
		if n := survivors("sleep 71003"); n != 0 {
			t.Fatalf("%d survivors", n)
		}
		if st := s.Info().State; st != "IDLE" {
			t.Fatalf("state %s", st)
		}
		want(t, s, `echo "$PWD ${X-none} $E"; test "$TRL_SESSION_ID" = `+s.ID()+" && echo id", "/usr none v\nid\n")
		if n := s.Info().CommandsRun; n != 3 {
			t.Fatalf("%d commands", n)
		}
	})
}

// G1: nothing of a session outlives its end, and every call gets the same answer.
func TestDestroyLeavesNothing(t *testing.T) {
	r := newRig(t, Config{})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell})
		want(t, s, `(setsid sh -c 'trap "" TERM HUP; sleep 71004 & sleep 71004' &); nohup sleep 71004 >/dev/null 2>&1 &`, "")
		if _, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "sleep 71004"}); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "all run", func() bool { return survivors("sleep 71004") >= 4 })
		running := start(t, s, protocol.Exec{Command: "echo part; sleep 71004"})
		output(t, running, "part")
		waiting := start(t, s, protocol.Exec{Command: "echo never"})
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				d, err := s.Destroy(t.Context(), &protocol.SessionDestroy{Grace: of(protocol.Seconds(.3))})
				if err != nil || d.State != "TERMINATED" || d.Reason != protocol.ReasonClient || d.SessionID != s.ID() {
					t.Errorf("%+v %v", d, err)
				}
				if n := survivors("sleep 71004"); n != 0 {
					t.Errorf("%d survivors", n)
				}
			})
		}
		all.Wait()
		if x := running.Result(false); !x.Cancelled || x.Stdout != "part\n" {
			t.Errorf("running: %+v", x)
		}
		testkit.WantCode(t, waiting.Err(), protocol.SessionTerminated)
		if d, err := s.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil || d.Reason != protocol.ReasonClient {
			t.Errorf("again: %+v %v", d, err)
		}
		if e, err := r.FindExec(me, running.ID()); err != nil || e.Result(false).Stdout != "part\n" {
			t.Errorf("its exec cannot be read any more: %v", err)
		}
		_, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "true"})
		testkit.WantCode(t, err, protocol.SessionTerminated)
		testkit.WantCode(t, s.Reset(t.Context()), protocol.SessionTerminated)
		testkit.WantCode(t, s.Rename("x"), protocol.SessionTerminated)
	})
}

// TestUpdateChangesWhatIsNamed: within the server's bounds; what is not named stays, also where a bound is lower by now.
func TestUpdateChangesWhatIsNamed(t *testing.T) {
	c := Config{IdleTimeout: time.Minute, MaxIdle: time.Hour, DefaultTimeout: time.Minute, MaxTimeout: time.Hour}
	r := newRig(t, c)
	s := r.create(protocol.SessionCreate{Labels: map[string]string{"a": "1"}, Timeout: of(protocol.Seconds(3000)), IdleTimeout: of(protocol.Seconds(3000))})
	running := start(t, s, protocol.Exec{Command: "sleep 300"})
	c.MaxIdle, c.MaxTimeout = 40*time.Minute, 40*time.Minute
	r.Configure(c)
	for _, x := range []struct {
		q             protocol.SessionUpdate
		labels        map[string]string
		timeout, idle protocol.Seconds
	}{
		{protocol.SessionUpdate{}, map[string]string{"a": "1"}, 3000, 3000},
		{protocol.SessionUpdate{Labels: &map[string]string{"b": "2"}}, map[string]string{"b": "2"}, 3000, 3000},
		{protocol.SessionUpdate{Timeout: of(protocol.Seconds(7))}, map[string]string{"b": "2"}, 7, 3000},
		{protocol.SessionUpdate{IdleTimeout: of(protocol.Seconds(0))}, map[string]string{"b": "2"}, 7, 2400},
		{protocol.SessionUpdate{Labels: &map[string]string{}, Timeout: of(protocol.Seconds(5000)), IdleTimeout: of(protocol.Seconds(9))}, map[string]string{}, 2400, 9},
	} {
		if err := s.Update(&x.q); err != nil {
			t.Fatal(err)
		}
		if i := s.Info(); !maps.Equal(i.Labels, x.labels) || i.Timeout != x.timeout || i.IdleTimeout != x.idle {
			t.Errorf("after %+v: %v, %v, %v", x.q, i.Labels, i.Timeout, i.IdleTimeout)
		}
	}
	if running.timeout != 3000*time.Second {
		t.Errorf("the command that runs has %v", running.timeout)
	}
	running.Cancel(of(time.Duration(0)))
	wait(t, "the end of the command", running.Done())
	if e := start(t, s, protocol.Exec{Command: ":"}); e.timeout != 40*time.Minute {
		t.Errorf("a later one has %v", e.timeout)
	} else {
		wait(t, "the end of the command", e.Done())
	}
	if got := r.List(me, &protocol.SessionList{Label: "b=2"}); len(got) != 0 {
		t.Errorf("listed by an old label: %v", got)
	}
	if n := r.EndIdle(time.Now().Add(10 * time.Second)); n != 1 {
		t.Errorf("%d ended", n)
	}
	wait(t, "end", s.Ended())
	testkit.WantCode(t, s.Update(&protocol.SessionUpdate{}), protocol.SessionTerminated)
}

// G6, J10: what works is not idle, whoever looks at it or not.
func TestIdleSessionsEnd(t *testing.T) {
	r := newRig(t, Config{IdleTimeout: time.Minute, MaxIdle: time.Hour})
	s := r.create(protocol.SessionCreate{})
	never := r.create(protocol.SessionCreate{IdleTimeout: of(protocol.Seconds(0))}) // is above the maximum
	if never.settings.Load().Idle != time.Hour {
		t.Errorf("idle %v", never.settings.Load().Idle)
	}
	running := r.create(protocol.SessionCreate{})
	e := start(t, running, protocol.Exec{Command: "read x", InteractiveStdin: true})
	process := r.create(protocol.SessionCreate{})
	p, err := process.StartProcess(t.Context(), &protocol.ProcessStart{Command: "sleep 71005"})
	if err != nil {
		t.Fatal(err)
	}
	job := r.create(protocol.SessionCreate{})
	want(t, job, "sleep 71005 & echo", "\n")
	touched := r.create(protocol.SessionCreate{})

	w := s.Watch()
	defer w.Close()
	now := time.Now()
	s.lastActive.Store(int64(now.Sub(idleBase))) // what is above takes its time on a busy machine
	r.WarnExpiring(now.Add(29 * time.Second))
	r.WarnExpiring(now.Add(31 * time.Second))
	r.WarnExpiring(now.Add(32 * time.Second))
	touched.lastActive.Store(int64(now.Add(time.Minute).Sub(idleBase)))
	_ = s.Info()
	if n := r.EndIdle(now.Add(59 * time.Second)); n != 0 {
		t.Errorf("%d ended early", n)
	}
	if n := r.EndIdle(now.Add(61 * time.Second)); n != 1 {
		t.Errorf("%d ended", n)
	}
	wait(t, "end", s.Ended())
	if i := s.Info(); i.Reason != protocol.ReasonIdle {
		t.Errorf("reason %s", i.Reason)
	}
	ev, err := w.Next(t.Context())
	if x, ok := ev.Data.(protocol.SessionExpiring); err != nil || !ok || x.In < 20 || x.In > 30 {
		t.Errorf("first event %+v %v", ev, err)
	}
	if ev, err = w.Next(t.Context()); err != nil || ev.Name != "session.state" {
		t.Errorf("second event %+v %v: warned more than once?", ev, err)
	}
	if n := r.EndIdle(now.Add(90 * time.Second)); n != 0 { // what worked was touched a moment ago
		t.Errorf("%d ended although they worked", n)
	}
	if _, err := e.Input(stream.Anywhere, nil, true); err != nil {
		t.Error(err)
	}
	if err := p.Kill(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
	wait(t, "exec", e.Done())
	if n := r.EndIdle(time.Now().Add(61 * time.Second)); n != 2 {
		t.Errorf("%d ended after their work, want 2", n)
	}
}

// TestClockThatIsSet: idleness is what passed, not what the wall clock says.
func TestClockThatIsSet(t *testing.T) {
	r := newRig(t, Config{IdleTimeout: time.Minute})
	s := r.create(protocol.SessionCreate{})
	now := time.Now()
	*(*uint64)(unsafe.Pointer(&now)) += 3600 << 30 // #nosec G103 -- its first word has the seconds of the wall clock alone, see time.Time
	if ahead := time.Duration(now.UnixNano() - time.Now().UnixNano()); ahead < 59*time.Minute || time.Until(now) > time.Minute {
		t.Fatalf("%v ahead, in %v", ahead, time.Until(now))
	}
	if n := r.EndIdle(now); n != 0 {
		t.Error("it was ended")
	}
	if at := s.Info().LastActiveAt; time.Since(at) > time.Minute || time.Until(at) > 0 {
		t.Errorf("active at %v", at)
	}
}

// TestViewerOfALetGoTerminal: a client that is still at a terminal which was let go comes to what the request_key gives it as somebody new.
func TestViewerOfALetGoTerminal(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	open := &protocol.TermOpen{Command: "true", Cols: 80, Rows: 24, RequestKey: "k"}
	first, err := s.OpenTerminal(t.Context(), open)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "the terminal's end", first.Done())
	before := first.AddViewer(AttachRequest{Control: true})
	s.forget(time.Now().Add(time.Hour), time.Now().Add(time.Hour))
	again, err := s.OpenTerminal(t.Context(), open)
	if err != nil || again.ID() != first.ID() {
		t.Fatalf("%v %v", again, err)
	}
	v := again.AddViewer(AttachRequest{Control: true, Replaces: before})
	if err := again.Resize(before, 90, 30); err != nil {
		t.Error(err)
	}
	before.Leave()
	v.Leave()
	before.Leave()
	if n := again.Info().Viewers; n != 0 {
		t.Errorf("%d viewers stay", n)
	}
}

// TestACommandInTimeIsNotEnded: what comes to a session while it is looked whether that rests is not ended with it.
func TestACommandInTimeIsNotEnded(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{IdleTimeout: of(protocol.Seconds(0.001))})
	now := time.Now().Add(time.Hour)
	if !s.isIdleFor(now, s.idleLimit()) {
		t.Fatal("it does not rest")
	}
	ends := filepath.Join(t.TempDir(), "ends")
	e := start(t, s, protocol.Exec{Command: "while [ ! -e " + ends + " ]; do sleep 0.01; done"})
	if s.endIfIdle(now) {
		t.Error("it was ended")
	}
	if err := os.WriteFile(ends, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wait(t, "the command", e.Done())
	if x := e.Exit(); x.Cancelled {
		t.Errorf("%+v", x)
	}
	if !s.endIfIdle(now) {
		t.Error("it is not ended when it rests")
	}
}

// TestOrphanedSessionIsTiedAgain: a client that comes back has the idleness that it asked for.
func TestOrphanedSessionIsTiedAgain(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{OnDisconnect: "destroy", IdleTimeout: of(protocol.Seconds(3600))})
	s.connLost.Store(true) // as Recover leaves it
	if s.idleLimit() != lostConnIdle {
		t.Errorf("%v", s.idleLimit())
	}
	s.BindConn()
	if s.idleLimit() != time.Hour {
		t.Errorf("%v", s.idleLimit())
	}
}
