package rpc

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/pool"
	"trl/pool/claims"
	"trl/pool/clock"
	"trl/pool/moved"
	"trl/protocol"
)

// TestMovedSession: a session goes on at another node, and a client that uses it through any node notices nothing.
func TestMovedSession(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one", "two"})
	clients := map[string]*rig.Client{}
	for _, name := range []string{"gate", "one", "two"} {
		clients[name] = cl.node(name).Dial()
	}
	first := clients["gate"]
	made := first.Call("session.create", object{"name": "build"})
	s := made.Str("session_id")
	if made.Str("node") != "one" {
		t.Fatal(made)
	}
	e := first.Run(s, "cd /usr; A=1; seq 1000")
	where := func(want string) {
		t.Helper()
		for name, c := range clients {
			if got := c.Call("session.locate", object{"session_id": s}).Str("node"); got != want {
				t.Errorf("through %s the session is on %s, want %s", name, got, want)
			}
			if got := c.Call("exec.run", object{"session": "build", "command": "pwd; echo $A"}); got.Stdout() != "/usr\n1\n" {
				t.Errorf("through %s: %q", name, got)
			}
			if got := c.Call("exec.wait", object{"exec_id": e.Str("exec_id")}); got.Stdout() != e.Stdout() {
				t.Errorf("through %s, on %s: %q", name, want, got)
			}
			if all := c.Call("session.list", object{}).Objs("sessions"); len(all) != 1 || all[0].Str("node") != want || all[0].Str("name") != "build" {
				t.Errorf("through %s: %v", name, all)
			}
			if got := c.Call("session.create", object{"name": "build", "if_exists": "return"}).Str("session_id"); got != s {
				t.Errorf("through %s another session is made", name)
			}
		}
	}
	where("one")
	for _, to := range []string{"one", "two", "two", "gate", "one"} {
		if r := first.Call("session.move", object{"session_id": s, "node": to}); r.Str("node") != to || r.Str("session_id") != s {
			t.Errorf("%v", r)
		}
		where(to)
	}
	later := clients["two"].Run(s, "echo later")
	first.Call("session.move", object{"session": "build", "node": "two"})
	for name, c := range clients {
		if got := c.Call("exec.wait", object{"exec_id": later.Str("exec_id")}).Stdout(); got != "later\n" {
			t.Errorf("through %s: %q", name, got)
		}
	}
	first.Call("session.destroy", object{"session_id": s})
	for name, c := range clients {
		if code := c.Try("exec.run", object{"session_id": s, "command": ":"}).Code(); code != "SESSION_TERMINATED" {
			t.Errorf("through %s: %s", name, code)
		}
		if r := c.Call("session.create", object{"name": "build"}); r.Str("session_id") == s {
			t.Error("the name is not free")
		} else {
			c.Call("session.destroy", object{"session": "build"})
		}
	}
}

// TestCancelOfAnEndedCommandAfterAMove: a cancel that names the request of a command says what it said before its session moved.
func TestCancelOfAnEndedCommandAfterAMove(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one", "two"})
	c := cl.node("gate").Dial()
	for from, to := range map[string]string{"gate": "one", "one": "two", "two": "gate"} {
		s := c.Call("session.create", object{"node": from}).Str("session_id")
		id := c.Begin("exec.run", object{"session_id": s, "command": ":"})
		c.Answer(id)
		var said []rig.Object
		for range 2 {
			for _, more := range []object{nil, {"signal": "INT"}} {
				said = append(said, c.Call("exec.cancel", rig.With(object{"request_id": id}, more)))
			}
			c.Call("session.move", object{"session_id": s, "node": to})
		}
		if !reflect.DeepEqual(said[:2], said[2:]) || said[0].Yes("cancelled") || said[1].Str("reason") != string(protocol.SignalEnded) {
			t.Errorf("from %s to %s: %v", from, to, said)
		}
	}
}

