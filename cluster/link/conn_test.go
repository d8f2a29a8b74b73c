package link

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/testkit"
)

func TestMessagesPassVerbatim(t *testing.T) {
	for _, m := range modes(t) {
		t.Run(m.name, func(t *testing.T) {
			r := newRig(t, m, Limits{MaxMessage: 8 << 20}, nil)
			dialled, accepted := r.link()
			if h := <-r.hellos; *h != *aHello() {
				t.Errorf("the hello came as %+v", h)
			}
			if dialled.Peer() != owner || accepted.Peer() != gateway || dialled.Version() != 1 || accepted.Version() != 1 {
				t.Errorf("peers %v, %v, versions %d, %d", dialled.Peer(), accepted.Peer(), dialled.Version(), accepted.Version())
			}
			for _, ends := range [][2]*Conn{{dialled, accepted}, {accepted, dialled}} {
				var sending sync.WaitGroup
				sizes := []int{0, 1, 2, 125, 126, 4096, 65535, 65536, pieceSize, 2*pieceSize + 5}
				sending.Go(func() {
					for _, size := range sizes {
						for _, kind := range []Kind{Text, Binary} {
							if err := ends[0].Send(kind, testMessage(kind, size)); err != nil {
								t.Error(err)
							}
						}
					}
				})
				for _, size := range sizes {
					for _, kind := range []Kind{Text, Binary} {
						got, p, err := ends[1].Read()
						if err != nil || got != kind || !bytes.Equal(p, testMessage(kind, size)) {
							t.Fatalf("%v of %d bytes came as %v of %d, %v", kind, size, got, len(p), err)
						}
					}
				}
				sending.Wait()
			}
		})
	}
}

var noise = func() []byte {
	b := make([]byte, 4*pieceSize)
	_, _ = rand.Read(b)
	return b
}()

// testMessage is always the same for a kind and a size, with all bytes that there are.
func testMessage(kind Kind, size int) []byte { return bytes.Clone(noise[int(kind) : int(kind)+size]) }

func TestCloseCodesPass(t *testing.T) {
	r := newRig(t, modes(t)[1], Limits{}, nil)
	for name, c := range map[string]struct {
		code, want int
		reason     string
	}{
		"normal": {1000, 1000, ""}, "going away": {1001, 1001, "bye"}, "too big": {1009, 1009, "message too big"}, "restart": {1012, 1012, "server is shutting down"},
		"credential": {4401, 4401, "what you logged in with is no longer good"}, "share": {4403, 4403, "ü" + strings.Repeat("é", 100)}, "not sendable": {1006, 1012, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, byOwner := range []bool{true, false} {
				closes, reads := r.link()
				if byOwner {
					closes, reads = reads, closes
				}
				var closing sync.WaitGroup
				closing.Go(func() { closes.Close(c.code, c.reason) })
				_, _, err := reads.Read()
				code, reason := CloseCode(err)
				if code != c.want || !strings.HasPrefix(c.reason, reason) || len(reason) < min(len(c.reason), 120) {
					t.Errorf("closed with %d %q, came as %d %q: %v", c.code, c.reason, code, reason, err)
				}
				if _, _, err := closes.Read(); err == nil {
					t.Error("reads on after its own close")
				}
				closing.Wait()
				if err := closes.Send(Text, []byte("x")); !errors.Is(err, ErrClosed) {
					t.Errorf("sends after its own close: %v", err)
				}
				closing.Wait()
				reads.Drop()
			}
		})
	}
}

// Somebody who sends when the other end closes learns why from Read.
func TestACloseCodePassesASender(t *testing.T) {
	r := newRig(t, modes(t)[1], Limits{}, nil)
	for i := range 20 {
		closes, reads := r.link()
		if i%2 == 0 {
			closes, reads = reads, closes
		}
		var both sync.WaitGroup
		both.Go(func() {
			for reads.Send(Binary, make([]byte, 1000)) == nil {
			}
		})
		both.Go(func() {
			if _, _, err := closes.Read(); err == nil {
				closes.Close(4401, "expired")
			}
		})
		_, _, err := reads.Read()
		if code, _ := CloseCode(err); code != 4401 {
			t.Errorf("link %d: %v", i, err)
		}
		both.Wait()
	}
}

