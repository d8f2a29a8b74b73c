package survival

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Gateways are killed, and the keeper replaced, under everything that a client can ask for at once: each kind of work goes on
// over as many connections as it takes, and what it did and was told must be exact.

// worker is one client that goes on with its work until the killing is over.
type worker struct {
	rig.Again
	ctx  context.Context
	name string // of the worker and its session
	s    string // the session

	twice    bool // now and then a request with a request_key is sent on two connections at once
	restless bool // a stream that is followed is left and come back to at its offset
}

// sure asks until there is an answer.
func (w *worker) sure(method string, params object) object {
	f := w.answer(method, params)
	if f.Error != nil {
		panic(fmt.Errorf("%s: %v", method, *f.Error))
	}
	return f.Data
}

func (w *worker) answer(method string, params object) rig.Frame {
	if !w.twice || params["request_key"] == nil || rand.IntN(4) > 0 {
		return w.answered(method, params)
	}
	other := &worker{Again: rig.Again{G: w.G}, ctx: w.ctx}
	same := make(chan rig.Frame, 1)
	var fault any // Read after same
	go func() {   // ends with its answer, for which we wait below
		defer close(same)
		defer other.drop()
		defer func() { fault = recover() }()
		same <- other.answered(method, params)
	}()
	f := w.answered(method, params)
	second, ok := <-same
	if !ok {
		panic(fault)
	}
	names := []string{"session_id", "exec_id", "process_id", "term_id"}
	if !f.Data.Yes("running") && !second.Data.Yes("running") { // else each has what there was when it was answered
		names = append(names, "exit_code", "stdout", "stderr")
	}
	for _, name := range names {
		want(name+" of the same request on another connection", fmt.Sprint(second.Data[name]), fmt.Sprint(f.Data[name]))
	}
	want("error of the same request on another connection", second.Code(), f.Code())
	return f
}

// answered asks until there is an answer.
func (w *worker) answered(method string, params object) rig.Frame {
	for {
		f, err := w.Ask(w.ctx, method, params, nil)
		if err == nil && f.Code() != "SHUTTING_DOWN" {
			return f
		}
		if w.ctx.Err() != nil {
			panic(fmt.Errorf("%s: no answer: %v %v", method, err, f.Code()))
		}
		time.Sleep(time.Millisecond)
	}
}

// path is of the file in which the work leaves its traces.
func (w *worker) path() string { return filepath.Join(w.G.Home, w.name) }

func (w *worker) key(k int) object {
	return object{"session_id": w.s, "request_key": fmt.Sprint(w.name, k)}
}

// want panics unless what was got is this.
func want(what string, got, want any) {
	if got != want {
		panic(fmt.Errorf("%s: %v, not %v", what, rig.Brief(fmt.Sprint(got)), rig.Brief(fmt.Sprint(want))))
	}
}

func (w *worker) ran(r object, code int, out string) {
	want(fmt.Sprint("exit code of ", r), r.Num("exit_code"), code)
	want("stdout", r.Stdout(), out)
	want("stderr", r.Stderr(), "")
}

// follow reads a stream from its first byte, over as many connections as it takes, until it has said so much and ended.
func (w *worker) follow(kind, id string, least int) string {
	var got strings.Builder
	ctx, cancel := context.WithTimeout(w.ctx, 2*testkit.Patience)
	defer cancel()
	for done := false; !done; {
		w.drop() // what was subscribed to on it would be among these events
		q := object{kind + "_id": id, "offset": got.Len(), "on_slow": "block"}
		if kind == "term" {
			q["mode"] = "view"
		}
		f, err := w.Ask(ctx, kind+".attach", q, func(name string, data object) bool {
			switch name {
			case kind + ".output":
				want("offset", data.Num("offset"), got.Len())
				got.WriteString(data.Text("data", "encoding"))
			case "stream.gap":
				panic(fmt.Errorf("gap: %v", data))
			}
			if w.restless && rand.IntN(8) == 0 {
				return false
			}
			ended := name == kind+".exit" // of an exec: what its jobs print later is there for who attaches again
			done = got.Len() >= least && (ended || kind == "exec")
			return !done && !ended
		})
		switch {
		case err == nil && f.Error != nil && f.Code() != "SHUTTING_DOWN":
			panic(fmt.Errorf("attach: %v", *f.Error))
		case ctx.Err() != nil:
			panic(fmt.Errorf("stream %s: %d of %d bytes, %q; %v", id, got.Len(), least, rig.Brief(got.String()), err))
		}
	}
	w.drop()
	return got.String()
}

