package cluster

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trl/internal/natsrig"
	"trl/internal/rig"
	"trl/internal/testkit"
)

func TestMain(m *testing.M) { rig.Main(m) }

// nodes is a cluster on this machine.
type nodes struct {
	t      testing.TB
	nats   *natsrig.Cluster
	secret string
}

// newNodes starts servers of NATS and no node.
func newNodes(t testing.TB, servers int) *nodes {
	t.Helper()
	return newNodesWith(t, servers, natsrig.Options{})
}

func newNodesWith(t testing.TB, servers int, o natsrig.Options) *nodes {
	t.Helper()
	n := &nodes{t: t, nats: natsrig.StartWith(t, servers, o), secret: filepath.Join(t.TempDir(), "secret")}
	if err := os.WriteFile(n.secret, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	return n
}

// flags are those of a node.
func (n *nodes) flags(name string, more ...string) []string {
	return n.flagsAt(n.nats.URLs(), name, more...)
}

// flagsAt are those of a node that knows only these servers of NATS.
func (n *nodes) flagsAt(servers []string, name string, more ...string) []string {
	return append([]string{"--cluster", strings.Join(servers, ","), "--cluster-listen", "127.0.0.1:0", "--cluster-secret", n.secret, "--node", name}, more...)
}

// behindProxy returns the flags of a node that the others reach through a proxy.
func (n *nodes) behindProxy() (flags []string, link *natsrig.Proxy) {
	n.t.Helper()
	port := testkit.Port(n.t)
	link = natsrig.NewProxy(n.t, &natsrig.Server{Port: port})
	return []string{"--cluster-listen", fmt.Sprint("127.0.0.1:", port), "--cluster-advertise", fmt.Sprint("wss://127.0.0.1:", link.Port)}, link
}

// start starts a node.
func (n *nodes) start(name string, more ...string) *rig.Server {
	n.t.Helper()
	return rig.Gateway(n.t, n.flags(name, more...)...)
}

// sees waits until a node knows these others, and nobody else but itself, and none of them is degraded.
func sees(t testing.TB, g *rig.Server, names ...string) {
	t.Helper()
	c := g.Redial(t)
	defer c.Close()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("knows %q", got)
		}
	}()
	testkit.Eventually(t, "the node knows "+strings.Join(names, ", "), func() bool {
		got = got[:0]
		answer := c.Call("system.nodes", nil)
		for _, n := range answer.Objs("nodes") {
			if n.Num("max_sessions") > 0 { // else it does not serve yet, or makes none
				got = append(got, n.Str("node"))
			}
		}
		return strings.Join(got, " ") == strings.Join(names, " ") && !answer.Yes("degraded")
	})
}

// listed returns the sessions of all nodes. Each node has a second to answer, which a busy machine may take.
func listed(t testing.TB, c *rig.Client) (all []object) {
	t.Helper()
	testkit.Eventually(t, "all nodes list their sessions", func() bool {
		list := c.Call("session.list", nil)
		all = list.Objs("sessions")
		return !list.Has("partial")
	})
	return all
}

// killNode kills a whole node: the keeper and the gateway.
func killNode(t *testing.T, g *rig.Server) {
	t.Helper()
	gateway := g.Serving(t) // never 0, which would be our own process group
	for _, pid := range []int{g.Pid, gateway} {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH { // the gateway ends when its keeper is gone
			t.Fatal(err)
		}
	}
}

func epochOf(t *testing.T, g *rig.Server) string {
	t.Helper()
	c := g.Redial(t)
	defer c.Close()
	return c.Call("system.ping", nil).Str("epoch")
}
