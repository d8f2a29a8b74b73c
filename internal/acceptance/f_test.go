package acceptance

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// processLogs reads a process's output from offset on: the text, and where to go on.
func processLogs(c *client, process string, offset int) (text string, next int, eof bool) {
	c.t.Helper()
	l := c.call("process.logs", object{"process_id": process, "offset": offset})
	for _, ch := range l.objs("chunks") {
		if ch.num("offset") != offset+len(text) {
			c.t.Errorf("chunk at %d, want %d", ch.num("offset"), offset+len(text))
		}
		text += ch.text("data", "encoding")
	}
	if l.num("next_offset") != offset+len(text) {
		c.t.Errorf("next_offset %d after %d bytes from %d", l.num("next_offset"), len(text), offset)
	}
	return text, l.num("next_offset"), l.yes("eof")
}

// awaitLogs reads on from offset until want is there, and nothing else.
func awaitLogs(c *client, process string, offset int, want string) (next int) {
	c.t.Helper()
	got := ""
	eventually(c.t, want, func() bool {
		var more string
		more, offset, _ = processLogs(c, process, offset)
		got += more
		return len(got) >= len(want)
	})
	if got != want {
		c.t.Errorf("logs %q, want %q", got, want)
	}
	return offset
}

func awaitExit(c *client, process string, more ...object) object {
	c.t.Helper()
	return c.call("process.wait", with(object{"process_id": process, "until": object{"exit": true}}, with(more...)))
}

// F1: started at once, listed, and read from where one was.
func TestProcessIsListedAndReadByOffset(t *testing.T) {
	c := shared(t, "f").dial(t)
	eachShell(t, func(t *testing.T, sh string) {
		s, start := c.session(object{"shell": sh}), time.Now()
		p := c.call("process.start", object{"session_id": s, "name": "echoes", "stdin": "open", "command": `echo up; while read -r l; do echo "got $l"; done; exit 4`})
		within(t, "process.start", start, time.Second)
		id := p.str("process_id")
		if pid := p.num("pid"); cmdline(pid) == "" {
			t.Errorf("pid %d is nobody", pid)
		}
		list := c.call("process.list", object{"session_id": s}).objs("processes")
		if len(list) != 1 || list[0].str("process_id") != id || list[0].str("state") != "running" || list[0].str("name") != "echoes" || list[0].num("pid") != p.num("pid") {
			t.Errorf("%v", list)
		}
		if state := c.state(s); state != "IDLE" {
			t.Errorf("state %s", state)
		}
		at := awaitLogs(c, id, 0, "up\n")
		for i := range 3 {
			c.call("process.input", object{"process_id": id, "data": fmt.Sprintf("line %d\n", i)})
			at = awaitLogs(c, id, at, fmt.Sprintf("got line %d\n", i))
		}
		if text, next, eof := processLogs(c, id, at); text != "" || next != at || eof {
			t.Errorf("nothing new: %q, %d, %v", text, next, eof)
		}
		c.call("process.input", object{"process_id": id, "eof": true})
		if w := awaitExit(c, id); !w.yes("met") || w.num("exit_code") != 4 {
			t.Errorf("%v", w)
		}
		eventually(t, "all is read", func() bool { _, _, eof := processLogs(c, id, at); return eof })
		if f := c.try("process.input", object{"process_id": id, "data": "x"}); f.code() != "STDIN_CLOSED" {
			t.Errorf("input after the end: %+v", f)
		}
	})
}

