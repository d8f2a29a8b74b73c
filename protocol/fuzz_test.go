package protocol

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// FuzzDecode: whatever a client sends, nothing panics, and it is told in valid JSON, under its own id where the frame is JSON with a usable one.
func FuzzDecode(f *testing.F) {
	text, err := os.ReadFile("testdata/requests.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if frame, ok := strings.CutPrefix(line, "> "); ok {
			f.Add([]byte(strings.TrimSuffix(frame, "\n")))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		req, fault := DecodeRequest(frame)
		var loose struct {
			ID jsontext.Value `json:"id"`
		}
		if json.Unmarshal(frame, &loose) == nil && (loose.ID.Kind() == '"' || loose.ID.Kind() == '0') && !bytes.Equal(req.ID, loose.ID) {
			t.Fatalf("id %s of %q became %s", loose.ID, frame, req.ID)
		}
		check := func(e *Error) {
			answer := AppendFailure(nil, req.ID, e)
			if !jsontext.Value(answer).IsValid() || bytes.IndexByte(answer, '\n') >= 0 {
				t.Fatalf("%q is answered %q", frame, answer)
			}
		}
		if fault != nil {
			check(fault)
		}
		raws := []jsontext.Value{req.Params}
		if v := jsontext.Value(frame); v.IsValid() {
			raws = append(raws, v) // the frame itself as params: reaches the types sooner
		}
		for _, raw := range raws {
			for _, m := range methods {
				into := reflect.New(m.Params)
				if e := DecodeParams(raw, into.Interface()); e != nil {
					if e.Code != InvalidParams || e.Details["field"] == nil {
						t.Fatalf("%s %q: %v %v", m.Name, raw, e, e.Details)
					}
					check(e)
					continue
				}
				// What was understood survives the way back.
				text, err := json.Marshal(into.Interface())
				if err != nil {
					t.Fatalf("%s %q: %v", m.Name, raw, err)
				}
				again := reflect.New(m.Params)
				if e := DecodeParams(text, again.Interface()); e != nil || !sameJSON(into, again) {
					t.Fatalf("%s %q: written as %s and read as %v: %v", m.Name, raw, text, again, e)
				}
			}
		}
	})
}

func sameJSON(a, b reflect.Value) bool {
	x, _ := json.Marshal(a.Interface(), json.Deterministic(true))
	y, _ := json.Marshal(b.Interface(), json.Deterministic(true))
	return bytes.Equal(x, y)
}

// FuzzOutput: the hot path writes what the encoder would and loses nothing.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("text\n\t\"\\\x00\x7f\u2028é"), "t-1", int64(0), false)
	f.Add([]byte{0xff, 0xfe}, "<&>", int64(-1), true)
	f.Add([]byte("\xe2\x94"), "", int64(1)<<62, false)
	f.Fuzz(func(t *testing.T, data []byte, id string, offset int64, replay bool) {
		if !utf8.ValidString(id) {
			t.Skip("ids are ours")
		}
		sameAsGeneric(t, &Output{StreamID: id, ExecID: id, Stream: "stdout", Offset: offset, Data: data, Replay: replay})
	})
}

// FuzzClean: see cleanHolds.
func FuzzClean(f *testing.F) {
	f.Add("10%\r20%\r\x1b[K100%\n\x1b]0;t\x07\x1b[31mx\b\u009b")
	f.Fuzz(func(t *testing.T, text string) { cleanHolds(t, text) })
}
