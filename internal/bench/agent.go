package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"trl/internal/bench/figure"
	"trl/internal/bench/peer"
	"trl/protocol"
)

// Agent is the content of agent.json: an agent's work, done in three ways, each through a WebSocket.
type Agent struct {
	Machine figure.Machine `json:"machine"`
	Rows    []AgentRow     `json:"rows"`
}

// An AgentRow is one step, or all of them, by a number of agents at the same time: medians in nanoseconds.
type AgentRow struct {
	Step     string  `json:"step"`
	Sessions int     `json:"sessions"`
	TRL      float64 `json:"trl_ns"`
	Once     float64 `json:"bash_c_ns"`
	Marked   float64 `json:"markers_ns"`
}

// A task is one step of the work; its output must contain expects.
type task struct{ name, command, expects string }

// tasks resemble transcripts of coding agents. Each agent has its own $PORT.
var tasks = []task{
	{"cd, export", `cd "$WS" && export CFLAGS=-O1 && pwd`, "/work"},
	{"ls", "ls -la", "main.c"},
	{"git status", "git status --short --branch", "## "},
	{"grep", `grep -rn "greet(" --include='*.c' .`, "main.c"},
	{"heredoc", "cat > greet.c <<'EOF'\n#include <stdio.h>\n\n/* says \"hello\", $HOME and `all` */\nvoid greet(const char *who) {\n\tprintf(\"hello, %s\\n\", who);\n}\nEOF\nwc -l greet.c", "6 greet.c"},
	{"build", "cc $CFLAGS -o app main.c greet.c && echo built", "built"},
	{"test", `for i in 1 2 3; do [ "$(./app $i)" = "hello, $i" ] && echo "ok $i" || exit 1; done`, "ok 3"},
	{"edit", `sed -i 's/hello/good day/' greet.c && git diff --stat`, "greet.c"},
	{"commit", "git add -A && git commit -qm step && git log --oneline | wc -l", "2"},
}

// An agentShell does the tasks in one way.
type agentShell interface {
	run(command string) (output string)
	serve(command, port string) // starts a server and returns when its port accepts connections
	quit()                      // ends the server
}

func agent() error {
	floor, gw := start(must(os.Executable()), "echo"), gateway()
	defer floor.stop()
	defer gw.stop()
	c := dial(gw.addr + "/v1/ws")
	r := Agent{Machine: machine(tier(c))}
	c.CloseNow()
	fmt.Printf("%v\n\n%-12s %9s %12s %12s %12s %8s %8s\n", r.Machine, "", "sessions", "trl", "bash -c", "markers", "/ bash -c", "/ markers")
	dir := must(os.MkdirTemp("", "trl-bench-"))
	defer os.RemoveAll(dir)
	template := workspace(dir)
	if *quick {
		*crews = "1,4"
	}
	for _, n := range counts(*crews) {
		rounds := 7
		if n > 1 || *quick {
			rounds = 3 // many agents give enough samples of each step
		}
		var took [3]map[string]*figure.Samples
		for i := range took {
			took[i] = map[string]*figure.Samples{}
		}
		for range rounds {
			for way := range took { // alternately
				runTasks(way, n, floor.addr, gw.addr, dir, template, took[way])
			}
		}
		steps := []string{}
		for _, c := range tasks {
			steps = append(steps, c.name)
		}
		for _, name := range append(steps, "server", "all") {
			row := AgentRow{name, n, took[0][name].Median(), took[1][name].Median(), took[2][name].Median()}
			r.Rows = append(r.Rows, row)
			ns := figure.Nanoseconds.Format
			fmt.Printf("%-12s %9d %12s %12s %12s %8.2f %8.2f\n", row.Step, n, ns(row.TRL), ns(row.Once), ns(row.Marked), row.TRL/row.Once, row.TRL/row.Marked)
		}
	}
	return save("agent", r)
}

// workspace makes the repository from which all agents start.
func workspace(dir string) string {
	path := filepath.Join(dir, "template")
	check(os.Mkdir(path, 0o777))
	for name, text := range map[string]string{
		"main.c":  "void greet(const char *who);\n\nint main(int argc, char **argv) {\n\tgreet(argc > 1 ? argv[1] : \"world\");\n\treturn 0;\n}\n",
		"greet.c": "void greet(const char *who) {}\n",
		"README":  "a small program\n",
	} {
		check(os.WriteFile(filepath.Join(path, name), []byte(text), 0o666))
	}
	git := exec.Command("bash", "-ec", "git init -q; git config user.name bench; git config user.email bench@localhost; git add -A; git commit -qm begin")
	git.Dir = path
	if text, err := git.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("git: %v: %s", err, text))
	}
	return path
}

