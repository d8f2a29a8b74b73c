package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"trl/internal/bench/figure"
)

// Recovery is the content of comeback.json: how long clients wait after a kill -9 of the gateway, by their earlier work.
type Recovery struct {
	Machine figure.Machine `json:"machine"`
	Runs    []RecoveryRun  `json:"runs"`
}

// A RecoveryRun is one number of commands with a request_key, spread over the sessions.
type RecoveryRun struct {
	Commands int             `json:"commands"`
	Sessions int             `json:"sessions"`
	Ping     figure.Measured `json:"ping_ns"`    // from the kill to the answer of a ping
	Session  figure.Measured `json:"session_ns"` // from the kill to the answer of a command in one session, sent at once
	All      figure.Measured `json:"all_ns"`     // from the kill to the last answer of session.info for every session, one after the other
	RSS      float64         `json:"gateway_rss_bytes"`
}

const (
	recoveryKills  = 5
	recoveryConns  = 16   // connections that send the commands
	manyKeysFrom   = 1e5  // above this number for one principal, the gateway is told to accept them
	recoveryPause  = 1100 // milliseconds of life after which the keeper starts the next gateway at once
	recoveryFigure = "comeback"
)

func recovery() error {
	var r Recovery
	openFiles()
	for i, n := range counts(*keyed) {
		flags := []string{"--idle-timeout", "0"}
		if n > manyKeysFrom {
			flags = append(flags, "--max-request-keys", fmt.Sprint(2*n))
		}
		gw := gateway(flags...)
		c := dial(gw.addr + "/v1/ws")
		if i == 0 {
			r.Machine = machine(tier(c))
			fmt.Printf("%v\n\n%10s %9s %12s %12s %12s %12s\n", r.Machine, "commands", "sessions", "ping", "a session", "all sessions", "gateway")
		}
		run := RecoveryRun{Commands: n, Sessions: *many}
		ids := make([]string, *many)
		for i := range ids {
			ids[i] = session(c, "/bin/sh")
		}
		c.CloseNow()
		sendKeyed(gw, ids, n)
		var ping, one, all figure.Samples
		for range recoveryKills {
			since := killGateway(gw)
			c := again(gw)
			ask(c, "system.ping", nil, nil)
			ping.Add(time.Since(since))
			for _, id := range ids {
				ask(c, "session.info", map[string]any{"session_id": id}, nil)
			}
			all.Add(time.Since(since))
			c.CloseNow()
			since = killGateway(gw)
			c = again(gw)
			ask(c, "exec.run", map[string]any{"session_id": ids[len(ids)/2], "command": ":"}, nil)
			one.Add(time.Since(since))
			c.CloseNow()
		}
		run.Ping, run.Session, run.All = figure.Measure(ping), figure.Measure(one), figure.Measure(all)
		run.RSS = status(gatewayOf(gw.cmd.Process.Pid)).rss
		gw.stop()
		r.Runs = append(r.Runs, run)
		ns := figure.Nanoseconds.Format
		fmt.Printf("%10d %9d %12s %12s %12s %12s\n", n, *many, ns(run.Ping.Median), ns(run.Session.Median), ns(run.All.Median), figure.Bytes.Format(run.RSS))
	}
	return save(recoveryFigure, r)
}

// sendKeyed runs n commands, each with its own request_key.
func sendKeyed(gw *child, ids []string, n int) {
	var next atomic.Int64
	var crew sync.WaitGroup
	failed := make(chan error, recoveryConns)
	for range recoveryConns {
		crew.Go(func() {
			failed <- caught(func() error {
				c := dial(gw.addr + "/v1/ws")
				defer c.CloseNow()
				for {
					i := int(next.Add(1)) - 1
					if i >= n {
						return nil
					}
					ask(c, "exec.run", map[string]any{"session_id": ids[i%len(ids)], "command": ":", "request_key": fmt.Sprint("k", i)}, nil)
				}
			})
		})
	}
	crew.Wait()
	for range recoveryConns {
		check(<-failed)
	}
}

