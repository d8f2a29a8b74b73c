package keeper

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/runtime/host"
	"trl/runtime/keeper/client"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

// TestMain turns the test binary into a part of trl if it is started as
//
//	keeper.test keeper MODE ISOLATION   a keeper, whose gateways are
//	keeper.test gateway MODE            a gateway
//	keeper.test serve ISOLATION DIR...  a server on descriptor 3, without more of a keeper; sessions may write below DIR
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && !strings.HasPrefix(os.Args[1], "-") {
		switch os.Args[1] {
		case "keeper":
			actKeeper(os.Args[2], os.Args[3])
		case "gateway":
			actGateway(os.Args[2])
		case "serve":
			actServe(os.Args[2], os.Args[3:])
		}
		panic("no such part") // do not run the tests within a test
	}
	testkit.Main(m)
}

var testBinary, _ = os.Executable()

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func actKeeper(mode, isolation string) {
	listener := must(os.Open("/dev/null"))
	drain := time.Duration(0)
	if mode == "drains" {
		drain = time.Hour
	}
	code, err := Run(context.Background(), Config{
		Drain:     drain,
		Host:      host.Config{Isolation: isolation, Log: zerolog.New(os.Stderr)},
		Listeners: []*os.File{listener},
		Args:      []string{os.Args[0], "gateway", mode}, Env: os.Environ(), Log: zerolog.New(os.Stderr),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// actGateway is a gateway. It prints a line for each event that its test waits for.
func actGateway(mode string) {
	if mode == "broken" { // as with bad flags
		os.Exit(3)
	}
	if os.Getenv("TRL_TEST_DIR") == "" { // started by a keeper, not by act
		if err := client.RestoreEnviron(); err != nil {
			panic(err)
		}
	}
	recalled, recalls := client.Remembered()
	conn := must(client.GatewaySocket())
	if mode == "second-broken" && os.Getenv("TRL_TEST_DIR") != "" {
		mark := os.Getenv("TRL_TEST_DIR") + "/been"
		if _, err := os.Stat(mark); err == nil {
			fmt.Println("broken")
			os.Exit(4)
		}
		must(os.Create(mark))
		mode = "crash"
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	c := must(client.Dial(conn, zerolog.Nop()))
	_ = c.Ready()
	fmt.Println("hello", c.Generation(), os.Getpid(), time.Now().UnixMilli(), len(c.Files()))
	switch mode {
	case "crash":
		os.Exit(5)
	case "remember":
		fmt.Printf("recalled %v %q\n", recalls, recalled)
		text := fmt.Appendf(nil, "of\x00%d", c.Generation())
		if c.Generation() == 1 {
			text = nil
		}
		if err := c.Remember(text); err != nil {
			panic(err)
		}
		fmt.Println("remembered")
	case "bye":
		fmt.Println(c.Bye(context.Background()))
		os.Exit(0)
	case "deaf":
		select {}
	case "drains": // the first gateway dies of it; the next one ends at the second signal
		for again := range 2 {
			<-told
			fmt.Println("told", c.Generation(), again)
			if c.Generation() == 0 {
				os.Exit(9)
			}
		}
		_ = c.Bye(context.Background())
		os.Exit(0)
	case "mask":
		scope := openCell(c, "s-1")
		k := must(scope.Spawn(own.Spec{Path: "/bin/cat", Argv: []string{"cat", "/proc/self/status"}, Files: []*os.File{nil, os.Stdout, os.Stderr}}))
		<-k.Exited()
		fmt.Println("done", k.Status().Code)
	case "session": // a session whose processes outlive us
		if c.Generation() == 0 {
			scope := openCell(c, "s-1")
			k := must(scope.Spawn(own.Spec{Path: "/bin/sleep", Argv: []string{"sleep", "100"}}))
			fmt.Println("pid", k.Pid())
		}
		for _, in := range c.HeldSessions() {
			for pid := range in.Children {
				fmt.Println("pid", pid)
			}
		}
	case "killer": // a command that tries to end its parent
		scope := openCell(c, "s-1")
		k := must(scope.Spawn(own.Spec{
			Path: "/bin/sh", Argv: []string{"sh", "-c", "for s in TERM INT HUP USR1; do kill -$s $PPID 2>/dev/null && n=$((n+1)); done; /bin/kill -QUIT $PPID 2>/dev/null && n=$((n+1)); exit $((n))"},
			Files: []*os.File{nil, os.Stdout, os.Stderr},
		}))
		<-k.Exited()
		for sent := uint64(k.Status().Code); must(c.Numbers()).SignalsIgnored < sent; { // the signals that the kernel did not refuse
			time.Sleep(time.Millisecond)
		}
		fmt.Println("none did anything")
	case "pid1": // one orphan that was never in a session, and one that was
		scope := openCell(c, "s-1")
		k := must(scope.Spawn(own.Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", "(sleep 0.1 &)"}, Env: []string{"PATH=/bin:/usr/bin"}}))
		<-k.Exited()
		if err := exec.Command("/bin/sh", "-c", "setsid -f sleep 0.1").Run(); err != nil {
			panic(err)
		}
		for must(c.Numbers()).ZombiesReaped < 2 {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("reaped", os.Getppid(), c.Bye(context.Background()))
		os.Exit(0)
	case "many": // 200 children, half of which end while we live
		scope := openCell(c, "s-1")
		for i := range 200 {
			nap := "0"
			if i%2 == 1 {
				nap = "1.5"
			}
			k := must(scope.Spawn(own.Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", "sleep " + nap + "; exit " + strconv.Itoa(i)}, Env: []string{"PATH=/bin:/usr/bin"}}))
			if i%4 == 0 {
				<-k.Exited()
			}
			fmt.Println("child", k.Pid(), i)
		}
		fmt.Println("spawned")
	case "hold": // a file of ours, read up to the fifth byte
		g := must(c.Group("s-1"))
		fd := must(unix.MemfdCreate("held", unix.MFD_CLOEXEC))
		must(unix.Write(fd, []byte("0123456789")))
		must(unix.Seek(fd, 5, io.SeekStart))
		fmt.Println("held", must(g.Hold(fd))[0])
	case "hoard": // the keeper holds most of its descriptors, and more until it refuses
		if c.Generation() == 0 {
			g := must(c.Group("s-1"))
			must(g.Hold(make([]int, 600)...))
		}
		for _, in := range c.HeldSessions() {
			more := 0
			for ; ; more++ {
				if _, err := in.Group.Hold(0); err != nil {
					break
				}
			}
			fmt.Println("inherited", len(in.Held), more)
		}
		fmt.Println("hoarded")
	case "flood": // messages of many parcels without end
		g := must(c.Group("s-1"))
		fds := make([]int, 600)
		fmt.Println("flooding")
		for {
			numbers := must(g.Hold(fds...))
			g.Drop(numbers...)
		}
	}
	select {
	case <-told:
		fmt.Println("told", c.Bye(context.Background()))
		os.Exit(0)
	case <-c.Done():
		os.Exit(9)
	}
}

func openCell(c own.Keeper, id string) own.KeptScope {
	return must(must(c.Group(id)).NewScope())
}

func actServe(isolation string, write []string) {
	f := os.NewFile(3, "socket")
	h := must(host.NewHost(host.Config{Isolation: isolation, WritableDirs: write, Metrics: metrics.New(nil), Log: zerolog.Nop()}))
	s := newServer(h, "epoch", nil, func() wire.Numbers { return wire.Numbers{} }, zerolog.Nop())
	_, _ = s.serve(must(wire.NewLink(f)), nil, func() {})
	h.Close()
	os.Exit(0)
}

// rig is a server in this process.
type rig struct {
	t      testing.TB
	host   *host.Host
	server *server
	ends   []func()
}

func newRig(t testing.TB, isolation string) *rig {
	t.Helper()
	testkit.StartsProcesses(t)
	m := metrics.New(prometheus.NewRegistry())
	h, err := host.NewHost(host.Config{Isolation: isolation, Metrics: m, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if tier, why := h.Isolation(); isolation == "auto" && tier != "cgroup" {
		h.Close()
		t.Skip("no cgroup of our own: ", why)
	}
	r := &rig{t: t, host: h, server: newServer(h, "epoch", nil, func() wire.Numbers { return wire.Numbers{KillFailed: 7} }, zerolog.Nop())}
	t.Cleanup(func() {
		for _, end := range r.ends {
			end()
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		r.server.wait()
	})
	return r
}

func eachTier(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Run("cgroup", func(t *testing.T) { f(t, newRig(t, "auto")) })
	t.Run("none", func(t *testing.T) { f(t, newRig(t, "none")) })
}

func socketpair(t testing.TB) (a, b *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
}

// serve serves a connection and returns its other end.
func (r *rig) serve() (theirs *os.File, served chan error) {
	r.t.Helper()
	ours, theirs := socketpair(r.t)
	l, err := wire.NewLink(ours)
	if err != nil {
		r.t.Fatal(err)
	}
	served = make(chan error, 1)
	go func() {
		_, err := r.server.serve(l, nil, func() {})
		served <- err
	}()
	return theirs, served
}

// dial is a gateway in this process. hang ends it as kill -9 would.
func (r *rig) dial() (c *client.Client, hang func()) {
	r.t.Helper()
	theirs, served := r.serve()
	c, err := client.Dial(theirs, zerolog.Nop())
	if err != nil {
		r.t.Fatal(err)
	}
	over := false
	hang = func() {
		if !over {
			over = true
			c.Close()
			if err := <-served; err != nil {
				r.t.Errorf("serve: %v", err)
			}
		}
	}
	r.ends = append(r.ends, hang)
	return c, hang
}

// actor is another process.
type actor struct {
	t     testing.TB
	cmd   *exec.Cmd
	lines *bufio.Scanner
	over  bool
}

func act(t testing.TB, socket *os.File, args ...string) *actor {
	t.Helper()
	testkit.StartsProcesses(t)
	a := &actor{t: t, cmd: exec.Command(testBinary, args...)}
	a.cmd.Stderr = os.Stderr
	a.cmd.Env = append(os.Environ(), "TRL_TEST_DIR="+t.TempDir(), "GORACE=atexit_sleep_ms=0")
	if socket != nil {
		a.cmd.ExtraFiles = []*os.File{socket}
		a.cmd.Env = append(a.cmd.Env, wire.FDVar+"=3")
	}
	r, w, err := os.Pipe() // not StdoutPipe, because Wait must not wait for processes that inherit it
	if err != nil {
		t.Fatal(err)
	}
	a.cmd.Stdout = w
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	a.lines = bufio.NewScanner(r)
	t.Cleanup(func() {
		a.kill()
		r.Close()
	})
	return a
}

// gateway is a gateway in another process, which r serves.
func (r *rig) gateway(mode string) (a *actor, served chan error) {
	theirs, served := r.serve()
	a = act(r.t, theirs, "gateway", mode)
	theirs.Close()
	return a, served
}

// next returns the fields of the next line whose first field is word.
func (a *actor) next(word string) []string {
	a.t.Helper()
	for a.lines.Scan() {
		if f := strings.Fields(a.lines.Text()); len(f) > 0 && f[0] == word {
			return f[1:]
		}
	}
	a.t.Fatalf("no line %q: %v", word, a.lines.Err())
	return nil
}

func (a *actor) kill() {
	if !a.over {
		a.over = true
		_ = a.cmd.Process.Kill()
		_ = a.cmd.Wait()
	}
}

// stop stops the process and returns when all its threads have stopped.
func (a *actor) stop() {
	a.t.Helper()
	pid := a.cmd.Process.Pid
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		a.t.Fatal(err)
	}
	testkit.Eventually(a.t, "it stops", func() bool {
		tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
		return !slices.ContainsFunc(tasks, func(path string) bool {
			text, _ := os.ReadFile(path)
			return !strings.Contains(string(text), ") T ")
		})
	})
}

func (a *actor) wait() (code int) {
	a.over = true
	_ = a.cmd.Wait()
	return a.cmd.ProcessState.ExitCode()
}

func number(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func openFiles(t testing.TB) int { return openFilesOf(t, "self") }

func openFilesOf(t testing.TB, pid string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(text), ") Z ")
}

var serial atomic.Int64

func newID() string { return fmt.Sprintf("s-%d", serial.Add(1)) }
