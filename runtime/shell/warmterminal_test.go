package shell

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/descriptor"
	"trl/runtime/journal"
	"trl/runtime/procfs"
	"trl/runtime/stream"
)

// report prints what a program in a terminal can find out about its shell.
const report = `{ pwd; declare -p PWD OLDPWD SHLVL HOME; env | sort; set -o; shopt; compgen -v | sort; declare -F; alias; trap; stty -a; echo $COLUMNS $LINES
echo $- $0 $#; ulimit -a | grep -v locks; umask; ls /proc/$$/fd; grep -E '^Sig(Blk|Ign|Cgt)' /proc/$$/status; jobs; ps -o stat= -p $$; tty | sed "s/[0-9]*$//"; [ $SECONDS -lt 600 ]; echo $?; } >%s 2>&1; exit`

// A terminal that was started in advance is like one that was not, and its start asks the keeper for nothing.
func TestWarmTerminal(t *testing.T) {
	h := testHost(t, "auto")
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".bashrc"), []byte("BASHRC=\"$PWD $(stty size) $OLDPWD\"; export BASHRC\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/", "/usr/bin/.."} {
		for _, size := range [][2]int{{80, 24}, {133, 7}} {
			reports := [2]string{}
			for i := range reports {
				s := openSession(t, h, "/bin/bash")
				s.cfg.Env = append(slices.Clone(s.cfg.Env), "HOME="+home)
				if s.currentGroup().UsesFIFOs() {
					t.Skip("a bash opens its startup file by name")
				}
				if warm := i == 1; warm {
					if err := s.StartWarmTerminal(); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.Setup(dir, nil); err != nil {
					t.Fatal(err)
				}
				term, g := openCounted(t, s, TerminalSpec{Cols: size[0], Rows: size[1], Nonce: "n0", Journal: journal.New(1 << 20)})
				if want := [][]string{{"start"}, nil}[i]; !slices.Equal(g.requests, want) {
					t.Errorf("requests: %q, want %q", g.requests, want)
				}
				file := filepath.Join(t.TempDir(), "report")
				if _, err := term.Input(stream.Anywhere, []byte(strings.ReplaceAll(report, "%s", file)+"\n")); err != nil {
					t.Fatal(err)
				}
				<-term.Exited()
				term.Release()
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				reports[i] = strings.ReplaceAll(string(text), s.cfg.ID, "ID")
			}
			if reports[0] != reports[1] {
				t.Errorf("in %s, %v:\n%s", dir, size, differences(reports[0], reports[1]))
			}
		}
	}
}

// differences returns the lines that only one of two texts has.
func differences(a, b string) (all string) {
	is, isNot := strings.Split(b, "\n"), strings.Split(a, "\n")
	for _, line := range isNot {
		if !slices.Contains(is, line) {
			all += "usual: " + line + "\n"
		}
	}
	for _, line := range is {
		if !slices.Contains(isNot, line) {
			all += "warm:  " + line + "\n"
		}
	}
	return all
}

// A warm terminal that cannot be what is asked for ends, and the terminal is started as usual.
func TestWarmTerminalThatDoesNotFit(t *testing.T) {
	h := testHost(t, "auto")
	value := "two words"
	for name, c := range map[string]struct {
		before func(*session)
		spec   TerminalSpec
		say    string
	}{
		"state":     {func(s *session) { s.want("export V='two words'; cd /usr", "") }, TerminalSpec{}, `echo "=$V=$PWD="`},
		"variables": {nil, TerminalSpec{Env: map[string]*string{"V": &value}, Dir: "/usr"}, `echo "=$V=$PWD="`},
		"command":   {func(s *session) { s.want("export V='two words'; cd /usr", "") }, TerminalSpec{Text: `echo "=$V=$PWD="`}, ""},
		"dead": {func(s *session) {
			_ = unix.Kill(s.warmTerminal.Load().Child.Pid(), unix.SIGKILL)
			<-s.warmTerminal.Load().Child.Exited()
			s.want("export V='two words'; cd /usr", "")
		}, TerminalSpec{}, `echo "=$V=$PWD="`},
	} {
		t.Run(name, func(t *testing.T) {
			s := openSession(t, h, "/bin/bash")
			if err := s.StartWarmTerminal(); err != nil {
				t.Fatal(err)
			}
			w := s.warmTerminal.Load()
			if w == nil {
				t.Skip("this tier has no warm terminals")
			}
			if c.before != nil {
				c.before(s)
			}
			c.spec.Cols, c.spec.Rows, c.spec.Journal = 80, 24, journal.New(1<<20)
			printed := collect(c.spec.Journal)
			term, err := s.PrepareTerminal(c.spec)
			if err != nil {
				t.Fatal(err)
			}
			term.Start()
			<-w.Child.Exited()
			if term.Pid() == w.Child.Pid() {
				t.Error("the warm one")
			}
			if c.say != "" {
				if _, err := term.Input(stream.Anywhere, []byte(c.say+"; exit\n")); err != nil {
					t.Fatal(err)
				}
			}
			<-term.Exited()
			term.Release()
			if !strings.Contains(printed(), "=two words=/usr=") {
				t.Errorf("%q", printed())
			}
		})
	}
}

