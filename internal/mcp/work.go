package mcp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"trl/client"
	"trl/protocol"
)

const (
	// How many seconds each tool waits by default.
	defaultYield = 20
	sendYield    = 0.3
	stopYield    = 40
	signalYield  = 1

	// backgroundYield is how long run waits for a background process: a server that cannot start fails within this time.
	backgroundYield = time.Second
	// How long a terminal must be quiet after output before the answer is given: after its start, and while one waits.
	openQuiet = 500 * time.Millisecond
	waitQuiet = time.Second

	// The size of a terminal.
	termCols, termRows = 120, 40

	// startTimeout bounds a request that starts work. It is not the caller's context: a cancelled call must still learn the id of what it started.
	startTimeout = 25 * time.Second
	// askTimeout bounds a question that only improves an answer.
	askTimeout = 4 * time.Second
	// cancelTimeout is how long a cancelled call tries to end its work.
	cancelTimeout = 10 * time.Second
)

// until returns when the answer is due after a wait. The time counts from the beginning of the call, so that a gateway that was away for a while does not
// make the call longer than a host waits; a second of it remains in any case.
func (k *call) until(wait time.Duration) time.Time {
	due, soonest := k.began.Add(wait), time.Now().Add(min(wait, time.Second))
	if due.Before(soonest) {
		return soonest
	}
	return due
}

// run starts work and waits for its end, or until the time to wait is over.
func (k *call) run(ctx context.Context, a runArgs) (string, error) {
	ref, err := k.ref(ctx, a.Session)
	if err != nil {
		return "", err
	}
	if a.TimeoutS < 0 {
		return "", protocol.InvalidParam("timeout_s", "timeout_s is negative")
	}
	session, err := k.sessionOf(ctx, ref)
	if err != nil {
		return "", err
	}
	// The end of this context also ends the command, until the command is left.
	starting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	late := time.AfterFunc(startTimeout, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	switch {
	case a.TTY && a.Background:
		return "", protocol.InvalidParam("tty", "tty and background exclude each other")
	case a.TTY:
		return k.runTerminal(ctx, starting, session, a)
	case a.Background:
		return k.runProcess(ctx, starting, session, a)
	}
	o := &client.ExecOptions{Cwd: a.CWD, Timeout: timeout(a)}
	if a.Stdin != nil {
		o.Stdin = strings.NewReader(*a.Stdin)
	}
	s, err := session.ExecStream(starting, a.Command, o)
	late.Stop()
	if err != nil {
		return "", err
	}
	defer s.Detach()
	text, err := k.readExec(ctx, s, newExcerpt(0, headChars, tailChars), follow{until: k.until(a.YieldS.duration(defaultYield))})
	if err != nil && k.wasCancelled(ctx) {
		s.Detach()
		k.end(ctx, "exec.cancel", protocol.ExecCancel{ExecID: s.ID()})
	}
	return text, err
}

// end ends the work that a cancelled call has started.
func (k *call) end(ctx context.Context, method string, params any) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	_ = k.c.Call(ctx, method, params, nil)
}

func timeout(a runArgs) time.Duration { return protocol.Seconds(a.TimeoutS).Duration() }

// sessionOf returns the session that ref names; the zero value is the client's own.
func (k *call) sessionOf(ctx context.Context, ref protocol.SessionRef) (*client.Session, error) {
	switch {
	case ref.SessionID != "":
		return k.c.SessionWithID(ref.SessionID), nil
	case ref.Session == "":
		return &k.c.Session, nil
	}
	return k.c.GetSession(ctx, ref.Session)
}

// readExec reads the output of a command and makes the answer.
func (k *call) readExec(ctx context.Context, s *client.Command, e *excerpt, f follow) (string, error) {
	why, err := k.read(ctx, s, e, f)
	if err != nil {
		return "", err
	}
	k.Seen.set(s.ID(), e.next)
	k.noteAvailable(ctx, s.ID(), e)
	if why == ended {
		exit := s.Exit()
		if exit.Error != nil {
			return "", &unknownOutcome{exit.Error, s.ID(), e.text()}
		}
		return joined(execLine(exit), e.text()), nil
	}
	state := "still running"
	if e.next == 0 {
		state = k.queuedBehind(ctx, s.ID(), state)
	}
	return joined(k.pendingLine(why, s.ID(), state), e.text()), nil
}

