package acceptance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/testkit"
)

// The rig, in short:
//
//	g := shared(t, "a")            one gateway for a whole file, stopped after the last test; or
//	g := gateway(t, "--warm", "0") one of this test's own, stopped and checked in its Cleanup
//	c := g.dial(t)                 a WebSocket connection, closed in Cleanup; may be used by several goroutines
//	s := c.session(object{"shell": sh})
//	r := c.run(s, "echo hi", object{"timeout_s": 2})     exec.run, must be ok
//	expect(t, r, 0, "hi\n", "")
//	f := c.try("exec.run", object{…}); f.code()          an answer that may be a refusal
//	data, exit := c.output(c.stream(s, "seq 9").str("stream_id"), 0)
//	eachShell(t, func(t *testing.T, sh string) { … })    subtests under /bin/sh and /bin/bash
//	nap := sleeper(); …; running(nap)                    a command line that no other test uses, and who runs it
//	                                                    (dial inside the subtest: a client fails the test it was made with)
//	eventually(t, "what", func() bool { … })             polls for at most patience
//
// Files keep helpers of their own behind their letter (a…, b…): the package is shared.

// patience is how long anything may take on a busy machine before a test gives up.
const patience = 60 * time.Second

// soak says that tests run at full length.
var soak = os.Getenv("TRL_SOAK") == "1"

// flagsOfAll are given to every gateway besides its own: the same promises hold for sessions of another user, or behind
// Landlock (TRL_TEST_FLAGS='--allow-write /').
var flagsOfAll = strings.Fields(os.Getenv("TRL_TEST_FLAGS"))

// ourNumbers skips a test where what runs in a session may have other numbers, and see other files, than we.
func ourNumbers(t testing.TB) {
	t.Helper()
	if len(flagsOfAll) > 0 {
		t.Skip("not run: the session's numbers are not ours")
	}
}

// pick is short by default and long in a soak.
func pick[T any](short, long T) T {
	if soak {
		return long
	}
	return short
}

var shells = []string{"/bin/sh", "/bin/bash"}

func eachShell(t *testing.T, f func(t *testing.T, shell string)) {
	t.Helper()
	for _, sh := range shells {
		t.Run(filepath.Base(sh), func(t *testing.T) { f(t, sh) })
	}
}

// top is the directory of everything here, and binary the gateway that TestMain built.
var top, binary string

func TestMain(m *testing.M) {
	testkit.HearSignals()
	// Tests that call t.Parallel here mostly wait, so there may be more of them than processors. -parallel still wins.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(func() int {
		var err error
		if top, err = os.MkdirTemp("", "trl-acceptance-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(top)
		binary = filepath.Join(top, "trl")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "trl/cmd/trl")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
		code := m.Run()
		sharing.Lock()
		defer sharing.Unlock()
		for name, g := range sharing.gateways {
			for _, fault := range g.stop() {
				fmt.Fprintf(os.Stderr, "--- FAIL: gateway %s: %s\n", name, fault)
				code = 1
			}
		}
		for _, g := range leftBehind() {
			fmt.Fprintf(os.Stderr, "--- FAIL: a test has left %s\n", g)
			code = 1
		}
		return code
	}())
}

// leftBehind lists the gateways that no test has ended; one may be just about to.
func leftBehind() (left []string) {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		left = left[:0]
		for _, pid := range pids() {
			if line := cmdline(pid); strings.HasPrefix(line, binary+" ") {
				left = append(left, fmt.Sprint(pid, ": ", line))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// server is a real gateway: a process, and what it wrote.
type server struct {
	addr string // HOST:PORT
	pid  int    // the keeper's
	dir  string // all of it: state, home and temporary directory of its sessions; unique, so it marks them
	home string // where its sessions start
	cmd  *exec.Cmd
	book *logBook

	stop   func() []string // ends it, once, and says what was wrong with the end
	exited chan struct{}   // closed when the process is gone
}

// gateway starts one for this test. It must end well: in time, with exit 0, and with no process left.
func gateway(t testing.TB, flags ...string) *server {
	t.Helper()
	g, err := startGateway(flags...)
	if err != nil {
		t.Fatal(err)
	}
	g.endWith(t)
	return g
}

// endWith makes the gateway end with the test.
func (g *server) endWith(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		for _, fault := range g.stop() {
			t.Errorf("gateway: %s", fault)
		}
		if t.Failed() {
			t.Logf("its log:\n%s", g.log())
		}
	})
}

var sharing struct {
	sync.Mutex
	gateways map[string]*server // guarded by the mutex
}

// shared returns the gateway of this name and starts it with flags at first. Its end is checked when all tests are done.
func shared(t testing.TB, name string, flags ...string) *server {
	t.Helper()
	sharing.Lock()
	defer sharing.Unlock()
	g := sharing.gateways[name]
	if g == nil {
		var err error
		if g, err = startGateway(flags...); err != nil {
			t.Fatal(err)
		}
		if sharing.gateways == nil {
			sharing.gateways = map[string]*server{}
		}
		sharing.gateways[name] = g
	}
	from := g.book.size()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the gateway's log meanwhile:\n%s", g.log()[from:])
		}
	})
	return g
}

