package cli

import "testing"

func TestDetachKeys(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "ctrl-p,ctrl-q": "\x10\x11", "CTRL-A,d": "\x01d", "ctrl-[": "\x1b", "ctrl-]": "\x1d", "ctrl-@,~": "\x00~",
	} {
		if got, err := parseKeys(text); err != nil || string(got) != want {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
	for _, text := range []string{"ctrl-", "ctrl-1", "ab", ",", "ctrl-p,", "é", " "} {
		if got, err := parseKeys(text); err == nil {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestDetectorPassesOnWhatIsNotTheKeys(t *testing.T) {
	for _, c := range []struct {
		keys string
		in   []string
		out  string
		left bool
	}{
		{"PQ", []string{"abc"}, "abc", false},
		{"PQ", []string{"aPQb"}, "a", true},
		{"PQ", []string{"a", "P", "Q"}, "a", true},
		{"PQ", []string{"P", "x"}, "Px", false},
		{"PQ", []string{"PP", "Q"}, "P", true},
		{"PQ", []string{"PPPx"}, "PPPx", false},
		{"P", []string{"xP"}, "x", true},
		{"ABAC", []string{"ABABAC"}, "AB", true},
		{"AAB", []string{"AAAB"}, "A", true},
		{"ABAC", []string{"ABAB", "ABAx"}, "ABABABAx", false},
		{"", []string{"\x10\x11"}, "\x10\x11", false},
	} {
		d := detachDetector{keys: []byte(c.keys)}
		out, left := "", false
		for _, in := range c.in {
			p, l := d.feed([]byte(in))
			out, left = out+string(p), left || l
		}
		if out != c.out || left != c.left {
			t.Errorf("%s in %q: %q %v, want %q %v", c.keys, c.in, out, left, c.out, c.left)
		}
	}
}
