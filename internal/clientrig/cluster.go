package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"trl/internal/natsrig"
	"trl/internal/testkit"
)

// A gateway can be a node that owns no session: all sessions are on a second node, and no client can tell. TRL_TEST_RELAY makes all gateways so. Each has a
// nats-server of its own, so that the nodes of one know nothing of the others.

// cluster is what stands behind a gateway that owns no session.
type cluster struct {
	owner *gateway // has all sessions
	nats  *natsServer
}

func (g *gateway) joinCluster() error {
	secret := filepath.Join(g.dir, "secret")
	if err := os.WriteFile(secret, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		return err
	}
	nats, err := startNATS(g.dir)
	if err != nil {
		return err
	}
	flags := func(node string, more ...string) []string {
		return append([]string{"--cluster", nats.url, "--cluster-listen", "127.0.0.1:0", "--cluster-secret", secret, "--node", node}, more...)
	}
	dir := filepath.Join(g.dir, "owner")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	g.cluster = &cluster{owner: &gateway{trl: g.trl, dir: dir, home: g.home, addr: "127.0.0.1:0", args: append(flags("owner", "--token-file", filepath.Join(g.state(), "tokens")), g.args...)}, nats: nats}
	g.args = append(flags("gate", "--no-sessions"), g.args...)
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

// natsServer is a nats-server on loopback.
type natsServer struct {
	url string
	cmd *exec.Cmd
}

func startNATS(dir string) (*natsServer, error) {
	program, err := natsrig.Program()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "listen: %q\njetstream { store_dir: %q }\n", addr, filepath.Join(dir, "nats")), 0o600); err != nil {
		return nil, err
	}
	s := &natsServer{url: "nats://" + addr, cmd: exec.Command(program, "-c", conf)}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := testkit.Start(s.cmd); err != nil {
		return nil, err
	}
	if !eventually(func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		s.end()
		return nil, errors.New("nats-server does not listen")
	}
	return s, nil
}

func (s *natsServer) end() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}
