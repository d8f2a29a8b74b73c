package natsrig

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Alone is a nats-server for two nodes of a cluster that know no others.
type Alone struct {
	url, secret string
	cmd         *exec.Cmd
}

// StartAlone starts one. Its files are in dir.
func StartAlone(dir string) (*Alone, error) {
	program, err := Program()
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "nats.conf")
	s := &Alone{secret: filepath.Join(dir, "secret"), cmd: exec.Command(program, "-c", conf)}
	if err := errors.Join(
		os.WriteFile(s.secret, []byte(rand.Text()+rand.Text()), 0o600),
		os.WriteFile(conf, fmt.Appendf(nil, "listen: \"127.0.0.1:-1\"\nports_file_dir: %q\njetstream { store_dir: %q }\n", dir, filepath.Join(dir, "nats")), 0o600),
	); err != nil {
		return nil, err
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := testkit.Start(s.cmd); err != nil {
		return nil, err
	}
	ports := filepath.Join(dir, fmt.Sprintf("%s_%d.ports", filepath.Base(program), s.cmd.Process.Pid)) // the server writes it when it listens
	for end := time.Now().Add(testkit.Patience); s.url == ""; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(ports)
		s.url = regexp.MustCompile(`nats://127\.0\.0\.1:\d+`).FindString(string(text))
		if s.url == "" && time.Now().After(end) {
			s.End()
			return nil, errors.New("nats-server does not listen")
		}
	}
	return s, nil
}

// End kills the server.
func (s *Alone) End() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Owner are the flags of the node that has all sessions, and Gate those of the one that clients use, which has none.
func (s *Alone) Owner() []string { return s.flags("owner") }
func (s *Alone) Gate() []string  { return append(s.flags("gate"), "--no-sessions") }

func (s *Alone) flags(node string) []string {
	return []string{"--cluster", s.url, "--cluster-listen", "127.0.0.1:0", "--cluster-secret", s.secret, "--node", node}
}

// Main is rig.Main. If TRL_TEST_RELAY is set, the gateways of rig.StartGateway, Gateway and Shared have their sessions and their files, but clients come to
// another node, which owns no session: no test should see that.
func Main(m *testing.M) {
	if os.Getenv("TRL_TEST_RELAY") != "" {
		rig.StartOther = startRelayed
	}
	rig.Main(m)
}

func startRelayed(flags []string) (*rig.Server, error) {
	dir, err := os.MkdirTemp(rig.Top, "nats-")
	if err != nil {
		return nil, err
	}
	nats, err := StartAlone(dir)
	if err != nil {
		return nil, err
	}
	if slices.Contains(flags, rig.GatewayUser) {
		uid, _ := strconv.Atoi(rig.GatewayUser)
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(nats.secret, uid, uid)); err != nil { // #nosec G302 -- the gateway's user must reach its secret
			return nil, err
		}
	}
	owner, err := rig.Launch(nil, append(nats.Owner(), flags...)...)
	if err != nil {
		nats.End()
		return nil, err
	}
	endOwner := owner.Stop
	gate, err := rig.Launch(nil, append(nats.Gate(), flags...)...)
	if err != nil {
		endOwner()
		nats.End()
		return nil, err
	}
	owner.Own, owner.Addr = owner.Addr, gate.Addr
	owner.Stop = sync.OnceValue(func() []string {
		defer nats.End()
		return append(gate.Stop(), endOwner()...)
	})
	if err := awaitOwner(gate); err != nil {
		owner.Stop()
		return nil, err
	}
	return owner, nil
}

// awaitOwner waits until the gate can have sessions made.
func awaitOwner(gate *rig.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	again := rig.Again{G: gate}
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		answer, err := again.Ask(ctx, "system.nodes", rig.Object{}, nil)
		if err != nil {
			continue
		}
		for _, n := range answer.Data.Objs("nodes") {
			if n.Str("node") == "owner" && n.Num("max_sessions") > 0 {
				again.Ws.CloseNow()
				return nil
			}
		}
	}
	return errors.New("the nodes do not find each other: " + gate.Log())
}
