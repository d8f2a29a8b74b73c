package rpc

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
)

func TestRequestsOfOneSessionAreAppliedInOrder(t *testing.T) {
	g := start(t)
	c := g.Dial()
	// All in one go, without waiting: the session does not exist when the commands are sent, and is being destroyed when the last is.
	create := c.Begin("session.create", object{"name": "n"})
	var runs []int
	for i := range 20 {
		runs = append(runs, c.Begin("exec.run", object{"session": "n", "command": fmt.Sprintf("X=${X}%d,; echo $X", i)}))
	}
	info := c.Begin("session.info", object{"session": "n"})
	for i, id := range runs {
		want := ""
		for n := range i + 1 {
			want += fmt.Sprintf("%d,", n)
		}
		if got := c.Answer(id); got.Data.Str("stdout") != want+"\n" {
			t.Fatalf("run %d: %+v, want %s", i, got, want)
		}
	}
	if f := c.Answer(create); !f.OK {
		t.Fatalf("%+v", f.Error)
	}
	if f := c.Answer(info); !f.OK {
		t.Fatalf("%+v", f.Error)
	}
	destroy := c.Begin("session.destroy", object{"session": "n"})
	after := c.Begin("exec.run", object{"session": "n", "command": "true"})
	ended := c.Begin("session.info", object{"session": "n"})
	if f := c.Answer(after); f.Code() != "SESSION_TERMINATED" {
		t.Fatalf("%+v", f)
	}
	if f := c.Answer(ended); f.Data.Str("state") != "TERMINATED" || f.Data.Str("reason") != "client" {
		t.Fatalf("%+v", f)
	}
	c.Answer(destroy)
}

// TestNameIsLookedUpInTurn: a session may be called by the name that a request before is about to give it.
func TestNameIsLookedUpInTurn(t *testing.T) {
	g := start(t)
	c := g.Dial()
	for i := range 20 {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		create := c.Begin("session.create", object{"name": a})
		rename := c.Begin("session.rename", object{"session": a, "name": b})
		run := c.Begin("exec.run", object{"session": b, "command": "echo hi"})
		byOld := c.Begin("exec.run", object{"session": a, "command": "true"})
		for _, id := range []int{create, rename} {
			if f := c.Answer(id); !f.OK {
				t.Fatalf("%+v", f.Error)
			}
		}
		if f := c.Answer(run); f.Data.Str("stdout") != "hi\n" {
			t.Fatalf("%+v", f.Error)
		}
		if f := c.Answer(byOld); f.Code() != "SESSION_NOT_FOUND" {
			t.Fatalf("%+v", f)
		}
		c.Call("session.destroy", object{"session": b})
	}
}

func TestDefaultSession(t *testing.T) {
	g := start(t)
	c := g.Dial()
	if got := c.Call("exec.cancel", nil); got["cancelled"] != false {
		t.Fatalf("%v", got)
	}
	if got := c.Call("session.list", nil)["sessions"].([]any); len(got) != 0 {
		t.Fatal("a cancel made the default session")
	}
	a := c.Begin("exec.run", object{"command": "cd /usr"})
	b := c.Begin("exec.run", object{"command": "pwd"})
	c.Answer(a)
	if got := c.Answer(b); got.Data.Str("stdout") != "/usr\n" {
		t.Fatalf("%+v", got)
	}
}

// TestKeyOfARenamedSession: a key stands for a terminal of what was the default session, and the answer says of which.
func TestKeyOfARenamedSession(t *testing.T) {
	c := start(t).Dial()
	q := object{"cols": 80, "rows": 24, "command": "cat", "request_key": "k"}
	first := c.Call("term.open", q)
	c.Call("session.rename", object{"session_id": first.Str("session_id"), "name": "old"})
	c.Call("exec.run", object{"command": "true"}) // makes another default session
	if again := c.Call("term.open", q); again.Str("term_id") != first.Str("term_id") || again.Str("session_id") != first.Str("session_id") {
		t.Errorf("%v, then %v", first, again)
	}
}

