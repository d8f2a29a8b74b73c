package survival

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// restPoints are the crash points of a shell that drops files and gets them back.
var restPoints = []string{"before a shell at rest drops files", "when a waking shell has files again", "before an archived snapshot is released"}

// TestRestSurvivesDeathsAnywhere: the gateway is killed at each crash point of one shell's waking, of its command, and of another shell's rest. Every session
// then has its state, and keeps it when its shell dies; also if shell and gateway die while it rests.
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
			var whole []string // the points of a round in which nothing died; nil: not known
			since := time.Now()
			for n, aimed := 1, 0; ; {
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
				if all := trace(); g.Serving(t) != was {
					diedAt[all[len(all)-1]]++
				} else {
					whole = all[points:]
				}
				for i, s := range ids { // the first are those that rest next
					w.ran(w.sure("exec.run", object{"session_id": s, "request_key": fmt.Sprint("c", n, i), "command": "echo $V"}), 0, fmt.Sprintln(i))
				}
				last := len(ids) - 1
				if r := w.sure("exec.run", object{"session_id": ids[last], "request_key": fmt.Sprint("d", n), "command": "kill -9 $$"}); r.Has("state_lost") && len(r["state_lost"].([]any)) > 0 {
					t.Errorf("killed at %d: %v", n, r)
				}
				w.ran(w.sure("exec.run", object{"session_id": ids[last], "command": "echo $V"}), 0, fmt.Sprintln(last))
				if n++; whole == nil {
					continue
				}
				missing := slices.IndexFunc(restPoints, func(p string) bool { return diedAt[p] == 0 })
				if missing < 0 {
					break
				}
				if n = 1 + slices.Index(whole, restPoints[missing]); n == 0 {
					n, whole = 1000, nil // none dies, and the points are known again
				} else {
					n = max(1, n+aimed%5-2) // no two rounds are alike
					aimed++
				}
			}
			t.Log(diedAt)

			points := len(trace())
			if err := os.WriteFile(arm, []byte("100000"), 0o600); err != nil {
				t.Fatal(err)
			}
			pids := map[string]int{}
			for i, s := range ids {
				w.ran(w.sure("exec.run", object{"session_id": s, "command": fmt.Sprint("V=rested", i)}), 0, "")
				pids[s] = w.sure("session.info", object{"session_id": s}).Num("pid")
			}
			rested := ids[:len(ids)-ready]
			testkit.Eventually(t, "the first shells rest", func() bool {
				all := trace()
				return strings.Count(strings.Join(all[min(points, len(all)):], "\n"), restPoints[0]) >= len(rested)
			})
			for _, victim := range []int{g.Serving(t), pids[rested[0]], pids[rested[1]]} {
				if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			for i, s := range rested {
				r := w.sure("exec.run", object{"session_id": s, "command": "echo $V"})
				if w.ran(r, 0, fmt.Sprintf("rested%d\n", i)); !r.Yes("shell_restored") || r.Has("state_lost") {
					t.Errorf("after the deaths of shell and gateway: %v", r)
				}
			}
		})
	}
}
