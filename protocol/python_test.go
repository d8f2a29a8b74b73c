package protocol

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// TestPythonTypesAreCurrent: the types of the Python client are what the Go types say.
func TestPythonTypesAreCurrent(t *testing.T) {
	golden(t, "../client/python/trl_client/_wire.py", []byte(python()))
}

func python() string {
	var b strings.Builder
	b.WriteString("\"\"\"The objects of the wire. Generated from the Go types by `go test ./protocol -update`: do not edit.\"\"\"\n\n" +
		"from __future__ import annotations\n\nfrom typing import Any, Literal, NotRequired, TypedDict\n\n")
	var quoted []string
	for _, c := range codes {
		quoted = append(quoted, "    \""+string(c.Code)+"\",\n")
	}
	fmt.Fprintf(&b, "Code = Literal[\n%s]\n", strings.Join(quoted, ""))
	b.WriteString("\n# When a client may send a request again after it has lost the connection on which it waited for the answer. protocol/repeat.go has the rules.\n" +
		"REPEATS: dict[str, Literal[\"never\", \"always\", \"keyed\", \"end\"]] = {\n")
	for _, m := range methods {
		fmt.Fprintf(&b, "    %q: %q,\n", m.Name, string(repeats[m.Name]))
	}
	b.WriteString("}\n")
	for _, o := range wireObjects() {
		pythonClass(&b, o)
	}
	return b.String()
}

// pythonClass writes a TypedDict. A class cannot have a field named `from`, so such an object uses the functional form.
func pythonClass(b *strings.Builder, of reflect.Type) {
	fields := wireFields(of)
	functional := slices.ContainsFunc(fields, func(f wireField) bool { return f.Name == "from" })
	if functional {
		fmt.Fprintf(b, "\n%s = TypedDict(\n    \"%s\",\n    {\n", of.Name(), of.Name())
	} else {
		fmt.Fprintf(b, "\n\nclass %s(TypedDict):\n", of.Name())
	}
	for _, f := range fields {
		typ := pythonType(f.Type)
		if f.Enum != nil {
			typ = `Literal["` + strings.Join(f.Enum, `", "`) + `"]`
		}
		if !f.Required {
			typ = "NotRequired[" + typ + "]"
		}
		if functional {
			fmt.Fprintf(b, "        \"%s\": %s,\n", f.Name, typ)
		} else {
			fmt.Fprintf(b, "    %s: %s\n", f.Name, typ)
		}
	}
	if functional {
		b.WriteString("    },\n)\n")
	}
}

func pythonType(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return "str"
	case reflect.TypeFor[Env]():
		return "dict[str, str | None]"
	case reflect.TypeFor[jsontext.Value]():
		return "str | float"
	case reflect.TypeFor[Seconds]():
		return "float"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return pythonType(t.Elem())
	case reflect.Slice:
		return "list[" + pythonType(t.Elem()) + "]"
	case reflect.Map:
		return "dict[str, " + pythonType(t.Elem()) + "]"
	case reflect.Struct:
		return t.Name()
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "int"
	case reflect.Float64:
		return "float"
	case reflect.Interface:
		return "Any"
	case reflect.String:
		return "str"
	}
	panic("Python has no type for " + t.String())
}
