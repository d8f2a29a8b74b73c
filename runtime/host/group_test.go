package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/runtime/cgroup"
	"trl/runtime/descriptor"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// trials returns how often each adversary is killed, each time at another moment. make test-soak runs many trials.
func trials() int {
	switch {
	case testkit.Soak:
		return 200
	case testing.Short():
		return 3
	}
	return 8
}

func TestNothingSurvivesAKill(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		for _, mode := range []string{"stubborn", "setsid", "jobs", "daemon", "leave", "hop", "storm", "tree", "deep"} {
			t.Run(mode, func(t *testing.T) {
				var took []time.Duration
				for i := range trials() {
					g, c := newGroup(t, h)
					m := testkit.Marker()
					spawnAwkward(t, h, c, mode, m)
					if mode != "leave" { // its only process may not have started again yet
						testkit.Eventually(t, "it can be seen", func() bool { return len(g.Members()) > 0 })
					}
					time.Sleep(time.Duration(i*20/trials()) * time.Millisecond) // another moment of the fork storm in each trial
					begin := time.Now()
					if i%2 == 0 {
						if err := c.Kill(0); err != nil {
							t.Fatal(err)
						}
						took = append(took, time.Since(begin))
						if pids := testkit.Alive(m); len(pids) > 0 {
							t.Fatalf("trial %d: %v survived Scope.Kill", i, pids)
						}
						if pids := c.MembersExcept(0); len(pids) > 0 {
							t.Fatalf("trial %d: %v are still members", i, pids)
						}
						if !c.Remove() {
							t.Fatal("an empty scope was not removed")
						}
						begin = time.Now()
					}
					if err := g.Close(context.Background()); err != nil {
						t.Fatal(err)
					}
					if i%2 == 1 {
						took = append(took, time.Since(begin))
					}
					if pids := testkit.Alive(m); len(pids) > 0 {
						t.Fatalf("trial %d: %v survived Group.Close", i, pids)
					}
				}
				slices.Sort(took)
				t.Logf("kill p50 %v, max %v", took[len(took)/2], took[len(took)-1])
			})
		}
		testkit.Eventually(t, "no zombie is left", func() bool { return procfs.PeekZombie() == 0 })
	})
}

// A shellIn is a shell that runs each line it gets, in the scope that it is in at that time, and reports when the line
// has ended.
type shellIn struct {
	*Child
	t    testing.TB
	in   *os.File
	done *os.File
}

func openShellIn(t testing.TB, h *Host, c *Scope) *shellIn {
	t.Helper()
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child, err := c.Spawn(own.Spec{Path: "/bin/sh", Argv: []string{"sh"}, Dir: "/", Files: []*os.File{in, out, os.Stderr},
		Env: []string{"PATH=/usr/bin:/bin", "TRL_SESSION_ID=" + c.group.id}})
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	t.Cleanup(func() { w.Close(); r.Close(); child.Close() })
	return &shellIn{child, t, w, r}
}