func TestSlowRequestHoldsUpNobodyElse(t *testing.T) {
	g := start(t)
	c := g.Dial()
	stubborn, other := c.Session(), c.Session()
	proceed := t.TempDir() + "/go"
	p := c.Call("process.start", object{"session_id": stubborn, "command": "trap '' TERM; echo up; until [ -e " + proceed + " ]; do sleep 0.05; done"})
	c.Call("process.wait", object{"process_id": p.Str("process_id"), "until": object{"output": "up"}, "timeout_s": 60})
	destroy := c.Begin("session.destroy", object{"session_id": stubborn, "grace_s": 600})
	if got := c.Run(other, "echo hi").Stdout(); got != "hi\n" {
		t.Fatalf("%q", got)
	}
	c.Mu.Lock()
	early := slices.ContainsFunc(c.Came, func(f *rig.Frame) bool { return f.ID == float64(destroy) })
	c.Mu.Unlock()
	if early {
		t.Fatal("the destroy was to wait for the process")
	}
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := c.Answer(destroy); !f.OK {
		t.Fatalf("%+v", f.Error)
	}
}

func TestRequestsInFlight(t *testing.T) {
	g := start(t)
	c := g.Dial()
	s := c.Session()
	hold := c.Call("exec.stream", object{"session_id": s, "command": "cat", "interactive_stdin": true}) // a stream is not in flight
	deaf := c.Call("process.start", object{"session_id": s, "command": "trap '' TERM; echo deaf; while :; do sleep 1; done"}).Str("process_id")
	c.Call("process.wait", object{"process_id": deaf, "until": object{"output": "deaf"}, "timeout_s": 60})
	var waiting, killing []int
	for range 128 {
		waiting = append(waiting, c.Begin("exec.wait", object{"exec_id": hold.Str("exec_id")}))
	}
	limited := func(method string, params object) {
		t.Helper()
		if f := c.Try(method, params); f.Code() != "RATE_LIMITED" {
			t.Fatalf("%+v", f)
		}
	}
	limited("system.ping", nil)
	c.Call("exec.input", object{"exec_id": hold.Str("exec_id"), "data": "x"}) // what steers has room of its own, which has an end too
	kill := object{"process_id": deaf, "kill_grace_s": 600}
	for range maxUrgent {
		killing = append(killing, c.Begin("process.kill", kill))
	}
	limited("process.kill", kill)
	if n := g.Metric("trl_rate_limited_total"); n != 2 {
		t.Fatalf("counted %v", n)
	}
	d := g.Dial()
	d.Call("process.kill", object{"process_id": deaf, "signal": "KILL"})
	for _, id := range killing {
		if f := c.Answer(id); f.Data.Str("signal") != "KILL" {
			t.Fatalf("%+v", f)
		}
	}
	c.Call("exec.input", object{"exec_id": hold.Str("exec_id"), "eof": true})
	for _, id := range waiting {
		if f := c.Answer(id); f.Data.Num("exit_code") != 0 {
			t.Fatalf("%+v", f)
		}
	}
	c.Call("system.ping", nil)
}

// TestOneConnectionFillsAQueue: as many commands as may wait, and it can still end each of them, and the session.
func TestOneConnectionFillsAQueue(t *testing.T) {
	g := start(t)
	c := g.Dial()
	s := c.Session()
	var runs []int
	for range 1 + 64 {
		runs = append(runs, c.Begin("exec.run", object{"session_id": s, "command": "sleep 300"}))
	}
	if f := c.Try("exec.run", object{"session_id": s, "command": "true"}); f.Code() != "SESSION_BUSY" {
		t.Fatalf("%+v", f)
	}
	for _, id := range runs[1:] {
		if got := c.Call("exec.cancel", object{"request_id": id}); got["cancelled"] != true {
			t.Fatalf("%v", got)
		}
	}
	c.Call("session.destroy", object{"session_id": s, "force": true})
	for _, id := range runs {
		if f := c.Answer(id); f.Data["cancelled"] != true {
			t.Fatalf("%+v", f)
		}
	}
}

