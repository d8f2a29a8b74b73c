package pool

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/protocol"
	"trl/runtime/host"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// generous bounds what a test waits for: far beyond what the machine needs when others use it too.
const generous = 60 * time.Second

const me = "tester" // the principal

// rig is a pool with real shells.
type rig struct {
	*Pool
	t    testing.TB
	host *host.Host
}

func newRig(t testing.TB, c Config) *rig {
	t.Helper()
	return newRigIn(t, c, "auto")
}

func newRigIn(t testing.TB, c Config, isolation string) *rig {
	t.Helper()
	testkit.StartsProcesses(t)
	if c.Retention == 0 {
		c.Retention = time.Minute
	}
	c.BaseEnv = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LANG=C.UTF-8", "TERM=dumb"}, c.BaseEnv...)
	m := metrics.New(prometheus.NewRegistry())
	h, err := host.NewHost(host.Config{Isolation: isolation, Metrics: m, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	p := New(c, host.Local(h), m, zerolog.Nop())
	p.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), generous)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{p, t, h}
}

// eachShell runs f with both shells that the acceptance list asks for.
func eachShell(t *testing.T, f func(t *testing.T, shell string)) {
	for _, shell := range []string{"/bin/sh", "/bin/bash"} {
		t.Run(shell[5:], func(t *testing.T) { f(t, shell) })
	}
}

func (r *rig) create(q protocol.SessionCreate) *Session {
	r.t.Helper()
	s, err := r.Create(r.t.Context(), me, &q)
	if err != nil {
		r.t.Fatalf("create: %v", err)
	}
	return s
}

// start gives s a command.
func start(t testing.TB, s *Session, q protocol.Exec) *Exec {
	t.Helper()
	e, err := s.Exec(&q)
	if err != nil {
		t.Fatalf("exec %q: %v", q.Command, err)
	}
	return e
}

func wait(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(generous):
		t.Fatalf("%s: not in %v", what, generous)
	}
}

func run(t testing.TB, s *Session, q protocol.Exec) protocol.ExecResult {
	t.Helper()
	e := start(t, s, q)
	wait(t, q.Command, e.Done())
	if err := e.Err(); err != nil {
		t.Fatalf("%q did not run: %v", q.Command, err)
	}
	return e.Result(false)
}

// want runs a command and compares what it prints.
func want(t testing.TB, s *Session, command, stdout string) protocol.ExecResult {
	t.Helper()
	r := run(t, s, protocol.Exec{Command: command})
	if r.Stdout != stdout || r.ExitCode == nil {
		t.Fatalf("%q printed %q, want %q; %+v", command, r.Stdout, stdout, r)
	}
	return r
}

func of[T any](v T) *T { return &v }

// survivors counts processes whose command line holds mark.
func survivors(mark string) (n int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), mark) {
			n++
		}
	}
	return n
}

// output waits until a command has printed.
func output(t testing.TB, e *Exec, text string) {
	t.Helper()
	testkit.Eventually(t, "output "+text, func() bool { return strings.Contains(e.Partial().Stdout, text) })
}

// Result is Answer in the form that clients decode.
func (e *Exec) Result(clean bool) protocol.ExecResult {
	a := e.Answer(clean)
	return a.Result()
}

// Partial is PartialAnswer in the form that clients decode.
func (e *Exec) Partial() protocol.ExecResult { a := e.PartialAnswer(); return a.Result() }

// Since is AnswerSince in the form that clients decode.
func (e *Exec) Since(offset int64) (protocol.ExecResult, error) {
	a, err := e.AnswerSince(offset)
	if err != nil {
		return protocol.ExecResult{}, err
	}
	return a.Result(), nil
}

// Create makes a session and returns when its shell answers. The session goes on after ctx is done.
func (p *Pool) Create(ctx context.Context, who string, q *protocol.SessionCreate) (*Session, error) {
	s, _, _, err := p.CreateOrFind(ctx, who, q)
	return s, err
}
