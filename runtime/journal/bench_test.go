package journal

import (
	"bytes"
	"context"
	"fmt"
	"testing"
)

// BenchmarkWriteRead64K moves 64 KiB writes through the ring to one blocking reader on another goroutine.
func BenchmarkWriteRead64K(b *testing.B) {
	for _, bm := range []struct {
		name string
		o    Options
	}{
		{"32K", Options{Block: true}},
		{"64K", Options{Block: true, Max: 64 << 10}},
		{"Text", Options{Block: true, Text: true}},
	} {
		b.Run(bm.name, func(b *testing.B) {
			j := New(1 << 20)
			room := make(chan struct{}, 1)
			j.OnRoom(func() {
				select {
				case room <- struct{}{}:
				default:
				}
			})
			r, err := j.Attach(0, bm.o)
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			read := make(chan int64)
			go func() { // ends with the journal; joined below
				var n int64
				for {
					c, err := r.Next(context.Background())
					if err != nil {
						read <- n
						return
					}
					n += int64(len(c.Data))
				}
			}()
			p := full()
			b.SetBytes(MaxWrite)
			b.ReportAllocs()
			for b.Loop() {
				for !j.Room() {
					<-room
				}
				j.Write(Stdout, p)
			}
			j.Close()
			if n := <-read; n != j.Size() {
				b.Fatalf("read %d of %d bytes", n, j.Size())
			}
		})
	}
}

// full is as much as one write may have. The bytes are written, because untouched memory is one shared page of zeros and copies too fast.
func full() []byte { return bytes.Repeat([]byte("0123456789abcde\n"), MaxWrite/16) }

// BenchmarkTinyWrites writes 16 bytes at a time into a full ring.
func BenchmarkTinyWrites(b *testing.B) {
	j := New(1 << 20)
	j.Write(Stdout, make([]byte, 2<<20))
	p := []byte("0123456789abcde\n")
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		j.Write(Stdout, p)
	}
}

// BenchmarkAlternating writes single bytes to stdout and stderr in turn, and reads them back run by run.
func BenchmarkAlternating(b *testing.B) {
	b.Run("Write", func(b *testing.B) {
		j := New(1 << 20)
		p := []byte{'x'}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			j.Write(Stdout+Stream(i&1), p)
		}
	})
	b.Run("Read", func(b *testing.B) {
		j := New(1 << 20)
		for i := range 1 << 20 {
			j.Write(Stdout+Stream(i&1), []byte{'x'})
		}
		r, err := j.Attach(0, Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { r.Close() }()
		b.ReportAllocs()
		for b.Loop() {
			if _, ok, _ := r.TryNext(); !ok {
				r.Close()
				r, _ = j.Attach(0, Options{})
			}
		}
	})
	// Long runs of both streams: the cost of alternation where it should not matter.
	b.Run("64K", func(b *testing.B) {
		j := New(1 << 20)
		p := full()
		b.SetBytes(MaxWrite)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			j.Write(Stdout+Stream(i&1), p)
		}
	})
}

// BenchmarkFill moves chunks from a pipe into a full ring, with a log and without. It includes the write into the pipe. "Read" is the read
// alone, without a journal.
func BenchmarkFill(b *testing.B) {
	for _, size := range []int{64 << 10, 100} {
		chunk, scratch := bytes.Repeat([]byte{'x'}, size), make([]byte, MaxWrite)
		run := func(name string, f func(b *testing.B, p *pipe, i int)) {
			b.Run(fmt.Sprintf("%d/%s", size, name), func(b *testing.B) {
				p := newPipe(b)
				defer p.close()
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					p.put(b, chunk)
					f(b, p, i)
				}
			})
		}
		fill := func(j *Journal, streams Stream) func(*testing.B, *pipe, int) {
			j.Write(Stdout, make([]byte, 2<<20))
			return func(b *testing.B, p *pipe, i int) {
				if n, err := j.Fill(Stdout+Stream(i)%streams, p.r, MaxWrite, scratch); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
		}
		logged := func() *Journal {
			l := newLog(b)
			b.Cleanup(l.Close)
			j := New(1 << 20)
			j.AttachLog(l, 64<<10, 64<<10)
			return j
		}
		run("Read", func(b *testing.B, p *pipe, _ int) {
			if n, err := readPipe(p.r, scratch); n != size || err != nil {
				b.Fatal(n, err)
			}
		})
		run("Plain", fill(New(1<<20), 1))
		run("Log", fill(logged(), 1))
		run("LogSwitching", fill(logged(), 2))
	}
}

// BenchmarkSpan measures what a log adds to a command that prints a line. "Plain" is without a log.
func BenchmarkSpan(b *testing.B) {
	for _, logged := range []bool{false, true} {
		b.Run(map[bool]string{false: "Plain", true: "Log"}[logged], func(b *testing.B) {
			l, p, scratch := newLog(b), newPipe(b), make([]byte, MaxWrite)
			defer l.Close()
			defer p.close()
			b.ReportAllocs()
			for b.Loop() {
				j := New(1 << 20)
				if logged {
					j.AttachLog(l, 64<<10, 64<<10)
				}
				p.put(b, []byte("0123456789abcde\n"))
				if n, err := j.Fill(Stdout, p.r, MaxWrite, scratch); n != 16 || err != nil {
					b.Fatal(n, err)
				}
				j.Close()
				l.Drop(j.Span())
			}
		})
	}
}

// BenchmarkReplay opens a log and restores a span that is longer than the ring.
func BenchmarkReplay(b *testing.B) {
	for name, run := range map[string]int{"OneStream": 64 << 10, "Lines": 60} {
		b.Run(name, func(b *testing.B) {
			l := newLog(b)
			defer func() { l.Close() }()
			j := New(1 << 20)
			j.AttachLog(l, 64<<10, 64<<10)
			for i, line := 0, make([]byte, run); j.Size() < 4<<20; i++ {
				j.Write(Stdout+Stream(i&1), line)
			}
			s := j.Span()
			b.ReportAllocs()
			for b.Loop() {
				l = reopen(b, l, s)
				if err := l.Replay(New(1<<20), s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
