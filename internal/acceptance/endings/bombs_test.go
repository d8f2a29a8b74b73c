package endings

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// One session within limits does its worst while three others work. They go on, its destroy ends all of it, and neither
// process of the server keeps anything. Every bomb is bounded by itself as well, in number and in time, should the limit
// not hold. How much slower the others are is measured against the same run's quiet time: the aim is 3 times, which a
// busy machine says little about, so it is reported, and far beyond is an error.

// A bomb is a script for bash: $1 is its mark, $2 a file without which it ends by itself, $3 how many where there are many.
type bomb struct {
	name, text string
	limits     []string // those that it is about: without them it is not set off
	count      int
	grown      func(c *rig.Client, session string, tr *tree) bool // it does what it is there for
	check      func(t *testing.T, c *rig.Client, g *rig.Server, session string)
}

const (
	bombPIDs     = 120
	bombMemory   = 96 << 20
	bombFileSize = 4 << 20
	bombFiles    = 100
)

var bombLimits = object{"pids": bombPIDs, "memory_bytes": bombMemory, "cpu": 1, "file_size_bytes": bombFileSize, "open_files": bombFiles}

// bombMet: it has met its limit.
func bombMet(c *rig.Client, session string, tr *tree) bool {
	text, _ := os.ReadFile(tr.gate + ".met")
	return len(text) > 0
}

func bombs() []bomb {
	many := rig.Pick(1000, 10_000)
	return []bomb{
		{name: "forks", limits: []string{"pids"}, grown: func(c *rig.Client, s string, tr *tree) bool { return len(tr.alive()) > bombPIDs/2 },
			text: `cat >$2.b <<'EOT'
trap '' TERM
if [ $3 -gt 0 ] && [ -e $2 ]; then sh $2.b $1 $2 $(($3-1)) & sh $2.b $1 $2 $(($3-1)) & fi
sleep 0.2
EOT
				for k in 1 2 3; do (n=0; while [ -e $2 ] && [ $n -lt 100 ]; do n=$((n+1)); sh $2.b $1 $2 8; done) & done 2>/dev/null; wait`,
			check: func(t *testing.T, c *rig.Client, g *rig.Server, s string) {
				for range 5 {
					if n := len(rig.ProcessesOfSession(s)); n > bombPIDs+5 { // not all at one moment: who forks meanwhile is counted twice
						t.Errorf("%d processes within a limit of %d", n, bombPIDs)
					}
				}
			}},
		{name: "memory", limits: []string{"memory_bytes"}, grown: bombMet,
			text: `n=0; while [ -e $2 ] && [ $n -lt 200 ]; do n=$((n+1)); head -c 300M /dev/zero | tail -c 299M >/dev/null || echo met >$2.met; done`},
		{name: "disk", limits: []string{"file_size_bytes"}, grown: bombMet,
			text: `n=0; while [ -e $2 ] && [ $n -lt 2000 ]; do n=$((n+1)); head -c 64M /dev/zero >fill$((n%4)) || echo met >$2.met; done`,
			check: func(t *testing.T, c *rig.Client, g *rig.Server, s string) {
				files, _ := filepath.Glob(filepath.Join(g.Home, "fill*"))
				for _, file := range files {
					if at, err := os.Stat(file); err == nil && at.Size() > bombFileSize {
						t.Errorf("%s has %d bytes within a limit of %d", file, at.Size(), bombFileSize)
					}
					_ = os.Remove(file)
				}
			}},
		{name: "files", limits: []string{"open_files"}, grown: bombMet,
			text: `n=0; while [ -e $2 ] && [ $n -lt 2000 ]; do n=$((n+1)); bash -c 'for i in {1..500}; do exec {f}</dev/null || exit; done' hog $1 2>/dev/null || echo met >$2.met; done`},
		{name: "flood", grown: func(c *rig.Client, s string, tr *tree) bool { return len(tr.alive()) >= 4 },
			text: `timeout 300 yes $1 & timeout 300 yes $1 >&2 & wait`},
		{name: "spin", limits: []string{"cpu"}, grown: func(c *rig.Client, s string, tr *tree) bool { return len(tr.alive()) >= 9 },
			text: `for i in 1 2 3 4 5 6 7 8; do sh -c 'while [ -e $1 ]; do :; done' $1 $2 & done; wait`},
		{name: "daemons", limits: []string{"pids"}, count: many, grown: func(c *rig.Client, s string, tr *tree) bool { return len(tr.alive()) > many*9/10 },
			text: `n=0; while [ -e $2 ] && [ $n -lt $3 ]; do n=$((n+1)); (setsid sleep $1 &); done; sleep $1`},
	}
}

// neighbours run a command each, again and again with a short rest, and note how long each took.
type neighbours struct {
	mu   sync.Mutex
	took []time.Duration // guarded by mu
	all  sync.WaitGroup
	over chan struct{} // Closed by stop
	stop func()
}

func startNeighbours(t *testing.T, g *rig.Server, n int) *neighbours {
	t.Helper()
	ns := &neighbours{over: make(chan struct{})}
	ns.stop = sync.OnceFunc(func() { close(ns.over); ns.all.Wait() })
	t.Cleanup(ns.stop)
	for i := range n {
		c := g.Dial(t)
		s := c.Session(object{"shell": rig.Shells[i%2]})
		ns.all.Go(func() { // works until stop, which waits for it
			for k := 1; ; k++ {
				select {
				case <-ns.over:
					return
				case <-time.After(2 * time.Millisecond):
				}
				start := time.Now()
				if r := c.Run(s, "n=$((n+1)); echo $n"); r.Stdout() != fmt.Sprintln(k) || r.Num("exit_code") != 0 {
					t.Errorf("neighbour %d, command %d: %v", i, k, r)
					return
				}
				d := time.Since(start)
				ns.mu.Lock()
				ns.took = append(ns.took, d)
				ns.mu.Unlock()
			}
		})
	}
	return ns
}

