package entry

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"trl/pool/ids"
	"trl/pool/requestkey"
)

var updateEntries = flag.Bool("update-entries", false, "write testdata/entries.txt")

// TestEntriesStayReadable: gateways of other versions read the session log, so no entry loses a field, and none changes its name or its type.
func TestEntriesStayReadable(t *testing.T) {
	var b strings.Builder
	writeFields(&b, "", reflect.TypeFor[Entry](), nil)
	writeFields(&b, "(binary) .at.", reflect.TypeFor[Output](), nil)
	writeFields(&b, "(binary) .rare.", reflect.TypeFor[RareExit](), nil)
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
	x := &EndedExec{
		Stream: "st-x", Text: "text", Dir: "/dir", Request: request, Rare: &RareExit{Signal: "TERM", Background: []int{7}},
		execTimes: execTimes{1, 2, 3, 4, 5, 6, 7}, Stdout: 8, Stderr: 9, Timeout: 10, execUsage: execUsage{1.5, 11, 12}, MaxOutput: 13, code: 143,
		Flags: hasCode | hasUsage | cancelled | IsTombstone,
	}
	const exec = "010873742d780874657874082f6469728621020406080a0c0e1012141a9e021618000000000000f83f447b227369676e616c223a225445524d222c226261636b67726f756e64223a5b375d7d" +
		"02" + "01000000000000000000000000000000" + "02000000000000000000000000000000" + "03000000000000000000000000000000" + "00"
	if got := fmt.Sprintf("%x", x.Encode(nil)); got != exec {
		t.Errorf("an exec is\n%s", got)
	}
	w := &ChildTombstone{
		Kind: 'p', Stream: "st-p", Name: "name", Request: request, startedAt: 1, endedAt: 2, startUptime: 3, pid: 4, code: 5, signal: 6, timedOut: 1, EndOffset: 7, cols: 8, rows: 9,
	}
	const work = "02e0010873742d70086e616d65020406080a0c020e101202" + "01000000000000000000000000000000" + "02000000000000000000000000000000" + "03000000000000000000000000000000"
	if got := fmt.Sprintf("%x", w.Encode()); got != work {
		t.Errorf("a process is\n%s", got)
	}
}

func FuzzEndedEntries(f *testing.F) {
	f.Add((&EndedExec{Stream: "st-x-1", Rare: &RareExit{Signal: "KILL"}, Request: &requestkey.Request{}}).Encode(nil))
	f.Add((&ChildTombstone{Kind: 't', Stream: "st-t-1"}).Encode())
	f.Fuzz(func(t *testing.T, text []byte) { // whatever a session log says, it is an error or an entry
		if x, at, err := readEndedExec(text); err == nil && at == nil {
			if again, _, err := readEndedExec(x.Encode(nil)); err != nil || again.Stream != x.Stream {
				t.Errorf("%q: %v", text, err)
			}
		}
		if x, err := readChildTombstone(text); err == nil {
			if again, err := readChildTombstone(x.Encode()); err != nil || again.Stream != x.Stream {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
}

// A log knows what its entries say, in their order: what has ended, what runs, what was lost with a shell, and what is no longer wanted.
func TestLogReadsEntries(t *testing.T) {
	const tag = "aaaaaa"
	epoch := ids.EpochMark("epochxyz")
	id := func(kind byte) string { return ids.New("", kind, epoch, tag, ids.MemberLen) }
	done, running, process, terminal, share := id('x'), id('x'), id('p'), id('t'), id('l')
	lines := []string{
		`{"session":{"tag":"` + tag + `","owner":"o","commands":3,"cwd":"/"}}`, `{"shell":{"pid":7}}`, `{"name":"new"}`,
		`{"exec":{"stream":"st-` + done + `","text":"true","recording":"r1"},"begun":{"id":"` + done + `","command":{"seq":1}}}`,
		`{"done":{"id":"` + done + `","exit":{"exec_id":"` + done + `","working_dir":"/tmp"}}}`,
		`{"exec":{"stream":"st-` + running + `","recording":"r2"}}`, `{"begun":{"id":"` + running + `","command":{"seq":2}}}`, `{"unwanted":"r2"}`,
		`{"process":{"stream":"st-` + process + `"}}`, `{"expired":"` + process + `"}`, `{"exited":{"id":"` + process + `","code":1}}`, `{"forgot":"` + process + `"}`,
		`{"terminal":{"stream":"st-` + terminal + `"}}`, `{"share":{"id":"` + share + `"}}`, `{"share":{"id":"x"}}`, `{"unshared":"x"}`,
		`{"revived":{"lost":["jobs"]}}`, `{"reset":true}`,
	}
	var m Log
	for _, line := range lines {
		if err := m.ReadLine([]byte(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	if m.Session.Name != "new" || m.CommandsBegun != 2 || m.Dir != "/tmp" || m.Last == nil || m.Last.ExecID != done || m.Shell.Pid != 7 || !m.Reset || m.Revived != nil {
		t.Errorf("%+v", m)
	}
	if x := m.Find('x', done); x == nil || !x.HasEnded() || x.Exec.Recording != "r1" {
		t.Errorf("%+v", x)
	}
	if x := m.Find('x', running); x == nil || x.HasEnded() || x.Exec.Recording != "" || m.LastBegun() != x.Begun {
		t.Errorf("%+v", x)
	}
	if x := m.Find('p', process); x == nil || !x.Expired || !x.Forgotten || x.Exited.Code != 1 {
		t.Errorf("%+v", x)
	}
	if m.Find('t', process) != nil || m.Find('t', terminal) == nil || len(m.Shares) != 1 {
		t.Errorf("%+v", m)
	}
	_ = m.ReadLine([]byte(`{"exec":{"stream":"st-` + ids.New("", 'x', epoch, "bbbbbb", ids.MemberLen) + `"}}`))
	if m.Check() == nil {
		t.Error("work of another session passes")
	}
}
