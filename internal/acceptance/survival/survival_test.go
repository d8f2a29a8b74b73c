package survival

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// docs/operations.md says in a table what survives what. TestEverythingSurvivesAsDocumented makes one of everything, does to the gateway what the
// column says, and looks what is left: each cell that it can prove must be what the table says, no less and no more.

const (
	disconnects  = "client disconnect"
	killsGateway = "gateway `kill -9`"
	upgrades     = "upgrade (SIGHUP)"
	stops        = "stop (SIGTERM)"
	killsKeeper  = "keeper `kill -9`"
	reboots      = "reboot" // told, not tried
)

// documented is the table: row, column, cell.
func documented(t *testing.T) map[string]map[string]string {
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "<!-- survival: executed by TestEverythingSurvivesAsDocumented -->")
	part, _, end := strings.Cut(part, "<!-- end -->")
	if !ok || !end {
		t.Fatal("no table between its markers")
	}
	var columns []string
	table := map[string]map[string]string{}
	for line := range strings.Lines(part) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|-") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if columns == nil {
			columns = cells
			continue
		}
		if len(cells) != len(columns) || table[cells[0]] != nil {
			t.Fatalf("row %q", line)
		}
		row := map[string]string{}
		for i, cell := range cells[1:] {
			if !regexp.MustCompile(`^(yes|no|ended: [a-z_]+)$`).MatchString(cell) {
				t.Errorf("%s, %s: %q", cells[0], columns[i+1], cell)
			}
			row[columns[i+1]] = cell
		}
		table[cells[0]] = row
	}
	for _, column := range []string{disconnects, killsGateway, upgrades, stops, killsKeeper, reboots} {
		if len(columns) != 7 || table["cwd, variables, functions"][column] == "" {
			t.Fatalf("columns %q", columns)
		}
	}
	return table
}

// alive tells whether a connection has not ended; each column ends it, and we may hear of that late.
func alive(c *rig.Client) bool {
	select {
	case <-c.Done:
		return false
	case <-time.After(testkit.Patience):
		return true
	}
}

// reason is why a session that was watched ended, "" if nobody said.
func reason(c *rig.Client) string {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, f := range c.Came {
		if f.Event == "session.state" && f.Data.Str("to") == "TERMINATED" {
			return f.Data.Str("reason")
		}
	}
	return ""
}

func TestEverythingSurvivesAsDocumented(t *testing.T) {
	table := documented(t)
	for _, tier := range rig.Tiers {
		for _, column := range []string{disconnects, killsGateway, upgrades, stops, killsKeeper} {
			t.Run(tier+", "+strings.ReplaceAll(column, "`", ""), func(t *testing.T) {
				t.Parallel()
				if column == upgrades && !canUpgrade() {
					t.Skip("not run: this trl has no `trl upgrade`")
				}
				testColumn(t, table, tier, column)
			})
		}
	}
}

