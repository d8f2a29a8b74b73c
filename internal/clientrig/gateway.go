package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// patience bounds what a gateway may take to start, to be replaced or to end. Nothing takes a tenth of it on an idle machine.
const patience = 60 * time.Second

// gateway is a trl serve with a state directory of its own, and the proxy in front of it.
type gateway struct {
	trl, dir, home, addr string
	args                 []string
	tokens               map[string]string // by role; set once
	proxy                *proxy            // nil for an owner
	server               *rig.Server       // the running keeper; restart replaces it
	cluster              *cluster          // nil: the gateway owns its sessions itself
}

// newGateway starts a gateway. With nodes it owns no session, and so many other nodes have them.
func newGateway(trl, dir string, args []string, nodes int) (*gateway, error) {
	g := &gateway{trl: trl, dir: dir, home: filepath.Join(dir, "home"), addr: "127.0.0.1:0", args: args, tokens: map[string]string{}}
	if err := os.Mkdir(g.home, 0o700); err != nil {
		return nil, err
	}
	if nodes > 0 {
		if err := g.joinCluster(nodes); err != nil {
			return nil, errors.Join(err, g.stop())
		}
	}
	for _, role := range []string{"admin", "user", "viewer"} {
		subject := map[string]string{"admin": "root"}[role]
		if subject == "" {
			subject = "tester" // a viewer of the same subject sees the user's sessions
		}
		out, err := exec.Command(trl, "token", "create", "--state-dir", g.state(), "--subject", subject, "--role", role).Output()
		if err != nil {
			return nil, fmt.Errorf("token create: %w", err)
		}
		g.tokens[role] = strings.TrimSpace(string(out))
	}
	if err := g.start(); err != nil {
		return nil, errors.Join(err, g.stop())
	}
	p, err := newProxy(g.addr)
	if err != nil {
		return nil, errors.Join(err, g.stop())
	}
	g.proxy = p
	return g, nil
}

func (g *gateway) state() string { return filepath.Join(g.dir, "state") }

// start starts the keeper, the second time on the address of the first. In a cluster it starts the owners first, and waits until the gateway knows them.
func (g *gateway) start() error {
	if err := g.cluster.each((*gateway).startOne); err != nil {
		return err
	}
	if err := g.startOne(); err != nil || g.cluster == nil {
		return err
	}
	return g.awaitOwners()
}

func (g *gateway) startOne() error {
	s := &rig.Server{Dir: g.dir, Home: g.home, Book: &testkit.LogBook{}, Exited: make(chan struct{})}
	s.Cmd = exec.Command(g.trl, append([]string{"serve", "--listen", g.addr, "--state-dir", g.state(), "--default-dir", g.home}, g.args...)...)
	s.Cmd.Env = append(os.Environ(), "HOME="+g.home, "TRL_STATE_DIR="+g.state())
	s.Cmd.Stderr = s.Book
	out, err := s.Cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := testkit.Start(s.Cmd); err != nil {
		return err
	}
	s.Pid = s.Cmd.Process.Pid
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if addr, ok := strings.CutPrefix(lines.Text(), "trl: listening on http://"); ok {
			g.addr, g.server = addr, s
			go func() { // reaps it; ends with the process, which stop waits for
				_ = s.Cmd.Wait()
				close(s.Exited)
			}()
			return nil
		}
	}
	_ = s.Cmd.Wait()
	return fmt.Errorf("trl serve ended: %s", s.Log())
}

// kill ends the gateway in the worst way, in a cluster those of all nodes, and returns when another one is there. The keeper, and with it the sessions,
// live on.
func (g *gateway) kill() error {
	if err := g.cluster.each((*gateway).kill); err != nil {
		return err
	}
	old := 0
	if !eventually(func() bool { old = g.server.GatewayPid(); return old > 0 }) {
		return errors.New("no gateway to kill")
	}
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		return err
	}
	if !eventually(func() bool { now := g.server.GatewayPid(); return now > 0 && now != old }) {
		return errors.New("no gateway came after the killed one")
	}
	return nil
}

func (g *gateway) upgrade() error {
	if err := g.cluster.each((*gateway).upgrade); err != nil {
		return err
	}
	var out []byte
	if eventually(func() (done bool) {
		var err error
		out, err = exec.Command(g.trl, "upgrade", "--state-dir", g.state()).CombinedOutput()
		return err == nil
	}) {
		return nil
	}
	return fmt.Errorf("trl upgrade: %s", out)
}

// restart ends everything, sessions and all, and starts anew with the same address and tokens: a new epoch.
func (g *gateway) restart() error {
	if err := g.terminate(); err != nil {
		return err
	}
	return g.start()
}

// terminate ends the keeper as an operator would, in a cluster those of all nodes.
func (g *gateway) terminate() (err error) {
	_ = g.cluster.each(func(owner *gateway) error {
		err = errors.Join(err, owner.terminateOne())
		return nil
	})
	return errors.Join(err, g.terminateOne())
}

func (g *gateway) terminateOne() error {
	if g.server == nil {
		return nil
	}
	_ = g.server.Cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-g.server.Exited:
		return nil
	case <-time.After(patience):
		_ = g.server.Cmd.Process.Kill()
		<-g.server.Exited
		return errors.New("the gateway did not end")
	}
}

func (g *gateway) stop() error {
	if g.proxy != nil {
		g.proxy.close()
	}
	err := g.terminate()
	if g.cluster != nil {
		g.cluster.nats.End()
	}
	return errors.Join(err, os.RemoveAll(g.dir))
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
