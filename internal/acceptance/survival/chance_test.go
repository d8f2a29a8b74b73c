package survival

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
)

// trials are how many commands TestCommandRunsOnceAtRandomDeaths runs: go test -run TestCommandRunsOnceAtRandomDeaths ./internal/acceptance -args -trials 5000 (make once).
var trials = flag.Int("trials", 48, "how many commands TestCommandRunsOnceAtRandomDeaths runs")

// TestCommandRunsOnceAtRandomDeaths: a command that ends its shell, whose gateway is killed 0 to 8 ms after it was sent, and which is asked for again by
// its request_key, runs once.
func TestCommandRunsOnceAtRandomDeaths(t *testing.T) {
	ends := []string{"kill -9 $$", "exit 3"}
	g := rig.Gateway(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+time.Duration(*trials)*time.Second)
	defer cancel()
	var all []*worker
	for _, shell := range rig.AllShells {
		if _, err := os.Stat(shell); err != nil {
			continue
		}
		for i := range 2 * len(ends) {
			w := &worker{Again: rig.Again{G: g}, ctx: ctx, name: fmt.Sprint("once", len(all))}
			defer w.drop()
			w.s = w.sure("session.create", object{"shell": shell}).Str("session_id")
			w.name += " " + shell + ", " + ends[i%len(ends)]
			all = append(all, w)
		}
	}
	file := func(w *worker) string { name, _, _ := strings.Cut(w.path(), " "); return name }
	rounds, twice := (*trials+len(all)-1)/len(all), 0
	for n := range rounds {
		var sent, done sync.WaitGroup
		for i, w := range all {
			w.sure("system.ping", object{}) // it has a connection
			sent.Add(1)
			done.Go(func() { // ends with the answer, or with ctx
				defer func() {
					if fault := recover(); fault != nil {
						t.Errorf("%s, command %d: %v", w.name, n, fault)
					}
				}()
				q := rig.With(w.key(n), object{"command": fmt.Sprintf("echo %d >>%s; echo before; %s", n, file(w), ends[i%len(ends)])})
				sent.Done()
				if r := w.sure("exec.run", q); r.Stdout() != "before\n" || !r.Yes("shell_restored") {
					t.Errorf("%s, command %d: %v", w.name, n, rig.Brief(fmt.Sprint(r)))
				}
			})
		}
		sent.Wait()
		begun := time.Now()
		time.Sleep(time.Duration(rand.IntN(8000)) * time.Microsecond)
		if pid := g.GatewayPid(); pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		done.Wait()
		for _, w := range all {
			text, err := os.ReadFile(file(w))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(file(w), 0); err != nil {
				t.Fatal(err)
			}
			if string(text) != fmt.Sprintln(n) {
				twice++
				t.Errorf("%s, command %d: its file has %q", w.name, n, text)
			}
		}
		if ctx.Err() != nil {
			break
		}
		time.Sleep(time.Until(begun.Add(1200 * time.Millisecond))) // a gateway that lives for less than a second is started again later
	}
	t.Logf("%d commands in %d rounds, %d did not run exactly once", rounds*len(all), rounds, twice)
}
