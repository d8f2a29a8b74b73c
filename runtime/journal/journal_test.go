package journal

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

const deadline = time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func attach(t testing.TB, j *Journal, offset int64, o Options) *Reader {
	t.Helper()
	r, err := j.Attach(offset, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func wantData(t *testing.T, r *Reader, want string) Chunk {
	t.Helper()
	c, err := r.Next(within(t))
	if err != nil || string(c.Data) != want {
		t.Fatalf("next chunk %q, %v; want %q", c.Data, err, want)
	}
	return c
}

func wantNothing(t *testing.T, r *Reader) {
	t.Helper()
	if c, ok, err := r.TryNext(); ok || err != nil {
		t.Fatalf("chunk %q, %v; want none", c.Data, err)
	}
}

// at returns the byte that a test writes at an offset, and its stream: runs of 1 to 8,192 bytes.
func at(off int64) (byte, Stream) {
	return byte(off * 31 >> 3), Stdout + Stream(off>>((off>>15)%14)&1)
}

// writeTo writes up to size in pieces of random length, and waits for room.
func writeTo(j *Journal, size int64, room <-chan struct{}) {
	for off := j.Size(); off < size; {
		var p []byte
		b, s := at(off)
		for n := 1 + rand.IntN(1+rand.IntN(MaxWrite)); len(p) < n && off < size; b, _ = at(off) {
			if _, now := at(off); now != s {
				break
			}
			p, off = append(p, b), off+1
		}
		for room != nil && !j.Room() {
			<-room
		}
		j.Write(s, p)
	}
}

// verify reads to the end and returns how many bytes it got and how many it missed.
func verify(t *testing.T, r *Reader) (got, missed int64) {
	defer r.Close() // a failed reader must not hold the writer
	pos, ctx := r.Offset(), within(t)
	for {
		c, err := r.Next(ctx)
		if err == io.EOF {
			return got, missed
		}
		if err != nil {
			t.Error(err)
			return got, missed
		}
		if c.Offset-c.Gap != pos {
			t.Errorf("chunk at %d with gap %d, want %d", c.Offset, c.Gap, pos)
			return got, missed
		}
		for i, b := range c.Data {
			if want, s := at(c.Offset + int64(i)); b != want || c.Stream != s {
				t.Errorf("byte %x of %s at %d, want %x of %s", b, c.Stream, c.Offset+int64(i), want, s)
				return got, missed
			}
		}
		pos = c.Offset + int64(len(c.Data))
		got, missed = got+int64(len(c.Data)), missed+c.Gap
	}
}

// TestConcurrentReadersGetEachByteOnce has blocking, skipping and late readers follow one writer.
func TestConcurrentReadersGetEachByteOnce(t *testing.T) {
	const size = 2 << 20
	j := New(64 << 10)
	room := make(chan struct{}, 1)
	j.OnRoom(func() {
		select {
		case room <- struct{}{}:
		default:
		}
	})
	var wg sync.WaitGroup
	for _, o := range []Options{{Block: true}, {Block: true, Max: 777}, {Block: true, Text: true}, {}, {Text: true, Max: 100}} {
		r := attach(t, j, 0, o)
		wg.Go(func() {
			got, missed := verify(t, r)
			if got+missed != size || o.Block && missed > 0 {
				t.Errorf("%+v: %d bytes, %d missed, of %d", o, got, missed, size)
			}
		})
	}
	for range 3 { // late readers, some of which close early or stop blocking
		wg.Go(func() {
			for range 300 {
				from := rand.Int64N(j.Size() + 1)
				r, err := j.Attach(from, Options{Block: rand.IntN(2) == 0, Text: rand.IntN(2) == 0})
				if err != nil {
					t.Error(err)
					return
				}
				for range rand.IntN(20) {
					if _, _, err := r.TryNext(); err != nil && err != io.EOF {
						t.Error(err)
					}
				}
				r.SetBlock(rand.IntN(2) == 0)
				r.Close()
				r.Close()
			}
		})
	}
	writeTo(j, size, room)
	j.Close()
	wg.Wait()
}

// TestNoWakeUpIsLost writes the next byte only after the last one was seen, so a lost wake-up would stall it.
func TestNoWakeUpIsLost(t *testing.T) {
	j := New(1)
	seen := make(chan struct{})
	r := attach(t, j, 0, Options{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(seen)
		ctx := within(t)
		for {
			if _, err := r.Next(ctx); err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				return
			}
			seen <- struct{}{}
		}
	})
	for range 20_000 {
		j.Write(Stdout, []byte{'x'})
		if _, ok := <-seen; !ok {
			t.Fatal("reader gave up")
		}
	}
	j.Close()
	wg.Wait()
}

// TestBlockingReaderHoldsTheWriter fills the ring and makes room in every possible way.
func TestBlockingReaderHoldsTheWriter(t *testing.T) {
	for name, end := range map[string]func(*Reader){
		"read":     func(r *Reader) { r.TryNext(); r.TryNext() },
		"close":    (*Reader).Close,
		"no block": func(r *Reader) { r.SetBlock(false) },
	} {
		t.Run(name, func(t *testing.T) {
			j, calls := New(1<<20), 0
			j.OnRoom(func() {
				calls++
				j.Room() // must not deadlock
			})
			r := attach(t, j, 0, Options{Block: true})
			for j.Room() {
				j.Write(Stdout, make([]byte, MaxWrite))
			}
			if j.Start() > 0 || j.Size() < 1<<20 {
				t.Fatalf("no room with [%d, %d) kept", j.Start(), j.Size())
			}
			if calls > 0 {
				t.Fatal("OnRoom before there was none")
			}
			end(r)
			if !j.Room() || calls != 1 {
				t.Fatalf("room %v after %d calls", j.Room(), calls)
			}
		})
	}
}

func TestAttachBelowStartTellsTheGap(t *testing.T) {
	j := New(4096)
	writeTo(j, 200_000, nil)
	start := j.Start()
	c, err := attach(t, j, 1000, Options{}).Next(within(t))
	if err != nil || c.Gap != start-1000 || c.Offset != start || len(c.Data) == 0 || !c.Replay {
		t.Fatalf("first chunk: offset %d gap %d replay %v, %v; start %d", c.Offset, c.Gap, c.Replay, err, start)
	}
	if c, _ := attach(t, j, -1, Options{}).Next(within(t)); c.Gap != 0 || c.Offset != start {
		t.Fatalf("from the oldest byte: offset %d gap %d", c.Offset, c.Gap)
	}
}

// TestReplayEndsWhereAttachBegan, also if the border is in a run or inside a character.
func TestReplayEndsWhereAttachBegan(t *testing.T) {
	j := New(1)
	j.Write(TTY, []byte("old\xe2"))
	raw, text := attach(t, j, 0, Options{}), attach(t, j, 0, Options{Text: true})
	j.Write(TTY, []byte("\x94\x80new"))
	for _, want := range []struct {
		r      *Reader
		data   string
		replay bool
	}{
		{raw, "old\xe2", true}, {raw, "\x94\x80new", false},
		{text, "old", true}, {text, "─", true}, {text, "new", false},
	} {
		if c := wantData(t, want.r, want.data); c.Replay != want.replay {
			t.Fatalf("%q: replay %v", c.Data, c.Replay)
		}
	}
}

func TestTextWaitsForTheRestOfACharacter(t *testing.T) {
	open := func(hold time.Duration) (*Journal, *Reader) {
		j := New(1)
		j.hold = hold
		return j, attach(t, j, 0, Options{Text: true})
	}
	t.Run("rest comes", func(t *testing.T) {
		j, r := open(time.Hour)
		j.Write(Stdout, []byte("a\xe2"))
		wantData(t, r, "a")
		wantNothing(t, r)
		time.AfterFunc(time.Millisecond, func() {
			j.Write(Stdout, []byte("\x94"))
			j.Write(Stdout, []byte("\x80b"))
		})
		wantData(t, r, "─b")
	})
	t.Run("time is up", func(t *testing.T) {
		j, r := open(20 * time.Millisecond)
		j.Write(Stdout, []byte("\xe2"))
		wantData(t, r, "\xe2")
		j.Write(Stdout, []byte("\x94\x80"))
		wantData(t, r, "\x94\x80")
	})
	t.Run("other stream", func(t *testing.T) {
		j, r := open(time.Hour)
		j.Write(Stdout, []byte("\xe2"))
		wantNothing(t, r)
		j.Write(Stderr, []byte("e"))
		wantData(t, r, "\xe2")
		wantData(t, r, "e")
	})
	t.Run("close", func(t *testing.T) {
		j, r := open(time.Hour)
		j.Write(Stdout, []byte("\xf0\x9f\x99"))
		time.AfterFunc(time.Millisecond, j.Close)
		wantData(t, r, "\xf0\x9f\x99")
		if _, err := r.Next(within(t)); err != io.EOF {
			t.Fatal(err)
		}
	})
	t.Run("invalid is not held", func(t *testing.T) {
		for _, p := range []string{"\xff", "\x80\x80", "a\xc0", "\xed\xa0", "\xe2\x94a", "\xf5\x80"} {
			j, r := open(time.Hour)
			j.Write(Stdout, []byte(p))
			wantData(t, r, p)
		}
	})
	t.Run("largest chunk", func(t *testing.T) {
		j := New(1)
		r := attach(t, j, 0, Options{Text: true, Max: 1})
		j.Write(Stdout, []byte("é─🙂a"))
		for _, want := range []string{"é", "─", "🙂", "a"} {
			wantData(t, r, want)
		}
	})
}

func TestNextHonoursItsContext(t *testing.T) {
	j := New(1)
	r := attach(t, j, 0, Options{})
	ctx, cancel := context.WithCancel(within(t))
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := r.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	j.Write(Stdout, []byte("kept"))
	if _, err := r.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	wantData(t, r, "kept")
}

func TestReaderCloseWakesNext(t *testing.T) {
	r := attach(t, New(1), 0, Options{Block: true})
	time.AfterFunc(time.Millisecond, r.Close)
	if _, err := r.Next(within(t)); !errors.Is(err, ErrReaderClosed) {
		t.Fatal(err)
	}
}

func TestEndedJournalCanBeReadAgain(t *testing.T) {
	j := New(1)
	if !j.LastWrite().IsZero() {
		t.Fatal("written to before the first write")
	}
	before := time.Now()
	j.Write(Stdout, []byte("out"))
	j.Write(Stderr, []byte("err"))
	if at := j.LastWrite(); at.Before(before) || at.After(time.Now()) {
		t.Fatalf("last write at %v", at)
	}
	j.Close()
	j.Close()
	for range 2 {
		r := attach(t, j, 0, Options{Block: true, Text: true})
		wantData(t, r, "out")
		wantData(t, r, "err")
		if _, err := r.Next(within(t)); err != io.EOF {
			t.Fatal(err)
		}
	}
}

func TestOwnersBugsPanic(t *testing.T) {
	for want, bug := range map[string]func(*Journal){
		"after close": func(j *Journal) { j.Close(); j.Write(Stdout, []byte("x")) },
		"third stream": func(j *Journal) {
			j.Write(Stdout, []byte("x"))
			j.Write(Stderr, []byte("x"))
			j.Write(TTY, []byte("x"))
		},
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want) {
					t.Errorf("panic %q, want %q", got, want)
				}
			}()
			bug(New(1))
		}()
	}
}