// A warm terminal that nobody asks for ends with a rest, a reset or the end of its session, and leaves nothing.
func TestWarmTerminalThatIsNotUsed(t *testing.T) {
	h := testHost(t, "auto")
	for name, end := range map[string]func(*session){
		"rest":  func(s *session) { s.Rest() },
		"reset": func(s *session) { _ = s.Reset(s.t.Context(), "/", s.cfg.Env) },
		"close": func(s *session) { _ = s.Close(0); s.Forget() },
	} {
		t.Run(name, func(t *testing.T) {
			openFiles := func() int { return len(descriptor.NumbersIn("/proc/self/fd")) }
			first := openSession(t, h, "/bin/bash") // what all sessions share is open from now on
			if err := first.Close(0); err != nil {
				t.Fatal(err)
			}
			first.Forget()
			before := openFiles()
			s := openSession(t, h, "/bin/bash")
			idle := openFiles()
			if err := s.StartWarmTerminal(); err != nil {
				t.Fatal(err)
			}
			w := s.warmTerminal.Load()
			if w == nil {
				t.Skip("this tier has no warm terminals")
			}
			end(s)
			<-w.Child.Exited()
			most := idle
			if name == "close" {
				most = before
			}
			testkit.Eventually(t, "no more descriptors than before", func() bool { return openFiles() <= most })
		})
	}
}

// The bash of a warm terminal has read no file of the user's, and waits.
func TestWarmTerminalWaits(t *testing.T) {
	h := testHost(t, "auto")
	home := t.TempDir()
	ran := filepath.Join(home, "ran")
	if err := os.WriteFile(filepath.Join(home, ".bashrc"), []byte("echo \"$PWD\" >"+ran+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openSession(t, h, "/bin/bash")
	s.cfg.Env = append(slices.Clone(s.cfg.Env), "HOME="+home)
	if err := s.StartWarmTerminal(); err != nil {
		t.Fatal(err)
	}
	w := s.warmTerminal.Load()
	if w == nil {
		t.Skip("this tier has no warm terminals")
	}
	testkit.Eventually(t, "bash waits for its startup file", func() bool {
		text, _ := os.ReadFile(procfs.Path(w.Child.Pid(), "/wchan"))
		st, _ := procfs.Read(w.Child.Pid())
		return st.State == 'S' && !st.BeforeExec && (bytes.Contains(text, []byte("pipe")) || len(text) < 2)
	})
	if _, err := os.Stat(ran); err == nil {
		t.Error("the user's startup file has run")
	}
	if err := s.Setup("/usr", nil); err != nil {
		t.Fatal(err)
	}
	term, err := s.PrepareTerminal(TerminalSpec{Cols: 80, Rows: 24, Nonce: "n0", Journal: journal.New(1 << 20)})
	if err != nil {
		t.Fatal(err)
	}
	if term.Pid() != w.Child.Pid() {
		t.Error("another bash")
	}
	testkit.Eventually(t, "the user's startup file has run in the terminal's directory", func() bool {
		text, _ := os.ReadFile(ran)
		return string(text) == "/usr\n"
	})
	if err := term.Close(t.Context(), 0); err != nil {
		t.Error(err)
	}
	term.Release()
}
