package protocol

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestCleanShowsWhatATerminalWould(t *testing.T) {
	for in, want := range map[string]string{
		"":                                "",
		"plain\ttext\n":                   "plain\ttext\n",
		"10%\r20%\r100%\n":                "100%\n",
		"100%\r20%\n":                     "20%%\n",
		"a\r\nb\r\n":                      "a\nb\n",
		"a\r\r\nb":                        "a\nb",
		"kept\r":                          "kept",
		"Downloading 100%\r\x1b[Kdone\n":  "done\n",
		"working\x1b[2K\x1b[1Gdone\n":     "done\n",
		"abcdef\r\x1b[1Kx\n":              "xbcdef\n",
		"abc\b\bX\n":                      "aXc\n",
		"_\bu_\bn\n":                      "un\n",
		"a\ba\n":                          "a\n",
		"\b\b\n":                          "\n",
		"abc\x1b[2DX\n":                   "aXc\n",
		"ab\x1b[99999999999999999999DX\n": "Xb\n",
		"日本\r語\n":                         "語本\n",
		"\x1b[1;31mred\x1b[0m\n":          "red\n",
		"\x1b[?25lhidden\x1b[?25h":        "hidden",
		"\x1b[38:2::1:2:3mx":              "x",
		"\x1b]0;title\x07text":            "text",
		"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\":   "link",
		"\x1b]0;no end\nkept\n":                      "\nkept\n",
		"\x1bP1;2q\nsixel\n\x1b\\text":               "text",
		"\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\x": "x",
		"\x1b(Bx\x1b=y\x1b7z\x1bc":                   "xyz",
		"\u009b31mred\u009dtitle\u009cx":             "redx",
		"bell\x07 nul\x00 del\x7f\n":                 "bell nul del\n",
		"cut\x1b":                                    "cut",
		"cut\x1b[":                                   "cut",
		"cut\x1b[1;3":                                "cut",
		"cut\x1b]0;ti":                               "cut",
		"cut\x1b]0;ti\x1b":                           "cut",
		"cut\x1bPq":                                  "cut",
		"cut\x1b(":                                   "cut",
		"\x1b[3\x1b[4mx":                             "x",
		"\x1b\nx":                                    "\nx",
		"\x1b]0;a\x18x":                              "x",
		"\x1b[1é":                                    "é",
		"bad\xff\xfe\n":                              "bad�\n",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) is %q, want %q", in, got, want)
		}
	}
}

// cleanHolds is what must be true of any text.
func cleanHolds(t interface{ Fatalf(string, ...any) }, text string) {
	got := Clean(text)
	if strings.IndexFunc(got, movesCursor) >= 0 {
		t.Fatalf("Clean(%q) leaves a control: %q", text, got)
	}
	if !utf8.ValidString(got) {
		t.Fatalf("Clean(%q) is not UTF-8: %q", text, got)
	}
	if again := Clean(got); again != got {
		t.Fatalf("Clean of %q is %q, cleaned again %q", text, got, again)
	}
	if len(got) > 3*len(text) { // three bytes for an invalid one
		t.Fatalf("Clean(%q) grows to %d bytes", text, len(got))
	}
}

func TestCleanHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cleanHolds(t, strings.Join(rapid.SliceOf(rapid.OneOf(
			rapid.SampledFrom([]string{"\x1b", "[", "]", "K", "2K", "5D", "G", "\r", "\n", "\b", "\x07", "\x1b\\", "\u009b", "\xff", "é", "a", "b;1", "P"}),
			rapid.String(),
		)).Draw(t, "text"), ""))
	})
}

// TestCleanIsLinear: texts made to be slow are not. The bound is a hundred times what they take.
func TestCleanIsLinear(t *testing.T) {
	const n = 1 << 20
	start := time.Now()
	for _, text := range []string{
		strings.Repeat("x", n) + strings.Repeat("\ra", n),
		strings.Repeat("x", n) + strings.Repeat("\r\x1b[2K", n),
		strings.Repeat("x\x1b[999D", n),
		strings.Repeat("\x1b]0;", n),
		strings.Repeat("\x1bP", n),
		strings.Repeat("\x1b[", n),
		strings.Repeat("x\b", n),
	} {
		Clean(text)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %v", took)
	}
}

func TestSignalsByName(t *testing.T) {
	for name, want := range map[string]int{
		"TERM": 15, "SIGTERM": 15, "sigkill": 9, "Int": 2, "HUP": 1, "RTMIN": 34, "SIGRTMIN+6": 40, "rtmax": 64, "RTMAX-1": 63, "RTMIN+30": 64,
		"IOT": 6, "POLL": 29, "CLD": 17, "USR1": 10,
	} {
		if got, err := ParseSignal(name); err != nil || int(got) != want {
			t.Errorf("ParseSignal(%q) is %d, %v; want %d", name, int(got), err, want)
		}
	}
	for _, name := range []string{"", "SIG", "NOPE", "9", "0", "-1", "SIGSIGTERM", "RTMIN+31", "RTMIN-1", "RTMAX+1", "RTMIN+", "RTMIN+x", "RTMIN++1", "TERM ", "\x00"} {
		if got, err := ParseSignal(name); err == nil || err.Code != InvalidParams || err.Details["field"] != "signal" {
			t.Errorf("ParseSignal(%q) is %d, %v", name, int(got), err)
		}
	}
	for n := 1; n <= 64; n++ {
		s := unix.Signal(n)
		name := SignalName(s)
		if n == 32 || n == 33 {
			continue // the C library's own, without a name
		}
		if back, err := ParseSignal(name); err != nil || back != s {
			t.Errorf("%d is %q, which is %d, %v", n, name, int(back), err)
		}
	}
}