// endWithin is 5 times the 8 s in which a gateway has to end whatever its sessions do.
const endWithin = 40 * time.Second

func startGateway(flags ...string) (*server, error) { return launch(nil, flags...) }

// launch starts a gateway; tune, if any, changes how.
func launch(tune func(*exec.Cmd), flags ...string) (*server, error) {
	dir, err := os.MkdirTemp(top, "g-")
	if err != nil {
		return nil, err
	}
	g := &server{dir: dir, home: filepath.Join(dir, "home"), book: &logBook{}, exited: make(chan struct{})}
	tmp := filepath.Join(dir, "tmp")
	if err := errors.Join(os.Mkdir(g.home, 0o700), os.Mkdir(tmp, 0o700)); err != nil {
		return nil, err
	}
	for _, path := range []string{top, dir, g.home, tmp} { // sessions may be another user's
		if err := os.Chmod(path, 0o777); err != nil {
			return nil, err
		}
	}
	flags = append(slices.Clone(flagsOfAll), flags...)
	g.cmd = exec.Command(binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--auth", "none", "--default-dir", g.home,
		"--state-dir", filepath.Join(dir, "state"), "--log-format", "json"}, flags...)...)
	g.cmd.Env = append(os.Environ(), "HOME="+g.home, "TMPDIR="+tmp)
	g.cmd.Stderr = g.book
	g.cmd.WaitDelay = 5 * time.Second // somebody who still holds its stderr then is a leak, and Wait says so
	line, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer line.Close()
	g.cmd.Stdout = w
	if tune != nil {
		tune(g.cmd)
	}
	err = testkit.Start(g.cmd)
	w.Close()
	if err != nil {
		return nil, err
	}
	g.pid = g.cmd.Process.Pid
	var ended error
	go func() { // reaps it; ends with the process; stop waits for it
		ended = g.cmd.Wait()
		close(g.exited)
	}()
	g.stop = sync.OnceValue(func() (faults []string) {
		_ = g.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-g.exited:
		case <-time.After(endWithin):
			_ = g.cmd.Process.Kill()
			<-g.exited
			faults = append(faults, fmt.Sprintf("did not end within %s", endWithin))
		}
		if ended != nil {
			faults = append(faults, ended.Error())
		}
		if left := g.processes(); len(left) > 0 {
			faults = append(faults, fmt.Sprintf("left processes behind: %v", left))
		}
		if strings.Contains(g.log(), "panic: ") || strings.Contains(g.log(), "DATA RACE") {
			faults = append(faults, "its log:\n"+g.log())
		}
		return faults
	})
	_ = line.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 200)
	n, err := line.Read(b) // the line is one write
	var ok bool
	if g.addr, ok = strings.CutPrefix(strings.TrimSpace(string(b[:n])), "trl: listening on http://"); !ok {
		g.stop()
		return nil, fmt.Errorf("gateway said %q (%w), log:\n%s", b[:n], err, g.log())
	}
	return g, nil
}

// processes lists who belongs to this gateway's sessions and warm shells: by the TMPDIR in its environment, which every
// session gets, or by its working directory. Zombies have neither.
func (g *server) processes() (all []string) {
	mark := []byte("TMPDIR=" + g.dir)
	for _, pid := range pids() {
		if pid == g.pid || g.cmd != nil && pid == g.cmd.Process.Pid || pid == os.Getpid() {
			continue
		}
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if bytes.Contains(environ, mark) || strings.HasPrefix(cwd, g.dir+"/") {
			all = append(all, fmt.Sprintf("%d %q", pid, cmdline(pid)))
		}
	}
	return all
}

func (g *server) log() string { return g.book.String() }

// serving is the process that serves: the gateway below the keeper, which g.pid is. Of a server that nobody launched it is
// the pid itself: so one of the two can be asked for.
func (g *server) serving(t testing.TB) int {
	t.Helper()
	if g.cmd == nil {
		return g.pid
	}
	pid := 0
	eventually(t, "a gateway", func() bool { pid = g.gatewayPid(); return pid > 0 })
	return pid
}

