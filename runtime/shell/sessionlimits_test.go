package shell

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/cgroup"
	"trl/runtime/descriptor"
	"trl/runtime/host"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// limited opens a session with limits, or skips the test if one of them cannot be enforced.
func limited(t testing.TB, h *host.Host, path string, l protocol.Limits) *session {
	t.Helper()
	for _, limit := range l.Names() {
		if why := h.Unenforceable()[limit]; why != "" {
			t.Skipf("%s cannot be enforced here: %s", limit, why)
		}
	}
	id := fmt.Sprintf("s-test%d", sessionCount.Add(1))
	s, err := openShell(h, ShellConfig{ID: id, Path: path, Dir: "/", Restore: true, Limits: l,
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LANG=C.UTF-8", "TERM=dumb", "TRL_SESSION_ID=" + id, "AWKWARD=" + testkit.TestBinary}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(0); err != nil {
			t.Error(err)
		}
	})
	return &session{s, t}
}

// eachShellLimited is eachShell with limits.
func eachShellLimited(t *testing.T, l protocol.Limits, f func(t *testing.T, s *session)) {
	h := testHost(t, "auto")
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) { f(t, limited(t, h, path, l)) })
	}
	t.Run("bash/none", func(t *testing.T) { f(t, limited(t, testHost(t, "none"), "/bin/bash", l)) })
}

// everyLimit returns all limits that can be enforced on this machine.
func everyLimit(h *host.Host) (l protocol.Limits) {
	cannot := h.Unenforceable()
	for limit, set := range map[string]func(){
		own.LimitMemory: func() { l.MemoryBytes = 64 << 20 }, own.LimitPIDs: func() { l.Pids = 30 }, own.LimitCPU: func() { l.CPU = 1.5 },
		own.LimitFileSize: func() { l.FileSizeBytes = 1 << 20 }, own.LimitOpenFiles: func() { l.OpenFiles = 100 },
	} {
		if cannot[limit] == "" {
			set()
		}
	}
	return l
}

// isFull tells whether the session has asked for more processes than its limit allows.
func isFull(s *session) bool {
	gauge := s.group.Gauge()
	defer gauge.Close()
	return gauge.Read().PIDHits > 0
}

// startProgram starts a program in a new scope of the session.
func startProgram(t testing.TB, s *session, argv ...string) own.KeptChild {
	t.Helper()
	scope, err := s.group.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	return startIn(t, scope, argv...)
}

