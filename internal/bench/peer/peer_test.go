package peer

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"trl/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(testkit.Suite{M: m}.Run()) }

// Each client speaks to a fake that has a real bash behind the wire format of its peer. The fakes say nothing of how the peers behave.
func TestClientsSpeakTheirProtocols(t *testing.T) {
	testkit.StartsProcesses(t)
	for _, c := range []struct {
		kind                           string
		terminal, shell, session, once bool
		binary, json                   bool
	}{
		{kind: "ttyd", terminal: true},
		{kind: "gotty", terminal: true},
		{kind: "wsep", terminal: true, shell: true, once: true, binary: true},
		{kind: "execd", terminal: true, shell: true, session: true, once: true, binary: true, json: true},
		{kind: "envd", terminal: true, shell: true, once: true, binary: true, json: true},
		{kind: "cf", terminal: true, session: true, json: true},
	} {
		t.Run(c.kind, func(t *testing.T) {
			server := httptest.NewServer(fakes[c.kind](t))
			defer server.Close()
			p, err := New(c.kind, strings.TrimPrefix(server.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			can := func(what string, err error, want bool) bool {
				t.Helper()
				if err != nil && want || !want && !errors.Is(err, ErrCannot) {
					t.Errorf("%s: %v", what, err)
				}
				return err == nil && want
			}

			s, err := p.Terminal(ctx)
			if can("terminal", err, c.terminal) {
				readUpTo(t, s, "# ", "$ ")
				write(t, s, "echo $((6*7))x\n")
				readUpTo(t, s, "42x")
				write(t, s, "head -c 5000 /dev/zero | tr '\\0' y; echo end-$((1+1))\n")
				if got := readUpTo(t, s, "end-2"); !strings.Contains(got, strings.Repeat("y", 5000)+"end-2") {
					t.Errorf("terminal: %d bytes, not 5000 and the end", len(got))
				}
				ends(t, s)
			}
			s, err = p.Shell(ctx)
			if can("shell", err, c.shell) {
				m := Marked(s)
				results(t, "shell", m.Run)
				stateful(t, m)
				ends(t, m)
			}
			in, err := p.Session(ctx)
			if can("session", err, c.session) {
				results(t, "session", in.Run)
				stateful(t, in)
				ends(t, in)
			}
			_, err = p.Once(ctx, ":")
			if can("once", err, c.once) {
				results(t, "once", func(command string) (Result, error) { return p.Once(ctx, command) })
			}
			for as, want := range map[Encoding]bool{Binary: c.binary, JSON: c.json} {
				n, err := p.Follow(ctx, "yes abcdefg | head -c 100000", as)
				if can("follow", err, want) && (n < 99_999 || n > 100_001) { // a line feed at the end may be missing, or be added
					t.Errorf("follow: %d bytes of 100,000", n)
				}
			}
		})
	}
}

func TestUnknownKindsAreRefused(t *testing.T) {
	if _, err := New("telnetd", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "ttyd") {
		t.Errorf("%v", err)
	}
}

// A peer that breaks its protocol makes an error, not a panic and not a wait.
func TestBrokenAnswersAreErrors(t *testing.T) {
	for _, m := range [][]byte{nil, {1}, {1, 0x80}, {1, 5, 0x80}} {
		if b, err := payload(m); err == nil {
			t.Errorf("trl %x: %q", m, b)
		}
	}
	for _, m := range []string{"\x0a", "\x0a\x05ab", "\x09", "\xff"} {
		if err := protoFields([]byte(m), func(int, uint64, []byte) error { return nil }); err == nil {
			t.Errorf("envd %x: no error", m)
		}
	}
}

// The bytes are encoded by hand, after the specification of Protocol Buffers, of the message in the comment.
func TestEnvdStartRequest(t *testing.T) {
	// process { cmd: "bash" args: "-c" args: ":" envs { key: "A" value: "b" } } pty { size { cols: 80 rows: 24 } } stdin: true
	const want = "\x0a\x15\x0a\x04bash\x12\x02-c\x12\x01:\x1a\x06\x0a\x01A\x12\x01b" + "\x12\x06\x0a\x04\x08\x50\x10\x18" + "\x20\x01"
	s := envdStart{command: "bash", args: []string{"-c", ":"}, env: map[string]string{"A": "b"}, terminal: true, stdin: true}
	if got := s.asProto(); string(got) != want {
		t.Errorf("%q\n%q", got, want)
	}
}

func write(t *testing.T, s Stream, text string) {
	t.Helper()
	if err := s.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// readUpTo reads until the output has one of the texts.
func readUpTo(t *testing.T, s Stream, texts ...string) (seen string) {
	t.Helper()
	for {
		for _, text := range texts {
			if strings.Contains(seen, text) {
				return seen
			}
		}
		b, err := s.Read()
		if err != nil {
			t.Fatalf("%v after %.200q", err, seen)
		}
		seen += string(b)
	}
}

func ends(t *testing.T, s io.Closer) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func results(t *testing.T, what string, run func(command string) (Result, error)) {
	t.Helper()
	for _, c := range []struct {
		command, output string
		code            int
	}{
		{":", "", 0},
		{"echo out", "out", 0},
		{"(exit 3)", "", 3},
		{"echo ä; (exit 1)", "ä", 1},
		{"head -c 300000 /dev/zero | tr '\\0' x", strings.Repeat("x", 300000), 0},
	} {
		got, err := run(c.command)
		if err != nil || strings.TrimSpace(got.Output) != c.output || got.Code != c.code {
			t.Errorf("%s: %s: %.80q, %d, %v", what, c.command, got.Output, got.Code, err)
		}
	}
}

// stateful checks that commands go to one and the same shell.
func stateful(t *testing.T, s interface {
	Run(command string) (Result, error)
}) {
	t.Helper()
	if _, err := s.Run("cd /usr; v=kept"); err != nil {
		t.Error(err)
	}
	if got, err := s.Run("echo $PWD $v"); err != nil || strings.TrimSpace(got.Output) != "/usr kept" {
		t.Errorf("%+v, %v", got, err)
	}
}
