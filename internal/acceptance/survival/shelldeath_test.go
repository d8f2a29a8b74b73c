package survival

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/runtime/dialect"

	"pgregory.net/rapid"
)

// What an answer has acknowledged is there after the shell's death, or named in state_lost. A process starts with the state of the
// last answered command, or its answer names what it has not.

// ackLook prints the state, a line for each item; FILE is where a listing goes.
const ackLook = `echo "V0=${V0-unset}"; echo "V1=${V1-unset}"; sh -c 'echo "X0=${V0-unset}"; echo "X1=${V1-unset}"'; echo "dir=$(command pwd)"
f0 2>/dev/null || echo "f0=unset"; alias a0 >/dev/null 2>&1 && echo "a0=set" || echo "a0=unset"; echo "umask=$(umask)"
set +o >FILE; case $(grep -c "set -o noglob\|^options\[noglob\]" FILE) in 0) echo "noglob=off";; *) echo "noglob=on";; esac
trap >FILE; echo "trap=$(grep -c USR1 FILE)"`

// ackCategory is the word of state_lost for an item of ackLook.
var ackCategory = map[string]string{
	"V0": "variables", "V1": "variables", "X0": "variables", "X1": "variables", "dir": "working_dir", "f0": "functions", "a0": "aliases",
	"umask": "options", "noglob": "options", "trap": "options",
}

// An ackSession is a session and what its state must be.
type ackSession struct {
	t    *testing.T
	g    *rig.Server
	c    *rig.Client
	id   string
	sh   string
	file string
	want map[string]string // what the session must have
	also map[string]string // and may have instead, as the last command ended its shell
	done []string          // what was done, for the report
}

func newAckSession(t *testing.T, g *rig.Server, c *rig.Client, sh string) *ackSession {
	s := &ackSession{t: t, g: g, c: c, sh: sh, file: filepath.Join(g.Home, rig.Unique("listing"))}
	s.id = c.Session(object{"shell": sh, "working_dir": "/"})
	s.want = s.look()
	return s
}

func (s *ackSession) text() string { return strings.ReplaceAll(ackLook, "FILE", s.file) }

// parse reads what ackLook printed. Shells complain about some states; that is left out.
func ackParse(out string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && ackCategory[name] != "" {
			m[name] = value
		}
	}
	return m
}

func (s *ackSession) look() map[string]string { return ackParse(s.c.Run(s.id, s.text()).Stdout()) }

// run runs a command whose effects are acknowledged, and changes what is wanted by name=value.
func (s *ackSession) run(command string, changes ...string) object {
	s.done = append(s.done, command)
	r := s.c.Run(s.id, command)
	for i := 0; i < len(changes); i += 2 {
		s.want[changes[i]] = changes[i+1]
	}
	return r
}

// check compares what is with what must be, but for what was named as lost.
func (s *ackSession) check(what string, is map[string]string, lost []any, not ...string) (wrong string) {
	for name, want := range s.want {
		if slices.Contains(lost, any(ackCategory[name])) || slices.Contains(not, name) || is[name] == want || s.also != nil && is[name] == s.also[name] {
			continue
		}
		wrong += fmt.Sprintf("%s: %s is %q, not %q; lost %v; %q\n", what, name, is[name], want, lost, s.done)
	}
	return wrong
}

// continueWith looks at the state after a death and goes on with what is there.
func (s *ackSession) continueWith(what string, lost []any) (wrong string) {
	r := s.c.Run(s.id, s.text()) // the answer to it tells what was lost with a shell that died while no command ran
	told, _ := r["state_lost"].([]any)
	is := ackParse(r.Stdout())
	wrong = s.check(what, is, append(told, lost...))
	s.want, s.also = is, nil
	return wrong
}

