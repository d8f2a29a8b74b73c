package protocol

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"
)

var inf = math.Inf(1)

// sameAsGeneric holds AppendOutput against the plain encoding of the same fields and reads it back.
func sameAsGeneric(t interface{ Fatalf(string, ...any) }, o *Output) {
	text, encoding := EncodeBytes(o.Data)
	if encoding == UTF8 {
		encoding = "" // absent
	}
	want, err := AppendEvent(nil, "exec.output", struct {
		StreamID  string `json:"stream_id"`
		ExecID    string `json:"exec_id,omitzero"`
		ProcessID string `json:"process_id,omitzero"`
		TermID    string `json:"term_id,omitzero"`
		Offset    int64  `json:"offset"`
		Stream    string `json:"stream"`
		Data      string `json:"data"`
		Encoding  string `json:"encoding,omitzero"`
		Replay    bool   `json:"replay,omitzero"`
		Snapshot  bool   `json:"snapshot,omitzero"`
	}{o.StreamID, o.ExecID, o.ProcessID, o.TermID, o.Offset, o.Stream, text, encoding, o.Replay, o.Snapshot})
	if err != nil {
		t.Fatalf("generic: %v", err)
	}
	got := AppendOutput([]byte("before"), "exec.output", o)
	if string(got) != "before"+string(want) {
		t.Fatalf("got  %s\nwant %s", got[6:], want)
	}
	if generic, err := AppendEvent(nil, "exec.output", o); err != nil || !bytes.Equal(generic, want) {
		t.Fatalf("AppendEvent gives %s, %v\nwant %s", generic, err, want)
	}
	var back struct {
		Event string
		Data  Output
	}
	if err := json.Unmarshal(want, &back, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatalf("read back: %v", err)
	}
	if !bytes.Equal(back.Data.Data, o.Data) || back.Data.Offset != o.Offset || back.Data.StreamID != o.StreamID || back.Data.Replay != o.Replay || back.Data.Snapshot != o.Snapshot {
		t.Fatalf("read back %+v, want %+v", back.Data, *o)
	}
	raw, fault := DecodeBytes(text, encoding)
	if fault != nil || !bytes.Equal(raw, o.Data) {
		t.Fatalf("DecodeBytes gives %q, %v", raw, fault)
	}
}

// TestEveryByteEscapesAsTheEncoderDoes: each byte at each place in the eight that are looked at together.
func TestEveryByteEscapesAsTheEncoderDoes(t *testing.T) {
	for b := range 256 {
		for at := range 17 {
			data := bytes.Repeat([]byte{'x'}, 19)
			data[at] = byte(b)
			sameAsGeneric(t, &Output{StreamID: "t-1", ExecID: "x-1", Stream: "stdout", Data: data})
		}
	}
}

func TestOutputEqualsGenericEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.OneOf(
			rapid.SliceOf(rapid.Byte()),
			rapid.SliceOf(rapid.ByteRange(0, 0x7f)),
			rapid.Map(rapid.String(), func(s string) []byte { return []byte(s) }),
		).Draw(t, "data")
		name := rapid.SampledFrom([]string{"", "t-1", `"<é`})
		sameAsGeneric(t, &Output{
			StreamID: name.Draw(t, "stream_id"), ExecID: name.Draw(t, "exec_id"), ProcessID: name.Draw(t, "process_id"), TermID: name.Draw(t, "term_id"),
			Offset: rapid.Int64().Draw(t, "offset"), Stream: "stdout", Data: data, Replay: rapid.Bool().Draw(t, "replay"), Snapshot: rapid.Bool().Draw(t, "snapshot"),
		})
	})
}

