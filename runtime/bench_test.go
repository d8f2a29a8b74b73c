package runtime

import (
	"testing"

	"trl/runtime/journal"
)

// BenchmarkCommand is the cost of `:` below everything that a gateway adds.
func BenchmarkCommand(b *testing.B) {
	h := testHost(b, "auto")
	for name, path := range shells(b) {
		b.Run(name, func(b *testing.B) {
			s := openSession(b, h, path)
			b.ReportAllocs()
			for b.Loop() {
				c := NewCommand(":")
				c.Journal = journal.New(1 << 20)
				if o := s.Run(c); o.Code != 0 || o.Err != nil {
					b.Fatal(o)
				}
			}
		})
	}
}
