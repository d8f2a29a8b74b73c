package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"

	"trl/internal/natsrig"
)

// A gateway can be a node that owns no session: all sessions are on other nodes, and no client can tell. TRL_TEST_RELAY makes all gateways so. Each has a
// nats-server of its own, so that its nodes know none of another gateway's.

// cluster is what stands behind a gateway that owns no session.
type cluster struct {
	owners []*gateway // have all sessions
	nats   *natsrig.Alone
}

// joinCluster makes so many nodes for the gateway's sessions: owner, owner2 and so on.
func (g *gateway) joinCluster(nodes int) error {
	nats, err := natsrig.StartAlone(g.dir)
	if err != nil {
		return err
	}
	g.cluster = &cluster{nats: nats}
	own := slices.Clone(g.args)
	if i := slices.Index(own, "--unix"); i >= 0 { // a path that only the clients' node can listen on
		own = slices.Delete(own, i, i+2)
	}
	for i := range nodes {
		name := "owner"
		if i > 0 {
			name += fmt.Sprint(i + 1)
		}
		dir := filepath.Join(g.dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		args := append(nats.Node(name), "--token-file", filepath.Join(g.state(), "tokens"))
		g.cluster.owners = append(g.cluster.owners, &gateway{trl: g.trl, dir: dir, home: g.home, addr: "127.0.0.1:0", args: append(args, own...)})
	}
	g.args = append(nats.Gate(), g.args...)
	return nil
}

var readyOwner = regexp.MustCompile(`(?m)^owner\d* +ready`)

// awaitOwners waits until the gateway knows the other nodes, and that they take sessions.
func (g *gateway) awaitOwners() error {
	var out []byte
	if eventually(func() bool {
		cmd := exec.Command(g.trl, "nodes", "--url", "http://"+g.addr, "--token", g.tokens["admin"])
		out, _ = cmd.CombinedOutput()
		return len(readyOwner.FindAll(out, -1)) == len(g.cluster.owners)
	}) {
		return nil
	}
	return fmt.Errorf("the nodes do not find each other: %s", out)
}

// each does something to every node behind the gateway, if there are any, and stops at the first error.
func (c *cluster) each(do func(owner *gateway) error) error {
	if c == nil {
		return nil
	}
	for _, owner := range c.owners {
		if err := do(owner); err != nil {
			return err
		}
	}
	return nil
}
