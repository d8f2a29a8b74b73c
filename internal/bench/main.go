// Command bench measures a built trl against the floors of docs/PERFORMANCE.md: a bare bash on a pipe, a bare WebSocket echo in a separate process, a
// bare pipe copied into WebSocket messages, a bare PTY behind a WebSocket. Floor and product take turns in one run, so a disturbance hits both. It
// prints medians, their modes and ratios, and the budgets.
//
//	bench [compare]  every figure with its floor; CI uses -quick, which fails if a ratio is far out of budget twice
//	bench scale      1 to 4,000 sessions: the cost of making, keeping, using and ending them
//	bench idle       descriptors, memory and processor time of idle sessions
//	bench agent      an agent's work, compared with two other ways of doing it
//	bench comeback   time from a kill -9 of the gateway to the next one's answers, by earlier work
//	bench kept       the cost of ended work
//	bench clients    a command over each of our clients, beside a bare WebSocket echo in the same language
//	bench cluster    three nodes with three nats-servers, beside the same work on one node
//	bench peers      other servers that are running on this machine, beside trl and the floors
//	bench principals many tokens and principals, beside one
//	bench soak       hours of mixed work: nothing may grow
//	bench plots      the pictures and tables of docs, from the JSON that the others left
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"trl/internal/bench/figure"
)

var (
	trl    = flag.String("trl", "bin/trl", "the gateway to measure")
	rounds = flag.Int("rounds", 2000, "requests of each kind")
	stream = flag.Int("mib", 64, "MiB to stream")
	idle   = flag.Int("idle", 1000, "idle sessions next to the measured one")
	slow   = flag.Int("slow-mib", 1024, "MiB to stream to a slow client")
	tree   = flag.Int("tree", 600, "processes to cancel")
	quick  = flag.Bool("quick", false, "measure little of everything; fail if a ratio is far out of budget in two runs")
	format = flag.String("format", "table", "table, json or benchstat")
	out    = flag.String("out", "", "leave the results as JSON in this `directory`")
	many   = flag.Int("sessions", 500, "sessions, for soak")
	sizes  = flag.String("sizes", "1,10,100,1000,4000", "numbers of sessions, for scale")
	crews  = flag.String("agents", "1,32", "numbers of agents that work at the same time, for agent")
	keyed  = flag.String("keyed", "10000,100000,1000000", "numbers of commands with a request_key, for comeback")
	lasts  = flag.Duration("for", time.Hour, "how long, for soak")
	img    = flag.String("img", "docs/img", "`directory` of the pictures, for plots")
	only   = flag.Bool("terminals", false, "measure only terminals")
	doc    = flag.String("doc", "docs/PERFORMANCE.md", "the `file` whose tables plots writes")
	ctx    = context.Background()

	connections    = flag.Int("connections", 10000, "idle WebSockets, for idle")
	manyPrincipals = flag.Int("principals", 10000, "tokens, each of another principal, for principals")

	peersFlag = flag.String("peers", "", "the `servers` to measure beside trl, for peers: NAME=ADDRESS or NAME@LABEL=ADDRESS, with spaces between them")

	repetitions = flag.Int("repetitions", whole.repetitions, "of every figure, for peers")

	natsServer = flag.String("nats", "bin/nats-server", "the nats-server of cluster")
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "echo" {
		echo()
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "listen" {
		listen(os.Args[2])
		return
	}
	mode, args := "compare", os.Args[1:]
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		mode, args = args[0], args[1:]
	}
	_ = flag.CommandLine.Parse(args) // exits
	run := map[string]func() error{"compare": compare, "scale": scale, "idle": idleCost, "agent": agent, "soak": soak, "comeback": recovery, "kept": kept, "clients": clients, "cluster": nodesCost, "principals": principalsCost, "peers": besidePeers, "plots": plots}[mode]
	if run == nil {
		fmt.Fprintf(os.Stderr, "bench: unknown mode %q\n", mode)
		os.Exit(2)
	}
	stopOnSignal()
	if err := caught(run); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// caught turns panics, by which all code here gives up, into an error; it stops what was started.
func caught(run func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return run()
}

// counts reads a list of numbers.
func counts(list string) (all []int) {
	for word := range strings.SplitSeq(list, ",") {
		all = append(all, must(strconv.Atoi(strings.TrimSpace(word))))
	}
	return all
}

// machine describes this machine and the source that we measure.
func machine(tier string) figure.Machine {
	m := figure.ThisMachine()
	m.Tier = tier
	if b, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(b))
	}
	return m
}

// save keeps a result for plots, unless it is from a quick run.
func save(name string, v any) error {
	if *out == "" || *quick {
		return nil
	}
	return figure.Save(filepath.Join(*out, name+".json"), v)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
