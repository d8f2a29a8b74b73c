package sessionlog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func ignore([]byte) error { return nil }

// again reads a session log as the next gateway does.
func again(t interface{ Fatal(...any) }, l *Log) (*Log, [][]byte) {
	fd, err := unix.FcntlInt(uintptr(l.Fd()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	var entries [][]byte
	l, err = Open(fd, func(entry []byte) error { entries = append(entries, bytes.Clone(entry)); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return l, entries
}

// copied returns a copy of l, for comparing another course of events.
func copied(t interface{ Fatal(...any) }, l *Log) *Log {
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]byte, l.end)
	if err := readAt(l.fd, all, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(fd, all, 0); err != nil {
		t.Fatal(err)
	}
	return &Log{fd: fd, begin: l.begin, end: l.end, compactSize: l.compactSize}
}

func TestEntriesOutliveTheWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := New()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { l.Close() }()
		var want [][]byte
		var spans []Position
		entry := rapid.SliceOfN(rapid.Byte(), 1, 300)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				e := entry.Draw(t, "entry")
				span, err := l.Append(e)
				if err != nil {
					t.Fatal(err)
				}
				want, spans = append(want, e), append(spans, span)
			},
			"restart": func(t *rapid.T) { // with some of the existing entries and some new ones
				var items []Item
				was, stood := want, spans
				before, end := copied(t, l), l.end
				want, spans = nil, nil
				for i := range was {
					if rapid.Bool().Draw(t, "stays") {
						want, spans = append(want, was[i]), append(spans, stood[i])
					}
					if rapid.IntRange(0, 3).Draw(t, "more") == 0 {
						want, spans = append(want, entry.Draw(t, "entry")), append(spans, Position{})
					}
				}
				for i := range want {
					switch {
					case spans[i] == (Position{}) && rapid.Bool().Draw(t, "told where"):
						items = append(items, Item{Text: want[i], Existing: &spans[i]})
					case spans[i] == (Position{}):
						items = append(items, Item{Text: want[i]})
					default:
						items = append(items, Item{Existing: &spans[i]})
					}
				}
				places := slices.Clone(stood)
				if err := l.Compact(items...); err != nil {
					t.Fatal(err)
				}
				if rapid.Bool().Draw(t, "killed") { // killed before the header was written: the old beginning still counts
					written := make([]byte, l.end-end)
					if err := readAt(l.fd, written, end); err != nil {
						t.Fatal(err)
					}
					if _, err := unix.Pwrite(before.fd, written[:rapid.IntRange(0, len(written)).Draw(t, "cut")], end); err != nil {
						t.Fatal(err)
					}
					l.Close()
					l, want, spans = before, was, places
					return
				}
				before.Close()
				at := l.begin // for the entries whose place was not known
				for i := range spans {
					if spans[i].size == 0 {
						spans[i] = Position{at, frameSize + int64(len(want[i]))}
					}
					at += spans[i].size
				}
			},
			"torn": func(t *rapid.T) { // the writer died within its last entry
				e := frame(nil, entry.Draw(t, "entry"))
				e = e[:rapid.IntRange(1, len(e)-1).Draw(t, "cut")]
				if _, err := unix.Pwrite(l.Fd(), e, l.end); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				var got [][]byte
				if l, got = again(t, l); !slices.EqualFunc(got, want, bytes.Equal) {
					t.Fatalf("read %q, want %q", got, want)
				}
			},
		})
	})
}

func TestWhatIsSpoiledIsNotRead(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append([]byte("entry")); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(l.Fd()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := l.Append(make([]byte, maxEntry+1)); err == nil {
		t.Error("an entry was taken that nobody would read")
	}
	l.Invalidate()
	if _, err := l.Append([]byte("entry")); err == nil || l.ShouldCompact() {
		t.Error("it goes on")
	}
	if _, err := Open(fd, ignore); !errors.Is(err, ErrNotSessionLog) {
		t.Errorf("read: %v", err)
	}
}

// TestOnlySessionLogsAreRead: Open refuses a file with the same content, which a command's output may be.
func TestOnlySessionLogsAreRead(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	all := make([]byte, l.end)
	if err := readAt(l.fd, all, 0); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("trl-log", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, all, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(fd, ignore); !errors.Is(err, ErrNotSessionLog) {
		t.Errorf("read: %v", err)
	}
}

func TestRestartGivesMemoryBack(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	restarts := 0
	for i := range 100_000 {
		if _, err := l.Append(fmt.Appendf(nil, "entry %d of some length", i)); err != nil {
			t.Fatal(err)
		}
		if l.ShouldCompact() {
			restarts++
			if err := l.Compact(Item{Text: []byte("all there is")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.Fd(), &st); err != nil {
		t.Fatal(err)
	}
	if restarts == 0 || st.Blocks*512 > 128<<10 {
		t.Errorf("%d restarts, %d bytes held", restarts, st.Blocks*512)
	}
}

func FuzzOpen(f *testing.F) {
	l, _ := New()
	_, _ = l.Append([]byte("entry"))
	seed := make([]byte, l.end)
	_ = readAt(l.fd, seed, 0)
	l.Close()
	f.Add(seed)
	f.Add([]byte("no session log"))
	f.Fuzz(func(t *testing.T, content []byte) {
		fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC)
		if err != nil {
			t.Skip(err)
		}
		defer unix.Close(fd)
		if _, err := unix.Pwrite(fd, content, 0); err != nil && len(content) > 0 {
			t.Fatal(err)
		}
		l, err := Open(fd, ignore)
		if errors.Is(err, ErrNotSessionLog) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append([]byte("next")); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	l, err := New()
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	entry := bytes.Repeat([]byte("x"), 300)
	for b.Loop() {
		if _, err := l.Append(entry); err != nil {
			b.Fatal(err)
		}
		if l.ShouldCompact() {
			_ = l.Compact(Item{Text: entry})
		}
	}
}