// pace is how long what they do in this time takes: half of it less than p50.
func (ns *neighbours) pace(t *testing.T, during time.Duration) (p50, p99 time.Duration, n int) {
	t.Helper()
	ns.mu.Lock()
	ns.took = nil
	ns.mu.Unlock()
	var took []time.Duration
	begin := time.Now()
	testkit.Eventually(t, "neighbours get a few commands done", func() bool {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		took = slices.Clone(ns.took)
		return time.Since(begin) >= during && len(took) >= 20
	})
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], len(took)
}

// both are the keeper and the gateway as servers of their own, to look at their memory and descriptors.
func both(g *rig.Server) map[string]*rig.Server {
	return map[string]*rig.Server{"keeper": {Pid: g.Pid}, "gateway": {Pid: g.GatewayPid()}}
}

func TestBombsHurtNobodyElse(t *testing.T) {
	g := rig.Gateway(t, "--retention", "1s")
	c := g.Dial(t)
	limits := c.Limits(bombLimits)
	ns := startNeighbours(t, g, rig.Pick(3, 10))
	_, _, _ = ns.pace(t, 200*time.Millisecond) // all is loaded
	c.LimitOne(limits)
	settled := func() bool { return g.Metric(t, "trl_warm_shells") == 4 }
	testkit.Eventually(t, "warm", settled)
	parts := both(g)
	memory, files := map[string]int{}, map[string]int{}
	for name, part := range parts {
		memory[name], files[name] = part.Rss(t), part.Fds(t)
	}
	cgroup := g.CgroupDir(t)
	dirs := rig.CountDirs(cgroup)
	for _, b := range bombs() {
		t.Run(b.name, func(t *testing.T) {
			for _, limit := range b.limits {
				if !limits.Has(limit) {
					t.Skipf("%s cannot be limited here: only %v", limit, limits)
				}
			}
			quiet, quiet99, n := ns.pace(t, rig.Pick(300*time.Millisecond, 3*time.Second))
			own := rig.With(limits)
			if b.count > 0 {
				own["pids"] = b.count + 50
				delete(own, "memory_bytes")
				delete(own, "cpu")
			}
			s := c.Session(object{"shell": "/bin/bash", "limits": own})
			tr := plant(t, g, kind{name: b.name, text: b.text})
			p := c.Call("process.start", object{"session_id": s, "timeout_s": 300,
				"command": fmt.Sprintf("bash %s.sh %s %s %d", tr.gate, tr.mark, tr.gate, b.count)})
			testkit.Eventually(t, "the bomb goes off", func() bool { return b.grown(c, s, tr) })
			loud, loud99, m := ns.pace(t, rig.Pick(600*time.Millisecond, 10*time.Second))
			if b.check != nil {
				b.check(t, c, g, s)
			}
			if !strings.Contains("disk files", b.name) && c.Call("process.info", object{"process_id": p.Str("process_id")}).Str("state") != "running" {
				t.Error("it was over before the end")
			}
			half, tail := float64(loud)/float64(quiet), float64(loud99)/float64(quiet99)
			t.Logf("others' exec.run: p50 %s during it, %s before: ratio %.1f; p99 %s (of %d), %s (of %d): ratio %.1f", loud.Round(time.Microsecond), quiet.Round(time.Microsecond), half,
				loud99.Round(time.Microsecond), m, quiet99.Round(time.Microsecond), n, tail)
			start := time.Now()
			c.Call("session.destroy", object{"session_id": s, "grace_s": 0.5})
			took := time.Since(start)
			if left := append(tr.alive(), rig.ProcessesOfSession(s)...); len(left) > 0 {
				t.Errorf("left %v", left)
			}
			t.Logf("destroyed in %s, with 0.5 s of grace", took.Round(time.Millisecond))
			if took > testkit.Patience {
				t.Errorf("destroy took %s", took)
			}
			tr.uproot()
			if half > 20 { // what else the machine does may have begun meanwhile
				again, _, _ := ns.pace(t, 2*time.Second)
				half = min(half, float64(loud)/float64(again))
			}
			// The few worst of a short time are the machine's noise as much as the bomb's.
			if half > 20 || testkit.Soak && tail > 3 {
				t.Errorf("others are %.1f times as slow, the worst %.1f times", half, tail)
			}
			for _, more := range []string{".b", ".met"} {
				_ = os.Remove(tr.gate + more)
			}
			for name, part := range parts {
				// What the kernel counts for rings and pipes of 8 MiB, and a collector's slack.
				if peak := part.Peak(t); peak > memory[name]+256<<20 {
					t.Errorf("%s took %d MiB, had %d", name, peak>>20, memory[name]>>20)
				}
			}
		})
	}
	ns.stop()
	testkit.Eventually(t, "warm again, and what has ended forgotten", func() bool { return settled() && g.Metric(t, "trl_sessions") <= 4 })
	for name, part := range parts {
		defer func() {
			t.Logf("%s: %d MiB, %d descriptors before; %d MiB, %d after", name, memory[name]>>20, files[name], part.Rss(t)>>20, part.Fds(t))
		}()
		testkit.EventuallyWithin(t, 5*time.Minute, name+" is near what it was", func() bool { // who has nothing to do collects every two minutes
			return part.Rss(t) <= memory[name]+48<<20 && part.Fds(t) <= files[name]
		})
	}
	testkit.Eventually(t, "cgroups are as before", func() bool { return rig.CountDirs(cgroup) <= dirs })
	if g.GatewayPid() != parts["gateway"].Pid {
		t.Error("the gateway died")
	}
}