// pendingLine is the first line of an answer about work that has not ended.
func (k *call) pendingLine(why stopped, id, state string) string {
	what := "wait or stop"
	if kindOf(id) == processKind {
		what = "wait, send or stop"
	}
	switch why {
	case full:
		return fmt.Sprintf("output of [%s]", id)
	case met:
		return fmt.Sprintf("condition met after %s, %s [%s]: %s", seconds(time.Since(k.began)), state, id, what)
	}
	return fmt.Sprintf("%s after %s [%s]: %s", state, seconds(time.Since(k.began)), id, what)
}

// noteAvailable asks the gateway from where on it has the output that an excerpt leaves out: its ring may have dropped the beginning.
func (k *call) noteAvailable(ctx context.Context, id string, e *excerpt) {
	from, to := e.cut()
	if from == to || e.tail == 0 {
		return
	}
	e.unsure = true // until the answer
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if kindOf(id) == processKind {
		var logs protocol.Logs
		q := protocol.ProcessLogs{ProcessID: id, Offset: from, MaxBytes: new(int64(1))}
		if err := k.c.Call(ctx, "process.logs", q, &logs); err != nil {
			return
		}
		if e.unsure = false; logs.Gap != nil {
			e.available = logs.Gap.To
		}
		return
	}
	s, err := k.c.AttachCommand(ctx, id, from)
	if err != nil {
		return
	}
	defer s.Detach()
	for range 2 { // its start, and what comes after it
		event, err := s.Next(ctx)
		if err != nil {
			return
		}
		if event.Type == client.EventGap {
			e.available = event.Offset
		}
	}
	e.unsure = false
}

// queuedBehind says for which command a command without output waits; state, if it does not wait for one.
func (k *call) queuedBehind(ctx context.Context, id, state string) string {
	var r protocol.ExecResult
	if err := k.c.Call(ctx, "exec.wait", protocol.ExecWait{ExecID: id, YieldMS: new(0.0)}, &r); err != nil {
		return state
	}
	var all protocol.Execs
	if err := k.c.Call(ctx, "exec.list", protocol.SessionRef{SessionID: r.SessionID}, &all); err != nil {
		return state
	}
	running := ""
	for _, x := range all.Execs {
		if x.State == "running" {
			running = x.ExecID
		}
		if x.ExecID == id && x.State == "queued" && running != "" {
			return "waiting for its turn behind " + running + ","
		}
	}
	return state
}

// runProcess starts a background process. The answer comes after its end, or after a second.
func (k *call) runProcess(ctx, starting context.Context, session *client.Session, a runArgs) (string, error) {
	p, err := session.StartProcess(starting, a.Command, &client.ProcessOptions{Cwd: a.CWD, Timeout: timeout(a), OpenStdin: true})
	if err != nil {
		return "", err
	}
	if a.Stdin != nil {
		text, encoding := protocol.EncodeBytes([]byte(*a.Stdin))
		if err := k.c.Call(ctx, "process.input", protocol.ProcessInput{ProcessID: p.ID(), Data: text, Encoding: encoding, EOF: true}, nil); !endedBefore(err) {
			return "", fmt.Errorf("stdin of %s: %w", p.ID(), err)
		}
	}
	wait := backgroundYield
	if a.YieldS != nil {
		wait = a.YieldS.duration(0)
	}
	text, err := k.readProcess(ctx, p.ID(), newExcerpt(0, headChars, tailChars), follow{until: k.until(wait)})
	if err != nil && k.wasCancelled(ctx) {
		k.end(ctx, "process.kill", protocol.ProcessKill{ProcessID: p.ID()})
	}
	return text, err
}

