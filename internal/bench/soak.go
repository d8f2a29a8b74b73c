package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"trl/client"
	"trl/internal/bench/figure"
	"trl/protocol"
)

// A soak makes many sessions do mixed work for hours. Now and then it pauses until nothing runs and ended work is forgotten; then it counts everything
// that could leak.

const (
	workers    = 16
	retention  = 2 * time.Second // short, so that ended work is gone in a pause
	settleTime = retention + time.Second
)

// Soak is the content of soak.json.
type Soak struct {
	Machine  figure.Machine `json:"machine"`
	Lasted   string         `json:"lasted"`
	Sessions int            `json:"sessions"`
	Ops      map[string]int `json:"ops"`
	Samples  []sample       `json:"samples"`
	Trends   []figure.Trend `json:"trends"`
}

// A sample is one measurement, while nothing runs.
type sample struct {
	At      float64            `json:"at_s"`
	Numbers map[string]float64 `json:"numbers"`
}

// counted are the numbers of a sample, in the order of the table.
var counted = []string{"gateway_pss", "gateway_rss", "gateway_heap", "keeper_pss", "sessions_pss", "gateway_descriptors", "keeper_descriptors", "goroutines", "processes", "cgroups", "files", "run_p99_us", "p99_of_pings"}

// work is the load: workers hold going for reading during one operation, the counter holds it for writing.
type work struct {
	going sync.RWMutex
	mu    sync.Mutex
	ops   map[string]int // guarded by mu
	runs  figure.Samples // guarded by mu; times of exec.run since the last sample
	pings figure.Samples // guarded by mu
}

func soak() (err error) {
	gw := gateway("--retention", retention.String(), "--idle-timeout", "0")
	defer gw.stop()
	c := dial(gw.addr + "/v1/ws")
	defer c.CloseNow()
	r := Soak{Machine: machine(tier(c)), Lasted: lasts.String(), Sessions: *many}
	fmt.Println(r.Machine)
	w := &work{ops: map[string]int{}}
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() { // ends with stop, or at the first error; awaited below
			if err := w.work(stop, gw.addr, (*many+i)/workers); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	root, began := cgroupsOf(c), time.Now()
	interval := max(*lasts/40, 5*time.Second)
	for next := began.Add(interval); time.Since(began) < *lasts && stop.Err() == nil; next = time.Now().Add(interval) {
		select {
		case <-time.After(time.Until(next)):
		case <-stop.Done():
			continue
		}
		w.going.Lock()
		time.Sleep(settleTime)
		s := sample{time.Since(began).Seconds(), w.count(gw, root)}
		w.going.Unlock()
		r.Samples = append(r.Samples, s)
		fmt.Printf("%6.0f s  gateway %.1f MiB, heap up to %.1f, %d descriptors, %d goroutines; keeper %.1f MiB; p99 %.1f ms\n", s.At, s.Numbers["gateway_pss"]/(1<<20), s.Numbers["gateway_heap"]/(1<<20),
			int(s.Numbers["gateway_descriptors"]), int(s.Numbers["goroutines"]), s.Numbers["keeper_pss"]/(1<<20), s.Numbers["run_p99_us"]/1e3)
	}
	cancel()
	all.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	r.Ops = w.ops
	return errors.Join(r.verdict(), save("soak", r), r.csv())
}

// verdict compares the end with the beginning, prints the result, and fails if something grew.
func (r *Soak) verdict() error {
	fmt.Printf("\n%v\n%-22s %14s %14s %9s %9s %9s\n", r.Ops, "", "first quarter", "last quarter", "growth", "allowed", "fit")
	var grown []error
	for _, name := range counted {
		var values, at figure.Samples
		for _, s := range r.Samples {
			values, at = append(values, s.Numbers[name]), append(at, s.At)
		}
		t, err := figure.NewTrend(name, at, values)
		if err != nil {
			return err
		}
		r.Trends = append(r.Trends, t)
		note := ""
		if !judged(name) {
			note = "  (not judged)"
		}
		fmt.Printf("%-22s %14.1f %14.1f %8.1f%% %8.1f%% %8.1f%%%s\n", name, t.First, t.Last, 100*t.Growth, 100*t.Allowed, 100*t.Fit, note)
		if t.Growth > t.Allowed && judged(name) {
			grown = append(grown, fmt.Errorf("%s grew by %.1f %%", name, 100*t.Growth))
		}
	}
	return errors.Join(grown...)
}

// keyTime is how long the gateway remembers a request_key; every stream of ours has one.
const keyTime = 10 * time.Minute

// judged reports whether a number must not grow. A p99 also depends on the machine; p99_of_pings only on us. The gateway remembers more and more until
// the first keys are forgotten, so its memory is judged only if the warm-up, a fifth, was longer than that.
func judged(name string) bool {
	switch name {
	case "run_p99_us":
		return false
	case "gateway_pss", "gateway_rss", "gateway_heap":
		return *lasts/5 >= keyTime
	}
	return true
}

func (r *Soak) csv() error {
	if *out == "" {
		return nil
	}
	f, err := os.Create(filepath.Join(*out, "soak.csv"))
	if err != nil {
		return err
	}
	fmt.Fprint(f, "at_s")
	for _, name := range counted {
		fmt.Fprint(f, ",", name)
	}
	for _, s := range r.Samples {
		fmt.Fprintf(f, "\n%.0f", s.At)
		for _, name := range counted {
			fmt.Fprintf(f, ",%.0f", s.Numbers[name])
		}
	}
	fmt.Fprintln(f)
	return f.Close()
}

// count measures everything; w.going is held.
func (w *work) count(gw *child, cgroups string) map[string]float64 {
	keeper := gw.cmd.Process.Pid
	edge := gatewayOf(keeper)
	g, k, all := status(edge), status(keeper), treeOf(keeper)
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]float64{
		"gateway_pss": g.pss, "gateway_rss": g.rss, "gateway_descriptors": float64(g.descriptors),
		"keeper_pss": k.pss, "keeper_descriptors": float64(k.descriptors),
		"sessions_pss": all.pss - g.pss - k.pss, "processes": float64(all.processes),
		"gateway_heap": metric(gw, "go_memstats_next_gc_bytes"), // follows live memory, not garbage
		"goroutines":   metric(gw, "go_goroutines"),
		"cgroups":      float64(entries(cgroups, true)),
		"files":        float64(entries(gw.dir, false)),
		"run_p99_us":   w.runs.Quantile(0.99) / 1e3,
	}
	if p := w.pings.Quantile(0.99); p > 0 {
		n["p99_of_pings"] = w.runs.Quantile(0.99) / p // other load on the machine makes both longer
	}
	w.runs, w.pings = nil, nil
	return n
}

