package rig

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"

	"github.com/coder/websocket"
)

// GatewayPid returns the process below the keeper that serves; 0 if there is none at the moment. If there are several, it is the oldest: a
// child that is about to become a shell has the same command line for a moment.
func (g *Server) GatewayPid() (oldest int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", g.Pid, g.Pid))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", g.Pid))
	for _, task := range tasks {
		more, _ := os.ReadFile(task)
		text = append(append(text, ' '), more...)
	}
	since := math.MaxInt
	for _, field := range strings.Fields(string(text)) {
		pid, _ := strconv.Atoi(field)
		_, _, start, ok := ProcStat(pid)
		if ticks, err := strconv.Atoi(start); ok && err == nil && (ticks < since || ticks == since && pid < oldest) && strings.Contains(Cmdline(pid), "serve") {
			oldest, since = pid, ticks
		}
	}
	return oldest
}

// KillGateway kills the gateway, and returns when another one exists, which may not serve yet.
func (g *Server) KillGateway(t testing.TB) {
	t.Helper()
	old := 0
	testkit.Eventually(t, "a gateway is there", func() bool { old = g.GatewayPid(); return old > 0 })
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "another gateway is there", func() bool { now := g.GatewayPid(); return now > 0 && now != old })
}

// Redial returns a new client once a gateway answers.
func (g *Server) Redial(t testing.TB) *Client {
	t.Helper()
	testkit.Eventually(t, "the gateway serves", g.serves)
	return g.Dial(t)
}

// serves reports whether the gateway answers, and the node that has the sessions, too.
func (g *Server) serves() bool {
	if g.Own != "" && !g.Owner().serves() { // the other node may not know yet that it was killed
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a := Again{G: g}
	defer func() {
		if a.Ws != nil {
			a.Ws.CloseNow()
		}
	}()
	f, err := a.Ask(ctx, "system.ping", Object{}, nil)
	if err != nil || f.Error != nil || g.Own == "" {
		return err == nil && f.Error == nil
	}
	f, err = a.Ask(ctx, "system.nodes", Object{}, nil)
	return err == nil && slices.ContainsFunc(f.Data.Objs("nodes"), func(n Object) bool { return n.Num("max_sessions") > 0 && !n.Has("unreachable") }) // sessions can be made
}

// Upgrade upgrades the gateway, after an upgrade that is under way, and waits for the result.
func (g *Server) Upgrade(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, "an upgrade is done", func() bool {
		return exec.Command(Binary, "upgrade", "--state-dir", filepath.Join(g.Dir, "state")).Run() == nil
	})
}

// Freeze stops the gateway until it is killed or the test ends. It returns when all threads stand still: on a busy machine, others run on for a while
// before the one that gets the signal stops them.
func (g *Server) Freeze(t testing.TB) {
	t.Helper()
	pid := g.GatewayPid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	testkit.Eventually(t, "the gateway stands still", func() bool {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(thread os.DirEntry) bool {
			id, _ := strconv.Atoi(thread.Name())
			state, _, _, there := ProcStat(id)
			return there && state != 'T'
		})
	})
}

// ReplaceGateway kills the gateway and waits until another one serves.
func ReplaceGateway(t *testing.T, g *Server) {
	old := g.GatewayPid()
	if old == 0 || syscall.Kill(old, syscall.SIGKILL) != nil {
		t.Fatalf("no gateway to kill: %d", old)
	}
	testkit.Eventually(t, "another gateway serves", func() bool {
		pid := g.GatewayPid()
		return pid != 0 && pid != old && g.serves()
	})
}

// Again is a connection that is opened again whenever it breaks, until ctx ends.
type Again struct {
	G           *Server
	Ws          *websocket.Conn
	Subprotocol string // "": without binary frames
}

// Ask sends a request and returns its answer. It passes each event before the answer to events, until events returns false. If the node of the session
// cannot be reached, nothing was done, and that is an error like a broken connection.
func (a *Again) Ask(ctx context.Context, method string, params Object, events func(name string, data Object) bool) (f Frame, err error) {
	if a.Ws == nil {
		dial, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if a.Ws, _, err = websocket.Dial(dial, "ws://"+a.G.Addr+"/v1/ws", &websocket.DialOptions{Subprotocols: []string{cmp.Or(a.Subprotocol, "trl.v1")}}); err != nil {
			a.Ws = nil
			return f, err
		}
		a.Ws.SetReadLimit(-1)
	}
	defer func() {
		if err != nil {
			a.Ws.CloseNow()
			a.Ws = nil
		}
	}()
	text, _ := json.Marshal(Object{"id": 1, "method": method, "params": params})
	if err := a.Ws.Write(ctx, websocket.MessageText, text); err != nil {
		return f, err
	}
	answered := false
	for {
		kind, text, err := a.Ws.Read(ctx)
		if err != nil {
			return f, err
		}
		if kind == websocket.MessageBinary {
			continue
		}
		var in Frame
		if err := json.Unmarshal(text, &in); err != nil {
			return f, err
		}
		switch {
		case in.Event == "":
			f, answered = in, true
			if a.G.Gate != nil && f.Code() == "NODE_UNREACHABLE" {
				time.Sleep(50 * time.Millisecond) // it says that it may take a second; the next answer comes sooner
				return Frame{}, fmt.Errorf("%s: %s", f.Error.Code, f.Error.Message)
			}
			if events == nil || f.Error != nil {
				return f, nil
			}
		case events != nil && !events(in.Event, in.Data) && answered:
			return f, nil
		}
	}
}
