package rpc

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"trl/internal/rig"
	"trl/protocol"
)

// samples is one JSON text of each kind, by the kind's name.
var samples = map[string][]string{
	"string": {`"text"`, `""`}, "number": {`5`, `-1`, `1.5`, `1e400`, `-0`, `123456789012345678901234567890`}, "bool": {`true`, `false`},
	"array": {`[]`, `[1]`, `[null]`, `["text"]`}, "object": {`{}`, `{"a":1}`, `{"":{}}`},
}

// wanted is which of those kinds a parameter takes.
func wanted(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[jsontext.Value](): // an id
		return []string{"string", "number"}
	case t.Kind() == reflect.String:
		return []string{"string"}
	case t.Kind() == reflect.Bool:
		return []string{"bool"}
	case t.Kind() == reflect.Slice:
		return []string{"array"}
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return []string{"object"}
	}
	return []string{"number"}
}

// TestEveryParameterOfEveryMethod: a parameter that is of another type, not whole, too large, there twice, in another case, or text that is
// none is refused by name; the request's id comes back, and the connection stays. By reflection, so that none is forgotten.
func TestEveryParameterOfEveryMethod(t *testing.T) {
	g := start(t)
	c := g.Dial()
	requests := 0
	refused := func(method, field, params string) {
		t.Helper()
		requests++
		c.SendText(`{"params":` + params + `,"method":"` + method + `","id":"q"}`)
		f := c.Answer("q")
		if f.Code() != "INVALID_PARAMS" || f.Error.Details.Str("field") != field {
			t.Errorf("%s %.200s: %s %v, want %s", method, params, f.Code(), f.Error, field)
		}
	}
	var each func(method, around, prefix string, of reflect.Type)
	each = func(method, around, prefix string, of reflect.Type) { // around is the params with %s for the object in question
		in := func(text string) string { return strings.Replace(around, "%s", text, 1) }
		for _, p := range reflect.VisibleFields(of) {
			name, _, _ := strings.Cut(p.Tag.Get("json"), ",")
			if p.Anonymous || name == "" || name == "-" {
				continue
			}
			field, kinds := prefix+name, wanted(p.Type)
			for kind, texts := range samples {
				for _, text := range texts {
					if slices.Contains(kinds, kind) && !(kind == "number" && len(kinds) == 1 && unfit(p.Type, text)) {
						continue // it may do, or Validate says why not
					}
					refused(method, field, in(fmt.Sprintf(`{%q:%s}`, name, text)))
				}
			}
			refused(method, field, in(fmt.Sprintf(`{%q:null,%q:null}`, name, name)))
			refused(method, prefix+strings.ToUpper(name), in(fmt.Sprintf(`{%q:null}`, strings.ToUpper(name))))
			refused(method, prefix+name+" ", in(fmt.Sprintf(`{"%s ":null}`, name)))
			if slices.Equal(kinds, []string{"string"}) {
				for _, text := range []string{`\ud800`, `\udc00`, `\ud800\ud800`, "\xff", "\xed\xa0\x80"} {
					refused(method, field, in(fmt.Sprintf(`{%q:"%s"}`, name, text)))
				}
				if name != "stdin" && name != "data" {
					refused(method, field, in(fmt.Sprintf(`{%q:"a\u0000b"}`, name)))
				}
			}
			if inner := p.Type; inner.Kind() == reflect.Struct || inner.Kind() == reflect.Pointer && inner.Elem().Kind() == reflect.Struct {
				if inner.Kind() == reflect.Pointer {
					inner = inner.Elem()
				}
				each(method, in(fmt.Sprintf(`{%q:%%s}`, name)), field+".", inner)
			}
			if p.Type == reflect.TypeFor[protocol.Env]() {
				rest := map[string]string{"session.create": ``, "term.open": `,"cols":80,"rows":24`}[method]
				if prefix == "terminal." {
					rest = `,"cols":80,"rows":24`
				}
				if strings.HasPrefix(method, "exec.") || method == "process.start" {
					rest = `,"command":""`
				}
				for _, value := range []string{`{"A":5}`, `{"A":[]}`, `{"A":"\u0000"}`, `{"A":"\ud800"}`, `{"":"x"}`, `{"A=B":"x"}`, `{"A":"x","A":"y"}`, `{"1A":"x"}`, `{"A\u0000":"x"}`, `{"É":"x"}`, `{"BASH_FUNC_x%%":"() { :; }"}`} {
					refused(method, field, in(fmt.Sprintf(`{%q:%s%s}`, name, value, rest)))
				}
				many := make([]string, protocol.MaxEnv+1)
				for i := range many {
					many[i] = fmt.Sprintf(`"V%d":"x"`, i)
				}
				refused(method, field, in(fmt.Sprintf(`{%q:{%s}%s}`, name, strings.Join(many, ","), rest)))
			}
		}
	}
	for _, m := range protocol.Methods() {
		each(m.Name, "%s", "", m.Params)
		refused(m.Name, "bogus", `{"bogus":1}`)
		refused(m.Name, "params", `[]`)
		refused(m.Name, "params", `5`)
		refused(m.Name, "params", `"{}"`)
		refused(m.Name, "bogus", `{"bogus":`+strings.Repeat("[", 20)+strings.Repeat("]", 20)+`}`)
		refused(m.Name, "params", `{"bogus":`+strings.Repeat("[", 65)+strings.Repeat("]", 65)+`}`)
		refused(m.Name, "params", strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000))
	}
	if requests < 2000 {
		t.Errorf("only %d requests", requests)
	}
	var keys strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&keys, `"k%d":"x",`, i)
	}
	refused("exec.run", "k0", `{`+keys.String()+`"command":""}`)
	refused("exec.run", "env", `{"env":{`+keys.String()+`"k":"x"},"command":""}`)
	c.Call("system.ping", nil)
}

