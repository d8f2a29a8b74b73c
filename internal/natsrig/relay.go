package natsrig

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Alone is a nats-server for the nodes of one test, which know no others.
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
func (s *Alone) Owner() []string { return s.Node("owner") }
func (s *Alone) Gate() []string  { return append(s.Node("gate"), "--no-sessions") }

// Node are the flags of a node with this name.
func (s *Alone) Node(node string) []string {
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
	ofOwner, ofGate, token := divide(flags)
	owner, err := rig.Launch(nil, append(nats.Owner(), ofOwner...)...)
	if err != nil {
		nats.End()
		return nil, err
	}
	endOwner := owner.Stop
	gate, err := rig.Launch(nil, append(nats.Gate(), ofGate...)...)
	if err != nil {
		endOwner()
		nats.End()
		return nil, err
	}
	owner.Own, owner.Addr, owner.Gate = owner.Addr, gate.Addr, gate
	owner.Stop = sync.OnceValue(func() []string {
		defer nats.End()
		return append(endOwner(), gate.Stop()...) // so that clients are told what an owner tells
	})
	if err := awaitOwner(gate, token); err != nil {
		owner.Stop()
		return nil, err
	}
	return owner, nil
}

// divide says which flags each node gets: clients come to the gate's Unix socket, and files of sessions are the owner's. token is one that both let in.
func divide(flags []string) (owner, gate []string, token string) {
	for i := 0; i < len(flags); i++ {
		name, value, inOne := strings.Cut(flags[i], "=")
		words := flags[i : i+1]
		if !inOne && i+1 < len(flags) && !strings.HasPrefix(flags[i+1], "-") {
			i++
			words, value = flags[i-1:i+1], flags[i]
		}
		if name != "--unix" {
			owner = append(owner, words...)
		}
		if !slices.Contains([]string{"--audit-log", "--record-dir", "--state-dir"}, name) {
			gate = append(gate, words...)
		}
		if text, err := os.ReadFile(value); name == "--token-file" && err == nil {
			token, _, _ = strings.Cut(string(text), " ")
		}
	}
	return owner, gate, token
}

// awaitOwner waits until the gate can have sessions made.
func awaitOwner(gate *rig.Server, token string) error {
	client := &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	said := ""
	for end := time.Now().Add(testkit.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		q, err := http.NewRequest(http.MethodPost, "http://"+gate.Addr+"/v1/rpc", strings.NewReader(`{"method":"system.nodes"}`))
		if err != nil {
			return err
		}
		q.Header.Set("Content-Type", "application/json")
		if token != "" {
			q.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(q)
		if err != nil {
			return err
		}
		var f rig.Frame
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if said = string(text); err != nil || json.Unmarshal(text, &f) != nil {
			continue
		}
		for _, n := range f.Data.Objs("nodes") {
			if n.Str("node") == "owner" && n.Num("max_sessions") > 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("the nodes do not find each other: %s\n%s", said, gate.Log())
}
