package web

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Opcodes of frames.
const (
	textFrame  = 0x1
	closeFrame = 0x8
	pingFrame  = 0x9
	pongFrame  = 0xa
)

func unmasked(first byte, payload string) []byte {
	return append([]byte{first, byte(len(payload))}, payload...)
}

func closing(code uint16, text string) []byte {
	return rig.RawFrame(0x88, string(binary.BigEndian.AppendUint16(nil, code))+text)
}

func all(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func ping(id string) string { return `{"id":"` + id + `","method":"system.ping"}` }

// hear returns a summary of what the server sends up to its close frame, the end of the connection, or the answer to "end" and `before` other answers.
func hear(c rig.RawConn, before int) string {
	var said []string
	open := false
	for {
		op, payload, err := c.Next()
		switch {
		case err != nil:
			said = append(said, "end")
		case op == closeFrame && len(payload) < 2:
			said = append(said, "close")
		case op == closeFrame:
			said = append(said, fmt.Sprint("close ", binary.BigEndian.Uint16(payload)))
			if len(payload) > 2 && binary.BigEndian.Uint16(payload) < 1002 { // ours have words for people
				said[len(said)-1] += " " + string(payload[2:])
			}
		case op == pingFrame, op == pongFrame: // pongs may be late; TestPingsAreAnswered
			continue
		case op == textFrame:
			var f rig.Frame
			if err := json.Unmarshal(payload, &f); err != nil {
				return err.Error()
			}
			if f.OK {
				if f.ID == "end" {
					open = true
				} else {
					said = append(said, fmt.Sprint("ok ", f.ID))
				}
			} else {
				said = append(said, f.Code())
			}
			if open && len(said) >= before { // answers come in any order: the last one may overtake others
				return strings.Join(append(said, "open"), ", ")
			}
			continue
		default:
			said = append(said, fmt.Sprintf("frame %x", op))
		}
		return strings.Join(said, ", ")
	}
}

// A rawCase has bytes for a socket and the complete answer of the server. "open" means that the connection goes on.
type rawCase struct {
	name string
	Send []byte
	want string
}

// rawCases returns the cases for a server with this bound on messages.
func rawCases(limit int) []rawCase {
	rows := []rawCase{
		// What is allowed, however odd.
		{"a request", rig.RawFrame(0x81, ping("a")), "ok a, open"},
		{"mask of zeros", append([]byte{0x81, 0x80 | byte(len(ping("a"))), 0, 0, 0, 0}, ping("a")...), "ok a, open"},
		{"a length in 16 bits that needs 7", rig.MaskedFrame([]byte{0x81, 0x80 | 126, 0, byte(len(ping("a")))}, ping("a")), "ok a, open"},
		{"a length in 64 bits that needs 7", rig.MaskedFrame([]byte{0x81, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0, byte(len(ping("a")))}, ping("a")), "ok a, open"},
		{"two fragments", all(rig.RawFrame(0x01, ping("a")[:9]), rig.RawFrame(0x80, ping("a")[9:])), "ok a, open"},
		{"a ping between fragments", all(rig.RawFrame(0x01, ping("a")[:9]), rig.RawFrame(0x89, "hi"), rig.RawFrame(0x80, ping("a")[9:])), "ok a, open"},
		{"a pong between fragments", all(rig.RawFrame(0x01, ping("a")[:9]), rig.RawFrame(0x8a, "hi"), rig.RawFrame(0x80, ping("a")[9:])), "ok a, open"},
		{"empty fragments around", all(rig.RawFrame(0x01, ""), rig.RawFrame(0x00, ""), rig.RawFrame(0x00, ping("a")), rig.RawFrame(0x80, "")), "ok a, open"},
		{"a thousand empty fragments", all(rig.RawFrame(0x01, ""), bytes.Repeat(rig.RawFrame(0x00, ""), 1000), rig.RawFrame(0x80, ping("a"))), "ok a, open"},
		{"three requests at once", all(rig.RawFrame(0x81, ping("a")), rig.RawFrame(0x81, ping("b")), rig.RawFrame(0x81, ping("c"))), "ok a, ok b, ok c, open"},
		{"an unasked pong", rig.RawFrame(0x8a, "why"), "open"},
		{"an empty message", rig.RawFrame(0x81, ""), "INVALID_REQUEST, open"},
		{"an empty message in fragments", all(rig.RawFrame(0x01, ""), rig.RawFrame(0x80, "")), "INVALID_REQUEST, open"},
		{"a binary message", rig.RawFrame(0x82, ping("a")), "INVALID_REQUEST, open"},
		{"an empty binary message", rig.RawFrame(0x82, ""), "INVALID_REQUEST, open"},
		{"a message at the limit", rig.RawFrame(0x81, strings.Repeat("x", limit)), "INVALID_REQUEST, open"},
		{"at the limit in fragments", all(rig.RawFrame(0x01, strings.Repeat("x", limit-1)), rig.RawFrame(0x80, "x")), "INVALID_REQUEST, open"},
		{"text that is not UTF-8", rig.RawFrame(0x81, "{\"id\":1,\"method\":\"\xff\"}"), "INVALID_REQUEST, open"}, // typed and not 1007: PROTOCOL.md
		{"a surrogate in UTF-8", rig.RawFrame(0x81, "{\"id\":1,\"method\":\"\xed\xa0\x80\"}"), "INVALID_REQUEST, open"},
		{"an overlong slash", rig.RawFrame(0x81, "{\"id\":1,\"method\":\"\xc0\xaf\"}"), "INVALID_REQUEST, open"},

		// Reserved bits and opcodes.
		{"RSV1 on text", rig.RawFrame(0xc1, ping("a")), "close 1002"},
		{"RSV2 on text", rig.RawFrame(0xa1, ping("a")), "close 1002"},
		{"RSV3 on text", rig.RawFrame(0x91, ping("a")), "close 1002"},
		{"RSV1 on binary", rig.RawFrame(0xc2, "x"), "close 1002"},
		{"RSV1 on a ping", rig.RawFrame(0xc9, "hi"), "close 1002"},
		{"RSV2 on a close", rig.RawFrame(0xa8, "\x03\xe8"), "close 1002"},
		{"RSV1 on a continuation", all(rig.RawFrame(0x01, "{"), rig.RawFrame(0xc0, "}")), "close 1002"},
		{"RSV after a request", all(rig.RawFrame(0x81, ping("a")), rig.RawFrame(0xf1, "x")), "ok a, close 1002"},

		// Masking.
		{"text without a mask", unmasked(0x81, ping("a")), "close 1002"},
		{"a ping without a mask", unmasked(0x89, "hi"), "close 1002"},
		{"a close without a mask", unmasked(0x88, "\x03\xe8"), "close 1002"},
		{"an empty frame without a mask", unmasked(0x81, ""), "close 1002"},

		// Control frames.
		{"a ping in fragments", all(rig.RawFrame(0x09, "a"), rig.RawFrame(0x80, "b")), "close 1002"},
		{"a pong in fragments", rig.RawFrame(0x0a, "a"), "close 1002"},
		{"a close in fragments", rig.RawFrame(0x08, "\x03\xe8"), "close 1002"},
		{"a ping of 126 bytes", rig.RawFrame(0x89, strings.Repeat("p", 126)), "close 1002"},
		{"a pong of 126 bytes", rig.RawFrame(0x8a, strings.Repeat("p", 126)), "close 1002"},
		{"a close of 126 bytes", closing(1000, strings.Repeat("r", 124)), "close 1002"},
		{"a ping that says it has 2^62 bytes", rig.MaskedFrame([]byte{0x89, 0x80 | 127, 0x40, 0, 0, 0, 0, 0, 0, 0}, ""), "close 1002"},
		{"51 pings in a second", bytes.Repeat(rig.RawFrame(0x89, ""), 100), "close 1008"},
		{"51 pongs in a second", bytes.Repeat(rig.RawFrame(0x8a, ""), 100), "close 1008"},

		// Fragments.
		{"a continuation of nothing", rig.RawFrame(0x80, ping("a")), "close 1002"},
		{"a continuation of nothing that goes on", rig.RawFrame(0x00, "x"), "close 1002"},
		{"a continuation after a whole message", all(rig.RawFrame(0x81, ping("a")), rig.RawFrame(0x80, "x")), "ok a, close 1002"},
		{"text within a message", all(rig.RawFrame(0x01, "{"), rig.RawFrame(0x81, ping("a"))), "close 1002"},
		{"text within, fragment too", all(rig.RawFrame(0x01, "{"), rig.RawFrame(0x01, "}")), "close 1002"},
		{"binary within a message", all(rig.RawFrame(0x01, "{"), rig.RawFrame(0x82, "x")), "close 1002"},
		{"fragments without end", all(rig.RawFrame(0x01, "{"), bytes.Repeat(rig.RawFrame(0x00, ""), 1<<16+10)), "close 1008"},
		{"fragments without end, with a ping in each", all(rig.RawFrame(0x01, "{"), bytes.Repeat(all(rig.RawFrame(0x00, ""), rig.RawFrame(0x89, "")), 1000)), "close 1008"},
		{"a close within a message", all(rig.RawFrame(0x01, "{"), closing(1000, "")), "close 1000"},

		// Lengths.
		{"a length with the highest bit", rig.MaskedFrame([]byte{0x81, 0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 1}, ""), "close 1002"},
		{"a length of all bits", rig.MaskedFrame([]byte{0x81, 0x80 | 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, ""), "close 1002"},
		{"2^63-1 bytes", rig.MaskedFrame([]byte{0x81, 0x80 | 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, ""), "close 1009"},
		{"2^62 bytes", rig.MaskedFrame([]byte{0x81, 0x80 | 127, 0x40, 0, 0, 0, 0, 0, 0, 0}, ""), "close 1009"},
		{"2^32 bytes", rig.MaskedFrame([]byte{0x81, 0x80 | 127, 0, 0, 0, 1, 0, 0, 0, 0}, ""), "close 1009"},
		{"one byte too many", rig.RawFrame(0x81, strings.Repeat("x", limit+1)), "close 1009"},
		{"one byte too many, binary", rig.RawFrame(0x82, strings.Repeat("x", limit+1)), "close 1009"},
		{"one byte too many, in fragments", all(rig.RawFrame(0x01, strings.Repeat("x", limit)), rig.RawFrame(0x80, "x")), "close 1009"},
		{"lengths whose sum wraps", all(rig.RawFrame(0x01, "x"), rig.MaskedFrame([]byte{0x80, 0x80 | 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "")), "close 1009"},
		{"too big after a request", all(rig.RawFrame(0x81, ping("a")), rig.RawFrame(0x81, strings.Repeat("x", limit+1))), "ok a, close 1009"},

		// Closing.
		{"a close without a code", rig.RawFrame(0x88, ""), "close"},
		{"a close of one byte", rig.RawFrame(0x88, "\x03"), "close 1002"},
		{"a close with a reason", closing(1000, "bye é"), "close 1000 bye é"},
		{"a close with 123 bytes of reason", closing(1001, strings.Repeat("r", 123)), "close 1001 " + strings.Repeat("r", 123)},
		{"a reason that is not UTF-8", closing(1000, "\xff"), "close 1007"},
		{"half a character for a reason", closing(1000, "\xe2\x82"), "close 1007"},
		{"text after a close", all(closing(1000, ""), rig.RawFrame(0x81, ping("a"))), "close 1000"},
		{"a ping after a close", all(closing(1000, ""), rig.RawFrame(0x89, "hi")), "close 1000"},
		{"two closes", all(closing(1000, ""), closing(1001, "")), "close 1000"},
		{"a request before a close", all(rig.RawFrame(0x81, ping("a")), closing(1000, "")), "ok a, close 1000"},
	}
	for _, op := range []byte{3, 4, 5, 6, 7, 0xb, 0xc, 0xd, 0xe, 0xf} {
		rows = append(rows, rawCase{fmt.Sprintf("opcode %x", op), rig.RawFrame(0x80|op, "x"), "close 1002"},
			rawCase{fmt.Sprintf("opcode %x within a message", op), all(rig.RawFrame(0x01, "{"), rig.RawFrame(0x80|op, "x")), "close 1002"})
	}
	for _, code := range []uint16{0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535} {
		rows = append(rows, rawCase{fmt.Sprint("close with ", code), closing(code, ""), "close 1002"})
	}
	for _, code := range []uint16{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		rows = append(rows, rawCase{fmt.Sprint("close with ", code), closing(code, ""), fmt.Sprint("close ", code)})
	}

	return rows
}

// TestRawFrames: the server gives each case the answer of the table, and sessions of other connections go on.
func TestRawFrames(t *testing.T) {
	const limit = 64 << 10
	g := start(t, func(c *Config) { c.MaxFrame = limit })
	bystander := g.Dial()
	session := bystander.Session()
	for i, r := range rawCases(limit) {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			c := g.Raw()
			defer c.Close() // all are gone at the end
			go func() {     // the server may answer before it has taken all; ends with the connection
				c.Write(r.Send)
				if strings.HasSuffix(r.want, "open") {
					c.Write(rig.RawFrame(0x81, ping("end")))
				}
			}()
			if got := hear(c, strings.Count(r.want, ", ")); got != r.want {
				t.Errorf("answered %q, want %q", got, r.want)
			}
			if got := bystander.Run(session, "N=$((N+1)); echo $N").Stdout(); got != fmt.Sprintln(i+1) {
				t.Errorf("the other session says %q", got)
			}
		})
	}
	testkit.Eventually(t, "all are gone", func() bool { return g.Metric("trl_connections") == 1 })
	if log := g.Log.String(); strings.Contains(log, `"level":"error"`) || strings.Contains(log, "panic") {
		t.Error(log)
	}
}

func TestPingsAreAnswered(t *testing.T) {
	c := start(t).Raw()
	for _, text := range []string{"", "hi", strings.Repeat("p", 125), "\xff\xfe"} {
		c.Write(rig.RawFrame(0x01, "{")) // also within a message
		c.Write(rig.RawFrame(0x89, text))
		op, payload, err := c.Next()
		if op != pongFrame || string(payload) != text || err != nil {
			t.Errorf("%q: %x %q %v", text, op, payload, err)
		}
		c.Write(rig.RawFrame(0x80, "}"))
		if op, payload, _ := c.Next(); op != textFrame || !bytes.Contains(payload, []byte("INVALID_REQUEST")) {
			t.Errorf("%q: then %x %q", text, op, payload)
		}
	}
}

// TestFramesHoweverTheyCome: a request may come in single bytes, or in two fragments that are cut at any byte, even within a character or an escape.
// A request that is not UTF-8 is answered in the same way, too.
func TestFramesHoweverTheyCome(t *testing.T) {
	g := start(t)
	const good, bad = `{"id":"é€😀\ud83d\ude00","method":"system.ping"}`, "{\"id\":\"\xe2\x82\",\"method\":\"system.ping\"}"
	c := g.Raw()
	for _, b := range all(rig.RawFrame(0x01, good[:9]), rig.RawFrame(0x89, "x"), rig.RawFrame(0x80, good[9:]), rig.RawFrame(0x81, ping("end"))) {
		c.Write([]byte{b})
	}
	if got := hear(c, 1); got != "ok é€😀😀, open" {
		t.Errorf("in single bytes: %q", got)
	}
	for text, want := range map[string]string{good: "ok é€😀😀, open", bad: "INVALID_REQUEST, open"} {
		for i := range len(text) + 1 {
			c.Write(all(rig.RawFrame(0x01, text[:i]), rig.RawFrame(0x80, text[i:]), rig.RawFrame(0x81, ping("end"))))
			if got := hear(c, strings.Count(want, ", ")); got != want {
				t.Errorf("cut at %d: %q, want %q", i, got, want)
			}
		}
	}
}

// TestUnfinishedIsEnded: the time for a message is bounded, whichever part is missing and even if pings keep coming. A client that has begun no
// message may be silent.
func TestUnfinishedIsEnded(t *testing.T) {
	g := start(t, func(c *Config) { c.stall = 200 * time.Millisecond })
	quiet := g.Dial()
	for name, send := range map[string][]byte{
		"half a header":             {0x81},
		"a header without its mask": {0x81, 0x85, 0},
		"half a payload":            rig.RawFrame(0x81, ping("a"))[:20],
		"between fragments":         rig.RawFrame(0x01, "{"),
		"within a fragment":         all(rig.RawFrame(0x01, "{"), []byte{0x80, 0x85, 0, 0, 0, 0, 'x'}),
		"after a request":           all(rig.RawFrame(0x81, ping("a")), []byte{0x81}),
	} {
		c := g.Raw()
		c.Write(send)
		if got := strings.TrimPrefix(hear(c, 0), "ok a, "); got != "close 1008" {
			t.Errorf("%s: %q", name, got)
		}
	}
	c := g.Raw()
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() { // pings, few enough; ends with stop
		defer close(stopped)
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-tick.C:
				c.Write(rig.RawFrame(0x89, ""))
			case <-stop:
				tick.Stop()
				return
			}
		}
	}()
	c.Write(rig.RawFrame(0x01, "{"))
	if got := hear(c, 0); !strings.HasSuffix(got, "close 1008") {
		t.Errorf("with pings: %q", got)
	}
	close(stop)
	<-stopped
	quiet.Call("system.ping", nil)
}

// TestSlowTakerHasNotStalled: the time limit of a message pauses while the server does not read, because it waits for the client to read its
// answers.
func TestSlowTakerHasNotStalled(t *testing.T) {
	const stall = 2 * time.Second // longer than a busy machine keeps the other half of a request waiting
	g := start(t, func(c *Config) { c.stall = stall })
	c := g.Raw()
	request := rig.RawFrame(0x81, `{"id":1,"method":"system.capabilities"}`) // answered with some KiB, by the reading goroutine
	sent := make(chan struct{})
	const n = 2_000 // more than the kernel takes on its way
	go func() {     // writes until the server takes no more, and on when it does; ends when it has taken all
		defer close(sent)
		c.Write(append(bytes.Repeat(request, n), rig.RawFrame(0x81, ping("end"))...))
	}()
	time.Sleep(3 * stall / 2) // nothing is waited for: this is how long the client takes nothing
	if got := hear(c, n); !strings.HasSuffix(got, "open") || strings.Count(got, "ok 1") != n {
		t.Errorf("%d answers, then %.40q", strings.Count(got, "ok 1"), got[max(0, len(got)-40):])
	}
	<-sent
}