// unfit reports whether a number cannot be one of type t at all: seconds may be fractional, other numbers may not.
func unfit(t reflect.Type, number string) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return number == "1e400" || t.Kind() != reflect.Float64 && (strings.Contains(number, ".") || len(number) > 19)
}

// TestTenThousandAtOnce: requests in one write, commands among them; each is answered, once.
func TestTenThousandAtOnce(t *testing.T) {
	g := start(t)
	c := g.Raw()
	const n = 10_000
	var burst []byte
	for i := range n {
		text := fmt.Sprintf(`{"id":%d,"method":"system.ping"}`, i)
		switch i % 10 {
		case 3:
			text = fmt.Sprintf(`{"id":%d,"method":"exec.run","params":{"command":"N=$((N+1))"}}`, i)
		case 5:
			text = fmt.Sprintf(`{"id":%d,"method":"no.such"}`, i)
		case 7:
			text = fmt.Sprintf(`{"id":%d,"method":"session.info","params":{"session":"nobody"}}`, i)
		}
		burst = append(burst, rig.RawFrame(0x81, text)...)
	}
	go c.Write(burst) // the server may stop reading until its answers are taken; ends with the connection
	answers, codes, ran := map[any]int{}, map[string]int{}, 0
	for range n {
		op, payload, err := c.Next()
		for op == 0x9 && err == nil { // on a busy machine the server pings meanwhile
			op, payload, err = c.Next()
		}
		if op != 0x1 || err != nil {
			t.Fatalf("%d answers, then %x %q %v", len(answers), op, payload, err)
		}
		var f rig.Frame
		if err := json.Unmarshal(payload, &f); err != nil {
			t.Fatal(err)
		}
		answers[f.ID]++
		codes[f.Code()]++
		if f.Data["exit_code"] != nil {
			ran++
		}
	}
	if len(answers) != n {
		t.Errorf("%d of %d ids were answered: %v", len(answers), n, codes)
	}
	delete(codes, "")
	for code := range codes {
		if !slices.Contains([]string{"RATE_LIMITED", "SESSION_BUSY", "UNKNOWN_METHOD", "SESSION_NOT_FOUND"}, code) {
			t.Errorf("answered %s", code)
		}
	}
	if ran == 0 || codes["UNKNOWN_METHOD"] == 0 {
		t.Errorf("%d commands ran; %v", ran, codes)
	}
	if got := g.Dial().Call("exec.run", object{"command": "echo $N"}).Str("stdout"); got != fmt.Sprintln(ran) {
		t.Errorf("the shell counts %s, %d were answered", got, ran)
	}
}