// endedBefore reports whether input was accepted, or came after the end of the work.
func endedBefore(err error) bool {
	var e *protocol.Error
	return err == nil || errors.As(err, &e) && e.Code == protocol.StdinClosed
}

// readProcess reads the output of a process and makes the answer.
func (k *call) readProcess(ctx context.Context, id string, e *excerpt, f follow) (string, error) {
	p, err := k.c.GetProcess(ctx, id)
	if err != nil {
		return "", err
	}
	s, err := p.StreamLogs(ctx, e.next)
	if err != nil {
		return "", err
	}
	defer s.Close()
	why, err := k.read(ctx, s, e, f)
	if err != nil {
		return "", err
	}
	k.Seen.set(id, e.next)
	k.noteAvailable(ctx, id, e)
	if why == ended {
		info := p.Info()
		return joined(processLine(&info), e.text()), nil
	}
	return joined(k.pendingLine(why, id, "running in the background"), e.text()), nil
}

// runTerminal opens a terminal.
func (k *call) runTerminal(ctx, starting context.Context, session *client.Session, a runArgs) (string, error) {
	if a.Stdin != nil || a.TimeoutS != 0 {
		return "", protocol.InvalidParam("tty", "a terminal has no stdin and no timeout_s: use send and stop")
	}
	t, err := session.OpenTerminal(starting, client.TerminalOptions{Command: a.Command, Cwd: a.CWD, Cols: termCols, Rows: termRows})
	if err != nil {
		return "", err
	}
	defer t.Detach()
	text, err := k.readTerminal(ctx, t, follow{until: k.until(a.YieldS.duration(defaultYield)), quiet: openQuiet})
	if err != nil && k.wasCancelled(ctx) {
		t.Detach()
		k.end(ctx, "term.close", protocol.TermClose{TermID: t.ID()})
	}
	return text, err
}

// readTerminal reads the output of a terminal for as long as f says. The answer is the screen then.
func (k *call) readTerminal(ctx context.Context, t *client.Terminal, f follow) (string, error) {
	why, err := k.read(ctx, t, newExcerpt(0, 0, tailChars), f)
	if err != nil {
		return "", err
	}
	var screen protocol.TermSnapshot
	if err := k.c.Call(ctx, "term.snapshot", protocol.TermRef{TermID: t.ID()}, &screen); err != nil {
		return "", err
	}
	first := fmt.Sprintf("%d×%d terminal, cursor in row %d, column %d [%s]: wait, send or stop", screen.Cols, screen.Rows, screen.Cursor.Row+1, screen.Cursor.Col+1, t.ID())
	switch why {
	case ended:
		exit := t.Exit()
		first = outcome(exit.ExitCode, exit.Signal)
		if exit.EndedAt != nil {
			first += " in " + seconds(exit.EndedAt.Sub(exit.StartedAt))
		}
		first += " [" + t.ID() + "]"
	case met:
		first = "condition met, " + first
	}
	return joined(first, screenText(screen.Lines)), nil
}

func screenText(lines []string) string {
	clean := make([]string, len(lines))
	for i, l := range lines {
		clean[i] = strings.TrimRight(protocol.Clean(l), " ")
	}
	return strings.TrimRight(strings.Join(clean, "\n"), "\n")
}

// wait waits for work, and answers with its new output.
func (k *call) wait(ctx context.Context, a waitArgs) (string, error) {
	f := follow{until: k.until(a.YieldS.duration(defaultYield))}
	if err := f.condition(a.Until, a.ID); err != nil {
		return "", err
	}
	return k.follow(ctx, a.ID, a.Offset, f)
}

// follow waits for work of any kind.
func (k *call) follow(ctx context.Context, id string, offset *int64, f follow) (string, error) {
	switch kindOf(id) {
	case execKind:
		e := k.excerptOf(id, offset)
		s, err := k.c.AttachCommand(ctx, id, e.next)
		if err != nil {
			return "", err
		}
		defer s.Detach()
		return k.readExec(ctx, s, e, f)
	case processKind:
		return k.readProcess(ctx, id, k.excerptOf(id, offset), f)
	case terminalKind:
		if offset != nil {
			return "", protocol.InvalidParam("offset", "a terminal has a screen and no offsets")
		}
		t, err := k.c.AttachTerminal(ctx, id, &client.AttachOptions{Mode: "view"})
		if err != nil {
			return "", err
		}
		defer t.Detach()
		if f.line == nil && f.quiet == 0 {
			f.quiet = waitQuiet
		}
		return k.readTerminal(ctx, t, f)
	}
	return "", notAnID(id)
}