// On a slow network a link is slow, and nothing else: the time of silence is longer than the way.
func TestADelayedLinkIsWhole(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	r := newRig(t, modes(t)[1], quickLimits, nil)
	r.proxy.mu.Lock()
	r.proxy.delay = 50 * time.Millisecond
	r.proxy.mu.Unlock()
	dialled, accepted := r.link()
	go echo(accepted) // ends with the link
	const n = 200
	go func() { // ends with the link
		for i := range n {
			if dialled.Send(Text, fmt.Append(nil, i)) != nil {
				return
			}
		}
	}()
	for i := range n {
		if _, p, err := dialled.Read(); err != nil || string(p) != fmt.Sprint(i) {
			t.Fatalf("message %d: %q, %v", i, p, err)
		}
	}
}

func TestACutLinkIsBroken(t *testing.T) {
	for _, m := range modes(t) {
		t.Run(m.name, func(t *testing.T) {
			r := newRig(t, m, Limits{}, nil)
			dialled, accepted := r.link()
			r.proxy.cut()
			for _, c := range []*Conn{dialled, accepted} {
				_, _, err := c.Read()
				if code, _ := CloseCode(err); !errors.Is(err, ErrBroken) || code != 1012 {
					t.Errorf("%v: code %d", err, code)
				}
				if _, _, err = c.Read(); err == nil {
					t.Error("a broken link reads on")
				}
			}
		})
	}
}

// quickLimits make pings and silence short, yet long enough for a busy machine.
var quickLimits = Limits{PingEvery: 100 * time.Millisecond, Silence: 4 * time.Second, Stall: 4 * time.Second}

func TestSilenceEndsALink(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	l := quickLimits
	l.Stall = time.Hour
	r := newRig(t, modes(t)[1], l, nil)
	dialled, accepted := r.link()
	r.proxy.swallow()
	var both sync.WaitGroup
	for _, c := range []*Conn{dialled, accepted} {
		both.Go(func() { // a writer that waits does not delay the end
			for c.Send(Binary, make([]byte, 64<<10)) == nil {
			}
		})
		both.Go(func() {
			if _, _, err := c.Read(); !errors.Is(err, ErrSilent) || !errors.Is(err, ErrBroken) {
				t.Errorf("a link through a black hole ended with %v", err)
			}
		})
	}
	both.Wait()
}

func TestPingsKeepAnIdleLink(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	r := newRig(t, modes(t)[0], quickLimits, nil)
	dialled, accepted := r.link()
	go echo(accepted) // ends with the link
	time.AfterFunc(2*quickLimits.Silence, func() { _ = dialled.Send(Text, []byte("alive")) })
	if _, p, err := dialled.Read(); err != nil || string(p) != "alive" {
		t.Errorf("after twice the silence: %q, %v", p, err)
	}
}

