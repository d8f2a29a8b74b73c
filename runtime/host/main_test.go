package host

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/runtime/cgroup"
	"trl/runtime/own"
)

func TestMain(m *testing.M) {
	if os.Args[0] == "trl-limit" { // see TestLimitProgramIsOutOfOurGroup
		if unix.Getpgrp() != os.Getpid() {
			os.Exit(int(unix.EXDEV))
		}
		os.Exit(0)
	}
	testkit.ActAwkward(map[string]func(string){
		"instance":       actInstance,
		"instance-ports": func(string) { actFIFOs() },
		"garbage":        func(string) { actGarbage() },
	})
	testkit.Main(m)
}

// actInstance acts as another trl with a session in which a process runs.
func actInstance(marker string) {
	h, err := NewHost(Config{Isolation: "cgroup", Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
	if err != nil {
		panic(err)
	}
	g, _ := h.NewGroup("s-1")
	c, _ := g.NewScope()
	if _, err := c.Spawn(own.Spec{Path: "/bin/sleep", Argv: []string{"sleep", marker}}); err != nil {
		panic(err)
	}
	if h.root != nil {
		fmt.Println(h.root.Dir)
	}
	testkit.AwkwardStays()
}

// actFIFOs acts as another trl with a session that has a FIFO directory.
func actFIFOs() {
	h, err := NewHost(Config{Isolation: "none", WritableDirs: []string{"/"}, Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
	if err != nil {
		panic(err)
	}
	if _, err := h.NewGroup("s-1"); err != nil {
		panic(err)
	}
	fmt.Println(h.fifoDir)
	testkit.AwkwardStays()
}

// actGarbage makes a fork hang in a frozen cgroup and makes garbage to collect meanwhile.
func actGarbage() {
	h, err := NewHost(Config{Isolation: "cgroup", Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
	if err != nil {
		panic(err)
	}
	live = make([]*byte, 16<<20) // starts a collection, which takes a while
	go h.CollectBetweenForks()()
	h.forkTimeout = 3 * gcInterval
	g, _ := h.NewGroup("s-1")
	c, _ := g.NewScope()
	if err := cgroup.WriteFile(h.root.Dir, "cgroup.freeze", "1"); err != nil {
		panic(err)
	}
	end := begins(h, c, "/")
	for ended := false; !ended; {
		select {
		case err = <-end:
			ended = true
		case <-time.After(time.Millisecond):
			garbage = make([]byte, 64<<10)
		}
	}
	_ = cgroup.WriteFile(h.root.Dir, "cgroup.freeze", "0")
	fmt.Println(err, h.Close())
}

var (
	live    []*byte
	garbage []byte
)

// generous bounds what a test waits for. It is far longer than the machine needs, even when others use it too.
const generous = 60 * time.Second

// testHost returns a host that is closed when the test ends. Close ends everything that is left in the host.
func testHost(t testing.TB, isolation string) *Host {
	t.Helper()
	testkit.StartsProcesses(t)
	h, err := NewHost(Config{Isolation: isolation, Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// eachTier runs f in each tier. Tier "cgroup" needs root, or a cgroup v2 directory that was delegated to us.
func eachTier(t *testing.T, f func(t *testing.T, h *Host)) {
	t.Run("cgroup", func(t *testing.T) {
		h := testHost(t, "auto")
		if tier, why := h.Isolation(); tier != "cgroup" {
			t.Skip("no cgroup of our own (needs root or delegation): ", why)
		}
		f(t, h)
	})
	t.Run("none", func(t *testing.T) { f(t, testHost(t, "none")) })
}

func newGroup(t testing.TB, h *Host) (*Group, *Scope) {
	t.Helper()
	g, err := h.NewGroup(strings.ReplaceAll("s-"+testkit.Marker(), ".", "-"))
	if err != nil {
		t.Fatal(err)
	}
	return g, newCell(t, g)
}

func newCell(t testing.TB, g *Group) *Scope {
	t.Helper()
	c, err := g.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// spawn starts argv in c with its stdout on out. A nil c means that the process belongs to no session. The session's id
// is in the environment, as it is for every shell.
func spawn(t testing.TB, h *Host, c *Scope, out *os.File, argv ...string) *Child {
	t.Helper()
	env := []string{"PATH=/usr/bin:/bin"}
	if c != nil {
		env = append(env, "TRL_SESSION_ID="+c.group.id)
	}
	start := func(s own.Spec) (*Child, error) { return h.Spawn(s, nil) }
	if c != nil {
		start = c.Spawn
	}
	child, err := start(own.Spec{Path: argv[0], Argv: argv, Env: env, Dir: "/", Files: []*os.File{nil, out, os.Stderr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Close() })
	return child
}

// spawnAwkward starts an awkward child and returns when the child has done what its mode says.
func spawnAwkward(t testing.TB, h *Host, c *Scope, mode, marker string) *Child {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	child := spawn(t, h, c, w, testkit.TestBinary, "awkward", mode, marker)
	w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatalf("awkward %s: %v", mode, err)
	}
	return child
}
