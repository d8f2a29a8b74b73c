package edge

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

	"trl/internal/rig"
	"trl/internal/testkit"
)

// dialToken is a client with a token.
func dialToken(t testing.TB, g *rig.Server, token string) *rig.Client {
	t.Helper()
	ws, err := g.Open(t, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatal(err)
	}
	return rig.NewClient(t, ws)
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
	g := rig.Gateway(t, append(tokenFlags(t, ann+" ann user", bob+" bob user"), "--max-sessions", "3", "--max-sessions-per-principal", "2")...)
	a, b := dialToken(t, g, ann), dialToken(t, g, bob)
	full := func(c *rig.Client, limit int) {
		t.Helper()
		for method, params := range map[string]object{"session.create": {}, "exec.run": {"command": "echo"}} { // the latter makes one too
			if f := c.Try(method, params); f.Code() != "MAX_SESSIONS_REACHED" || f.Error.Details.Num("limit") != limit {
				t.Errorf("%s: %+v", method, f)
			}
		}
	}
	first, second := a.Session(), a.Session()
	full(a, 2)
	third := b.Session()
	full(b, 3)
	for i := range rig.Pick(20, 200) {
		// Both ways of ending: at the answer the slot is free, for either.
		if i%2 == 0 {
			a.Call("session.destroy", object{"session_id": second})
		} else {
			a.Call("session.destroy", object{"session_id": second, "force": true})
		}
		second = a.Session()
	}
	ender := b.Session
	b.Call("session.destroy", object{"session_id": third})
	third = ender(object{"on_shell_exit": "terminate"})
	full(b, 3)
	b.Run(third, "exit 0") // ends by itself
	testkit.Eventually(t, "it has ended", func() bool { return b.State(third) == "TERMINATED" })
	b.Session()
	rig.Expect(t, a.Run(first, "echo fine"), 0, "fine\n", "")
	if n := len(a.Call("session.list", object{"state": "IDLE"}).Objs("sessions")); n != 2 {
		t.Errorf("%d live", n)
	}
}

// L2: without descriptors requests are refused with a type, nothing panics, nothing is half made; with them all is as
// before. (In process: pool's TestOutOfDescriptors. PTYs: with terminals.)
func TestRequestsAreRefusedWithoutDescriptors(t *testing.T) {
	g := rig.Gateway(t)
	c := g.Dial(t)
	keep := c.Session()
	var was unix.Rlimit
	if err := unix.Prlimit(g.Pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = uint64(rig.FdsOf(t, g.Pid) + 12)
	if err := unix.Prlimit(g.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	var made []string
	refused := 0
	for range 30 {
		f := c.Try("session.create", nil)
		if f.OK {
			made = append(made, f.Data.Str("session_id"))
			continue
		}
		refused++
		if f.Code() == "" || f.Code() == "INTERNAL_ERROR" {
			t.Errorf("session.create: %+v", f.Error)
		}
	}
	if refused == 0 {
		t.Error("the limit was not felt")
	}
	for range 3 {
		if f := c.Try("exec.run", object{"session_id": keep, "command": "echo x | cat", "stdin": "x", "timeout_s": 5}); f.OK && f.Data.Num("exit_code") == 0 && f.Data.Stdout() != "x\n" || f.Code() == "INTERNAL_ERROR" {
			t.Errorf("exec.run: %+v %+v", f.Data, f.Error)
		}
	}
	if n := c.Call("system.stats", nil).Num("active_sessions"); n != 1+len(made) {
		t.Errorf("%d sessions, %d were made", n, 1+len(made))
	}
	for _, id := range made {
		c.Call("session.destroy", object{"session_id": id, "force": true})
	}
	if err := unix.Prlimit(g.Pid, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		t.Fatal(err)
	}
	if n := g.Metric(t, "trl_kill_failed_total"); n > 0 {
		t.Errorf("%v processes are said to have withstood KILL: nobody could look", n)
	}
	rig.Expect(t, c.Run(keep, "cat; echo ok", object{"stdin": "in "}), 0, "in ok\n", "")
	for _, sh := range rig.Shells {
		rig.Expect(t, c.Run(c.Session(object{"shell": sh}), "echo fine"), 0, "fine\n", "")
	}
}

// L3: a storm of processes in one session is ended with it, while the others go on. It is bounded here: 200 that stay,
// and ten that do nothing but fork and exit, each at most 2,000 times.
func TestForkStormEndsWithItsSession(t *testing.T) {
	for i, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			g := rig.Shared(t, "l-"+tier, "--isolation", tier)
			c := g.Dial(t)
			for _, sh := range rig.Pick(rig.Shells[i%len(rig.Shells):i%len(rig.Shells)+1], rig.Shells) {
				bystander, s, nap := c.Session(object{"shell": sh}), c.Session(object{"shell": sh}), rig.Sleeper()
				c.Run(bystander, "v=mine")
				c.Stream(s, `for i in 0 1 2 3 4 5 6 7 8 9; do (setsid sh -c 'n=0; while [ $n -lt 2000 ]; do n=$((n+1)); (sleep 0.001 &) ; done' &) ; done
					i=0; while [ $i -lt 200 ]; do i=$((i+1)); `+nap+` & done; wait`)
				testkit.Eventually(t, "the storm blows", func() bool { return len(rig.Running(nap)) == 200 })
				start := time.Now()
				rig.Expect(t, c.Run(bystander, "echo $v"), 0, "mine\n", "")
				c.Call("system.ping", nil)
				if g.Metric(t, "trl_execs_running") != 1 {
					t.Error("metrics")
				}
				rig.Within(t, "others", start, 3*time.Second)
				start = time.Now()
				c.Call("session.destroy", object{"session_id": s, "force": true})
				rig.Within(t, "session.destroy", start, 7*time.Second)
				if n := len(rig.Running(nap)) + len(rig.ProcessesOfSession(s)); n > 0 {
					t.Errorf("%s: %d left", sh, n)
				}
				rig.Expect(t, c.Run(bystander, "echo $v"), 0, "mine\n", "")
				rig.Expect(t, c.Run(c.Session(object{"shell": sh}), "echo new"), 0, "new\n", "")
			}
		})
	}
}