// ackEffects are commands that change the state.
func (s *ackSession) effect(rt *rapid.T) {
	value := strconv.Itoa(rapid.IntRange(0, 99).Draw(rt, "value"))
	name := rapid.SampledFrom([]string{"V0", "V1"}).Draw(rt, "name")
	exported := "X" + name[1:]
	switch rapid.SampledFrom([]string{"variable", "export", "unset", "cd", "function", "alias", "umask", "noglob", "trap", "lasting"}).Draw(rt, "effect") {
	case "variable":
		if s.want[exported] != "unset" {
			s.run(name+"="+value, name, value, exported, value)
		} else {
			s.run(name+"="+value, name, value)
		}
	case "export":
		s.run("export "+name+"="+value, name, value, exported, value)
	case "unset":
		s.run("unset "+name, name, "unset", exported, "unset")
	case "cd":
		dir := rapid.SampledFrom([]string{"/usr", "/", "/usr/bin", "/tmp"}).Draw(rt, "dir")
		s.run("cd "+dir, "dir", dir)
	case "function":
		s.run("f0() { echo f0="+value+"; }", "f0", value)
	case "alias":
		s.run("alias a0='echo "+value+"'", "a0", "set")
	case "umask":
		mask := rapid.SampledFrom([]string{"022", "027", "077"}).Draw(rt, "umask")
		s.run("umask "+mask, "umask", ackMask(s.sh, mask))
	case "noglob":
		if rapid.Bool().Draw(rt, "on") {
			s.run("set -o noglob", "noglob", "on")
		} else {
			s.run("set +o noglob", "noglob", "off")
		}
	case "trap":
		s.run("trap 'echo usr' USR1", "trap", "1")
	case "lasting":
		s.run("/bin/true")
	}
}

// ackMask is how the shell prints a umask: zsh with one digit less.
func ackMask(sh, mask string) string {
	if filepath.Base(sh) == "zsh" {
		return mask
	}
	return "0" + mask
}

// ackDeaths are commands that end the shell, or may. keeps: what the command itself did must be there afterwards, or be named.
var ackDeaths = []struct {
	name, only, command string
	keeps               bool
	params              object
}{
	{"exit", "", "V0=dying; exit 5", true, nil},
	{"errexit", "", "V0=dying; set -e; false", true, nil},
	{"kill", "", "V0=dying; kill -9 $$", false, nil},
	{"indirect kill", "", `V0=dying; (ki""ll -9 $$)`, false, nil},
	{"crash", "bash", `V0=dying; k=$BASHPID; ki""ll -SEGV $k`, false, nil},
	{"exec", "", "V0=dying; exec true", false, nil},
	{"own EXIT trap", "", "V0=dying; trap : EXIT; exit 3", false, nil},
	{"own EXIT trap, errexit", "", "trap : EXIT; set -e; false", false, nil},
	{"abort trap", "dash busybox zsh", "trap 'echo INT' INT; sleep 60", false, object{"timeout_s": 0.05, "kill_grace_s": 0}},
	{"deaf builtin", "bash", "read V1 </dev/zero", false, object{"timeout_s": 0.05, "kill_grace_s": 0}},
	{"wedge", "dash busybox", "set -n", false, nil},
	{"file size", "", "V0=dying; ulimit -f 0; exit 4", false, nil}, // XFSZ ends it,
}