// runTasks makes n agents do all tasks at the same time, each in a copy of the workspace, and adds the times.
func runTasks(way, n int, floor, gw, dir, template string, took map[string]*figure.Samples) {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		wrong error
		hands = make([]agentShell, n)
		where = make([]string, n)
		ports = make([]string, n)
	)
	for i := range n {
		where[i] = filepath.Join(must(os.MkdirTemp(dir, "a")), "work")
		check(exec.Command("cp", "-a", template, where[i]).Run())
		ports[i] = freePort()
		switch way {
		case 0:
			c := dial(gw + "/v1/ws")
			defer c.CloseNow()
			var made protocol.Session
			ask(c, "session.create", map[string]any{"shell": "/bin/bash", "env": map[string]string{"WS": where[i]}}, &made)
			defer ask(c, "session.destroy", map[string]any{"session_id": made.SessionID, "force": true}, nil)
			hands[i] = &trlShell{c: c, id: made.SessionID}
		case 1:
			c := dial(floor + "/once")
			defer c.CloseNow()
			hands[i] = &onceShell{c: c, before: "export WS=" + where[i] + "\n"}
		case 2:
			raw := rawShell(floor)
			defer raw.Close()
			hands[i] = &markedShell{m: raw}
			hands[i].run("export WS=" + where[i])
		}
	}
	add := func(name string, d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if took[name] == nil {
			took[name] = new(figure.Samples)
		}
		took[name].Add(d)
	}
	began := time.Now()
	for i, h := range hands {
		all.Go(func() { // ends with its tasks; awaited below
			err := caught(func() error {
				for _, c := range tasks {
					start := time.Now()
					if output := h.run(c.command); !strings.Contains(output, c.expects) {
						return fmt.Errorf("%s, %T: %q", c.name, h, output)
					}
					add(c.name, time.Since(start))
				}
				start := time.Now()
				h.serve(must(os.Executable())+" listen "+ports[i], ports[i])
				if output := h.run("exec 3<>/dev/tcp/127.0.0.1/" + ports[i] + " && cat <&3; exec 3<&-"); !strings.Contains(output, "at your service") {
					return fmt.Errorf("server: %q", output)
				}
				h.quit()
				add("server", time.Since(start))
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			if wrong == nil {
				wrong = err
			}
		})
	}
	all.Wait()
	check(wrong)
	add("all", time.Since(began))
	for _, d := range where {
		os.RemoveAll(filepath.Dir(d))
	}
}

// listen is the server that agents start: it greets every client, forever.
func listen(port string) {
	l := must(net.Listen("tcp", "127.0.0.1:"+port))
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "at your service\n")
		c.Close()
	}
}

// freePort returns a port that was free a moment ago and that programs do not get when they ask for any port: neither another agent nor a connection.
func freePort() string {
	for {
		port := strconv.Itoa(firstPort + int(lastPort.Add(1)))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
}

const firstPort = 20000 // below the ports that Linux assigns, from 32768

var lastPort atomic.Int32 // beyond firstPort

// trlShell has a session: state persists, a server is a process, and the gateway waits for its port.
type trlShell struct {
	c           *websocket.Conn
	id, process string
}

func (h *trlShell) run(command string) string {
	var r protocol.ExecResult
	ask(h.c, "exec.run", map[string]any{"session_id": h.id, "command": command}, &r)
	return r.Stdout + r.Stderr
}

func (h *trlShell) serve(command, port string) {
	var p protocol.ProcessStarted
	ask(h.c, "process.start", map[string]any{"session_id": h.id, "command": command}, &p)
	h.process = p.ProcessID
	var w protocol.WaitResult
	ask(h.c, "process.wait", map[string]any{"process_id": h.process, "until": map[string]any{"port": json.Number(port)}, "timeout_s": 60}, &w)
	if !w.Met {
		panic("server does not listen")
	}
}

func (h *trlShell) quit() { ask(h.c, "process.kill", map[string]any{"process_id": h.process}, nil) }

// onceShell starts a shell for each command. It must give each command the directory and the variables of the earlier ones; it cannot pass on more.
type onceShell struct {
	c           *websocket.Conn
	before, pid string
}

func (h *onceShell) run(command string) string {
	check(h.c.Write(ctx, websocket.MessageText, []byte(h.before+command)))
	_, b, err := h.c.Read(ctx)
	check(err)
	if command == tasks[0].command {
		h.before += "cd \"$WS\"; export CFLAGS=-O1\n"
	}
	return string(b)
}

// waitForPort is the text that people write without process.wait.
func waitForPort(command, port string) string {
	return command + " >/dev/null 2>&1 & echo $!; until (exec 3<>/dev/tcp/127.0.0.1/" + port + ") 2>/dev/null; do sleep 0.02; done"
}

func (h *onceShell) serve(command, port string) {
	h.pid, _, _ = strings.Cut(h.run(waitForPort(command, port)), "\n")
}

func (h *onceShell) quit() { h.run("kill " + h.pid) }

// markedShell also has a shell behind a pipe; its output ends with a marker.
type markedShell struct {
	m   *peer.MarkedShell
	pid string
}

func (h *markedShell) run(command string) string {
	return strings.TrimSpace(must(h.m.Run(command)).Output)
}

func (h *markedShell) serve(command, port string) {
	h.pid, _, _ = strings.Cut(h.run(waitForPort(command, port)), "\n")
}

func (h *markedShell) quit() { h.run("kill " + h.pid) }