// A slow client at one end stops the reading at the other end, and the link lives on for as long as that takes.
func TestSlowReaderStopsTheSender(t *testing.T) {
	testkit.TakesLong(t)
	for _, m := range modes(t)[1:2] {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			l := quickLimits
			l.Stall = time.Minute
			r := newRig(t, m, l, nil)
			dialled, accepted := r.link()
			const pieces, size = 150, 64 << 10
			var sent atomic.Int64
			var sending sync.WaitGroup
			sending.Go(func() {
				for i := range pieces {
					if err := accepted.Send(Binary, append(testMessage(Binary, size), byte(i))); err != nil {
						t.Error(err)
						return
					}
					sent.Add(1)
				}
			})
			ownerReads := make(chan error, 1)
			go func() { _, _, err := accepted.Read(); ownerReads <- err }() // ends with the link
			before := int64(-1)
			testkit.Eventually(t, "the sender waits", func() bool {
				before = sent.Load()
				time.Sleep(200 * time.Millisecond)
				return before > 0 && before == sent.Load()
			})
			time.Sleep(l.Silence * 3 / 2)
			if sent.Load() == pieces {
				t.Fatalf("%d MiB were sent to a client that reads nothing", pieces*size>>20)
			}
			for i := range pieces {
				kind, p, err := dialled.Read()
				if err != nil || kind != Binary || len(p) != size+1 || p[size] != byte(i) {
					t.Fatalf("message %d: %v of %d bytes, %v", i, kind, len(p), err)
				}
			}
			sending.Wait()
			select {
			case err := <-ownerReads:
				t.Errorf("the owner's end ended: %v", err)
			default:
			}
		})
	}
}

func TestAPeerThatTakesNothingIsStalled(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	l := quickLimits
	l.Silence = time.Hour
	l.PingEvery = time.Hour
	r := newRig(t, modes(t)[1], l, nil)
	_, accepted := r.link()
	for {
		if err := accepted.Send(Binary, make([]byte, 64<<10)); err != nil {
			if !errors.Is(err, ErrStalled) || !errors.Is(err, ErrBroken) {
				t.Errorf("ended with %v", err)
			}
			return
		}
	}
}

// A writer that waits for a slow client does not hold up the end of its link.
func TestALinkEndsWhileAWriterWaits(t *testing.T) {
	for _, end := range []func(*Conn){(*Conn).Drop, func(c *Conn) { c.Close(4401, "expired") }} {
		r := newRig(t, modes(t)[1], Limits{}, nil)
		_, accepted := r.link()
		var sending sync.WaitGroup
		var sent atomic.Int64
		sending.Go(func() {
			for accepted.Send(Binary, make([]byte, 64<<10)) == nil {
				sent.Add(1)
			}
		})
		testkit.Eventually(t, "the writer waits", func() bool {
			before := sent.Load()
			time.Sleep(100 * time.Millisecond)
			return before > 0 && before == sent.Load()
		})
		end(accepted)
		sending.Wait()
	}
}

func TestMessagesAreBounded(t *testing.T) {
	r := newRig(t, modes(t)[0], Limits{MaxMessage: 1 << 20}, nil)
	dialled, accepted := r.link()
	var large atomic.Int64
	accepted.BeforeLarge(func() error { large.Add(1); return nil })
	go func() { _ = dialled.Send(Text, make([]byte, 1<<20)); _ = dialled.Send(Text, make([]byte, 1<<20+1)) }() // ends with the link
	if _, p, err := accepted.Read(); err != nil || len(p) != 1<<20 || large.Load() == 0 {
		t.Errorf("a message of the allowed size: %d bytes, %v, %d calls", len(p), err, large.Load())
	}
	if _, _, err := accepted.Read(); !errors.Is(err, websocket.ErrMessageTooBig) {
		t.Errorf("a message of one byte more: %v", err)
	}
	dialled, accepted = r.link()
	no := errors.New("no memory")
	accepted.BeforeLarge(func() error { return no })
	go func() { _ = dialled.Send(Text, make([]byte, 1<<20)) }() // ends with the link
	if _, _, err := accepted.Read(); err != no {
		t.Errorf("no memory for a message: %v", err)
	}
	if err := accepted.Send(Text, []byte("no room")); err != nil {
		t.Error(err)
	}
	if _, p, err := dialled.Read(); err != nil || string(p) != "no room" {
		t.Errorf("the answer: %q, %v", p, err)
	}
	go accepted.Close(1009, "too big") // ends within a second
	if code, _ := CloseCode(func() error { _, _, err := dialled.Read(); return err }()); code != 1009 {
		t.Errorf("closed with %d", code)
	}
}

