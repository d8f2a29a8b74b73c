package waitfor

import (
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
)

// A pattern that would compile to something large is refused before it is compiled, and usual patterns are accepted.
func TestPatternsAreBounded(t *testing.T) {
	for _, pattern := range []string{"x{1000}x{1000}x{1000}", strings.Repeat("x{1000}", 140), "(?:(?:a|b|c){30}){30}", strings.Repeat(`\pL`, 340)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Compile(pattern)
		runtime.ReadMemStats(&after)
		if e := testkit.WantCode(t, err, protocol.InvalidParams); e.Details["field"] != "until.output" || e.Details["limit"] != maxPattern {
			t.Errorf("%.20s: %v", pattern, e.Details)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
			t.Errorf("%.20s: %d bytes were allocated before it was refused", pattern, n)
		}
	}
	for _, pattern := range []string{`listening on .*:(\d+)`, "ready|started", `^\w{1,100}$`, `\pL{1,100}`, `\Qabc`, "(?i)error", `x{1000}`, strings.Repeat("x", protocol.MaxPattern)} {
		if _, err := Compile(pattern); err != nil {
			t.Errorf("%.20s: %v", pattern, err)
		}
	}
	for _, pattern := range []string{"(", "x{1001}", strings.Repeat("(", 2000)} {
		if e := testkit.WantCode(t, func() error { _, err := Compile(pattern); return err }(), protocol.InvalidParams); e.Details["field"] != "until.output" || e.Details["limit"] != nil {
			t.Errorf("%.20s: %v", pattern, e.Details)
		}
	}
}

// The estimated size of a pattern is at least the real one.
func TestPatternSizeIsHonest(t *testing.T) {
	for _, pattern := range []string{"abc", "x{20,30}", "(a|b)*c+d?", `[^a-z]{5,}`, `(?i)hello\s+w`, `\pL+\d{3}`, "(?:x{10}y{3}){20}", "(a|bc|def){7}", "a{0,9}"} {
		parsed, err := syntax.Parse("(?m)"+pattern, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if code, _ := patternSize(parsed); code < 40*int64(len(prog.Inst)-2) {
			t.Errorf("%s: estimated %d bytes, has %d instructions", pattern, code, len(prog.Inst))
		}
	}
}
