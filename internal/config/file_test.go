package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"trl/internal/cmdline"
	"trl/protocol"
)

// withoutVariables removes TRL_… from the environment of a test.
func withoutVariables(t testing.TB) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "TRL_") {
			t.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
}

// ofText returns the settings from a config file of this name and text alone.
func ofText(name, text string) (*Settings, error) {
	s := &Settings{checkedByKeeper: true} // so that the user and the directory of the test do not matter
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.Define(f)
	if err := s.readSources(f, map[string][]string{"config": {name}}); err != nil {
		return s, err
	}
	return s, s.read([]byte(text))
}

// TestFaultsNameTheirLine: a fault names the line with the mistake.
func TestFaultsNameTheirLine(t *testing.T) {
	withoutVariables(t)
	for _, c := range []struct{ name, text, want string }{
		{"f.yaml", "a: b: c", "f.yaml:1: mapping values are not allowed"},
		{"f.yaml", "warm: 1\na: b: c", "f.yaml:2: mapping values are not allowed"},
		{"f.yaml", "warm: [1", "f.yaml:1: did not find expected"},
		{"f.yaml", "warm: 1\nunix: \"x\n", "f.yaml:"},
		{"f.yaml", "warm: 1\n\n\nretention: 5", `f.yaml:4: retention: "5" is not a valid duration`},
		{"f.yaml", "warm: *x", "unknown anchor"},
		{"f.yaml", "# c\nunix: \"a\\0b\"", "f.yaml:2: unix: a control character"},
		{"f.yaml", "warm: 1\nunix: \x01", "f.yaml:2:7: a control character, U+0001"},
		{"f.yaml", "warm: 1\nunix: \xff", "f.yaml:2:7: not UTF-8"},
		{"f.yaml", "{warm: 1, warm: 2}", "f.yaml:1:11: warm stands here and in line 1"},
		{"f.yaml", "<<: {warm: 1}", `f.yaml:1:1: unknown key "<<"`},
		{"f.yaml", "warm: !!binary MQ==", "f.yaml:1:7: warm: a value or a list"},
		{"f.yaml", "? [a]\n: b", "f.yaml:1:3: the name of a setting wanted"},
		{"f.yaml", "config: x.yaml", `f.yaml:1:1: unknown key "config"`},
		{"f.yaml", "help: true", `f.yaml:1:1: unknown key "help"`},
		{"f.yaml", strings.Repeat("[", 20000), "f.yaml"},
		{"f.yaml", "warm: 1\npool.x: 1", `f.yaml:2:1: unknown key "pool.x"`},
		{"f.toml", "warm = 1", "f.toml: TOML is not supported"},
	} {
		if _, err := ofText(c.name, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %.200v, want %s", c.text, err, c.want)
		}
	}
	for _, text := range []string{"", "---\n", "# nothing\n", "{}", "null", "\uFEFFwarm: 1", "warm: 0x2\n"} {
		if _, err := ofText("f.yaml", text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestNearest(t *testing.T) {
	var names []string
	for _, g := range allSettings() {
		names = append(names, g.Name)
	}
	for typed, want := range map[string]string{
		"max-session": "max-sessions", "idle-timout": "idle-timeout", "listn": "listen", "warn": "warm", "lisetn": "listen", "origins": "origin", "": "", "frobnicate": "",
	} {
		if got := protocol.Nearest(typed, names); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}

// TestOnlyLiveSettingsChange: a reload keeps every setting that is not live, and everything derived from it.
func TestOnlyLiveSettingsChange(t *testing.T) {
	withoutVariables(t)
	now, err := ofText("f.yaml", "warm: 1\nlisten: 127.0.0.1:1\nallow_write: [/tmp]\nretention: 1m\ntls_cert: c\ntls_key: k")
	if err != nil {
		t.Fatal(err)
	}
	next, err := now.WithFile([]byte("warm: 2\nlisten: 127.0.0.1:2\nallow_write: [/usr]\norigin: [http://a, http://b]\nisolation: none\ntls_cert: d\ntls_key: k"))
	if err != nil {
		t.Fatal(err)
	}
	changed, waiting := next.KeepFixed(now)
	if want := []string{"origin", "retention", "tls_cert", "warm"}; !slices.Equal(changed, want) {
		t.Errorf("changed %v, want %v", changed, want)
	}
	if want := []string{"allow_write", "isolation", "listen"}; !slices.Equal(waiting, want) {
		t.Errorf("waiting %v, want %v", waiting, want)
	}
	if next.Web.Listen != "127.0.0.1:1" || !slices.Equal(next.AllowWrite, []string{"/tmp"}) || next.Isolation != "auto" || next.Pool.WarmShells != 2 || next.Web.TLSCert != "d" {
		t.Errorf("%+v", next)
	}
	off, err := next.WithFile([]byte("warm: 2"))
	if err != nil {
		t.Fatal(err)
	}
	if _, waiting := off.KeepFixed(next); !slices.Contains(waiting, "tls_cert") || !slices.Contains(waiting, "tls_key") || off.Web.TLSCert != "d" || off.Web.TLSKey != "k" {
		t.Errorf("TLS switched off: %v, %+v", waiting, off.Web)
	}
}

// FuzzConfig: the loader accepts or refuses a file in a bounded time. Its faults name lines of the file. `trl config print` prints the
// settings that it accepted.
func FuzzConfig(f *testing.F) {
	withoutVariables(f)
	for _, text := range []string{
		"max_sessions: 7\nidle_timeout: 2h\nshells: [sh, bash]\n", "max-sessions: 7\n", "warm: &a 1\nring_bytes: *a\n", "a: [[[[[[]]]]]]",
		"limit_memory: 512M\nlimit_cpu: 0.5\ninsecure: true\nunix: \"a\\u0085\"\n", "a.b:\n  warm: 1\nc: [{d: {e: [1, {f: 2}]}}]\n", "? a\n: b\n---\n...\n",
		"unix: |\n  x\n  y\n", "state_dir: '#'\ndefault_dir: /tmp\n", "warm: 0x10\nunix: 'a\n\n  b'\n", "{warm: 1, warm: 2}", "origin: http://u:p@h\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const name = "f.yaml"
		if len(text) > maxConfig {
			t.Skip()
		}
		entries, wrong := parseConfig(name, []byte(text))
		lines := strings.Count(text, "\n") + strings.Count(text, "\r") + strings.Count(text, "\u0085") + strings.Count(text, "\u2028") + strings.Count(text, "\u2029") + 1
		for _, w := range wrong {
			if w.line < 0 || w.line > lines+1 || w.text == "" || w.hint == "" {
				t.Errorf("fault %+v, %d lines", w, lines)
			}
		}
		seen := map[string]bool{}
		for _, e := range entries {
			if e.line < 1 || e.line > lines || seen[e.setting()] {
				t.Errorf("entry %+v, %d lines", e, lines)
			}
			seen[e.setting()] = true
		}
		s, err := ofText(name, text)
		if err != nil {
			if all := (cmdline.Faults)(nil); errors.As(err, &all) && len(all) < 2 {
				t.Errorf("%d faults", len(all))
			}
			return
		}
		for _, url := range append(slices.Clone(s.Web.Origins), s.Web.Listen, s.Web.Unix, s.TokenFile) {
			if withoutPassword(url) != url { // trl does not print it, on purpose
				t.Skip()
			}
		}
		var printed bytes.Buffer
		if err := s.print(&printed); err != nil {
			t.Fatal(err)
		}
		again, err := ofText("f.yaml", printed.String())
		if err != nil {
			t.Fatalf("%v\n%s", err, printed.String())
		}
		for _, g := range allSettings() {
			if was, is := fmt.Sprint(texts(s.flags.Lookup(g.Name).Value)), fmt.Sprint(texts(again.flags.Lookup(g.Name).Value)); was != is {
				t.Errorf("%s: %s, printed and read %s", g.Name, was, is)
			}
		}
	})
}
