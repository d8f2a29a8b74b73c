package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/sessionlog"
)

// clTime is a time in a session log.
var clTime = regexp.MustCompile(`"20\d\d-\d\d-\d\dT[^"]*"`)

// shiftClock kills the gateway, and has the next one read that all happened at another time of the wall clock: as if the clock had been
// set by d in between.
func (g *server) shiftClock(t *testing.T, d time.Duration) {
	t.Helper()
	if err := syscall.Kill(g.pid, syscall.SIGSTOP); err != nil { // the keeper, until the session logs are written anew
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			_ = syscall.Kill(g.pid, syscall.SIGCONT)
		}
		resumed = true
	}
	defer resume()
	old := g.gatewayPid()
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gateway is dead", func() bool { state, _, _, ok := procStat(old); return !ok || state == 'Z' })
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", g.pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range fds {
		if to, _ := os.Readlink(path); !strings.HasPrefix(to, "/memfd:trl-ledger") {
			continue
		}
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var items []sessionlog.Item
		book, err := sessionlog.Open(fd, func(entry []byte) error {
			items = append(items, sessionlog.Item{Text: clTime.ReplaceAllFunc(slices.Clone(entry), func(quoted []byte) []byte {
				at, err := time.Parse(time.RFC3339Nano, strings.Trim(string(quoted), `"`))
				if err != nil {
					return quoted
				}
				return []byte(`"` + at.Add(-d).Format(time.RFC3339Nano) + `"`)
			})})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := book.Compact(items...); err != nil {
			t.Fatal(err)
		}
		book.Close()
	}
	resume()
	eventually(t, "another gateway", func() bool { now := g.gatewayPid(); return now > 0 && now != old })
}

// TestSettingTheClockEndsNobody ends nobody, and nobody lives longer for it: what was begun under the last gateway is counted by a clock that
// nobody sets.
func TestSettingTheClockEndsNobody(t *testing.T) {
	ourNumbers(t)
	for name, d := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			g := gateway(t)
			c := g.dial(t)
			gate := filepath.Join(g.home, "gate")
			until := "until [ -e " + gate + " ]; do sleep 0.02; done; echo done"
			s := func() string { return c.session(object{"shell": "/bin/sh"}) }
			first := s()
			long := c.stream(first, until, object{"timeout_s": 600}).str("exec_id")
			waits := c.call("exec.stream", object{"session_id": first, "command": "echo waited"}).str("exec_id")
			process := c.call("process.start", object{"session_id": first, "command": until, "timeout_s": 600}).str("process_id")
			short := c.stream(s(), "sleep 300", object{"timeout_s": 1}).str("exec_id")
			other := s()
			shortProcess := c.call("process.start", object{"session_id": other, "command": "sleep 300", "timeout_s": 1}).str("process_id")
			up := filepath.Join(g.home, "up")
			deaf := c.stream(s(), "sh -c \"trap '' TERM; : >"+up+"; while :; do sleep 0.1; done\"", object{"timeout_s": 600}).str("exec_id")
			eventually(t, "it runs", func() bool { _, err := os.Stat(up); return err == nil })
			c.begin("exec.cancel", object{"exec_id": deaf, "kill_grace_s": 50})
			eventually(t, "the others run", func() bool { return len(c.call("process.list", object{"session_id": other}).objs("processes")) == 1 })
			link := c.call("share.create", object{"session_id": first, "expires_in_s": 600})
			g.shiftClock(t, d)
			c = g.redial(t)
			if r := c.call("exec.wait", object{"exec_id": short, "timeout_s": 60}); !r.yes("timed_out") || r.num("duration_ms") < 0 || r.num("duration_ms") > int(patience.Milliseconds()) {
				t.Errorf("of 1 s: %v", r)
			}
			awaitExit(c, shortProcess)
			if p := c.call("process.list", object{"session_id": other}).objs("processes"); len(p) != 1 || !p[0].yes("timed_out") {
				t.Errorf("of 1 s: %v", p)
			}
			if r := c.call("exec.wait", object{"exec_id": long, "timeout_s": 0.1}); !r.yes("running") || r.num("duration_ms") < 0 || r.num("duration_ms") > int(patience.Milliseconds()) {
				t.Errorf("it runs: %v", r)
			}
			if links := c.call("share.list", object{"session_id": first}).objs("shares"); len(links) != 1 || links[0].str("share_id") != link.str("share_id") {
				t.Errorf("links %v", links)
			}
			if err := os.WriteFile(gate, nil, 0o644); err != nil { // #nosec G306 -- sessions look for it
				t.Fatal(err)
			}
			for _, id := range []string{long, waits} {
				if r := c.call("exec.wait", object{"exec_id": id}); r.num("exit_code") != 0 || r.yes("timed_out") || r.num("duration_ms") < 0 || r.num("queued_ms") < 0 || r.num("duration_ms") > int(patience.Milliseconds()) {
					t.Errorf("%v", r)
				}
			}
			awaitExit(c, process)
			for _, p := range c.call("process.list", object{"session_id": first}).objs("processes") {
				if p.num("exit_code") != 0 || p.yes("timed_out") {
					t.Errorf("of 600 s: %v", p)
				}
			}
			if r := c.call("exec.wait", object{"exec_id": deaf, "timeout_s": 0.1}); !r.yes("running") {
				t.Errorf("its grace is not over: %v", r)
			}
			c.call("exec.cancel", object{"exec_id": deaf, "kill_grace_s": 0})
		})
	}
}
