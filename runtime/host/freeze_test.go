package host

import (
	"bufio"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/procfs"
)

// A shell that continues while its job is still stopped would take the terminal from the job. As soon as this shell
// continues, it checks the last of the many processes that it has started.
func TestPauseResumesChildrenFirst(t *testing.T) {
	h := testHost(t, "none")
	_, c := newGroup(t, h)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spawn(t, h, c, w, "/bin/sh", "-c", `trap 'grep ^State: /proc/$last/status' CONT
		i=0; while [ $i -lt 200 ]; do sleep 300 & i=$((i+1)); done; last=$!; echo ready; while :; do wait; done`)
	w.Close()
	lines := bufio.NewReader(r)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	for range 3 {
		resume := h.FreezeSessions()
		testkit.Eventually(t, "all have stopped", func() bool {
			return !slices.ContainsFunc(c.group.Members(), func(pid int) bool { p, ok := procfs.Read(pid); return ok && p.State != 'T' })
		})
		resume()
		if line, err := lines.ReadString('\n'); err != nil || strings.Contains(line, "T (stopped)") {
			t.Errorf("the shell goes on while its job has %q, %v", line, err)
		}
	}
}

// A process that is not a child of the session's shell is not moved into a scope of the session, whatever the session
// says.
func TestCopyThatIsNotTheShells(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		_, c := newGroup(t, h)
		_, other := newGroup(t, h)
		bystander := spawn(t, h, other, nil, "/bin/sleep", "60")
		for _, pid := range []int{bystander.Pid(), h.pid, 1} {
			if err := c.AddForkedCopy(pid); !errors.Is(err, unix.EPERM) {
				t.Errorf("process %d: %v", pid, err)
			}
		}
		m := testkit.Marker()
		shell := spawn(t, h, c, nil, "/bin/sh", "-c", "sleep "+m+" & wait")
		var kid int
		testkit.Eventually(t, "it runs", func() bool {
			for _, pid := range testkit.Alive(m) {
				if p, ok := procfs.Read(pid); ok && p.Ppid == shell.Pid() {
					kid = pid
				}
			}
			return kid != 0
		})
		if err := c.AddForkedCopy(kid); err != nil {
			t.Errorf("the shell's own child: %v", err)
		}
	})
}