func (s *ackSession) die(rt *rapid.T) (wrong string) {
	ways := []string{"outside", "outside and gateway"}
	for _, d := range ackDeaths {
		if d.only == "" || strings.Contains(d.only, filepath.Base(s.sh)) || strings.Contains(d.only, "dash") && filepath.Base(s.sh) == "sh" {
			ways = append(ways, d.name)
		}
	}
	way := rapid.SampledFrom(ways).Draw(rt, "death")
	s.done = append(s.done, "["+way+"]")
	if pause := rapid.SampledFrom([]int{0, 0, 1, 60}).Draw(rt, "pause"); pause > 0 { // a command is short or follows a rest
		time.Sleep(time.Duration(pause) * time.Millisecond)
	}
	if strings.HasPrefix(way, "outside") {
		pid := s.c.Info(s.id).Num("pid")
		gateway := s.g.GatewayPid()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.t.Fatal(err)
		}
		if way == "outside and gateway" {
			if err := syscall.Kill(gateway, syscall.SIGKILL); err != nil {
				s.t.Fatal(err)
			}
			testkit.Eventually(s.t, "another gateway", func() bool { p := s.g.GatewayPid(); return p != 0 && p != gateway })
			s.c = s.g.Dial(s.t)
		}
		testkit.Eventually(s.t, "another shell", func() bool { p := s.c.Info(s.id).Num("pid"); return p != pid && p > 0 })
		return s.continueWith(way, nil)
	}
	for _, d := range ackDeaths {
		if d.name != way {
			continue
		}
		r := s.c.Run(s.id, d.command, d.params)
		lost, _ := r["state_lost"].([]any)
		if strings.Contains(d.command, "V0=dying") {
			s.also = map[string]string{"V0": "dying", "X0": "dying"}
			if s.want["X0"] == "unset" {
				s.also["X0"] = "unset"
			}
			if d.keeps {
				s.want["V0"], s.want["X0"], s.also = s.also["V0"], s.also["X0"], nil
			}
		}
		if way == "deaf builtin" {
			s.also = map[string]string{"V1": "", "X1": ""}
		}
		return s.continueWith(way, lost)
	}
	return ""
}

// process starts one while a command runs, which goes elsewhere, and looks at what it has.
func (s *ackSession) process(rt *rapid.T) (wrong string) {
	s.done = append(s.done, "[process]")
	running := s.c.Stream(s.id, "V0=running; cd /usr/share; sleep 60").Str("exec_id")
	testkit.Eventually(s.t, "the command has changed the directory", func() bool { return s.c.Info(s.id).Str("working_dir") == "/usr/share" })
	p := s.c.Call("process.start", object{"session_id": s.id, "command": s.text()})
	lost, _ := p["state_lost"].([]any)
	s.c.Call("process.wait", object{"process_id": p.Str("process_id"), "until": object{"exit": true}, "timeout_s": 60})
	out, _, _ := rig.ProcessLogs(s.c, p.Str("process_id"), 0)
	is := ackParse(out)
	if is["dir"] != "/usr/share" {
		wrong = fmt.Sprintf("a process is in %q: %q", is["dir"], out)
	}
	wrong += s.check("process", is, lost, "dir", "trap")
	s.c.Call("exec.cancel", object{"exec_id": running, "kill_grace_s": 0})
	r := s.c.Call("exec.wait", object{"exec_id": running})
	lost, _ = r["state_lost"].([]any)
	before := maps.Clone(s.want)
	s.want["dir"] = "/usr/share"
	s.want["V0"] = "running"
	if s.want["X0"] != "unset" {
		s.want["X0"] = "running"
	}
	if r.Yes("shell_restored") { // it died with the command, of which nothing was acknowledged
		s.also = before
	}
	return wrong + s.continueWith("after the process", lost)
}