// rss is the gateway's resident memory in bytes now, and peak the largest since the last call of peak or rss.
func (g *server) rss(t testing.TB) int { t.Helper(); g.peak(t); return g.status(t, "VmRSS") << 10 }

func (g *server) peak(t testing.TB) int {
	t.Helper()
	peak := g.status(t, "VmHWM") << 10
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", g.serving(t)), []byte("5"), 0); err != nil { // 5: reset VmHWM, proc(5)
		t.Fatal(err)
	}
	return peak
}

// status is a number out of /proc/PID/status.
func (g *server) status(t testing.TB, key string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.serving(t)))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key+":" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	t.Fatalf("no %s", key)
	return 0
}

// fds is how many descriptors keeper and gateway have open.
func (g *server) fds(t testing.TB) int {
	t.Helper()
	if g.cmd == nil {
		return fdsOf(t, g.pid)
	}
	return fdsOf(t, g.pid) + fdsOf(t, g.serving(t))
}

func fdsOf(t testing.TB, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// fdKinds tells what pid has open, and how often.
func fdKinds(pid int) map[string]int {
	all := map[string]int{}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		to, _ := os.Readlink(fd)
		all[strings.TrimRight(to, "0123456789]")]++
	}
	return all
}

// descriptor is the path in /proc of one that pid has open, to what begins with kind.
func descriptor(t testing.TB, pid int, kind string) string {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, kind) {
			return fd
		}
	}
	t.Fatalf("none of the %d descriptors of %d is %s: %v", len(fds), pid, kind, err)
	return ""
}

// metric is the sum of a series of /metrics over those of its labels that contain each of with (`state="IDLE"`).
func (g *server) metric(t testing.TB, name string, with ...string) (sum float64) {
	t.Helper()
	found := false
series:
	for line := range strings.Lines(g.get(t, "/metrics")) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		labels, isOurs := strings.CutPrefix(series, name)
		if !ok || !isOurs || labels != "" && labels[0] != '{' {
			continue
		}
		if strings.HasSuffix(series, "}") || labels == "" {
			found = true
		}
		for _, w := range with {
			if !strings.Contains(labels, w) {
				continue series
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += v
	}
	if !found {
		t.Fatalf("no series %s in /metrics", name)
	}
	return sum
}

// get is the body of a page that must be there.
func (g *server) get(t testing.TB, path string, header ...string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", path, resp.Status, err)
	}
	return string(b)
}

// logBook keeps what the gateway wrote to stderr.
type logBook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBook) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Len()
}

// object is a JSON object.
type object map[string]any

func (o object) str(key string) string { s, _ := o[key].(string); return s }
func (o object) yes(key string) bool   { b, _ := o[key].(bool); return b }
func (o object) has(key string) bool   { _, ok := o[key]; return ok }

// num is math.MinInt when there is no such number: a missing exit code must not look like 0.
func (o object) num(key string) int {
	f, ok := o[key].(float64)
	if !ok {
		return math.MinInt
	}
	return int(f)
}

func (o object) obj(key string) object { m, _ := o[key].(map[string]any); return m }

// objs is a list of objects, ints one of numbers.
func (o object) objs(key string) (all []object) {
	list, _ := o[key].([]any)
	for _, e := range list {
		m, _ := e.(map[string]any)
		all = append(all, m)
	}
	return all
}

func (o object) ints(key string) (all []int) {
	list, _ := o[key].([]any)
	for _, e := range list {
		f, _ := e.(float64)
		all = append(all, int(f))
	}
	return all
}

// text decodes bytes that travel as text: text("stdout", "stdout_encoding"), text("data", "encoding").
func (o object) text(key, encoding string) string {
	if o.str(encoding) == "base64" {
		b, err := base64.StdEncoding.DecodeString(o.str(key))
		if err != nil {
			return "not base64: " + o.str(key)
		}
		return string(b)
	}
	return o.str(key)
}

func (o object) stdout() string { return o.text("stdout", "stdout_encoding") }
func (o object) stderr() string { return o.text("stderr", "stderr_encoding") }

// frame is any message from the server.
type frame struct {
	ID    any
	OK    bool
	Data  object
	Error *struct {
		Code, Message string
		Details       object
	}
	Event string
}

// code is the refusal's, "" for a success.
func (f *frame) code() string {
	if f.Error == nil {
		return ""
	}
	return f.Error.Code
}

