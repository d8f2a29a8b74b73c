package pool

import (
	"fmt"
	"testing"

	"trl/internal/testkit"
	"trl/pool/recording"
	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/shell"
)

// What the pool adds to a command: the same shell, with and without it.
func BenchmarkExec(b *testing.B) {
	r := newRig(b, Config{})
	for _, path := range []string{"/bin/sh", "/bin/bash"} {
		s, err := r.Create(b.Context(), me, &protocol.SessionCreate{Shell: path})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(path[5:]+"/pool", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e, err := s.Exec(&protocol.Exec{Command: ":"})
				if err != nil {
					b.Fatal(err)
				}
				<-e.Done()
				_ = e.Result(false)
			}
		})
		b.Run(path[5:]+"/shell", func(b *testing.B) {
			s.shell.SetEntryWriter(nil) // it knows the pool's commands alone
			b.ReportAllocs()
			for b.Loop() {
				c := shell.NewCommand(":")
				c.Journal = journal.New(1 << 20)
				if o := s.shell.Run(c); o.Err != nil {
					b.Fatal(o)
				}
			}
		})
	}
}

// What a recording costs the command that it is of.
func BenchmarkRecording(b *testing.B) {
	for _, record := range []bool{false, true} {
		for name, command := range map[string]string{"nothing": ":", "MiB": "head -c 1048576 /dev/zero"} {
			b.Run(fmt.Sprintf("%s/recorded=%t", name, record), func(b *testing.B) {
				r := newRig(b, withRecordings(b, recording.Config{}))
				s, err := r.Create(b.Context(), me, &protocol.SessionCreate{})
				if err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					e, err := s.Exec(&protocol.Exec{Command: command, Record: record})
					if err != nil {
						b.Fatal(err)
					}
					<-e.Done()
				}
			})
		}
	}
}

// A session and its end; warm ones are refilled as fast as they are taken.
func BenchmarkCreate(b *testing.B) {
	for name, warm := range map[string]int{"cold": 0, "warm": 8} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, Config{WarmShells: warm, Retention: -1})
			for b.Loop() {
				s, err := r.Create(b.Context(), me, &protocol.SessionCreate{})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if _, err := s.Destroy(b.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
					b.Fatal(err)
				}
				if warm > 0 {
					testkit.Eventually(b, "warm ones", func() bool { return len(r.warm.Ready()) == warm })
				}
				b.StartTimer()
			}
		})
	}
}
