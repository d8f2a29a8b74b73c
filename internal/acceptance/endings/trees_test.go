package endings

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// A kind is a kind of process tree that is hard to end, as a script for sh. $1 is its mark: a number for sleep that is in
// the command line of each of its processes and in no other. $2 is its gate: who forks without end does so only while
// that file is there, and at most 20,000 times. It makes $2.up when it has done its worst, and then stays.
type kind struct {
	name, text string
	least      int // Processes with the mark when it is up; of those that come and go, what stays
}

const deaf = "trap '' TERM INT HUP\n"

var kinds = []kind{
	{"plain", deaf + `sleep $1 & sleep $1 & : >$2.up; sleep $1; :`, 4},
	{"setsid", deaf + `setsid sleep $1 & setsid sh -c 'sleep '$1'; :' & : >$2.up; sleep $1; :`, 5},
	// Forked twice, in a session of its own, with no environment, nothing open, and a parent that is gone.
	{"daemon", deaf + `(env -i setsid /bin/sh -c "/bin/sleep $1 & /bin/sleep $1; :" <&- >&- 2>&- &)
		: >$2.up; sleep $1; :`, 5},
	{"group", `exec bash -c 'trap "" TERM INT HUP; set -m; for i in 1 2 3; do sleep $1 & done; (sleep $1 & exec sleep $1) & : >$2.up; sleep $1; :' tree $1 $2`, 7},
	// Nobody here lives longer than a moment: each starts the next, in a session of its own without environment, and goes.
	{"storm", deaf + `hop='[ -e "$2" ] && [ $3 -lt 20000 ] || exit; /usr/bin/env -i /usr/bin/setsid /bin/sh -c "$0" "$0" "$1" "$2" $(($3+1)) & exit'
		for i in 1 2 3; do setsid sh -c "$hop" "$hop" $1 $2 0 & done
		: >$2.up; sleep $1; :`, 2},
	{"churn", deaf + `turn='n=0; while [ -e "$2" ] && [ $n -lt 20000 ]; do n=$((n+1)); sleep 0.002 &
			case $((n%3)) in 0) setsid sh -c "sleep 0.003 & sleep 0.001; :" x $1 & ;; 1) (sleep 0.004 &) ;; esac; wait; done'
		for i in 1 2; do sh -c "$turn" "$turn" $1 $2 & setsid sh -c "$turn" "$turn" $1 $2 & done
		: >$2.up; sleep $1; :`, 6},
	{"deep", deaf + `dig='if [ $3 = 0 ]; then : >$2.up; elif [ $(($3 % 8)) = 0 ]; then setsid sh -c "$0" "$0" $1 $2 $(($3-1)) &
			else sh -c "$0" "$0" $1 $2 $(($3-1)) & fi; sleep $1; :'
		sh -c "$dig" "$dig" $1 $2 30`, 62},
	{"many", deaf + `i=0; while [ $i -lt 600 ]; do i=$((i+1)); sleep $1 & done; : >$2.up; sleep $1; :`, 602},
}

// A tree is one of a kind.
type tree struct {
	kind
	mark, gate, command string
}

// plant writes the script; grown says whether it has done its worst. Whatever is left of it ends with the test.
func plant(t testing.TB, g *rig.Server, k kind) *tree {
	t.Helper()
	mark := strings.TrimPrefix(rig.Sleeper(), "sleep ")
	tr := &tree{kind: k, mark: mark, gate: filepath.Join(g.Dir, "gate-"+mark)}
	script := tr.gate + ".sh"
	for file, text := range map[string]string{tr.gate: "", script: k.text + "\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tr.command = fmt.Sprintf("sh %s %s %s", script, mark, tr.gate)
	t.Cleanup(tr.fell)
	return tr
}

// uproot removes its files. Who forks without end ends then.
func (tr *tree) uproot() {
	for _, file := range []string{tr.gate, tr.gate + ".up", tr.gate + ".sh"} {
		_ = os.Remove(file)
	}
}

// fell ends it from outside: what a test that has failed has left.
func (tr *tree) fell() {
	tr.uproot()
	for range 1000 {
		left := tr.alive()
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func (tr *tree) grown() bool {
	_, err := os.Stat(tr.gate + ".up")
	return err == nil && len(tr.alive()) >= tr.least
}

// alive lists its processes, without zombies.
func (tr *tree) alive() []int { return testkit.Alive(tr.mark) }
