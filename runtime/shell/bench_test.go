package shell

import (
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/host"
	"trl/runtime/journal"
)

// BenchmarkCommand is the cost of `:` below everything that a gateway adds.
func BenchmarkCommand(b *testing.B) {
	h := testHost(b, "auto")
	for name, path := range shells(b) {
		b.Run(name, func(b *testing.B) {
			benchCommand(b, openSession(b, h, path), ":")
		})
	}
}

// BenchmarkProgram is that of a command that starts a program. Before some of these there is a snapshot.
func BenchmarkProgram(b *testing.B) {
	h := testHost(b, "auto")
	for name, path := range shells(b) {
		b.Run(name, func(b *testing.B) {
			benchCommand(b, openSession(b, h, path), "/bin/true")
		})
	}
}

func benchCommand(b *testing.B, s *session, text string) {
	b.ReportAllocs()
	for b.Loop() {
		c := NewCommand(text)
		c.Journal = journal.New(1 << 20)
		if o := s.Run(c); o.Code != 0 || o.Err != nil {
			b.Fatal(o)
		}
	}
}

// BenchmarkSessionStart is a session's beginning below everything that a gateway adds, in each tier.
func BenchmarkSessionStart(b *testing.B) {
	for _, tier := range host.TierNames {
		for _, name := range []string{"sh", "bash"} {
			b.Run(tier+"/"+name, func(b *testing.B) {
				h, path := benchHost(b, tier), shells(b)[name]
				for b.Loop() {
					s, err := openShell(h, ShellConfig{ID: "s-" + strings.ReplaceAll(testkit.Marker(), ".", "-"), Path: path, Dir: "/", Restore: true, Env: []string{"PATH=/usr/bin:/bin"}})
					if err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					if err := s.Close(0); err != nil {
						b.Fatal(err)
					}
					s.Forget()
					b.StartTimer()
				}
			})
		}
	}
}

// BenchmarkLimitedCommand is BenchmarkCommand within every limit that can be enforced here.
func BenchmarkLimitedCommand(b *testing.B) {
	h := testHost(b, "auto")
	for name, path := range shells(b) {
		b.Run(name, func(b *testing.B) {
			benchCommand(b, limited(b, h, path, everyLimit(h)), ":")
		})
	}
}

// BenchmarkOpenShell is the start and the end of a session, without limits and with.
func BenchmarkOpenShell(b *testing.B) {
	h := testHost(b, "auto")
	for name, l := range map[string]protocol.Limits{"free": {}, "limited": everyLimit(h)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s, err := openShell(h, ShellConfig{ID: "s-bench", Path: "/bin/sh", Dir: "/", Limits: l, Env: []string{"PATH=/usr/bin:/bin"}})
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(0); err != nil {
					b.Fatal(err)
				}
				s.Forget()
			}
		})
	}
}
