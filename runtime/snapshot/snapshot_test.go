package snapshot

import (
	"bytes"
	"fmt"
	"regexp"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"trl/runtime/dialect"
	"trl/runtime/own"
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
	made := make([]own.Channel, len(Kinds))
	for i := range made {
		fd, err := unix.MemfdCreate("snapshot", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		made[i] = own.Channel{W: fd, HeldW: 100 + i}
	}
	f.SetFiles(made, 103)
	return shell{f, t}
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
