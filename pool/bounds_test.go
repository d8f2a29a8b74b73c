package pool

import (
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
)

// TestLongTextsAreToldInPart: lists and events have the first 4 KiB of a command's text, cut between characters, and what runs does not keep more.
func TestLongTextsAreToldInPart(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	w := s.Watch()
	defer w.Close()
	text := ": '" + strings.Repeat("ä", 100<<10) + "'; sleep 300"
	short := func(what, command string) {
		t.Helper()
		if len(command) > protocol.MaxText || len(command) < protocol.MaxText-1 || !strings.HasPrefix(text, command) {
			t.Errorf("%s tells %d bytes of the text", what, len(command))
		}
	}
	e := start(t, s, protocol.Exec{Command: text})
	p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: text})
	if err != nil {
		t.Fatal(err)
	}
	term, err := s.OpenTerminal(t.Context(), &protocol.TermOpen{Command: text, Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	short("session.info", s.Info().CurrentExec.Command)
	short("exec.list", s.Execs()[0].Command)
	short("process.info", p.Info().Command)
	short("term.list", term.Info().Command)
	if len(p.text) > protocol.MaxText || len(term.text) > protocol.MaxText {
		t.Error("a text is kept that nobody needs")
	}
	if err := p.Kill(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := term.Close(t.Context(), of(protocol.Seconds(0))); err != nil {
		t.Fatal(err)
	}
	done, _ := e.Cancel(nil)
	wait(t, "cancel", done)
	short("last_exec", s.Info().LastExec.Command)
	for seen := map[string]bool{}; len(seen) < 5; {
		ev, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch d := ev.Data.(type) {
		case protocol.ExecStarted:
			short(ev.Name, d.Command)
			seen[ev.Name] = true
		case protocol.ProcessInfo:
			short(ev.Name, d.Command)
			seen[ev.Name] = true
		case protocol.TermInfo:
			short(ev.Name, d.Command)
			seen[ev.Name] = true
		}
	}
}

// TestQueueIsBoundedInBytes: long texts and inputs fill a queue before 64 of them do.
func TestQueueIsBoundedInBytes(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	first := start(t, s, protocol.Exec{Command: "sleep 300"})
	stdin := strings.Repeat("x", 3<<20)
	n := 0
	for ; n < 64; n++ {
		_, err := s.Exec(&protocol.Exec{Command: ":" + strings.Repeat(" ", protocol.MaxCommand-1), Stdin: &stdin})
		if err != nil {
			testkit.WantCode(t, err, protocol.SessionBusy)
			break
		}
	}
	if n != 16<<20/(4<<20) {
		t.Errorf("%d commands of 4 MiB wait", n)
	}
	if _, err := s.Exec(&protocol.Exec{Command: ":", WhenBusy: "queue"}); protocol.AsError(err) != nil && n*(4<<20) < 16<<20 {
		t.Error(err)
	}
	s.Destroy(t.Context(), &protocol.SessionDestroy{Force: true})
	wait(t, "end", first.Done())
}
