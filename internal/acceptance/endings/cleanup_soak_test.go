//go:build soak

package endings

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// recyclePID makes a sleeping process of ours with the number of one that is gone. It lives until the test ends.
func recyclePID(t *testing.T, pid int) (alive func() bool) {
	t.Helper()
	testkit.Eventually(t, "the number is free", func() bool { _, _, _, ok := rig.ProcStat(pid); return !ok })
	for range 2000 { // others fork meanwhile
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Skipf("numbers cannot be chosen here: %v", err)
		}
		cmd := exec.Command("sleep", "300")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if cmd.Process.Pid != pid {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			continue
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return func() bool { state, _, _, ok := rig.ProcStat(pid); return ok && state != 'Z' }
	}
	t.Skip("the number was never ours")
	return nil
}

// G5: who gets the number of a process that is gone gets none of its signals. The test turns the machine's pid counter back, which hands
// numbers to other tests' processes, so it must run alone. runtime's tests cover the pinning.
func TestRecycledPIDGetsNoSignal(t *testing.T) {
	eachTier(t, func(t *testing.T, g *rig.Server, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		x := c.Stream(s, `exec sh -c 'echo $$; exit 3'`) // the shell itself ends with it and is put back
		text, _ := c.Output(x.Str("stream_id"), 0)
		p := c.Call("process.start", object{"session_id": s, "command": "exit 3"})
		rig.AwaitExit(c, p.Str("process_id"))
		job := c.Run(s, "sleep 0.01 & echo $!")
		var strangers []func() bool
		numbers := []string{strings.TrimSpace(text), strconv.Itoa(p.Num("pid")), strings.TrimSpace(job.Stdout())}
		for _, number := range numbers {
			pid, err := strconv.Atoi(number)
			if err != nil {
				t.Fatalf("no number: %q", number)
			}
			testkit.Eventually(t, "it is gone", func() bool { c.Run(s, "wait; /bin/true"); _, _, _, ok := rig.ProcStat(pid); return !ok }) // dash reaps its jobs only then
			strangers = append(strangers, recyclePID(t, pid))
		}
		for _, q := range []object{{}, {"signal": "KILL"}, {"kill_grace_s": 0}} {
			c.Call("exec.cancel", rig.With(q, object{"exec_id": x.Str("exec_id")}))
			c.Call("process.kill", rig.With(q, object{"process_id": p.Str("process_id")}))
		}
		if r := c.Run(s, "sleep 10", object{"timeout_s": 0.1, "kill_grace_s": 0}); !r.Yes("timed_out") {
			t.Errorf("%v", r)
		}
		c.Call("session.destroy", object{"session_id": s, "force": true})
		for i, alive := range strangers {
			if !alive() {
				t.Errorf("stranger %d was killed", i)
			}
		}
	})
}
