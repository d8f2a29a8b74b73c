package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/client"
	"trl/internal/natsrig"
	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/pool/ids"
	"trl/protocol"
)

var faultsFor = flag.Duration("for", 15*time.Second, "how long TestHistoryThroughFaults makes faults")

// trial is a cluster whose nodes, gateways, servers and connections fail, and the clients that use it.
type trial struct {
	t       *testing.T
	nodes   *nodes
	history *history
	tokens  string // a file

	mu     sync.Mutex
	places []*place // set once; each is guarded by mu
	logs   []func() string
}

// place is where a node runs, which may be another one later.
type place struct {
	name  string
	state string      // the state directory; a life of the node kills what the one before has left of its sessions
	g     *rig.Server // nil while there is none
	epoch string
	link  *natsrig.Proxy // of connections from other nodes
	nats  []*natsrig.Proxy
}

const principals = 5

// TestHistoryThroughFaults has clients use a cluster over random gateways while nodes, gateways and nats-servers are killed and stopped, and
// connections are cut. Then it checks what they were told: one session for each name at a time, none that comes back, each command once, every byte
// once, nobody else's session, and an end for everything.
func TestHistoryThroughFaults(t *testing.T) {
	t.Parallel()
	w := &trial{t: t, nodes: newNodes(t, 3), history: newHistory(t), tokens: filepath.Join(t.TempDir(), "tokens")}
	var tokens strings.Builder
	for i := range principals {
		fmt.Fprintf(&tokens, "token-of-p%d-%s p%d user\n", i, strings.Repeat("x", 24), i)
	}
	if err := os.WriteFile(w.tokens, []byte(tokens.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		p := &place{name: fmt.Sprint("n", i+1), state: t.TempDir()}
		for _, s := range w.nodes.nats.Servers {
			p.nats = append(p.nats, natsrig.NewProxy(t, s))
		}
		w.places = append(w.places, p)
		w.startNode(p)
	}
	w.awaitAll()

	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i := range 2 * principals {
		clients.Go(func() { w.client(ctx, i) })
	}
	faults := func(until func(time.Duration) bool) {
		for begin := time.Now(); !until(time.Since(begin)) && !t.Failed(); {
			w.makeFault()
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond) // for what comes back to be used
		}
	}
	faults(func(past time.Duration) bool { return past > *faultsFor })
	faults(func(past time.Duration) bool { return w.history.lacks() == "" || past > 2*testkit.Patience }) // a slow machine has not come to everything yet
	if lacks := w.history.lacks(); lacks != "" {
		t.Errorf("no %s at all", lacks)
	}
	w.awaitAll()
	cancel()
	clients.Wait()
	w.checkNames()
	w.history.check(t, func(id string) bool {
		for _, log := range w.logs {
			for line := range strings.Lines(log()) {
				if strings.Contains(line, id) && strings.Contains(line, "given this session's name away") {
					return true
				}
			}
		}
		return false
	})
	if t.Failed() {
		for i, log := range w.logs {
			for line := range strings.Lines(log()) {
				if w.history.blames(line) {
					t.Logf("life %d of a node: %s", i, strings.TrimSpace(line))
				}
			}
		}
	}
}

// startNode starts a node at a place.
func (w *trial) startNode(p *place) {
	flags, link := w.nodes.behindProxy()
	var nats []string
	for _, proxy := range p.nats {
		nats = append(nats, proxy.URL())
	}
	g, err := rig.StartGateway(w.nodes.flagsAt(nats, p.name, append(flags, "--state-dir", p.state, "--auth", "token", "--token-file", w.tokens, "--max-sessions", "64")...)...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { g.Stop() }) // it may have been killed
	c := w.connect(g.Addr, 0)
	var pong protocol.Pong
	err = c.Call(w.t.Context(), "system.ping", nil, &pong)
	c.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.g, p.epoch, p.link = g, pong.Epoch, link
	w.logs = append(w.logs, g.Log)
}

func (w *trial) connect(addr string, principal int) *client.Client {
	c, err := w.dial(w.t.Context(), addr, principal)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *trial) dial(ctx context.Context, addr string, principal int) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return client.Connect(ctx, client.Options{URL: "http://" + addr, Token: fmt.Sprintf("token-of-p%d-%s", principal, strings.Repeat("x", 24)), Patience: 30 * time.Second})
}

