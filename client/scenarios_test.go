package client_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"trl/client"
	"trl/internal/testkit"
)

// scenario is one of testdata/scenarios.json; the README beside it says what the steps mean. interpreter_test.go runs them.
type scenario struct {
	Name    string         `json:"name"`
	Gateway map[string]any `json:"gateway"` // what /start gets; nil: a gateway that is shared
	Slow    bool           `json:"slow"`
	Steps   []step         `json:"steps"`
}

// clientRig is a running clientrig, the program that starts gateways for the tests of all clients.
type clientRig struct {
	url   string
	stdin io.Closer // the rig ends when it closes, at the end of this program at the latest
}

// theRig is built and started by the first test that needs it.
var theRig = sync.OnceValues(func() (*clientRig, error) {
	dir, err := os.MkdirTemp("", "trl-clientrig-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the rig runs on without its file
	bin := filepath.Join(dir, "clientrig")
	if out, err := exec.Command("go", "build", "-o", bin, "trl/internal/clientrig").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	cmd := exec.Command(bin)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := testkit.Start(cmd); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	return &clientRig{strings.TrimSpace(line), stdin}, err
})

func startRig(t testing.TB) *clientRig {
	t.Helper()
	r, err := theRig()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// post sends a request to the rig.
func (r *clientRig) post(path string, body, into any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	one := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // leaves no goroutine behind
	resp, err := one.Post(r.url+path, "application/json", bytes.NewReader(b))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("clientrig %s: %s", path, answer)
	}
	return json.Unmarshal(answer, into)
}

// gateway is a gateway of the rig, behind its proxy.
type gateway struct {
	rig    *clientRig
	ID     string            `json:"id"`
	URL    string            `json:"url"`
	Direct string            `json:"direct"`
	Tokens map[string]string `json:"tokens"`
}

func (r *clientRig) newGateway(how map[string]any) (*gateway, error) {
	g := &gateway{rig: r}
	return g, r.post("/start", how, g)
}

func (r *clientRig) start(t testing.TB, how map[string]any) *gateway {
	t.Helper()
	g, err := r.newGateway(how)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// startRelay starts a gateway that owns no session.
func (r *clientRig) startRelay(t testing.TB) *gateway {
	t.Helper()
	return r.start(t, map[string]any{"relay": true})
}

func (g *gateway) do(action string) (any, error) {
	var answer any
	err := g.rig.post("/"+g.ID+"/"+action, struct{}{}, &answer)
	return answer, err
}

// TestScenarios runs what every client of ours must do. -run 'TestScenarios/gap' picks some by a part of the name.
func TestScenarios(t *testing.T) {
	testkit.StartsProcesses(t)
	testkit.TakesLong(t)
	runScenarios(t, allScenarios(t), func(t *testing.T, s scenario, g *gateway) { runScenario(t, s, g, &run{gateway: g}) })
}

// longOverARelay are scenarios that take some seconds. TRL_TEST_RELAY=1 makes TestScenarios run them all through gateways that own no session.
var longOverARelay = []string{"standard input of 10 MiB", "1,000 commands with the connection cut every 50 run exactly once each", "the server is away for ten seconds"}

// TestScenariosAtANodeThatOwnsNoSession: no client can tell.
func TestScenariosAtANodeThatOwnsNoSession(t *testing.T) {
	testkit.StartsProcesses(t)
	testkit.TakesLong(t)
	rig := startRig(t)
	shared := rig.startRelay(t)
	for _, s := range allScenarios(t) {
		ofItsOwn := s.Name == "a stream outlives a gateway that is killed"
		if s.Gateway != nil && !ofItsOwn || s.Slow || slices.Contains(longOverARelay, s.Name) {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			g := shared
			if ofItsOwn {
				g = rig.startRelay(t)
				defer g.do("stop")
			}
			runScenario(t, s, g, &run{gateway: g})
		})
	}
}

// runScenarios runs each scenario as a test of its own, against a gateway that has what it asks for.
func runScenarios(t *testing.T, all []scenario, run func(*testing.T, scenario, *gateway)) {
	rig := startRig(t)
	shared := rig.start(t, nil)
	for _, s := range all {
		t.Run(s.Name, func(t *testing.T) {
			g := shared
			if s.Gateway != nil {
				t.Parallel() // with each other, and after those that share a gateway
				g = rig.start(t, s.Gateway)
				defer g.do("stop")
			}
			run(t, s, g)
		})
	}
}

func allScenarios(t *testing.T) []scenario {
	t.Helper()
	b, err := os.ReadFile("testdata/scenarios.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Scenarios []scenario }
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	return all.Scenarios
}

func runScenario(t *testing.T, s scenario, g *gateway, o operations) {
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		o.end()
	}()
	values := &scope{values: map[string]any{}}
	if err := o.begin(ctx, values); err != nil {
		t.Fatal(err)
	}
	r := &interpreter{o, g}
	if err := r.steps(ctx, s.Steps, values); err != nil {
		t.Fatal(err)
	}
}

// run carries out the steps of one scenario with the Go client, and has what they made.
type run struct {
	gateway *gateway

	mu       sync.Mutex
	clients  []*client.Client  // guarded by mu
	sessions []*client.Session // guarded by mu
}

func (r *run) begin(ctx context.Context, in *scope) error {
	c, err := r.connect(ctx, step{})
	if err != nil {
		return err
	}
	in.set("client", c)
	session, err := r.keep(c.CreateSession(ctx, nil))
	in.set("s", session)
	return err
}

func (r *run) keep(s *client.Session, err error) (*client.Session, error) {
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sessions = append(r.sessions, s)
	}
	return s, err
}