// TestMoveIsRefused: who may move what, and to where.
func TestMoveIsRefused(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one", "two"}, twoUsers)
	gate := cl.node("gate")
	bob, ann, root, viewer := gate.Dial("bobs-token"), gate.Dial("anns-token"), gate.Dial("roots-token"), gate.Dial("bobs-viewer")
	s := bob.Session()
	refused := func(c *rig.Client, code string, p object) {
		t.Helper()
		if got := c.Try("session.move", p).Code(); got != code {
			t.Errorf("%s, want %s", got, code)
		}
	}
	refused(ann, "SESSION_NOT_FOUND", object{"session_id": s, "node": "two"})
	refused(viewer, "FORBIDDEN", object{"session_id": s, "node": "two"})
	refused(bob, "INVALID_PARAMS", object{"session_id": s, "node": "three"})
	p := bob.Call("process.start", object{"session_id": s, "command": "sleep 1000"})
	r := bob.Try("session.move", object{"session_id": s, "node": "two"})
	if r.Code() != "SESSION_BUSY" || !strings.Contains(fmt.Sprint(r.Error), "processes") {
		t.Errorf("%+v", r.Error)
	}
	bob.Call("process.kill", object{"process_id": p.Str("process_id"), "kill_grace_s": 0})
	bob.Call("exec.run", object{"session_id": s, "command": "A=1"})
	root.Call("session.move", object{"session_id": s, "node": "two"})
	if got := bob.Call("exec.run", object{"session_id": s, "command": "echo $A"}).Stdout(); got != "1\n" {
		t.Errorf("%q", got)
	}
	alone := start(t).Dial()
	if code := alone.Try("session.move", object{"session_id": alone.Session(), "node": "two"}).Code(); code != "NOT_SUPPORTED" {
		t.Error(code)
	}
}

// TestCommandsDuringMoves: commands that are sent while a session moves to and fro run once each, in the order of their connection.
func TestCommandsDuringMoves(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one", "two"})
	mover := cl.node("gate").Dial()
	s := mover.Session()
	mover.Run(s, "N=0")
	var sending sync.WaitGroup
	stop := make(chan struct{})
	var mu sync.Mutex
	numbers := map[string]int{}
	for _, name := range []string{"gate", "one", "two"} {
		c := cl.node(name).Dial()
		sending.Go(func() {
			last := 0
			for {
				select {
				case <-stop:
					return
				default:
				}
				var ids []int
				for range 5 { // in one go
					ids = append(ids, c.Begin("exec.run", object{"session_id": s, "command": "N=$((N+1)); echo $N"}))
				}
				for _, id := range ids {
					f := c.Answer(id)
					if f.Code() == "NODE_UNREACHABLE" { // it has waited for the moves of a busy machine, and was not carried out
						continue
					}
					r := f.Data
					var n int
					if _, err := fmt.Sscan(r.Stdout(), &n); err != nil || n <= last {
						t.Errorf("through %s: %q after %d", name, r.Stdout(), last)
						return
					}
					last = n
					mu.Lock()
					numbers[r.Stdout()]++
					mu.Unlock()
				}
			}
		})
	}
	moves := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end) || moves < 3; {
		to := []string{"one", "two", "gate"}[moves%3]
		switch r := mover.Try("session.move", object{"session_id": s, "node": to}); r.Code() {
		case "":
			moves++
		case "SESSION_BUSY":
		default:
			t.Fatal(r.Error)
		}
	}
	close(stop)
	sending.Wait()
	t.Logf("%d moves, %d commands", moves, len(numbers))
	if got, want := mover.Run(s, "echo $N").Stdout(), fmt.Sprintln(len(numbers)); got != want {
		t.Errorf("%s commands ran, %s were answered", got, want)
	}
	for n, times := range numbers {
		if times != 1 {
			t.Errorf("%q was answered %d times", n, times)
		}
	}
}

// TestWatcherOfAMovedSession: its connection ends as if it had been lost; the client comes back and watches the session where it is.
func TestWatcherOfAMovedSession(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one", "two"})
	mover := cl.node("gate").Dial()
	s := mover.Session()
	for _, name := range []string{"gate", "one"} {
		c := cl.node(name).Dial()
		c.Call("session.watch", object{"session_id": s})
		where := mover.Call("session.locate", object{"session_id": s}).Str("node")
		to := map[string]string{"one": "two", "two": "one"}[where]
		if where != "one" && name == "one" {
			to = "one"
		}
		mover.Call("session.move", object{"session_id": s, "node": to})
		if code := c.CloseStatus(); code != 1012 {
			t.Errorf("through %s: closed with %d", name, code)
		}
		c = cl.node(name).Dial()
		c.Call("session.watch", object{"session_id": s})
		mover.Run(s, "echo")
		c.Event("exec.exit")
		c.Close()
		mover.Call("session.move", object{"session_id": s, "node": "one"})
	}
}

