package survival

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"trl/client"
	"trl/internal/rig"
	"trl/internal/testkit"
)

// relay passes connections on to a gateway, which may be exchanged.
type relay struct {
	net.Listener

	mu   sync.Mutex
	to   string              // guarded by mu; "": connections are closed at once
	left int                 // guarded by mu; how many more answers pass; -1: all
	open map[net.Conn]string // guarded by mu; both ends of each connection
}

func newRelay(t *testing.T, to string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to, left: -1, open: map[net.Conn]string{}}
	var running sync.WaitGroup
	running.Go(func() { // accepts; ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { r.pass(c) }) // ends with the connection
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.pointTo("")
		running.Wait()
	})
	return r
}

func (r *relay) pass(c net.Conn) {
	defer c.Close()
	r.mu.Lock()
	to := r.to
	r.mu.Unlock()
	if to == "" {
		return
	}
	up, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer up.Close()
	r.mu.Lock()
	r.open[c], r.open[up] = to, to
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { r.copy(up, c, false) })
	both.Go(func() { r.copy(c, up, true) })
	both.Wait()
	r.mu.Lock()
	delete(r.open, c)
	delete(r.open, up)
	r.mu.Unlock()
}

func (r *relay) copy(to, from net.Conn, answers bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		r.mu.Lock()
		dropped := answers && r.left == 0
		if answers && r.left > 0 && n > 0 {
			r.left--
		}
		r.mu.Unlock()
		if !dropped && n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// dropAnswers has answers lost after the next few.
func (r *relay) dropAnswers(after int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = after
}

// pointTo cuts all connections; the next ones go to this gateway.
func (r *relay) pointTo(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.left = to, -1
	for c := range r.open {
		c.Close()
	}
}

// TestNothingIsRepeatedInANewEpoch: a request whose answer was lost is sent again with its request_key. The same gateway runs it once. A gateway of
// another epoch, which knows no key, does not run it again, although it has a session of the same name.
func TestNothingIsRepeatedInANewEpoch(t *testing.T) {
	for _, session := range []string{"", "build"} {
		for what, begin := range map[string]func(ctx context.Context, s *client.Session, command string) error{
			"ExecStream": func(ctx context.Context, s *client.Session, command string) error {
				_, err := s.ExecStream(ctx, command, nil)
				return err
			},
			"StartProcess": func(ctx context.Context, s *client.Session, command string) error {
				_, err := s.StartProcess(ctx, command, nil)
				return err
			},
			"OpenTerminal": func(ctx context.Context, s *client.Session, command string) error {
				_, err := s.OpenTerminal(ctx, client.TerminalOptions{Command: command, Cols: 80, Rows: 24})
				return err
			},
		} {
			for _, anew := range []bool{false, true} {
				t.Run(strings.Join([]string{what, "in", session, map[bool]string{false: "same", true: "new"}[anew], "epoch"}, "_"), func(t *testing.T) {
					t.Parallel()
					ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.Patience)
					defer cancel()
					state := filepath.Join(t.TempDir(), "state")
					start := func() *rig.Server {
						g := rig.Gateway(t, "--state-dir", state)
						if session != "" {
							g.Dial(t).Session(object{"name": session})
						}
						return g
					}
					g := start()
					r := newRelay(t, g.Addr)
					c, err := client.Connect(ctx, client.Options{URL: "http://" + r.Addr().String()})
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					s := &c.Session
					if session != "" {
						if s, err = c.GetSession(ctx, session); err != nil {
							t.Fatal(err)
						}
					}
					if _, err := s.Exec(ctx, ":", nil); err != nil { // asks for the id of the default session
						t.Fatal(err)
					}
					r.dropAnswers(0)
					file := filepath.Join(t.TempDir(), "runs")
					runs := func() string { b, _ := os.ReadFile(file); return string(b) }
					done := make(chan error, 1)
					go func() { // waited for below
						done <- begin(ctx, s, "echo run >>"+file+"; sleep 600")
					}()
					testkit.Eventually(t, "the command runs", func() bool { return runs() != "" })
					if anew {
						r.pointTo("")
						g.Stop()
						g = start()
					}
					r.pointTo(g.Addr)
					err = <-done
					lost, ok := errors.AsType[*client.ConnectionLostError](err)
					switch {
					case anew && (!ok || lost.Outcome != client.OutcomeUnknown):
						t.Errorf("in a new epoch: %v", err)
					case !anew && err != nil:
						t.Errorf("in the same epoch: %v", err)
					}
					if got := runs(); got != "run\n" {
						t.Errorf("it ran %q", got)
					}
				})
			}
		}
	}
}
