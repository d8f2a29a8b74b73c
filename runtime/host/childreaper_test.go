package host

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/procfs"
)

// A process that other code in this process starts with os/exec keeps its exit status, even while orphans are being
// reaped all the time.
func TestStrangersAreNotStolen(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		// This shell makes orphans all the time. How a storm of them is killed is the subject of
		// TestNothingSurvivesAKill.
		spawn(t, h, c, nil, "/bin/sh", "-c", "while :; do (setsid sleep 0.01 &); sleep 0.005; done")
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for range trials() {
					cmd := exec.Command("/bin/sh", "-c", "exit 7")
					cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: i%2 == 0}
					if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 7 {
						t.Errorf("got %v", err)
					}
				}
			})
		}
		// The caller waits late for this process, which has no process session of its own.
		slow := exec.Command("/bin/sh", "-c", "exit 8")
		if err := slow.Start(); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			time.Sleep(foreignZombieWait + time.Second)
			if err := slow.Wait(); err == nil || slow.ProcessState.ExitCode() != 8 {
				t.Errorf("got %v", err)
			}
		})
		all.Wait()
		if err := g.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// An orphan of one of our sessions is reaped at once and counted.
func TestOrphansAreReaped(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		_, c := newGroup(t, h)
		child := spawn(t, h, c, nil, "/bin/sh", "-c", "for i in 1 2 3 4 5; do (env -i setsid sleep 0.01 &); done")
		<-child.Exited()
		testkit.Eventually(t, "none is left", func() bool { return len(c.MembersExcept(0)) == 0 })
		testkit.Eventually(t, "five were reaped", func() bool { return testutil.ToFloat64(h.Metrics.ZombiesReaped) >= 5 })
		testkit.Eventually(t, "no zombie is left", func() bool { return procfs.PeekZombie() == 0 })
	})
}

// Orphans are reaped while a fork is under way, however long it takes.
func TestOrphansAreReapedDuringAFork(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		_, c := newGroup(t, h)
		spawn(t, h, c, nil, "/bin/sh", "-c", "n=0; while [ $n -lt 50 ]; do (setsid sleep 0.01 &); n=$((n+1)); done; exec sleep 300")
		h.childReaper.forkMu.RLock() // as a start does from its fork until the child is known
		defer h.childReaper.forkMu.RUnlock()
		testkit.Eventually(t, "they were reaped", func() bool { return testutil.ToFloat64(h.Metrics.ZombiesReaped) >= 50 })
	})
}

// A process without a mark is an orphan of a session at once if no other code of this process makes process sessions.
func TestUnmarkedOrphansOfAHostThatIsAlone(t *testing.T) {
	for _, alone := range []bool{false, true} {
		h := otherHost(t, Config{Isolation: "none", Alone: alone})
		pid := testkit.Alive(leave(t))[0]
		if c, ok := h.wasOurs(pid); ok != alone || c != nil {
			t.Errorf("alone %v: %v, %v", alone, c, ok)
		}
		if _, ok := h.wasOurs(os.Getpid()); ok {
			t.Error("our own process session is no session's")
		}
	}
}

// No code waits for an orphan that an os/exec child leaves. The child reaper reaps it after a while.
func TestZombiesOfUnknownOriginAreReaped(t *testing.T) {
	h := testHost(t, "none")
	if err := exec.Command("/bin/sh", "-c", "setsid sleep 0.01 &").Run(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it was reaped", func() bool { return testutil.ToFloat64(h.Metrics.ZombiesReaped) >= 1 }) // more, if an earlier test left some
}

// The child reaper notices a child of ours even if a zombie that it may not reap comes before the child in the kernel's
// list.
func TestChildBehindAStrangersZombie(t *testing.T) {
	h := testHost(t, "auto")
	slow := exec.Command("/bin/true")
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is a zombie", func() bool { return procfs.IsZombie(slow.Process.Pid) })
	for range 20 {
		c := spawn(t, h, nil, nil, "/bin/true")
		<-c.Exited()
	}
	if err := slow.Wait(); err != nil {
		t.Error("stolen: ", err)
	}
}

// A child that is handed over has not been reaped. Otherwise the successor would wait for it forever.
func TestNobodyIsReapedDuringAHandover(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		_, c := newGroup(t, h)
		done := make(chan struct{})
		go func() { // ends when its trials are done
			defer close(done)
			for range max(200, 10*trials()) {
				child := spawn(t, h, c, nil, "/bin/true")
				<-child.Exited()
				child.Close()
			}
		}()
		for listed := 0; ; {
			select {
			case <-done:
				if listed == 0 {
					t.Error("never was anybody alive")
				}
				return
			default:
			}
			_ = h.HandOver(func(b *HandoverState) error {
				for _, child := range b.Children {
					listed++
					var info procfs.Siginfo
					if err := procfs.Waitid(unix.P_PID, child.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT); err != nil {
						t.Errorf("child %d: %v", child.Pid, err)
					}
				}
				return nil
			})
			time.Sleep(time.Millisecond) // gives the child reaper time to work
		}
	})
}
