package shell

import (
	"fmt"
	"slices"
	"testing"

	"trl/runtime/journal"
	"trl/runtime/snapshot"
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

// A state that is larger than snapshot.MaxSize is not read. A process that starts without it says so, and so does the restore of a shell that
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
		s.run(fmt.Sprintf("x=$(head -c %d /dev/zero | tr '\\0' a)", snapshot.MaxSize+1))
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