// awaitAll waits until all nodes know each other.
func (w *trial) awaitAll() {
	w.t.Helper()
	for _, p := range w.places {
		testkit.Eventually(w.t, p.name+" knows all nodes", func() bool {
			c, err := w.dial(w.t.Context(), p.g.Addr, 0)
			if err != nil {
				return false
			}
			defer c.Close()
			var nodes protocol.Nodes
			if err := c.Call(w.t.Context(), "system.nodes", nil, &nodes); err != nil || nodes.Degraded {
				return false
			}
			epochs := map[string]bool{}
			for _, n := range nodes.Nodes {
				epochs[n.Epoch] = n.MaxSessions > 0
			}
			for _, other := range w.places {
				if !epochs[other.epoch] {
					return false
				}
			}
			return len(epochs) == len(w.places)
		})
	}
}

// makeFault makes one fault and ends it.
func (w *trial) makeFault() {
	p := w.places[rand.IntN(len(w.places))]
	server := w.nodes.nats.Servers[rand.IntN(3)]
	pause := func() { time.Sleep(time.Duration(500+rand.IntN(2500)) * time.Millisecond) } // less than a lease in any case
	switch kind := rand.IntN(9); kind {
	case 0, 1:
		w.history.count("gateway killed")
		p.g.KillGateway(w.t)
	case 2:
		w.history.count("node killed")
		w.history.nodeEnds(p.epoch)
		w.mu.Lock()
		g := p.g
		p.g = nil
		w.mu.Unlock()
		killNode(w.t, g)
		pause()
		w.startNode(p)
	case 3:
		w.history.count("gateway stopped")
		if pid := p.g.GatewayPid(); pid > 0 && syscall.Kill(pid, syscall.SIGSTOP) == nil {
			pause()
			_ = syscall.Kill(pid, syscall.SIGCONT) // it may be gone
		}
	case 4:
		w.history.count("nats-server killed")
		server.Kill()
		pause()
		server.Start()
	case 5:
		w.history.count("nats-server stopped")
		server.Stop()
		pause()
		server.Continue()
	case 6:
		w.history.count("links cut")
		p.link.Cut()
	case 7:
		w.history.count("links held")
		p.link.Hold()
		pause()
		p.link.Release()
	case 8:
		w.history.count("node cut off from NATS")
		for _, proxy := range p.nats {
			proxy.Hold()
			proxy.Cut()
		}
		pause()
		for _, proxy := range p.nats {
			proxy.Cut()
			proxy.Release()
		}
	}
}

// patience bounds what a client waits for: far longer than anything may take, so that what never ends is found.
const patience = 4 * time.Minute

// stepLimit bounds one request of a client: a minute, and the time in which a client finds a gateway again that answers.
const stepLimit = 90 * time.Second

// client is the work of one client until ctx ends. Each principal has two.
func (w *trial) client(ctx context.Context, i int) {
	principal := fmt.Sprint("p", i%principals)
	for n := 0; ctx.Err() == nil; n++ {
		w.mu.Lock()
		g := w.places[rand.IntN(len(w.places))].g
		w.mu.Unlock()
		if g == nil {
			continue
		}
		c, err := w.dial(ctx, g.Addr, i%principals)
		if err != nil {
			w.history.count("not connected")
			continue
		}
		v := &visit{trial: w, c: c, principal: principal, number: i % principals, prefix: fmt.Sprintf("k%d.%d", i, n)}
		v.ctx, v.cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
		v.work()
		if v.ctx.Err() != nil {
			w.history.fault("%s: something took longer than %s", v.prefix, patience)
		}
		v.cancel()
		c.Close()
	}
}

// visit is one connection of a client, and what it does over it.
type visit struct {
	*trial
	c         *client.Client
	ctx       context.Context
	cancel    context.CancelFunc
	principal string
	number    int
	prefix    string
	key       int
	asked     time.Time // when the present request of a step began
}

