package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"trl/internal/testkit"
	"trl/runtime/procfs"
)

// leave starts an orphan with os/exec. The orphan has nothing of ours except env.
func leave(t *testing.T, env ...string) (marked string) {
	t.Helper()
	marked = testkit.Marker()
	c := exec.Command("/bin/sh", "-c", "setsid sleep "+marked+" &")
	c.Env = append(env, "PATH=/usr/bin:/bin")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	started := []byte("sleep\x00" + marked + "\x00") // until then it may still be the shell or setsid
	testkit.Eventually(t, "the orphan runs", func() bool {
		return len(testkit.PidsWhose("cmdline", func(text []byte) bool { return bytes.Equal(text, started) })) == 1
	})
	t.Cleanup(func() {
		for _, pid := range testkit.Alive(marked) {
			procfs.SignalIf(pid, 9, func(int) bool { return true })
		}
	})
	return marked
}

func TestOnlyOrphansOfEndedSessionsAreKilled(t *testing.T) {
	t.Setenv("TRL_SESSION_ID", "s-outer") // the tests may run in a session of trl
	eachTier(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		sh := openShellIn(t, h, c)
		member := testkit.Marker()
		sh.run("(env -i setsid sleep " + member + " &) ; sleep " + member + " &")
		innocent := []string{member, leave(t), leave(t, "TRL_SESSION_ID=s-live"), leave(t, "TRL_SESSION_ID="+g.id), leave(t, "TRL_SESSION_ID=s-outer")}
		direct := exec.Command("/bin/sleep", "60")
		direct.Env = []string{"TRL_SESSION_ID=s-live"}
		if err := direct.Start(); err != nil {
			t.Fatal(err)
		}
		defer direct.Wait()
		defer direct.Process.Kill()
		guilty := leave(t, "TRL_SESSION_ID=s-dead")
		testkit.Eventually(t, "the members run", func() bool { return len(testkit.Alive(member)) == 2 })
		testkit.Eventually(t, "those that left are alone", func() bool { // a process that forks and leaves is visible twice for a moment
			return len(testkit.Alive(guilty)) == 1 && !slices.ContainsFunc(innocent[1:], func(m string) bool { return len(testkit.Alive(m)) != 1 })
		})

		live := func(id string) bool { return id == "s-live" }
		if n := h.KillOrphans(live); n != 0 || len(testkit.Alive(guilty)) != 1 {
			t.Errorf("killed %d at first sight", n)
		}
		killed := 0 // one scan may miss an orphan, because the kernel's list of children may skip one while others end
		testkit.Eventually(t, "it is killed", func() bool { killed += h.KillOrphans(live); return killed > 0 })
		if killed != 1 {
			t.Errorf("killed %d", killed)
		}
		testkit.Eventually(t, "it is gone", func() bool { return len(testkit.Alive(guilty)) == 0 })
		for range 3 {
			if n := h.KillOrphans(live); n != 0 {
				t.Errorf("killed %d more", n)
			}
		}
		if n := testutil.ToFloat64(h.Metrics.OrphansKilled); n != 1 {
			t.Errorf("counted %v", n)
		}
		for _, m := range innocent {
			if len(testkit.Alive(m)) == 0 {
				t.Error("killed an innocent: ", slices.Index(innocent, m))
			}
		}
		if p, ok := procfs.Read(direct.Process.Pid); !ok || p.Dead() {
			t.Error("killed a child of os/exec")
		}
	})
}

// A session of root's can leave its cgroup, but its processes do not outlive the session.
func TestWhatLeftItsCgroupIsFound(t *testing.T) {
	h := testHost(t, "auto")
	if h.root == nil {
		t.Skip("no cgroup of our own (needs root or delegation): ", h.why)
	}
	above := filepath.Dir(h.root.Dir) + "/cgroup.procs"
	if f, err := os.OpenFile(above, os.O_WRONLY, 0); err != nil {
		t.Skip("cannot leave: ", err)
	} else {
		f.Close()
	}
	for _, c := range []struct{ name, wipe string }{
		{"marked", "env -i setsid"},
		{"mark taken off", "prlimit --locks=unlimited:unlimited env -i"}, // the process session still connects it with its session
	} {
		t.Run(c.name, func(t *testing.T) {
			g, scope := newGroup(t, h)
			sh := openShellIn(t, h, scope)
			m := testkit.Marker()
			sh.run(fmt.Sprintf(`(sh -c 'echo 0 >%s; exec %s sleep %s' &)`, above, c.wipe, m))
			testkit.Eventually(t, "it is out", func() bool {
				pids := testkit.Alive(m)
				return len(pids) == 1 && !slices.Contains(g.Members(), pids[0])
			})
			none := func(string) bool { return false }
			for range 3 {
				if n := h.KillOrphans(none); n != 0 {
					t.Fatal("killed in its session's lifetime")
				}
			}
			if err := g.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "it was found", func() bool { h.KillOrphans(none); return len(testkit.Alive(m)) == 0 })
		})
	}
}