func startIn(t testing.TB, scope own.KeptScope, argv ...string) own.KeptChild {
	t.Helper()
	child, err := scope.Spawn(own.Spec{Path: argv[0], Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Files: []*os.File{nil, nil, os.Stderr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Close() })
	return child
}

// scopeCounter counts the calls of a group's NewScope.
type scopeCounter struct {
	own.KeptGroup
	scopes atomic.Int64
}

func (c *scopeCounter) NewScope() (own.KeptScope, error) {
	c.scopes.Add(1)
	return c.KeptGroup.NewScope()
}

func TestFileSizeLimit(t *testing.T) {
	eachShellLimited(t, protocol.Limits{FileSizeBytes: 1 << 20}, func(t *testing.T, s *session) {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.Chmod(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		r := s.run("head -c 3000000 /dev/zero >" + file)
		if info, err := os.Stat(file); err != nil || info.Size() != 1<<20 {
			t.Errorf("the file: %v, %v", info, err)
		}
		if r.Code != 153 || r.Signal != "XFSZ" || r.LimitHit != "file_size_bytes" || r.OOMKilled {
			t.Errorf("%+v", r.Outcome)
		}
		if r := s.code("exit 3", 3); !r.Restored || r.LimitHit != "" {
			t.Errorf("%+v", r.Outcome)
		}
		if r := s.code("exit 153", 153); r.LimitHit != "" {
			t.Errorf("a limit, of a shell that ended by itself: %+v", r.Outcome)
		}
		if r := s.code("kill -XFSZ $$", 153); r.LimitHit != "file_size_bytes" {
			t.Errorf("%+v", r.Outcome)
		}
		s.code("head -c 3000000 /dev/zero >"+file, 153)
		if err := s.Reset(t.Context(), "/", nil); err != nil {
			t.Fatal(err)
		}
		s.code("PATH=/usr/bin:/bin; head -c 3000000 /dev/zero >"+file, 153)
		s.code("(head -c 3000000 /dev/zero) >"+file, 153)
		s.code("head -c 1000000 /dev/zero >"+file, 0)
	})
}

// If a shell cannot write its last snapshot, `exit N` still has the exit code N, and the state is reported as lost. A signal is reported
// as a signal.
func TestExitUnderUlimit(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		for _, text := range []string{"X=1; ulimit -f 0; exit 3", "set -e; ulimit -f 0; exit 3", "ulimit -f 0; set -e; (exit 3)"} {
			if r := s.code(text, 3); !r.Restored || r.Signal != "" || !slices.Contains(r.Lost, "variables") || ours.MatchString(r.err) || strings.Contains(r.err, "trap") {
				t.Errorf("%s: %v, lost %v, stderr %q", text, r.Outcome, r.Lost, r.err)
			}
		}
		s.want("echo $X", "\n")
		s.code("ulimit -f 0; kill -XFSZ $$", 153)
		s.code("X=2; exit 3", 3) // in the next shell XFSZ has its usual effect
		s.want("echo $X", "2\n")
		s.code("head -c 3000000 /dev/zero >/dev/null; kill -XFSZ $$", 153)
		if s.Name() != "bash" {
			return
		}
		s.code("trap 'echo mine' XFSZ; exit 3", 3)
		s.want("trap -p XFSZ", "trap -- 'echo mine' SIGXFSZ\n")
		s.code("trap - XFSZ; exit 3", 3)
		s.want("trap -p XFSZ", "")
		s.code("set -e; trap : XFSZ; ulimit -f 0; exit 3", 3)
	})
}

func TestOpenFilesLimit(t *testing.T) {
	eachShellLimited(t, protocol.Limits{OpenFiles: protocol.MinOpenFiles}, func(t *testing.T, s *session) {
		n := strconv.Itoa(protocol.MinOpenFiles)
		for range 2 {
			s.want("ulimit -n; ulimit -Hn; ulimit -c; ulimit -Hc; ls /dev/null | cat", n+"\n"+n+"\n0\n0\n/dev/null\n")
			s.want("grep -E 'Sig(Pnd|Blk|Ign)' /proc/self/status | tr -d '\\n\\t'", "SigPnd:0000000000000000SigBlk:0000000000000000SigIgn:0000000000000000")
			if r := s.run("$AWKWARD awkward files x"); !strings.HasPrefix(r.out, "EMFILE at "+n) {
				t.Errorf("%s %+v", r.out, r.Outcome)
			}
			if r := s.code("exit 3", 3); !r.Restored {
				t.Errorf("%+v", r.Outcome)
			}
		}
	})
}

// A background process starts within the limits. It reads the session's state first.
func TestProcessIsWithinLimits(t *testing.T) {
	h := testHost(t, "auto")
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			s := limited(t, h, path, everyLimit(h))
			for _, prepare := range []string{":", "f() { :; }"} { // after a function, a POSIX shell starts the process as a copy of itself
				s.code(prepare, 0)
				j := journal.New(1 << 20)
				p, err := s.StartProcess(ProcessSpec{Text: "ulimit -n; cat /proc/self/cgroup", Journal: j})
				if err != nil {
					t.Fatal(err)
				}
				<-p.Exited()
				rd, _ := j.Attach(0, journal.Options{})
				ch, _ := rd.Next(t.Context())
				rd.Close()
				out := string(ch.Data)
				if !strings.HasPrefix(out, "100\n") {
					t.Errorf("open files: %s", out)
				}
				for controller, dir := range v1Dirs(t, s.Shell) {
					if in, _ := cgroup.ControllerPath(out, controller); in == "" || !strings.HasSuffix(dir, in) {
						t.Errorf("%s: in %q, the group is %s", controller, in, dir)
					}
				}
			}
		})
	}
}

