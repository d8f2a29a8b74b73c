package shell

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/dialect"
	"trl/runtime/journal"
)

// startOne starts a process, waits for its end, and returns the parts of the state that it did not have.
func startOne(s *session, text string) (lost []string) {
	p, err := s.StartProcess(ProcessSpec{Text: text, Journal: journal.New(1 << 20)})
	if err != nil {
		s.t.Fatal(err)
	}
	<-p.Exited()
	p.Release()
	return p.Saved().Lost
}

// allocated returns how much memory f allocates in total.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A state that is larger than maxSnapshot is not read. A process that starts without it says so, and so does the restore of a shell that
// dies with it.
func TestStateTooLarge(t *testing.T) {
	h := testHost(t, "auto")
	for _, sh := range []string{"bash", "sh", "zsh"} {
		path := shells(t)[sh]
		if path == "" {
			continue
		}
		s := openSession(t, h, path)
		s.want("A=1", "")
		s.SnapshotIfDue()
		if lost := startOne(s, ":"); slices.Contains(lost, "variables") {
			t.Errorf("%s: %v", sh, lost)
		}
		s.run(fmt.Sprintf("x=$(head -c %d /dev/zero | tr '\\0' a)", maxSnapshot+1))
		for range 2 {
			if lost := startOne(s, ":"); !slices.Contains(lost, "variables") {
				t.Errorf("%s: %v", sh, lost)
			}
		}
		if r := s.run("kill -9 $$"); !r.Restored || !slices.Contains(r.Lost, "variables") {
			t.Errorf("%s: %+v", sh, r.Outcome)
		}
		s.want("echo ${#x} $A", "0 1\n")
		if lost := startOne(s, ":"); slices.Contains(lost, "variables") {
			t.Errorf("%s: %v", sh, lost)
		}
	}
}

// A session that makes its snapshot a large sparse file has no snapshot, and the file takes no memory of trl.
func TestSparseSnapshot(t *testing.T) {
	h := testHost(t, "auto")
	s := openSession(t, h, shells(t)["bash"])
	s.want("A=1", "")
	s.SnapshotIfDue()
	testkit.Eventually(t, "it has a snapshot", func() bool { return !s.state.pending() && s.state.endMarks[s.state.newer] != "" })
	for _, size := range []int64{maxSnapshot / 2, 200 << 20} {
		mark := s.state.endMarks[s.state.newer]
		for _, fd := range s.state.fd {
			if err := unix.Ftruncate(fd, size); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Pwrite(fd, []byte(mark), size); err != nil {
				t.Fatal(err)
			}
		}
		s.state.endMarks = [2]string{mark, mark}
		took := allocated(func() {
			for range 4 {
				if script, _ := s.state.script(dialect.Dialects["bash"], nil); script != nil {
					t.Error("it counts as a snapshot")
				}
			}
		})
		if took > maxSnapshot {
			t.Errorf("%d bytes of memory for a sparse file of %d", took, size)
		}
	}
	s.state.endMarks = [2]string{}
	s.want("echo $A", "1\n")
}

// The copy of the snapshot that a shell was restored with is dropped when the shell has written another one.
func TestSnapshotIsNotKept(t *testing.T) {
	h := testHost(t, "auto")
	s := openSession(t, h, shells(t)["bash"])
	s.want("A=1; x=$(head -c 1000000 /dev/zero | tr '\\0' a)", "")
	if r := s.run("exit 3"); !r.Restored || r.Code != 3 {
		t.Fatal(r.Outcome)
	}
	s.want("echo $A ${#x}", "1 1000000\n")
	testkit.Eventually(t, "nothing is kept", func() bool {
		s.SnapshotIfDue()
		time.Sleep(time.Millisecond)
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		return s.state.last == nil
	})
	for range 3 {
		startOne(s, ":")
	}
	if s.state.last != nil {
		t.Error("it is kept")
	}
	if r := s.run("kill -9 $$"); !r.Restored {
		t.Error(r.Outcome)
	}
	s.want("echo $A ${#x}", "1 1000000\n")
}
