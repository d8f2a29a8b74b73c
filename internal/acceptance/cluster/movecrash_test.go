package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// keeperCalm is how long a gateway lives that the keeper does not take for one that cannot start.
const keeperCalm = 1050 * time.Millisecond

// A session moves, and one of its two gateways is killed at each point of that in turn, see package crashpoint. Afterwards one node has the session as it was,
// and it can move.
func TestMoveWhereverAGatewayDies(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"old", "new"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			moveAndDieEverywhere(t, who == "new")
		})
	}
}

// crashingNode is a node whose gateway dies at a point.
type crashingNode struct {
	*rig.Server
	arm   string    // the file that says at which
	since time.Time // its gateway lives
}

func moveAndDieEverywhere(t *testing.T, newDies bool) {
	program, err := rig.Crashing()
	if err != nil {
		t.Fatal(err)
	}
	n := newNodes(t, 1)
	gate := n.start("gate", "--no-sessions")
	nodes := map[string]*crashingNode{}
	for _, name := range []string{"one", "two"} {
		node := &crashingNode{arm: filepath.Join(t.TempDir(), "arm")}
		node.Server, err = rig.Launch(func(c *exec.Cmd) {
			c.Path = program
			c.Env = append(c.Env, "TRL_CRASH="+node.arm)
		}, n.flags(name, "--warm", "0")...)
		if err != nil {
			t.Fatal(err)
		}
		node.EndWith(t)
		nodes[name] = node
	}
	sees(t, gate, "one", "two")
	create := object{"name": "far", "node": "one", "request_key": "k"}
	s := gate.Dial(t).Call("session.create", create).Str("session_id")
	again := rig.Again{G: gate}
	var f rig.Frame
	tried := func(method string, params object, done func() bool) { // until its answer is final
		t.Helper()
		testkit.Eventually(t, method, func() bool {
			var err error
			f, err = again.Ask(t.Context(), method, params, nil)
			return err == nil && f.Code() != "NODE_UNREACHABLE" && f.Code() != "DIRECTORY_UNAVAILABLE" && done()
		})
	}
	always := func() bool { return true }
	where := func() string {
		tried("session.locate", object{"session_id": s}, always)
		return f.Data.Str("node")
	}
	other := map[string]string{"one": "two", "two": "one"}
	step := 1
	if newDies && !testkit.Soak { // which has some 60 points
		step = 7
	}
	moved, x := 0, 0
	for point := 1; ; point += step {
		from := where()
		to, dies := other[from], nodes[from]
		if newDies {
			dies = nodes[to]
		}
		was := dies.Serving(t)
		time.Sleep(time.Until(dies.since.Add(keeperCalm))) // else the keeper waits before it starts the next one
		if err := os.WriteFile(dies.arm, fmt.Append(nil, point), 0o600); err != nil {
			t.Fatal(err)
		}
		x++
		run := object{"session": "far", "command": "N=$((N+1)); echo $N", "request_key": fmt.Sprint("k", x)}
		mover := gate.Dial(t) // may end with the link to a gateway that dies
		move := mover.Begin("session.move", object{"session_id": s, "node": to})
		mover.Begin("exec.run", run)
		tried("exec.run", run, always)
		if f.Data.Stdout() != fmt.Sprintln(x) {
			t.Fatalf("at point %d: %q, want %d; %+v", point, f.Data.Stdout(), x, f.Error)
		}
		testkit.Eventually(t, "the move is over, or a gateway has died", func() bool { // it may begin late
			pid := dies.GatewayPid()
			return pid > 0 && pid != was || isOver(mover, move)
		})
		_ = os.Remove(dies.arm) // else what follows were killed
		died := dies.Serving(t) != was
		if !died { // it still counts
			dies.KillGateway(t)
		}
		dies.since = time.Now()
		if tried("session.create", create, always); f.Data.Str("session_id") != s {
			t.Fatalf("after a death at point %d the same request made %v; %+v", point, f.Data, f.Error)
		}
		if !died && where() == to {
			t.Logf("%d points, %d moves", point-1, moved)
			return
		}
		if where() == to {
			moved++
			to = from
		}
		tried("session.move", object{"session_id": s, "node": to}, func() bool { return f.Code() != "SESSION_BUSY" })
		if f.Error != nil || where() != to {
			t.Fatalf("after a death at point %d the session does not move to %s: %+v", point, to, f.Error)
		}
		for name := range nodes {
			if tried("session.create", object{"name": "far", "node": name}, always); f.Code() != "SESSION_EXISTS" {
				t.Fatalf("after a death at point %d the name is not the session's: %q", point, f.Code())
			}
		}
		tried("session.list", nil, func() bool { return !f.Data.Has("partial") })
		if all := f.Data.Objs("sessions"); len(all) != 1 || all[0].Str("session_id") != s || all[0].Str("name") != "far" || all[0].Str("state") == "" {
			t.Fatalf("after a death at point %d: %v", point, all)
		}
	}
}

// isOver reports whether a request was answered, or its connection has ended.
func isOver(c *rig.Client, id int) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.Err != nil || slices.ContainsFunc(c.Came, func(f *rig.Frame) bool { return f.Event == "" && f.ID == float64(id) })
}
