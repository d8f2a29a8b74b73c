package shell

import (
	"slices"
	"testing"
)

func TestStateGoesOnInAnotherShell(t *testing.T) {
	h := testHost(t, "auto")
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from, to := openSession(t, h, path), openSession(t, h, path)
			from.want("cd /usr; A='a b'; export B=c; alias l='ls -l'; set -o noglob; umask 027; trap 'echo usr1' USR1", "")
			functions := from.proc().dialect.ListsFunctions
			if functions {
				from.want("f() { echo \"f $1\"; }", "")
			}
			to.want("C=lost", "") // it is not fresh any more
			state, lost, err := from.State()
			if err != nil || len(lost) > 0 || state == nil {
				t.Fatalf("state of %d bytes, lost %v, %v", len(state), lost, err)
			}
			pid := to.Pid()
			if lost, err := to.TakeState(state); err != nil || len(lost) > 0 {
				t.Fatalf("lost %v, %v", lost, err)
			}
			if to.Pid() == pid {
				t.Error("the shell is the same")
			}
			for _, s := range []*session{from, to} { // the first one goes on, too
				s.want("pwd; echo $A $B $C; umask -S; sh -c 'echo $B'; echo /b*n", "/usr\na b c\nu=rwx,g=rx,o=\nc\n/b*n\n")
				s.want("alias l", map[bool]string{true: "alias l='ls -l'\n", false: "l='ls -l'\n"}[from.Name() == "bash"])
				s.want("kill -USR1 $$; :", "usr1\n")
				if functions {
					s.want("f x", "f x\n")
				}
			}
			if r := to.run("exit 3"); !r.Restored || r.Code != 3 {
				t.Error(r.Outcome)
			}
			to.want("echo $A", "a b\n")

			if !functions {
				from.want("f() { echo f; }", "")
				if _, lost, err := from.State(); err != nil || !slices.Equal(lost, []string{"functions"}) {
					t.Errorf("lost %v, %v", lost, err)
				}
			}
		})
	}
}

// The state of a shell that has run nothing is that of any fresh shell.
func TestFreshStateIsNone(t *testing.T) {
	h := testHost(t, "auto")
	path := shells(t)["bash"]
	from, to := openSession(t, h, path), openSession(t, h, path)
	state, lost, err := from.State()
	if state != nil || lost != nil || err != nil {
		t.Errorf("%q, lost %v, %v", state, lost, err)
	}
	if lost, err := to.TakeState(state); lost != nil || err != nil {
		t.Errorf("lost %v, %v", lost, err)
	}
	to.want("pwd", "/\n")
	if err := from.Close(0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := from.State(); err != ErrShellGone {
		t.Errorf("of a closed shell: %v", err)
	}
}