// client is one WebSocket connection that keeps what comes until somebody takes it.
type client struct {
	t    testing.TB
	ws   *websocket.Conn
	pace func(bytes int) // called after each frame, before the next is read; nil: at once

	mu     sync.Mutex
	next   int           // guarded by mu; id of the last request
	came   []*frame      // guarded by mu; not taken yet
	err    error         // guarded by mu; why reading ended
	change chan struct{} // guarded by mu; closed at the next change
	done   chan struct{} // closed when reading has ended
}

// open is a bare connection: nobody reads. Its receive buffer is small, so that not reading is soon felt.
func (g *server) open(t testing.TB, o *websocket.DialOptions) (*websocket.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if o == nil {
		o = &websocket.DialOptions{}
	}
	if o.Subprotocols == nil {
		o.Subprotocols = []string{"trl.v1"}
	}
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetReadBuffer(64 << 10)
			}
			return conn, err
		}}}
	}
	ws, _, err := websocket.Dial(ctx, "ws://"+g.addr+"/v1/ws", o) //nolint:bodyclose // the connection is the body
	if err == nil {
		ws.SetReadLimit(-1)
		t.Cleanup(func() { ws.CloseNow() })
	}
	return ws, err
}

func (g *server) dial(t testing.TB) *client {
	t.Helper()
	return g.dialPaced(t, nil)
}

// dialPaced is a client that reads only as fast as pace returns.
func (g *server) dialPaced(t testing.TB, pace func(bytes int)) *client {
	t.Helper()
	ws, err := g.open(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, ws: ws, pace: pace, change: make(chan struct{}), done: make(chan struct{})}
	go c.read()
	t.Cleanup(c.close)
	return c
}

func (c *client) read() {
	defer close(c.done)
	for {
		_, b, err := c.ws.Read(context.Background())
		f := &frame{}
		if err == nil {
			err = json.Unmarshal(b, f)
		}
		c.mu.Lock()
		if err != nil {
			c.err = err
		} else {
			c.came = append(c.came, f)
		}
		close(c.change)
		c.change = make(chan struct{})
		c.mu.Unlock()
		if err != nil {
			return
		}
		if c.pace != nil {
			c.pace(len(b))
		}
	}
}

// close drops the connection without a word.
func (c *client) close() {
	c.ws.CloseNow()
	<-c.done
}

// await takes the first frame that fits.
func (c *client) await(what string, fits func(*frame) bool) *frame {
	c.t.Helper()
	return c.awaitFor(patience, what, fits)
}

func (c *client) awaitFor(d time.Duration, what string, fits func(*frame) bool) *frame {
	c.t.Helper()
	timeout := time.After(d)
	for {
		c.mu.Lock()
		for i := range c.came {
			if f := c.came[i]; fits(f) {
				c.came = append(c.came[:i:i], c.came[i+1:]...)
				c.mu.Unlock()
				return f
			}
		}
		err, change := c.err, c.change
		c.mu.Unlock()
		if err != nil {
			c.t.Fatalf("%s: connection ended: %v", what, err)
		}
		select {
		case <-change:
		case <-timeout:
			c.t.Fatalf("%s: did not come", what)
		}
	}
}

// event takes the first event of this name.
func (c *client) event(name string) object {
	c.t.Helper()
	return c.await(name, func(f *frame) bool { return f.Event == name }).Data
}

// seen is which events of this name have come and were not taken.
func (c *client) seen(name string) (all []*frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.came {
		if f.Event == name {
			all = append(all, f)
		}
	}
	return all
}

