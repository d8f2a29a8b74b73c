package acceptance

import (
	"context"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Gateways are killed, and the keeper replaced, under everything that a client can ask for at once: each kind of work goes on
// over as many connections as it takes, and what it did and was told must be exact.

// worker is one client that goes on with its work until the killing is over.
type worker struct {
	again
	ctx  context.Context
	name string // of the worker and its session
	s    string // the session
}

// sure asks until there is an answer.
func (w *worker) sure(method string, params object) object {
	f := w.answer(method, params)
	if f.Error != nil {
		panic(fmt.Errorf("%s: %v", method, *f.Error))
	}
	return f.Data
}

func (w *worker) answer(method string, params object) frame {
	for {
		f, err := w.ask(w.ctx, method, params, nil)
		if err == nil && f.code() != "SHUTTING_DOWN" {
			return f
		}
		if w.ctx.Err() != nil {
			panic(fmt.Errorf("%s: no answer: %v %v", method, err, f.code()))
		}
		time.Sleep(time.Millisecond)
	}
}

// path is of the file in which the work leaves its traces.
func (w *worker) path() string { return filepath.Join(w.g.home, w.name) }

func (w *worker) key(k int) object {
	return object{"session_id": w.s, "request_key": fmt.Sprint(w.name, k)}
}

// want panics unless what was got is this.
func want(what string, got, want any) {
	if got != want {
		panic(fmt.Errorf("%s: %v, not %v", what, brief(fmt.Sprint(got)), brief(fmt.Sprint(want))))
	}
}

func (w *worker) ran(r object, code int, out string) {
	want(fmt.Sprint("exit code of ", r), r.num("exit_code"), code)
	want("stdout", r.stdout(), out)
	want("stderr", r.stderr(), "")
}

// follow reads a stream from its first byte, over as many connections as it takes, until it has said all.
func (w *worker) follow(kind, id, all string) {
	var got strings.Builder
	ctx, cancel := context.WithTimeout(w.ctx, 2*patience)
	defer cancel()
	for done := false; !done; {
		w.drop() // what was subscribed to on it would be among these events
		q := object{kind + "_id": id, "offset": got.Len(), "on_slow": "block"}
		if kind == "term" {
			q["mode"] = "view"
		}
		f, err := w.ask(ctx, kind+".attach", q, func(name string, data object) bool {
			switch name {
			case kind + ".output":
				want("offset", data.num("offset"), got.Len())
				got.WriteString(data.text("data", "encoding"))
			case "stream.gap":
				panic(fmt.Errorf("gap: %v", data))
			}
			ended := name == kind+".exit" // of an exec: what its jobs print later is there for who attaches again
			done = got.Len() >= len(all) && (ended || kind == "exec")
			return !done && !ended
		})
		switch {
		case err == nil && f.Error != nil && f.code() != "SHUTTING_DOWN":
			panic(fmt.Errorf("attach: %v", *f.Error))
		case ctx.Err() != nil:
			panic(fmt.Errorf("stream %s: %q of %q; %v", id, brief(got.String()), brief(all), err))
		}
	}
	w.drop()
	want("stream", got.String(), all)
}

// drop leaves the connection.
func (w *worker) drop() {
	if w.ws != nil {
		w.ws.CloseNow()
		w.ws = nil
	}
}

// works are the kinds of work: one step each.
var works = map[string]func(w *worker, k int){
	"state": func(w *worker, k int) {
		r := w.sure("exec.run", with(w.key(k), object{"command": fmt.Sprintf("echo %d >>%s; N=$((N+1)); echo $N $V $PWD", k, w.path()), "env": object{"V": "own"}, "working_dir": "/"}))
		w.ran(r, 0, fmt.Sprintln(k+1, "own", "/"))
		r = w.sure("exec.run", with(w.key(k), object{"command": "echo $V; [ $PWD -ef " + w.g.home + " ]", "request_key": fmt.Sprint("then", k)}))
		w.ran(r, 0, "\n")
	},
	"queue": func(w *worker, k int) {
		var all []string
		for i := range 3 {
			n := 3*k + i
			all = append(all, w.sure("exec.stream", with(w.key(n), object{"command": fmt.Sprintf("echo %d >>%s.all; sleep 0.01", n, w.path()), "on_slow": "skip"})).str("exec_id"))
		}
		for _, x := range all {
			r := w.sure("exec.wait", object{"exec_id": x, "timeout_s": 60})
			want(fmt.Sprint("exit code of ", r), r.num("exit_code"), 0)
		}
		text, _ := os.ReadFile(w.path() + ".all")
		lines := strings.Fields(string(text))
		want(fmt.Sprint("how many are ", lines[max(0, len(lines)-30):]), len(lines), 3*k+3)
		want("the last", lines[len(lines)-1], strconv.Itoa(3*k+2))
	},
	"bytes": func(w *worker, k int) {
		n := 1000 + rand.IntN(60_000)
		r := w.sure("exec.run", with(w.key(k), object{"command": fmt.Sprintf("seq %d; seq %d >&2", n, k)}))
		var o, e strings.Builder
		for i := range n {
			fmt.Fprintln(&o, i+1)
		}
		for i := range k {
			fmt.Fprintln(&e, i+1)
		}
		want("stdout", r.stdout(), o.String())
		want("stderr", r.stderr(), e.String())
	},
	"stdin": func(w *worker, k int) {
		data := make([]byte, rand.IntN(400_000))
		for i := range data {
			data[i] = byte(rand.Int())
		}
		q := with(w.key(k), object{"command": "cat >" + w.name + "; cat <" + w.name, "stdin": base64.StdEncoding.EncodeToString(data), "stdin_encoding": "base64"})
		r := w.sure("exec.run", q)
		want("exit code", r.num("exit_code"), 0)
		want("sum of stdin", crc32.ChecksumIEEE([]byte(r.stdout())), crc32.ChecksumIEEE(data))
	},
	"cancel": func(w *worker, k int) {
		nap := sleeper()
		x := w.sure("exec.stream", with(w.key(k), object{"command": "V=$((V+1)); " + nap, "on_slow": "skip"})).str("exec_id")
		if k%2 == 0 {
			for len(running(nap)) == 0 && w.ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}
		w.sure("exec.cancel", object{"exec_id": x})
		r := w.sure("exec.wait", object{"exec_id": x, "timeout_s": 60})
		if r.yes("running") || !r.yes("cancelled") || r.num("exit_code") != 143 {
			panic(fmt.Errorf("cancelled: %v", r))
		}
		want("sleepers", len(running(nap)), 0)
	},
	"timeout": func(w *worker, k int) {
		nap := sleeper()
		r := w.sure("exec.run", with(w.key(k), object{"command": fmt.Sprintf("N=%d; echo begun; sh -c 'trap \"\" TERM; %s; :'", k, nap), "timeout_s": 0.1, "kill_grace_s": 0.1}))
		if !r.yes("timed_out") || r.str("stderr") != "" && r.str("stderr") != "Killed\n" || r.num("exit_code") != 137 && r.num("exit_code") != 143 { // it may not have come to its trap
			panic(fmt.Errorf("timed out: %v", r))
		}
		want("sleepers", len(running(nap)), 0)
		w.ran(w.sure("exec.run", with(w.key(k), object{"request_key": fmt.Sprint(w.name, "after", k), "command": "echo here"})), 0, "here\n")
	},
	"shell ends": func(w *worker, k int) {
		w.ran(w.sure("exec.run", with(w.key(k), object{"command": fmt.Sprintf("V=%d", k), "request_key": fmt.Sprint("set", k)})), 0, "")
		r := w.sure("exec.run", with(w.key(k), object{"command": []string{"kill -9 $$", "exit 9"}[k%2]}))
		want(fmt.Sprint("exit code of ", brief(fmt.Sprint(r))), r.num("exit_code"), []int{137, 9}[k%2])
		want("shell_restored", r.yes("shell_restored"), true)
		w.ran(w.sure("exec.run", with(w.key(k), object{"command": "echo $V", "request_key": fmt.Sprint("get", k)})), 0, fmt.Sprintln(k))
	},
	"process": func(w *worker, k int) {
		n, pause := 1+rand.IntN(400), []string{"", "sleep 0.001;"}[k%2]
		p := w.sure("process.start", with(w.key(k), object{"command": fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i; %s done; echo %d >>%s; exit %d", n, pause, k, w.name, k%100)})).str("process_id")
		r := w.sure("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 120})
		want("exit met", r.yes("met"), true)
		want("exit code of a process", r.num("exit_code"), k%100)
		var got, all strings.Builder
		for at, eof := 0, false; !eof; {
			l := w.sure("process.logs", object{"process_id": p, "offset": at})
			for _, c := range l.objs("chunks") {
				got.WriteString(c.text("data", "encoding"))
			}
			at, eof = l.num("next_offset"), l.yes("eof")
		}
		for i := range n {
			fmt.Fprintln(&all, i+1)
		}
		want("log", got.String(), all.String())
	},
	"process killed": func(w *worker, k int) {
		nap := sleeper()
		p := w.sure("process.start", with(w.key(k), object{"command": nap + " & setsid " + nap + " & " + nap})).str("process_id")
		if k%2 == 0 {
			for len(running(nap)) < 3 && w.ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}
		w.sure("process.kill", object{"process_id": p, "kill_grace_s": 0.2})
		i := w.sure("process.info", object{"process_id": p})
		want("state", i.str("state"), "exited")
		want("sleepers", len(running(nap)), 0)
	},
	"process timeout": func(w *worker, k int) {
		nap := sleeper()
		p := w.sure("process.start", with(w.key(k), object{"command": "trap 'exit 3' TERM; " + nap + " & wait", "timeout_s": 0.1})).str("process_id")
		w.sure("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
		i := w.sure("process.info", object{"process_id": p})
		want(fmt.Sprint("timed_out in ", i), i.yes("timed_out"), true)
		want("sleepers", len(running(nap)), 0)
	},
	"left behind": func(w *worker, k int) {
		flag := fmt.Sprintf("%s.%d", w.name, k)
		r := w.sure("exec.run", with(w.key(k), object{"command": fmt.Sprintf("(until [ -e %s ]; do sleep 0.01; done; echo late%d; echo %d >>%s) & echo now", flag, k, k, w.name)}))
		w.ran(r, 0, "now\n")
		want(fmt.Sprint("left behind by ", r), len(r.ints("background")) > 0, true)
		w.ran(w.sure("exec.run", with(w.key(k), object{"command": ">" + flag + "; echo next", "request_key": fmt.Sprint("next", k)})), 0, "next\n")
		w.follow("exec", r.str("exec_id"), fmt.Sprintf("now\nlate%d\n", k))
	},
	"sessions": func(w *worker, k int) {
		nap := sleeper()
		s := w.sure("session.create", object{"shell": shells[k%2], "request_key": fmt.Sprint(w.name, k)}).str("session_id")
		q := object{"session_id": s, "request_key": fmt.Sprint("run", k)}
		w.ran(w.sure("exec.run", with(q, object{"command": "echo $TRL_SESSION_ID"})), 0, s+"\n")
		w.sure("process.start", with(q, object{"command": nap, "request_key": fmt.Sprint("start", k)}))
		x := w.sure("exec.stream", with(q, object{"command": nap + " & " + nap, "request_key": fmt.Sprint("nap", k)}))
		f := w.answer("session.destroy", object{"session_id": s, "grace_s": 0.2})
		if f.Error != nil {
			panic(fmt.Errorf("destroy: %v", *f.Error))
		}
		want("state", w.sure("session.info", object{"session_id": s}).str("state"), "TERMINATED")
		want("sleepers", len(running(nap)), 0)
		want("its command runs", w.sure("exec.wait", object{"exec_id": x.str("exec_id"), "timeout_s": 60}).yes("running"), false)
	},
	"reset": func(w *worker, k int) {
		nap := sleeper()
		w.ran(w.sure("exec.run", with(w.key(k), object{"command": nap + " >/dev/null 2>&1 & V=gone"})), 0, "")
		w.sure("session.reset", object{"session_id": w.s})
		want("sleepers", len(running(nap)), 0)
		w.ran(w.sure("exec.run", with(w.key(k), object{"command": "echo $V.", "request_key": fmt.Sprint("get", k)})), 0, ".\n")
	},
	"terminal": func(w *worker, k int) {
		n := 50 + rand.IntN(500)
		f := w.sure("term.open", with(w.key(k), object{"cols": 80, "rows": 24, "on_slow": "skip", "command": fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i; sleep 0.001; done; echo %d >>%s; exit 5", n, k, w.path())}))
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, "%d\r\n", i+1)
		}
		w.follow("term", f.str("term_id"), all.String())
		list := w.sure("term.list", object{"session_id": w.s}).objs("terminals")
		for _, x := range list {
			if x.str("term_id") == f.str("term_id") && x.str("state") == "exited" {
				want("exit code", x.num("exit_code"), 5)
				return
			}
		}
		panic(fmt.Errorf("no exited terminal in %v", list))
	},
}

func TestWorksWhileGatewaysDie(t *testing.T) {
	kills := pick(10, 80)
	g := gateway(t, "--max-sessions", "100", "--retention", "20s")
	cgroup := g.gCgroup(t)
	ctx, cancel := context.WithTimeout(context.Background(), pick(4*time.Minute, 30*time.Minute))
	defer cancel()
	g.upgrade(t)
	eventually(t, "warm", func() bool { return g.metric(t, "trl_warm_shells") == 4 })
	before := g.counts(t, cgroup)
	killing, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	all.Go(func() {
		defer stop()
		for range kills {
			time.Sleep(time.Duration(100+rand.IntN(900)) * time.Millisecond)
			for range 1 + rand.IntN(2) { // both at once, now and then
				if rand.IntN(2) == 0 {
					_ = syscall.Kill(g.pid, syscall.SIGHUP)
				} else if pid := g.gatewayPid(); pid > 0 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
			}
		}
	})
	var mu sync.Mutex
	steps := map[string]int{}
	for name, step := range works {
		for i, sh := range shells {
			all.Go(func() {
				w := &worker{again: again{g: g}, ctx: ctx, name: strings.ReplaceAll(name, " ", "") + strconv.Itoa(i)}
				k := 0
				defer func() {
					if fault := recover(); fault != nil {
						t.Errorf("%s in %s, step %d: %v", name, sh, k, fault)
					}
					w.drop()
					mu.Lock()
					steps[name] += k
					mu.Unlock()
				}()
				defer func() { w.answer("session.destroy", object{"session_id": w.s, "force": true}) }()
				w.s = w.sure("session.create", object{"shell": sh, "name": w.name, "if_exists": "return"}).str("session_id")
				for ; killing.Err() == nil; k++ {
					step(w, k)
				}
				if text, err := os.ReadFile(w.path()); err == nil && name != "stdin" {
					lines := strings.Fields(string(text))
					want(fmt.Sprint("how many are ", lines[max(0, len(lines)-30):]), len(lines), k)
					for i, line := range lines {
						want("thing done", line, strconv.Itoa(i))
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("steps: %v", steps)
	g.upgrade(t)
	left, _ := filepath.Glob(filepath.Join(g.home, "*"))
	for _, name := range left {
		_ = os.Remove(name)
	}
	eventually(t, "no process and no cgroup is left", func() bool { after := g.counts(t, cgroup); return after[4] <= before[4] && after[6] <= before[6] })
	if pick(true, false) {
		return // what is retained takes its time to go
	}
	w := &worker{again: again{g: g}, ctx: ctx}
	eventually(t, "all is forgotten", func() bool { return len(w.sure("session.list", object{}).objs("sessions")) == 0 })
	w.drop()
	g.settles(t, cgroup, before)
}