// TestAcknowledgedStateIsKept runs random commands and ends the shell in random ways. The build tag soak makes it 25 times as long.
func TestAcknowledgedStateIsKept(t *testing.T) {
	rig.OurNumbers(t)
	for name, value := range map[string]string{"rapid.checks": rig.Pick("6", "150"), "rapid.shrinktime": "5s", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	g := rig.Gateway(t)
	rig.InShells(t, "", func(t *testing.T, sh string) {
		rapid.Check(t, func(rt *rapid.T) {
			c := g.Dial(t)
			s := newAckSession(t, g, c, sh)
			for range rapid.IntRange(1, 4).Draw(rt, "rounds") {
				for range rapid.IntRange(0, 4).Draw(rt, "effects") {
					s.effect(rt)
				}
				end := s.die
				if rapid.IntRange(0, 3).Draw(rt, "process") == 0 {
					end = s.process
				}
				if wrong := end(rt); wrong != "" {
					rt.Fatal(wrong)
				}
			}
			s.c.Call("session.destroy", object{"session_id": s.id, "force": true})
		})
	})
}

// TestRapidCommandsAreNotLost: what commands did that followed each other without a rest is there after the shell's death.
func TestRapidCommandsAreNotLost(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t)
	for _, x := range []struct {
		name, only, before, end string
		params                  object
	}{
		{"abort trap", "dash busybox zsh", "trap 'echo bye' INT", "sleep 60", object{"timeout_s": 0.1, "kill_grace_s": 0}},
		{"own EXIT trap", "", "trap 'echo bye' EXIT", "exit 5", nil},
		{"own EXIT trap, errexit", "", ":", "trap : EXIT; set -e; false", nil},
		{"deaf builtin", "bash", ":", "read x </dev/zero", object{"timeout_s": 0.1, "kill_grace_s": 0}},
		{"indirect kill", "", ":", `(ki""ll -9 $$)`, nil},
		{"exec", "", ":", "exec true", nil},
		{"wedge", "dash busybox", ":", "set -n", nil},
		{"gateway", "", ":", "GATEWAY", nil}, // dies while the command does
	} {
		t.Run(x.name, func(t *testing.T) {
			rig.InShells(t, x.only, func(t *testing.T, sh string) {
				c := g.Dial(t)
				s := c.Session(object{"shell": sh})
				rig.Expect(t, c.Run(s, x.before+"; X=0"), 0, "", "")
				rig.Expect(t, c.Run(s, "X=1"), 0, "", "")
				rig.Expect(t, c.Run(s, "X=2; cd /usr; alias a='echo a'; umask 027"), 0, "", "")
				var r object
				if x.end == "GATEWAY" {
					e := c.Stream(s, "sleep 0.3; kill -9 $$").Str("exec_id")
					g.KillGateway(t)
					c = g.Redial(t)
					r = c.Call("exec.wait", object{"exec_id": e})
				} else {
					r = c.Run(s, x.end, x.params)
				}
				if !r.Yes("shell_restored") || r.Has("state_lost") {
					t.Errorf("%v", r)
				}
				rig.Expect(t, c.Run(s, "echo $X; pwd; umask; a"), 0, "2\n/usr\n"+ackMask(sh, "027")+"\na\n", "")
				c.Call("session.destroy", object{"session_id": s, "force": true})
			})
		})
	}
}

// TestShellAndGatewayDieAtRest: the snapshot that a session at rest has taken is known to the next gateway for what it is.
func TestShellAndGatewayDieAtRest(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t)
	rig.InShells(t, "", func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		x := rig.Unique("rest")
		rig.Expect(t, c.Run(s, "X="+x+"; cd /usr"), 0, "", "")
		testkit.Eventually(t, "the state is written down", func() bool { return inSnapshot(g, x) })
		pid := c.Info(s).Num("pid")
		old := g.GatewayPid()
		for _, victim := range []int{pid, old} {
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, "another gateway", func() bool { now := g.GatewayPid(); return now > 0 && now != old })
		c = g.Redial(t)
		r := c.Run(s, "echo $X; pwd")
		if !r.Yes("shell_restored") || r.Has("state_lost") || r.Stdout() != x+"\n/usr\n" {
			t.Errorf("%v", r)
		}
		c.Call("session.destroy", object{"session_id": s, "force": true})
	})
}

// inSnapshot tells whether a complete snapshot of a shell, in the files that the keeper holds, has this text.
func inSnapshot(g *rig.Server, text string) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", g.Pid))
	return slices.ContainsFunc(files, func(file string) bool {
		to, _ := os.Readlink(file)
		if at, err := os.Stat(file); err != nil || at.Size() > 1<<20 || !strings.HasPrefix(to, "/memfd:") { // the logs of streams are sparse, and huge
			return false
		}
		b, _ := os.ReadFile(file)
		at := strings.LastIndex(string(b), dialect.EndMark+" ")
		if at < 0 || !strings.HasSuffix(string(b), "\n") || !strings.Contains(string(b), text) {
			return false
		}
		_, err := strconv.Atoi(strings.TrimSpace(string(b[at+len(dialect.EndMark):]))) // else it is the beginning of a section
		return err == nil
	})
}