func TestPIDsLimit(t *testing.T) {
	eachShellLimited(t, protocol.Limits{Pids: 40}, func(t *testing.T, s *session) {
		other := openSession(t, s.b.Keeper.(host.LocalKeeper).Host, "/bin/bash")
		c := NewCommand("$AWKWARD awkward forks x") // tries to start 300 processes, which stay
		c.Timeout = generous
		done := s.start(c)
		testkit.Eventually(t, "the session is full", func() bool { return isFull(s) })
		if n := len(s.group.Members()); n > 40 {
			t.Errorf("%d processes", n)
		}
		for range 5 {
			other.want("ls /dev/null | cat", "/dev/null\n")
		}
		if p, err := s.StartProcess(ProcessSpec{Text: "sleep 60", Journal: journal.New(1 << 20)}); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, ErrShellGone) {
			t.Errorf("a process beyond the limit: %v %v", p, err)
		}
		c.Cancel(syscall.SIGKILL, 0)
		if r := s.wait(done); r.LimitHit != "pids" || r.OOMKilled {
			t.Errorf("%+v", r.Outcome)
		}
		if r := s.code("ls /dev/null | cat", 0); r.LimitHit != "" {
			t.Errorf("%+v", r.Outcome)
		}
	})
}

// A shell that dies while the session's limit allows no other process is restored as soon as the limit allows it.
func TestShellIsPutBackOnceThereIsRoom(t *testing.T) {
	s := limited(t, testHost(t, "auto"), "/bin/sh", protocol.Limits{Pids: 20})
	gate := t.TempDir() + "/gate"
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	s.code("v=kept", 0)
	group := &scopeCounter{KeptGroup: s.group}
	s.group = group // allowed because no command runs yet
	dir, _ := strings.CutSuffix(cgroupOf(t, s.Pid()), fmt.Sprintf("/c%d", s.p.scope.Number()))
	if v1 := v1Dirs(t, s.Shell)["pids"]; v1 != "" {
		dir = v1
	}
	most := func(n string) {
		t.Helper()
		if err := cgroup.WriteFile(dir, "pids.max", n); err != nil {
			t.Fatal(err)
		}
	}
	most("25")                                                                    // more than the later limit, so that the dead shell leaves no room for another
	s.run("i=0; while [ $i -lt 30 ]; do i=$((i+1)); read x <" + gate + " & done") // some jobs cannot be forked
	most("20")
	scopes := group.scopes.Load()
	c := NewCommand("kill -9 $$")
	c.Timeout = generous
	done := s.start(c)
	testkit.Eventually(t, "a new shell has been tried twice", func() bool { return group.scopes.Load() > scopes+1 })
	w, err := os.OpenFile(gate, os.O_WRONLY, 0) // the open and the close end the jobs' reads
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if r := s.wait(done); r.Err != nil || !r.Restored {
		t.Errorf("%+v", r.Outcome)
	}
	s.want("echo $v", "kept\n")
}

// A fork bomb within the limit ends like any other command: none of its processes is left, and its session goes on.
func TestForkBomb(t *testing.T) {
	h := testHost(t, "auto")
	s := limited(t, h, "/bin/bash", protocol.Limits{Pids: 60})
	other := openSession(t, h, "/bin/sh")
	// If the limit fails, 8 generations are at most 500 processes, and each ends after 20 s.
	c := NewCommand("bomb() { [ $1 -le 0 ] && return; (bomb $(($1-1))) 2>/dev/null & (bomb $(($1-1))) 2>/dev/null & sleep 20; }; bomb 8")
	c.Timeout, c.Grace = generous, 100*time.Millisecond
	done := s.start(c)
	testkit.Eventually(t, "the session is full", func() bool { return isFull(s) })
	for range 5 {
		other.want("ls /dev/null | cat", "/dev/null\n")
	}
	c.Cancel(syscall.SIGTERM, 100*time.Millisecond)
	if r := s.wait(done); r.LimitHit != "pids" || r.KillFailed || r.Err != nil {
		t.Errorf("%+v", r.Outcome)
	}
	s.want("echo still here", "still here\n")
	if n := len(s.group.Members()); n != 1 {
		t.Errorf("%d processes are left", n)
	}
}

