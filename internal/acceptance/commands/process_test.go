package commands

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// awaitLogs reads on from offset until want is there, and nothing else.
func awaitLogs(c *rig.Client, process string, offset int, want string) (next int) {
	c.T.Helper()
	got := ""
	testkit.Eventually(c.T, want, func() bool {
		var more string
		more, offset, _ = rig.ProcessLogs(c, process, offset)
		got += more
		return len(got) >= len(want)
	})
	if got != want {
		c.T.Errorf("logs %q, want %q", got, want)
	}
	return offset
}

// F1: started at once, listed, and read from where one was.
func TestProcessIsListedAndReadByOffset(t *testing.T) {
	c := rig.Shared(t, "f").Dial(t)
	rig.EachShell(t, func(t *testing.T, sh string) {
		s, start := c.Session(object{"shell": sh}), time.Now()
		p := c.Call("process.start", object{"session_id": s, "name": "echoes", "stdin": "open", "command": `echo up; while read -r l; do echo "got $l"; done; exit 4`})
		rig.Within(t, "process.start", start, time.Second)
		id := p.Str("process_id")
		if pid := p.Num("pid"); rig.Cmdline(pid) == "" {
			t.Errorf("pid %d is nobody", pid)
		}
		list := c.Call("process.list", object{"session_id": s}).Objs("processes")
		if len(list) != 1 || list[0].Str("process_id") != id || list[0].Str("state") != "running" || list[0].Str("name") != "echoes" || list[0].Num("pid") != p.Num("pid") {
			t.Errorf("%v", list)
		}
		if state := c.State(s); state != "IDLE" {
			t.Errorf("state %s", state)
		}
		at := awaitLogs(c, id, 0, "up\n")
		for i := range 3 {
			c.Call("process.input", object{"process_id": id, "data": fmt.Sprintf("line %d\n", i)})
			at = awaitLogs(c, id, at, fmt.Sprintf("got line %d\n", i))
		}
		if text, next, eof := rig.ProcessLogs(c, id, at); text != "" || next != at || eof {
			t.Errorf("nothing new: %q, %d, %v", text, next, eof)
		}
		c.Call("process.input", object{"process_id": id, "eof": true})
		if w := rig.AwaitExit(c, id); !w.Yes("met") || w.Num("exit_code") != 4 {
			t.Errorf("%v", w)
		}
		testkit.Eventually(t, "all is read", func() bool { _, _, eof := rig.ProcessLogs(c, id, at); return eof })
		if f := c.Try("process.input", object{"process_id": id, "data": "x"}); f.Code() != "STDIN_CLOSED" {
			t.Errorf("input after the end: %+v", f)
		}
	})
}