// run returns the line that text printed.
func (s *shellIn) run(text string) string {
	s.t.Helper()
	fmt.Fprintf(s.in, "%s\necho\n", text)
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := s.done.Read(b); err != nil {
			s.t.Fatal(err)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

func TestJobOfAnEarlierCellSurvives(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		for range trials() {
			g, c1 := newGroup(t, h)
			sh := openShellIn(t, h, c1)
			if pids := c1.MembersExcept(sh.Pid()); pids != nil {
				t.Fatalf("others of a fresh shell: %v", pids)
			}
			early, late := testkit.Marker(), testkit.Marker()
			sh.run(testkit.TestBinary + " awkward jobs " + early + " >/dev/null & env -i setsid sh -c 'sleep " + early + " &'")
			testkit.Eventually(t, "the early job is complete", func() bool { return len(testkit.Alive(early)) == 7 })
			testkit.Eventually(t, "the scope lists it", func() bool { return len(c1.MembersExcept(sh.Pid())) == 7 })

			c2 := newCell(t, g)
			if err := c2.AddChild(sh.Pid()); err != nil {
				t.Fatal(err)
			}
			if pids := c2.MembersExcept(sh.Pid()); len(pids) != 0 {
				t.Fatalf("others of a fresh scope: %v", pids)
			}
			sh.run(testkit.TestBinary + " awkward jobs " + late + " >/dev/null & env -i setsid sh -c 'sleep " + late + " &'")
			testkit.Eventually(t, "the late job is complete", func() bool { return len(testkit.Alive(late)) == 7 })
			if pids := c2.MembersExcept(sh.Pid()); len(pids) != 7 {
				t.Fatalf("others: %v, the job is %v", pids, testkit.Alive(late))
			}
			if c2.Remove() {
				t.Fatal("a scope with processes was removed")
			}
			if err := c2.Kill(sh.Pid()); err != nil { // the shell is still in the scope, so the others are killed one by one
				t.Fatal(err)
			}
			if pids := testkit.Alive(late); len(pids) > 0 {
				t.Fatalf("%v survived", pids)
			}
			if pids := testkit.Alive(early); len(pids) != 7 {
				t.Fatalf("of the early job only %v are left", pids)
			}
			if err := c1.Kill(0); err != nil {
				t.Fatal(err)
			}
			if pids := testkit.Alive(early); len(pids) > 0 || !c1.Remove() {
				t.Fatalf("%v survived", pids)
			}
			if got := sh.run("echo still here"); got != "still here" {
				t.Fatal("the shell was hurt: ", got)
			}
			if pids := g.Members(); !slices.Equal(pids, []int{sh.Pid()}) {
				t.Fatalf("members %v, shell %d", pids, sh.Pid())
			}
			if err := g.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestSignalReachesAllButTheShell(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		sh := openShellIn(t, h, c)
		m := testkit.Marker()
		sh.run("sleep " + m + " & setsid sleep " + m + " & (sleep " + m + " &)")
		testkit.Eventually(t, "three run", func() bool { return len(testkit.Alive(m)) == 3 })
		c.Signal(syscall.SIGTERM, sh.Pid())
		testkit.Eventually(t, "all three have ended", func() bool { return len(testkit.Alive(m)) == 0 })
		sh.run("sleep " + m + " & setsid sleep " + m + " & (sleep " + m + " &)")
		testkit.Eventually(t, "three run", func() bool { return len(testkit.Alive(m)) == 3 })
		g.Signal(syscall.SIGTERM, sh.Pid())
		testkit.Eventually(t, "all three have ended", func() bool { return len(testkit.Alive(m)) == 0 })
		if got := sh.run("echo still here"); got != "still here" {
			t.Fatal("the shell was hurt: ", got)
		}
	})
}

func TestMarkTakenOffDoesNotHelp(t *testing.T) {
	h := testHost(t, "none")
	g, c := newGroup(t, h)
	if procfs.SetMark(os.Getpid(), procfs.Mark(1<<63)) != nil {
		t.Skip("no marks here: the limit of file locks is low")
	}
	_ = procfs.SetMark(os.Getpid(), ^procfs.Mark(0))
	sh := openShellIn(t, h, c)
	m := testkit.Marker()
	sh.run("ulimit -S -x unlimited 2>/dev/null || prlimit --locks=unlimited --pid $$; (setsid sleep " + m + " & sleep " + m + " &) ; sleep " + m + " &")
	testkit.Eventually(t, "three run", func() bool { return len(testkit.Alive(m)) == 3 })
	// One walk may miss a process whose parent ends at that moment.
	testkit.Eventually(t, "all three are found", func() bool { return len(c.MembersExcept(sh.Pid())) == 3 })
	if err := g.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if pids := testkit.Alive(m); len(pids) != 0 {
		t.Errorf("%v survived", pids)
	}
}

// If the limit of file locks leaves no room for marks, ancestry, process session and start time tell scopes apart.
func TestCellsWithoutMarks(t *testing.T) {
	testkit.StartsProcesses(t)
	if os.Getenv("TRL_TEST_NO_MARKS") == "" {
		c := exec.Command("prlimit", "--locks=1000:1000", testkit.TestBinary, "-test.run=^TestCellsWithoutMarks$", "-test.v")
		c.Env = append(os.Environ(), "TRL_TEST_NO_MARKS=1")
		if text, err := c.CombinedOutput(); err != nil || !strings.Contains(string(text), "--- PASS") {
			t.Errorf("%v\n%s", err, text)
		}
		return
	}
	h := testHost(t, "none")
	if h.markBase.Fits() {
		t.Fatal("marks are possible")
	}
	g, c1 := newGroup(t, h)
	sh := openShellIn(t, h, c1)
	early, late := testkit.Marker(), testkit.Marker()
	sh.run("(sleep " + early + " &); sleep " + early + " & sh -c 'sleep " + early + "; :' &")
	testkit.Eventually(t, "the early job is complete", func() bool { return len(testkit.Alive(early)) == 4 && len(c1.MembersExcept(sh.Pid())) == 4 })
	c2 := newCell(t, g)
	if err := c2.AddChild(sh.Pid()); err != nil {
		t.Fatal(err)
	}
	sh.run("(sleep " + late + " &); sleep " + late + " & sh -c 'sleep " + late + "; :' &")
	testkit.Eventually(t, "the late job is complete", func() bool { return len(testkit.Alive(late)) == 4 && len(c2.MembersExcept(sh.Pid())) == 4 })
	if err := c2.Kill(sh.Pid()); err != nil {
		t.Fatal(err)
	}
	if len(testkit.Alive(late)) != 0 || len(testkit.Alive(early)) != 4 {
		t.Errorf("late %v, early %v", testkit.Alive(late), testkit.Alive(early))
	}
	if err := g.Close(context.Background()); err != nil || len(testkit.Alive(early)) != 0 {
		t.Errorf("%v, early %v", err, testkit.Alive(early))
	}
}

// Close kills the session even if its context is done.
func TestCloseKillsAtOnce(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		child := spawn(t, h, c, nil, "/bin/sleep", "60")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = g.Close(ctx)
		<-child.Exited()
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseTwiceAndConcurrently(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		m := testkit.Marker()
		child := spawnAwkward(t, h, c, "storm", m)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := g.Close(context.Background()); err != nil {
					t.Error(err)
				}
				if pids := testkit.Alive(m); len(pids) > 0 {
					t.Errorf("Close returned before %v had ended", pids)
				}
			})
		}
		all.Wait()
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
		select {
		case <-child.Exited():
		default:
			t.Error("closed before the child was reaped")
		}
		if st := child.Status(); st.Signal != syscall.SIGKILL || st.Code != 137 {
			t.Errorf("status %+v", st)
		}
		if _, err := g.NewScope(); err == nil {
			t.Error("a scope in a closed group")
		}
		if _, err := c.Spawn(own.Spec{Path: "/bin/true", Argv: []string{"true"}}); err == nil {
			t.Error("a start in a closed group")
		}
		if pids := append(c.MembersExcept(0), g.Members()...); len(pids) > 0 {
			t.Error("members of a closed group: ", pids)
		}
		if _, err := h.NewGroup(g.id); err != nil {
			t.Error("the id is not free again: ", err)
		}
	})
}

