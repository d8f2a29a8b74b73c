package link

import (
	"bytes"
	"errors"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

func TestNumbersOfLinksNeverMeet(t *testing.T) {
	for _, nth := range []int{-1, 0, MaxLinks + 1} {
		if _, err := NewNumbers(nth); err == nil {
			t.Errorf("there is a link %d", nth)
		}
	}
	seen := map[uint64]bool{}
	for own := range uint64(50) {
		seen[(own+1)*Stride] = true
	}
	for _, nth := range []int{1, 2, 3, MaxLinks} {
		n := numbers(t, nth)
		for no := uint64(1); no <= 50; no++ {
			client, err := n.ToClient(no)
			if err != nil || seen[client] {
				t.Errorf("stream %d of link %d: number %d, seen %v, %v", no, nth, client, seen[client], err)
			}
			seen[client] = true
			if back, ok := n.ToOwner(client); !ok || back != no {
				t.Errorf("%d of link %d came back as %d, %v", no, nth, back, ok)
			}
			if _, ok := numbers(t, nth%MaxLinks+1).ToOwner(client); ok {
				t.Errorf("%d is also a number of another link", client)
			}
		}
	}
	for _, no := range []uint64{0, maxNumber + 1, 1 << 63} {
		if _, err := numbers(t, 1).ToClient(no); !errors.Is(err, ErrStreamNumber) {
			t.Errorf("%d: %v", no, err)
		}
	}
	if last, err := numbers(t, MaxLinks).ToClient(maxNumber); err != nil || last >= 1<<53 {
		t.Errorf("the last number is %d, %v: JavaScript would round it", last, err)
	}
}

func numbers(t testing.TB, nth int) Numbers {
	t.Helper()
	n, err := NewNumbers(nth)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOnlyTheStreamNumberOfAnAnswerChanges(t *testing.T) {
	for name, c := range map[string]struct{ in, out string }{
		"answer":                     {`{"id":"1","ok":true,"data":{"exec_id":"x","stream_no":7,"offset":0}}`, `{"id":"1","ok":true,"data":{"exec_id":"x","stream_no":28674,"offset":0}}`},
		"last field":                 {`{"id":1,"ok":true,"data":{"stream_no":1}}`, `{"id":1,"ok":true,"data":{"stream_no":4098}}`},
		"event":                      {`{"event":"stream.started","data":{"stream_id":"st-x","stream_no":3}}`, `{"event":"stream.started","data":{"stream_id":"st-x","stream_no":12290}}`},
		"spaces":                     {`{ "id" : 1 , "data" : { "stream_no" : 1 } }`, `{ "id" : 1 , "data" : { "stream_no" : 4098 } }`},
		"none":                       {`{"id":"1","ok":true,"data":{}}`, ""},
		"in output":                  {`{"id":"1","ok":true,"data":{"stdout":"{\"data\":{\"stream_no\":7}}"}}`, ""},
		"a string that ends with it": {`{"id":"1","ok":true,"data":{"a\\":"stream_no","stdout":"\\\"stream_no"}}`, ""},
		"a label":                    {`{"id":"1","ok":true,"data":{"labels":{"stream_no":7}}}`, ""},
		"label and number":           {`{"id":"1","ok":true,"data":{"labels":{"stream_no":7},"stream_no":1}}`, `{"id":"1","ok":true,"data":{"labels":{"stream_no":7},"stream_no":4098}}`},
		"the terminal of a session":  {`{"id":1,"ok":true,"data":{"labels":{"terminal":1,"stream_no":7},"terminal":{"term_id":"t","stream_no":1},"x":{"stream_no":2}}}`, `{"id":1,"ok":true,"data":{"labels":{"terminal":1,"stream_no":7},"terminal":{"term_id":"t","stream_no":4098},"x":{"stream_no":2}}}`},
		"after the terminal":         {`{"id":1,"ok":true,"data":{"terminal":{"term_id":"t"},"x":{"stream_no":2}}}`, ""},
		"within the terminal":        {`{"id":1,"ok":true,"data":{"terminal":{"x":{"stream_no":2}}}}`, ""},
		"outside":                    {`{"stream_no":7,"data":{}}`, ""},
		"in another field":           {`{"error":{"stream_no":7}}`, ""},
		"in details":                 {`{"error":{"code":"X","details":{"data":{"stream_no":7}}}}`, ""},
		"data within":                {`{"error":{"data":{"stream_no":7}}}`, ""},
		"a list":                     {`{"data":[{"stream_no":7}]}`, ""},
		"an id that looks like it":   {`{"id":"\"data\":{\"stream_no\":7","ok":true,"data":{"stream_no":2}}`, `{"id":"\"data\":{\"stream_no\":7","ok":true,"data":{"stream_no":8194}}`},
		"another event":              {`{"event":"exec.output","data":{"stream_no":7}}`, ""},
		"value is the name":          {`{"data":{"name":"stream_no"}}`, ""},
		"not JSON":                   {`"stream_no`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.out == "" {
				c.out = c.in
			}
			got, err := numbers(t, 2).AppendText([]byte("before"), []byte(c.in))
			if err != nil || string(got) != "before"+c.out {
				t.Errorf("%s\nbecame %s\nwant   %s, %v", c.in, got, c.out, err)
			}
		})
	}
	for _, bad := range []string{`"7"`, "-1", "0", "1.5", "1e3", "null", "{}", "99999999999999999999", strconv.Itoa(maxNumber + 1)} {
		if _, err := numbers(t, 1).AppendText(nil, []byte(`{"data":{"stream_no":`+bad+`}}`)); !errors.Is(err, ErrStreamNumber) {
			t.Errorf("stream_no %s: %v", bad, err)
		}
	}
}

// The messages are those that the gateway writes.
func TestAnswersOfTheProtocolAreMapped(t *testing.T) {
	n := numbers(t, 5)
	for _, data := range []any{
		&protocol.StreamOpened{ExecID: "x", StreamID: "st-x", StreamNo: 9}, &protocol.TermOpened{TermID: "t", StreamNo: 9},
		&protocol.TermAttached{StreamNo: 9}, &protocol.Logs{StreamNo: 9, Chunks: []protocol.Chunk{{Data: `{"data":{"stream_no":8}}`}}},
	} {
		var b bytes.Buffer
		if err := protocol.WriteResult(&b, jsontext.Value(`"id"`), data); err != nil {
			t.Fatal(err)
		}
		checkMapping(t, n, b.Bytes(), 9)
	}
	event, err := protocol.AppendEvent(nil, "stream.started", &protocol.StreamStarted{StreamID: "st-x", StreamNo: 9})
	if err != nil {
		t.Fatal(err)
	}
	checkMapping(t, n, event, 9)
}

// checkMapping checks that the only difference of a mapped message is one number.
func checkMapping(t *testing.T, n Numbers, msg []byte, no uint64) {
	t.Helper()
	client, _ := n.ToClient(no)
	got, err := n.AppendText(nil, msg)
	if err != nil {
		t.Fatal(err)
	}
	own, mapped := `"stream_no":`+strconv.FormatUint(no, 10), `"stream_no":`+strconv.FormatUint(client, 10)
	if strings.Count(string(msg), own) != 1 || string(got) != strings.Replace(string(msg), own, mapped, 1) {
		t.Errorf("%s\nbecame %s", msg, got)
	}
}

func TestBinaryFramesKeepTheirBytes(t *testing.T) {
	n := numbers(t, MaxLinks)
	for _, no := range []uint64{1, 127, 128, 1 << 20, maxNumber} {
		o := &protocol.Output{Stream: "tty", Offset: 1 << 40, Data: []byte("\x00\xffx"), Replay: true}
		client, _ := n.ToClient(no)
		got, err := n.AppendBinary(nil, protocol.AppendBinary(nil, no, o))
		if want := protocol.AppendBinary(nil, client, o); err != nil || !bytes.Equal(got, want) {
			t.Errorf("stream %d: %x, want %x, %v", no, got, want, err)
		}
	}
	for _, bad := range [][]byte{nil, {1}, {1, 0x80}, {1, 0}, append([]byte{1}, bytes.Repeat([]byte{0xff}, 10)...)} {
		if _, err := n.AppendBinary(nil, bad); !errors.Is(err, ErrStreamNumber) {
			t.Errorf("%x: %v", bad, err)
		}
	}
}

// FuzzNumbers compares the mapping with what a decoder of JSON finds.
func FuzzNumbers(f *testing.F) {
	f.Add([]byte(`{"id":"1","ok":true,"data":{"exec_id":"x","stream_no":7,"offset":0}}`), uint64(7), uint16(2))
	f.Add([]byte(`{"a":[{"data":{"stream_no":1}}],"data":{"x":{"stream_no":[2]},"stream_no":3}}`), uint64(1), uint16(4095))
	f.Add([]byte(`{"data":{"\\":"\"stream_no\":","stream_no":3}}`), uint64(1<<40), uint16(1))
	f.Fuzz(func(t *testing.T, msg []byte, no uint64, nth uint16) {
		n, err := NewNumbers(int(nth))
		if err != nil {
			return
		}
		frame := append([]byte{protocol.KindTTY}, protocol.AppendBinary(nil, no, &protocol.Output{Data: msg})[1:]...)
		if got, err := n.AppendBinary(nil, frame); err == nil {
			client, err := n.ToClient(no)
			if want := append([]byte{protocol.KindTTY}, protocol.AppendBinary(nil, client, &protocol.Output{Data: msg})[1:]...); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%x became %x, want %x, %v", frame, got, want, err)
			}
		}
		_, _ = n.AppendBinary(nil, msg) // must not panic
		_, _ = n.AppendText(nil, msg)
		compact := jsontext.Value(bytes.Clone(msg))
		if compact.Compact() != nil || compact.Canonicalize() != nil || bytes.Contains(compact, []byte(`{"event":"`)) { // of the events only one is mapped: see the table
			return
		}
		before, hasOne := streamNo(compact)
		got, err := n.AppendText(nil, compact)
		switch {
		case !hasOne && (err != nil || !bytes.Equal(got, compact)):
			t.Fatalf("%s has no number and became %s, %v", compact, got, err)
		case hasOne && err == nil:
			own, err1 := strconv.ParseUint(string(before), 10, 64)
			client, err2 := n.ToClient(own)
			after, _ := streamNo(got)
			if err1 != nil || err2 != nil || string(after) != strconv.FormatUint(client, 10) {
				t.Fatalf("%s became %s: want %d, %v, %v", compact, got, client, err1, err2)
			}
			if !maps.Equal(rest(compact), rest(got)) {
				t.Fatalf("%s became %s: more than the number changed", compact, got)
			}
		}
	})
}

// streamNo returns the field stream_no of the field data.
func streamNo(msg []byte) (jsontext.Value, bool) {
	data, ok := members(msg)["data"]
	if !ok {
		return nil, false
	}
	no, ok := members([]byte(data))["stream_no"]
	return jsontext.Value(no), ok
}

// rest is every field of msg and of its data but stream_no.
func rest(msg []byte) map[string]string {
	all, data := members(msg), members([]byte(members(msg)["data"]))
	delete(all, "data")
	delete(data, "stream_no")
	for k, v := range data {
		all["data."+k] = v
	}
	return all
}

// members returns the fields of a JSON object; none for another value.
func members(msg []byte) map[string]string {
	all := map[string]string{}
	d := jsontext.NewDecoder(bytes.NewReader(msg))
	if d.PeekKind() != '{' {
		return all
	}
	_, _ = d.ReadToken()
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return all
		}
		key := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return all
		}
		all[key] = string(value)
	}
	return all
}
