package kv

import (
	"context"
	"fmt"
	"testing"
	"time"

	"trl/internal/natsrig"
)

// What a claim costs with three servers on this machine, which write to the disk before they acknowledge, and what with a bucket in memory.
func BenchmarkBucket(b *testing.B) {
	c := natsrig.Start(b, 3)
	conn := c.Connect()
	ctx := context.Background()
	for _, memory := range []bool{false, true} {
		k := &Bucket{Conn: conn, Name: fmt.Sprint("trl_bench_", memory), TTL: time.Hour, Memory: memory}
		if err := k.Make(ctx); err != nil {
			b.Fatal(err)
		}
		n := 0
		name := func(what string) string { return fmt.Sprintf("memory=%v/%s", memory, what) }
		b.Run(name("Create"), func(b *testing.B) {
			for range b.N {
				n++
				if _, err := k.Create(ctx, fmt.Sprint("n", n), []byte("x")); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name("CreateAfterDelete"), func(b *testing.B) {
			for i := range b.N {
				b.StopTimer()
				if err := k.Drop(ctx, "again", time.Minute); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if _, err := k.Create(ctx, "again", fmt.Append(nil, i)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name("Latest"), func(b *testing.B) {
			for range b.N {
				if _, err := k.Latest(ctx, "again"); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name("Get"), func(b *testing.B) {
			for range b.N {
				if _, err := k.Get(ctx, "again"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
