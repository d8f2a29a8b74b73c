package pool

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"trl/pool/entry"
	"trl/pool/requestkey"
)

var updateEntries = flag.Bool("update-entries", false, "write testdata/entries.txt")

// TestEntriesStayReadable: gateways of other versions read the session log, so no entry loses a field, and none changes its name or its type.
func TestEntriesStayReadable(t *testing.T) {
	var b strings.Builder
	writeFields(&b, "", reflect.TypeFor[entry.Entry](), nil)
	writeFields(&b, "(binary) .at.", reflect.TypeFor[entry.Output](), nil)
	writeFields(&b, "(binary) .rare.", reflect.TypeFor[entry.RareExit](), nil)
	lines := strings.SplitAfter(b.String(), "\n")
	slices.Sort(lines)
	text := strings.Join(lines, "")
	const file = "testdata/entries.txt"
	if *updateEntries {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(golden) {
		t.Errorf("entries are not what %s says; a field may be added, with -update-entries. They are:\n%s", file, text)
	}
}

// writeFields writes each field that JSON has of a type, with its kind and its options.
func writeFields(b *strings.Builder, path string, typ reflect.Type, within []reflect.Type) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice && typ.Elem().Kind() != reflect.Uint8 {
		typ = typ.Elem()
	}
	for _, seen := range within {
		if seen == typ {
			return
		}
	}
	if typ.Kind() != reflect.Struct || typ.PkgPath() == "time" {
		return
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		if f.Anonymous && !tagged { // its fields stand beside ours
			writeFields(b, path, f.Type, within)
			continue
		}
		if tag == "-" || !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if name == "" {
			name = f.Name
		}
		fmt.Fprintf(b, "%s%s %s %s\n", path, name, shapeOf(f.Type), options)
		writeFields(b, path+name+".", f.Type, append(within, typ))
	}
}

// shapeOf is how a type is written in JSON.
func shapeOf(typ reflect.Type) string {
	switch typ.Kind() {
	case reflect.Pointer:
		return "*" + shapeOf(typ.Elem())
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + shapeOf(typ.Elem())
	case reflect.Map:
		return "map of " + shapeOf(typ.Elem())
	case reflect.Struct:
		if typ.PkgPath() == "time" {
			return "time"
		}
		return "object"
	}
	return typ.Kind().String()
}

// TestEndedEntriesStayReadable: the same for the entries that are not JSON.
func TestEndedEntriesStayReadable(t *testing.T) {
	request := &requestkey.Request{Own: requestkey.ID{1}, Alias: requestkey.ID{2}, Params: requestkey.Fingerprint{3}}
	x := &endedExec{
		stream: "st-x", text: "text", dir: "/dir", request: request, rare: &entry.RareExit{Signal: "TERM", Background: []int{7}},
		execTimes: execTimes{1, 2, 3, 4, 5, 6, 7}, stdout: 8, stderr: 9, timeout: 10, execUsage: execUsage{1.5, 11, 12}, maxOutput: 13, code: 143,
		flags: hasCode | hasUsage | wasCancelled | isTombstone,
	}
	const exec = "010873742d780874657874082f6469728621020406080a0c0e1012141a9e021618000000000000f83f447b227369676e616c223a225445524d222c226261636b67726f756e64223a5b375d7d" +
		"02" + "01000000000000000000000000000000" + "02000000000000000000000000000000" + "03000000000000000000000000000000" + "00"
	if got := fmt.Sprintf("%x", x.encode()); got != exec {
		t.Errorf("an exec is\n%s", got)
	}
	w := &workTombstone{
		kind: 'p', stream: "st-p", name: "name", request: request, startedAt: 1, endedAt: 2, startUptime: 3, pid: 4, code: 5, signal: 6, timedOut: 1, endOffset: 7, cols: 8, rows: 9,
	}
	const work = "02e0010873742d70086e616d65020406080a0c020e101202" + "01000000000000000000000000000000" + "02000000000000000000000000000000" + "03000000000000000000000000000000"
	if got := fmt.Sprintf("%x", w.encode()); got != work {
		t.Errorf("a process is\n%s", got)
	}
}