// TestCutOffStateIsNamed: a snapshot that a file-size limit has cut off is not taken for one.
func TestCutOffStateIsNamed(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Shared(t, "")
	rig.InShells(t, "bash", func(t *testing.T, sh string) {
		c := g.Dial(t)
		limits := c.Limits(object{"file_size_bytes": 1 << 20})
		if len(limits) == 0 {
			t.Skip("not run: no limit of file sizes can be set here")
		}
		for _, pause := range []time.Duration{0, 500 * time.Millisecond} { // the second one lets the shell try
			s := c.Session(object{"shell": sh, "limits": limits})
			rig.Expect(t, c.Run(s, "A=1; x=$(head -c 1200000 /dev/zero | tr '\\0' a); echo ${#x}"), 0, "1200000\n", "")
			time.Sleep(pause)
			r := c.Run(s, "exit 3")
			is := c.Run(s, "echo $A").Stdout()
			if !r.Yes("shell_restored") || is != "1\n" && !strings.Contains(fmt.Sprint(r["state_lost"]), "variables") {
				t.Errorf("A is %q: %v", is, r)
			}
		}
	})
}

// TestStartsDuringACommand: what is started while a command runs has the state of the last answered command, in the directory
// where the shell is.
func TestStartsDuringACommand(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Shared(t, "")
	rig.InShells(t, "", func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		lists := strings.HasSuffix(sh, "bash") || strings.HasSuffix(sh, "zsh")
		rig.Expect(t, c.Run(s, "X=0; export Y=0"), 0, "", "")
		rig.Expect(t, c.Run(s, "X=1"), 0, "", "")
		rig.Expect(t, c.Run(s, "X=2; export Y=2; cd /usr; f() { echo f; }"), 0, "", "")
		e := c.Stream(s, "X=3; cd /usr/bin; sleep 60").Str("exec_id")
		testkit.Eventually(t, "the command has changed the directory", func() bool { return c.Info(s).Str("working_dir") == "/usr/bin" })
		const text = `echo "X=$X Y=$(sh -c 'echo $Y') $(pwd)"; f`
		p := c.Call("process.start", object{"session_id": s, "command": text})
		term := c.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": text + "; sleep 60"})
		for what, d := range map[string]object{"process": p, "terminal": term} {
			if lost := fmt.Sprint(d["state_lost"]); lists && lost != "<nil>" || !lists && lost != "[functions]" {
				t.Errorf("%s: lost %s", what, lost)
			}
		}
		want := "X=2 Y=2 /usr/bin"
		if lists {
			want += "\nf\n"
		}
		c.Call("process.wait", object{"process_id": p.Str("process_id"), "until": object{"exit": true}, "timeout_s": 60})
		if out, _, _ := rig.ProcessLogs(c, p.Str("process_id"), 0); !strings.Contains(out, want) {
			t.Errorf("a process says %q", out)
		}
		testkit.Eventually(t, "the terminal says the same", func() bool {
			lines := fmt.Sprint(c.Call("term.snapshot", object{"term_id": term.Str("term_id")})["lines"])
			return strings.Contains(lines, "X=2 Y=2 /usr/bin") && (!lists || strings.Contains(lines, "/usr/bin f"))
		})
		if list := c.Call("process.list", object{"session_id": s}).Objs("processes"); len(list) != 1 || fmt.Sprint(list[0]["state_lost"]) != fmt.Sprint(p["state_lost"]) {
			t.Errorf("%v", list)
		}
		c.Call("exec.cancel", object{"exec_id": e, "kill_grace_s": 0})
		c.Call("session.destroy", object{"session_id": s, "force": true})
	})
}
