package screen

import (
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/testkit"
)

// pieces are what TestScreenIsWhatTmuxShowsOfAnything puts together. They leave out where tmux differs from xterm.js: REP
// stops at the end of a line, a cursor beyond the last column moves from there, and half of a wide character that was
// overwritten loses its background.
func pieces(r *rand.Rand, cols, rows int, wide bool, alternate *bool) string {
	n := func(most int) int { return r.Intn(most) + 1 }
	kind := r.Intn(30)
	if wide && (kind == 10 || kind == 11 || kind == 14 || kind == 18) { // tmux leaves halves of wide characters
		kind = 7
	}
	switch kind {
	case 0, 1, 2, 3:
		return strings.Repeat(string(rune('a'+r.Intn(26))), n(cols)) + "\r\n"
	case 4:
		text := []string{"ü", "e\u0301"}[r.Intn(2)]
		if wide {
			text = []string{"日本", "한국", "wide日"}[r.Intn(3)]
		}
		return fmt.Sprintf("\x1b[m\x1b[%d;%dH%s", n(rows), n(cols/2), text)
	case 5:
		return fmt.Sprintf("\r%s", strings.Repeat("long ", n(20)))
	case 6:
		return "\r\n"
	case 7, 8:
		return fmt.Sprintf("\x1b[%d;%dHat", n(rows+2), n(cols-3))
	case 9:
		return fmt.Sprintf("\r\x1b[%d%c", n(4), "ABCDEFG"[r.Intn(7)])
	case 10:
		return fmt.Sprintf("\r\x1b[%dC\x1b[%dJ", n(cols-2), r.Intn(3))
	case 11:
		return fmt.Sprintf("\r\x1b[%dC\x1b[%dK", n(cols-2), r.Intn(3))
	case 12:
		return fmt.Sprintf("\x1b[?6l\x1b[2;8r\x1b[%d;1H\x1b[%d%c", 1+n(6), n(rows), "LM"[r.Intn(2)]) // tmux also does it outside of the margins
	case 13:
		return "\x1b[?6l\x1b[r" + fmt.Sprintf("\x1b[%d%c", n(rows), "LM"[r.Intn(2)])
	case 14:
		const most = 8 // tmux clears too little where more is inserted than stays of the line
		return fmt.Sprintf("\r\x1b[%dC\x1b[%d%c", n(cols-2*most), n(most), "@PX"[r.Intn(3)])
	case 15:
		return fmt.Sprintf("\r\x1b[%d%c", n(rows+1), "ST"[r.Intn(2)])
	case 16:
		top := n(rows - 1)
		return fmt.Sprintf("\x1b[?6l\x1b[%d;%dr", top, top+n(rows-top)) // after which tmux puts the cursor at the top, also in origin mode
	case 17:
		return "\r" + []string{"\x1bM", "\x1bD", "\x1bE"}[r.Intn(3)]
	case 18:
		return fmt.Sprintf("\r\x1b[%dC\x1b[4hin\x1b[4l", n(cols-4)) // tmux does not insert the first character after a wrap
	case 19:
		return []string{"\x1b[?6h", "\x1b[?6l", "\x1b[?6l"}[r.Intn(3)]
	case 20:
		return "\r" + []string{"\x1b7", "\x1b8"}[r.Intn(2)]
	case 21:
		return fmt.Sprintf("\rx\x1b[%db", n(cols-4))
	case 22:
		return "\r\tt\t\tu\x1b[Zv"
	case 23:
		return fmt.Sprintf("\r%s\x1b[%dD\b-", strings.Repeat("y", 10), n(5))
	case 24:
		return []string{"\x1b[?6l\x1b[r", "\x1b[m", "\x1b(0lqqk\x1b(B", "\x0e\x1b)0qq\x0f"}[r.Intn(4)]
	case 25:
		*alternate = !*alternate
		// tmux has one saved cursor, and margins, for both screens, and clears without a background.
		return "\x1b[m\x1b[?6l\x1b[r" + map[bool]string{true: "\x1b[?1049h\x1b7", false: "\x1b[?1049l\x1b7"}[*alternate]
	case 26:
		return fmt.Sprintf("\r\x1b[%d`\x1b[%dd", n(cols-3), n(rows))
	case 27:
		return "\r\x1b[?7l" + strings.Repeat("nowrap", n(10)) + "\x1b[?7h"
	}
	return fmt.Sprintf("\x1b[%sm", []string{"31", "1;4", "38;5;208", "48;2;1;2;3", "7", "0", "44", "3;9", "39;49", "22;24;27"}[r.Intn(10)])
}

