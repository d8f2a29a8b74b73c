package acceptance

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestRetryFindsWhatIsLongGone: a request_key is remembered when the command is not retained any more, by the gateway that ran it
// and by the next one, and the next one after that.
func TestRetryFindsWhatIsLongGone(t *testing.T) {
	t.Parallel()
	g := gateway(t, "--warm", "0")
	c := g.dial(t)
	s := c.session()
	file := g.home + "/runs"
	const retained, keys = 1000, 1100 // a session retains that many
	ask := func(i int) object {
		return object{"session_id": s, "request_key": fmt.Sprint("k", i), "command": fmt.Sprintf("echo %d >>'%s'; exit 3", i, file)}
	}
	ids := map[int]string{}
	note := func(i int) object {
		r := c.call("exec.run", ask(i))
		if r.num("exit_code") != 3 {
			t.Fatalf("%d: %v", i, r)
		}
		if was, known := ids[i]; known && was != r.str("exec_id") {
			t.Errorf("%d ran again", i)
		}
		ids[i] = r.str("exec_id")
		return r
	}
	p := object{"session_id": s, "request_key": "p", "command": "echo started >>'" + file + "'"}
	process := c.call("process.start", p).str("process_id")
	term := object{"session_id": s, "request_key": "t", "cols": 80, "rows": 24, "command": "echo opened >>'" + file + "'"}
	opened := c.call("term.open", term).str("term_id")
	for i := range keys {
		note(i)
	}
	for range 3 {
		for _, i := range []int{0, 1, keys - retained, keys - 1} {
			note(i)
		}
		if r := c.call("process.start", p); r.str("process_id") != process {
			t.Errorf("process: %v", r)
		}
		if r := c.call("term.open", term); r.str("term_id") != opened {
			t.Errorf("terminal: %v", r)
		}
		g.killGateway(t)
		c = g.redial(t)
	}
	text, err := os.ReadFile(file)
	if n := len(strings.Fields(string(text))); err != nil || n != keys+2 {
		t.Errorf("%d of %d things happened: %v", n, keys+2, err)
	}
}
