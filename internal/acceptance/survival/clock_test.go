package survival

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

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/runtime/sessionlog"
)

// timeInJSON is a time in a session log.
var timeInJSON = regexp.MustCompile(`"20\d\d-\d\d-\d\dT[^"]*"`)

// shiftClock kills the gateway, and has the next one read that all happened at another time of the wall clock: as if the clock had been
// set by d in between.
func shiftClock(t *testing.T, g *rig.Server, d time.Duration) {
	t.Helper()
	if err := syscall.Kill(g.Pid, syscall.SIGSTOP); err != nil { // the keeper, until the session logs are written anew
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			_ = syscall.Kill(g.Pid, syscall.SIGCONT)
		}
		resumed = true
	}
	defer resume()
	old := g.GatewayPid()
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the gateway is dead", func() bool { state, _, _, ok := rig.ProcStat(old); return !ok || state == 'Z' })
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", g.Pid))
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
			items = append(items, sessionlog.Item{Text: timeInJSON.ReplaceAllFunc(slices.Clone(entry), func(quoted []byte) []byte {
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
	testkit.Eventually(t, "another gateway", func() bool { now := g.GatewayPid(); return now > 0 && now != old })
}

// TestSettingTheClockEndsNobody ends nobody, and nobody lives longer for it: what was begun under the last gateway is counted by a clock that
// nobody sets.
func TestSettingTheClockEndsNobody(t *testing.T) {
	rig.OurNumbers(t)
	for name, d := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			g := rig.Gateway(t)
			c := g.Dial(t)
			gate := filepath.Join(g.Home, "gate")
			until := "until [ -e " + gate + " ]; do sleep 0.02; done; echo done"
			s := func() string { return c.Session(object{"shell": "/bin/sh"}) }
			first := s()
			long := c.Stream(first, until, object{"timeout_s": 600}).Str("exec_id")
			waits := c.Call("exec.stream", object{"session_id": first, "command": "echo waited"}).Str("exec_id")
			process := c.Call("process.start", object{"session_id": first, "command": until, "timeout_s": 600}).Str("process_id")
			short := c.Stream(s(), "sleep 300", object{"timeout_s": 1}).Str("exec_id")
			other := s()
			shortProcess := c.Call("process.start", object{"session_id": other, "command": "sleep 300", "timeout_s": 1}).Str("process_id")
			up := filepath.Join(g.Home, "up")
			deaf := c.Stream(s(), "sh -c \"trap '' TERM; : >"+up+"; while :; do sleep 0.1; done\"", object{"timeout_s": 600}).Str("exec_id")
			testkit.Eventually(t, "it runs", func() bool { _, err := os.Stat(up); return err == nil })
			c.Begin("exec.cancel", object{"exec_id": deaf, "kill_grace_s": 500})
			testkit.Eventually(t, "the others run", func() bool {
				return len(c.Call("process.list", object{"session_id": other}).Objs("processes")) == 1
			})
			link := c.Call("share.create", object{"session_id": first, "expires_in_s": 600})
			shiftClock(t, g, d)
			c = g.Redial(t)
			if r := c.Call("exec.wait", object{"exec_id": short, "timeout_s": 60}); !r.Yes("timed_out") || r.Num("duration_ms") < 0 || r.Num("duration_ms") > int(testkit.Patience.Milliseconds()) {
				t.Errorf("of 1 s: %v", r)
			}
			rig.AwaitExit(c, shortProcess)
			if p := c.Call("process.list", object{"session_id": other}).Objs("processes"); len(p) != 1 || !p[0].Yes("timed_out") {
				t.Errorf("of 1 s: %v", p)
			}
			if r := c.Call("exec.wait", object{"exec_id": long, "timeout_s": 0.1}); !r.Yes("running") || r.Num("duration_ms") < 0 || r.Num("duration_ms") > int(testkit.Patience.Milliseconds()) {
				t.Errorf("it runs: %v", r)
			}
			if links := c.Call("share.list", object{"session_id": first}).Objs("shares"); len(links) != 1 || links[0].Str("share_id") != link.Str("share_id") {
				t.Errorf("links %v", links)
			}
			if err := os.WriteFile(gate, nil, 0o644); err != nil { // #nosec G306 -- sessions look for it
				t.Fatal(err)
			}
			for _, id := range []string{long, waits} {
				if r := c.Call("exec.wait", object{"exec_id": id}); r.Num("exit_code") != 0 || r.Yes("timed_out") || r.Num("duration_ms") < 0 || r.Num("queued_ms") < 0 || r.Num("duration_ms") > int(testkit.Patience.Milliseconds()) {
					t.Errorf("%v", r)
				}
			}
			rig.AwaitExit(c, process)
			for _, p := range c.Call("process.list", object{"session_id": first}).Objs("processes") {
				if p.Num("exit_code") != 0 || p.Yes("timed_out") {
					t.Errorf("of 600 s: %v", p)
				}
			}
			if r := c.Call("exec.wait", object{"exec_id": deaf, "timeout_s": 0.1}); !r.Yes("running") {
				t.Errorf("its grace is not over: %v", r)
			}
			c.Call("exec.cancel", object{"exec_id": deaf, "kill_grace_s": 0})
		})
	}
}