func TestCloseHonoursItsContext(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		g, _ := newGroup(t, h)
		g.closeSlot <- struct{}{} // stands for another Close that hangs
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if err := g.Close(ctx); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		<-g.closeSlot
	})
}

// A start that races with Close either fails or is killed by it.
func TestStartsRacingWithClose(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		for range trials() {
			g, c := newGroup(t, h)
			m := testkit.Marker()
			var starts sync.WaitGroup
			for range 4 {
				starts.Go(func() {
					for {
						child, err := c.Spawn(own.Spec{Path: "/bin/sleep", Argv: []string{"sleep", m}})
						if err != nil {
							return
						}
						child.Close()
					}
				})
			}
			testkit.Eventually(t, "some were started", func() bool { return len(testkit.Alive(m)) > 4 })
			if err := g.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			starts.Wait()
			if pids := testkit.Alive(m); len(pids) > 0 {
				t.Fatalf("%v were started behind Close", pids)
			}
		}
	})
}

func TestNamesThatLookLikeStat(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		dir, m := t.TempDir(), testkit.Marker()
		for _, name := range []string{"a) R 1 (b", "x\ny) Z 1 1", ") ) )"} {
			path := filepath.Join(dir, name)
			if err := os.Symlink("/bin/sleep", path); err != nil {
				t.Fatal(err)
			}
			g, c := newGroup(t, h)
			child := spawn(t, h, c, nil, path, m)
			testkit.Eventually(t, "it runs under that name", func() bool {
				text, _ := os.ReadFile(procfs.Path(child.Pid(), "/comm"))
				return strings.TrimSuffix(string(text), "\n") == name
			})
			p, ok := procfs.Read(child.Pid())
			if !ok || p.Pid != child.Pid() || p.Ppid != os.Getpid() || p.Sid != p.Pid || p.Threads != 1 || p.Dead() {
				t.Errorf("%q: %+v %v", name, p, ok)
			}
			if got := g.Members(); !slices.Equal(got, []int{p.Pid}) {
				t.Errorf("%q: members %v", name, got)
			}
			if err := g.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
}

// A group that is opened and closed leaves no descriptor, directory or zombie.
func TestGroupsLeaveNothing(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		cycle := func() {
			g, c := newGroup(t, h)
			child := spawn(t, h, c, nil, "/bin/sh", "-c", "sleep 60 & setsid sleep 60 & exec sleep 60")
			testkit.Eventually(t, "all run", func() bool { return len(g.Members()) == 3 })
			if err := c.AddChild(child.Pid()); err != nil {
				t.Fatal(err)
			}
			c.MembersExcept(child.Pid())
			if err := g.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			child.Close()
		}
		cycle()
		before := len(descriptor.NumbersIn("/proc/self/fd"))
		for range trials() {
			cycle()
		}
		testkit.Eventually(t, "descriptors are back at the baseline", func() bool { return len(descriptor.NumbersIn("/proc/self/fd")) <= before })
		testkit.Eventually(t, "no zombie is left", func() bool { return procfs.PeekZombie() == 0 })
		if h.root != nil {
			if left := cgroup.Subdirs(h.root.Dir); len(left) > 0 {
				t.Error("left: ", left)
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.groups)+len(h.scopes) > 0 {
			t.Error("left: ", h.groups, h.scopes)
		}
	})
}

