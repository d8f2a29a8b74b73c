package shell

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// copied matches the number of bytes written in dd's output.
var copied = regexp.MustCompile(`(?s).*\n(\d+) bytes.*`)

// trl reads a control pipe that its session floods at a limited rate. The session's commands still end, also by a timeout and a
// cancel, and the shell does not count as wedged.
func TestFloodedControlPipe(t *testing.T) {
	// dd must not reach the end of this file: at the limited rate, 16 s are 11 MB.
	lines := t.TempDir() + "/lines"
	if err := os.WriteFile(lines, bytes.Repeat([]byte("y\n"), 16<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	eachShell(t, func(t *testing.T, s *session) {
		dir := t.TempDir()
		s.want("X=kept", "")
		pid := s.Pid()
		var r result
		var took time.Duration
		for seconds := 1; r.out == "" && seconds < 20; seconds *= 2 { // on a busy machine dd may get its INT before it can say anything
			begin := time.Now()
			r = s.run(fmt.Sprintf(`timeout -s INT %d dd if=%s bs=4k of="$__trl_c" 2>%s/said; cat %[3]s/said`, seconds, lines, dir))
			took = time.Since(begin)
		}
		said := r.out
		n, err := strconv.Atoi(copied.ReplaceAllString(said, "$1"))
		if most := (64 << 10) * int(took/(100*time.Millisecond)+4); err != nil || n > most {
			t.Errorf("%d bytes went through in %v: %q %v", n, took, said, err)
		}
		if r.Died || s.Pid() != pid {
			t.Error("the shell was replaced")
		}
		s.want("echo $X", "kept\n")
		c := NewCommand(`yes >"$__trl_c"`)
		c.Timeout, c.Grace = 300*time.Millisecond, 300*time.Millisecond
		if r := s.wait(s.start(c)); r.Timeout != "hard" {
			t.Errorf("%+v", r.Outcome)
		}
		c = NewCommand(`echo begun; yes >"$__trl_c"`)
		c.Grace = 300 * time.Millisecond
		done := s.start(c)
		time.AfterFunc(50*time.Millisecond, func() { c.Cancel(15, c.Grace) })
		if r := s.wait(done); !r.Cancelled {
			t.Errorf("%+v", r.Outcome)
		}
		s.want("echo $X", "kept\n")
		// The flooding job goes on while the session runs commands.
		s.run(`yes >"$__trl_c" & J=$!`)
		for range 5 {
			s.want("echo $X", "kept\n")
		}
		s.run("kill $J")
		s.want("echo $X", "kept\n")
	})
}