// L4: who burns the processor and writes without end in one session does not stop the others.
func TestHogDoesNotStopOtherSessions(t *testing.T) {
	g := rig.Shared(t, "l-auto", "--isolation", "auto")
	c, hog := g.Dial(t), g.Dial(t)
	s, other := hog.Session(), c.Session()
	x := hog.Stream(s, "yes >/dev/null & yes >/dev/null & while :; do :; done", object{"on_slow": "skip"})
	testkit.Eventually(t, "it burns", func() bool { return len(rig.Running("yes")) >= 2 })
	for range 20 {
		start := time.Now()
		c.Call("system.ping", nil)
		rig.Within(t, "ping", start, time.Second)
		start = time.Now()
		rig.Expect(t, c.Run(other, "echo ok"), 0, "ok\n", "")
		rig.Within(t, "exec.run", start, time.Second)
	}
	hog.Call("exec.cancel", object{"exec_id": x.Str("exec_id")})
	hog.Call("session.destroy", object{"session_id": s, "force": true})
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
	script := fmt.Sprintf("#!/bin/sh\nexport TMPDIR=%[1]s HOME=%[1]s\nexec unshare --mount --propagation private sh -c 'mount -t tmpfs -o size=1m tmpfs %[1]s && mkdir -m 700 %[1]s/state && exec \"$0\" \"$@\"' %[2]s \"$@\"\n", disk, rig.Binary)
	if err := os.WriteFile(wrapper, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(wrapper, "serve", "--listen", "127.0.0.1:0", "--auth", "none", "--default-dir", disk, "--state-dir", disk+"/state", "--log-format", "json")
	line, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	book := &testkit.LogBook{}
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
	g := &rig.Server{Addr: addr, Pid: cmd.Process.Pid, Book: book, Dir: dir, Home: disk}
	c := g.Dial(t)
	for i, sh := range rig.Shells {
		s := c.Session(object{"shell": sh})
		if r := c.Run(s, "v=kept; head -c 2M /dev/zero >fill"); r.Num("exit_code") == 0 {
			t.Fatalf("%s: the disk is not full: %v", sh, r)
		}
		if r := c.Run(s, "echo x >>fill2.txt && head -c 1M /dev/zero >>fill2.txt"); r.Num("exit_code") == 0 || r.Stderr() == "" {
			t.Errorf("%s: %v", sh, r)
		}
		if r := c.Run(s, "seq 200000 | tail -n 1; echo $v"); r.Stdout() != "200000\nkept\n" {
			t.Errorf("%s: %v", sh, r)
		}
		if r := c.Run(s, "exit 3"); r.Num("exit_code") != 3 || !r.Yes("shell_restored") {
			t.Errorf("%s: %v", sh, r)
		}
		rig.Expect(t, c.Run(s, "cat; echo $v", object{"stdin": "in "}), 0, "in kept\n", "")
		text, _ := c.Output(c.Stream(s, "head -c 3000000 /dev/zero | tr '\\0' y").Str("stream_id"), 0)
		if len(text) != 3000000 {
			t.Errorf("%s: %d bytes", sh, len(text))
		}
		if got := len(c.Call("session.list", nil).Objs("sessions")); got != i+1 {
			t.Errorf("%d sessions", got)
		}
	}
}