func TestMemoryLimit(t *testing.T) {
	eachShellLimited(t, protocol.Limits{MemoryBytes: 48 << 20}, func(t *testing.T, s *session) {
		s.code("v=kept", 0)
		r := s.run("$AWKWARD awkward hog x; echo $?") // allocates 256 MiB
		if r.out != "137\n" || !r.OOMKilled || r.LimitHit != "memory_bytes" || r.Died {
			t.Errorf("%s %+v", r.out, r.Outcome)
		}
		if r.MemoryPeak > 49<<20 || r.MemoryPeak < 40<<20 { // the kernel counts in batches
			t.Errorf("peak %d", r.MemoryPeak)
		}
		r = s.run("echo $v")
		if r.out != "kept\n" || r.OOMKilled || r.LimitHit != "" || r.MemoryPeak > 40<<20 {
			t.Errorf("%s %+v", r.out, r.Outcome)
		}
	})
}

// If the shell itself uses too much memory, it is killed and restored with the state before the command.
func TestMemoryLimitKillsTheShell(t *testing.T) {
	eachShellLimited(t, protocol.Limits{MemoryBytes: 48 << 20}, func(t *testing.T, s *session) {
		s.code("v=kept", 0)
		for range 2 {
			s.awaitState()
			c := NewCommand("x=0123456789abcdef; while :; do x=$x$x; done")
			c.Timeout = generous
			r := s.wait(s.start(c))
			if !r.OOMKilled || r.LimitHit != "memory_bytes" || !r.Died || !r.Restored || r.Code != 137 {
				t.Fatalf("%+v", r.Outcome)
			}
			s.want("echo $v", "kept\n")
		}
		if err := s.Reset(t.Context(), "/", []string{"PATH=" + os.Getenv("PATH"), "AWKWARD=" + testkit.TestBinary}); err != nil {
			t.Fatal(err)
		}
		if r := s.run("$AWKWARD awkward hog x; echo $?"); r.out != "137\n" || !r.OOMKilled {
			t.Errorf("after reset: %s %+v", r.out, r.Outcome)
		}
	})
}

// Two loops with a limit of a twentieth of a processor get that, not two processors. On a busy machine they may get less even without
// the limit.
func TestCPULimit(t *testing.T) {
	const limit = 0.05
	h := testHost(t, "auto")
	s := limited(t, h, "/bin/bash", protocol.Limits{CPU: limit})
	r := s.code("timeout 1.5 sh -c 'while :; do :; done' & timeout 1.5 sh -c 'while :; do :; done' & wait", 0)
	share := r.CPU.Seconds() / r.Duration.Seconds()
	t.Logf("%.3f of a processor", share)
	if !r.HasUsage || r.CPU == 0 || share > 2*limit {
		t.Errorf("%+v", r.Outcome)
	}
	if dir := v1Dirs(t, s.Shell)["cpu"]; dir != "" && share > limit/2 {
		text, _ := os.ReadFile(dir + "/cpu.stat")
		if strings.Contains(string(text), "nr_throttled 0\n") {
			t.Errorf("never throttled: %s", text)
		}
	}
}

// A start in a session that has used up its processor time must not wait until the session gets more, because starts and ends in
// all other sessions would wait with it.
func TestStarvedSessionHoldsNobodyUp(t *testing.T) {
	h := testHost(t, "auto")
	s := limited(t, h, "/bin/sh", protocol.Limits{CPU: protocol.MinCPU})
	c, err := s.group.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	for range 4 { // busy for as long as the test lasts
		startIn(t, c, "/usr/bin/timeout", "120", "/bin/sh", "-c", "while :; do :; done")
	}
	time.Sleep(3 * cgroup.CFSPeriod) // by now they have called exec and used up the session's processor time
	const starts = 20
	var took time.Duration
	for end := time.Now().Add(generous); time.Now().Before(end); { // on a busy machine some tries may be slow; if starts waited for the session, all tries would be
		begin := time.Now()
		for range starts {
			startIn(t, c, "/bin/true")
		}
		took = time.Since(begin)
		t.Logf("%d starts took %v", starts, took)
		if took <= starts*cgroup.CFSPeriod {
			return
		}
	}
	t.Errorf("%d starts took %v", starts, took)
}