// sendText sends a frame as it is.
func (c *client) sendText(text string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// begin sends a request and returns its id, for answer.
func (c *client) begin(method string, params object) int {
	c.t.Helper()
	c.mu.Lock()
	c.next++
	id := c.next
	c.mu.Unlock()
	if params == nil {
		params = object{}
	}
	b, err := json.Marshal(object{"id": id, "method": method, "params": params})
	if err != nil {
		c.t.Fatal(err)
	}
	c.sendText(string(b))
	return id
}

func (c *client) answer(id int) *frame {
	c.t.Helper()
	return c.await(fmt.Sprintf("answer %d", id), func(f *frame) bool { return f.Event == "" && f.ID == float64(id) })
}

// try is a request and its answer, which may be a refusal; call one that must succeed.
func (c *client) try(method string, params object) *frame {
	c.t.Helper()
	return c.answer(c.begin(method, params))
}

func (c *client) call(method string, params object) object {
	c.t.Helper()
	f := c.try(method, params)
	if !f.OK {
		c.t.Fatalf("%s: %+v", method, f.Error)
	}
	return f.Data
}

// with is the union of objects; later ones win.
func with(all ...object) object {
	o := object{}
	for _, m := range all {
		for k, v := range m {
			o[k] = v
		}
	}
	return o
}

// session creates one and returns its id.
func (c *client) session(more ...object) string {
	c.t.Helper()
	return c.call("session.create", with(more...)).str("session_id")
}

// run is exec.run; stream exec.stream, whose output is to be taken with output.
// limits are those of all that this machine can set.
func (c *client) limits(all object) object {
	can, limits := fmt.Sprint(c.call("system.capabilities", nil)["session_limits"]), object{}
	for name, value := range all {
		if strings.Contains(can, name) {
			limits[name] = value
		}
	}
	return limits
}

// limitOne makes and ends a session: the first with limits opens what all later ones use, a directory of each controller's.
func (c *client) limitOne(limits object) {
	c.call("session.destroy", object{"session_id": c.session(object{"limits": limits}), "force": true})
}

func (c *client) run(session, command string, more ...object) object {
	c.t.Helper()
	return c.call("exec.run", with(object{"session_id": session, "command": command}, with(more...)))
}

func (c *client) stream(session, command string, more ...object) object {
	c.t.Helper()
	return c.call("exec.stream", with(object{"session_id": session, "command": command}, with(more...)))
}

// info is session.info, state its state.
func (c *client) info(session string) object {
	c.t.Helper()
	return c.call("session.info", object{"session_id": session})
}

func (c *client) state(session string) string {
	c.t.Helper()
	return c.info(session).str("state")
}

// output takes the events of a stream up to its exit and returns the bytes, which must be gapless from offset on, and the exit.
func (c *client) output(stream string, offset int) (string, object) {
	c.t.Helper()
	var b []byte
	for {
		f := c.await("output of "+stream, func(f *frame) bool {
			return f.Data.str("stream_id") == stream && (strings.HasSuffix(f.Event, ".output") || strings.HasSuffix(f.Event, ".exit") || f.Event == "stream.gap")
		})
		switch {
		case strings.HasSuffix(f.Event, ".exit"):
			return string(b), f.Data
		case f.Event == "stream.gap":
			c.t.Fatalf("gap: %v", f.Data)
		case f.Data.num("offset") != offset+len(b):
			c.t.Fatalf("offset %d, want %d", f.Data.num("offset"), offset+len(b))
		}
		b = append(b, f.Data.text("data", "encoding")...)
	}
}

// expect checks a result: a plain end with this code and these outputs.
func expect(t testing.TB, r object, code int, stdout, stderr string) {
	t.Helper()
	if r.num("exit_code") != code || r.stdout() != stdout || r.stderr() != stderr {
		t.Errorf("exit %v, stdout %s, stderr %s; want %d, %s, %s", r["exit_code"], brief(r.stdout()), brief(r.stderr()), code, brief(stdout), brief(stderr))
	}
	if r.yes("timed_out") || r.yes("cancelled") || r.has("error") || r.yes("truncated") || r.yes("running") {
		t.Errorf("no plain end: %v", brief(fmt.Sprint(r)))
	}
}

// brief quotes a text that may be long.
func brief(s string) string {
	if len(s) > 400 {
		return fmt.Sprintf("%q…%q (%d bytes)", s[:150], s[len(s)-150:], len(s))
	}
	return strconv.Quote(s)
}

// eventually polls until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	eventuallyWithin(t, patience, what, f)
}

func eventuallyWithin(t testing.TB, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("%s: did not happen", what)
}

// within checks a generous limit: what took since start, and the line's own limit, which is multiplied by 5 for a busy machine.
func within(t testing.TB, what string, start time.Time, limit time.Duration) {
	t.Helper()
	if took := time.Since(start); took > 5*limit {
		t.Errorf("%s took %s, the limit is %s (5 times over here)", what, took.Round(time.Millisecond), limit)
	}
}

// together runs n functions at once and returns when all have; t.Fatal ends one of them.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

var sleepers atomic.Int64

// sleeper is a command line that sleeps for five minutes and that nobody else on this machine uses.
func sleeper() string { return fmt.Sprintf("sleep 300.%07d%04d", os.Getpid()%1e7, sleepers.Add(1)) }

// unique makes a name that no other test here has had, also when tests are repeated (-count).
func unique(name string) string { return fmt.Sprint(name, "-", sleepers.Add(1)) }

// running lists the processes with this command line, zombies not.
func running(command string) (all []int) {
	for _, pid := range pids() {
		if cmdline(pid) == command {
			all = append(all, pid)
		}
	}
	return all
}

func pids() (all []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// cmdline is a process's command line with spaces between the words, "" for a zombie and for one that is gone.
func cmdline(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.ReplaceAll(strings.TrimSuffix(string(b), "\x00"), "\x00", " ")
}
