package acceptance

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"
)

// G3: the gateway is killed -9 again and again, and upgraded in between, while its sessions print at full speed, clients follow, and others run one
// command after the other. Nobody may miss a byte, see one twice, or have a command run twice or not at all.

// gatewayPid is the process below the keeper that serves, 0 between two. Of several it is the oldest: a child that is
// about to become a shell has the same command line for a moment.
func (g *server) gatewayPid() (oldest int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", g.pid, g.pid))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", g.pid))
	for _, task := range tasks {
		more, _ := os.ReadFile(task)
		text = append(append(text, ' '), more...)
	}
	since := math.MaxInt
	for _, field := range strings.Fields(string(text)) {
		pid, _ := strconv.Atoi(field)
		_, _, start, ok := procStat(pid)
		if ticks, err := strconv.Atoi(start); ok && err == nil && (ticks < since || ticks == since && pid < oldest) && strings.Contains(cmdline(pid), "serve") {
			oldest, since = pid, ticks
		}
	}
	return oldest
}

// again is a connection that is made anew, as often as it breaks, until ctx ends.
type again struct {
	g  *server
	ws *websocket.Conn
}

// ask sends a request and returns its answer; events goes each event that comes before, until it is false.
func (a *again) ask(ctx context.Context, method string, params object, events func(name string, data object) bool) (f frame, err error) {
	if a.ws == nil {
		dial, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if a.ws, _, err = websocket.Dial(dial, "ws://"+a.g.addr+"/v1/ws", &websocket.DialOptions{Subprotocols: []string{"trl.v1"}}); err != nil {
			a.ws = nil
			return f, err
		}
		a.ws.SetReadLimit(-1)
	}
	defer func() {
		if err != nil {
			a.ws.CloseNow()
			a.ws = nil
		}
	}()
	text, _ := json.Marshal(object{"id": 1, "method": method, "params": params})
	if err := a.ws.Write(ctx, websocket.MessageText, text); err != nil {
		return f, err
	}
	answered := false
	for {
		_, text, err := a.ws.Read(ctx)
		if err != nil {
			return f, err
		}
		var in frame
		if err := json.Unmarshal(text, &in); err != nil {
			return f, err
		}
		switch {
		case in.Event == "":
			f, answered = in, true
			if events == nil || f.Error != nil {
				return f, nil
			}
		case events != nil && !events(in.Event, in.Data) && answered:
			return f, nil
		}
	}
}

// counter checks that a stream's lines are prefix1, prefix2, …
type counter struct {
	prefix string
	next   int
	part   string
}

func (c *counter) take(text string) error {
	c.part += text
	for {
		line, rest, ok := strings.Cut(c.part, "\n")
		if !ok {
			return nil
		}
		c.part = rest
		c.next++
		if want := c.prefix + strconv.Itoa(c.next); line != want {
			return fmt.Errorf("line %q where %q was due", line, want)
		}
	}
}

// followAll reads an exec from its first byte to its end over as many connections as it takes.
func followAll(ctx context.Context, g *server, exec string) (lines [2]int, exit object, err error) {
	a := again{g: g}
	defer func() {
		if a.ws != nil {
			a.ws.CloseNow()
		}
	}()
	sides := map[string]*counter{"stdout": {prefix: "o"}, "stderr": {prefix: "e"}}
	offset := 0
	for ctx.Err() == nil {
		var wrong error
		f, err := a.ask(ctx, "exec.attach", object{"exec_id": exec, "offset": offset, "on_slow": "block"}, func(name string, data object) bool {
			switch name {
			case "exec.output":
				text := data.str("data")
				if data.str("encoding") == "base64" {
					b, _ := base64.StdEncoding.DecodeString(text)
					text = string(b)
				}
				if at := data.num("offset"); at != offset {
					wrong = fmt.Errorf("a chunk at %d where %d was due", at, offset)
					return false
				}
				offset += len(text)
				wrong = sides[data.str("stream")].take(text)
			case "stream.gap":
				wrong = fmt.Errorf("gap %v", data)
			case "exec.exit":
				exit = data
				return false
			}
			return wrong == nil
		})
		switch {
		case wrong != nil:
			return lines, nil, wrong
		case err == nil && f.Error != nil:
			return lines, nil, fmt.Errorf("attach: %v", f.Error)
		case exit != nil:
			return [2]int{sides["stdout"].next, sides["stderr"].next}, exit, nil
		}
	}
	return lines, nil, ctx.Err()
}