// work keeps n sessions busy, one operation at a time, until stop.
func (w *work) work(stop context.Context, addr string, n int) (err error) {
	c, err := client.Connect(ctx, client.Options{URL: addr + "/v1/ws"})
	if err != nil {
		return err
	}
	defer c.Close()
	a := &worker{c: c, w: w, addr: addr}
	for i := range n {
		id, err := a.create(i)
		if err != nil {
			return err
		}
		a.ids = append(a.ids, id)
	}
	for stop.Err() == nil {
		w.going.RLock()
		i := rand.IntN(100)
		op := ops[slices.IndexFunc(ops, func(o op) bool { i -= o.share; return i < 0 })]
		err := op.do(a, rand.IntN(len(a.ids)))
		w.going.RUnlock()
		if err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
		w.mu.Lock()
		w.ops[op.name]++
		w.mu.Unlock()
	}
	return nil
}

// A worker is a connection and its sessions.
type worker struct {
	c    *client.Client
	w    *work
	addr string
	ids  []string
}

type op struct {
	name  string
	share int // per cent
	do    func(a *worker, i int) error
}

// ops are the mix of operations.
var ops = []op{
	{"run", 50, (*worker).run},
	{"ping", 10, (*worker).ping},
	{"stream", 12, (*worker).stream},
	{"cancel", 6, (*worker).cancel},
	{"timeout", 6, (*worker).timeout},
	{"crash", 4, (*worker).crash},
	{"terminal", 8, (*worker).terminal},
	{"replace", 4, (*worker).replace},
}

// create makes session i; half of them are bash.
func (a *worker) create(i int) (id string, err error) {
	var s protocol.Session
	err = a.c.Call(ctx, "session.create", protocol.SessionCreate{Shell: []string{"/bin/bash", "/bin/sh"}[i%2]}, &s)
	return s.SessionID, err
}

