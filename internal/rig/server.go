package rig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"
)

// Server is a real gateway process with its log.
type Server struct {
	Addr string // HOST:PORT, of the gateway that clients use
	Own  string // HOST:PORT of the gateway that has the sessions, if that is another node; it counts what they do. All below is of that node
	Pid  int    // the keeper's pid
	Dir  string // has everything: state, home and temporary directory of its sessions; it is unique, so it identifies them
	Home string // where its sessions start
	Cmd  *exec.Cmd
	Book *testkit.LogBook
	Gate *Server // the node that clients use, if it is another one; nil: this one

	Stop   func() []string // ends the gateway once, and returns what was wrong with its end
	Exited chan struct{}   // closed when the process is gone
}

// Gateway starts a gateway for this test. It must end in time, with exit code 0, and leave no process.
func Gateway(t testing.TB, flags ...string) *Server {
	t.Helper()
	g, err := StartGateway(flags...)
	if err != nil {
		t.Fatal(err)
	}
	g.EndWith(t)
	return g
}

// EndWith makes the gateway end with the test.
func (g *Server) EndWith(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		for _, fault := range g.Stop() {
			t.Errorf("gateway: %s", fault)
		}
		if t.Failed() {
			t.Logf("its log:\n%s", g.Log())
		}
	})
}

var sharing struct {
	sync.Mutex
	gateways map[string]*Server // guarded by the mutex
}

// Shared returns the gateway with this name. The first call starts it with flags. Its end is checked when all tests are done.
func Shared(t testing.TB, name string, flags ...string) *Server {
	t.Helper()
	sharing.Lock()
	defer sharing.Unlock()
	g := sharing.gateways[name]
	if g == nil {
		var err error
		if g, err = StartGateway(flags...); err != nil {
			t.Fatal(err)
		}
		if sharing.gateways == nil {
			sharing.gateways = map[string]*Server{}
		}
		sharing.gateways[name] = g
	}
	from := g.Book.Len()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the gateway's log meanwhile:\n%s", g.Log()[from:])
		}
	})
	return g
}

// EndWithin is 5 times the 8 s in which a gateway must end, whatever its sessions do.
const EndWithin = 40 * time.Second

// StartOther starts what StartGateway returns instead of a gateway of its own, if it is set.
var StartOther func(flags []string) (*Server, error)

func StartGateway(flags ...string) (*Server, error) {
	if StartOther != nil {
		return StartOther(flags)
	}
	return Launch(nil, flags...)
}