// noted notes what an error says of a session, and reports whether there is none.
func (v *visit) noted(id string, err error) bool {
	switch {
	case err == nil:
		return true
	case client.IsSessionLost(err), client.IsSessionTerminated(err), client.IsSessionNotFound(err):
		v.history.over(id, err)
		v.history.count("told: over")
	case errors.Is(err, client.ErrConnectionLost), client.IsRetryable(err), client.IsLimit(err):
		v.history.count("told: " + cmpCode(err))
	default:
		_, _, line, _ := runtime.Caller(1)
		v.history.fault("%s: %s, at line %d: %v", v.prefix, id, line, err)
	}
	return false
}

func cmpCode(err error) string {
	if code := client.CodeOf(err); code != "" {
		return string(code)
	}
	return "connection lost"
}

// work uses one session of the principal, an old or a new one.
func (v *visit) work() {
	name := [...]string{"a", "b", "", "by key"}[rand.IntN(4)]
	var s *client.Session
	var err error
	if name == "by key" {
		name = ""
		s, err = v.createByKey()
	} else {
		s, err = v.c.CreateSession(v.ctx, &client.SessionOptions{Name: name})
	}
	switch {
	case err == nil:
		epoch, _ := ids.EpochOf('s', s.ID())
		v.history.created(s.ID(), epoch, v.principal, name)
	case client.IsSessionExists(err):
		sent := time.Now()
		if s, err = v.c.GetSession(v.ctx, name); err != nil {
			v.history.count("told: " + cmpCode(err)) // it has ended meanwhile
			return
		}
		info, err := s.Info(v.ctx)
		if err != nil || info.State == "TERMINATED" { // the same: a name leads to an ended session until another one gets it
			v.history.count("told: over")
			return
		}
		v.history.used(s.ID(), v.principal, sent)
	default:
		v.noted("", err)
		return
	}
	for range 1 + rand.IntN(4) {
		if !v.step(s) {
			return
		}
	}
	if name == "" || rand.IntN(3) == 0 {
		v.history.ends(s.ID())
		end, what := s.Destroy, "destroyed"
		if rand.IntN(2) == 0 {
			end, what = s.Kill, "sessions killed"
		}
		if err := end(v.ctx); v.noted(s.ID(), err) {
			v.history.over(s.ID(), nil)
			v.history.count(what)
		}
	}
}

// createByKey sends the same request to two gateways at once. They must not make two sessions.
func (v *visit) createByKey() (*client.Session, error) {
	q := protocol.SessionCreate{RequestKey: v.prefix + ".create"}
	v.mu.Lock()
	g := v.places[rand.IntN(len(v.places))].g
	v.mu.Unlock()
	var second protocol.Session
	secondErr := client.ErrConnectionLost
	var both sync.WaitGroup
	if g != nil {
		both.Go(func() {
			c, err := v.dial(v.ctx, g.Addr, v.number)
			if err != nil {
				return
			}
			defer c.Close()
			secondErr = c.Call(v.ctx, "session.create", q, &second)
		})
	}
	var first protocol.Session
	err := v.c.Call(v.ctx, "session.create", q, &first)
	both.Wait()
	switch {
	case err != nil && secondErr == nil:
		first, err = second, nil
	case err == nil && secondErr == nil:
		v.history.sameSession(q.RequestKey, &first, &second)
	}
	v.history.count("created by key")
	return v.c.SessionWithID(first.SessionID), err
}

// step does one thing, and reports whether the session is still of use.
func (v *visit) step(s *client.Session) bool {
	v.key++
	key, sent := fmt.Sprintf("%s.%d", v.prefix, v.key), time.Now()
	kind := rand.IntN(9)
	v.asked = sent
	defer func() { v.history.took(fmt.Sprintf("%s: step %d of %s", key, kind, s.ID()), v.asked) }()
	switch kind {
	case 0, 1:
		r, err := s.Exec(v.ctx, v.history.command(v.principal, key), &client.ExecOptions{RequestKey: key})
		if errors.Is(err, client.ErrConnectionLost) { // another gateway gives the result of the same run
			r, err = v.askElsewhere(s.ID(), key)
		}
		if !v.noted(s.ID(), err) {
			return false
		}
		v.history.used(s.ID(), v.principal, sent)
		var n int
		if _, err := fmt.Sscanf(r.Stdout, "done %d\n", &n); err != nil || r.ExitCode != 0 {
			return v.unknown(s, key, r)
		}
		v.history.ran(key)
		v.history.counted(s.ID(), numbered{n, sent, time.Now()}, r.ExecID, r.Stdout)
	case 2:
		return v.stream(s, sent)
	case 3:
		all, err := v.c.ListSessions(v.ctx, protocol.SessionList{})
		if !v.noted("", err) {
			return false
		}
		for _, i := range all {
			v.history.listed(i.SessionID, i.Owner, v.principal)
		}
		v.history.count("lists")
	case 4:
		p, err := s.StartProcess(v.ctx, "sleep 1000", nil)
		if !v.noted(s.ID(), err) {
			return false
		}
		if err := p.Kill(v.ctx); !v.noted(s.ID(), err) {
			return false
		}
		v.history.used(s.ID(), v.principal, sent)
		v.history.count("processes")
	case 5:
		return v.killed(s, sent)
	case 6, 7:
		return v.move(s)
	case 8:
		return v.outputOf(s)
	}
	return true
}