func TestCancelByRequestID(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	c.SendText(`{"id":"long","method":"exec.run","params":{"session_id":"` + id + `","command":"echo part; sleep 300"}}`)
	queued := c.Begin("exec.run", object{"session_id": id, "command": "echo never"})
	if got := c.Call("exec.cancel", object{"request_id": queued}); got["cancelled"] != true {
		t.Fatalf("%v", got)
	}
	if f := c.Answer(queued); f.Data["cancelled"] != true || f.Data.Str("stdout") != "" {
		t.Fatalf("%+v", f)
	}
	testkit.Eventually(t, "output", func() bool { return c.Call("session.info", object{"session_id": id}).Str("state") == "RUNNING" })
	c.SendText(`{"id":"c","method":"exec.cancel","params":{"request_id":"l\u006fng"}}`)
	got := c.Answer("c").Data
	f := c.Answer("long")
	if got["cancelled"] != true || f.Data["cancelled"] != true || got.Str("exec_id") != f.Data.Str("exec_id") {
		t.Fatalf("%v %+v", got, f)
	}
	for _, again := range []object{{"request_id": "long"}, {"exec_id": f.Data.Str("exec_id")}, {"session_id": id}} { // E5
		if got := c.Call("exec.cancel", again); got["cancelled"] != false {
			t.Fatalf("%v: %v", again, got)
		}
	}
	for _, unknown := range []object{{"request_id": "other"}, {"request_id": 999}, {"exec_id": "x-none"}} {
		if f := c.Try("exec.cancel", unknown); f.Code() != "EXEC_NOT_FOUND" {
			t.Fatalf("%v: %+v", unknown, f)
		}
	}
	stream := c.Begin("exec.stream", object{"session_id": id, "command": "sleep 300"})
	c.Answer(stream)
	if got := c.Call("exec.cancel", object{"request_id": stream}); got["cancelled"] != true {
		t.Fatalf("%v", got)
	}
	if exit := c.Event("exec.exit"); exit["cancelled"] != true {
		t.Fatalf("%v", exit)
	}
	if got := c.Run(id, "echo ok").Stdout(); got != "ok\n" {
		t.Fatalf("%q", got)
	}
}

func TestSignalAlone(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	run := c.Begin("exec.run", object{"session_id": id, "command": `sh -c 'trap "echo got; exit 5" USR1; echo up; while :; do sleep 0.05; done'`})
	testkit.Eventually(t, "it runs", func() bool {
		return c.Call("session.info", object{"session_id": id}).Str("state") == "RUNNING"
	})
	testkit.Eventually(t, "the signal is caught", func() bool {
		c.Call("exec.cancel", object{"session_id": id, "signal": "sigusr1"})
		c.Mu.Lock()
		defer c.Mu.Unlock()
		return slices.ContainsFunc(c.Came, func(f *rig.Frame) bool { return f.ID == float64(run) })
	})
	c.Answer(run)
	if f := c.Try("exec.cancel", object{"session_id": id, "signal": "nope"}); f.Code() != "INVALID_PARAMS" {
		t.Fatalf("%+v", f)
	}
}

// TestSignalIsTold: the answer to a signal says how many got it, or why nobody did.
func TestSignalIsTold(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	up := t.TempDir() + "/up"
	run := c.Begin("exec.run", object{"session_id": id, "command": ": >" + up + "; while :; do :; done"})
	testkit.Eventually(t, "it runs", func() bool {
		_, err := os.Stat(up)
		return err == nil
	})
	if a := c.Call("exec.cancel", object{"session_id": id, "signal": "WINCH"}); a["cancelled"] == true || a.Str("reason") != "ignored" || a["signalled"] != nil {
		t.Fatalf("%v", a)
	}
	exec := c.Call("exec.cancel", object{"session_id": id, "signal": "TERM"})
	if exec["cancelled"] != true || exec.Num("signalled") != 1 || exec["reason"] != nil {
		t.Fatalf("%v", exec)
	}
	if r := c.Answer(run).Data; r.Num("exit_code") != 143 || r.Str("signal") != "TERM" || r["cancelled"] == true || r["shell_restored"] == true {
		t.Fatalf("%v", r)
	}
	if a := c.Call("exec.cancel", object{"exec_id": exec.Str("exec_id"), "signal": "TERM"}); a["cancelled"] == true || a.Str("reason") != "ended" {
		t.Fatalf("%v", a)
	}
}

