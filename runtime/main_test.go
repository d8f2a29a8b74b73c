package runtime

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"trl/metrics"
)

// TestMain turns into an awkward child when it is started as
//
//	runtime.test awkward MODE MARKER
//
// and else runs the tests. MARKER is only there to be found in /proc/PID/cmdline.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "awkward" {
		awkward(os.Args[2], os.Args[3])
		os.Exit(0)
	}
	if err := unprivileged(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// awkwardLife bounds how long an awkward child lives if nobody ends it.
const awkwardLife = 60 * time.Second

// awkward writes a newline to stdout when it has done its worst.
func awkward(mode, marker string) {
	if mode != "hold-full" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	ready := func() { fmt.Println() }
	home := uintptr(os.Getppid())
	switch mode {
	case "stubborn": // ignores what can be ignored
		ready()
		time.Sleep(awkwardLife)
	case "setsid": // leaves the process session
		spawnSleep(marker, nil)
		ready()
		time.Sleep(awkwardLife)
	case "jobs": // five jobs of their own
		for range 5 {
			spawnSleep(marker, &syscall.SysProcAttr{Setpgid: true})
		}
		ready()
		time.Sleep(awkwardLife)
	case "daemon": // double fork, own session, empty environment, nothing open; the parent stays
		daemon(marker)
		ready()
		time.Sleep(awkwardLife)
	case "leave": // the same, the parent goes
		daemon(marker)
		ready()
	case "hop": // fork and exit, for ever: no process lives longer than a moment
		ready()
		hop(home)
	case "storm": // sixteen that hop, eight of those with exec and an empty environment; the parent stays
		for range 8 {
			forkThen(func() { hop(home) })
			hopExec(marker)
		}
		ready()
		time.Sleep(awkwardLife)
	case "instance", "instance-pidns": // another trl, with a session in which something runs
		_, tier, _ := strings.Cut(mode+"-cgroup", "-")
		tier, _, _ = strings.Cut(tier, "-")
		h, err := NewHost(Config{Isolation: tier, Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
		if err != nil {
			panic(err)
		}
		g, _ := h.NewGroup("s-1")
		c, _ := g.NewScope()
		if _, err := h.Spawn(Spec{Path: "/bin/sleep", Argv: []string{"sleep", marker}, Scope: c}); err != nil {
			panic(err)
		}
		if h.root != nil {
			fmt.Println(h.root.dir)
		}
		ready()
		time.Sleep(awkwardLife)
	case "instance-ports": // another trl, with a session that has a directory of ports
		h, err := NewHost(Config{Isolation: "none", WritableDirs: []string{"/"}, Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
		if err != nil {
			panic(err)
		}
		if _, err := h.NewGroup("s-1"); err != nil {
			panic(err)
		}
		fmt.Println(h.fifoDir)
		ready()
		time.Sleep(awkwardLife)
	case "deep": // a child of a child of a child…, all waiting; every eighth in a process session of its own
		forkThen(func() { dig(home, 100) })
		ready()
		time.Sleep(awkwardLife)
	case "forks": // tries 300 children, which stay
		for range 300 {
			forkThen(func() {
				for !gone(home) {
					nap(100_000_000)
				}
			})
		}
		time.Sleep(awkwardLife)
	case "hog": // wants 256 MiB
		for range 256 {
			page, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				panic(err)
			}
			for i := 0; i < len(page); i += 4096 {
				page[i] = 1
			}
		}
	case "files": // opens what it can, and says with which descriptor it could not
		for fd := 3; ; fd++ {
			if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err == unix.EMFILE {
				var most unix.Rlimit
				_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &most)
				fmt.Printf("EMFILE at %d\n", most.Cur)
				syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0) // the race detector takes a second to say goodbye
			}
		}
	case "garbage": // a fork that hangs in a frozen cgroup, and garbage to collect meanwhile
		h, err := NewHost(Config{Isolation: "cgroup", Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
		if err != nil {
			panic(err)
		}
		live = make([]*byte, 16<<20) // begins a collection, which takes a while
		go h.CollectBetweenForks()()
		h.forkTimeout = 3 * gcInterval
		g, _ := h.NewGroup("s-1")
		c, _ := g.NewScope()
		if err := writeFile(h.root.dir, "cgroup.freeze", "1"); err != nil {
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
		_ = writeFile(h.root.dir, "cgroup.freeze", "0")
		fmt.Println(err, h.Close())
	case "hold": // keeps the lock of the pipe MARKER
		hold(marker, 0)
	case "hold-full": // the same; what it put into the pipe before stays there, and every 3 s it puts more. It can be told to end
		hold(marker, 3*time.Second)
	case "tree": // 64 that fork and exit at random, some in sessions of their own
		live, _ := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		forkThen(func() { churn(home, (*int32)(unsafe.Pointer(&live[0]))) })
		ready()
		time.Sleep(awkwardLife)
	}
}

// hold splices from a socket, on which a word is said every so often, 0 for never, into a pipe. For as long as splice(2) waits
// for the socket it has the pipe's lock, and whoever does anything with the pipe waits for that.
func hold(pipe string, every time.Duration) {
	fd, err := unix.Open(pipe, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == unix.EACCES {
		fd, err = unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		err = unix.SetNonblock(fd, false) // which would have splice not wait
	}
	if err != nil {
		panic(err)
	}
	s, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		panic(err)
	}
	if every > 0 {
		go func() { // until the process ends
			for {
				_, _ = unix.Write(s[1], []byte("held\n"))
				time.Sleep(every)
			}
		}()
	}
	time.AfterFunc(awkwardLife, func() { os.Exit(0) })
	for {
		_, _ = unix.Splice(s[0], nil, fd, nil, 1<<16, 0)
	}
}

var (
	live    []*byte
	garbage []byte
)

func spawnSleep(marker string, attr *syscall.SysProcAttr) {
	if attr == nil {
		attr = &syscall.SysProcAttr{Setsid: true}
	}
	c := exec.Command("/bin/sleep", marker)
	c.Env, c.SysProcAttr = []string{}, attr
	if err := c.Start(); err != nil {
		panic(err)
	}
}

func daemon(marker string) {
	c := exec.Command("/bin/sh", "-c", "env -i setsid sleep "+marker+" <&- >&- 2>&- & exit 0")
	c.Env, c.SysProcAttr = []string{}, &syscall.SysProcAttr{Setsid: true}
	if err := c.Run(); err != nil {
		panic(err)
	}
}

// hopExec is a shell that starts itself anew, with nothing inherited, and
// exits, as long as the test is there.
func hopExec(marker string) {
	text := `kill -0 "$1" || exit; /usr/bin/env -i /bin/sh -c "$0" "$0" "$1" "$2" & exit`
	c := exec.Command("/usr/bin/setsid", "/bin/sh", "-c", text, text, strconv.Itoa(os.Getppid()), marker)
	c.Env = []string{}
	if err := c.Start(); err != nil {
		panic(err)
	}
}

// After a bare fork only one thread of the Go runtime is left: what runs there
// makes system calls and nothing else, and never returns.
//
//go:norace
func forkThen(f func()) {
	if pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0); pid == 0 {
		f()
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

//go:norace
func hop(home uintptr) {
	for {
		nap(300_000)
		pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if pid != 0 || gone(home) {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	}
}

//go:norace
func dig(home uintptr, depth int) {
	if depth%8 == 0 {
		syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	}
	if depth > 0 {
		if pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0); pid == 0 {
			dig(home, depth-1)
		}
	}
	for !gone(home) {
		nap(50_000_000)
	}
	syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
}

//go:norace
func churn(home uintptr, live *int32) {
	*live = 1
	seed := uint32(1)
	for !gone(home) {
		seed = seed*1664525 + 1013904223
		if *live >= 64 {
			if nap(500_000); seed>>28 == 0 {
				*live--
				syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			continue
		}
		*live++ // races with the others: about 64
		pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if pid != 0 {
			nap(100_000)
			syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), 0, unix.WNOHANG, 0, 0, 0)
			continue
		}
		self, _, _ := syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
		seed = (seed ^ uint32(self)) * 2654435761
		if seed>>16%3 == 0 {
			syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		}
		if seed>>20%2 == 0 {
			nap(int64(seed % 2_000_000))
			*live--
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
}

// gone: whoever started us is no more, so nobody will end us either.
//
//go:norace
func gone(home uintptr) bool {
	_, _, err := syscall.RawSyscall(unix.SYS_KILL, home, 0, 0)
	return err == unix.ESRCH
}

//go:norace
func nap(ns int64) {
	ts := unix.Timespec{Nsec: ns}
	syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// testHost is closed, which ends all that is left in it, when the test ends.
func testHost(t testing.TB, isolation string) *Host {
	t.Helper()
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

// eachTier runs f in each way of keeping processes together. Tier "cgroup"
// needs root, or a cgroup v2 directory that was delegated to us; tier "pidns"
// root, or a user namespace, in which the test is run by a process of its own.
func eachTier(t *testing.T, f func(t *testing.T, h *Host)) {
	t.Run("cgroup", func(t *testing.T) {
		h := testHost(t, "auto")
		if tier, why := h.Isolation(); tier != "cgroup" {
			t.Skip("no cgroup of our own (needs root or delegation): ", why)
		}
		f(t, h)
	})
	t.Run("pidns", func(t *testing.T) {
		if NeedsUserNamespace() {
			runInUserNamespace(t)
			return
		}
		f(t, testHost(t, "pidns"))
	})
	t.Run("none", func(t *testing.T) { f(t, testHost(t, "none")) })
}

// runInUserNamespace runs this very subtest, and no other, in a user namespace.
func runInUserNamespace(t *testing.T) {
	if err := probeUserNamespace(); err != nil {
		t.Skip("no PID namespaces: ", err)
	}
	name := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	c := exec.Command(testBinary, "-test.run="+name, "-test.v", "-test.timeout=10m", fmt.Sprint("-test.short=", testing.Short()))
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	c.SysProcAttr = userNamespace()
	text, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(text), "--- PASS") {
		t.Errorf("%v\n%s", err, text)
	} else {
		t.Logf("in a user namespace:\n%s", text)
	}
}

func newGroup(t testing.TB, h *Host) (*Group, *Scope) {
	t.Helper()
	g, err := h.NewGroup(strings.ReplaceAll("s-"+marker(), ".", "-"))
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

// spawn starts argv in c with its stdout on out; the session's id is in its
// environment as in every shell's.
func spawn(t testing.TB, h *Host, c *Scope, out *os.File, argv ...string) *Child {
	t.Helper()
	env := []string{"PATH=/usr/bin:/bin"}
	if c != nil {
		env = append(env, "TRL_SESSION_ID="+c.group.id)
	}
	child, err := h.Spawn(Spec{Path: argv[0], Argv: argv, Env: env, Dir: "/", Files: []*os.File{nil, out, os.Stderr}, Scope: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Close() })
	return child
}

// spawnAwkward returns when the awkward child has done its worst.
func spawnAwkward(t testing.TB, h *Host, c *Scope, mode, marker string) *Child {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	child := spawn(t, h, c, w, testBinary, "awkward", mode, marker)
	w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatalf("awkward %s: %v", mode, err)
	}
	return child
}

var testBinary, _ = os.Executable()

// marker is unique and something that sleep takes for a duration.
func marker() string {
	return fmt.Sprintf("%d.%06d%06d", int(awkwardLife.Seconds()), os.Getpid(), markers.Add(1))
}

var markers atomic.Int64

// alive counts the processes that have the marker on their command line.
func alive(marker string) (pids []int) {
	for _, pid := range numbersIn("/proc") {
		text, _ := readSmallFile("/proc/"+strconv.Itoa(pid)+"/cmdline", make([]byte, 1<<10))
		if !strings.Contains(string(text), marker) {
			continue
		}
		if p, ok := readProc(pid); ok && !p.dead() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// meanwhile calls f again and again until end is called, which waits for the last call.
func meanwhile(f func()) (end func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop; end waits for it
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				f()
			}
		}
	}()
	return func() { close(stop); <-stopped }
}

// eventually polls for what must come true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// OpenShell opens a shell over a host of this process.
func (h *Host) OpenShell(ctx context.Context, c ShellConfig) (*Shell, error) {
	return (&Base{Keeper: Local(h), Metrics: h.metrics, Log: h.log}).OpenShell(ctx, c)
}
