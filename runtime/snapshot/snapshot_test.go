package snapshot

import (
	"bytes"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/saved"
	"trl/runtime/sessionlog"
)

var bash = dialect.Dialects["bash"]

// shell plays a shell that writes its snapshots.
type shell struct {
	*Files
	t *testing.T
}

func newShell(t *testing.T) shell {
	f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		f.SessionLog().Close()
	})
	f.SetFiles(makeFiles(t, 100, len(Kinds)), 103)
	return shell{f, t}
}

// makeFiles plays a keeper that makes n files and gives them numbers from first on.
func makeFiles(t *testing.T, first, n int) []own.Channel {
	made := make([]own.Channel, n)
	for i := range made {
		fd, err := unix.MemfdCreate("snapshot", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		made[i] = own.Channel{W: fd, HeldW: first + i}
	}
	return made
}

var requested = regexp.MustCompile(`__trl_s "\$__trl_p/(\d+)" (\d+)`)

// ask asks for a snapshot and returns the descriptor that it shall be written into, and its end mark.
func (s shell) ask() (fd int, mark string) {
	s.Ask(bash, func(line string) bool {
		m := requested.FindStringSubmatch(line)
		if m == nil {
			s.t.Fatalf("the line is %q", line)
		}
		var number int
		fmt.Sscan(m[1], &number)
		fd, mark = s.fd[number-100], dialect.EndMark+" "+m[2]+"\n"
		return true
	})
	return fd, mark
}

func (s shell) write(fd int, text string) {
	s.t.Helper()
	if err := unix.Ftruncate(fd, 0); err != nil {
		s.t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, []byte(text), 0); err != nil {
		s.t.Fatal(err)
	}
}

func (s shell) want(what, text string, isCurrent bool) {
	s.t.Helper()
	script, current := s.Script(bash, Alive)
	if !bytes.Contains(script, []byte(text)) || (script == nil) != (text == "") || current != isCurrent {
		s.t.Errorf("%s: %q, current %t; want %q, %t", what, script, current, text, isCurrent)
	}
}

func TestWholeSnapshotCounts(t *testing.T) {
	s := newShell(t)
	s.want("a fresh shell", "", true)
	s.CommandEnded()
	if !s.Wanted() {
		t.Error("no snapshot is wanted after a command")
	}
	fd, mark := s.ask()
	s.write(fd, "declare -- A=\"1\"\n")
	if !s.Pending() || s.Wanted() {
		t.Error("half a snapshot is whole, or another one is wanted")
	}
	s.want("half of it", "", false)
	s.write(fd, "declare -- A=\"1\"\n"+mark)
	s.want("the first", "A=", true)
	s.CommandEnded()
	s.want("after another command", "A=", false)
	into, mark := s.ask()
	if into == fd {
		t.Fatal("the only whole snapshot is overwritten")
	}
	s.want("the second is being written", "A=", false)
	s.write(into, "declare -- B=\"2\"\n"+mark)
	s.want("the second", "B=", true)
	s.Forget()
	if s.last != nil {
		t.Error("it is kept")
	}
}

// The copy of the snapshot that a shell was restored with is dropped when the shell has written another one.
func TestSnapshotIsNotKept(t *testing.T) {
	s := newShell(t)
	s.CommandEnded()
	fd, mark := s.ask()
	s.write(fd, "declare -- A=\"1\"\n"+mark)
	if script, current := s.Script(bash, 7); script == nil || !current || s.last == nil {
		t.Fatalf("%q, current %t, kept %q", script, current, s.last)
	}
	s.Restored()
	s.want("before the shell has written another one", "A=", true)
	fd, mark = s.ask()
	s.ForgetLast()
	if s.last == nil {
		t.Error("it is dropped too early")
	}
	s.write(fd, "declare -- A=\"1\"\n"+mark)
	if s.ForgetLast(); s.last != nil {
		t.Error("it is kept")
	}
	s.want("the new one", "A=", true)
}

// A shell at rest needs no file for its snapshots, nor does the next gateway's shell, whichever file the newer one was in.
func TestSnapshotAtRestIsArchived(t *testing.T) {
	s := newShell(t)
	exit := makeFiles(t, 0, 3)
	for round, text := range []string{"A=", "B=", "C="} {
		s.CommandEnded()
		fd, mark := s.ask()
		if s.Rest() {
			t.Fatal("it rests before the snapshot is whole")
		}
		s.write(fd, "declare -- "+text+mark)
		if spare, ok := s.Spare(); ok {
			t.Errorf("%v are spare while it does not rest", spare)
		}
		if !s.Rest() {
			t.Fatal("it does not rest")
		}
		if spare, ok := s.Spare(); !ok || len(spare) != 2 || s.Missing() != 2 || len(s.HeldFiles()) != 1 {
			t.Fatalf("spare %v, %t; missing %d; held %v", spare, ok, s.Missing(), s.HeldFiles())
		}
		if round == 1 { // another gateway takes over
			number, _ := s.AskedFor()
			again, err := unix.Dup(s.SessionLog().Fd())
			if err != nil {
				t.Fatal(err)
			}
			s.SessionLog().Close()
			log, err := sessionlog.Open(again, func([]byte) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(log.Close)
			take := func(k sessionlog.Key) *sessionlog.Archived {
				i := slices.IndexFunc(log.Archived(), func(a *sessionlog.Archived) bool { return a.Key == k })
				return log.Archived()[i]
			}
			s = shell{Restore(s.Held(), -1, -1, -1, log, take), t}
			t.Cleanup(s.Close)
			s.RestoreEnded(saved.Command{Snapshot: number - 1})
			if s.Pending() || s.Wanted() || !s.Rest() {
				t.Errorf("pending %t, wanted %t", s.Pending(), s.Wanted())
			}
			if spare, ok := s.Spare(); !ok || spare != nil {
				t.Errorf("spare %v, %t", spare, ok)
			}
		}
		made := makeFiles(t, 100, 2)
		if err := s.Unarchive(made); err != nil {
			t.Fatal(err)
		}
		s.WakeUp([]int{exit[round].W})
		s.Add(made)
		s.want("awake", text, true)
		if s.ReleaseArchived(); len(s.SessionLog().Archived()) > 0 {
			t.Error("a snapshot is left in the archive")
		}
		s.want("released", text, true)
	}
	s.CommandEnded()
	fd, mark := s.ask()
	s.write(fd, mark)
	s.Rest()
	s.Spare()
	s.SessionLog().Invalidate()
	made := makeFiles(t, 100, 2)
	if err := s.Unarchive(made); err != nil || !s.Wanted() {
		t.Errorf("without the session log: %v, wanted %t", err, s.Wanted())
	}
	s.WakeUp([]int{exit[0].W})
	s.Add(made)
	s.want("without the session log", "", false)
}

// A large snapshot stays in its file.
func TestLargeSnapshotIsNotArchived(t *testing.T) {
	s := newShell(t)
	s.CommandEnded()
	fd, mark := s.ask()
	s.write(fd, strings.Repeat("#", maxArchived)+mark)
	if !s.Rest() || len(s.SessionLog().Archived()) > 0 {
		t.Error("a large snapshot is archived")
	}
	if spare, ok := s.Spare(); !ok || len(spare) != 1 {
		t.Errorf("spare %v, %t", spare, ok)
	}
}

// A session that makes its snapshot a large sparse file has no snapshot, and the file takes no memory of trl.
func TestSparseSnapshot(t *testing.T) {
	s := newShell(t)
	s.CommandEnded()
	fd, mark := s.ask()
	for _, size := range []int64{MaxSize / 2, 200 << 20} {
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pwrite(fd, []byte(mark), size); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 4 {
			if script, _ := s.Script(bash, Alive); script != nil {
				t.Error("it counts as a snapshot")
			}
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > MaxSize {
			t.Errorf("%d bytes of memory for a sparse file of %d", took, size)
		}
	}
}
