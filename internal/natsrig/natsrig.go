// Package natsrig starts real nats-servers for tests, with JetStream, and kills, stops and restarts them. Its proxy cuts connections to them.
package natsrig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Server is one nats-server on loopback. Its ports and its store stay the same over restarts.
type Server struct {
	Name string
	Port int

	t     testing.TB
	conf  string
	log   string
	cmd   *exec.Cmd // nil while it is down
	paths []*Proxy  // between this server and each of the others, if they can be cut
}

// Cluster is one server, or several that form a cluster.
type Cluster struct {
	Servers []*Server
	t       testing.TB
}

// Options of servers.
type Options struct {
	Cert, Key string // PEM files; if they are set, the server demands TLS
	Divisible bool   // Isolate works; clients know only the servers that they were told of
}

// Start starts n servers and waits until JetStream answers. They end with the test.
func Start(t testing.TB, n int) *Cluster { return StartWith(t, n, Options{}) }

// StartWith is Start with options. It does not wait for servers that demand TLS.
func StartWith(t testing.TB, n int, o Options) *Cluster {
	t.Helper()
	testkit.StartsProcesses(t)
	c := &Cluster{t: t}
	ports := testkit.Ports(t, 2*n) // a server must know its peers' ports before it starts
	routes := make([][]string, n)  // of each server
	paths := make([][]*Proxy, n)
	for i := range n {
		for j := range n {
			port := ports[n+j]
			if o.Divisible && i != j { // a proxy for each direction of each pair
				p := newProxy(t, port)
				paths[i], paths[j], port = append(paths[i], p), append(paths[j], p), p.Port
			}
			routes[i] = append(routes[i], fmt.Sprintf("nats://127.0.0.1:%d", port))
		}
	}
	for i := range n {
		dir := t.TempDir()
		s := &Server{Name: fmt.Sprint("nats", i+1), Port: ports[i], t: t, conf: filepath.Join(dir, "conf"), log: filepath.Join(dir, "log"), paths: paths[i]}
		var b strings.Builder
		// sync_interval always: without it, a server that is killed may lose writes that it has acknowledged.
		fmt.Fprintf(&b, "listen: 127.0.0.1:%d\nserver_name: %s\njetstream { store_dir: %q, sync_interval: always }\n", s.Port, s.Name, filepath.Join(dir, "store"))
		if n > 1 {
			alone := ""
			if o.Divisible { // the servers tell each other, and their clients, of no address that leads past the proxies
				alone = `, no_advertise: true, advertise: "127.0.0.1:1"`
			}
			fmt.Fprintf(&b, "cluster { name: test, listen: \"127.0.0.1:%d\", routes: [%s]%s }\n", ports[n+i], strings.Join(routes[i], ", "), alone)
		}
		if o.Cert != "" {
			fmt.Fprintf(&b, "tls { cert_file: %q, key_file: %q }\n", o.Cert, o.Key)
		}
		if err := os.WriteFile(s.conf, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Servers = append(c.Servers, s)
	}
	t.Cleanup(func() {
		for _, s := range c.Servers {
			s.Kill()
			if log := s.Log(); t.Failed() {
				t.Logf("%s, the end of its log:\n%s", s.Name, log[max(0, len(log)-2000):])
			}
		}
	})
	for _, s := range c.Servers {
		s.Start()
	}
	if o.Cert == "" {
		c.WaitReady()
	}
	return c
}

// Start starts the server, also again after Kill. It does not wait until the server is ready.
func (s *Server) Start() {
	s.t.Helper()
	if s.cmd != nil {
		return
	}
	program, err := Program()
	if err != nil {
		s.t.Fatal(err)
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, "-c", s.conf)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // also ends a stopped server
	if err := testkit.Start(cmd); err != nil {
		s.t.Fatal(err)
	}
	s.cmd = cmd
}

// Kill kills the server with SIGKILL and waits for its end. A server that is down stays down.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Stop and Continue send SIGSTOP and SIGCONT.
func (s *Server) Stop()     { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *Server) Continue() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Isolate cuts the server off from the other servers, but not from its clients, until Rejoin. The cluster must be Divisible.
func (s *Server) Isolate() {
	for _, p := range s.paths {
		p.Hold()
		p.Cut()
	}
}

// Rejoin ends Isolate.
func (s *Server) Rejoin() {
	for _, p := range s.paths {
		p.Cut()
		p.Release()
	}
}

// Forget removes what a server that is down has stored.
func (s *Server) Forget() {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(filepath.Dir(s.conf), "store")); err != nil {
		s.t.Fatal(err)
	}
}

// URL is where clients connect.
func (s *Server) URL() string { return "nats://127.0.0.1:" + strconv.Itoa(s.Port) }

// Log returns what the server has logged.
func (s *Server) Log() string {
	text, _ := os.ReadFile(s.log)
	return string(text)
}

// URLs are those of all servers, also of those that are down.
func (c *Cluster) URLs() (all []string) {
	for _, s := range c.Servers {
		all = append(all, s.URL())
	}
	return all
}

// Connect returns a connection of the test's own, for looking at what the servers have.
func (c *Cluster) Connect() *nats.Conn {
	c.t.Helper()
	nc, err := nats.Connect(strings.Join(c.URLs(), ","), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(nc.Close)
	return nc
}

// WaitReady waits until JetStream answers a request.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	nc := c.Connect()
	defer nc.Close()
	testkit.Eventually(c.t, "JetStream answers", func() bool {
		m, err := nc.Request("$JS.API.STREAM.NAMES", nil, time.Second)
		return err == nil && !strings.Contains(string(m.Data), `"error"`)
	})
}

// Leader returns the server that leads a stream.
func (c *Cluster) Leader(stream string) (leader *Server) {
	c.t.Helper()
	nc := c.Connect()
	defer nc.Close()
	testkit.Eventually(c.t, stream+" has a leader", func() bool {
		m, err := nc.Request("$JS.API.STREAM.INFO."+stream, nil, time.Second)
		if err != nil {
			return false
		}
		for _, s := range c.Servers {
			if strings.Contains(string(m.Data), fmt.Sprintf(`"leader":%q`, s.Name)) {
				leader = s
			}
		}
		return leader != nil
	})
	return leader
}

// Usage returns the processor time that the running servers have used, and the bytes of memory that they use.
func (c *Cluster) Usage() (cpu time.Duration, rss int) {
	for _, s := range c.Servers {
		if s.cmd == nil {
			continue
		}
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 22 {
			continue
		}
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		pages, _ := strconv.Atoi(fields[21])
		cpu += time.Duration(user+system) * 10 * time.Millisecond // a tick is 1/100 s on Linux
		rss += pages * os.Getpagesize()
	}
	return cpu, rss
}

// Program returns the path of nats-server. It is built once in each test binary, from a module that is not ours. The file has no name any more when the tests run, so
// nobody needs to remove it.
var Program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "trl-natsrig-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "nats-server")
	if err := rig.BuildProgram(path, "nats-server", "cluster/natsserver", "github.com/nats-io/nats-server/v2"); err != nil {
		return "", err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), err
})