// G3.
func TestNothingIsLostWhenTheGatewayIsKilled(t *testing.T) {
	printers, followers, runners, kills, n := pick(8, 50), pick(4, 20), pick(2, 4), pick(8, 60), pick(20_000, 200_000)
	// What is printed while nobody is there to read it must not fall out of the ring.
	g := gateway(t, "--max-sessions", "100", "--ring-bytes", strconv.Itoa(32*n))
	c := g.dial(t)
	work := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo o$i; echo e$i >&2; done; (exit 7)", n)
	sum := 0 // bytes of one stream
	for i := 1; i <= n; i++ {
		sum += 2 + len(strconv.Itoa(i))
	}
	for i := range runners {
		s := c.session(object{"shell": shells[i%2], "name": fmt.Sprint("runner", i)})
		c.run(s, "V=mine; export W=ours")
	}
	epoch := c.call("system.ping", object{}).str("epoch")
	c.close()
	execs := make([]string, printers)
	for i := range execs {
		p := g.dial(t) // its own: what it prints must not keep the others' answers waiting
		s := p.session(object{"shell": shells[i%2], "name": fmt.Sprint("printer", i)})
		execs[i] = p.call("exec.stream", object{"session_id": s, "command": work, "on_slow": "skip"}).str("exec_id")
		p.close()
	}

	ctx, cancel := context.WithTimeout(context.Background(), pick(4*time.Minute, 30*time.Minute))
	defer cancel()
	killing, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	all.Go(func() {
		defer stop()
		for i := range kills {
			time.Sleep(time.Duration(100+rand.IntN(1100)) * time.Millisecond)
			if i%4 == 3 { // an upgrade in between; one that meets a dead gateway is refused
				_ = syscall.Kill(g.pid, syscall.SIGHUP)
			} else if pid := g.gatewayPid(); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	for i := range followers {
		all.Go(func() {
			lines, exit, err := followAll(ctx, g, execs[i])
			if err != nil || lines != [2]int{n, n} || exit.num("exit_code") != 7 {
				t.Errorf("follower %d: %v lines of %d, exit %v, %v", i, lines, n, exit, err)
			}
		})
	}
	ran := make([]int, runners)
	for i := range runners {
		all.Go(func() { // one command after the other, each until it is answered, for as long as gateways are killed
			a := again{g: g}
			for k := 0; killing.Err() == nil; k++ {
				q := object{"session": fmt.Sprint("runner", i), "command": fmt.Sprintf("echo %d >>ran%d; N=$((N+1)); echo $N", k, i), "env": object{"V": "own", "W": nil}, "request_key": fmt.Sprint("k", k)}
				for {
					f, err := a.ask(ctx, "exec.run", q, nil)
					if err == nil && f.Error == nil {
						if got := f.Data.stdout(); got != fmt.Sprintln(k+1) {
							t.Errorf("runner %d: command %d printed %q", i, k, got)
						}
						break
					}
					if ctx.Err() != nil || f.Error != nil && f.code() != "SHUTTING_DOWN" {
						t.Errorf("runner %d: command %d: %v %v", i, k, f.Error, errors.Join(err, ctx.Err()))
						return
					}
				}
				ran[i] = k + 1
			}
			if a.ws != nil {
				a.ws.CloseNow()
			}
		})
	}
	all.Wait()
	a := again{g: g}
	sure := func(method string, params object) object { // the last upgrade may still be under way
		for {
			f, err := a.ask(ctx, method, params, nil)
			switch {
			case err == nil && f.Error == nil:
				return f.Data
			case err == nil && f.code() != "SHUTTING_DOWN" || ctx.Err() != nil:
				t.Fatalf("%s: %v %v", method, f.Error, err)
			}
		}
	}
	for i := range runners {
		q := object{"session": fmt.Sprint("runner", i), "command": "echo $V $W; sh -c 'echo $V $W'"}
		if out := sure("exec.run", q).stdout(); out != "mine ours\nours\n" { // what was one command's was never left to another
			t.Errorf("runner %d: %q", i, out)
		}
		text, _ := os.ReadFile(filepath.Join(g.home, fmt.Sprint("ran", i)))
		for k, line := range strings.Fields(string(text)) {
			if line != strconv.Itoa(k) {
				t.Errorf("runner %d ran %s as its %d. command", i, line, k)
				break
			}
		}
		if got := len(strings.Fields(string(text))); got != ran[i] {
			t.Errorf("runner %d: %d commands ran, %d were answered", i, got, ran[i])
		}
	}
	for i, x := range execs {
		r := sure("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 120})
		if r.num("exit_code") != 7 || r.num("stdout_bytes") != sum || r.num("stderr_bytes") != sum {
			t.Errorf("printer %d: %v", i, brief(fmt.Sprint(r)))
		}
		last := strconv.Itoa(n)
		if out := r.stdout(); !strings.HasSuffix(out, "o"+last+"\n") || strings.Contains(out, "e") {
			t.Errorf("printer %d: stdout ends in %q", i, brief(out[max(0, len(out)-40):]))
		}
	}
	if now := sure("system.ping", object{}).str("epoch"); now != epoch {
		t.Errorf("epoch %s, was %s", now, epoch)
	}
	t.Logf("%d gateways killed; commands run meanwhile: %v", kills, ran)
	a.ws.CloseNow()
	g.upgrade(t) // the end of the test is not to meet the keeper between two programs
}

// upgrade makes one more upgrade, once what is under way is over, and waits for it.
func (g *server) upgrade(t testing.TB) {
	t.Helper()
	eventually(t, "an upgrade is done", func() bool {
		return exec.Command(binary, "upgrade", "--state-dir", filepath.Join(g.dir, "state")).Run() == nil
	})
}

// freeze stops the gateway, so that it hears of nothing any more until it is killed, or the test ends.
func (g *server) freeze(t testing.TB) {
	t.Helper()
	pid := g.gatewayPid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// TestCommandRunsOnceWhenItsGatewayDiesEarly: a gateway dies before the command's line is in the shell's channel, or before it has the report, which an
// error took along. Either way the command runs once.
func TestCommandRunsOnceWhenItsGatewayDiesEarly(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	for _, path := range shells {
		t.Run(filepath.Base(path), func(t *testing.T) {
			for name, full := range map[string]bool{"no line": true, "no report": false} {
				t.Run(name, func(t *testing.T) {
					c := g.dial(t)
					s := c.session(object{"shell": path})
					pid, err := strconv.Atoi(strings.TrimSpace(c.run(s, "echo $$").stdout()))
					if err != nil {
						t.Fatal(err)
					}
					ran := filepath.Join(g.home, filepath.Base(path)+name)
					work := "echo once >>'" + ran + "'; typeset -i x=08" // at which bash drops the rest of its line
					code := c.run(s, strings.Replace(work, "once", "first", 1)).num("exit_code")

					if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
						t.Fatal(err)
					}
					defer syscall.Kill(pid, syscall.SIGCONT)
					if full {
						channel, err := os.OpenFile(descriptor(t, pid, "pipe:"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
						if err != nil {
							t.Fatal(err)
						}
						for err == nil {
							_, err = syscall.Write(int(channel.Fd()), []byte("\n"))
						}
						channel.Close()
					}
					x := c.stream(s, work).str("exec_id")
					g.killGateway(t)
					c = g.redial(t)
					c.call("session.list", object{}) // its answer comes when the sessions are back
					if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
						t.Fatal(err)
					}
					if r := c.call("exec.wait", object{"exec_id": x, "timeout_s": 60}); r.num("exit_code") != code {
						t.Errorf("exit code of the first %d, of the second: %v", code, r)
					}
					if text, err := os.ReadFile(ran); err != nil || string(text) != "first\nonce\n" {
						t.Errorf("ran: %q %v", text, err)
					}
				})
			}
		})
	}
}

// TestNextGatewayAsksWhatTheShellReported: a gateway dies with a report in its hands, and the next one finds the shell in the midst of
// reading a line. It asks all the same what was reported last.
func TestNextGatewayAsksWhatTheShellReported(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	c := g.dial(t)
	s := c.session(object{"shell": "/bin/bash"})
	shell, control, _ := strings.Cut(strings.TrimSpace(c.run(s, "echo $$ $__trl_c").stdout()), " ")
	pid, err := strconv.Atoi(shell)
	if err != nil || !strings.HasPrefix(control, "/proc/") {
		t.Fatalf("shell %q, control pipe %q: %v", shell, control, err)
	}
	if unix.Access(control, unix.R_OK) != nil {
		t.Skip("not run: the control pipe cannot be opened from here")
	}
	flag, begun := filepath.Join(g.home, "go"), filepath.Join(g.home, "begun")
	x := c.stream(s, ">"+begun+"; until [ -e "+flag+" ]; do sleep 0.01; done; (exit 7)").str("exec_id")
	eventually(t, "the command runs", func() bool { _, err := os.Stat(begun); return err == nil })

	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	g.freeze(t)
	must(os.WriteFile(flag, nil, 0o600))
	reports, err := os.OpenFile(control, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	must(err)
	defer reports.Close()
	report := make([]byte, 512)
	must(reports.SetReadDeadline(time.Now().Add(patience)))
	n, err := reports.Read(report) // in the place of the gateway, which would now die
	if must(err); !strings.HasSuffix(string(report[:n]), " 7\n") {
		t.Fatalf("reported: %q", report[:n])
	}
	channel, err := os.OpenFile(descriptor(t, pid, "pipe:"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	must(err)
	defer channel.Close()
	eventually(t, "the shell waits for a line", func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		return strings.HasPrefix(string(text), "0 ")
	})
	must(syscall.Kill(pid, syscall.SIGSTOP))
	defer syscall.Kill(pid, syscall.SIGCONT)
	_, err = channel.WriteString("\n") // what is left of a line
	must(err)
	g.killGateway(t)
	c = g.redial(t)
	c.call("session.list", object{})
	must(syscall.Kill(pid, syscall.SIGCONT))
	if r := c.call("exec.wait", object{"exec_id": x, "timeout_s": 60}); r.num("exit_code") != 7 {
		t.Errorf("%v", r)
	}
}
