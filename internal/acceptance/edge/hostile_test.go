package edge

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"

	"golang.org/x/sys/unix"
)

// A hostileLoad is clients that mean no good, in bounded numbers: those that hold connections open, word by word; those that ask and take nothing;
// and those that come and go.
type hostileLoad struct {
	addr                     string
	slow, mute, perSecond    int
	execs                    []string // commands with output
	ctx                      context.Context
	stop                     context.CancelFunc
	all                      sync.WaitGroup
	words, comers, questions atomic.Int64 // what was really done
}

// startHostileLoad begins hostile load on g, which stop ends.
func startHostileLoad(g *rig.Server, slow, mute, perSecond int, execs []string) *hostileLoad {
	s := &hostileLoad{addr: g.Addr, slow: slow, mute: mute, perSecond: perSecond, execs: execs}
	s.ctx, s.stop = context.WithCancel(context.Background())
	// Each of these ends with raise; end waits for it.
	s.all.Go(s.keepSlowConns)
	for range mute {
		s.all.Go(s.readNothing)
	}
	for range 4 { // one after the other is too slow for 500 a second on a busy machine
		s.all.Go(func() { s.comeAndGo(perSecond / 4) })
	}
	return s
}

func (s *hostileLoad) end() { s.stop(); s.all.Wait() }

// keepSlowConns keeps slow connections, and says a letter of a header on each every half second. Who is thrown out comes again.
func (s *hostileLoad) keepSlowConns() {
	conns := make([]net.Conn, s.slow)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	const parts = 10
	for part := 0; ; part = (part + 1) % parts {
		for i := part; i < len(conns); i += parts {
			if conns[i] == nil {
				c, err := net.Dial("tcp", s.addr)
				if err != nil {
					continue
				}
				conns[i] = c
				_, _ = c.Write([]byte("GET /v1/ws HTTP/1.1\r\nX-A: "))
			}
			if _, err := conns[i].Write([]byte("a")); err != nil {
				conns[i].Close()
				conns[i] = nil
			}
			s.words.Add(1)
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(500 * time.Millisecond / parts):
		}
	}
}

// readNothing asks for some MiB of output and reads none. Its window is small, so that it is not the kernel that takes them.
func (s *hostileLoad) readNothing() {
	dial := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
	}}
	for s.ctx.Err() == nil {
		c, err := dial.Dial("tcp", s.addr)
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		stop := context.AfterFunc(s.ctx, func() { c.Close() })
		fmt.Fprintf(c, "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", s.addr)
		raw := rig.RawConn{Conn: c}
		for _, id := range s.execs {
			_ = raw.Frame(0x81, []byte(`{"id":1,"method":"exec.attach","params":{"exec_id":"`+id+`"}}`))
		}
		s.questions.Add(1)
		for s.ctx.Err() == nil && raw.Frame(0x8a, nil) == nil { // until it is thrown out
			select {
			case <-s.ctx.Done():
			case <-time.After(2 * time.Second):
			}
		}
		stop()
		c.Close()
	}
}

// awaitBlocked waits until the gateway writes no more to those that take nothing: to fill the kernel's buffers, some MiB each, is work that ends.
func (s *hostileLoad) awaitBlocked(t *testing.T) {
	_, port, _ := net.SplitHostPort(s.addr)
	n, _ := strconv.Atoi(port)
	local := fmt.Sprintf(":%04X", n)
	queued := func() (sum int64) { // proc(5), /proc/net/tcp: local address, remote address, state, queues
		b, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 4 && strings.HasSuffix(f[1], local) {
				q, _ := strconv.ParseInt(f[4][:8], 16, 64)
				sum += q
			}
		}
		return sum
	}
	before, same := int64(-1), 0
	testkit.Eventually(t, "those that take nothing are stuck", func() bool {
		now := queued()
		if now > int64(s.mute)<<10 && now <= before+before/1000 { // whoever comes and goes does not count
			same++
		} else {
			same = 0
		}
		before = now
		time.Sleep(50 * time.Millisecond)
		return same == 5
	})
}

