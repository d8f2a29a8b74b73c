package commands

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"trl/internal/rig"
)

// TestRetryFindsWhatIsLongGone: a request_key is remembered when the command is not retained any more, by the gateway that ran it
// and by the next one, and the next one after that.
func TestRetryFindsWhatIsLongGone(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t, "--warm", "0")
	c := g.Dial(t)
	s := c.Session()
	file := g.Home + "/runs"
	const retained, keys = 1000, 1100 // a session retains that many
	ask := func(i int) object {
		return object{"session_id": s, "request_key": fmt.Sprint("k", i), "command": fmt.Sprintf("echo %d >>'%s'; exit 3", i, file)}
	}
	ids := map[int]string{}
	note := func(i int) object {
		r := c.Call("exec.run", ask(i))
		if r.Num("exit_code") != 3 {
			t.Fatalf("%d: %v", i, r)
		}
		if was, known := ids[i]; known && was != r.Str("exec_id") {
			t.Errorf("%d ran again", i)
		}
		ids[i] = r.Str("exec_id")
		return r
	}
	p := object{"session_id": s, "request_key": "p", "command": "echo started >>'" + file + "'"}
	process := c.Call("process.start", p).Str("process_id")
	term := object{"session_id": s, "request_key": "t", "cols": 80, "rows": 24, "command": "echo opened >>'" + file + "'"}
	opened := c.Call("term.open", term).Str("term_id")
	for i := range keys {
		note(i)
	}
	for range 3 {
		for _, i := range []int{0, 1, keys - retained, keys - 1} {
			note(i)
		}
		if r := c.Call("process.start", p); r.Str("process_id") != process {
			t.Errorf("process: %v", r)
		}
		if r := c.Call("term.open", term); r.Str("term_id") != opened {
			t.Errorf("terminal: %v", r)
		}
		g.KillGateway(t)
		c = g.Redial(t)
	}
	text, err := os.ReadFile(file)
	if n := len(strings.Fields(string(text))); err != nil || n != keys+2 {
		t.Errorf("%d of %d things happened: %v", n, keys+2, err)
	}
}