// TestOutputAllocatesNothing: with room in dst.
func TestOutputAllocatesNothing(t *testing.T) {
	for _, data := range [][]byte{bytes.Repeat([]byte("a line of text\n"), 2000), bytes.Repeat([]byte{0xff}, 30000)} {
		o := &Output{StreamID: "t-1", ExecID: "x-1", Stream: "stdout", Data: data}
		dst := make([]byte, 0, 64<<10)
		if n := testing.AllocsPerRun(100, func() { dst = AppendOutput(dst[:0], "exec.output", o) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// TestBinaryFramesReadBack: what a client decodes is what was encoded, and nothing else is taken for a frame.
func TestBinaryFramesReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Output{
			Offset: rapid.Int64Min(0).Draw(t, "offset"), Stream: rapid.SampledFrom([]string{"stdout", "stderr", "tty"}).Draw(t, "stream"),
			Data: rapid.SliceOf(rapid.Byte()).Draw(t, "data"), Replay: rapid.Bool().Draw(t, "replay"), Snapshot: rapid.Bool().Draw(t, "snapshot"),
		}
		no := rapid.Uint64().Draw(t, "no")
		frame := AppendBinary([]byte("before"), no, &want)[6:]
		gotNo, got, ok := decodeBinary(frame)
		if !ok || gotNo != no || got.Offset != want.Offset || got.Stream != want.Stream || !bytes.Equal(got.Data, want.Data) || got.Replay != want.Replay || got.Snapshot != want.Snapshot {
			t.Fatalf("%x: %d %+v %v, want %d %+v", frame, gotNo, got, ok, no, want)
		}
	})
	if frame := AppendBinary(nil, 300, &Output{Offset: 5, Stream: "tty", Data: []byte("x"), Replay: true}); !bytes.Equal(frame, []byte{0x13, 0xac, 0x02, 5, 'x'}) {
		t.Errorf("a frame is % x", frame)
	}
	for _, frame := range [][]byte{nil, {}, {0}, {4, 1, 1}, {0x43, 1, 1}, {1}, {1, 0x80}, {1, 1, 0x80}, {0x10, 1, 1}} {
		if _, _, ok := decodeBinary(frame); ok {
			t.Errorf("% x is taken for a frame", frame)
		}
	}
}

func TestDecodeBytesRefuses(t *testing.T) {
	if _, err := DecodeBytes("AA", Base64); err == nil || err.Details["field"] != "data" {
		t.Errorf("bad base64: %v", err)
	}
	if _, err := DecodeBytes("AA", "hex"); err == nil || err.Details["field"] != "encoding" {
		t.Errorf("unknown encoding: %v", err)
	}
}

func BenchmarkAppendOutput(b *testing.B) {
	for name, data := range map[string][]byte{
		"lines":  bytes.Repeat([]byte("drwxr-xr-x 2 root root 4096 Jan  1 00:00 a-file-of-some-length.txt\n"), 490),
		"plain":  bytes.Repeat([]byte("x"), 32<<10),
		"utf8":   bytes.Repeat([]byte("äöü日本語 "), 1820),
		"quotes": bytes.Repeat([]byte(`{"key":"value"}`), 2184),
		"binary": bytes.Repeat([]byte{0xff, 0, 1, 2}, 8<<10),
	} {
		o := &Output{StreamID: "t-abcdefghij", ExecID: "x-abcdefghij", Offset: 1 << 30, Stream: "stdout", Data: data}
		b.Run(name, func(b *testing.B) {
			dst := make([]byte, 0, 256<<10)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				dst = AppendOutput(dst[:0], "exec.output", o)
			}
		})
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	for name, command := range map[string]string{"small": ":", "64KiB": strings.Repeat("echo hello\\n", 64<<10/12)} {
		frame := fmt.Appendf(nil, `{"id":12,"method":"exec.run","params":{"session_id":"s-abcdefghijklmnopqrst","command":"%s"}}`, command)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			for b.Loop() {
				req, err := DecodeRequest(frame)
				if err != nil {
					b.Fatal(err)
				}
				var q ExecRun
				if err := DecodeParams(req.Params, &q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendResult(b *testing.B) {
	r := &ExecResult{ExecExit: ExecExit{ExecID: "x-abcdefghij", SessionID: "s-abcdefghij", StreamID: "t-abcdefghij", ExitCode: p(0), WorkingDir: "/tmp"},
		StdoutEncoding: UTF8, StderrEncoding: UTF8}
	dst := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		dst, _ = appendResult(dst[:0], []byte("12"), r)
	}
}

// TestInputFramesReadBack: what the server reads is what a client sent, and nothing else is taken for input.
func TestInputFramesReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := InputFrame{
			StreamNo: rapid.Uint64().Draw(t, "no"), Offset: rapid.Int64Min(0).Draw(t, "offset"),
			Data: rapid.SliceOf(rapid.Byte()).Draw(t, "data"), EOF: rapid.Bool().Draw(t, "eof"),
		}
		frame := AppendInput([]byte("before"), &want)[6:]
		got, ok := ParseInput(frame)
		if !ok || got.StreamNo != want.StreamNo || got.Offset != want.Offset || !bytes.Equal(got.Data, want.Data) || got.EOF != want.EOF {
			t.Fatalf("%x: %+v %v, want %+v", frame, got, ok, want)
		}
	})
	if frame := AppendInput(nil, &InputFrame{StreamNo: 300, Offset: 5, Data: []byte("x"), EOF: true}); !bytes.Equal(frame, []byte{0x44, 0xac, 0x02, 5, 'x'}) {
		t.Errorf("a frame is % x", frame)
	}
	tooFar := AppendInput(nil, &InputFrame{StreamNo: 1, Offset: -1})
	for _, frame := range [][]byte{nil, {}, {0}, {3, 1, 1}, {5, 1, 1}, {0x14, 1, 1}, {0x84, 1, 1}, {4}, {4, 0x80}, {4, 1}, {4, 1, 0x80}, tooFar} {
		if _, ok := ParseInput(frame); ok {
			t.Errorf("% x is taken for a frame", frame)
		}
	}
}

// decodeBinary reads a frame of AppendBinary; the data aliases the frame. ok is false for any other frame.
func decodeBinary(frame []byte) (streamNo uint64, o Output, ok bool) {
	if len(frame) == 0 || frame[0]&^(KindReplay|KindSnapshot|KindTTY) != 0 || frame[0]&KindTTY == 0 {
		return 0, o, false
	}
	o.Stream = [...]string{"", "stdout", "stderr", "tty"}[frame[0]&KindTTY]
	o.Replay, o.Snapshot = frame[0]&KindReplay != 0, frame[0]&KindSnapshot != 0
	streamNo, n := binary.Uvarint(frame[1:])
	if n <= 0 {
		return 0, o, false
	}
	at, m := binary.Uvarint(frame[1+n:])
	if m <= 0 || at > 1<<63-1 {
		return 0, o, false
	}
	o.Offset, o.Data = int64(at), frame[1+n+m:]
	return streamNo, o, true
}