func (s *hostileLoad) comeAndGo(perSecond int) {
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			if c, err := net.Dial("tcp", s.addr); err == nil {
				_ = c.(*net.TCPConn).SetLinger(0) // no TIME_WAIT: ports are everybody's
				c.Close()
				s.comers.Add(1)
			}
		}
	}
}

// TestHostileConnectionsDoNotDisturbSessions: a thousand connections that dawdle, 200 that take nothing and 500 a second that come and go: sessions that do ordinary
// work hardly notice, memory is bounded, and afterwards everything is as before. Quiet and load alternate, so that what else the
// machine does meets both. The ratio of the two is logged; what fails is only what no noise explains.
func TestHostileConnectionsDoNotDisturbSessions(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	slow, mute, perSecond, rounds, length := rig.Pick(400, 1000), rig.Pick(50, 200), rig.Pick(200, 500), rig.Pick(3, 5), rig.Pick(2*time.Second, 10*time.Second)
	if need := uint64(2*slow + 4*mute + 1000); files.Cur < need { // Go has raised it to what it may be
		t.Skipf("%d descriptors, %d needed", files.Cur, need)
	}
	g := rig.Gateway(t)
	const sessions = 20
	var clients []*rig.Client
	var ids []string
	for range sessions {
		c := g.Dial(t)
		clients, ids = append(clients, c), append(ids, c.Session())
	}
	// work has every session run a command each 100 ms, and gives the times that took, sorted.
	work := func() []time.Duration {
		var mu sync.Mutex
		var took []time.Duration
		until := time.Now().Add(length)
		rig.Together(sessions, func(i int) {
			for next := time.Now().Add(time.Duration(i) * 5 * time.Millisecond); next.Before(until); next = next.Add(100 * time.Millisecond) {
				time.Sleep(time.Until(next))
				start := time.Now()
				if r := clients[i].Run(ids[i], "N=$((N+1)); echo $N"); r.Num("exit_code") != 0 {
					t.Errorf("%v", r)
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
		})
		slices.Sort(took)
		return took
	}
	at := func(took []time.Duration, percent int) time.Duration { return took[(len(took)-1)*percent/100] }
	work() // warms up
	var execs []string
	talk := g.Dial(t)
	talker := talk.Session()
	for range 5 { // the kernel takes 2.5 MiB on loopback before anybody is stuck
		execs = append(execs, talk.Call("exec.run", object{"session_id": talker, "command": "head -c 1000000 /dev/zero | tr '\\0' x", "max_output_bytes": 1}).Str("exec_id"))
	}
	talk.Close()
	testkit.Eventually(t, "it is gone", func() bool { return g.Metric(t, "trl_connections") == sessions })
	fds, goroutines, memory := g.Fds(t), g.Metric(t, "go_goroutines"), g.Rss(t)

	var ratios []float64
	for round := range rounds {
		quiet := work()
		s := startHostileLoad(g, slow, mute, perSecond, execs)
		testkit.Eventually(t, "those that take nothing are in", func() bool { return g.Metric(t, "trl_connections") == float64(sessions+mute) })
		s.awaitBlocked(t)
		hostile := work()
		c := g.Dial(t) // who comes now is let in, too, though strangers abound
		c.Call("system.ping", nil)
		c.Close()
		s.end()
		ratios = append(ratios, float64(at(hostile, 99))/float64(at(quiet, 99)))
		t.Logf("round %d: quiet p50 %s p99 %s, load p50 %s p99 %s (%.1f times); %d words, %d that take nothing, %d came and went", round,
			at(quiet, 50), at(quiet, 99), at(hostile, 50), at(hostile, 99), ratios[round], s.words.Load(), s.questions.Load(), s.comers.Load())
		testkit.Eventually(t, "they are gone", func() bool { return g.Metric(t, "trl_connections") == sessions })
	}
	slices.Sort(ratios)
	if least := ratios[0]; least > 20 { // in each round: a machine that stands still in one of them makes a ratio of its own
		t.Errorf("p99 is %.1f times that of quiet", least)
	}
	peak := g.Peak(t)
	t.Logf("p99 %.1f times that of quiet (median of %d); resident %d KiB before, %d at most; refused: %v", ratios[len(ratios)/2], rounds, memory>>10, peak>>10,
		strings.TrimSpace(seriesOf(t, g, "trl_connections_refused_total")))
	// Each of those that take nothing has five streams with a chunk in hand and its encoding, twice over for the collector; strangers are small.
	if grown := peak - memory; grown > (64+2*mute)<<20 {
		t.Errorf("resident memory grew by %d KiB", grown>>10)
	}
	testkit.Eventually(t, "descriptors and goroutines return", func() bool {
		return g.Fds(t) <= fds+2 && g.Metric(t, "go_goroutines") <= goroutines+2
	})
	// Who has nothing to do collects every two minutes, and gives back little by little.
	testkit.EventuallyWithin(t, 5*time.Minute, "memory returns", func() bool { return g.Rss(t) < memory+48<<20 })
	for i, c := range clients { // nobody's command was lost
		if n := c.Info(ids[i]).Num("commands_run"); c.Run(ids[i], "echo $N").Stdout() != fmt.Sprintln(n) {
			t.Errorf("session %d: %d commands", i, n)
		}
	}
	if n := g.Metric(t, "trl_gateway_crashes_total"); n != 0 {
		t.Errorf("%v crashes", n)
	}
}

// series is the lines of one series in /metrics.
func seriesOf(t testing.TB, g *rig.Server, name string) (lines string) {
	for line := range strings.Lines(g.Get(t, "/metrics")) {
		if strings.HasPrefix(line, name) {
			lines += line
		}
	}
	return lines
}

// TestProgramThatBlocksItsPipesHoldsUpNobody: a program that holds our calls on its pipes up, as pv and what copies from a socket to stdout do at times, holds up nobody
// else, ends when it is to, and keeps no gateway from its end.
func TestProgramThatBlocksItsPipesHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, tier := range []string{"auto", "none"} {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			g := rig.Gateway(t, "--isolation", tier)
			held := func() bool {
				tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", g.GatewayPid()))
				return slices.ContainsFunc(tasks, func(path string) bool {
					b, _ := os.ReadFile(path)
					_, rest, _ := strings.Cut(string(b), ") ")
					return strings.HasPrefix(rest, "D")
				})
			}
			hold := testkit.TestBinary + " awkward hold-full /proc/self/fd/1"
			c, other := g.Dial(t), g.Dial(t)
			id, third := c.Session(), other.Session()
			c.Run(id, "X=kept")
			begin := func() int {
				n := c.Begin("exec.run", object{"session_id": id, "command": "echo one; " + hold})
				testkit.Eventually(t, "it holds us up", held)
				return n
			}
			resume := func() {
				t.Helper()
				other.Call("system.ping", nil)
				if out := other.Run(third, "echo fine").Stdout(); out != "fine\n" {
					t.Errorf("another session says %q", out)
				}
				other.Call("session.destroy", object{"session_id": other.Session()})
				other.Call("session.info", object{"session_id": id})
				g.Get(t, "/metrics")
			}
			n := begin()
			resume()
			other.Call("exec.cancel", object{"session_id": id})
			if f := c.Answer(n); f.Error != nil || !f.Data.Yes("cancelled") || f.Data.Yes("shell_restored") {
				t.Errorf("cancelled: %v", f)
			}
			for range 8 { // more than the keeper closes at once
				c.Run(id, hold+" & sleep 0.1", object{"timeout_s": 1})
			}
			resume()
			begin()
			c.Close()
			rig.ReplaceGateway(t, g)
			other = g.Dial(t)
			third = other.Session()
			resume()
			other.Call("exec.cancel", object{"session_id": id})
			if out := other.Run(id, "echo $X").Stdout(); out != "kept\n" {
				t.Errorf("after a crash: %q", out)
			}
			c = other
			c.Begin("exec.run", object{"session_id": id, "command": hold})
			testkit.Eventually(t, "it holds us up", held)
			if err := syscall.Kill(g.Pid, syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the upgrade is done", func() bool { return strings.Contains(g.Log(), `"upgraded"`) })
		})
	}
}