func TestGroupIDsAreDirectoryNames(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		for _, id := range []string{"", ".", "..", "a/b", "/", "-x", "s\n", strings.Repeat("x", 200)} {
			if _, err := h.NewGroup(id); err == nil {
				t.Errorf("%q was accepted", id)
			}
		}
		if _, err := h.NewGroup("twice"); err != nil {
			t.Error(err)
		}
		if _, err := h.NewGroup("twice"); err == nil {
			t.Error("two groups of one id")
		}
	})
}

func BenchmarkOthersEmpty(b *testing.B) {
	for _, tier := range TierNames {
		b.Run(tier, func(b *testing.B) {
			h := benchHost(b, tier)
			_, c := newGroup(b, h)
			sh := openShellIn(b, h, c)
			for range 100 { // idle sessions must not make it slower
				_, other := newGroup(b, h)
				spawn(b, h, other, nil, "/bin/sleep", "60")
			}
			b.ReportAllocs()
			for b.Loop() {
				if c.MembersExcept(sh.Pid()) != nil {
					b.Fatal("not empty")
				}
			}
		})
	}
}

func BenchmarkCellCycle(b *testing.B) {
	for _, tier := range TierNames {
		b.Run(tier, func(b *testing.B) {
			h := benchHost(b, tier)
			g, c := newGroup(b, h)
			sh := openShellIn(b, h, c)
			for b.Loop() {
				next := newCell(b, g)
				if err := next.AddChild(sh.Pid()); err != nil {
					b.Fatal(err)
				}
				if !c.Remove() {
					b.Fatal("not removed")
				}
				c = next
			}
		})
	}
}

func BenchmarkKillTree(b *testing.B) {
	for _, tier := range TierNames {
		b.Run(tier, func(b *testing.B) {
			h := benchHost(b, tier)
			for b.Loop() {
				b.StopTimer()
				g, c := newGroup(b, h)
				spawn(b, h, c, nil, "/bin/sh", "-c", "trap '' TERM; for i in $(seq "+strconv.Itoa(200)+"); do sleep 60 & done; wait")
				testkit.Eventually(b, "all run", func() bool { return len(g.Members()) > 200 })
				b.StartTimer()
				if err := g.Close(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchHost(b *testing.B, tier string) *Host {
	if tier == "cgroup" {
		h := testHost(b, "auto")
		if got, why := h.Isolation(); got != tier {
			b.Skip("no cgroup of our own (needs root or delegation): ", why)
		}
		return h
	}
	return testHost(b, tier)
}

// BenchmarkGroupCycle measures what trl adds to a session's shell: making its group, starting its process, and ending
// both.
func BenchmarkGroupCycle(b *testing.B) {
	for _, tier := range TierNames {
		b.Run(tier, func(b *testing.B) {
			h := benchHost(b, tier)
			for b.Loop() {
				g, c := newGroup(b, h)
				child, err := c.Spawn(own.Spec{Path: "/bin/sleep", Argv: []string{"sleep", "60"}, Dir: "/"})
				if err != nil {
					b.Fatal(err)
				}
				child.Close()
				b.StopTimer()
				if err := g.Close(context.Background()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
