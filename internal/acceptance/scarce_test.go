package acceptance

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// few takes all further descriptors from a process until enough is called.
func few(t *testing.T, pid int) (enough func()) {
	t.Helper()
	var before unix.Rlimit
	none := unix.Rlimit{Cur: 16} // poll(2) wants as many as it is given
	err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before)
	if none.Max = before.Max; err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &none, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	enough = func() { _ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil) }
	t.Cleanup(enough)
	return enough
}

// What another one takes ends nobody's session: a shell that ends while descriptors are short is put back when there are some again,
// with its state, and who asks meanwhile is told why not.
func TestScarcityEndsNoSession(t *testing.T) {
	t.Parallel()
	g := gateway(t, "--warm", "0")
	c := g.dial(t)
	type session struct {
		id, ends string
		code     int
		client   *client
	}
	var kept []*session
	for _, sh := range shells {
		for _, x := range []session{{ends: "exit 3", code: 3}, {ends: "kill -9 $$", code: 137}, {ends: "exec true"}} {
			x.id, x.client = c.session(object{"shell": sh}), g.dial(t)
			c.run(x.id, "V=kept; cd /usr")
			kept = append(kept, &x)
		}
	}
	idle, anew := c.session(object{"shell": "/bin/bash"}), c.session()
	c.run(idle, "V=kept; cd /usr")
	shell := c.info(idle).num("pid")
	enough := few(t, g.serving(t))
	if err := unix.Kill(shell, unix.SIGKILL); err != nil { // while no command runs
		t.Fatal(err)
	}
	ids := make([]int, len(kept))
	for i, x := range kept {
		ids[i] = x.client.begin("exec.run", object{"session_id": x.id, "command": x.ends})
	}
	reset := c.begin("session.reset", object{"session_id": anew})
	for i, x := range kept {
		if f := x.client.answer(ids[i]); !f.OK || f.Data.num("exit_code") != x.code || f.Data.yes("shell_restored") {
			t.Errorf("%s: %v, %v", x.ends, f.Data, f.Error)
		}
	}
	if f := c.answer(reset); f.code() != "LIMIT_EXCEEDED" {
		t.Errorf("session.reset: %v, %v", f.Data, f.Error)
	}
	for i, x := range kept {
		ids[i] = x.client.begin("exec.run", object{"session_id": x.id, "command": "echo no"})
	}
	for i, x := range kept {
		if f := x.client.answer(ids[i]); f.code() != "LIMIT_EXCEEDED" {
			t.Errorf("after %s: %v, %v", x.ends, f.Data, f.Error)
		}
		if state := c.state(x.id); state == "TERMINATED" {
			t.Errorf("after %s: %v", x.ends, c.info(x.id))
		}
	}
	eventually(t, "it was tried to put that one back", func() bool {
		return strings.Count(g.log(), "its state is kept, and it is tried again") > len(kept)
	})
	enough()
	for _, x := range kept {
		r := c.run(x.id, "echo $V $PWD")
		expect(t, r, 0, "kept /usr\n", "")
		if !r.yes("shell_restored") || r.has("state_lost") {
			t.Errorf("after %s: %v", x.ends, r)
		}
	}
	expect(t, c.run(idle, "echo $V $PWD"), 0, "kept /usr\n", "")
	expect(t, c.run(anew, "echo new"), 0, "new\n", "")
}
