package protocol

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

var update = flag.Bool("update", false, "rewrite PROTOCOL.md's tables and the golden files")

// golden holds got against a file, or makes it the file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("%s:%d\n got %s\nwant %s\n(-update rewrites)", name, i+1, g[i], w[i])
		}
	}
	t.Fatalf("%s: got %d lines, want %d (-update rewrites)", name, len(g), len(w))
}

// TestReferenceMatchesTypes: what PROTOCOL.md shows between markers is what the Go types say.
func TestReferenceMatchesTypes(t *testing.T) {
	const file = "PROTOCOL.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?s)(<!-- from the types: (.*?) -->\n).*?(<!-- end -->)`)
	shown := map[string]bool{}
	got := block.ReplaceAllFunc(text, func(b []byte) []byte {
		m := block.FindSubmatch(b)
		what := string(m[2])
		shown[what] = true
		return slices.Concat(m[1], []byte(table(t, what)), m[3])
	})
	golden(t, file, got)
	for _, m := range methods {
		if family, _, _ := strings.Cut(m.Name, "."); !shown["methods "+family] {
			t.Errorf("%s is in no block of %s", m.Name, file)
		}
	}
	for _, what := range []string{"events", "objects", "codes", "bounds"} {
		if !shown[what] {
			t.Errorf("%s has no block for %s", file, what)
		}
	}
	// Every link of ours leads somewhere.
	for _, m := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllSubmatch(got, -1) {
		heading := regexp.MustCompile(`(?mi)^#+ ` + strings.ReplaceAll(string(m[1]), "-", " ") + `$`)
		if !heading.Match(got) {
			t.Errorf("%s: link to #%s leads nowhere", file, m[1])
		}
	}
}

