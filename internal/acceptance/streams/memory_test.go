package streams

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// TestLargeAnswersTakeNoMemory: what a command printed is kept once, and encoding it, which makes six bytes of each control, takes no memory of its own.
// It was 25 times the output: doubling buffers of the whole answer.
func TestLargeAnswersTakeNoMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	g := rig.Gateway(t, "--unix", path)
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * testkit.Patience))
	const each = 16 << 20
	controls := fmt.Sprintf("head -c %d /dev/zero | tr '\\\\0' '\\\\1'", each)
	ask := func(command string, most int) (size int) {
		t.Helper()
		fmt.Fprintf(conn, `{"id":1,"method":"exec.run","params":{"command":"%s","max_output_bytes":%d}}`+"\n", command, most)
		b := make([]byte, 1<<20)
		for {
			n, err := conn.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			if size += n; b[n-1] == '\n' {
				return size
			}
		}
	}
	ask(":", 0)
	before := g.Rss(t)
	if size := ask(controls+"; "+strings.ReplaceAll(controls, "'\\\\1'", "'\\\\1' >&2"), each); size < 12*each {
		t.Fatalf("an answer of %d bytes", size)
	}
	if took := g.Peak(t) - before; took > 3*2*each {
		t.Errorf("an answer with %d MiB of output took %d MiB", 2*each>>20, took>>20)
	}
}