// Launch starts a gateway; tune may change the command.
func Launch(tune func(*exec.Cmd), flags ...string) (*Server, error) {
	dir, err := os.MkdirTemp(Top, "g-")
	if err != nil {
		return nil, err
	}
	g := &Server{Dir: dir, Home: filepath.Join(dir, "home"), Book: &testkit.LogBook{}, Exited: make(chan struct{})}
	tmp := filepath.Join(dir, "tmp")
	if err := errors.Join(os.Mkdir(g.Home, 0o700), os.Mkdir(tmp, 0o700)); err != nil {
		return nil, err
	}
	for _, path := range []string{Top, dir, g.Home, tmp} { // sessions may run as another user
		if err := os.Chmod(path, 0o777); err != nil {
			return nil, err
		}
	}
	flags = append(slices.Clone(FlagsOfAll), flags...)
	g.Cmd = exec.Command(Binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--auth", "none", "--default-dir", g.Home,
		"--state-dir", filepath.Join(dir, "state"), "--log-format", "json"}, flags...)...)
	g.Cmd.Env = append(os.Environ(), "HOME="+g.Home, "TMPDIR="+tmp)
	g.Cmd.Stderr = g.Book
	g.Cmd.WaitDelay = 20 * time.Second // for a gateway that ends what a killed keeper left; a process that still holds its stderr then is a leak, and Wait reports it
	line, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer line.Close()
	g.Cmd.Stdout = w
	if tune != nil {
		tune(g.Cmd)
	}
	err = testkit.Start(g.Cmd)
	w.Close()
	if err != nil {
		return nil, err
	}
	g.Pid = g.Cmd.Process.Pid
	var ended error
	go func() { // reaps the process and ends with it; Stop waits for it
		ended = g.Cmd.Wait()
		close(g.Exited)
	}()
	g.Stop = sync.OnceValue(func() (faults []string) {
		_ = g.Cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-g.Exited:
		case <-time.After(EndWithin):
			_ = g.Cmd.Process.Kill()
			<-g.Exited
			faults = append(faults, fmt.Sprintf("did not end within %s", EndWithin))
		}
		if ended != nil {
			faults = append(faults, ended.Error())
		}
		if left := g.Processes(); len(left) > 0 {
			faults = append(faults, fmt.Sprintf("left processes behind: %v", left))
		}
		if strings.Contains(g.Log(), "panic: ") || strings.Contains(g.Log(), "DATA RACE") {
			faults = append(faults, "its log:\n"+g.Log())
		}
		return faults
	})
	_ = line.SetReadDeadline(time.Now().Add(testkit.Patience))
	b := make([]byte, 200)
	n, err := line.Read(b) // the line is one write
	var ok bool
	if g.Addr, ok = strings.CutPrefix(strings.TrimSpace(string(b[:n])), "trl: listening on http://"); !ok {
		g.Stop()
		return nil, fmt.Errorf("gateway said %q (%w), log:\n%s", b[:n], err, g.Log())
	}
	return g, nil
}

// StartTuned starts a server for this test in a special way.
func StartTuned(t *testing.T, tune func(*exec.Cmd), flags ...string) *Server {
	t.Helper()
	g, err := Launch(tune, flags...)
	if err != nil {
		t.Fatal(err)
	}
	g.EndWith(t)
	return g
}

// StartedBy starts the server with another program, which then execs it.
func StartedBy(words ...string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		path, err := exec.LookPath(words[0])
		if err == nil {
			cmd.Path, cmd.Args = path, append(words, append([]string{Binary}, cmd.Args[1:]...)...)
		}
	}
}

// Processes lists the processes of this gateway's sessions and warm shells. It recognises them by the TMPDIR in the environment that every
// session gets, or by the working directory. Zombies have neither.
func (g *Server) Processes() (all []string) {
	mark := []byte("TMPDIR=" + g.Dir)
	for _, pid := range testkit.Pids() {
		if pid == g.Pid || g.Cmd != nil && pid == g.Cmd.Process.Pid || pid == os.Getpid() {
			continue
		}
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if bytes.Contains(environ, mark) || strings.HasPrefix(cwd, g.Dir+"/") {
			all = append(all, fmt.Sprintf("%d %q", pid, Cmdline(pid)))
		}
	}
	return all
}

func (g *Server) Log() string { return g.Book.String() }

// Front returns the node that clients use: its processes, its log and its metrics are about connections.
func (g *Server) Front() *Server { return cmp.Or(g.Gate, g) }

// Owner returns the node that has the sessions, without another one in between.
func (g *Server) Owner() *Server {
	owner := *g
	owner.Addr, owner.Own, owner.Gate = cmp.Or(g.Own, g.Addr), "", nil
	return &owner
}

// Serving returns the process that serves: the gateway below the keeper. For a server that was not launched, it is g.Pid.
func (g *Server) Serving(t testing.TB) int {
	t.Helper()
	if g.Cmd == nil {
		return g.Pid
	}
	pid := 0
	testkit.Eventually(t, "a gateway", func() bool { pid = g.GatewayPid(); return pid > 0 })
	return pid
}

// Get returns the body of a page, which must exist.
func (g *Server) Get(t testing.TB, path string, header ...string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", path, resp.Status, err)
	}
	return string(b)
}
