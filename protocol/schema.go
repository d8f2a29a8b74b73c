package protocol

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"
)

// Schema returns the JSON Schema of every message, generated from the Go types once: {methods: {name: {params, result}}, events: {name: data}, errors:
// [code]}. $defs has the envelopes: request, success, failure, event.
func Schema() []byte { return schema() }

var schema = sync.OnceValue(func() []byte {
	type call struct {
		About  string             `json:"description"`
		Params *jsonschema.Schema `json:"params"`
		Result *jsonschema.Schema `json:"result"`
		Codes  []Code             `json:"errors"`
	}
	doc := struct {
		Schema  string                        `json:"$schema"`
		ID      string                        `json:"$id"`
		Title   string                        `json:"title"`
		Defs    map[string]*jsonschema.Schema `json:"$defs"`
		Methods map[string]call               `json:"methods"`
		Events  map[string]*jsonschema.Schema `json:"events"`
		Errors  []Code                        `json:"errors"`
	}{
		Schema: "https://json-schema.org/draft/2020-12/schema", ID: Version, Title: "The messages of trl, version 1",
		Defs: envelope(), Methods: map[string]call{}, Events: map[string]*jsonschema.Schema{},
	}
	for _, m := range methods {
		doc.Methods[m.Name] = call{m.About, schemaOf(m.Params, true), schemaOf(m.Result, false), slices.Concat(m.Codes, commonCodes)}
	}
	for _, e := range events {
		s := schemaOf(e.Data, false)
		s.Description = e.About
		doc.Events[e.Name] = s
	}
	for _, c := range codes {
		doc.Errors = append(doc.Errors, c.Code)
	}
	text, err := json.Marshal(doc, json.Deterministic(true), jsontext.WithIndent(" "))
	if err != nil {
		panic(err) // the types are ours and a test calls this
	}
	return append(text, '\n')
})

// envelope returns the schemas of the envelopes around params, results and data.
func envelope() map[string]*jsonschema.Schema {
	id := &jsonschema.Schema{Types: []string{"string", "number"}}
	object := &jsonschema.Schema{Type: "object"}
	boolean := func(b bool) *jsonschema.Schema { return &jsonschema.Schema{Const: jsonschema.Ptr[any](b)} }
	wrap := func(about string, required []string, properties map[string]*jsonschema.Schema) *jsonschema.Schema {
		return &jsonschema.Schema{Description: about, Type: "object", Required: required, Properties: properties, AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}}
	}
	return map[string]*jsonschema.Schema{
		"request": wrap("what a client sends", []string{"id", "method"}, map[string]*jsonschema.Schema{
			"id": id, "method": {Type: "string"}, "params": {Types: []string{"null", "object"}}}),
		"success": wrap("the answer to a request that was carried out", []string{"id", "ok", "data"}, map[string]*jsonschema.Schema{
			"id": id, "ok": boolean(true), "data": object}),
		"failure": wrap("the answer to one that was not; the id is null where it could not be read", []string{"id", "ok", "error"}, map[string]*jsonschema.Schema{
			"id": {Types: []string{"null", "string", "number"}}, "ok": boolean(false), "error": schemaOf(reflect.TypeFor[Error](), false)}),
		"event": wrap("what the server sends of its own accord", []string{"event", "data"}, map[string]*jsonschema.Schema{
			"event": {Type: "string"}, "data": object}),
	}
}

// specialSchemas are the types whose JSON differs from their Go kind.
var specialSchemas = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[time.Time]():      {Type: "string", Format: "date-time"},
	reflect.TypeFor[jsontext.Value](): {Types: []string{"string", "number"}},
	reflect.TypeFor[Seconds]():        {Type: "number", Minimum: jsonschema.Ptr(0.0)},
	reflect.TypeFor[Env](): {
		Type:                 "object",
		PropertyNames:        &jsonschema.Schema{Pattern: "^[A-Za-z_][A-Za-z0-9_]*$"},
		AdditionalProperties: &jsonschema.Schema{Types: []string{"null", "string"}},
	},
}

func schemaOf(t reflect.Type, params bool) *jsonschema.Schema {
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: specialSchemas})
	if err != nil {
		panic(err) // as above
	}
	describe(s, t, params)
	return s
}

// describe adds what the Go types cannot express: meanings, enumerations, and where a null may stand (for every optional parameter, and nowhere in
// answers and events).
func describe(s *jsonschema.Schema, t reflect.Type, params bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if specialSchemas[t] != nil {
		return
	}
	switch t.Kind() {
	case reflect.Slice:
		describe(s.Items, t.Elem(), params)
		unnull(s.Items)
	case reflect.Map:
		describe(s.AdditionalProperties, t.Elem(), params)
	case reflect.Struct:
		if !params {
			s.AdditionalProperties = nil // later servers may add fields
		}
		for _, f := range wireFields(t) {
			p := s.Properties[f.Name]
			if p == nil { // Output's own encoding
				p = &jsonschema.Schema{Type: "string"}
				s.Properties[f.Name] = p
				s.PropertyOrder = append(s.PropertyOrder, f.Name)
				if f.Required {
					s.Required = append(s.Required, f.Name)
				}
			}
			describe(p, f.Type, params)
			unnull(p)
			p.Description = f.Meaning
			for _, word := range f.Enum {
				p.Enum = append(p.Enum, word)
			}
			if params && !f.Required {
				if p.Type != "" {
					p.Types, p.Type = []string{p.Type}, ""
				}
				p.Types = append([]string{"null"}, p.Types...)
				if p.Enum != nil {
					p.Enum = append(p.Enum, nil)
				}
			}
		}
	}
}

// unnull removes the null that a Go pointer or slice suggests.
func unnull(s *jsonschema.Schema) {
	if len(s.Types) > 1 && s.Types[0] == "null" {
		s.Types = s.Types[1:]
	}
	if len(s.Types) == 1 {
		s.Type, s.Types = s.Types[0], nil
	}
}

// wireField is a field of a struct in the form of the wire.
type wireField struct {
	Name     string
	Type     reflect.Type
	Required bool
	Meaning  string
	Enum     []string
}

// wireFields lists a struct's fields in their order on the wire.
func wireFields(t reflect.Type) []wireField {
	var fs []wireField
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		owner := t // the struct that has the field, if it is promoted
		if n := len(f.Index) - 1; n > 0 {
			owner = t.FieldByIndex(f.Index[:n]).Type
		}
		fs = append(fs, wireField{name, f.Type, !strings.Contains(options, "omitzero"), find(meanings, t, owner, name), nil})
		if f.Type.Kind() == reflect.String {
			fs[len(fs)-1].Enum = find(enums, t, owner, name)
		}
	}
	if t == reflect.TypeFor[Output]() {
		text := reflect.TypeFor[string]()
		fs = append(fs, wireField{"data", text, true, meanings["data"], nil}, wireField{"encoding", text, false, meanings["encoding"], enums["encoding"]})
	}
	return fs
}

func find[V any](in map[string]V, t, owner reflect.Type, name string) V {
	for _, key := range []string{t.Name() + "." + name, owner.Name() + "." + name} {
		if v, ok := in[key]; ok {
			return v
		}
	}
	return in[name]
}
