package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trl/client"
	"trl/internal/testkit"
)

// breakable is a TCP relay whose connections a test can break.
type breakable struct {
	net.Listener
	to        string
	shut      atomic.Bool  // connections are accepted and closed at once
	deaf      atomic.Bool  // bytes from clients are discarded
	dropped   atomic.Int64 // connections, while shut
	swallowed atomic.Int64 // bytes from clients, while deaf

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
}

func newBreakable(t *testing.T, to string) *breakable {
	b, err := startBreakable(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close(); b.breakAll() })
	return b
}

func startBreakable(to string) (*breakable, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &breakable{Listener: l, to: to, conns: map[net.Conn]bool{}}
	go func() { // ends with the listener
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			if b.shut.Load() {
				in.Close()
				b.dropped.Add(1)
				continue
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			b.mu.Lock()
			b.conns[in], b.conns[out] = true, true
			b.mu.Unlock()
			relay := func(dst io.Writer, src io.Reader) { // ends when either side does
				io.Copy(dst, src)
				in.Close()
				out.Close()
			}
			go relay(in, out)
			go relay(ear{out, b}, in)
		}
	}()
	return b, nil
}

// ear is the connection to the gateway. It discards bytes while the relay is deaf.
type ear struct {
	net.Conn
	of *breakable
}

func (e ear) Write(p []byte) (int, error) {
	if e.of.deaf.Load() {
		e.of.swallowed.Add(int64(len(p)))
		return len(p), nil
	}
	return e.Conn.Write(p)
}

// breakAll resets every connection and loses the bytes in flight.
func (b *breakable) breakAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		delete(b.conns, c)
	}
}

// TestOutputSurvivesLostConnections is ACCEPTANCE I1 and I5: every line arrives once and in order, and then the exit code, over a
// connection that keeps breaking.
func TestOutputSurvivesLostConnections(t *testing.T) {
	testkit.StartsProcesses(t)
	relay := newBreakable(t, startGateway(t).addr)
	broken := 0
	ctx, c := dial(t, client.Options{URL: "http://" + relay.Addr().String(), OnLost: func(error) { broken++ }})
	const lines = 400
	s, err := c.ExecStream(ctx, fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 5", lines), nil)
	if err != nil {
		t.Fatal(err)
	}
	done, came := make(chan struct{}), make(chan struct{}, 1)
	go func() { // ends with done
		for {
			select {
			case <-done:
				return
			case <-came: // a busy machine may take longer to connect again than a connection may live
			}
			select {
			case <-done:
				return
			case <-time.After(400 * time.Millisecond):
				relay.breakAll()
			}
		}
	}()
	var text strings.Builder
	var exit *client.ExecResult
	for e, err := range s.Events() {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Type == client.EventGap:
			t.Errorf("gap from %d to %d", e.From, e.Offset)
		case e.Type == client.EventComplete:
			exit = e.Result
		}
		text.Write(e.Data)
		select {
		case came <- struct{}{}:
		default:
		}
	}
	close(done)
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	if text.String() != want.String() {
		t.Errorf("got %d bytes, want %d", text.Len(), want.Len())
	}
	if exit == nil || exit.ExitCode != 5 {
		t.Errorf("exit %+v", exit)
	}
	if broken == 0 {
		t.Error("the connection never broke")
	}
}

// TestFollowSurvivesLostConnections: the same for a background process's output.
func TestFollowSurvivesLostConnections(t *testing.T) {
	testkit.StartsProcesses(t)
	relay := newBreakable(t, startGateway(t).addr)
	ctx, c := dial(t, client.Options{URL: "http://" + relay.Addr().String()})
	p, err := c.StartProcess(ctx, "seq 1 100; sleep 1; seq 101 200; exit 3", nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.StreamLogs(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	for e, err := range s.Events(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if n < 292 && n+int64(len(e.Data)) >= 292 { // the whole first hundred
			relay.breakAll()
		}
		n += int64(len(e.Data))
	}
	if info := p.Info(); n != 292+400 || info.ExitCode == nil || *info.ExitCode != 3 {
		t.Errorf("%d bytes, %+v", n, info)
	}
}
