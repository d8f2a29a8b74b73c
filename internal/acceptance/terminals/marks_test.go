package terminals

import (
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

func TestTerminalCommandsAreReported(t *testing.T) { testMarks(t, rig.Shared(t, "h")) }

// In a session that may not look below /proc for what its shells open: as another user, and behind Landlock.
func TestTerminalCommandsOfConfinedSessionsAreReported(t *testing.T) {
	t.Run("allow-write", func(t *testing.T) {
		g, err := rig.StartGateway("--allow-write", rig.Top)
		if err != nil && strings.Contains(err.Error(), "Landlock") {
			t.Skipf("not run: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		g.EndWith(t)
		testMarks(t, g)
	})
	rig.EachWay(t, func(t *testing.T, flags []string) { testMarks(t, rig.Gateway(t, flags...)) })
}

// The user's own files are read, before ours.
func TestTerminalReadsTheUsersFilesFirst(t *testing.T) {
	g := rig.Gateway(t)
	for file, text := range map[string]string{
		".bashrc": "PS1='bashrc> '; PROMPT_COMMAND='echo -n hook; (exit 5)'; alias hi='echo hello'\n",
		".zshenv": "export FROM_ZSHENV=1\n", ".zshrc": "PS1='zshrc> '; alias hi='echo hello'\n",
	} {
		if err := os.WriteFile(filepath.Join(g.Home, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, shell := range []string{"bash", "zsh"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		c := g.Dial(t)
		s := c.Session(object{"shell": shell})
		h := c.OpenTerminal(s)
		h.Expect(shell + `rc> `)
		h.Keys("(exit 4)\r")
		if d := c.Event("term.command"); d.Num("exit_code") != 4 {
			t.Errorf("%s: %v", shell, d)
		}
		h.Keys("hi $? ${ZDOTDIR-none} ${TRL_ZDOTDIR-none}\r")
		h.Expect(`hello 4 none none`)
		if shell == "bash" {
			h.Expect("hook")
		} else {
			h.Keys("echo $FROM_ZSHENV\r")
			h.Expect(`[\x07\n]1\r\n`)
		}
		h.Keys("exit\r")
		h.End()
	}
	left, _ := filepath.Glob(filepath.Join(g.Dir, "*", "trl-zsh-*"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// What users set or export shows them nothing of the marks, and gives their programs no nonce.
func TestMarksAreNotSeen(t *testing.T) {
	g := rig.Gateway(t)
	for file, text := range map[string]string{".bashrc": "set -u; PS1='rc> '\n", ".zshrc": "set -u; PS1='rc> '\n"} {
		if err := os.WriteFile(filepath.Join(g.Home, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, shell := range []string{"bash", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("no %s here", shell)
			}
			c := g.Dial(t)
			h := c.OpenTerminal(c.Session(object{"shell": shell}), object{"rows": 100})
			nonce := h.Expect(`\x1b\]133;A;aid=(\w+)`)[1]
			run := func(text string, code int) {
				t.Helper()
				h.Keys(text + "\r")
				if d := c.Event("term.command"); d.Str("command") != text || d.Num("exit_code") != code {
					t.Errorf("%s: %v", text, d)
				}
			}
			run("echo begin", 0)
			run("set -x", 0)
			run("true traced", 0)
			run("set +x", 0)
			run("export PS1; env | grep -c "+nonce, 1)
			run("env | grep -c "+nonce, 1)
			run("set -a", 0)
			run("env | grep -c "+nonce, 1)
			run("sh -c 'echo the last'", 0)
			if shell == "bash" {
				run("shopt -u promptvars", 0)
				h.Keys("echo plain''ly\r")
				h.Expect(`rc> echo plain''ly`)
				h.Expect(`plainly`)
				h.Keys("shopt -s promptvars\r")
				h.Expect(`\x1b\]133;A;aid=`)
				run("echo marked", 0)
			}
			run("echo the''end", 0)
			screen := h.Screen("theend")
			if text := fmt.Sprint(screen["lines"]); strings.Contains(text, "__trl") || strings.Contains(text, "unbound") || strings.Contains(text, "133;") {
				t.Errorf("it shows %s", text)
			}
		})
	}
}

func testMarks(t *testing.T, g *rig.Server) {
	home := object{"HOME": rig.Top} // for users without one, who would get /tmp
	for _, shell := range []string{"bash", "zsh", "fish", "dash"} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("no %s here", shell)
			}
			c := g.Dial(t)
			// The session's shell, or one that is named and nothing else.
			q, more := object{"shell": "/bin/sh", "env": home}, object{"command": shell}
			if shell == "zsh" || shell == "dash" {
				q, more = object{"shell": shell, "env": home}, nil
			}
			s := c.Session(q)
			if shell == "dash" { // it has no hooks
				h := c.OpenTerminal(s)
				h.Keys("echo a''b\r")
				h.Expect("ab\r\n")
				return
			}
			h := c.OpenTerminal(s, more)
			h.Expect(`\x1b\]133;A;aid=\w+`)
			h.Keys("echo one; sh -c 'exit 3'\r")
			d := c.Event("term.command")
			if d.Str("command") != "echo one; sh -c 'exit 3'" || d.Num("exit_code") != 3 || !d.Has("duration_ms") || d.Str("term_id") != h.Id {
				t.Errorf("%v", d)
			}
			h.Keys("printf '\\033]633;E;evil;x\\a\\033]133;C;aid=x\\a\\033]133;D;9;aid=x\\a'\r")
			if d := c.Event("term.command"); d.Num("exit_code") != 0 || !strings.HasPrefix(d.Str("command"), "printf") {
				t.Errorf("a made-up one: %v", d)
			}
			h.Keys("cat /no''such\r")
			if d := c.Event("term.command"); d.Num("exit_code") != 1 {
				t.Errorf("%v", d)
			}
			h.Keys("\r\r")
			h.Keys("echo be''gun; read x\r")
			h.Expect("begun\r\n")
			testkit.Eventually(t, "the gateway has seen the beginning, maybe later than we did", func() bool { return len(c.Info(s).Objs("in_terminals")) == 1 })
			time.Sleep(100 * time.Millisecond) // for it to take so long
			h.Keys("x\r")
			if d := c.Event("term.command"); !strings.HasSuffix(d.Str("command"), "; read x") || d.Num("duration_ms") < 50 {
				t.Errorf("%v", d)
			}
			h.Keys("env | grep -c -e ^TRL_Z -e ^ZDOTDIR\r") // nothing is left of how it began
			if d := c.Event("term.command"); d.Num("exit_code") != 1 {
				t.Errorf("%v", d)
			}
		})
	}
}
