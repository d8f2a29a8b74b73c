package moved

import (
	"bytes"
	"io"
	"testing"

	"trl/pool/entry"
	"trl/runtime/journal"
	"trl/runtime/sessionlog"
	"trl/runtime/stream"
)

// TestOldOutputStays: of more output than may go along, the newest goes.
func TestOldOutputStays(t *testing.T) {
	log, err := sessionlog.New()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	files := []stream.HeldFile{{Number: 1, Inode: 1}, {Number: 2, Inode: 2}, {Number: 3, Inode: 3}}
	const works, size = 5, MaxOutput / 3
	var spans []journal.Span
	for i := range int64(works) {
		s := journal.Span{Begin: journal.Point{Run: i}, End: journal.Point{Out: 1, Run: i + 1}, Keep: journal.Keep{Ring: 1}}
		key, _ := stream.ArchiveKey(files, s)
		if _, err := log.Archive(key, size, func(w io.Writer) error { _, err := w.Write(bytes.Repeat([]byte{byte(i)}, size)); return err }); err != nil {
			t.Fatal(err)
		}
		spans = append(spans, s)
	}
	x := new(Session)
	p := NewPacker(x, log)
	for i := works - 1; i >= 0; i-- {
		if went := p.output(files, spans[i]) != nil; went != (i >= works-3) {
			t.Errorf("output %d: %t", i, went)
		}
	}
	if len(x.Outputs) != 3 || x.Outputs[0].Body[0] != works-1 {
		t.Fatalf("%d outputs", len(x.Outputs))
	}
	to, err := sessionlog.New()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	x.Entries = [][]byte{(&entry.EndedExec{Stream: "st-x"}).Encode(nil)}
	read := 0
	if err := x.Write(to, func([]byte) error { read++; return nil }); err != nil || read != 1 || len(to.Archived()) != 3 {
		t.Errorf("%d entries, %d outputs, %v", read, len(to.Archived()), err)
	}
}
