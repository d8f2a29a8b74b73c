package sessionlog

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// keep adds a record with this body.
func keep(t interface{ Fatal(...any) }, l *Log, key Key, body []byte) *Archived {
	k, err := l.Archive(key, int64(len(body)), func(w io.Writer) error {
		for len(body) > 0 {
			n := min(len(body), 1000)
			if _, err := w.Write(body[:n]); err != nil {
				return err
			}
			body = body[n:]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestRecordsOutliveTheWriter: after a crash, every record that was kept and not released exists, and none that was unfinished.
func TestRecordsOutliveTheWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := New()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { l.Close() }()
		want, kept, next := map[Key][]byte{}, map[Key]*Archived{}, uint64(0)
		entries := 0
		body := rapid.SliceOfN(rapid.Byte(), 0, 9000)
		t.Repeat(map[string]func(*rapid.T){
			"keep": func(t *rapid.T) {
				next++
				key := Key{next, 7, next % 3}
				want[key] = body.Draw(t, "body")
				kept[key] = keep(t, l, key, want[key])
			},
			"fail": func(t *rapid.T) {
				p := body.Draw(t, "body")
				if _, err := l.Archive(Key{1 << 40}, int64(len(p))+1, func(w io.Writer) error {
					_, err := w.Write(p)
					return err
				}); err == nil {
					t.Fatal("half of a record is kept")
				}
			},
			"entry": func(t *rapid.T) {
				if _, err := l.Append([]byte("entry")); err != nil {
					t.Fatal(err)
				}
				entries++
			},
			"restart": func(t *rapid.T) {
				if err := l.Compact(Item{Text: []byte("entry")}); err != nil {
					t.Fatal(err)
				}
				entries = 1
			},
			"release": func(t *rapid.T) {
				for key := range maps.Keys(want) {
					kept[key].Release()
					kept[key].Release()
					delete(want, key)
					break
				}
			},
			"crash": func(t *rapid.T) {
				l.archive.mu.Lock() // in the middle of the next record
				_, _ = unix.Pwrite(l.fd, body.Draw(t, "body"), max(l.archive.end, archiveBegin)+archivedHeader)
				l.archive.mu.Unlock()
				var read [][]byte
				l, read = again(t, l)
				kept = map[Key]*Archived{}
				for _, k := range l.Archived() {
					kept[k.Key] = k
				}
				if len(read) != entries {
					t.Fatalf("%d entries, want %d", len(read), entries)
				}
			},
			"": func(t *rapid.T) {
				all := l.Archived()
				if len(all) != len(want) {
					t.Fatalf("%d records, want %d", len(all), len(want))
				}
				for _, k := range all {
					p := make([]byte, len(want[k.Key]))
					if _, err := k.ReadAt(p, 0); err != nil && len(p) > 0 || !bytes.Equal(p, want[k.Key]) {
						t.Fatalf("record %v: %v", k.Key, err)
					}
					if _, err := k.ReadAt(make([]byte, 1), k.size); err == nil {
						t.Fatal("read behind the end of a record")
					}
				}
			},
		})
	})
}

// file is the keeper's end of a session log that CloseLocal has closed.
type file int

func (fd file) WriteAt(p []byte, at int64) { local(fd).WriteAt(p, at) }
func (fd file) Punch(from, to int64)       { local(fd).Punch(from, to) }

// TestClosedSessionLogIsWrittenAndReleased: the process that has the file writes to it, and a released record's memory is free at once.
func TestClosedSessionLogIsWrittenAndReleased(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(l.Fd()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	held := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	var all []*Archived
	for i := range uint64(100) {
		all = append(all, keep(t, l, Key{i}, make([]byte, 100_000)))
	}
	most := held()
	l.CloseLocal(file(fd))
	if l.Fd() >= 0 {
		t.Error("it is open")
	}
	if _, err := l.Append([]byte("late")); err != nil {
		t.Error(err)
	}
	if err := l.Compact(Item{Text: []byte("anew")}); !errors.Is(err, errNotLocal) {
		t.Errorf("restart: %v", err)
	}
	if _, err := l.Archive(Key{}, 0, func(io.Writer) error { return nil }); !errors.Is(err, errNotLocal) {
		t.Errorf("keep: %v", err)
	}
	for i, k := range all {
		if i%2 == 1 || i < 20 {
			k.Release()
		}
	}
	if n := held(); n > most/2 {
		t.Errorf("%d bytes are held of %d", n, most)
	}
	l.Close()
	var entries []string
	again, err := Open(fd, func(entry []byte) error { entries = append(entries, string(entry)); return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if left := again.Archived(); len(left) != 40 || left[0].Key[0] != 20 || len(entries) != 1 || entries[0] != "late" {
		t.Errorf("%d records, entries %q", len(left), entries)
	}
	for _, k := range again.Archived() {
		k.Release()
	}
	if n := held(); n > 16<<10 {
		t.Errorf("%d bytes are held of nothing", n)
	}
}