// F2: logs and exit code of a process that has ended, for as long as is said and no longer.
func TestEndedProcessIsReadableDuringRetention(t *testing.T) {
	t.Parallel()
	const retention = 2 * time.Second
	c := gateway(t, "--retention", retention.String()).dial(t)
	bothShells(func(sh string) {
		s := c.session(object{"shell": sh})
		id := c.call("process.start", object{"session_id": s, "command": "echo out; exit 9"}).str("process_id")
		awaitExit(c, id)
		ended := time.Now() // a little later than it did
		expire := ended.Add(retention - 500*time.Millisecond)
		awaitLogs(c, id, 0, "out\n")
		reads := 0
		for ; ; reads++ {
			before := time.Now()
			f := c.try("process.info", object{"process_id": id})
			if f.code() == "PROCESS_NOT_FOUND" {
				if before.Before(expire) {
					t.Errorf("%s: gone %s after its end", sh, before.Sub(ended))
				}
				break
			}
			if f.Data.num("exit_code") != 9 || f.Data.str("state") != "exited" || f.Data.num("output_bytes") != 4 || f.Data.str("ended_at") == "" {
				t.Fatalf("%s: %+v", sh, f)
			}
			if time.Since(ended) > patience {
				t.Fatalf("%s: still there", sh)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if reads == 0 {
			t.Errorf("%s: never seen ended", sh)
		}
		if f := c.try("process.logs", object{"process_id": id}); f.code() != "PROCESS_NOT_FOUND" {
			t.Errorf("%+v", f)
		}
	})
}

// F3: one request waits for the end, or says that it has not come.
func TestOneRequestWaitsForAProcess(t *testing.T) {
	g := shared(t, "f")
	c := g.dial(t)
	eachShell(t, func(t *testing.T, sh string) {
		s := c.session(object{"shell": sh})
		for command, code := range map[string]int{"read -r x; exit 5": 5, "read -r x; kill -9 $$; :": 137} {
			id := c.call("process.start", object{"session_id": s, "command": "sh -c '" + command + "'; exit $?", "stdin": "open"}).str("process_id")
			if w := awaitExit(c, id, object{"timeout_s": 0.2}); w.yes("met") || w.has("exit_code") {
				t.Errorf("%s: %v", command, w)
			}
			wait := c.begin("process.wait", object{"process_id": id, "until": object{"exit": true}})
			c.call("system.ping", nil) // the waiting holds up nobody
			c.call("process.input", object{"process_id": id, "data": "\n"})
			if f := c.answer(wait); !f.OK || !f.Data.yes("met") || f.Data.num("exit_code") != code {
				t.Errorf("%s: %+v", command, f)
			}
		}
		id := c.call("process.start", object{"session_id": s, "command": "kill -9 $$"}).str("process_id")
		if w := awaitExit(c, id); w.num("exit_code") != 137 || w.str("signal") != "KILL" {
			t.Errorf("%v", w)
		}
	})
}

// F4: a client that comes back finds its process by id, the output since its offset, and the stdin open.
func TestProcessIsFoundAfterAReconnect(t *testing.T) {
	g := shared(t, "f")
	eachShell(t, func(t *testing.T, sh string) {
		first := g.dial(t)
		s := first.session(object{"shell": sh})
		begin, _ := uniqueFile(g, "begin")
		away, there := uniqueFile(g, "away")
		p := first.call("process.start", object{"session_id": s, "stdin": "open", "command": `echo before; while [ ! -e ` + begin + ` ]; do sleep 0.05; done; echo while away; : >` + away + `
			while read -r l; do echo "got $l"; done; echo over`})
		id := p.str("process_id")
		at := awaitLogs(first, id, 0, "before\n")
		first.call("process.logs", object{"process_id": id, "offset": at, "follow": true}) // also a follower may go
		first.close()
		touch := g.dial(t)
		touch.run(touch.session(), ": >"+begin)
		touch.close()
		eventually(t, "it wrote while nobody was there", there)
		time.Sleep(pick(0, 10*time.Minute)) // the line's ten minutes
		second := g.dial(t)
		at = awaitLogs(second, id, at, "while away\n")
		second.call("process.input", object{"process_id": id, "data": "hello\n", "eof": true})
		awaitLogs(second, id, at, "got hello\nover\n")
		if w := awaitExit(second, id); w.num("exit_code") != 0 {
			t.Errorf("%v", w)
		}
		if i := second.call("process.info", object{"process_id": id}); i.num("pid") != p.num("pid") {
			t.Errorf("%v", i)
		}
	})
}

// F5: kill takes the whole tree, daemons too, and frees the port; what else the session has stays.
func TestKillTakesTheTreeAndFreesThePort(t *testing.T) {
	for _, tier := range []string{"auto", "none"} {
		g := shared(t, "f-"+tier, "--isolation", tier)
		c := g.dial(t)
		eachShell(t, func(t *testing.T, sh string) {
			t.Run(tier, func(t *testing.T) {
				s, daemon, other, job := c.session(object{"shell": sh}), sleeper(), sleeper(), sleeper()
				c.call("process.start", object{"session_id": s, "command": other})
				c.run(s, job+" &")
				id := c.call("process.start", object{"session_id": s, "command": "(setsid sh -c '" + daemon + " & " + daemon + "' >/dev/null 2>&1 &); sh -c '" + listenCommand("parent", 0) + "; :'"}).str("process_id")
				w := c.call("process.wait", object{"process_id": id, "until": object{"output": `listening on \d+\.`}})
				port := printedPort(w.str("match"))
				eventually(t, "all run", func() bool { return len(running(daemon)) == 2 && len(running(other)) == 1 })
				if port == 0 || portIsFree(port) {
					t.Fatalf("port %d, %v", port, w)
				}
				start := time.Now()
				i := c.call("process.kill", object{"process_id": id, "kill_grace_s": 1})
				within(t, "process.kill", start, 2*time.Second)
				if i.str("state") != "exited" || i.num("exit_code") == 0 {
					t.Errorf("%v", i)
				}
				if left := running(daemon); len(left) > 0 || !portIsFree(port) {
					t.Errorf("left %v, port free %v", left, portIsFree(port))
				}
				if len(running(other)) != 1 || len(running(job)) != 1 {
					t.Error("somebody else was killed")
				}
				c.call("session.destroy", object{"session_id": s, "force": true})
			})
		})
	}
}

// F7: ready, not yet, or never: and then why.
func TestWaitSaysReadyOrWhyNot(t *testing.T) {
	c := shared(t, "f").dial(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	for _, sh := range shells {
		s := c.session(object{"shell": sh})
		begin := func(command string) string {
			return c.call("process.start", object{"session_id": s, "command": command}).str("process_id")
		}
		await := func(id string, until object, more ...object) object {
			return c.call("process.wait", with(object{"process_id": id, "until": until}, with(more...)))
		}
		web := begin("exec env " + listenCommand("http", port))
		for _, until := range []object{{"port": port}, {"http": fmt.Sprintf("http://127.0.0.1:%d/", port)}, {"output": "listening on [0-9]+"}} {
			if w := await(web, until); !w.yes("met") || w.has("exit_code") {
				t.Errorf("%s %v: %v", sh, until, w)
			}
		}
		if w := await(web, object{"output": "never said"}, object{"timeout_s": 0.2}); w.yes("met") || w.has("exit_code") {
			t.Errorf("%s: %v", sh, w)
		}
		c.call("process.kill", object{"process_id": web, "kill_grace_s": 0.1})
		for _, until := range []object{{"port": port}, {"http": fmt.Sprintf("http://127.0.0.1:%d/", port)}, {"output": "ready"}} {
			w := await(begin("echo starting; sleep 0.1; echo boom >&2; exit 4"), until)
			if w.yes("met") || w.num("exit_code") != 4 || !strings.HasSuffix(w.str("tail"), "boom\n") {
				t.Errorf("%s, died, %v: %v", sh, until, w)
			}
		}
	}
}

// F8: what a command leaves behind with &, disown, nohup or setsid outlives it, is known, and dies with the session.
func TestJobsOutliveTheirCommandNotTheirSession(t *testing.T) {
	for _, tier := range []string{"auto", "none"} {
		g := shared(t, "f-"+tier, "--isolation", tier)
		c := g.dial(t)
		eachShell(t, func(t *testing.T, sh string) {
			t.Run(tier, func(t *testing.T) {
				s := c.session(object{"shell": sh})
				ways := []string{"%s &", "nohup %s >/dev/null 2>&1 &", "setsid %s &", "(%s >/dev/null 2>&1 &)"}
				if sh == "/bin/bash" {
					ways = append(ways, "%s & disown", "%s & disown -h; disown -a")
				}
				var naps []string
				for _, way := range ways {
					nap := sleeper()
					naps = append(naps, nap)
					if r := c.run(s, fmt.Sprintf(way, nap)); r.num("exit_code") != 0 {
						t.Errorf("%s: %v", way, r)
					}
					eventually(t, way, func() bool { return len(running(nap)) == 1 })
				}
				c.run(s, "true")
				for i, nap := range naps {
					if len(running(nap)) != 1 {
						t.Errorf("%s did not outlive its command", ways[i])
					}
				}
				eventually(t, "all are listed", func() bool {
					list, info := c.call("process.list", object{"session_id": s}).ints("background"), c.info(s).ints("background")
					return !slices.ContainsFunc(naps, func(nap string) bool {
						pid := running(nap)[0]
						return !slices.Contains(list, pid) || !slices.Contains(info, pid)
					})
				})
				c.call("session.destroy", object{"session_id": s, "grace_s": 0.2})
				for i, nap := range naps {
					if len(running(nap)) > 0 {
						t.Errorf("%s outlived its session", ways[i])
					}
				}
			})
		})
	}
}