func notAnID(id string) error {
	return protocol.InvalidParam("id", "%q is not the id of a command (x-…), a process (p-…) or a terminal (t-…)", id)
}

// excerptOf is the excerpt for an answer: from an offset on, else of what is new, else of the end.
func (k *call) excerptOf(id string, offset *int64) *excerpt {
	if offset != nil {
		return newExcerpt(max(*offset, 0), headChars+tailChars, 0)
	}
	if from, known := k.Seen.offset(id); known {
		return newExcerpt(from, headChars, tailChars)
	}
	return newExcerpt(0, 0, tailChars)
}

// send writes to work, and then waits.
func (k *call) send(ctx context.Context, a sendArgs) (string, error) {
	keys, signal, err := keyBytes(a.Key, kindOf(a.ID) == terminalKind)
	if err != nil {
		return "", err
	}
	text, encoding := protocol.EncodeBytes([]byte(a.Text + keys))
	write := len(text) > 0 || a.EOF
	switch kindOf(a.ID) {
	case terminalKind:
		if a.EOF {
			text += "\x04"
		}
		if write {
			err = k.c.Call(ctx, "term.input", protocol.TermInput{TermID: a.ID, Data: text, Encoding: encoding}, nil)
		}
	case processKind:
		if write {
			err = k.c.Call(ctx, "process.input", protocol.ProcessInput{ProcessID: a.ID, Data: text, Encoding: encoding, EOF: a.EOF}, nil)
		}
		if err == nil && signal != "" {
			err = k.c.Call(ctx, "process.kill", protocol.ProcessKill{ProcessID: a.ID, Signal: signal}, nil)
		}
	case execKind:
		if write {
			err = k.c.Call(ctx, "exec.input", protocol.ExecInput{ExecID: a.ID, Data: text, Encoding: encoding, EOF: a.EOF}, nil)
		}
		if err == nil && signal != "" {
			err = k.c.Call(ctx, "exec.cancel", protocol.ExecCancel{ExecID: a.ID, Signal: signal}, nil)
		}
	default:
		return "", notAnID(a.ID)
	}
	if err != nil {
		return "", err
	}
	wait := a.YieldS.duration(sendYield)
	return k.follow(ctx, a.ID, nil, follow{until: k.until(wait), quiet: wait})
}

// stop ends work, or sends it a signal, and answers with the last output.
func (k *call) stop(ctx context.Context, a stopArgs) (string, error) {
	f := follow{until: k.until(stopYield * time.Second)}
	if a.Signal != "" {
		f.until = k.until(signalYield * time.Second)
	}
	var method string
	var params any
	switch kindOf(a.ID) {
	case execKind:
		method, params = "exec.cancel", protocol.ExecCancel{ExecID: a.ID, Signal: a.Signal}
	case processKind:
		method, params = "process.kill", protocol.ProcessKill{ProcessID: a.ID, Signal: a.Signal}
	case terminalKind:
		if a.Signal != "" {
			return "", protocol.InvalidParam("signal", "a terminal gets keys by send, and no signals")
		}
		method, params = "term.close", protocol.TermClose{TermID: a.ID}
	default:
		return "", notAnID(a.ID)
	}
	// Nothing else is read on this connection yet, so the answer cannot wait behind output; and work that is being ended waits for no reader of ours.
	if err := k.c.Call(ctx, method, params, nil); err != nil {
		return "", err
	}
	return k.follow(ctx, a.ID, nil, f)
}

func parsePort(text string) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 || n > 65535 {
		return 0, protocol.InvalidParam("until", "%q is no port", text)
	}
	return n, nil
}