// killGateway kills the gateway when it has lived so long that the keeper does not take it for one that cannot start.
func killGateway(gw *child) time.Time {
	time.Sleep(recoveryPause * time.Millisecond)
	pid := gatewayOf(gw.cmd.Process.Pid)
	since := time.Now()
	check(syscall.Kill(pid, syscall.SIGKILL))
	for { // we must not dial the gateway that dies
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
			return since
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// again dials the next gateway. The connection waits in the backlog of the socket, which never closes.
func again(gw *child) *websocket.Conn {
	for {
		if c, _, err := websocket.Dial(ctx, gw.addr+"/v1/ws", nil); err == nil {
			c.SetReadLimit(1 << 30)
			return c
		}
	}
}

// Kept is the content of kept.json: the cost of ended work, with the default flags.
type Kept struct {
	Machine figure.Machine `json:"machine"`
	Steps   []KeptStep     `json:"steps"`
}

// A KeptStep is the state of the gateway and its keeper at one moment.
type KeptStep struct {
	What    string  `json:"what"`
	Gateway float64 `json:"gateway_rss_bytes"`
	Keeper  float64 `json:"keeper_rss_bytes"`
	Files   [2]int  `json:"descriptors"` // of the gateway and of the keeper
}

func kept() error {
	var r Kept
	openFiles()
	look := func(gw *child, what string) {
		time.Sleep(3 * time.Second) // for work that the reaper drops on its next tick
		keeper := gw.cmd.Process.Pid
		k, g := status(keeper), status(gatewayOf(keeper))
		s := KeptStep{what, g.rss, k.rss, [2]int{g.descriptors, k.descriptors}}
		r.Steps = append(r.Steps, s)
		mem := figure.Bytes.Format
		fmt.Printf("%-46s gateway %10s  keeper %10s  descriptors %6d + %d\n", what, mem(s.Gateway), mem(s.Keeper), s.Files[0], s.Files[1])
	}
	work := func(shells, each int, name string, do func(c *websocket.Conn, session string)) {
		gw := gateway("--idle-timeout", "0")
		defer gw.stop()
		c := dial(gw.addr + "/v1/ws")
		defer c.CloseNow()
		if r.Machine.Tier == "" {
			r.Machine = machine(tier(c))
			fmt.Printf("%v\n\n", r.Machine)
		}
		var ids []string
		for range shells {
			ids = append(ids, session(c, "/bin/bash"))
			ask(c, "exec.run", map[string]any{"session_id": ids[len(ids)-1], "command": ":"}, nil)
		}
		look(gw, fmt.Sprintf("%d sessions, before", shells))
		for _, id := range ids {
			for range each {
				do(c, id)
			}
		}
		look(gw, fmt.Sprintf("after %d × %d × %s", shells, each, name))
		for _, id := range ids {
			ask(c, "session.destroy", map[string]any{"session_id": id, "force": true}, nil)
		}
		look(gw, "and after all sessions are destroyed")
	}
	run := func(command string) func(*websocket.Conn, string) {
		return func(c *websocket.Conn, id string) {
			ask(c, "exec.run", map[string]any{"session_id": id, "command": command}, nil)
		}
	}
	work(100, 1000, ":", run(":"))
	work(1, 1500, "sleep 0.005 & true", run("sleep 0.005 & true"))
	work(1, 1000, "a terminal that ends", func(c *websocket.Conn, id string) {
		check(c.Write(ctx, websocket.MessageText, request(1, "term.open", map[string]any{"session_id": id, "cols": 80, "rows": 24, "command": "true"})))
		for answered, ended := false, false; !answered || !ended; { // the output and the end are events
			_, text, err := c.Read(ctx)
			check(err)
			answered = answered || strings.Contains(string(text), `"ok":true`)
			ended = ended || strings.Contains(string(text), `"event":"term.exit"`)
		}
	})
	return save("kept", r)
}
