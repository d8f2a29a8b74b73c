package link

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/protocol"
)

// bareServer serves a WebSocket without a link.
func bareServer(b *testing.B, serve func(*websocket.Conn)) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		c, err := websocket.Accept(w, q, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		serve(c)
	}))
	b.Cleanup(s.Close)
	return "ws://" + s.Listener.Addr().String()
}

func bareClient(b *testing.B, url string) *websocket.Conn {
	c, _, err := websocket.Dial(context.Background(), url, nil)
	if err != nil {
		b.Fatal(err)
	}
	c.SetReadLimit(-1)
	b.Cleanup(func() { c.CloseNow() })
	return c
}

// relayServer serves a WebSocket as a gateway does: everything goes over a link to an owner, which serve plays.
func relayServer(b *testing.B, m mode, serve func(*Conn)) string {
	r := newRig(b, m, Limits{}, func(_ *DialerOptions, a *AcceptorOptions) {
		a.Serve = func(_ context.Context, _ *Hello, c *Conn) { serve(c) }
	})
	return bareServer(b, func(client *websocket.Conn) {
		l, err := r.dialer.Dial(context.Background(), r.to, aHello())
		if err != nil {
			return // the client gets an error; or the benchmark is over
		}
		defer l.Drop()
		n, _ := NewNumbers(1)
		go func() { // ends with the link
			var out []byte
			for {
				kind, p, err := l.Read()
				if err != nil {
					return
				}
				if kind == Text {
					out, err = n.AppendText(out[:0], p)
				} else {
					out, err = n.AppendBinary(out[:0], p)
				}
				if err != nil || client.Write(context.Background(), kind, out) != nil {
					return
				}
			}
		}()
		for {
			kind, p, err := client.Read(context.Background())
			if err != nil || l.Send(kind, p) != nil {
				return
			}
		}
	})
}

func benchModes(b *testing.B) []mode {
	all := modes(b)
	return []mode{all[0], all[2]}
}

// BenchmarkRelay measures a request and its answer over a link, next to the same without one. The two alternate, so that both have the same machine.
func BenchmarkRelay(b *testing.B) {
	request := []byte(`{"id":"1","method":"exec.run","params":{"command":"` + strings.Repeat("x", 148) + `"}}`)
	for _, m := range benchModes(b) {
		b.Run(m.name, func(b *testing.B) {
			bare := bareClient(b, bareServer(b, func(c *websocket.Conn) {
				for {
					kind, p, err := c.Read(context.Background())
					if err != nil || c.Write(context.Background(), kind, p) != nil {
						return
					}
				}
			}))
			relayed := bareClient(b, relayServer(b, m, echo))
			var took [2][]time.Duration
			var cpu [2]time.Duration
			const turn = 200
			b.ResetTimer()
			for i := range b.N {
				which := i / turn % 2
				c := []*websocket.Conn{bare, relayed}[which]
				began, used := time.Now(), cpuTime()
				if err := c.Write(context.Background(), websocket.MessageText, request); err != nil {
					b.Fatal(err)
				}
				if _, p, err := c.Read(context.Background()); err != nil || !bytes.Equal(p, request) {
					b.Fatal(err)
				}
				took[which] = append(took[which], time.Since(began))
				cpu[which] += cpuTime() - used
			}
			if len(took[1]) < turn {
				return
			}
			for which, name := range []string{"bare", "relay"} {
				slices.Sort(took[which])
				b.ReportMetric(microseconds(took[which][len(took[which])/2]), name+"-p50-µs")
				b.ReportMetric(microseconds(took[which][len(took[which])*99/100]), name+"-p99-µs")
				b.ReportMetric(microseconds(cpu[which]/time.Duration(len(took[which]))), name+"-cpu-µs")
			}
		})
	}
}

// BenchmarkRelayFrames measures a stream of binary frames of 64 KiB from an owner over a link, next to the same without one, in turns.
func BenchmarkRelayFrames(b *testing.B) {
	frame := protocol.AppendBinary(nil, 7, &protocol.Output{Offset: 1 << 30, Data: make([]byte, 64<<10)})
	for _, m := range benchModes(b) {
		b.Run(m.name, func(b *testing.B) {
			const turn = 50
			sendTurn := func(send func() error) bool {
				for range turn {
					if send() != nil {
						return false
					}
				}
				return true
			}
			bare := bareClient(b, bareServer(b, func(c *websocket.Conn) {
				for {
					if _, _, err := c.Read(context.Background()); err != nil || !sendTurn(func() error { return c.Write(context.Background(), websocket.MessageBinary, frame) }) {
						return
					}
				}
			}))
			relayed := bareClient(b, relayServer(b, m, func(c *Conn) {
				for {
					if _, _, err := c.Read(); err != nil || !sendTurn(func() error { return c.Send(Binary, frame) }) {
						return
					}
				}
			}))
			var took, cpu [2]time.Duration
			var frames [2]int
			b.SetBytes(64 << 10)
			b.ResetTimer()
			buf := make([]byte, 128<<10)
			for i := 0; i < b.N; i += turn {
				which := i / turn % 2
				c := []*websocket.Conn{bare, relayed}[which]
				began, used := time.Now(), cpuTime()
				if err := c.Write(context.Background(), websocket.MessageText, []byte("go")); err != nil {
					b.Fatal(err)
				}
				for range turn {
					_, r, err := c.Reader(context.Background())
					if err != nil {
						b.Fatal(err)
					}
					for err == nil {
						_, err = r.Read(buf)
					}
				}
				took[which] += time.Since(began)
				cpu[which] += cpuTime() - used
				frames[which] += turn
			}
			if frames[1] == 0 {
				return
			}
			per := func(all [2]time.Duration, which int) float64 {
				return microseconds(all[which]) / float64(frames[which])
			}
			for which, name := range []string{"bare", "relay"} {
				b.ReportMetric(per(took, which), name+"-µs/frame")
				b.ReportMetric(per(cpu, which), name+"-cpu-µs/frame")
			}
			b.ReportMetric(per(took, 0)/per(took, 1), "relay/bare")
		})
	}
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// cpuTime returns the processor time of this process, which plays all parts.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
