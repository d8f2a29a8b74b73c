package protocol

import (
	"cmp"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// TestEveryStringOfARequestIsBounded: each string that a client may send has its bound in lengths or is one of a few words, and one byte more
// than the bound is refused with the field's name.
func TestEveryStringOfARequestIsBounded(t *testing.T) {
	used := map[string]bool{}
	for _, m := range Methods() {
		var visit func(of reflect.Type, prefix string)
		visit = func(of reflect.Type, prefix string) {
			for _, f := range wireFields(of) {
				used[f.Name] = true
				switch f.Type.Kind() {
				case reflect.Struct:
					visit(f.Type, f.Name+".")
					continue
				case reflect.String:
				case reflect.Pointer:
					if f.Type.Elem().Kind() != reflect.String {
						continue
					}
				default:
					continue
				}
				if f.Enum != nil {
					continue
				}
				most, ok := lengths[f.Name]
				if !ok {
					t.Errorf("%s: %s%s has no bound in lengths", m.Name, prefix, f.Name)
				}
				if most == 0 {
					continue
				}
				value := `"` + strings.Repeat("x", most+1) + `"`
				if prefix != "" {
					value = `{"` + f.Name + `":` + value + `}`
				}
				into := reflect.New(m.Params)
				raw := `{"` + cmp.Or(strings.TrimSuffix(prefix, "."), f.Name) + `":` + value + `}`
				if err := json.Unmarshal([]byte(raw), into.Interface()); err != nil {
					t.Fatal(err)
				}
				err := refuseLong([]byte(raw), into.Interface())
				if err == nil || err.Code != InvalidParams || err.Details["field"] != prefix+f.Name || err.Details["limit"] != most {
					t.Errorf("%s: %s%s of %d bytes: %v", m.Name, prefix, f.Name, most+1, err)
				}
			}
		}
		visit(m.Params, "")
	}
	for name := range lengths {
		if !used[name] {
			t.Errorf("lengths has %q, which is no field of a request", name)
		}
	}
}

// TestBoundsOfValidate: what Validate bounds itself, at the bound and one above it.
func TestBoundsOfValidate(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, x := range []struct {
		field string
		ok    string // at the bound
		above string
		into  func() any
	}{
		{"command", `{"command":"` + long(MaxCommand) + `"}`, `{"command":"` + long(MaxCommand+1) + `"}`, func() any { return new(ExecRun) }},
		{"request_key", `{"request_key":"` + long(MaxRequestKey) + `"}`, `{"request_key":"` + long(MaxRequestKey+1) + `"}`, func() any { return new(SessionCreate) }},
		{"name", `{"name":"` + long(MaxName) + `"}`, `{"name":"` + long(MaxName+1) + `"}`, func() any { return new(SessionCreate) }},
		{"env", `{"env":{"A":"` + long(MaxEnvBytes-1) + `"}}`, `{"env":{"A":"` + long(MaxEnvBytes) + `"}}`, func() any { return new(SessionCreate) }},
		{"request_id", `{"request_id":"` + long(MaxID-2) + `"}`, `{"request_id":"` + long(MaxID-1) + `"}`, func() any { return new(ExecCancel) }},
		{"until.output", `{"process_id":"p","until":{"output":"` + long(MaxPattern) + `"}}`, `{"process_id":"p","until":{"output":"` + long(MaxPattern+1) + `"}}`, func() any { return new(ProcessWait) }},
	} {
		if err := DecodeParams([]byte(x.ok), x.into()); err != nil {
			t.Errorf("%s at its bound: %v", x.field, err)
		}
		if err := DecodeParams([]byte(x.above), x.into()); err == nil || err.Code != InvalidParams || err.Details["field"] != x.field || err.Details["limit"] == nil {
			t.Errorf("%s above its bound: %v", x.field, err)
		}
	}
}

// TestRequestIDIsBounded: an id is kept as long as its connection may cancel by it.
func TestRequestIDIsBounded(t *testing.T) {
	for _, id := range []string{`"` + strings.Repeat("x", MaxID-2) + `"`, strings.Repeat("7", MaxID)} {
		if req, err := DecodeRequest([]byte(`{"id":` + id + `,"method":"m"}`)); err != nil || string(req.ID) != id {
			t.Errorf("an id of %d bytes: %v", len(id), err)
		}
	}
	for _, id := range []string{`"` + strings.Repeat("x", MaxID-1) + `"`, strings.Repeat("7", MaxID+1)} {
		if req, err := DecodeRequest([]byte(`{"id":` + id + `,"method":"m"}`)); err == nil || err.Code != InvalidRequest || err.Details["field"] != "id" || req.ID != nil {
			t.Errorf("an id of %d bytes: %q, %v", len(id), req.ID, err)
		}
	}
}