// TestMovedSessionOfADeadNode: the directory says where a session is whose first node has gone.
func TestMovedSessionOfADeadNode(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one", "two"})
	c := cl.node("gate").Dial()
	s := c.Session()
	e := c.Run(s, "echo out")
	cl.node("one").Dial().Call("session.move", object{"session_id": s, "node": "two"})
	cl.mu.Lock()
	cl.nodes[1].hidden = true
	cl.mu.Unlock()
	for _, name := range []string{"gate", "two"} {
		c := cl.node(name).Dial()
		if got := c.Call("exec.wait", object{"exec_id": e.Str("exec_id")}).Stdout(); got != "out\n" {
			t.Errorf("through %s: %q", name, got)
		}
		if got := c.Run(s, "echo again").Stdout(); got != "again\n" {
			t.Errorf("through %s: %q", name, got)
		}
	}
}

// TestRequestsOfASessionThatMovesOn: a request waits for a move for a time. Then it was not carried out, and its client may try again.
func TestRequestsOfASessionThatMovesOn(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one", "two"})
	one := cl.node("one")
	one.clients.moveWait = 50 * time.Millisecond
	c := cl.node("gate").Dial()
	id := c.Session()
	c.Run(id, "N=1")
	m := one.beginMove(id, cl.node("two"))
	defer m.Stop()
	for _, name := range []string{"gate", "one"} {
		c := cl.node(name).Dial()
		var asked []int
		for range 3 { // the later ones wait behind the first one
			asked = append(asked, c.Begin("exec.run", object{"session_id": id, "command": "N=2"}))
		}
		for _, n := range asked {
			if f := c.Answer(n); f.Code() != "NODE_UNREACHABLE" || f.Error.Details["retry_after_ms"] == nil {
				t.Errorf("through %s: %+v", name, f.Error)
			}
		}
	}
	m.Stop()
	if got := c.Run(id, "echo $N").Stdout(); got != "1\n" {
		t.Errorf("a request that failed was carried out: %q", got)
	}
}

// beginMove begins the move of a session of this node to another one, as the node's half of session.move.
func (n *testNode) beginMove(id string, to *testNode) *pool.Move {
	t := n.cluster.t
	t.Helper()
	owner, _ := n.Pool.Owner(id)
	s, err := n.Pool.Find(owner, id, "")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.BeginMove(t.Context(), to.Pool.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSessionMovesToTheClientsNode: requests that went to the session's old node are carried out here, in their order, and are answered.
func TestSessionMovesToTheClientsNode(t *testing.T) {
	t.Run("in time", func(t *testing.T) { testMoveToTheClientsNode(t, maxMoveWait) })
	t.Run("too late", func(t *testing.T) { testMoveToTheClientsNode(t, 0) }) // they may fail, with an error for clients
}

func testMoveToTheClientsNode(t *testing.T, wait time.Duration) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one"})
	gate, one := cl.node("gate"), cl.node("one")
	gate.clients.moveWait = wait
	c := gate.Dial()
	id := c.Session()
	m := one.beginMove(id, gate)
	defer m.Stop()
	renamed := c.Begin("session.rename", object{"session_id": id, "name": "new"})
	run := c.Begin("exec.run", object{"session_id": id, "command": ":"})
	c.Call("system.ping", nil) // both are on their way to the old node, or wait for that
	x := &moved.Session{Uptime: clock.UptimeAt(time.Now())}
	if err := m.Export(x); err != nil {
		t.Fatal(err)
	}
	here, lost, err := gate.Pool.Receive(t.Context(), m.ID, one.Pool.Epoch(), x)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Commit(lost); err != nil {
		t.Fatal(err)
	}
	if err := here.Keep(); err != nil {
		t.Fatal(err)
	}
	f := c.Answer(renamed)
	for _, f := range []*rig.Frame{f, c.Answer(run)} {
		if !f.OK && (wait > 0 || f.Code() != "NODE_UNREACHABLE") {
			t.Errorf("%+v", f.Error)
		}
	}
	if f.OK && c.Call("session.info", object{"session": "new"}).Str("session_id") != id {
		t.Error("another session has the new name")
	}
}

// TestIDsWithoutDirectory: an id that this node does not know may have moved. While the directory does not say, its client is told to try again.
func TestIDsWithoutDirectory(t *testing.T) {
	t.Parallel()
	cl := newCluster(t, []string{"gate", "one", "two"})
	c := cl.node("one").Dial()
	id := c.Session()
	c.Call("session.move", object{"session_id": id, "node": "two"})
	one := cl.node("one").Pool
	testkit.Eventually(t, "the old node has forgotten it", func() bool {
		one.DropExpired(time.Now().Add(time.Hour))
		owner, _ := one.Owner(id)
		return owner == ""
	})
	cl.setDown(protocol.Errorf(protocol.DirectoryUnavailable, "down"))
	c = cl.node("gate").Dial()
	if code := c.Try("session.info", object{"session_id": id}).Code(); code != "DIRECTORY_UNAVAILABLE" {
		t.Error(code)
	}
	cl.setDown(nil)
	if node := c.Call("session.locate", object{"session_id": id}).Str("node"); node != "two" {
		t.Error(node)
	}
}

// TestNameOfALostMove: a session has left its node, and the other one has not got it, or is gone. Its name is free then.
func TestNameOfALostMove(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		cl := newCluster(t, []string{"gate", "one", "two"})
		one := cl.node("one")
		c := one.Dial()
		id := c.Call("session.create", object{"name": "build"}).Str("session_id")
		owner, _ := one.Pool.Owner(id)
		m := one.beginMove(id, cl.node("two"))
		if err := m.Commit(nil); err != nil {
			t.Fatal(err)
		}
		if !one.Pool.HasOpen(owner, "build") {
			t.Error("the name is free at once")
		}
		cl.mu.Lock()
		cl.nodes[2].hidden = gone
		cl.mu.Unlock()
		one.clients.Moves.Resume()
		testkit.Eventually(t, "the name is free", func() bool { return !one.Pool.HasOpen(owner, "build") })
		c.Call("session.create", object{"name": "build"})
	}
}

