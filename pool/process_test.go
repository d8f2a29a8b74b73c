package pool

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/stream"
)

func (r *rig) process(s *Session, q protocol.ProcessStart) *Process {
	r.t.Helper()
	p, err := s.StartProcess(r.t.Context(), &q)
	if err != nil {
		r.t.Fatalf("process %q: %v", q.Command, err)
	}
	return p
}

func TestProcessHasTheSessionsState(t *testing.T) {
	r := newRig(t, Config{DefaultTimeout: 100 * time.Millisecond})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell})
		run(t, s, protocol.Exec{Command: "cd /usr; V=var; f() { echo F; }", Timeout: of(protocol.Seconds(generous.Seconds()))})
		w := s.Watch()
		defer w.Close()
		p := r.process(s, protocol.ProcessStart{Command: "pwd; echo $V $E; f; sleep 0.3; read x; echo got-$x; exit 4", Name: "n", Env: protocol.Env{"E": of("env")}, Stdin: "open"})
		if i := s.Info(); i.State != "IDLE" || i.Processes != 1 {
			t.Fatalf("%+v", i)
		}
		if i := p.Info(); i.State != "running" || i.Pid == 0 || i.Name != "n" || i.ExitCode != nil || i.EndedAt != nil {
			t.Fatalf("%+v", i)
		}
		if _, err := p.Input(stream.Anywhere, []byte("x\n"), true); err != nil {
			t.Fatal(err)
		}
		wait(t, "exit", p.Done())
		if i := p.Info(); i.State != "exited" || *i.ExitCode != 4 || i.EndedAt == nil || i.TimedOut || i.OutputBytes != int64(len("/usr\nvar env\nF\ngot-x\n")) {
			t.Fatalf("%+v", i)
		}
		_, err := p.Input(stream.Anywhere, []byte("x"), false)
		testkit.WantCode(t, err, protocol.StdinClosed)
		for _, name := range []string{"process.started", "process.exit"} {
			if ev, err := w.Next(t.Context()); err != nil || ev.Name != name {
				t.Fatalf("event %+v %v, want %s", ev, err, name)
			}
		}
		if all := s.Processes(); len(all) != 1 || all[0] != p || s.Info().Processes != 0 {
			t.Fatal("not listed")
		}
		if err := p.Kill(t.Context(), 0); err != nil {
			t.Errorf("kill of what has ended: %v", err)
		}
		_, err = s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "true", WorkingDir: "/no/such"})
		testkit.WantCode(t, err, protocol.WorkingDirNotFound)
		if s.Info().Processes != 0 {
			t.Error("what did not start is counted")
		}
	})
}

func TestProcessKillAndTimeout(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	p := r.process(s, protocol.ProcessStart{Command: "trap '' TERM; setsid sleep 71020 & sleep 71020; sleep 71020"})
	testkit.Eventually(t, "both run", func() bool { return survivors("sleep 71020") >= 2 })
	if err := p.Kill(t.Context(), 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if n := survivors("sleep 71020"); n != 0 {
		t.Fatalf("%d survivors", n)
	}
	p = r.process(s, protocol.ProcessStart{Command: "sleep 71020"})
	if err := p.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait(t, "signal", p.Done())
	p = r.process(s, protocol.ProcessStart{Command: "echo a; sleep 71020", Timeout: of(protocol.Seconds(.2))})
	wait(t, "timeout", p.Done())
	if i := p.Info(); !i.TimedOut || *i.ExitCode == 0 {
		t.Fatalf("%+v", i)
	}
}

func TestProcessRequestKey(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	q := protocol.ProcessStart{Command: "echo once", RequestKey: "k"}
	p := r.process(s, q)
	if again := r.process(s, q); again != p {
		t.Fatal("started twice")
	}
	wait(t, "exit", p.Done())
	s.forget(time.Now(), time.Now().Add(time.Hour))
	if again := r.process(s, q); again == p || again.ID() != p.ID() || *again.Info().ExitCode != 0 {
		t.Fatal("no tombstone")
	}
	_, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "echo other", RequestKey: "k"})
	testkit.WantCode(t, err, protocol.InvalidParams)
}

