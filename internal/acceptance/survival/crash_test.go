package survival

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"

	"golang.org/x/sys/unix"
)

// G3: the gateway is killed -9 again and again, and upgraded in between, while its sessions print at full speed, clients follow, and others run one
// command after the other. Nobody may miss a byte, see one twice, or have a command run twice or not at all.

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
func followAll(ctx context.Context, g *rig.Server, exec string) (lines [2]int, exit object, err error) {
	a := rig.Again{G: g}
	defer func() {
		if a.Ws != nil {
			a.Ws.CloseNow()
		}
	}()
	sides := map[string]*counter{"stdout": {prefix: "o"}, "stderr": {prefix: "e"}}
	offset := 0
	for ctx.Err() == nil {
		var wrong error
		f, err := a.Ask(ctx, "exec.attach", object{"exec_id": exec, "offset": offset, "on_slow": "block"}, func(name string, data object) bool {
			switch name {
			case "exec.output":
				text := data.Str("data")
				if data.Str("encoding") == "base64" {
					b, _ := base64.StdEncoding.DecodeString(text)
					text = string(b)
				}
				if at := data.Num("offset"); at != offset {
					wrong = fmt.Errorf("a chunk at %d where %d was due", at, offset)
					return false
				}
				offset += len(text)
				wrong = sides[data.Str("stream")].take(text)
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
	printers, followers, runners, kills, n := rig.Pick(8, 50), rig.Pick(4, 20), rig.Pick(2, 4), rig.Pick(8, 60), rig.Pick(20_000, 200_000)
	// What is printed while nobody is there to read it must not fall out of the ring.
	g := rig.Gateway(t, "--max-sessions", "100", "--ring-bytes", strconv.Itoa(32*n))
	c := g.Dial(t)
	work := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo o$i; echo e$i >&2; done; (exit 7)", n)
	sum := 0 // bytes of one stream
	for i := 1; i <= n; i++ {
		sum += 2 + len(strconv.Itoa(i))
	}
	for i := range runners {
		s := c.Session(object{"shell": rig.Shells[i%2], "name": fmt.Sprint("runner", i)})
		c.Run(s, "V=mine; export W=ours")
	}
	epoch := c.Call("system.ping", object{}).Str("epoch")
	c.Close()
	execs := make([]string, printers)
	for i := range execs {
		p := g.Dial(t) // its own: what it prints must not keep the others' answers waiting
		s := p.Session(object{"shell": rig.Shells[i%2], "name": fmt.Sprint("printer", i)})
		execs[i] = p.Call("exec.stream", object{"session_id": s, "command": work, "on_slow": "skip"}).Str("exec_id")
		p.Close()
	}

	ctx, cancel := context.WithTimeout(context.Background(), rig.Pick(8*time.Minute, 30*time.Minute))
	defer cancel()
	killing, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	all.Go(func() {
		defer stop()
		for i := range kills {
			time.Sleep(time.Duration(100+rand.IntN(1100)) * time.Millisecond)
			if i%4 == 3 { // an upgrade in between; one that meets a dead gateway is refused
				_ = syscall.Kill(g.Pid, syscall.SIGHUP)
			} else if pid := g.GatewayPid(); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	for i := range followers {
		all.Go(func() {
			lines, exit, err := followAll(ctx, g, execs[i])
			if err != nil || lines != [2]int{n, n} || exit.Num("exit_code") != 7 {
				t.Errorf("follower %d: %v lines of %d, exit %v, %v", i, lines, n, exit, err)
			}
		})
	}
	ran := make([]int, runners)
	for i := range runners {
		all.Go(func() { // one command after the other, each until it is answered, for as long as gateways are killed
			a := rig.Again{G: g}
			for k := 0; killing.Err() == nil; k++ {
				q := object{"session": fmt.Sprint("runner", i), "command": fmt.Sprintf("echo %d >>ran%d; N=$((N+1)); echo $N", k, i), "env": object{"V": "own", "W": nil}, "request_key": fmt.Sprint("k", k)}
				for {
					f, err := a.Ask(ctx, "exec.run", q, nil)
					if err == nil && f.Error == nil {
						if got := f.Data.Stdout(); got != fmt.Sprintln(k+1) {
							t.Errorf("runner %d: command %d printed %q", i, k, got)
						}
						break
					}
					if ctx.Err() != nil || f.Error != nil && f.Code() != "SHUTTING_DOWN" {
						t.Errorf("runner %d: command %d: %v %v", i, k, f.Error, errors.Join(err, ctx.Err()))
						return
					}
				}
				ran[i] = k + 1
			}
			if a.Ws != nil {
				a.Ws.CloseNow()
			}
		})
	}
	all.Wait()
	a := rig.Again{G: g}
	sure := func(method string, params object) object { // the last upgrade may still be under way
		for {
			f, err := a.Ask(ctx, method, params, nil)
			switch {
			case err == nil && f.Error == nil:
				return f.Data
			case err == nil && f.Code() != "SHUTTING_DOWN" || ctx.Err() != nil:
				t.Fatalf("%s: %v %v", method, f.Error, err)
			}
		}
	}
	for i := range runners {
		q := object{"session": fmt.Sprint("runner", i), "command": "echo $V $W; sh -c 'echo $V $W'"}
		if out := sure("exec.run", q).Stdout(); out != "mine ours\nours\n" { // what was one command's was never left to another
			t.Errorf("runner %d: %q", i, out)
		}
		text, _ := os.ReadFile(filepath.Join(g.Home, fmt.Sprint("ran", i)))
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
		if r.Num("exit_code") != 7 || r.Num("stdout_bytes") != sum || r.Num("stderr_bytes") != sum {
			t.Errorf("printer %d: %v", i, rig.Brief(fmt.Sprint(r)))
		}
		last := strconv.Itoa(n)
		if out := r.Stdout(); !strings.HasSuffix(out, "o"+last+"\n") || strings.Contains(out, "e") {
			t.Errorf("printer %d: stdout ends in %q", i, rig.Brief(out[max(0, len(out)-40):]))
		}
	}
	if now := sure("system.ping", object{}).Str("epoch"); now != epoch {
		t.Errorf("epoch %s, was %s", now, epoch)
	}
	t.Logf("%d gateways killed; commands run meanwhile: %v", kills, ran)
	a.Ws.CloseNow()
	g.Upgrade(t) // the end of the test is not to meet the keeper between two programs
}

// TestCommandRunsOnceWhenItsGatewayDiesEarly: a gateway dies before the command's line is in the shell's channel, or before it has the report, which an
// error took along. Either way the command runs once.
func TestCommandRunsOnceWhenItsGatewayDiesEarly(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	for _, path := range rig.Shells {
		t.Run(filepath.Base(path), func(t *testing.T) {
			for name, full := range map[string]bool{"no line": true, "no report": false} {
				t.Run(name, func(t *testing.T) {
					c := g.Dial(t)
					s := c.Session(object{"shell": path})
					pid, err := strconv.Atoi(strings.TrimSpace(c.Run(s, "echo $$").Stdout()))
					if err != nil {
						t.Fatal(err)
					}
					ran := filepath.Join(g.Home, filepath.Base(path)+name)
					work := "echo once >>'" + ran + "'; typeset -i x=08" // at which bash drops the rest of its line
					code := c.Run(s, strings.Replace(work, "once", "first", 1)).Num("exit_code")

					channelPath := rig.Descriptor(t, pid, "pipe:") // while no report is on its way
					if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
						t.Fatal(err)
					}
					defer syscall.Kill(pid, syscall.SIGCONT)
					if full {
						channel, err := os.OpenFile(channelPath, os.O_WRONLY|syscall.O_NONBLOCK, 0)
						if err != nil {
							t.Fatal(err)
						}
						for err == nil {
							_, err = syscall.Write(int(channel.Fd()), []byte("\n"))
						}
						channel.Close()
					}
					x := c.Stream(s, work).Str("exec_id")
					g.KillGateway(t)
					c = g.Redial(t)
					c.Call("session.list", object{}) // its answer comes when the sessions are back
					if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
						t.Fatal(err)
					}
					if r := c.Call("exec.wait", object{"exec_id": x, "timeout_s": 60}); r.Num("exit_code") != code {
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
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	shell, control, _ := strings.Cut(strings.TrimSpace(c.Run(s, "echo $$ $__trl_c").Stdout()), " ")
	pid, err := strconv.Atoi(shell)
	if err != nil || !strings.HasPrefix(control, "/proc/") {
		t.Fatalf("shell %q, control pipe %q: %v", shell, control, err)
	}
	if unix.Access(control, unix.R_OK) != nil {
		t.Skip("not run: the control pipe cannot be opened from here")
	}
	flag, begun := filepath.Join(g.Home, "go"), filepath.Join(g.Home, "begun")
	x := c.Stream(s, ">"+begun+"; until [ -e "+flag+" ]; do sleep 0.01; done; (exit 7)").Str("exec_id")
	testkit.Eventually(t, "the command runs", func() bool { _, err := os.Stat(begun); return err == nil })

	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	g.Freeze(t)
	must(os.WriteFile(flag, nil, 0o600))
	reports, err := os.OpenFile(control, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	must(err)
	defer reports.Close()
	report := make([]byte, 512)
	must(reports.SetReadDeadline(time.Now().Add(testkit.Patience)))
	n, err := reports.Read(report) // in the place of the gateway, which would now die
	if must(err); !strings.HasSuffix(string(report[:n]), " 7\n") {
		t.Fatalf("reported: %q", report[:n])
	}
	channel, err := os.OpenFile(rig.Descriptor(t, pid, "pipe:"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	must(err)
	defer channel.Close()
	testkit.Eventually(t, "the shell waits for a line", func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		return strings.HasPrefix(string(text), "0 ")
	})
	must(syscall.Kill(pid, syscall.SIGSTOP))
	defer syscall.Kill(pid, syscall.SIGCONT)
	_, err = channel.WriteString("\n") // what is left of a line
	must(err)
	g.KillGateway(t)
	c = g.Redial(t)
	c.Call("session.list", object{})
	must(syscall.Kill(pid, syscall.SIGCONT))
	if r := c.Call("exec.wait", object{"exec_id": x, "timeout_s": 60}); r.Num("exit_code") != 7 {
		t.Errorf("%v", r)
	}
}

// TestUpdatedSettingsSurviveAKilledGateway: session.update is in force under the next gateway.
func TestUpdatedSettingsSurviveAKilledGateway(t *testing.T) {
	g := rig.Gateway(t)
	c := g.Dial(t)
	id := c.Session(object{"labels": object{"old": "1"}, "timeout_s": 5, "idle_timeout_s": 1000})
	c.Call("session.update", object{"session_id": id, "labels": object{"new": "2"}, "timeout_s": 1})
	g.KillGateway(t)
	c = g.Redial(t)
	i := c.Call("session.update", object{"session_id": id, "idle_timeout_s": 2000})
	if labels := i.Obj("labels"); len(labels) != 1 || labels.Str("new") != "2" || i.Num("timeout_s") != 1 || i.Num("idle_timeout_s") != 2000 {
		t.Errorf("%v", i)
	}
	if r := c.Run(id, rig.Sleeper()); r["timed_out"] != true || r.Num("timeout_s") != 1 {
		t.Errorf("%v", r)
	}
}
