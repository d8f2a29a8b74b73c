package survival

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// restPoints are the crash points of a shell that drops files and gets them back.
var restPoints = []string{"before a shell at rest drops files", "when a waking shell has files again"}

// TestRestSurvivesDeathsAnywhere: the gateway is killed at each crash point of one shell's waking, of its command, and of another shell's rest. Every session
// then has its state, and keeps it when its shell dies.
func TestRestSurvivesDeathsAnywhere(t *testing.T) {
	t.Parallel()
	program, err := rig.Crashing()
	if err != nil {
		t.Fatal(err)
	}
	const ready = 4 // the fewest shells that may be ready
	for _, shell := range []string{"/bin/bash", "/bin/dash", "/bin/zsh", "/bin/busybox"} {
		if _, err := os.Stat(shell); err != nil {
			t.Logf("%s: not here", shell)
			continue
		}
		t.Run(filepath.Base(shell), func(t *testing.T) {
			t.Parallel()
			arm := filepath.Join(t.TempDir(), "arm")
			prlimit, err := exec.LookPath("prlimit")
			if err != nil {
				t.Skip(err)
			}
			g := rig.StartTuned(t, func(c *exec.Cmd) {
				c.Path, c.Args = prlimit, append([]string{"prlimit", fmt.Sprint("--nofile=", 100*ready), program}, c.Args[1:]...)
				c.Env = append(c.Env, "TRL_CRASH="+arm)
			}, "--warm", "0")
			ctx, cancel := context.WithTimeout(t.Context(), 10*testkit.Patience)
			defer cancel()
			w := &worker{Again: rig.Again{G: g}, ctx: ctx, name: "rest"}
			defer w.drop()
			trace := func() []string {
				text, _ := os.ReadFile(arm + ".trace")
				return strings.Split(strings.TrimSpace(string(text)), "\n")
			}
			var ids []string
			for i := range ready + 2 {
				ids = append(ids, w.sure("session.create", object{"shell": shell}).Str("session_id"))
				w.ran(w.sure("exec.run", object{"session_id": ids[i], "command": fmt.Sprintf("V=%d", i)}), 0, "")
			}
			diedAt := map[string]int{}
			since := time.Now()
			for n := 1; ; n++ {
				was, points := g.Serving(t), len(trace())
				time.Sleep(time.Until(since.Add(keeperCalm))) // else the keeper waits before it starts the next one
				if err := os.WriteFile(arm, fmt.Append(nil, n), 0o600); err != nil {
					t.Fatal(err)
				}
				w.ran(w.sure("exec.run", object{"session_id": ids[0], "request_key": fmt.Sprint("k", n), "command": "echo $V"}), 0, "0\n")
				passed := false
				testkit.Eventually(t, "another shell rests, or the gateway dies", func() bool {
					all := trace()
					passed = len(all) > points && strings.Contains(strings.Join(all[min(points, len(all)):], "\n"), restPoints[0])
					return passed || g.Serving(t) != was
				})
				since = time.Now()
				_ = os.Remove(arm)
				died := g.Serving(t) != was
				if died {
					all := trace()
					diedAt[all[len(all)-1]]++
				}
				for i, s := range ids { // the first are those that rest next
					w.ran(w.sure("exec.run", object{"session_id": s, "request_key": fmt.Sprint("c", n, i), "command": "echo $V"}), 0, fmt.Sprintln(i))
				}
				last := len(ids) - 1
				if r := w.sure("exec.run", object{"session_id": ids[last], "request_key": fmt.Sprint("d", n), "command": "kill -9 $$"}); r.Has("state_lost") && len(r["state_lost"].([]any)) > 0 {
					t.Errorf("killed at %d: %v", n, r)
				}
				w.ran(w.sure("exec.run", object{"session_id": ids[last], "command": "echo $V"}), 0, fmt.Sprintln(last))
				if diedAt[restPoints[0]] > 0 && diedAt[restPoints[1]] > 0 {
					break
				}
				if n == 40 {
					n = 0
				}
			}
			t.Log(diedAt)
		})
	}
}
