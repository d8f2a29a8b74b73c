package shell

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/protocol"
)

// signalRow is a row of the table in the section "Signals" of PROTOCOL.md.
type signalRow struct {
	text    string
	shells  string
	signals []string
	count   []int
	why     string
	out     string
	goesOn  bool
	code    int // -1: 128 and the signal's number
}

// signalRows reads the table, so that the test checks what PROTOCOL.md says.
func signalRows(t *testing.T) (rows []signalRow) {
	t.Helper()
	text, err := os.ReadFile("../../protocol/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- signals: ")
	table, _, _ = strings.Cut(table, "<!-- end -->")
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		f := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(f) != 6 {
			t.Fatalf("%d columns: %s", len(f), line)
		}
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		row := signalRow{text: strings.Trim(f[0], "`"), shells: f[1], signals: strings.Split(f[2], ", ")}
		count, _, _ := strings.Cut(f[3], " (")
		count, row.why, _ = strings.Cut(strings.ReplaceAll(count, "`", ""), ", ")
		for _, n := range strings.Split(count, " or ") {
			n, err := strconv.Atoi(n)
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			row.count = append(row.count, n)
		}
		if f[4] != "nothing" {
			row.out = strings.ReplaceAll(strings.ReplaceAll(f[4], "`", ""), ", ", "\n") + "\n"
		}
		switch f[5] {
		case "it goes on":
			row.goesOn = true
		case "128+N, `signal`":
			row.code = -1
		case "0":
		default:
			t.Fatalf("how does it end? %s", line)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestSignalTable runs each row of PROTOCOL.md's table of signals in each shell that it is for.
func TestSignalTable(t *testing.T) {
	t.Parallel()
	h := testHost(t, "auto")
	rows := signalRows(t)
	if len(rows) < 10 {
		t.Fatalf("%d rows", len(rows))
	}
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, row := range rows {
				if row.shells != "all" && !slices.Contains(strings.Split(row.shells, ", "), name) {
					continue
				}
				for _, sig := range row.signals {
					for tries := 0; !row.run(t, openSession(t, h, path), sig, (name == "ash" || name == "zsh") && tries < 4); tries++ {
					}
				}
			}
		})
	}
}

// work is the part of a row's command that waits or loops. The row's traps are set before it.
var work = regexp.MustCompile(`\b(while|until|sleep) `)

// run runs the row with one signal. mayHang: the shell may hang at the signal, see PROTOCOL.md. Then another takes its place, and run returns false.
func (row signalRow) run(t *testing.T, s *session, name string, mayHang bool) (ran bool) {
	t.Helper()
	sig, fault := protocol.ParseSignal(name)
	if fault != nil {
		t.Fatal(fault)
	}
	s.code("X=kept", 0)
	pid, mark, dir := s.Pid(), testkit.Marker(), t.TempDir()
	at := work.FindStringIndex(row.text)[0]
	c := NewCommand(strings.Replace(row.text[:at]+"cd "+dir+"; "+row.text[at:], "sleep 60", "sleep "+mark, 1))
	done := s.start(c)
	testkit.Eventually(t, "it runs", func() bool {
		return s.Dir() == dir && (len(testkit.Alive(mark)) > 0 || !strings.Contains(row.text, "sleep 60"))
	})
	what := fmt.Sprintf("%q and %s", row.text, name)
	select {
	case got := <-c.Signal(sig):
		if !slices.Contains(row.count, got.Processes) || got.Why != row.why {
			t.Errorf("%s: signalled %+v", what, got)
		}
	case <-time.After(generous):
		t.Fatalf("%s: no answer", what)
	}
	if row.goesOn {
		select {
		case r := <-done:
			t.Errorf("%s: printed %q, %v", what, r.out, r.Outcome)
		case <-time.After(20 * time.Millisecond):
			c.Cancel(syscall.SIGTERM, 0)
			s.wait(done)
		}
	} else {
		r := s.wait(done)
		code, signal := row.code, ""
		if code < 0 {
			code, signal = 128+int(sig), name
		}
		if mayHang && row.count[0] == 1 && r.Code == 137 && !r.Cancelled && r.Err == nil { // it may go on after the grace, or another shell does
			s.want("echo $X", "kept\n")
			return false
		}
		if r.out != row.out || r.Code != code || r.Signal != signal || r.Died || r.Cancelled || r.Err != nil {
			t.Errorf("%s: printed %q, %v", what, r.out, r.Outcome)
		}
		if s.Pid() != pid {
			t.Errorf("%s: it is another shell", what)
		}
	}
	s.want("echo $X", "kept\n")
	return true
}