func table(t *testing.T, what string) string {
	var b strings.Builder
	kind, family, _ := strings.Cut(what, " ")
	switch kind {
	case "methods":
		for _, m := range methods {
			if !strings.HasPrefix(m.Name, family+".") {
				continue
			}
			fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", m.Name, m.About)
			if fs := wireFields(m.Params); len(fs) == 0 {
				b.WriteString("Takes nothing.\n")
			} else {
				b.WriteString("| Parameter | Type | Meaning (default) |\n|---|---|---|\n")
				rows(t, &b, m.Params, true)
			}
			fmt.Fprintf(&b, "\nAnswers %s.", link(m.Result))
			if len(m.Codes) > 0 {
				fmt.Fprintf(&b, " Codes: %s.", strings.Join(names(m.Codes), ", "))
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
	case "events":
		b.WriteString("\n| Event | Data | When |\n|---|---|---|\n")
		for _, e := range events {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", e.Name, link(e.Data), e.About)
		}
		b.WriteString("\n")
	case "objects":
		for _, o := range objects() {
			fmt.Fprintf(&b, "\n### %s\n\n| Field | Type | Meaning |\n|---|---|---|\n", o.Name())
			rows(t, &b, o, false)
		}
		b.WriteString("\n")
	case "codes":
		b.WriteString("\n| Code | HTTP status | Meaning |\n|---|---|---|\n")
		for _, c := range codes {
			fmt.Fprintf(&b, "| `%s` | %d | %s |\n", c.Code, c.Status, c.Meaning)
		}
		fmt.Fprintf(&b, "\nEvery method may answer %s.\n\n", strings.Join(names(commonCodes), ", "))
	case "bounds":
		fmt.Fprintf(&b, "\n| What | At most |\n|---|---|\n| `command` | %d bytes |\n| `request_key` | %d characters |\n| `name` | %d characters, no controls, none of U+202A to U+202E and U+2066 to U+2069, which change the direction of text |\n"+
			"| `env` | %d variables, %d bytes of names and values |\n| `labels` | %d, keys of 1 to %d characters, values of %d, no controls and none of those |\n| nesting of a message's params | %d |\n"+
			"| a request's `id`, and `request_id` | %d bytes, as written |\n| `session_id`, `exec_id`, `process_id`, `term_id`, `stream_id`, `share_id`, `recording_id` | %d bytes |\n| `shell`, `working_dir` | %d bytes |\n"+
			"| `owner` | %d bytes |\n| `until.output` | %d bytes, and 100 KiB compiled |\n| `until.host` | %d bytes |\n| `until.http` | %d bytes |\n| a command's text in lists and events | its first %d bytes |\n\n",
			MaxCommand, MaxRequestKey, MaxName, MaxEnv, MaxEnvBytes, MaxLabels, MaxLabelKey, MaxLabelValue, maxDepth,
			MaxID, MaxRef, MaxPath, MaxSubject, MaxPattern, MaxHost, MaxURL, MaxText)
	default:
		t.Fatalf("unknown block %q", what)
	}
	return b.String()
}

func rows(t *testing.T, b *strings.Builder, of reflect.Type, params bool) {
	for _, f := range wireFields(of) {
		if f.Meaning == "" {
			t.Errorf("meanings has nothing about %s.%s", of.Name(), f.Name)
		}
		mark, meaning := "", f.Meaning
		if params && f.Required {
			mark = ", required"
		} else if !params && !f.Required {
			mark = ", optional"
		}
		fmt.Fprintf(b, "| `%s` | %s%s | %s |\n", f.Name, word(f), mark, strings.ReplaceAll(meaning, "|", `\|`))
	}
}

func word(f wireField) string {
	if f.Enum != nil {
		return "`" + strings.Join(f.Enum, "`, `") + "`"
	}
	return kind(f.Type)
}

func kind(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return "time (RFC 3339)"
	case reflect.TypeFor[Env]():
		return "object of strings and nulls"
	case reflect.TypeFor[jsontext.Value]():
		return "string or number"
	case reflect.TypeFor[Seconds]():
		return "seconds"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return kind(t.Elem())
	case reflect.Slice:
		return "array of " + kind(t.Elem())
	case reflect.Map:
		return "object of " + kind(t.Elem())
	case reflect.Struct:
		return link(t)
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Interface:
		return "any"
	case reflect.String:
		return "string"
	}
	panic("PROTOCOL.md has no word for the type " + t.String())
}

func link(t reflect.Type) string {
	if t == reflect.TypeFor[None]() {
		return "`{}`"
	}
	return fmt.Sprintf("[%s](#%s)", t.Name(), strings.ToLower(t.Name()))
}

func names(codes []Code) []string {
	var ns []string
	for _, c := range codes {
		ns = append(ns, "`"+string(c)+"`")
	}
	return ns
}

// objects is every struct that a params table, a result or an event mentions, by name.
func objects() []reflect.Type {
	var all []reflect.Type
	var visit func(t reflect.Type, itself bool)
	visit = func(t reflect.Type, itself bool) {
		for k := t.Kind(); k == reflect.Pointer || k == reflect.Slice || k == reflect.Map; k = t.Kind() {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || specialSchemas[t] != nil || t == reflect.TypeFor[None]() || itself && slices.Contains(all, t) {
			return
		}
		if itself {
			all = append(all, t)
		}
		for _, f := range wireFields(t) {
			visit(f.Type, true)
		}
	}
	for _, m := range methods {
		visit(m.Params, false)
		visit(m.Result, true)
	}
	for _, e := range events {
		visit(e.Data, true)
	}
	slices.SortFunc(all, func(a, b reflect.Type) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// wireObjects is every struct of the wire by name: params, results, the data of events, and what these contain.
func wireObjects() []reflect.Type {
	all := objects()
	for _, m := range methods {
		if len(wireFields(m.Params)) > 0 && !slices.Contains(all, m.Params) {
			all = append(all, m.Params)
		}
	}
	slices.SortFunc(all, func(a, b reflect.Type) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// TestMeaningsAreOfFields: nothing in the tables of words is left over from a field that is gone.
func TestMeaningsAreOfFields(t *testing.T) {
	used := map[string]bool{}
	var visit func(reflect.Type)
	visit = func(t reflect.Type) {
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			used[name], used[t.Name()+"."+name] = true, true
			if f.Anonymous {
				visit(f.Type)
			}
		}
	}
	for _, o := range append(objects(), reflect.TypeFor[Error]()) {
		visit(o)
	}
	for _, m := range methods {
		visit(m.Params)
	}
	used["data"], used["encoding"] = true, true
	for name := range meanings {
		if !used[name] {
			t.Errorf("meanings has %q, which is no field", name)
		}
	}
	for name := range enums {
		if !used[name] {
			t.Errorf("enums has %q, which is no field", name)
		}
	}
}

// TestSchemaIsComplete: the document is JSON, names every method, event and code, and every code is listed once.
func TestSchemaIsComplete(t *testing.T) {
	var doc struct {
		Methods map[string]struct {
			Params, Result map[string]any
		} `json:"methods"`
		Events map[string]any `json:"events"`
		Errors []Code         `json:"errors"`
	}
	if err := json.Unmarshal(Schema(), &doc, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	if len(doc.Methods) != len(methods) || len(doc.Events) != len(events) {
		t.Errorf("%d methods and %d events, want %d and %d", len(doc.Methods), len(doc.Events), len(methods), len(events))
	}
	for name, m := range doc.Methods {
		if m.Params["type"] != "object" || m.Result["type"] != "object" {
			t.Errorf("%s: params or result is no object", name)
		}
	}
	source, err := os.ReadFile("code.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []Code
	for _, m := range regexp.MustCompile(`Code = "([A-Z_]+)"`).FindAllSubmatch(source, -1) {
		declared = append(declared, Code(m[1]))
	}
	if !slices.Equal(doc.Errors, declared) {
		t.Errorf("errors are %v, code.go declares %v", doc.Errors, declared)
	}
}