func (a *worker) session(i int) *client.Session { return a.c.SessionWithID(a.ids[i]) }

func (a *worker) run(i int) error {
	start := time.Now()
	r, err := a.session(i).Exec(ctx, "cd /tmp; n=$((n + 1)); echo $n", nil)
	if err == nil && (!r.Success || r.StdoutBytes == 0) {
		err = fmt.Errorf("%+v", r.ExecExit)
	}
	a.w.mu.Lock()
	a.w.runs.Add(time.Since(start))
	a.w.mu.Unlock()
	return err
}

func (a *worker) ping(int) error {
	start := time.Now()
	err := a.c.Call(ctx, "system.ping", nil, nil)
	a.w.mu.Lock()
	a.w.pings.Add(time.Since(start))
	a.w.mu.Unlock()
	return err
}

func (a *worker) stream(i int) error {
	s, err := a.session(i).ExecStream(ctx, "seq 20000; echo end >&2", nil)
	if err != nil {
		return err
	}
	defer s.Detach()
	exit, err := s.Copy(ctx, io.Discard, io.Discard)
	const size = 108894 // of seq 20000
	if err == nil && exit.StdoutBytes != size {
		err = fmt.Errorf("%d bytes of %d", exit.StdoutBytes, size)
	}
	return err
}

func (a *worker) cancel(i int) error {
	s, err := a.session(i).ExecStream(ctx, "echo begun; sleep 100 & sleep 100", nil)
	if err != nil {
		return err
	}
	defer s.Detach()
	for range 2 { // its start and its output
		if _, err := s.Next(ctx); err != nil {
			return err
		}
	}
	if err := s.Kill(ctx); err != nil {
		return err
	}
	exit, err := s.Copy(ctx, io.Discard, io.Discard)
	if err == nil && !exit.Cancelled {
		err = fmt.Errorf("not cancelled: %+v", exit)
	}
	return err
}

func (a *worker) timeout(i int) error {
	r, err := a.session(i).Exec(ctx, "while :; do :; done", &client.ExecOptions{Timeout: 100 * time.Millisecond})
	if err == nil && !r.TimedOut {
		err = fmt.Errorf("no timeout: %+v", r.ExecExit)
	}
	return err
}

func (a *worker) crash(i int) error {
	r, err := a.session(i).Exec(ctx, "kill -9 $$", nil)
	if err == nil && !r.ShellRestored {
		err = fmt.Errorf("shell not restored: %+v", r.ExecExit)
	}
	return err
}

// terminal opens a terminal, lets a second client watch it, resizes it, and ends it by its own exit.
func (a *worker) terminal(i int) error {
	t, err := a.session(i).OpenTerminal(ctx, client.TerminalOptions{Cols: 80, Rows: 24})
	if err != nil {
		return err
	}
	defer t.Detach()
	if _, err := t.Next(ctx); err != nil { // its prompt
		return err
	}
	for cols := range 5 {
		if err := t.Resize(ctx, 90+cols, 30); err != nil {
			return err
		}
	}
	if _, err := t.Snapshot(ctx); err != nil {
		return err
	}
	if err := a.look(t.ID()); err != nil {
		return err
	}
	if err := t.Write(ctx, []byte("exit\r")); err != nil {
		return err
	}
	for {
		if _, err := t.Next(ctx); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// look attaches a second viewer for a moment, over its own connection.
func (a *worker) look(id string) error {
	c, err := client.Connect(ctx, client.Options{URL: a.addr + "/v1/ws"})
	if err != nil {
		return err
	}
	defer c.Close()
	t, err := c.AttachTerminal(ctx, id, &client.AttachOptions{Mode: "view"})
	if err != nil {
		return err
	}
	defer t.Detach()
	_, err = t.Next(ctx)
	return err
}

// replace ends a session and makes another one in its place, so that the number of each kind stays the same.
func (a *worker) replace(i int) error {
	err := a.c.Call(ctx, "session.destroy", protocol.SessionDestroy{SessionRef: protocol.SessionRef{SessionID: a.ids[i]}, Force: true}, nil)
	id, fault := a.create(i)
	a.ids[i] = id
	return errors.Join(err, fault)
}