func TestMain(m *testing.M) { testkit.Main(m) }

// TestScreenIsWhatTmuxShowsOfAnything: random output, text and colours, against what tmux makes of it.
func TestScreenIsWhatTmuxShowsOfAnything(t *testing.T) {
	testkit.StartsProcesses(t)
	tmux, err := exec.LookPath("tmux")
	if err != nil {
		t.Skip("no tmux")
	}
	const cols, rows, cases = 40, 10, 30
	dir := t.TempDir()
	seed := time.Now().UnixNano()
	r := rand.New(rand.NewSource(seed))
	config, socket := filepath.Join(dir, "conf"), filepath.Join(dir, "s")
	if err := os.WriteFile(config, []byte("set -g default-shell /bin/sh\nset -g status off\nset -g history-limit 0\nset -g remain-on-exit on\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	call := func(args ...string) string {
		c := exec.Command(tmux, append([]string{"-u", "-S", socket, "-f", config}, args...)...)
		c.Env = append(os.Environ(), "TMUX=", "LC_ALL=C.UTF-8", "TERM=xterm")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	call("new-session", "-d", "-s", "s", "-x", fmt.Sprint(cols), "-y", fmt.Sprint(rows), "sleep 1000")
	t.Cleanup(func() { call("kill-server") })
	wrong := 0
	for i := range cases {
		var all []string
		alternate := false
		for range 5 + r.Intn(60) {
			all = append(all, pieces(r, cols, rows, i%2 == 0, &alternate))
		}
		raw, file, name := strings.Join(all, ""), filepath.Join(dir, fmt.Sprint(i)), fmt.Sprintf("w%d", i)
		if err := os.WriteFile(file, []byte(raw+"\x1b]2;done\x07"), 0o600); err != nil {
			t.Fatal(err)
		}
		pane := "s:" + name
		call("new-window", "-d", "-n", name, "stty raw -echo; cat "+file+"; exec sleep 1000")
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if strings.TrimSpace(call("display", "-p", "-t", pane, "#{pane_title}")) == "done" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("tmux has not read case %d of seed %d: %q shows %s%s", i, seed, all, call("capture-pane", "-p", "-t", pane),
					call("display", "-p", "-t", pane, "dead #{pane_dead} #{pane_dead_status} #{pane_current_command} in mode #{pane_in_mode} title #{pane_title}"))
			}
		}
		got := New(cols, rows)
		_, _ = got.Write([]byte(raw))
		want := New(cols, rows)
		_, _ = want.Write([]byte("\x1b[20h\x1b)0" + strings.TrimSuffix(call("capture-pane", "-e", "-N", "-p", "-t", pane), "\n")))
		x, y, _ := got.Cursor()
		at, tmuxAt := fmt.Sprintf("%d,%d,%v", x, y, got.Alternate()), tmuxCursor(call("display", "-p", "-t", pane, "#{cursor_x} #{cursor_y} #{alternate_on}"), cols)
		if at != tmuxAt {
			t.Errorf("case %d of seed %d: cursor %s, want %s: %q", i, seed, at, tmuxAt, all)
			wrong++
		}
		first := ""
		for i := range cols * rows {
			x, y := i%cols, i/cols
			if a, b := looks(got, got.g.at(x, y)), looks(want, want.g.at(x, y)); a != b && first == "" {
				first = fmt.Sprintf("%d,%d: %q, want %q", x, y, a, b)
			}
		}
		if first != "" {
			wrong++
			t.Errorf("case %d of seed %d: %s\n%q\n got %q\nwant %q", i, seed, first, all, got.Lines(), want.Lines())
		}
		call("kill-window", "-t", pane)
		if wrong > 2 {
			t.Fatal("and so on")
		}
	}
}

func tmuxCursor(text string, cols int) string {
	var x, y, alternate int
	_, _ = fmt.Sscan(text, &x, &y, &alternate)
	return fmt.Sprintf("%d,%d,%v", min(x, cols-1), y, alternate == 1)
}

// looks is a cell as tmux tells of it.
func looks(s *Screen, c cell) string {
	text := strings.TrimSpace(string(s.appendText(nil, &c)))
	if c.style &^= wide; text == "" { // the background of blanks is another where lines wrap at the bottom, and tmux tells little of it
		return ""
	}
	return text + string(s.appendStyle(nil, &c)[1:])
}