// typed gives a program what ends it; that this was taken shows in its end.
func (w *worker) typed(method string, params object) {
	for taken := false; !taken; {
		f, err := w.Ask(w.ctx, method, params, nil)
		taken = err == nil && (f.Error == nil || f.Code() != "SHUTTING_DOWN")
		w.stopWhenOver(method, f)
	}
}

// stopWhenOver panics when the time is over.
func (w *worker) stopWhenOver(method string, f rig.Frame) {
	if w.ctx.Err() != nil {
		panic(fmt.Errorf("%s: no answer: %v", method, f.Code()))
	}
}

// typing gives a program numbered lines, and returns who checks what that printed of them: each one that was answered for, in
// order, and of the others none or one.
func (w *worker) typing(kind, id string, n int, line func(i int) string) func(out string) {
	lines, sure := make([]string, n), make([]bool, n)
	for i := range n {
		rest := line(i)
		lines[i] = fmt.Sprintf("%d-%s", i, rest)
		typed, _, _ := strings.Cut(lines[i], " ") // what comes after that is the program's
		f, err := w.Ask(w.ctx, kind+".input", object{kind + "_id": id, "data": typed + "\n"}, nil)
		if sure[i] = err == nil && f.Error == nil; err == nil && f.Error != nil && f.Code() != "SHUTTING_DOWN" {
			panic(fmt.Errorf("%s.input: %v", kind, *f.Error))
		}
		w.stopWhenOver(kind+".input", f)
	}
	return func(out string) {
		next := 0
		for line := range strings.Lines(out) {
			line = strings.TrimSuffix(line, "\n")
			at := next
			for at < n && lines[at] != line {
				want(fmt.Sprintf("that line %d was taken, before %q", at, rig.Brief(line)), sure[at], false)
				at++
			}
			if at == n {
				panic(fmt.Errorf("line %q after line %d", rig.Brief(line), next-1))
			}
			next = at + 1
		}
		for ; next < n; next++ {
			want(fmt.Sprintf("that line %d was taken, which is missing", next), sure[next], false)
		}
	}
}

// drop leaves the connection.
func (w *worker) drop() {
	if w.Ws != nil {
		w.Ws.CloseNow()
		w.Ws = nil
	}
}

// A plan says how gateways are killed, and under which work.
type plan struct {
	kinds  []string // of works; nil: all
	shells []string
	pace   func() time.Duration // between kills
	kills  int                  // moments at which something is killed, at least
	lasts  time.Duration        // and how long, at least

	upgrades int           // one of so many kills is an upgrade instead
	within   time.Duration // all of it
	extra    bool          // workers with twice and restless
}

func TestWorksWhileGatewaysDie(t *testing.T) {
	g := rig.Gateway(t, "--max-sessions", "100", "--retention", "20s")
	cgroup, before := measured(t, g)
	worked(t, g, cgroup, before, plan{
		shells: rig.Shells, kills: rig.Pick(10, 80), upgrades: 2, within: rig.Pick(8*time.Minute, 30*time.Minute),
		pace: func() time.Duration { return time.Duration(100+rand.IntN(900)) * time.Millisecond },
	})
	if rig.Pick(true, false) {
		return // what is retained takes its time to go
	}
	w := &worker{Again: rig.Again{G: g}, ctx: t.Context()}
	testkit.Eventually(t, "all is forgotten", func() bool { return len(w.sure("session.list", object{}).Objs("sessions")) == 0 })
	w.drop()
	g.AwaitBaseline(t, cgroup, before)
}

// soakFor is how long TestEndurance lasts: go test -run TestEndurance ./internal/acceptance -args -for 10m (make soak-once).
var soakFor = flag.Duration("for", 20*time.Second, "how long TestEndurance lasts")