func TestYieldAndWait(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	r := c.Call("exec.run", object{"session_id": id, "command": "echo one; read x; echo two", "stdin": "", "yield_ms": 10000})
	if r["running"] != nil || r.Str("stdout") != "one\ntwo\n" {
		t.Fatalf("%v", r)
	}
	s := c.Call("exec.stream", object{"session_id": id, "command": "echo one; read x; echo two", "interactive_stdin": true})
	c.Event("exec.output")
	r = c.Call("exec.wait", object{"exec_id": s.Str("exec_id"), "yield_ms": 1, "offset": 0})
	if r["running"] != true || r.Str("stdout") != "one\n" || r.Num("next_offset") != 4 {
		t.Fatalf("%v", r)
	}
	wait := c.Begin("exec.wait", object{"exec_id": s.Str("exec_id"), "offset": r.Num("next_offset"), "timeout_s": 60})
	c.Call("exec.input", object{"exec_id": s.Str("exec_id"), "data": "x\n"})
	if f := c.Answer(wait); f.Data.Str("stdout") != "two\n" || f.Data.Num("exit_code") != 0 {
		t.Fatalf("%+v", f)
	}
	x := c.Call("exec.run", object{"session_id": id, "command": `printf '\033[1mbold\n'`, "clean": true}).Str("exec_id")
	for _, q := range []object{{"exec_id": x}, {"exec_id": x, "offset": 0}} {
		if r := c.Call("exec.wait", q); r.Str("stdout") != "bold\n" || r.Num("next_offset") != 9 {
			t.Errorf("%v: %v", q, r)
		}
	}
	if f := c.Try("exec.wait", object{"exec_id": x, "offset": 10}); f.Code() != "STREAM_NOT_FOUND" {
		t.Errorf("%+v", f)
	}
}

