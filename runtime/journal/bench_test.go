package journal

import (
	"bytes"
	"context"
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

// full is one write's worth of bytes. Written to: untouched memory is one shared page of zeros, and copies too fast.
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
	// long runs of both streams: the price of turns where they do not matter
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