// move moves the session to a node.
func (v *visit) move(s *client.Session) bool {
	v.mu.Lock()
	p := v.places[rand.IntN(len(v.places))]
	to, epoch := p.name, p.epoch
	v.mu.Unlock()
	v.history.moves(s.ID(), epoch)
	var at protocol.SessionMoved
	err := v.c.Call(v.ctx, "session.move", protocol.SessionMove{SessionRef: protocol.SessionRef{SessionID: s.ID()}, Node: to}, &at)
	v.mu.Lock()
	now := p.epoch
	v.mu.Unlock()
	switch code := client.CodeOf(err); {
	case now != epoch: // nobody knows which one it was
		v.history.moves(s.ID(), now)
		v.history.hasMoved(s.ID(), false, err == nil)
	default:
		v.history.hasMoved(s.ID(), err == nil || code == protocol.SessionBusy, err == nil)
	}
	if err == nil && len(at.StateLost) > 0 {
		v.history.fault("%s: a move of %s has lost %q", v.prefix, s.ID(), at.StateLost)
	}
	switch code := client.CodeOf(err); code {
	case protocol.SessionBusy:
		v.history.count("moves refused")
		return true
	case protocol.InvalidParams, protocol.NotSupported, protocol.ShuttingDown: // the node has just been killed
		v.history.count("told: " + string(code))
		return true
	}
	if !v.noted(s.ID(), err) {
		return false
	}
	asked := time.Now()
	var where protocol.Located
	if err := v.c.Call(v.ctx, "session.locate", protocol.SessionRef{SessionID: s.ID()}, &where); !v.noted(s.ID(), err) {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.places {
		if p.name == where.Node {
			v.history.isAt(s.ID(), p.epoch, asked)
		}
	}
	return true
}

// outputOf asks for the output of a command that has ended, maybe on another node.
func (v *visit) outputOf(s *client.Session) bool {
	exec, output := v.history.lastOf(s.ID())
	if exec == "" {
		return true
	}
	var r protocol.ExecResult
	if err := v.c.Call(v.ctx, "exec.wait", protocol.ExecWait{ExecID: exec}, &r); !v.noted(s.ID(), err) {
		return false
	}
	if r.Stdout != output {
		v.history.fault("%s: the output of %s is %q, was %q", v.prefix, exec, r.Stdout, output)
	}
	v.history.count("outputs again")
	return true
}

// killed starts a command that would take long, and kills it.
func (v *visit) killed(s *client.Session, sent time.Time) bool {
	e, err := s.ExecStream(v.ctx, "echo begun; sleep 1000", nil)
	if !v.noted(s.ID(), err) {
		return false
	}
	err = e.Kill(v.ctx)
	for errors.Is(err, client.ErrConnectionLost) && v.ctx.Err() == nil { // it may still run
		time.Sleep(100 * time.Millisecond) // between attempts at nodes that are all away
		err = v.elsewhere(func(c *client.Client) error {
			return c.Call(v.ctx, "exec.cancel", protocol.ExecCancel{ExecID: e.ID()}, nil)
		})
	}
	if !v.noted(s.ID(), err) {
		return false
	}
	r, err := e.Result(v.ctx)
	if unknown := new(client.OutcomeUnknownError); errors.As(err, &unknown) {
		return v.unknown(s, e.ID(), nil)
	}
	if !v.noted(s.ID(), err) {
		return false
	}
	v.history.used(s.ID(), v.principal, sent)
	if r.ExitCode == 0 || !r.Cancelled {
		v.history.fault("%s: a killed command ended with %+v", v.prefix, r)
	}
	v.history.count("commands killed")
	return true
}

// unknown notes a command that did not print what it should: its node may have been killed while it ran.
func (v *visit) unknown(s *client.Session, key string, r *client.ExecResult) bool {
	v.history.mu.Lock()
	known := v.history.sessions[s.ID()]
	ended := known == nil || !known.until.IsZero()
	v.history.mu.Unlock()
	if !ended {
		v.history.fault("%s: %+v", key, r)
	}
	return false
}

// askElsewhere asks other gateways for the result of a command.
func (v *visit) askElsewhere(id, key string) (r *client.ExecResult, err error) {
	err = v.elsewhere(func(c *client.Client) error {
		r, err = c.SessionWithID(id).Exec(v.ctx, v.history.command(v.principal, key), &client.ExecOptions{RequestKey: key})
		return err
	})
	if err == nil {
		v.history.count("results over another gateway")
	}
	return r, err
}

// elsewhere does something over each gateway in turn until it succeeds: the visit's own may be gone for good.
func (v *visit) elsewhere(f func(c *client.Client) error) error {
	err := error(client.ErrConnectionLost)
	for _, p := range v.places {
		v.mu.Lock()
		g := p.g
		v.mu.Unlock()
		if g == nil {
			continue
		}
		v.history.took(v.prefix+": what came before "+p.name+" was asked", v.asked)
		v.asked = time.Now()
		c, dialErr := v.dial(v.ctx, g.Addr, v.number)
		if dialErr != nil {
			continue
		}
		err = f(c)
		c.Close()
		if err == nil {
			break
		}
	}
	return err
}

// stream reads the output of a command while it runs.
func (v *visit) stream(s *client.Session, sent time.Time) bool {
	const lines = 300
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	e, err := s.ExecStream(v.ctx, fmt.Sprintf("for i in $(seq %d); do echo line $i; [ $((i %% 10)) != 0 ] || sleep 0.05; done", lines), nil)
	if !v.noted(s.ID(), err) {
		return false
	}
	v.history.used(s.ID(), v.principal, sent)
	var got strings.Builder
	for {
		event, err := e.Next(v.ctx)
		switch {
		case errors.Is(err, io.EOF):
			if got.String() != want.String() {
				v.history.fault("%s: a stream of %d bytes ends after %d", v.prefix, want.Len(), got.Len())
			}
			v.history.count("streams")
			return true
		case err != nil:
			if unknown := new(client.OutcomeUnknownError); errors.As(err, &unknown) {
				return v.unknown(s, e.ID(), nil)
			}
			return v.noted(s.ID(), err)
		case event.Type == client.EventGap:
			v.history.fault("%s: a gap from %d to %d", v.prefix, event.From, event.Offset)
		case event.Type == client.EventStdout:
			if got.Write(event.Data); !strings.HasPrefix(want.String(), got.String()) {
				v.history.fault("%s: after %d bytes comes %q", v.prefix, got.Len()-len(event.Data), event.Data)
				return false
			}
		case event.Type == client.EventComplete && event.Result.ExitCode != 0:
			return v.unknown(s, e.ID(), event.Result)
		}
	}
}

// checkNames checks that each name is of the same live session over every gateway.
func (w *trial) checkNames() {
	for principal := range principals {
		for _, name := range []string{"a", "b"} {
			var first string
			for i, p := range w.places {
				c := w.connect(p.g.Addr, principal)
				var at protocol.SessionInfo
				if err := c.Call(w.t.Context(), "session.info", protocol.SessionRef{Session: name}, &at); err != nil && !client.IsSessionNotFound(err) {
					w.t.Errorf("p%d's %s over %s: %v", principal, name, p.name, err)
				}
				c.Close()
				if at.State == "TERMINATED" { // its own node still tells of it
					at.SessionID = ""
				}
				if i == 0 {
					first = at.SessionID
				} else if at.SessionID != first {
					w.t.Errorf("p%d's %s is %q over %s, and %q over %s: %s; %s", principal, name, at.SessionID, p.name, first, w.places[0].name, w.history.of(at.SessionID), w.history.of(first))
				}
			}
		}
	}
}
