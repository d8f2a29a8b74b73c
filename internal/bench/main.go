// Command bench measures a built trl beside the floors of docs/PERFORMANCE.md: a bare bash on a pipe, a bare WebSocket
// echo in a process of its own, a bare pipe copied into WebSocket messages, a bare PTY behind a WebSocket. Floor and product take turns in one run, so
// that what disturbs one disturbs the other; medians, their modes and ratios are printed beside their budgets.
//
//	bench [compare]  every figure beside its floor; -quick is CI's, and fails where a ratio is far out of budget, twice
//	bench scale      1 to 4,000 sessions: what they cost when they are made, idle, used and ended
//	bench agent      what an agent does in a working day, beside two other ways of doing it
//	bench comeback   from a kill -9 of the gateway to its successor's answers, by what clients had done before
//	bench kept       what work that has ended takes
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
	idle   = flag.Int("idle", 1000, "idle sessions beside the measured one")
	slow   = flag.Int("slow-mib", 1024, "MiB to stream to a client that is slow")
	tree   = flag.Int("tree", 600, "processes to cancel")
	quick  = flag.Bool("quick", false, "little of everything; fail where a ratio is far out of budget in two runs")
	format = flag.String("format", "table", "table, json or benchstat")
	out    = flag.String("out", "", "leave the results as JSON in this `directory`")
	many   = flag.Int("sessions", 500, "sessions, for soak")
	sizes  = flag.String("sizes", "1,10,100,1000,4000", "numbers of sessions, for scale")
	crews  = flag.String("agents", "1,32", "numbers of agents at work at the same time, for agent")
	keyed  = flag.String("keyed", "10000,100000,1000000", "numbers of commands with a request_key, for comeback")
	lasts  = flag.Duration("for", time.Hour, "how long, for soak")
	img    = flag.String("img", "docs/img", "`directory` of the pictures, for plots")
	only   = flag.Bool("terminals", false, "measure only terminals")
	other  = flag.Bool("gotty", false, "measure terminals beside gotty, too, which is built for it")
	doc    = flag.String("doc", "docs/PERFORMANCE.md", "the `file` whose tables plots writes")
	ctx    = context.Background()
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
	run := map[string]func() error{"compare": compare, "scale": scale, "agent": agent, "soak": soak, "comeback": recovery, "kept": kept, "plots": plots}[mode]
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

// caught turns the panics by which everything here gives up into an error; what was started is stopped on the way.
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

// machine is this one, and the source we measure.
func machine(tier string) figure.Machine {
	m := figure.ThisMachine()
	m.Tier = tier
	if b, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(b))
	}
	return m
}

// save leaves a result for plots. A quick run is none.
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