func testColumn(t *testing.T, table map[string]map[string]string, tier, column string) {
	g, err := rig.StartGateway("--isolation", tier)
	if err != nil {
		t.Fatal(err)
	}
	if column == killsKeeper { // its end is no good one
		t.Cleanup(func() { _ = g.Stop() })
	} else {
		g.EndWith(t)
	}
	w := makeWorld(t, g)
	t.Cleanup(func() {
		_ = os.WriteFile(w.path("never"), nil, 0o600)
		for _, pid := range append(rig.Running(w.nap), rig.Running(w.short)...) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	after, conn := w.doColumn(t, tier, column)
	got := w.look(t, after, conn)
	for row, cells := range table {
		if got[row] == "" {
			t.Errorf("nobody looks at %q", row)
		} else if got[row] != cells[column] {
			t.Errorf("%s: %s is in the table, %s is true", row, cells[column], got[row])
		}
		delete(got, row)
	}
	for row := range got {
		t.Errorf("not in the table: %s", row)
	}
	if column == stops || column == killsKeeper {
		testkit.Eventually(t, "nothing runs any more", func() bool { return len(rig.Running(w.nap)) == 0 && len(rig.Running(w.short)) == 0 })
	}
}

// canUpgrade tells whether this trl can be upgraded while it runs.
func canUpgrade() bool {
	out, err := exec.Command(rig.Binary, "--help").Output()
	return err == nil && regexp.MustCompile(`(?m)^\s+upgrade\b`).Match(out)
}

// installed is a server of a program file that can be replaced: put installs another one under its name, upgrade asks for it.
func installed(t *testing.T, flags ...string) (g *rig.Server, program string, put func(from string), upgrade func() (string, error)) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "trl")
	put = func(from string) { // as an installation does: another file of the same name
		t.Helper()
		// By another program: what we have open for writing a child of another test may inherit for a moment, and who
		// executes it then is told that it is busy.
		out, err := exec.Command("cp", from, program+".new").CombinedOutput()
		if err == nil {
			err = errors.Join(os.Chmod(program+".new", 0o700), os.Rename(program+".new", program))
		}
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	put(rig.Binary)
	g, err := rig.Launch(func(c *exec.Cmd) { c.Path = program }, flags...)
	if err != nil {
		t.Fatal(err)
	}
	g.EndWith(t)
	return g, program, put, func() (string, error) {
		out, err := exec.Command(rig.Binary, "upgrade", "--state-dir", filepath.Join(g.Dir, "state")).CombinedOutput()
		return string(out), err
	}
}

// An upgrade replaces the keeper, too: the same process, another program, and all that it kept.
func TestKeeperIsReplacedInPlace(t *testing.T) {
	for _, tier := range rig.Tiers {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g, program, put, upgrade := installed(t, "--isolation", tier, "--retention", "1s")
			cgroup := g.CgroupDir(t)
			if out, err := upgrade(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			g.KillGateway(t)
			c := g.Redial(t)
			c.Call("session.destroy", object{"session_id": c.Session(), "force": true}) // all is loaded
			testkit.Eventually(t, "warm, and what has ended forgotten", func() bool { return g.Metric(t, "trl_warm_shells") == 4 && g.Metric(t, "trl_sessions") == 0 })
			before := g.Counts(t, cgroup)
			s, nap := c.Session(), rig.Sleeper()
			c.Run(s, "v=kept; "+nap+" & (setsid "+nap+" &)")
			p := c.Call("process.start", object{"session_id": s, "command": "trap '' TERM; cat; exit 3", "stdin": "open"}).Str("process_id")
			limited := c.Limits(object{"open_files": 77})
			s2 := c.Session(object{"limits": limited})
			x := c.Stream(s2, "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo o$i; done; read line; echo $line; ulimit -n; exit 7", object{"interactive_stdin": true})
			gone := c.Session()
			c.Call("session.destroy", object{"session_id": gone})
			for range 3 {
				put(rig.Binary)
				if out, err := upgrade(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				installed, err := os.Stat(program)
				runs, e := os.Stat(fmt.Sprintf("/proc/%d/exe", g.Pid))
				if err = errors.Join(err, e); err != nil || !os.SameFile(installed, runs) {
					t.Errorf("the keeper is not what is installed: %v", err)
				}
				g.KillGateway(t) // and the new keeper keeps
				c = g.Redial(t)
				rig.Expect(t, c.Run(s, "echo $v; if [ $PPID != 0 ]; then { kill -TERM $PPID; kill -HUP $PPID; } 2>/dev/null; fi; :"), 0, "kept\n", "")
			}
			if len(rig.Running(nap)) != 2 {
				t.Errorf("%d of two jobs run", len(rig.Running(nap)))
			}
			// Asked for before their end: a second after it they are forgotten.
			exited := c.Begin("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
			done := c.Begin("exec.wait", object{"exec_id": x.Str("exec_id"), "offset": 0, "timeout_s": 60})
			c.Call("process.input", object{"process_id": p, "data": "in", "eof": true})
			if f := c.Answer(exited); f.Data.Num("exit_code") != 3 {
				t.Errorf("%v %v", f.Data, f.Error)
			}
			c.Call("exec.input", object{"exec_id": x.Str("exec_id"), "data": "last\n"})
			r := c.Answer(done).Data
			lines := counter{prefix: "o"}
			text, rest, _ := strings.Cut(r.Stdout(), "last\n")
			if err := lines.take(text); err != nil || lines.next != 3000 || r.Num("exit_code") != 7 {
				t.Errorf("%d lines, %v, %v", lines.next, err, rig.Brief(fmt.Sprint(r)))
			}
			if limited.Has("open_files") && rest != "77\n" {
				t.Errorf("the limit is %q", rest)
			}
			for _, s := range []string{s, s2} {
				c.Call("session.destroy", object{"session_id": s, "force": true})
			}
			if left := rig.Running(nap); len(left) > 0 {
				t.Errorf("left %v", left)
			}
			c.Close()
			testkit.Eventually(t, "what has ended is forgotten", func() bool { return g.Metric(t, "trl_sessions") == 0 })
			if n := g.Metric(t, "trl_signals_ignored_total"); n < 6 && len(rig.FlagsOfAll) == 0 && !signalsAreFiltered(g.Pid) {
				t.Errorf("%v signals from inside ignored", n)
			}
			g.AwaitBaseline(t, cgroup, before)
		})
	}
}

// What shells open in the keeper is there at every moment of an upgrade: a command that is not read has not run, and a report
// that is not written is not heard.
func TestKeeperIsNeverAway(t *testing.T) {
	if !canUpgrade() {
		t.Skip("not run: this trl has no `trl upgrade`")
	}
	g, _, put, upgrade := installed(t, "--warm", "0")
	c := g.Dial(t)
	c.Run(c.Session(), ":")
	held := rig.Descriptor(t, g.Pid, "/memfd:trl-ledger")
	var stop atomic.Bool
	var opener sync.WaitGroup
	opened, failed := 0, 0
	opener.Go(func() {
		for !stop.Load() {
			opened++
			fd, err := syscall.Open(held, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
			if err != nil {
				failed++
				continue
			}
			syscall.Close(fd)
		}
	})
	for range 5 {
		put(rig.Binary)
		if out, err := upgrade(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	stop.Store(true)
	opener.Wait()
	if failed > 0 {
		t.Errorf("%d of %d opens failed", failed, opened)
	}
}

// A gateway that dies as the keeper is about to be replaced is a gateway that died, and no more.
func TestGatewayMayDieBeforeTheKeeperIsReplaced(t *testing.T) {
	if !canUpgrade() {
		t.Skip("not run: this trl has no `trl upgrade`")
	}
	g := rig.Gateway(t, "--warm", "0")
	s := g.Dial(t).Session()
	ctx, cancel := context.WithTimeout(t.Context(), 5*testkit.Patience)
	defer cancel()
	w := &worker{Again: rig.Again{G: g}, ctx: ctx} // an upgrade that was asked for again may meet a command
	defer w.drop()
	for n := range 10 {
		old := g.Serving(t)
		next, asked := 0, time.Time{}
		testkit.Eventually(t, "the next one has it all", func() bool {
			if time.Since(asked) > time.Second { // Again: one upgrade is refused while another is not over
				asked = time.Now()
				_ = syscall.Kill(g.Pid, syscall.SIGHUP)
			}
			next = g.GatewayPid()
			return next != 0 && next != old
		})
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)                         // while the keeper asks the program whether it would follow
		if err := syscall.Kill(next, syscall.SIGKILL); err != nil && err != syscall.ESRCH { // ESRCH: an upgrade that was asked for again has replaced it
			t.Fatal(err)
		}
		testkit.Eventually(t, "another serves", func() bool { pid := g.GatewayPid(); return pid != 0 && pid != next })
		rig.Expect(t, w.sure("exec.run", object{"session_id": s, "command": "V=$((V+1)); [ $V -gt 0 ]", "request_key": fmt.Sprint(n)}), 0, "", "")
	}
	rig.Expect(t, w.sure("exec.run", object{"session_id": s, "command": "echo $V"}), 0, "10\n", "")
}

// What ends at the very moment in which the keeper is replaced is known to have ended, and how.
func TestEndsDuringAnUpgradeAreReported(t *testing.T) {
	if !canUpgrade() {
		t.Skip("not run: this trl has no `trl upgrade`")
	}
	g, _, put, upgrade := installed(t, "--warm", "0")
	c := g.Dial(t)
	s := c.Session()
	var started []string
	for i := range 200 {
		command := fmt.Sprintf("sleep %.3f; exit %d", 0.5+2*rand.Float64(), i)
		started = append(started, c.Call("process.start", object{"session_id": s, "command": command}).Str("process_id"))
	}
	for range 8 {
		put(rig.Binary)
		if out, err := upgrade(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	c = g.Redial(t)
	for i, p := range started {
		if code := c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}}).Num("exit_code"); code != i {
			t.Errorf("process %d ended with %d", i, code)
		}
	}
}

// A program that does not come up leaves the old gateway serving, as it was.
func TestProgramThatDoesNotStartIsNotUpgradedTo(t *testing.T) {
	if !canUpgrade() {
		t.Skip("not run: this trl has no `trl upgrade`")
	}
	g, _, put, upgrade := installed(t)
	c, old := g.Dial(t), g.GatewayPid()
	s := c.Session()
	rig.Expect(t, c.Run(s, "V=kept"), 0, "", "")
	for _, bad := range []string{"/bin/true", "/bin/false", "/dev/null"} { // /dev/null: an empty file, which cannot be executed
		put(bad)
		if out, err := upgrade(); err == nil || !strings.Contains(out, "upgrade refused") {
			t.Errorf("%s: %v %s", bad, err, out)
		}
		rig.Expect(t, c.Run(s, "echo $V"), 0, "kept\n", "") // on the same connection
		if pid := g.GatewayPid(); pid != old {
			t.Errorf("%s: gateway %d, was %d", bad, pid, old)
		}
	}
	put(rig.Binary)
	if out, err := upgrade(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	testkit.Eventually(t, "the old one has gone", func() bool { pid := g.GatewayPid(); return pid != 0 && pid != old })
	rig.Expect(t, g.Dial(t).Run(s, "echo $V"), 0, "kept\n", "")
}