// TestEndurance: with the default retention, in every shell, with requests that are sent twice and streams that are left and
// come back to: nothing runs twice, nothing is missing, every stream is byte-exact. Gateways are killed every 20 s (in a short run,
// every 4 s), and one time in four upgraded instead.
func TestEndurance(t *testing.T) {
	var there []string
	for _, shell := range rig.AllShells {
		if _, err := os.Stat(shell); err == nil {
			there = append(there, shell)
		}
	}
	flags := []string{"--max-sessions", "200", "--shells", strings.Join(there, ",")}
	g := rig.Gateway(t, flags...)
	cgroup, before := measured(t, g)
	worked(t, g, cgroup, before, plan{
		kinds:  []string{"state", "stream", "queue", "bytes", "stdin", "cancel", "timeout", "shell ends", "process", "process killed", "left behind", "terminal", "joined", "yield", "reset"},
		shells: there, lasts: *soakFor, upgrades: 4, within: *soakFor + 5*time.Minute, extra: true,
		pace: func() time.Duration { return min(20*time.Second, *soakFor/5) },
	})
	after := g.Counts(t, cgroup)
	t.Logf("goroutines, descriptors of keeper and gateway, children, cgroups, files, processes: %v before, %v after, with what is retained", before, after)
	t.Logf("keeper's descriptors: %v\ngateway's: %v", rig.FdKinds(g.Pid), rig.FdKinds(g.GatewayPid()))
}

// measured counts what a gateway has that is warm and has had an upgrade and a limited session.
func measured(t *testing.T, g *rig.Server) (cgroup string, before [7]int) {
	cgroup = g.CgroupDir(t)
	g.Upgrade(t)
	c := g.Dial(t)
	c.LimitOne(c.Limits(memoryLimit))
	c.Close()
	testkit.Eventually(t, "warm", func() bool { return g.Metric(t, "trl_warm_shells") == 4 })
	return cgroup, g.Counts(t, cgroup)
}

// worked carries out a plan, and returns when no process and no cgroup of it is left.
func worked(t *testing.T, g *rig.Server, cgroup string, before [7]int, p plan) {
	ctx, cancel := context.WithTimeout(context.Background(), p.within)
	defer cancel()
	killing, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	killed, asked := 0, 0
	all.Go(func() {
		defer stop()
		end := time.Now().Add(p.lasts)
		for round := 0; round < p.kills || time.Now().Before(end); round++ {
			time.Sleep(p.pace())
			for range 1 + rand.IntN(2) { // both at once, now and then
				if rand.IntN(p.upgrades) == 0 || asked == 0 && killed >= p.upgrades { // one at least
					asked++
					_ = syscall.Kill(g.Pid, syscall.SIGHUP)
				} else if pid := g.GatewayPid(); pid > 0 {
					killed++
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
			}
		}
	})
	var mu sync.Mutex
	steps := map[string]int{}
	for name, step := range works {
		if p.kinds != nil && !slices.Contains(p.kinds, name) {
			continue
		}
		for i, sh := range p.shells {
			all.Go(func() {
				w := &worker{Again: rig.Again{G: g}, ctx: ctx, name: strings.ReplaceAll(name, " ", "") + strconv.Itoa(i), twice: p.extra, restless: p.extra}
				k := 0
				defer func() {
					if fault := recover(); fault != nil {
						t.Errorf("%s in %s, step %d: %v", name, sh, k, fault)
					}
					w.drop()
					mu.Lock()
					steps[name] += k
					mu.Unlock()
				}()
				defer func() { w.answer("session.destroy", object{"session_id": w.s, "force": true}) }()
				w.s = w.sure("session.create", object{"shell": sh, "name": w.name, "if_exists": "return"}).Str("session_id")
				for ; killing.Err() == nil; k++ {
					step(w, k)
				}
				if text, err := os.ReadFile(w.path()); err == nil && name != "stdin" {
					lines := strings.Fields(string(text))
					want(fmt.Sprint("how many are ", lines[max(0, len(lines)-30):]), len(lines), k)
					for i, line := range lines {
						want("thing done", line, strconv.Itoa(i))
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d gateways killed, %d upgrades asked for; steps: %v", killed, asked, steps)
	g.Upgrade(t)
	left, _ := filepath.Glob(filepath.Join(g.Home, "*"))
	for _, name := range left {
		_ = os.Remove(name)
	}
	testkit.Eventually(t, "no process and no cgroup is left", func() bool { after := g.Counts(t, cgroup); return after[4] <= before[4] && after[6] <= before[6] })
}