func (r *run) end() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	var ending sync.WaitGroup
	for _, s := range r.sessions {
		ending.Go(func() { _ = s.Kill(ctx) })
	}
	ending.Wait()
	for _, c := range r.clients {
		c.Close()
	}
}

// token returns the token that a step names by its role or itself.
func (g *gateway) token(q step) string {
	token := q.text("token", "user")
	if known := g.Tokens[token]; known != "" {
		return known
	}
	return token
}

func (r *run) connect(ctx context.Context, q step) (*client.Client, error) {
	c, err := client.Connect(ctx, client.Options{URL: r.gateway.URL, Token: r.gateway.token(q), Session: q.text("session", ""), Patience: q.duration("patience_s")})
	if err == nil {
		r.mu.Lock()
		r.clients = append(r.clients, c)
		r.mu.Unlock()
	}
	return c, err
}

// direct runs a command over a connection of its own that does not go through the proxy.
func (g *gateway) direct(ctx context.Context, command string) (any, error) {
	c, err := client.Connect(ctx, client.Options{URL: g.Direct, Token: g.Tokens["user"]})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	s, err := c.CreateSession(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer s.Kill(ctx)
	return plain(s.Exec(ctx, command, nil))
}

// plain is a result with the names of the wire.
func plain(r *client.ExecResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"exit_code": r.ExitCode, "stdout": r.Stdout, "stderr": r.Stderr, "signal": r.Signal, "timed_out": r.TimedOut, "cancelled": r.Cancelled,
		"truncated": r.Truncated, "working_dir": r.WorkingDir, "shell_restored": r.ShellRestored,
		"stdout_base64": base64.StdEncoding.EncodeToString([]byte(r.Stdout)), "stderr_base64": base64.StdEncoding.EncodeToString([]byte(r.Stderr)),
	}, nil
}

var errAborted = errors.New("aborted by the test")

// describe gives an error the kind that the scenarios call it.
func describe(err error) map[string]any {
	d := map[string]any{"kind": kindOf(err), "text": err.Error()}
	if e, ok := errors.AsType[*client.Error](err); ok {
		d["code"], d["field"] = string(e.Code), e.Details["field"]
	}
	if e, ok := errors.AsType[*client.CommandError](err); ok {
		d["exit_code"], d["stdout"] = e.Result.ExitCode, e.Result.Stdout
	}
	if e, ok := errors.AsType[*client.ProcessExitedBeforeReadyError](err); ok {
		d["exit_code"] = e.ExitCode
	}
	return d
}

func kindOf(err error) string {
	as := func(target any) func(error) bool { return func(err error) bool { return errors.As(err, target) } }
	var (
		unknown  *client.OutcomeUnknownError
		command  *client.CommandError
		notReady *client.ProcessReadyTimeoutError
		exited   *client.ProcessExitedBeforeReadyError
	)
	for _, k := range []struct {
		kind string
		is   func(error) bool
	}{
		{"aborted", func(err error) bool { return errors.Is(err, errAborted) }},
		{"outcome_unknown", as(&unknown)},
		{"connection_lost", func(err error) bool { return errors.Is(err, client.ErrConnectionLost) }},
		{"auth", client.IsAuthFailed}, {"forbidden", client.IsForbidden}, {"session_not_found", client.IsSessionNotFound},
		{"invalid_params", func(err error) bool { return client.CodeOf(err) == "INVALID_PARAMS" }},
		{"session_exists", client.IsSessionExists}, {"session_busy", client.IsSessionBusy}, {"session_terminated", client.IsSessionTerminated},
		{"limit", client.IsLimit}, {"not_found", client.IsNotFound},
		{"refused", func(err error) bool { return client.CodeOf(err) != "" }},
		{"command_failed", as(&command)}, {"not_ready", as(&notReady)}, {"exited_before_ready", as(&exited)},
		{"closed", func(err error) bool { return errors.Is(err, client.ErrClosed) }},
	} {
		if k.is(err) {
			return k.kind
		}
	}
	return "unexpected"
}

// scope is the names of the steps, and those of the turns around them.
type scope struct {
	outer *scope

	mu     sync.Mutex
	values map[string]any // guarded by mu
}

func (s *scope) get(name string) any {
	for ; s != nil; s = s.outer {
		s.mu.Lock()
		v, ok := s.values[name]
		s.mu.Unlock()
		if ok {
			return v
		}
	}
	return nil
}

func (s *scope) set(name string, v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[name] = v
}

// find is the value of a reference such as name.field.
func (s *scope) find(path string) any {
	names := strings.Split(path, ".")
	v := s.get(names[0])
	for _, name := range names[1:] {
		switch of := v.(type) {
		case interface{ ID() string }:
			v = map[string]any{"id": of.ID()}[name]
		case map[string]any:
			v = of[name]
		case []string:
			if i := slices.Index([]string{"0", "1", "2", "3"}, name); i >= 0 && i < len(of) {
				v = of[i]
			}
		default:
			return nil
		}
	}
	return v
}