// web/transport writes frames of its own, in pieces; pings stay out of them.
func TestFramesOfTheOwnerPass(t *testing.T) {
	testkit.TakesLong(t)
	r := newRig(t, modes(t)[1], Limits{PingEvery: time.Millisecond}, nil)
	dialled, accepted := r.link()
	if dialled.Frames() != nil {
		t.Error("a dialled link has frames of a server")
	}
	w := accepted.Frames()
	for _, bad := range [][]byte{nil, {0x81}, {0x81, 0x81, 1, 2, 3, 4, 5}, {0x81, 126, 0}, {0x81, 127, 0}, {0x81, 1, 'a', 'b'}} {
		if _, err := w.Write(bad); err == nil {
			t.Errorf("%x went out", bad)
		}
		accepted.wire.mu.Lock() // pings look at it
		accepted.wire.left = 0
		accepted.wire.mu.Unlock()
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		for i := range 200 {
			text := bytes.Repeat([]byte{byte('a' + i%26)}, 1000+i*100)
			head := []byte{0x81, 126, byte(len(text) >> 8), byte(len(text))}
			for _, piece := range [][]byte{append(head, text[:10]...), text[10:500], text[500:]} {
				if _, err := w.Write(piece); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
			if i%10 == 0 {
				if err := accepted.Send(Binary, []byte{byte(i)}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for i := range 200 {
		kind, p, err := dialled.Read()
		if err != nil || kind != Text || !bytes.Equal(p, bytes.Repeat([]byte{byte('a' + i%26)}, 1000+i*100)) {
			t.Fatalf("frame %d: %v of %d bytes, %v", i, kind, len(p), err)
		}
		if i%10 == 0 {
			if kind, p, err := dialled.Read(); err != nil || kind != Binary || p[0] != byte(i) {
				t.Fatalf("message %d: %v, %v", i, kind, err)
			}
		}
	}
	sending.Wait()
}

// Many goroutines write, links are cut and closed meanwhile, and nothing is left.
func TestNothingIsLeft(t *testing.T) {
	before := openFiles(t)
	r := newRig(t, modes(t)[1], Limits{}, nil)
	var tasks sync.WaitGroup
	for i := range 12 {
		dialled, accepted := r.link()
		go echo(accepted) // ends with the link
		for j := range 3 {
			tasks.Go(func() {
				for k := 0; k < 100 && dialled.Send(Text, fmt.Appendf(nil, "%d %d", j, k)) == nil; k++ {
				}
			})
		}
		tasks.Go(func() {
			for n := 0; ; n++ {
				if _, _, err := dialled.Read(); err != nil {
					return
				}
				if n == 50 && i%3 == 0 {
					dialled.Close(1000, "")
				}
				if n == 50 && i%3 == 1 {
					accepted.Close(4401, "")
				}
			}
		})
	}
	time.Sleep(100 * time.Millisecond) // some of them are in full work
	r.proxy.cut()
	tasks.Wait()
	r.dialer.Close()
	r.stop()
	r.proxy.close()
	testkit.Eventually(t, "descriptors are back", func() bool { return openFiles(t) <= before })
	if _, err := r.dialer.Dial(context.Background(), r.to, aHello()); !errors.Is(err, ErrClosed) {
		t.Errorf("dials after Close: %v", err)
	}
}

func TestTheEndOfANodeEndsItsLinks(t *testing.T) {
	r := newRig(t, modes(t)[1], Limits{}, nil)
	dialled, _ := r.link()
	go r.stop()
	if code, _ := CloseCode(func() error { _, _, err := dialled.Read(); return err }()); code != 1012 {
		t.Errorf("the acceptor ended with %d", code)
	}
	r = newRig(t, modes(t)[1], Limits{}, nil)
	_, accepted := r.link()
	go r.dialer.Close()
	if _, _, err := accepted.Read(); err == nil {
		t.Error("a link outlives its dialer")
	}
}
