package acceptance

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"
)

// dialToken is a client with a token.
func (g *server) dialToken(t testing.TB, token string) *client {
	t.Helper()
	ws, err := g.open(t, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, ws: ws, change: make(chan struct{}), done: make(chan struct{})}
	go c.read()
	t.Cleanup(c.close)
	return c
}

// tokenFlags is the flags of a gateway that knows these tokens; each line is TOKEN SUBJECT ROLE.
func tokenFlags(t testing.TB, lines ...string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--auth", "token", "--token-file", file}
}

// L1: the caps on sessions, of all and of one principal, with the number; a slot is free the moment its session ended.
func TestSessionLimitsFreeTheirPlacesAtOnce(t *testing.T) {
	ann, bob := strings.Repeat("ann-token-", 5), strings.Repeat("bob-token-", 5)
	g := gateway(t, append(tokenFlags(t, ann+" ann user", bob+" bob user"), "--max-sessions", "3", "--max-sessions-per-principal", "2")...)
	a, b := g.dialToken(t, ann), g.dialToken(t, bob)
	full := func(c *client, limit int) {
		t.Helper()
		for method, params := range map[string]object{"session.create": {}, "exec.run": {"command": "echo"}} { // the latter makes one too
			if f := c.try(method, params); f.code() != "MAX_SESSIONS_REACHED" || f.Error.Details.num("limit") != limit {
				t.Errorf("%s: %+v", method, f)
			}
		}
	}
	first, second := a.session(), a.session()
	full(a, 2)
	third := b.session()
	full(b, 3)
	for i := range pick(20, 200) {
		// Both ways of ending: at the answer the slot is free, for either.
		if i%2 == 0 {
			a.call("session.destroy", object{"session_id": second})
		} else {
			a.call("session.destroy", object{"session_id": second, "force": true})
		}
		second = a.session()
	}
	ender := b.session
	b.call("session.destroy", object{"session_id": third})
	third = ender(object{"on_shell_exit": "terminate"})
	full(b, 3)
	b.run(third, "exit 0") // ends by itself
	eventually(t, "it has ended", func() bool { return b.state(third) == "TERMINATED" })
	b.session()
	expect(t, a.run(first, "echo fine"), 0, "fine\n", "")
	if n := len(a.call("session.list", object{"state": "IDLE"}).objs("sessions")); n != 2 {
		t.Errorf("%d live", n)
	}
}