// F2: logs and exit code of a process that has ended, for as long as is said and no longer.
func TestEndedProcessIsReadableDuringRetention(t *testing.T) {
	t.Parallel()
	const retention = 10 * time.Second
	c := rig.Gateway(t, "--retention", retention.String()).Dial(t)
	rig.BothShells(func(sh string) {
		s := c.Session(object{"shell": sh})
		id := c.Call("process.start", object{"session_id": s, "command": "echo out; exit 9"}).Str("process_id")
		rig.AwaitExit(c, id)
		ended := time.Now() // later than it did; ended_at tells when
		awaitLogs(c, id, 0, "out\n")
		reads := 0
		for ; ; reads++ {
			f := c.Try("process.info", object{"process_id": id})
			if f.Code() == "PROCESS_NOT_FOUND" {
				if kept := time.Since(ended); kept < retention-100*time.Millisecond {
					t.Errorf("%s: gone %s after its end", sh, kept)
				}
				break
			}
			if f.Data.Num("exit_code") != 9 || f.Data.Str("state") != "exited" || f.Data.Num("output_bytes") != 4 || f.Data.Str("ended_at") == "" {
				t.Fatalf("%s: %+v", sh, f)
			}
			if at, err := time.Parse(time.RFC3339Nano, f.Data.Str("ended_at")); err != nil {
				t.Fatal(err)
			} else if at.Before(ended) {
				ended = at
			}
			if time.Since(ended) > testkit.Patience {
				t.Fatalf("%s: still there", sh)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if reads == 0 {
			t.Errorf("%s: never seen ended", sh)
		}
		if f := c.Try("process.logs", object{"process_id": id}); f.Code() != "PROCESS_NOT_FOUND" {
			t.Errorf("%+v", f)
		}
	})
}

// F3: one request waits for the end, or says that it has not come.
func TestOneRequestWaitsForAProcess(t *testing.T) {
	g := rig.Shared(t, "f")
	c := g.Dial(t)
	rig.EachShell(t, func(t *testing.T, sh string) {
		s := c.Session(object{"shell": sh})
		for command, code := range map[string]int{"read -r x; exit 5": 5, "read -r x; kill -9 $$; :": 137} {
			id := c.Call("process.start", object{"session_id": s, "command": "sh -c '" + command + "'; exit $?", "stdin": "open"}).Str("process_id")
			if w := rig.AwaitExit(c, id, object{"timeout_s": 0.2}); w.Yes("met") || w.Has("exit_code") {
				t.Errorf("%s: %v", command, w)
			}
			wait := c.Begin("process.wait", object{"process_id": id, "until": object{"exit": true}})
			c.Call("system.ping", nil) // the waiting holds up nobody
			c.Call("process.input", object{"process_id": id, "data": "\n"})
			if f := c.Answer(wait); !f.OK || !f.Data.Yes("met") || f.Data.Num("exit_code") != code {
				t.Errorf("%s: %+v", command, f)
			}
		}
		id := c.Call("process.start", object{"session_id": s, "command": "kill -9 $$"}).Str("process_id")
		if w := rig.AwaitExit(c, id); w.Num("exit_code") != 137 || w.Str("signal") != "KILL" {
			t.Errorf("%v", w)
		}
	})
}

// F4: a client that comes back finds its process by id, the output since its offset, and the stdin open.
func TestProcessIsFoundAfterAReconnect(t *testing.T) {
	g := rig.Shared(t, "f")
	rig.EachShell(t, func(t *testing.T, sh string) {
		first := g.Dial(t)
		s := first.Session(object{"shell": sh})
		begin, _ := rig.UniqueFile(g, "begin")
		away, there := rig.UniqueFile(g, "away")
		p := first.Call("process.start", object{"session_id": s, "stdin": "open", "command": `echo before; while [ ! -e ` + begin + ` ]; do sleep 0.05; done; echo while away; : >` + away + `
			while read -r l; do echo "got $l"; done; echo over`})
		id := p.Str("process_id")
		at := awaitLogs(first, id, 0, "before\n")
		first.Call("process.logs", object{"process_id": id, "offset": at, "follow": true}) // also a follower may go
		first.Close()
		touch := g.Dial(t)
		touch.Run(touch.Session(), ": >"+begin)
		touch.Close()
		testkit.Eventually(t, "it wrote while nobody was there", there)
		time.Sleep(rig.Pick(0, 10*time.Minute)) // the line's ten minutes
		second := g.Dial(t)
		at = awaitLogs(second, id, at, "while away\n")
		second.Call("process.input", object{"process_id": id, "data": "hello\n", "eof": true})
		awaitLogs(second, id, at, "got hello\nover\n")
		if w := rig.AwaitExit(second, id); w.Num("exit_code") != 0 {
			t.Errorf("%v", w)
		}
		if i := second.Call("process.info", object{"process_id": id}); i.Num("pid") != p.Num("pid") {
			t.Errorf("%v", i)
		}
	})
}

// F5: kill takes the whole tree, daemons too, and frees the port; what else the session has stays.
func TestKillTakesTheTreeAndFreesThePort(t *testing.T) {
	for _, tier := range []string{"auto", "none"} {
		g := rig.Shared(t, "f-"+tier, "--isolation", tier)
		c := g.Dial(t)
		rig.EachShell(t, func(t *testing.T, sh string) {
			t.Run(tier, func(t *testing.T) {
				s, daemon, other, job := c.Session(object{"shell": sh}), rig.Sleeper(), rig.Sleeper(), rig.Sleeper()
				c.Call("process.start", object{"session_id": s, "command": other})
				c.Run(s, job+" &")
				id := c.Call("process.start", object{"session_id": s, "command": "(setsid sh -c '" + daemon + " & " + daemon + "' >/dev/null 2>&1 &); sh -c '" + rig.ListenCommand("parent", 0) + "; :'"}).Str("process_id")
				w := c.Call("process.wait", object{"process_id": id, "until": object{"output": `listening on \d+\.`}})
				port := rig.PrintedPort(w.Str("match"))
				testkit.Eventually(t, "all run", func() bool {
					return len(rig.Running(daemon)) == 2 && len(rig.Running(other)) == 1 && len(rig.Running(job)) == 1
				})
				if port == 0 || !rig.SomebodyListens(t, port) {
					t.Fatalf("port %d, %v", port, w)
				}
				start := time.Now()
				i := c.Call("process.kill", object{"process_id": id, "kill_grace_s": 1})
				rig.Within(t, "process.kill", start, 2*time.Second)
				if i.Str("state") != "exited" || i.Num("exit_code") == 0 {
					t.Errorf("%v", i)
				}
				if left, listens := rig.Running(daemon), rig.SomebodyListens(t, port); len(left) > 0 || listens {
					t.Errorf("left %v, somebody listens: %v", left, listens)
				}
				if len(rig.Running(other)) != 1 || len(rig.Running(job)) != 1 {
					t.Error("somebody else was killed")
				}
				c.Call("session.destroy", object{"session_id": s, "force": true})
			})
		})
	}
}

// F7: ready, not yet, or never: and then why.
func TestWaitSaysReadyOrWhyNot(t *testing.T) {
	c := rig.Shared(t, "f").Dial(t)
	port := testkit.Port(t)
	for _, sh := range rig.Shells {
		s := c.Session(object{"shell": sh})
		begin := func(command string) string {
			return c.Call("process.start", object{"session_id": s, "command": command}).Str("process_id")
		}
		await := func(id string, until object, more ...object) object {
			return c.Call("process.wait", rig.With(object{"process_id": id, "until": until}, rig.With(more...)))
		}
		web := begin("exec env " + rig.ListenCommand("http", port))
		for _, until := range []object{{"port": port}, {"http": fmt.Sprintf("http://127.0.0.1:%d/", port)}, {"output": "listening on [0-9]+"}} {
			if w := await(web, until); !w.Yes("met") || w.Has("exit_code") {
				t.Errorf("%s %v: %v", sh, until, w)
			}
		}
		if w := await(web, object{"output": "never said"}, object{"timeout_s": 0.2}); w.Yes("met") || w.Has("exit_code") {
			t.Errorf("%s: %v", sh, w)
		}
		c.Call("process.kill", object{"process_id": web, "kill_grace_s": 0.1})
		for _, until := range []object{{"port": port}, {"http": fmt.Sprintf("http://127.0.0.1:%d/", port)}, {"output": "ready"}} {
			w := await(begin("echo starting; sleep 0.1; echo boom >&2; exit 4"), until)
			if w.Yes("met") || w.Num("exit_code") != 4 || !strings.HasSuffix(w.Str("tail"), "boom\n") {
				t.Errorf("%s, died, %v: %v", sh, until, w)
			}
		}
	}
}

// F8: what a command leaves behind with &, disown, nohup or setsid outlives it, is known, and dies with the session.
func TestJobsOutliveTheirCommandNotTheirSession(t *testing.T) {
	for _, tier := range []string{"auto", "none"} {
		g := rig.Shared(t, "f-"+tier, "--isolation", tier)
		c := g.Dial(t)
		rig.EachShell(t, func(t *testing.T, sh string) {
			t.Run(tier, func(t *testing.T) {
				s := c.Session(object{"shell": sh})
				ways := []string{"%s &", "nohup %s >/dev/null 2>&1 &", "setsid %s &", "(%s >/dev/null 2>&1 &)"}
				if sh == "/bin/bash" {
					ways = append(ways, "%s & disown", "%s & disown -h; disown -a")
				}
				var naps []string
				for _, way := range ways {
					nap := rig.Sleeper()
					naps = append(naps, nap)
					if r := c.Run(s, fmt.Sprintf(way, nap)); r.Num("exit_code") != 0 {
						t.Errorf("%s: %v", way, r)
					}
					testkit.Eventually(t, way, func() bool { return len(rig.Running(nap)) == 1 })
				}
				c.Run(s, "true")
				for i, nap := range naps {
					if len(rig.Running(nap)) != 1 {
						t.Errorf("%s did not outlive its command", ways[i])
					}
				}
				testkit.Eventually(t, "all are listed", func() bool {
					list, info := c.Call("process.list", object{"session_id": s}).Ints("background"), c.Info(s).Ints("background")
					return !slices.ContainsFunc(naps, func(nap string) bool {
						pid := rig.Running(nap)[0]
						return !slices.Contains(list, pid) || !slices.Contains(info, pid)
					})
				})
				c.Call("session.destroy", object{"session_id": s, "grace_s": 0.2})
				for i, nap := range naps {
					if len(rig.Running(nap)) > 0 {
						t.Errorf("%s outlived its session", ways[i])
					}
				}
			})
		})
	}
}