func TestOthersSessionsDoNotExist(t *testing.T) { // K7, K8
	g := start(t, withTokens)
	ann, bob := g.Dial(gateway.AdminToken), g.Dial(gateway.UserToken)
	id := ann.Session(object{"name": "hers"})
	e := ann.Call("exec.stream", object{"session_id": id, "command": "cat", "interactive_stdin": true}).Str("exec_id")
	p := ann.Call("process.start", object{"session_id": id, "command": "sleep 300"}).Str("process_id")
	for method, params := range map[string][2]object{
		"session.info":    {{"session_id": id}, {"session_id": "s-none"}},
		"session.destroy": {{"session_id": id}, {"session_id": "s-none"}},
		"session.watch":   {{"session": "hers"}, {"session": "none"}},
		"session.reset":   {{"session_id": id}, {"session_id": "s-none"}},
		"exec.run":        {{"session_id": id, "command": "true"}, {"session_id": "s-none", "command": "true"}},
		"process.start":   {{"session": "hers", "command": "true"}, {"session": "none", "command": "true"}},
		"exec.attach":     {{"exec_id": e}, {"exec_id": "x-none"}},
		"exec.input":      {{"exec_id": e, "data": "x"}, {"exec_id": "x-none", "data": "x"}},
		"exec.cancel":     {{"exec_id": e}, {"exec_id": "x-none"}},
		"exec.wait":       {{"exec_id": e}, {"exec_id": "x-none"}},
		"process.logs":    {{"process_id": p}, {"process_id": "p-none"}},
		"process.kill":    {{"process_id": p}, {"process_id": "p-none"}},
		"process.input":   {{"process_id": p, "data": "x"}, {"process_id": "p-none", "data": "x"}},
	} {
		theirs, none := bob.Try(method, params[0]), bob.Try(method, params[1])
		if theirs.OK || !strings.HasSuffix(theirs.Code(), "_NOT_FOUND") || theirs.Error.Message != none.Error.Message || theirs.Code() != none.Code() || len(theirs.Error.Details) != len(none.Error.Details) {
			t.Errorf("%s: %+v, unknown id: %+v", method, theirs.Error, none.Error)
		}
	}
	if got := bob.Call("session.list", nil)["sessions"].([]any); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if f := bob.Try("session.create", object{"user": "ann"}); f.Code() != "INVALID_PARAMS" {
		t.Errorf("%+v", f)
	}
	if got := ann.Call("session.list", nil)["sessions"].([]any); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

func TestViewerOnlyReads(t *testing.T) {
	g := start(t, withTokens)
	ann, viewer := g.Dial(gateway.AdminToken), g.Dial(gateway.ViewToken)
	id := ann.Session()
	for name, h := range handlers {
		if f := viewer.Try(name, object{"bogus": 1}); (f.Code() == "FORBIDDEN") == (h.access == reads) {
			t.Errorf("%s: %+v", name, f.Error)
		}
	}
	viewer.Call("session.watch", object{"session_id": id})
	ann.Run(id, "echo seen")
	if got := viewer.Event("exec.output"); got.Str("data") != "seen\n" {
		t.Errorf("%v", got)
	}
	if f := viewer.Try("exec.run", object{"session_id": id, "command": "true"}); f.Code() != "FORBIDDEN" {
		t.Errorf("%+v", f)
	}
}

// TestViewerConnectsNowhere: who only reads does not have the gateway connect to anything.
func TestViewerConnectsNowhere(t *testing.T) {
	var asked atomic.Int64
	site := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer site.Close()
	g := start(t, withTokens)
	ann, viewer := g.Dial(gateway.AdminToken), g.Dial(gateway.ViewToken)
	process := ann.Call("process.start", object{"session_id": ann.Session(), "command": "echo up"}).Str("process_id")
	_, port, _ := strings.Cut(strings.TrimPrefix(site.URL, "http://"), ":")
	n, _ := strconv.Atoi(port)
	for _, until := range []object{{"http": site.URL}, {"port": n}, {"port": 9, "host": "192.0.2.1"}} {
		if f := viewer.Try("process.wait", object{"process_id": process, "until": until, "timeout_s": 0.1}); f.Code() != "FORBIDDEN" {
			t.Errorf("%v: %+v", until, f)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("asked %d times", n)
	}
	for _, until := range []object{{"output": "up"}, {"exit": true}} {
		if viewer.Call("process.wait", object{"process_id": process, "until": until})["met"] != true {
			t.Errorf("%v: not met", until)
		}
	}
	process = ann.Call("process.start", object{"session_id": ann.Session(), "command": "sleep 100"}).Str("process_id")
	if ann.Call("process.wait", object{"process_id": process, "until": object{"http": site.URL}})["met"] != true || asked.Load() == 0 {
		t.Error("who may write gets no answer of the site")
	}
}

func TestOnDisconnect(t *testing.T) {
	g := start(t)
	c, d := g.Dial(), g.Dial()
	goes := c.Session(object{"on_disconnect": "destroy", "name": "tied"})
	stays := c.Session()
	shared := d.Call("session.create", object{"name": "tied", "if_exists": "return", "on_disconnect": "destroy"}).Str("session_id")
	other := g.Dial()
	other.Call("session.create", object{"name": "tied", "if_exists": "return", "on_disconnect": "destroy"})
	other.Close() // did not create it
	if got := d.Call("session.info", object{"session_id": goes}); shared != goes || got.Str("state") != "IDLE" {
		t.Fatalf("%v", got)
	}
	c.Begin("exec.run", object{"session_id": stays, "command": "sleep 0.2; X=went-on"})
	c.Close()
	testkit.Eventually(t, "the tied one ends", func() bool {
		i := d.Call("session.info", object{"session_id": goes})
		return i.Str("state") == "TERMINATED" && i.Str("reason") == "disconnect"
	})
	if got := d.Run(stays, "echo $X").Stdout(); got != "went-on\n" { // the command went on without its client
		t.Fatalf("%q", got)
	}
}

// TestRetryingConnectionIsNotTheOnlyOwner: a session ends with the last connection that created it, or tried to, whichever goes first.
func TestRetryingConnectionIsNotTheOnlyOwner(t *testing.T) {
	g := start(t)
	look := g.Dial()
	left := func(open float64) {
		testkit.Eventually(t, "it has left", func() bool { return g.Metric("trl_connections") == open })
	}
	for _, first := range []string{"the retrying one", "the creating one"} {
		q := object{"on_disconnect": "destroy", "request_key": first}
		c, d := g.Dial(), g.Dial()
		id := c.Session(q)
		if again := d.Session(q); again != id {
			t.Fatalf("%s is not %s", again, id)
		}
		if first == "the creating one" {
			c, d = d, c
		}
		d.Close()
		left(2)
		if i := look.Call("session.info", object{"session_id": id}); i.Str("state") != "IDLE" {
			t.Fatalf("%s left: %v", first, i)
		}
		c.Close()
		left(1)
		testkit.Eventually(t, "it ends", func() bool {
			return look.Call("session.info", object{"session_id": id}).Str("reason") == "disconnect"
		})
	}
}

func TestCapabilities(t *testing.T) {
	g := start(t)
	got := g.Dial().Call("system.capabilities", nil)
	if limits := got["limits"].(map[string]any); limits["max_frame_bytes"] != float64(4<<20) || len(got["methods"].([]any)) != len(handlers) || len(got["shells"].([]any)) == 0 {
		t.Errorf("%v", got)
	}
}

// TestUpdate: session.update answers with what is in force. A session of another principal does not exist, and a viewer and a guest may not.
func TestUpdate(t *testing.T) {
	g := start(t, withTokens)
	bob := g.Dial(gateway.UserToken)
	id := bob.Session(object{"name": "build", "labels": object{"a": "1"}})
	got := bob.Call("session.update", object{"session": "build", "labels": object{"b": "2"}, "timeout_s": 1, "idle_timeout_s": 60.5})
	if got.Str("session_id") != id || got.Obj("labels").Str("b") != "2" || got["timeout_s"] != 1.0 || got["idle_timeout_s"] != 60.5 {
		t.Errorf("%v", got)
	}
	if r := bob.Call("exec.run", object{"session_id": id, "command": "sleep 300"}); r["timed_out"] != true {
		t.Errorf("%v", r)
	}
	if got := bob.Call("session.update", object{"session_id": id, "labels": object{}, "timeout_s": 0, "idle_timeout_s": 0}); got["labels"] != nil || got["timeout_s"] != nil || got["idle_timeout_s"] != nil {
		t.Errorf("%v", got)
	}
	guest, _ := g.Share(bob, object{"session_id": id, "mode": "control"})
	for who, want := range map[*rig.Client]string{g.Dial(gateway.ViewToken): "FORBIDDEN", guest: "FORBIDDEN", bob: ""} {
		if code := who.Try("session.update", object{"session_id": id}).Code(); code != want {
			t.Errorf("%q, want %q", code, want)
		}
	}
	bob.Call("session.destroy", object{"session_id": id, "force": true})
	if code := bob.Try("session.update", object{"session_id": id}).Code(); code != "SESSION_TERMINATED" {
		t.Errorf("of an ended session: %q", code)
	}
}

// TestLiveConfig: a connection waits for a slow client as long as the live configuration said when it began.
func TestLiveConfig(t *testing.T) {
	g := start(t, func(c *config) { c.SlowClient = 7 * time.Second })
	c := g.Dial()
	if got := c.Call("system.capabilities", nil).Obj("limits").Num("slow_client_s"); got != 7 {
		t.Errorf("slow_client is %d s", got)
	}
	if got := g.only().slowLimit; got != 7*time.Second {
		t.Errorf("the connection waits for %v", got)
	}
}