// L2: without descriptors requests are refused with a type, nothing panics, nothing is half made; with them all is as
// before. (In process: pool's TestOutOfDescriptors. PTYs: with terminals.)
func TestRequestsAreRefusedWithoutDescriptors(t *testing.T) {
	g := gateway(t)
	c := g.dial(t)
	keep := c.session()
	var was unix.Rlimit
	if err := unix.Prlimit(g.pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = uint64(fdsOf(t, g.pid) + 12)
	if err := unix.Prlimit(g.pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	var made []string
	refused := 0
	for range 30 {
		f := c.try("session.create", nil)
		if f.OK {
			made = append(made, f.Data.str("session_id"))
			continue
		}
		refused++
		if f.code() == "" || f.code() == "INTERNAL_ERROR" {
			t.Errorf("session.create: %+v", f.Error)
		}
	}
	if refused == 0 {
		t.Error("the limit was not felt")
	}
	for range 3 {
		if f := c.try("exec.run", object{"session_id": keep, "command": "echo x | cat", "stdin": "x", "timeout_s": 5}); f.OK && f.Data.num("exit_code") == 0 && f.Data.stdout() != "x\n" || f.code() == "INTERNAL_ERROR" {
			t.Errorf("exec.run: %+v %+v", f.Data, f.Error)
		}
	}
	if n := c.call("system.stats", nil).num("active_sessions"); n != 1+len(made) {
		t.Errorf("%d sessions, %d were made", n, 1+len(made))
	}
	for _, id := range made {
		c.call("session.destroy", object{"session_id": id, "force": true})
	}
	if err := unix.Prlimit(g.pid, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	if n := g.metric(t, "trl_kill_failed_total"); n > 0 {
		t.Errorf("%v processes are said to have withstood KILL: nobody could look", n)
	}
	expect(t, c.run(keep, "cat; echo ok", object{"stdin": "in "}), 0, "in ok\n", "")
	for _, sh := range shells {
		expect(t, c.run(c.session(object{"shell": sh}), "echo fine"), 0, "fine\n", "")
	}
}

// L3: a storm of processes in one session is ended with it, while the others go on. It is bounded here: 200 that stay,
// and ten that do nothing but fork and exit, each at most 2,000 times.
func TestForkStormEndsWithItsSession(t *testing.T) {
	for i, tier := range gTiers {
		t.Run(tier, func(t *testing.T) {
			g := shared(t, "l-"+tier, "--isolation", tier)
			c := g.dial(t)
			for _, sh := range pick(shells[i%len(shells):i%len(shells)+1], shells) {
				bystander, s, nap := c.session(object{"shell": sh}), c.session(object{"shell": sh}), sleeper()
				c.run(bystander, "v=mine")
				c.stream(s, `for i in 0 1 2 3 4 5 6 7 8 9; do (setsid sh -c 'n=0; while [ $n -lt 2000 ]; do n=$((n+1)); (sleep 0.001 &) ; done' &) ; done
					i=0; while [ $i -lt 200 ]; do i=$((i+1)); `+nap+` & done; wait`)
				eventually(t, "the storm blows", func() bool { return len(running(nap)) == 200 })
				start := time.Now()
				expect(t, c.run(bystander, "echo $v"), 0, "mine\n", "")
				c.call("system.ping", nil)
				if g.metric(t, "trl_execs_running") != 1 {
					t.Error("metrics")
				}
				within(t, "others", start, 3*time.Second)
				start = time.Now()
				c.call("session.destroy", object{"session_id": s, "force": true})
				within(t, "session.destroy", start, 7*time.Second)
				if n := len(running(nap)) + len(processesOfSession(s)); n > 0 {
					t.Errorf("%s: %d left", sh, n)
				}
				expect(t, c.run(bystander, "echo $v"), 0, "mine\n", "")
				expect(t, c.run(c.session(object{"shell": sh}), "echo new"), 0, "new\n", "")
			}
		})
	}
}

// L4: who burns the processor and writes without end in one session does not stop the others.
func TestHogDoesNotStopOtherSessions(t *testing.T) {
	g := shared(t, "l-auto", "--isolation", "auto")
	c, hog := g.dial(t), g.dial(t)
	s, other := hog.session(), c.session()
	x := hog.stream(s, "yes >/dev/null & yes >/dev/null & while :; do :; done", object{"on_slow": "skip"})
	eventually(t, "it burns", func() bool { return len(running("yes")) >= 2 })
	for range 20 {
		start := time.Now()
		c.call("system.ping", nil)
		within(t, "ping", start, time.Second)
		start = time.Now()
		expect(t, c.run(other, "echo ok"), 0, "ok\n", "")
		within(t, "exec.run", start, time.Second)
	}
	hog.call("exec.cancel", object{"exec_id": x.str("exec_id")})
	hog.call("session.destroy", object{"session_id": s, "force": true})
}

// L6: a full disk, in a mount namespace of its own so that nobody else sees it: sessions work, as trl keeps nothing of
// them on disk; what the shell itself cannot write is the command's failure.
func TestSessionsWorkOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a mount needs root")
	}
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	wrapper := filepath.Join(dir, "trl") // what the rig starts instead of the binary
	script := fmt.Sprintf("#!/bin/sh\nexport TMPDIR=%[1]s HOME=%[1]s\nexec unshare --mount --propagation private sh -c 'mount -t tmpfs -o size=1m tmpfs %[1]s && mkdir -m 700 %[1]s/state && exec \"$0\" \"$@\"' %[2]s \"$@\"\n", disk, binary)
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(wrapper, "serve", "--listen", "127.0.0.1:0", "--auth", "none", "--default-dir", disk, "--state-dir", disk+"/state", "--log-format", "json")
	line, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	book := &logBook{}
	cmd.Stderr = book
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM) // every exec above kept the number
		if err := cmd.Wait(); err != nil {
			t.Errorf("end: %v", err)
		}
		if t.Failed() {
			t.Log(book.String())
		}
	})
	b := make([]byte, 200)
	n, _ := line.Read(b)
	addr, ok := strings.CutPrefix(strings.TrimSpace(string(b[:n])), "trl: listening on http://")
	if !ok {
		t.Fatalf("%q %s", b[:n], book)
	}
	g := &server{addr: addr, pid: cmd.Process.Pid, book: book, dir: dir, home: disk}
	c := g.dial(t)
	for i, sh := range shells {
		s := c.session(object{"shell": sh})
		if r := c.run(s, "v=kept; head -c 2M /dev/zero >fill"); r.num("exit_code") == 0 {
			t.Fatalf("%s: the disk is not full: %v", sh, r)
		}
		if r := c.run(s, "echo x >>fill2.txt && head -c 1M /dev/zero >>fill2.txt"); r.num("exit_code") == 0 || r.stderr() == "" {
			t.Errorf("%s: %v", sh, r)
		}
		if r := c.run(s, "seq 200000 | tail -n 1; echo $v"); r.stdout() != "200000\nkept\n" {
			t.Errorf("%s: %v", sh, r)
		}
		if r := c.run(s, "exit 3"); r.num("exit_code") != 3 || !r.yes("shell_restored") {
			t.Errorf("%s: %v", sh, r)
		}
		expect(t, c.run(s, "cat; echo $v", object{"stdin": "in "}), 0, "in kept\n", "")
		text, _ := c.output(c.stream(s, "head -c 3000000 /dev/zero | tr '\\0' y").str("stream_id"), 0)
		if len(text) != 3000000 {
			t.Errorf("%s: %d bytes", sh, len(text))
		}
		if got := len(c.call("session.list", nil).objs("sessions")); got != i+1 {
			t.Errorf("%d sessions", got)
		}
	}
}
