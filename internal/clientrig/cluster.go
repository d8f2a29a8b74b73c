package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"trl/internal/natsrig"
)

// A gateway can be a node that owns no session: all sessions are on a second node, and no client can tell. TRL_TEST_RELAY makes all gateways so. Each has a
// nats-server of its own, so that the nodes of one know nothing of the others.

// cluster is what stands behind a gateway that owns no session.
type cluster struct {
	owner *gateway // has all sessions
	nats  *natsrig.Alone
}

func (g *gateway) joinCluster() error {
	dir := filepath.Join(g.dir, "owner")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	nats, err := natsrig.StartAlone(g.dir)
	if err != nil {
		return err
	}
	owner := append(nats.Owner(), "--token-file", filepath.Join(g.state(), "tokens"))
	g.cluster = &cluster{owner: &gateway{trl: g.trl, dir: dir, home: g.home, addr: "127.0.0.1:0", args: append(owner, g.args...)}, nats: nats}
	g.args = append(nats.Gate(), g.args...)
	return nil
}

// awaitOwner waits until the gateway knows the owner, and that it takes sessions.
func (g *gateway) awaitOwner() error {
	var out []byte
	if eventually(func() bool {
		cmd := exec.Command(g.trl, "nodes", "--url", "http://"+g.addr, "--token", g.tokens["admin"])
		out, _ = cmd.CombinedOutput()
		return strings.Contains(string(out), "owner   ready")
	}) {
		return nil
	}
	return fmt.Errorf("the nodes do not find each other: %s", out)
}