// TestLimitOfAWarmShell: limits can be set after the shell has started, and no directory of the group is left.
func TestLimitOfAWarmShell(t *testing.T) {
	h := testHost(t, "auto")
	l := everyLimit(h)
	s := openSession(t, h, "/bin/bash")
	if err := s.Limit(l); err != nil {
		t.Fatal(err)
	}
	dirs := v1Dirs(t, s.Shell)
	r := s.code("ulimit -n; cat /proc/$$/cgroup /proc/self/cgroup", 0)
	if !strings.HasPrefix(r.out, "100\n") {
		t.Errorf("%s", r.out)
	}
	for _, dir := range dirs {
		if id := s.cfg.ID; strings.Count(r.out, "/"+id+"\n") != 2*len(dirs) {
			t.Errorf("%s: not all in %s:\n%s", dir, id, r.out)
		}
	}
	if err := s.Limit(l); err == nil {
		t.Error("limited twice")
	}
	if err := s.Close(0); err != nil {
		t.Error(err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("left: %s", dir)
		}
	}
}

func TestNothingOfLimitsIsLeft(t *testing.T) {
	h := testHost(t, "auto")
	l := protocol.Limits{MemoryBytes: 64 << 20, Pids: 20, CPU: 1, OpenFiles: 50}
	limited(t, h, "/bin/sh", l).code(":", 0) // creates what is made only once
	ownDir, _, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	roots := map[string]bool{} // where the sessions' directories are
	before := len(descriptor.NumbersIn("/proc/self/fd"))
	for i := range 10 {
		s := limited(t, h, "/bin/bash", l)
		dirs := v1Dirs(t, s.Shell)
		// A process of root can leave the session's cgroup v2. It stays in the cgroup v1 directories of the limits, and trl finds it there.
		if tier, _ := h.Isolation(); i == 0 && tier == "cgroup" && len(dirs) > 0 {
			s.code("sleep 60.7531 & echo $! >"+ownDir+"/cgroup.procs", 0)
		}
		s.code(":", 0)
		if err := s.Close(0); err != nil {
			t.Fatal(err)
		}
		s.Forget()
		for _, dir := range dirs {
			roots[filepath.Dir(dir)] = true
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("left: %s", dir)
			}
		}
	}
	if pids := testkit.Alive("60.7531"); len(pids) > 0 {
		t.Errorf("%v survived", pids)
	}
	testkit.Eventually(t, "no descriptor is left", func() bool { return len(descriptor.NumbersIn("/proc/self/fd")) <= before })
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	for dir := range roots {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("left: %s", dir)
		}
	}
}

// Starts, ends and signals happen at the same time. Every status is the program's, although each child was traced up to its exec.
func TestStartsWithinLimitsInAStorm(t *testing.T) {
	h := testHost(t, "auto")
	l := everyLimit(h)
	if l.Pids > 0 {
		l.Pids = 200
	}
	s := limited(t, h, "/bin/sh", l)
	end := testkit.Repeat(func() { // signals that may reach a child before its exec
		s.group.Signal(syscall.SIGURG, s.Pid())
		s.group.Signal(syscall.SIGCHLD, s.Pid())
	})
	t.Run("starts", func(t *testing.T) {
		for range 8 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i := range 40 {
					child := startProgram(t, s, "/bin/sh", "-c", fmt.Sprintf("exit %d", i))
					select {
					case <-child.Exited():
					case <-time.After(generous):
						t.Fatal("it does not end")
					}
					if st := child.Status(); st.Code != i || st.Signal != 0 {
						t.Errorf("%+v, want %d", st, i)
					}
				}
			})
		}
	})
	end()
	testkit.Eventually(t, "no zombie is left", func() bool { return procfs.PeekZombie() == 0 })
}