func await(t *testing.T, p *Process, u protocol.Until, most time.Duration) protocol.WaitResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	w, err := p.Wait(ctx, u)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWaitForOutput(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	p := r.process(s, protocol.ProcessStart{Command: "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done"})
	if w := await(t, p, protocol.Until{Output: `^line (5|6)$`}, generous); !w.Met || w.Match != "line 5" || w.ExitCode != nil {
		t.Errorf("%+v", w)
	}
	if w := await(t, p, protocol.Until{Output: `\Qline 3`}, generous); !w.Met { // what it quotes has no end
		t.Errorf("%+v", w)
	}
	if w := await(t, p, protocol.Until{Output: "line 3\n"}, generous); !w.Met { // what is there already counts
		t.Errorf("%+v", w)
	}
	if w := await(t, p, protocol.Until{Output: "never"}, 100*time.Millisecond); w.Met || w.Tail != "" {
		t.Errorf("%+v", w)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx, protocol.Until{Output: "never"}); err == nil {
		t.Error("who asked has gone, and got an answer")
	}
	_, err := p.Wait(t.Context(), protocol.Until{Output: "a)(b"})
	testkit.WantCode(t, err, protocol.InvalidParams)
	if err := p.Kill(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}

	p = r.process(s, protocol.ProcessStart{Command: "printf pass; sleep 0.05; printf 'word: '; read x", Stdin: "open"}) // a prompt, in pieces
	if w := await(t, p, protocol.Until{Output: "password: $"}, generous); !w.Met || w.Match != "password: " {
		t.Errorf("%+v", w)
	}
	var w protocol.WaitResult
	for try := 0; try == 0 || w.Met && try < 10; try++ { // on a busy machine the two pieces may be far apart
		p = r.process(s, protocol.ProcessStart{Command: "printf 'line 3'; echo 5; read x", Stdin: "open"}) // the rest makes it another line
		w = await(t, p, protocol.Until{Output: "line 3$"}, 500*time.Millisecond)
	}
	if w.Met {
		t.Errorf("%+v", w)
	}
	p = r.process(s, protocol.ProcessStart{Command: "seq 200000; echo START >&2; seq 100000; printf the-end"})
	if w := await(t, p, protocol.Until{Output: "^START$"}, generous); !w.Met {
		t.Errorf("%+v", w)
	}
	if w := await(t, p, protocol.Until{Output: "the-end"}, generous); !w.Met {
		t.Errorf("%+v", w)
	}
	p = r.process(s, protocol.ProcessStart{Command: "echo starting; read x; echo broken >&2; exit 3", Stdin: "open"}) // F7
	if w := await(t, p, protocol.Until{Output: "starting"}, generous); !w.Met {
		t.Errorf("%+v", w)
	}
	if _, err := p.Input(stream.Anywhere, []byte("\n"), true); err != nil {
		t.Fatal(err)
	}
	if w := await(t, p, protocol.Until{Output: "ready"}, generous); w.Met || *w.ExitCode != 3 || w.Tail != "starting\nbroken\n" {
		t.Errorf("%+v", w)
	}
	if w := await(t, p, protocol.Until{Exit: true}, generous); !w.Met || *w.ExitCode != 3 {
		t.Errorf("%+v", w)
	}
}

func TestWaitForPortAndHTTP(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	p := r.process(s, protocol.ProcessStart{Command: "sleep 71021"})
	port := testkit.Port(t)
	if w := await(t, p, protocol.Until{Port: port}, 150*time.Millisecond); w.Met {
		t.Fatal("a closed port is open")
	}
	met := make(chan protocol.WaitResult, 1)
	go func() { w, _ := p.Wait(context.Background(), protocol.Until{Port: port}); met <- w }()
	status := http.StatusServiceUnavailable
	var mu sync.Mutex
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	}))
	srv.Listener.Close()
	var err error
	if srv.Listener, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer srv.Close()
	if w := <-met; !w.Met {
		t.Errorf("port: %+v", w)
	}
	for _, not := range []int{http.StatusServiceUnavailable, http.StatusNotFound, http.StatusBadRequest} {
		mu.Lock()
		status = not
		mu.Unlock()
		if w := await(t, p, protocol.Until{HTTP: srv.URL}, 200*time.Millisecond); w.Met {
			t.Errorf("%d is ready", not)
		}
	}
	mu.Lock()
	status = http.StatusFound
	mu.Unlock()
	if w := await(t, p, protocol.Until{HTTP: srv.URL}, generous); !w.Met {
		t.Errorf("http: %+v", w)
	}
	go func() { w, _ := p.Wait(context.Background(), protocol.Until{HTTP: "http://127.0.0.1:1/"}); met <- w }()
	if err := p.Kill(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if w := <-met; w.Met || w.ExitCode == nil || w.Signal == "" {
		t.Errorf("the process ended first: %+v", w)
	}
}

func TestWaitsAreBounded(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	p := r.process(s, protocol.ProcessStart{Command: "sleep 71022"})
	var all sync.WaitGroup
	for range maxWaits {
		all.Go(func() {
			if w, err := p.Wait(context.Background(), protocol.Until{Exit: true}); err != nil || !w.Met {
				t.Errorf("%+v %v", w, err)
			}
		})
	}
	testkit.Eventually(t, "all wait", func() bool { return p.waitCount.Load() == maxWaits })
	_, err := p.Wait(t.Context(), protocol.Until{Exit: true})
	testkit.WantCode(t, err, protocol.LimitExceeded)
	if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if i := p.Info(); i.State != "exited" || i.ExitCode == nil {
		t.Errorf("%+v", i)
	}
	if p.Signal(syscall.SIGTERM) != nil || p.Kill(t.Context(), 0) != nil {
		t.Error("a process of the past")
	}
}

// A long line is searched without searching all of it again for each piece.
func TestSearchAcrossPieces(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	p := r.process(s, protocol.ProcessStart{Command: fmt.Sprintf("printf '%s'; sleep 0.05; printf 'NEE'; sleep 0.05; echo DLE; sleep 71023", strings.Repeat("x", 3*8<<10))})
	if w := await(t, p, protocol.Until{Output: "xNEEDLE$"}, generous); !w.Met {
		t.Errorf("%+v", w)
	}
}
