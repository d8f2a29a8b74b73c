package web

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/internal/testkit/limits"
	"trl/pool"
	"trl/protocol"
	"trl/web/listen"
)

// limitProbes go beyond each bound, by the page's first column.
var limitProbes = map[string]limits.Probe{
	"a message": func(t *testing.T) []string {
		path := filepath.Join(t.TempDir(), "s")
		g := start(t, func(c *Config) { c.Unix = path })
		c := g.Raw()
		go c.Write(rig.RawFrame(0x81, xs(4<<20+1))) // ends with the connection
		closed := hear(c, 0)
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go conn.Write([]byte(xs(4<<20 + 1))) // ends with the connection
		var f rig.Frame
		line, _ := bufio.NewReader(conn).ReadBytes('\n')
		json.Unmarshal(line, &f)
		return append(limits.Came(&f), closed)
	},
	"fragments of a message": func(t *testing.T) []string {
		return rawAnswer(t, all(rig.RawFrame(0x01, "{"), []byte(strings.Repeat(string(rig.RawFrame(0x00, "")), int(limits.Constant(t, "web/transport.maxPieces"))+10))))
	},
	"time from a message's first byte to its last": func(t *testing.T) []string {
		g := start(t, func(c *Config) { c.stall = 100 * time.Millisecond })
		c := g.Raw()
		c.Write(rig.RawFrame(0x01, "{"))
		return []string{strings.TrimSuffix(hear(c, 0), ",")}
	},
	"pings and pongs in a second": func(t *testing.T) []string {
		return rawAnswer(t, []byte(strings.Repeat(string(rig.RawFrame(0x89, "")), int(limits.Constant(t, "web/transport.maxControls"))+50)))
	},
	"`id`, as written": func(t *testing.T) []string {
		c := start(t).Dial()
		c.SendText(`{"id":"` + xs(protocol.MaxID-1) + `","method":"system.ping"}`)
		return limits.Came(c.Await("a refusal", func(f *rig.Frame) bool { return f.Event == "" }))
	},
	"`request_id`, as written": refusedParams(request("exec.cancel", object{"request_id": xs(protocol.MaxID)})),
	"an id in `params`: `session_id`, `exec_id`, `process_id`, `term_id`, `stream_id`, `share_id`, `recording_id`": func(t *testing.T) []string {
		c := start(t).Dial()
		for method, field := range map[string]string{
			"session.info": "session_id", "exec.wait": "exec_id", "process.info": "process_id", "term.snapshot": "term_id", "stream.ack": "stream_id",
			"share.revoke": "share_id", "recording.info": "recording_id",
		} {
			params := object{field: xs(protocol.MaxRef + 1)}
			if method == "stream.ack" {
				params["offset"] = 1
			}
			if got := limits.Came(c.Try(method, params)); !slices.Equal(got, []string{"`INVALID_PARAMS`", "`" + field + "`"}) {
				t.Errorf("%s: %s", method, got)
			}
		}
		return []string{"`INVALID_PARAMS`"}
	},
	"`session`, a name in an id's place": refusedParams(request("exec.list", object{"session": xs(protocol.MaxSession + 1)})),
	"nesting of `params`": func(t *testing.T) []string {
		c := start(t).Dial()
		c.SendText(`{"id":1,"method":"session.create","params":{"labels":` + strings.Repeat(`{"a":`, 40) + `1` + strings.Repeat("}", 40) + `}}`)
		return limits.Came(c.Answer(1))
	},
	"`command`": refusedParams(
		request("exec.stream", object{"command": xs(protocol.MaxCommand + 1)}),
		request("process.start", object{"command": xs(protocol.MaxCommand + 1)}),
		request("term.open", object{"command": xs(protocol.MaxCommand + 1), "cols": 80, "rows": 24}),
		request("exec.run", object{"command": xs(protocol.MaxCommand + 1)})),
	"`request_key`": refusedParams(request("exec.run", object{"command": ":", "request_key": xs(protocol.MaxRequestKey + 1)})),
	"`name`": refusedParams(request("process.start", object{"command": ":", "name": xs(protocol.MaxName + 1)}),
		request("session.create", object{"name": xs(protocol.MaxName + 1)})),
	"variables in `env`":                 refusedParams(request("session.create", object{"env": many(protocol.MaxEnv+1, "")})),
	"names and values in `env` together": refusedParams(request("exec.run", object{"command": ":", "env": object{"A": xs(protocol.MaxEnvBytes)}})),
	"`labels`":                           refusedParams(request("session.create", object{"labels": many(protocol.MaxLabels+1, "")})),
	"`node`":                             refusedParams(request("session.create", object{"node": xs(protocol.MaxHost + 1)})),
	"a key in `labels`":                  refusedParams(request("session.create", object{"labels": object{xs(protocol.MaxLabelKey + 1): ""}})),
	"a value in `labels`":                refusedParams(request("session.create", object{"labels": object{"k": xs(protocol.MaxLabelValue + 1)}})),
	"`label` of `session.list`":          refusedParams(request("session.list", object{"label": xs(protocol.MaxLabel + 1)})),
	"`owner` of `session.list`":          refusedParams(request("session.list", object{"owner": xs(protocol.MaxSubject + 1)})),
	"`shell`":                            refusedParams(request("session.create", object{"shell": "/" + xs(protocol.MaxPath)})),
	"`working_dir`":                      refusedParams(request("exec.run", object{"command": ":", "working_dir": "/" + xs(protocol.MaxPath)})),
	"`signal`":                           refusedParams(request("exec.cancel", object{"exec_id": "x", "signal": xs(protocol.MaxSignal + 1)})),
	"`until.output`":                     refusedParams(untilIs("output", xs(protocol.MaxPattern+1))),
	"`until.host`":                       refusedParams(request("process.wait", object{"process_id": "p", "until": object{"port": 1, "host": xs(protocol.MaxHost + 1)}})),
	"`until.http`":                       refusedParams(untilIs("http", "http://"+xs(protocol.MaxURL))),
	"`cols` and `rows`":                  refusedParams(request("term.open", object{"cols": protocol.MaxSize + 1, "rows": 24})),
	"`expires_in_s`":                     refusedParams(request("share.create", object{"session_id": "s", "expires_in_s": protocol.MaxShareTime + 1})),
	"`until.output`, compiled": func(t *testing.T) []string {
		c := start(t).Dial()
		p := c.Call("process.start", object{"command": "sleep 300"}).Str("process_id")
		return limits.Came(c.Try("process.wait", object{"process_id": p, "until": object{"output": strings.Repeat("x{1000}", 3)}}))
	},
	"`timeout_s` of a command": func(t *testing.T) []string {
		c := start(t).Dial()
		if got := c.Call("exec.run", object{"command": ":", "timeout_s": 1e6}).Num("timeout_s"); got != 24*3600 {
			t.Error(got)
		}
		return []string{"`timeout_s`"}
	},
	"`max_output_bytes` of each stream": func(t *testing.T) []string {
		c := startWith(t, func(c *pool.Config) { c.MaxOutput = 64 << 10 }).Dial()
		return cut(t, c.Call("exec.run", object{"command": "head -c 100000 /dev/zero", "max_output_bytes": 100_000}), 64<<10)
	},
	"a command's text in lists and events": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		c.Run(s, ":"+strings.Repeat(" ", 10_000))
		list := c.Call("exec.list", object{"session_id": s})["execs"].([]any)
		if got := len(object(list[0].(map[string]any)).Str("command")); got != protocol.MaxText {
			t.Error(got)
		}
		return []string{"its beginning"}
	},
	"commands in the answer of `exec.list`": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		for i := range 201 {
			c.Run(s, fmt.Sprint(": ", i))
		}
		list := c.Call("exec.list", object{"session_id": s})["execs"].([]any)
		if first := object(list[0].(map[string]any)).Str("command"); len(list) != 200 || first != ": 1" {
			t.Errorf("%d, from %s on", len(list), first)
		}
		return []string{"the latest"}
	},

	"time in which it reads nothing": func(t *testing.T) []string {
		g := start(t, func(c *Config) { c.SlowClient = 300 * time.Millisecond })
		c := g.Raw()
		c.Text(`{"id":1,"method":"exec.stream","params":{"command":"yes"}}`)
		testkit.Eventually(t, "the end", func() bool { return g.Metric("trl_slow_clients_dropped_total") == 1 })
		return []string{"disconnected"}
	},

	"waiting commands": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		limits.Sleep(c, s)
		for range 64 {
			c.Begin("exec.run", object{"session_id": s, "command": ":"})
		}
		return limits.Came(c.Try("exec.run", object{"session_id": s, "command": ":"}))
	},
	"text, stdin and variables of the waiting commands": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		limits.Sleep(c, s)
		for range 5 {
			c.Begin("exec.run", object{"session_id": s, "command": ":", "stdin": xs(3 << 20)})
		}
		return limits.Came(c.Try("exec.run", object{"session_id": s, "command": ":", "stdin": xs(2 << 20)}))
	},
	"processes and terminals": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		for i := range 256 {
			if f := c.Try("process.start", object{"session_id": s, "command": "sleep 300"}); !f.OK {
				t.Fatalf("%d: %+v", i, f.Error)
			}
		}
		if words := limits.Came(c.Try("term.open", object{"session_id": s, "cols": 80, "rows": 24})); words[0] != "`LIMIT_EXCEEDED`" {
			t.Error(words)
		}
		return limits.Came(c.Try("process.start", object{"session_id": s, "command": ":"}))
	},
	"stdin that a process has not read": func(t *testing.T) []string {
		c := start(t).Dial()
		p := c.Call("process.start", object{"command": "sleep 300", "stdin": "open"}).Str("process_id")
		for range 3 { // the pipe takes some of it
			if f := c.Try("process.input", object{"process_id": p, "data": xs(1 << 20)}); !f.OK {
				return limits.Came(f)
			}
		}
		return nil
	},
	"`process.wait` of one process": func(t *testing.T) []string {
		c := start(t).Dial()
		p := c.Call("process.start", object{"command": "sleep 300"}).Str("process_id")
		for range 65 { // at the same time: any of them may be the one too many
			c.Begin("process.wait", object{"process_id": p, "until": object{"exit": true}})
		}
		return limits.Came(c.Await("a refusal", func(f *rig.Frame) bool { return f.Event == "" }))
	},
	"watchers": func(t *testing.T) []string {
		g := start(t)
		c := g.Dial()
		s := c.Session()
		for range 128 {
			g.Dial().Call("session.watch", object{"session_id": s})
		}
		return limits.Came(c.Try("session.watch", object{"session_id": s}))
	},
	"events that a watcher has not read": func(t *testing.T) []string {
		return overflow(t, ":", 1024/4+1)
	},
	"bytes of the events that a watcher has not read": func(t *testing.T) []string {
		return overflow(t, ":"+strings.Repeat(" ", protocol.MaxText), 200)
	},
	"output that is kept of a stream": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		e := c.Call("exec.run", object{"session_id": s, "command": "yes | head -c 3000000"}).Str("exec_id")
		c.Call("exec.attach", object{"exec_id": e})
		if gap := c.Event("stream.gap"); gap.Num("to") < 1<<20 || gap.Num("to") > 3_000_000-1<<20 {
			t.Error(gap)
		}
		return []string{"`stream.gap`"}
	},
	"ended commands, processes and terminals, each kept for `--retention`": func(t *testing.T) []string {
		return forgotten(t, ":", 1001)
	},
	"bytes of ended work that a session keeps": func(t *testing.T) []string {
		return forgotten(t, "head -c 1000000 /dev/zero", 18)
	},
	"remembered request keys, each for 10 minutes": func(t *testing.T) []string {
		c := startWith(t, func(c *pool.Config) { c.MaxKeys = 3 }).Dial()
		for i := range 3 {
			c.Call("exec.run", object{"command": ":", "request_key": fmt.Sprint(i)})
		}
		c.Call("exec.run", object{"command": ":", "request_key": "0"}) // one that is remembered is answered
		return limits.Came(c.Try("exec.run", object{"command": ":", "request_key": "3"}))
	},
	"a session's state that trl reads from its shell": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		c.Run(s, "x=$(head -c 16777217 /dev/zero | tr '\\0' a)")
		r := c.Call("exec.run", object{"session_id": s, "command": "kill -9 $$"})
		if lost, _ := r["state_lost"].([]any); !slices.Contains(lost, any("variables")) {
			return []string{fmt.Sprint(r)}
		}
		return []string{"`state_lost`"}
	},
	"output that is read for a snapshot": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		term := c.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": `echo top; yes x | tr "\n" "\r" | head -c 300000`}).Str("term_id")
		c.Call("term.detach", object{"term_id": term})
		testkit.Eventually(t, "its end", func() bool {
			return strings.Contains(fmt.Sprint(c.Call("term.list", object{"session_id": s})), "exited")
		})
		if lines := fmt.Sprint(c.Call("term.snapshot", object{"term_id": term})["lines"]); strings.Contains(lines, "top") || !strings.Contains(lines, "x") {
			return []string{lines}
		}
		return []string{"earlier output is not in the snapshot"}
	},
	"share links": func(t *testing.T) []string {
		c := start(t).Dial()
		s := c.Session()
		for range 64 {
			c.Call("share.create", object{"session_id": s})
		}
		return limits.Came(c.Try("share.create", object{"session_id": s}))
	},

	"bytes of ended work of one principal, in all its sessions": func(t *testing.T) []string {
		g := startWith(t, func(c *pool.Config) { c.MaxRetainedBytesOfPrincipal = 4 << 20 }, withTokens)
		bob, ann := g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken)
		others := large(ann, ann.Session())
		dead, alive := bob.Session(), bob.Session()
		first := large(bob, dead)
		bob.Call("session.destroy", object{"session_id": dead})
		second, newest := large(bob, alive), ""
		until := func(gone string) (words []string) {
			for range 100 {
				newest = large(bob, alive)
				later := bob.Try("exec.wait", object{"exec_id": second})
				if words = limits.Came(bob.Try("exec.wait", object{"exec_id": gone})); words[0] == "`EXEC_NOT_FOUND`" {
					return words
				}
				if gone == first && !later.OK {
					t.Errorf("a live session's went before an ended one's: %+v", later.Error)
				}
			}
			return words
		}
		until(first)
		words := until(second)
		bob.Call("exec.wait", object{"exec_id": newest})
		ann.Call("exec.wait", object{"exec_id": others})
		return words
	},
	"bytes of ended work of all principals": func(t *testing.T) []string {
		g := startWith(t, func(c *pool.Config) { c.MaxRetainedBytes = 4 << 20 }, withTokens)
		bob, ann := g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken)
		others := large(ann, ann.Session())
		s := bob.Session()
		first := large(bob, s)
		words := []string{}
		for range 100 {
			large(bob, s)
			if words = limits.Came(bob.Try("exec.wait", object{"exec_id": first})); words[0] == "`EXEC_NOT_FOUND`" {
				break
			}
		}
		ann.Call("exec.wait", object{"exec_id": others})
		return words
	},
	"ended sessions, each kept for `--retention`": func(t *testing.T) []string {
		c := startWith(t, func(c *pool.Config) { c.MaxRetained = 2 }).Dial()
		var ended []string
		for range 3 {
			ended = append(ended, c.Session())
			c.Call("session.destroy", object{"session_id": ended[len(ended)-1]})
		}
		c.Call("session.info", object{"session_id": ended[1]})
		return limits.Came(c.Try("session.info", object{"session_id": ended[0]}))
	},
	"remembered request keys of all principals": func(t *testing.T) []string {
		g := startWith(t, func(c *pool.Config) { c.MaxKeysOfAll = 4 }, withTokens)
		bob, ann := g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken)
		keyed := func(c *rig.Client, key string) *rig.Frame {
			return c.Try("exec.run", object{"command": ":", "request_key": key})
		}
		for _, key := range []string{"1", "2", "3"} {
			if f := keyed(bob, key); !f.OK {
				t.Fatal(f.Error)
			}
		}
		keyed(ann, "1")
		words := limits.Came(keyed(bob, "4"))
		if f := keyed(ann, "2"); !f.OK {
			t.Errorf("another principal, with less than its share: %+v", f.Error)
		}
		return words
	},
	"browsers in which it is logged in": func(t *testing.T) []string {
		g := start(t, withTokens)
		first := g.logIn(gateway.UserToken)
		for range limits.Constant(t, "web/auth.maxOwnLogins") - 1 {
			g.logIn(gateway.UserToken)
		}
		ws, _, err := g.dialCookie(first)
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		g.logIn(gateway.AdminToken)
		second := g.logIn(gateway.UserToken)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for err == nil {
			_, _, err = ws.Read(ctx)
		}
		if websocket.CloseStatus(err) == -1 {
			t.Errorf("the oldest's connection: %v", err)
		}
		if again, _, err := g.dialCookie(second); err != nil {
			t.Error(err)
		} else {
			again.CloseNow()
		}
		return []string{"the oldest of them ends, and its connections are closed"}
	},
	"browsers with a login": func(t *testing.T) []string {
		g := start(t, withTokens, fullLogins(t))
		resp, _ := post(t, g.URL()+"/login", "Authorization", "Bearer "+gateway.UserToken)
		return []string{fmt.Sprint("HTTP ", resp.StatusCode)}
	},

	"its connections": func(t *testing.T) []string {
		g := start(t, withTokens, func(c *Config) { c.MaxConns = 16 })
		for range 14 {
			g.Dial(gateway.UserToken)
		}
		words := []string{fmt.Sprint("HTTP ", g.status(bearerHeader(gateway.UserToken)))}
		g.Dial(gateway.AdminToken)
		g.Dial(gateway.AdminToken)
		return words
	},
	"connections": func(t *testing.T) []string {
		g := start(t, withTokens, func(c *Config) { c.MaxConns = 16 })
		for range 16 {
			g.Dial(gateway.AdminToken)
		}
		return []string{fmt.Sprint("HTTP ", g.status(bearerHeader(gateway.UserToken)))}
	},
	"its live sessions": func(t *testing.T) []string {
		g := startWith(t, func(c *pool.Config) { c.MaxSessions = 8 }, withTokens)
		bob, ann := g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken)
		for range 7 {
			bob.Session()
		}
		own := bob.Try("session.create", nil)
		if own.Error == nil || own.Error.Details.Num("max_sessions_per_principal") != 7 {
			t.Errorf("%+v", own)
		}
		ann.Session()
		return limits.Came(own)
	},
	"live sessions": func(t *testing.T) []string {
		g := startWith(t, func(c *pool.Config) { c.MaxSessions = 8 }, withTokens)
		ann := g.Dial(gateway.AdminToken)
		for range 8 {
			ann.Session()
		}
		f := ann.Try("session.create", nil)
		if f.Error == nil || f.Error.Details.Num("max_sessions") != 8 {
			t.Errorf("%+v", f)
		}
		return limits.Came(f)
	},
	"connections of one share link's guests": func(t *testing.T) []string {
		g := start(t)
		c := g.Dial()
		token := c.Call("share.create", object{"session_id": c.Session()}).Str("token")
		for range 16 {
			g.Dial(token)
		}
		return []string{fmt.Sprint("HTTP ", g.status(bearerHeader(token)))}
	},
	"unused tickets": func(t *testing.T) []string {
		g := start(t, withTokens)
		for range limits.Constant(t, "web/auth.maxOwnTickets") {
			if resp, _ := post(t, g.URL()+"/v1/tickets", "Authorization", "Bearer "+gateway.UserToken); resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
		}
		resp, _ := post(t, g.URL()+"/v1/tickets", "Authorization", "Bearer "+gateway.UserToken)
		return []string{fmt.Sprint("HTTP ", resp.StatusCode)}
	},
	"output that is kept of running commands for `exec.run`'s answers, beyond 256 KiB each": func(t *testing.T) []string {
		g := startWith(t, func(c *pool.Config) { c.KeptOutput = 512 << 10 }, withTokens)
		bob, ann := g.Dial(gateway.UserToken), g.Dial(gateway.AdminToken)
		run := object{"command": "yes | tr -d '\\n' | head -c 2000000", "max_output_bytes": 2 << 20}
		words := cut(t, bob.Call("exec.run", run), 512<<10+128<<10)
		for range 3 { // what has ended gave back what it had
			cut(t, bob.Call("exec.run", run), 512<<10+128<<10)
		}
		small := object{"command": "head -c 100000 /dev/zero"}
		if r := ann.Call("exec.run", small); r["truncated"] != false || len(r.Str("stdout")) != 100_000 {
			t.Errorf("another principal's: %d bytes", len(r.Str("stdout")))
		}
		return words
	},
	"requests in a second": func(t *testing.T) []string {
		_, set := withFile(t, gateway.UserToken+" bob user rate=1\n")
		g := start(t, set)
		c := g.Dial(gateway.UserToken)
		var f *rig.Frame
		for f = c.Try("system.ping", nil); f.OK; f = c.Try("system.ping", nil) {
		}
		resp, _ := get(t, g.URL()+"/metrics", "Authorization", "Bearer "+gateway.UserToken)
		for end := time.Now().Add(patience); resp.StatusCode == http.StatusOK && time.Now().Before(end); {
			resp, _ = get(t, g.URL()+"/metrics", "Authorization", "Bearer "+gateway.UserToken)
		}
		if resp.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		return append(limits.Came(f), fmt.Sprint("HTTP ", resp.StatusCode))
	},
	"connections of strangers, which have not shown a credential": func(t *testing.T) []string {
		g := start(t)
		var first net.Conn
		for i := range listen.MaxStrangers + 1 {
			c, err := net.Dial("tcp", g.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if i == 0 {
				first = c
			}
		}
		first.SetDeadline(time.Now().Add(patience))
		if _, err := first.Read(make([]byte, 1)); err == nil || g.Series("trl_connections_refused_total", "strangers") == 0 {
			t.Errorf("the oldest: %v", err)
		}
		return []string{"the oldest of them is closed"}
	},
}
