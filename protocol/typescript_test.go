package protocol

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// TestTypeScriptTypesAreCurrent: the types of the TypeScript client are what the Go types say. As the file has only types, it is in dist as it is, and
// -update needs no npm.
func TestTypeScriptTypesAreCurrent(t *testing.T) {
	for _, name := range []string{"src/wire.gen.ts", "dist/wire.gen.d.ts", "dist/wire.gen.d.cts"} {
		golden(t, "../client/typescript/"+name, []byte(typescript()))
	}
}

// TestTypeScriptRepeatsAreCurrent: the TypeScript client repeats what protocol.repeats says. This file has a value, so dist must be made anew after a change.
func TestTypeScriptRepeatsAreCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString("// Generated from the Go table by `go test ./protocol -update`: do not edit.\nimport type { Methods } from \"./wire.gen.ts\";\n\n" +
		"/** When a client may send a request again after it has lost the connection on which it waited for the answer. protocol/repeat.go has the rules. */\n" +
		"export const repeats: Record<keyof Methods, \"never\" | \"always\" | \"keyed\" | \"end\"> = {\n")
	for _, m := range methods {
		fmt.Fprintf(&b, "  %q: %q,\n", m.Name, string(repeats[m.Name]))
	}
	b.WriteString("};\n")
	golden(t, "../client/typescript/src/repeat.gen.ts", []byte(b.String()))
}

func typescript() string {
	var b strings.Builder
	b.WriteString("// The objects of the wire. Generated from the Go types by `go test ./protocol -update`: do not edit.\n\n")
	for _, o := range wireObjects() {
		fmt.Fprintf(&b, "export interface %s {\n", o.Name())
		for _, f := range wireFields(o) {
			typ, optional := typescriptType(f.Type), ""
			if f.Enum != nil {
				typ = `"` + strings.Join(f.Enum, `" | "`) + `"`
			}
			if !f.Required {
				optional = "?"
			}
			fmt.Fprintf(&b, "  /** %s */\n  %s%s: %s;\n", f.Meaning, f.Name, optional, typ)
		}
		b.WriteString("}\n\n")
	}
	b.WriteString("/** Every method: its params, and the data of its answer. */\nexport interface Methods {\n")
	for _, m := range methods {
		fmt.Fprintf(&b, "  /** %s */\n  %q: { params: %s; result: %s };\n", m.About, m.Name, typescriptType(m.Params), typescriptType(m.Result))
	}
	b.WriteString("}\n\n/** Every event and its data. */\nexport interface Events {\n")
	for _, e := range events {
		fmt.Fprintf(&b, "  /** %s */\n  %q: %s;\n", e.About, e.Name, typescriptType(e.Data))
	}
	b.WriteString("}\n\n/** The codes of the server's errors. A later server may have more. */\nexport type Code =")
	for _, c := range codes {
		fmt.Fprintf(&b, "\n  | %q", string(c.Code))
	}
	b.WriteString(";\n")
	return b.String()
}

func typescriptType(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return "string"
	case reflect.TypeFor[Env]():
		return "Record<string, string | null>"
	case reflect.TypeFor[jsontext.Value]():
		return "string | number"
	case reflect.TypeFor[None]():
		return "{}"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typescriptType(t.Elem())
	case reflect.Slice:
		return typescriptType(t.Elem()) + "[]"
	case reflect.Map:
		return "Record<string, " + typescriptType(t.Elem()) + ">"
	case reflect.Struct:
		return t.Name()
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		return "number"
	case reflect.Interface:
		return "unknown"
	case reflect.String:
		return "string"
	}
	panic("TypeScript has no type for " + t.String())
}
