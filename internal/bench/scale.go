package main

import (
	"fmt"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"trl/internal/bench/figure"
)

// Scale is the content of scale.json: the same gateway with more and more sessions. The cost of one must not depend on their number.
type Scale struct {
	Machine figure.Machine `json:"machine"`
	Steps   []Step         `json:"steps"`
	Stopped string         `json:"stopped,omitempty"` // the error at the machine's limits
}

// A Step is one number of sessions, all idle except the measured ones.
type Step struct {
	Sessions    int             `json:"sessions"`
	Create      figure.Measured `json:"create_ns"`
	Exec        figure.Measured `json:"exec_ns"`  // in one session
	First       figure.Measured `json:"first_ns"` // the first command of others
	Ping        figure.Measured `json:"ping_ns"`  // alternating with both
	IdleCPU     float64         `json:"idle_cpu_percent"`
	PSS         float64         `json:"pss_bytes"` // of the whole process tree
	PerSession  float64         `json:"pss_per_session_bytes"`
	Gateway     float64         `json:"gateway_rss_bytes"`
	Keeper      float64         `json:"keeper_rss_bytes"`
	Descriptors int             `json:"descriptors"` // of gateway and keeper
	Processes   int             `json:"processes"`
	Destroy     figure.Measured `json:"destroy_ns"`
	Left        int             `json:"processes_left"` // after all sessions have ended, minus those before the first one
}

// openFiles raises the limit for later gateways: a session in use needs some 17 descriptors in the gateway and 14 in the keeper. It returns the limit.
func openFiles() uint64 {
	const wanted = 1 << 17
	var l syscall.Rlimit
	check(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l))
	if l.Cur < wanted {
		for _, try := range []syscall.Rlimit{{Cur: wanted, Max: max(wanted, l.Max)}, {Cur: l.Max, Max: l.Max}} {
			if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &try) == nil {
				return try.Cur
			}
		}
	}
	return l.Cur
}

func scale() error {
	var r Scale
	files := openFiles()
	for i, n := range counts(*sizes) {
		gw := gateway("--idle-timeout", "0")
		if i == 0 {
			c := dial(gw.addr + "/v1/ws")
			r.Machine = machine(tier(c))
			c.CloseNow()
			fmt.Printf("%v; %d open files a process\n\n%8s %11s %11s %11s %11s %11s %8s %11s %11s %11s %11s %7s\n", r.Machine, files,
				"sessions", "create", "first run", "exec.run", "p99", "ping", "idle CPU", "memory", "a session", "gateway", "destroy", "fds")
		}
		s, err := step(gw, n)
		gw.stop()
		if err != nil {
			r.Stopped = fmt.Sprintf("at %d sessions: %v", n, err)
			fmt.Println(r.Stopped)
			break
		}
		r.Steps = append(r.Steps, s)
		ns, mem := figure.Nanoseconds.Format, figure.Bytes.Format
		fmt.Printf("%8d %11s %11s %11s %11s %11s %7.2f%% %11s %11s %11s %11s %7d\n", s.Sessions, ns(s.Create.Median), ns(s.First.Median), ns(s.Exec.Median), ns(s.Exec.P99), ns(s.Ping.Median),
			s.IdleCPU, mem(s.PSS), mem(s.PerSession), mem(s.Gateway), ns(s.Destroy.Median), s.Descriptors)
	}
	return save("scale", r)
}

func step(gw *child, n int) (s Step, err error) {
	err = caught(func() error { s = measureStep(gw, n); return nil })
	return s, err
}

func measureStep(gw *child, n int) (s Step) {
	const (
		execs = 1000
		quiet = 3 * time.Second  // for snapshots and other work after a command
		idles = 10 * time.Second // CPU time is reported in hundredths of a second: a thousandth of a core
	)
	keeper := gw.cmd.Process.Pid
	c := dial(gw.addr + "/v1/ws")
	defer c.CloseNow()
	tier(c)
	time.Sleep(time.Second) // for warm shells
	before := treeOf(keeper)
	s.Sessions = n
	var created, destroyed, first, execd, pinged figure.Samples
	ids := make([]string, n)
	for i := range ids {
		start := time.Now()
		if err := caught(func() error { ids[i] = session(c, "/bin/bash"); return nil }); err != nil {
			panic(fmt.Sprintf("after %d: %v", i, err))
		}
		created.Add(time.Since(start))
	}
	ping := request(1, "system.ping", map[string]any{})
	command := func(i int) []byte {
		return request(1, "exec.run", map[string]any{"session_id": ids[i], "command": ":"})
	}
	for i := range min(n, execs/4) {
		first.Add(timed(c, command(i)))
	}
	for range execs {
		pinged.Add(timed(c, ping))
		execd.Add(timed(c, command(0)))
	}
	time.Sleep(quiet)
	edge := gatewayOf(keeper)
	used, began := cpu(keeper)+cpu(edge), time.Now()
	time.Sleep(idles)
	s.IdleCPU = 100 * (cpu(keeper) + cpu(edge) - used).Seconds() / time.Since(began).Seconds()

	full, k, g := treeOf(keeper), status(keeper), status(edge)
	s.PSS, s.PerSession, s.Processes = full.pss, (full.pss-before.pss)/float64(n), full.processes
	s.Gateway, s.Keeper, s.Descriptors = g.rss, k.rss, g.descriptors+k.descriptors
	for _, id := range ids {
		destroyed.Add(timed(c, request(1, "session.destroy", map[string]any{"session_id": id, "force": true})))
	}
	time.Sleep(time.Second)
	s.Left = treeOf(keeper).processes - before.processes
	s.Create, s.First, s.Exec, s.Ping, s.Destroy = figure.Measure(created), figure.Measure(first), figure.Measure(execd), figure.Measure(pinged), figure.Measure(destroyed)
	return s
}

func timed(c *websocket.Conn, m []byte) time.Duration {
	start := time.Now()
	ok(roundTrip(c, m))
	return time.Since(start)
}
