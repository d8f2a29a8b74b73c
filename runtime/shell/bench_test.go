package shell

import (
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/host"
	"trl/runtime/journal"
)

// BenchmarkCommand measures `:` without the rest of the gateway.
func BenchmarkCommand(b *testing.B) {
	h := testHost(b, "auto")
	for name, path := range shells(b) {
		b.Run(name, func(b *testing.B) {
			benchCommand(b, openSession(b, h, path), ":")
		})
	}
}

// BenchmarkProgram measures a command that starts a program. A snapshot comes before some of these commands.
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

// BenchmarkSessionStart measures a session's start without the rest of the gateway, in each tier.
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

// BenchmarkLimitedCommand is BenchmarkCommand with every limit that can be enforced on this machine.
func BenchmarkLimitedCommand(b *testing.B) {
	h := testHost(b, "auto")
	for name, path := range shells(b) {
		b.Run(name, func(b *testing.B) {
			benchCommand(b, limited(b, h, path, everyLimit(h)), ":")
		})
	}
}

// BenchmarkOpenShell measures the start and the end of a session, without and with limits.
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
