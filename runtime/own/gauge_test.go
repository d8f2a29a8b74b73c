package own

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNumberOfAKernelFile(t *testing.T) {
	for _, c := range []struct {
		text, key string
		want      int64
	}{
		{"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill ", 3},                // memory.oom_control
		{"low 0\nhigh 0\nmax 12\noom 4\noom_kill 2\noom_group_kill 0\n", "oom_kill ", 2}, // memory.events
		{"max 7\n", "max ", 7},       // pids.events
		{"67108864\n", "", 67108864}, // memory.peak
		{"usage_usec 123456\nuser_usec 1\n", "usage_usec ", 123456},
		{"", "max ", 0}, {"max\n", "max ", 0},
	} {
		file := filepath.Join(t.TempDir(), "f")
		_ = os.WriteFile(file, []byte(c.text), 0o644)
		fd, err := unix.Open(file, unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := new(Gauge).number(fd, c.key); got != c.want {
			t.Errorf("%q of %q: %d", c.key, c.text, got)
		}
		unix.Close(fd)
	}
}