// memory returns the memory of a journal.
func memory(j *Journal) int {
	return int(unsafe.Sizeof(*j)) + cap(j.buf) + 8*cap(j.streamBits) + 8*cap(j.readers)
}

func TestMemoryIsWhatWasWritten(t *testing.T) {
	j := New(1 << 20)
	if n := memory(j); n > 512 {
		t.Errorf("idle: %d bytes", n)
	}
	j.Write(Stdout, []byte("0123456789"))
	j.Close()
	if n := memory(j); n > 512 {
		t.Errorf("10 bytes: %d", n)
	}
	j = New(1 << 20)
	j.Write(Stdout, make([]byte, 520_000))
	j.Write(Stderr, make([]byte, 10_000))
	j.Close()
	if n := memory(j); n > 600_000 {
		t.Errorf("530,000 bytes: %d", n)
	}
	j = New(1 << 20)
	for i := range 5 << 18 {
		j.Write(Stdout+Stream(i&1), []byte{byte(i)})
	}
	if n := memory(j); n > 5<<18 {
		t.Errorf("full of turns: %d", n)
	}
	if kept := j.Size() - j.Start(); kept < 1<<20 {
		t.Errorf("full of turns: keeps %d", kept)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	j := New(1 << 16)
	r := attach(t, j, 0, Options{Text: true})
	ctx, p, i := within(t), bytes.Repeat([]byte("é"), 3000), 0
	step := func() {
		i++
		j.Write(Stdout+Stream(i&1), p)
		if _, err := r.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(100, step); n > 0 {
		t.Errorf("%v allocations a chunk", n)
	}
}

// FuzzText writes data in pieces and reads meanwhile: no byte is lost, and no character that arrived whole is divided.
func FuzzText(f *testing.F) {
	f.Add([]byte("a─🙂é"), []byte{1, 2, 3}, uint8(0))
	f.Add([]byte("\xe2\x94\x80\xe2\x94"), []byte{1}, uint8(4))
	f.Add([]byte("\xff\xf0\x9f\xc3\x28\x80"), []byte{2, 0, 1}, uint8(5))
	f.Fuzz(func(t *testing.T, data, pieces []byte, largest uint8) {
		j := New(len(data))
		j.hold = time.Hour
		r := attach(t, j, 0, Options{Text: true, Max: int(largest)})
		var got []byte
		read := func() {
			for {
				c, ok, err := r.TryNext()
				if err != nil && err != io.EOF {
					t.Fatal(err)
				}
				if !ok {
					return
				}
				got = append(got, c.Data...)
				if n := divides(data, len(got)); n > 0 {
					t.Fatalf("chunk %q ends %d bytes into a character of %q", c.Data, n, data)
				}
			}
		}
		rest := data
		for _, n := range pieces {
			n := min(int(n), len(rest))
			j.Write(Stdout, rest[:n])
			rest = rest[n:]
			read()
		}
		j.Write(Stdout, rest)
		j.Close()
		read()
		if !bytes.Equal(got, data) {
			t.Fatalf("read %q, want %q", got, data)
		}
	})
}

// TestDropLetsGoOfTheRing: Drop frees the ring once the journal is closed and the last reader is gone. A later reader learns what is
// missing.
func TestDropLetsGoOfTheRing(t *testing.T) {
	j := New(1 << 16)
	j.Write(Stderr, []byte("some text"))
	r, err := j.Attach(0, Options{})
	if err != nil {
		t.Fatal(err)
	}
	j.Drop()
	j.Close()
	if c, ok, err := r.TryNext(); !ok || err != nil || string(c.Data) != "some text" {
		t.Fatalf("who was there reads %+v, %v, %v", c, ok, err)
	}
	r.Close()
	if j.buf != nil {
		t.Errorf("%d bytes are still held", len(j.buf))
	}
	r, err = j.Attach(2, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if c, ok, err := r.TryNext(); !ok || err != nil || c.Gap != 7 || c.Offset != 9 || len(c.Data) > 0 || c.Stream != Stderr {
		t.Fatalf("who comes later reads %+v, %v, %v", c, ok, err)
	}
	if _, _, err := r.TryNext(); err != io.EOF {
		t.Fatalf("and then %v", err)
	}
}
