package shell

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/runtime/host"
	"trl/runtime/journal"
)

// TestEveryShellOfAnotherUser: each kind of shell can open its files by name as another user, and its state is restored.
func TestEveryShellOfAnotherUser(t *testing.T) {
	testkit.StartsProcesses(t)
	h := newHost(t, host.Config{SessionUser: &stranger})
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			if name == "ash" { // the link ash is in a directory that the other user may not enter
				dir := testkit.Passable(t)
				if err := os.Rename(path, filepath.Join(dir, "ash")); err != nil {
					t.Fatal(err)
				}
				path = filepath.Join(dir, "ash")
			}
			s := openSession(t, h, path)
			run := func(text, stdin, want string) {
				t.Helper()
				c := NewCommand(text)
				c.Stdin = []byte(stdin)
				if r := s.wait(s.start(c)); r.out != want || r.Err != nil {
					t.Errorf("%s: %q, want %q; %v", text, r.out, want, r.Outcome)
				}
			}
			run("v=kept; cd /usr; id -u", "", "64123\n")
			run("cat; echo $v", "in\n", "in\nkept\n")
			run("cat", strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20))
			run("echo a >/dev/stdout; pwd", "", "a\n/usr\n")
			run("kill -9 $$", "", "")
			run("echo $v; pwd; cat", "again", "kept\n/usr\nagain")
		})
	}
}

// BenchmarkCommandBySession is BenchmarkCommand for several kinds of sessions.
func BenchmarkCommandBySession(b *testing.B) {
	for _, way := range []struct {
		name string
		c    host.Config
	}{{"plain", host.Config{}}, {"user", host.Config{SessionUser: &stranger}}, {"fenced", host.Config{WritableDirs: []string{"/tmp"}}}} {
		for _, sh := range []string{"sh", "bash"} {
			for what, stdin := range map[string]string{"": "", "+stdin": "x\n"} {
				b.Run(way.name+"/"+sh+what, func(b *testing.B) {
					s := openSession(b, newHost(b, way.c), shells(b)[sh])
					for b.Loop() {
						c := NewCommand(":")
						c.Journal, c.Stdin = journal.New(1<<20), []byte(stdin)
						if o := s.Run(c); o.Code != 0 || o.Err != nil {
							b.Fatal(o)
						}
					}
				})
			}
			b.Run(way.name+"/"+sh+"+start", func(b *testing.B) {
				h := newHost(b, way.c)
				for b.Loop() {
					s := openSession(b, h, shells(b)[sh])
					if err := s.Close(0); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