// slowDirectory is a directory that grants everything, and writes what has moved only when it is told to.
type slowDirectory struct {
	mu     sync.Mutex
	writes bool           // guarded by mu
	awaits int            // guarded by mu; how often somebody has asked in vain whether all is written
	taken  []claims.Moved // guarded by mu
}

func (d *slowDirectory) AwaitTakeOver(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writes {
		return nil
	}
	d.awaits++
	return errors.New("nothing is written")
}

func (d *slowDirectory) TakeOver(m claims.Moved) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken = append(d.taken, m)
}

func (d *slowDirectory) ClaimName(_ context.Context, _, _, session string) (string, error) {
	return session, nil
}

func (d *slowDirectory) ClaimKey(_ context.Context, _, _, session string) (string, error) {
	return session, nil
}

func (d *slowDirectory) LiveElsewhere(string) int                              { return 0 }
func (d *slowDirectory) ReleaseName(context.Context, string, string, string)   {}
func (d *slowDirectory) ReleaseKey(context.Context, string, string, string)    {}
func (d *slowDirectory) SetLive(string, int)                                   {}
func (d *slowDirectory) MovesAway(claims.Moved)                                {}
func (d *slowDirectory) GiveUp(claims.Moved)                                   {}
func (d *slowDirectory) ReleaseMoved(context.Context, claims.Moved)            {}
func (d *slowDirectory) Rebuild([]claims.Name, []claims.Moved, map[string]int) {}

// TestOldNodeIsToldWhenTheDirectoryKnows: until the directory has written where a session is, its old node keeps its name and its id, although the session
// is used at the new one.
func TestOldNodeIsToldWhenTheDirectoryKnows(t *testing.T) {
	t.Parallel()
	d := &slowDirectory{}
	cl := newClusterWith(t, []string{"gate", "one", "two"}, func(c *pool.Config) { c.Directory = d })
	one, two := cl.node("one"), cl.node("two")
	c := one.Dial()
	id := c.Call("session.create", object{"name": "build"}).Str("session_id")
	owner, _ := one.Pool.Owner(id)
	c.Call("session.move", object{"session_id": id, "node": "two"})
	if got := c.Run(id, "echo there").Stdout(); got != "there\n" || !two.Pool.HasOpen(owner, "build") {
		t.Errorf("it does not go on at the new node: %q", got)
	}
	testkit.Eventually(t, "the new node asks again whether the directory has it", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.awaits > 2
	})
	one.Pool.DropExpired(time.Now().Add(time.Hour))
	d.mu.Lock()
	taken := len(d.taken)
	d.mu.Unlock()
	if !one.Pool.HasOpen(owner, "build") || len(one.Pool.Unfinished()) != 1 || len(two.Pool.Unfinished()) != 1 || taken != 1 {
		t.Errorf("before the directory knows it: the old node has the name: %v; unfinished moves: %d and %d; told to the directory: %d",
			one.Pool.HasOpen(owner, "build"), len(one.Pool.Unfinished()), len(two.Pool.Unfinished()), taken)
	}
	d.mu.Lock()
	d.writes = true
	d.mu.Unlock()
	testkit.Eventually(t, "the old node has given up the name, and both have finished", func() bool {
		return !one.Pool.HasOpen(owner, "build") && len(one.Pool.Unfinished()) == 0 && len(two.Pool.Unfinished()) == 0
	})
}
