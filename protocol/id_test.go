package protocol

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestSameID(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`1`, `1`, true}, {`1`, `1.0`, true}, {`1e2`, `100`, true}, {`"a"`, `"\u0061"`, true}, {`"1"`, `1`, false}, {`1`, `2`, false}, {`"a"`, `"b"`, false},
		{`1732560000000000001`, `1732560000000000002`, false}, {`1732560000000000001`, `1.732560000000000001e18`, true}, {`0.10`, `1E-1`, true},
		{`-0`, `0.0e5`, true}, {`-1`, `1`, false}, {`10`, `1`, false}, {`1e400`, `10e399`, true}, {`0.1`, `0.01`, false}, {`1e99999999999999999999`, `1e99999999999999999998`, false},
	} {
		if got := SameID(jsontext.Value(c.a), jsontext.Value(c.b)); got != c.want {
			t.Errorf("%s %s: %v", c.a, c.b, got)
		}
	}
}

func TestSplitAnswer(t *testing.T) {
	for _, id := range []string{`1`, `-1.50e7`, `"a"`, `"a\"\\b,"`, `""`} {
		msg := AppendFailure(nil, jsontext.Value(id), Errorf(InternalError, "x"))
		if got, rest := SplitAnswer(msg); string(got) != id || string(rest) != string(msg[len(`{"id":`)+len(id):]) {
			t.Errorf("%s: %q and %q", msg, got, rest)
		}
	}
	for _, msg := range []string{``, `{}`, `{"id":`, `{"id":"a`, `{"id":"a\`, `{"id":1`, `{"event":"x","data":{}}`} {
		if id, rest := SplitAnswer([]byte(msg)); id != nil || rest != nil {
			t.Errorf("%s: %q and %q", msg, id, rest)
		}
	}
}
