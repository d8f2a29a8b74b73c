package client_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"trl/client"
)

// patience bounds a step that makes no progress.
const patience = 150 * time.Second

// step is one step of a scenario.
type step map[string]any

func (q step) text(name, otherwise string) string {
	if v, ok := q[name]; ok {
		return fmt.Sprint(v)
	}
	return otherwise
}

func (q step) number(name string) float64 {
	f, _ := strconv.ParseFloat(q.text(name, "0"), 64)
	return f
}

func (q step) duration(name string) time.Duration {
	return time.Duration(q.number(name) * float64(time.Second))
}

func (q step) terminal() client.TerminalOptions {
	return client.TerminalOptions{Cols: int(q.number("cols")), Rows: int(q.number("rows")), Command: q.text("command", "")}
}

// environment divides an environment of the wire into variables that are set and names that are unset.
func (q step) environment() (set map[string]string, unset []string) {
	set = map[string]string{}
	env, _ := q["env"].(map[string]any)
	for name, v := range env {
		if v == nil {
			unset = append(unset, name)
		} else {
			set[name] = fmt.Sprint(v)
		}
	}
	return set, unset
}

func (q step) command() string {
	words, ok := q["command"].([]any)
	if !ok {
		return q.text("command", "")
	}
	var quoted []string
	for _, w := range words {
		quoted = append(quoted, fmt.Sprint(w))
	}
	return client.Quote(quoted...)
}

func (q step) options() *client.ExecOptions {
	set, unset := q.environment()
	o := &client.ExecOptions{Cwd: q.text("working_dir", ""), Env: set, UnsetEnv: unset, Timeout: q.duration("timeout_s"), WhenBusy: q.text("when_busy", ""), Check: q["check"] == true}
	if in, ok := q["stdin_base64"]; ok {
		o.Stdin = base64.NewDecoder(base64.StdEncoding, strings.NewReader(in.(string)))
	}
	o.OpenStdin = q["stdin"] == "open"
	return o
}

// fill replaces the references in a value.
func fill(v any, in *scope) any {
	switch v := v.(type) {
	case string:
		return reference.ReplaceAllStringFunc(v, func(r string) string { return fmt.Sprint(in.find(r[2 : len(r)-1])) })
	case []any:
		all := make([]any, len(v))
		for i, w := range v {
			all[i] = fill(w, in)
		}
		return all
	case map[string]any:
		all := map[string]any{}
		for name, w := range v {
			if all[name] = w; name != "steps" { // which have names of their own
				all[name] = fill(w, in)
			}
		}
		return all
	}
	return v
}

var reference = regexp.MustCompile(`\$\{[^}]*\}`)

// mismatch is a result that was not expected.
type mismatch struct{ text string }

func (m mismatch) Error() string { return m.text }

// operations carries out the steps of a scenario in one way: with the Go client, or with curl.
type operations interface {
	// begin makes what the README promises before the first step: the names client and s.
	begin(ctx context.Context, in *scope) error
	carryOut(ctx context.Context, q step, in *scope) (any, error)
	// end ends what the steps have made.
	end()
}

// interpreter runs the steps of a scenario.
type interpreter struct {
	operations
	gateway *gateway
}

func (r *interpreter) steps(ctx context.Context, steps []step, in *scope) error {
	for _, q := range steps {
		limited, cancel := context.WithTimeout(ctx, patience)
		if _, nested := q["steps"]; nested {
			cancel()
			limited, cancel = context.WithTimeout(ctx, 5*patience)
		}
		err := r.step(limited, q, in)
		cancel()
		if err != nil {
			b, _ := json.Marshal(q)
			return fmt.Errorf("%.300s: %w", b, err)
		}
	}
	return nil
}

// later is a step with `meanwhile`.
type later struct {
	abort  func()
	done   chan struct{}
	result any
	err    error
}

func (r *interpreter) step(ctx context.Context, q step, in *scope) error {
	q = step(fill(map[string]any(q), in).(map[string]any))
	if q["meanwhile"] == true {
		own, abort := context.WithCancelCause(context.WithoutCancel(ctx))
		l := &later{abort: func() { abort(errAborted) }, done: make(chan struct{})}
		go func() { // ends with the step, which an abort or the end of the client ends
			defer close(l.done)
			l.result, l.err = r.perform(own, q, in)
		}()
		in.set(q.text("as", ""), l)
		return nil
	}
	result, err := r.perform(ctx, q, in)
	want, fails := q["error"]
	switch {
	case err != nil && (!fails || errors.As(err, new(mismatch))):
		return err
	case err != nil:
		return compare(describe(err), want, "error")
	case fails:
		return mismatch{fmt.Sprintf("did not fail: %v", result)}
	}
	if as := q.text("as", ""); as != "" {
		in.set(as, result)
	}
	if want, ok := q["expect"]; ok {
		return compare(result, want, q.text("do", ""))
	}
	return nil
}

// perform carries out one step.
func (r *interpreter) perform(ctx context.Context, q step, in *scope) (any, error) {
	of := in.get(q.text("of", ""))
	switch q.text("do", "") {
	case "direct":
		return r.gateway.direct(ctx, q.text("command", ""))
	case "rig":
		return r.gateway.do(q.text("action", ""))
	case "abort":
		of.(*later).abort()
		return nil, nil
	case "await":
		l := of.(*later)
		select {
		case <-l.done:
			return l.result, l.err
		case <-ctx.Done():
			return nil, mismatch{"no end"}
		}
	case "repeat":
		return nil, r.repeat(ctx, q, in)
	case "eventually":
		return nil, r.eventually(ctx, step(q["step"].(map[string]any)), in)
	case "sleep":
		time.Sleep(q.duration("seconds"))
		return nil, nil
	}
	return r.carryOut(ctx, q, in)
}

func (r *run) carryOut(ctx context.Context, q step, in *scope) (any, error) {
	of := in.get(q.text("of", ""))
	process, _ := of.(*client.Process)
	output, _ := of.(*reading)
	caller := func() *client.Client { return in.get(q.text("client", "client")).(*client.Client) }
	session := func() *client.Session {
		s := in.get(q.text("in", "s"))
		if c, ok := s.(*client.Client); ok {
			return &c.Session
		}
		return s.(*client.Session)
	}
	switch do := q.text("do", ""); do {
	case "connect":
		return r.connect(ctx, q)
	case "session":
		set, _ := q.environment()
		return r.keep(caller().CreateSession(ctx, &client.SessionOptions{Name: q.text("name", ""), Cwd: q.text("working_dir", ""), Env: set}))
	case "session_with_terminal":
		set, _ := q.environment()
		s, term, err := caller().CreateSessionWithTerminal(ctx, &client.SessionOptions{Name: q.text("name", ""), Cwd: q.text("working_dir", ""), Env: set}, q.terminal())
		if err == nil {
			in.set(q.text("terminal", ""), &reading{of: term})
		}
		return r.keep(s, err)
	case "get_session":
		return caller().GetSession(ctx, q.text("name", ""))
	case "move":
		return of.(*client.Session).Move(ctx, q.text("node", ""))
	case "destroy":
		return nil, of.(*client.Session).Destroy(ctx)
	case "exec":
		return plain(session().Exec(ctx, q.command(), q.options()))
	case "stream":
		cmd, err := session().ExecStream(context.WithoutCancel(ctx), q.command(), q.options())
		return &reading{of: cmd}, err
	case "follow":
		logs, err := process.StreamLogs(ctx, int64(q.number("since")))
		return &reading{of: logs, offset: int64(q.number("since"))}, err
	case "terminal":
		term, err := session().OpenTerminal(ctx, q.terminal())
		return &reading{of: term}, err
	case "read":
		return output.read(ctx, q["until"])
	case "count":
		output.forget = true
		return output.read(ctx, "end")
	case "write":
		var to writer = process
		if output != nil {
			to = output.of.(writer)
		}
		return nil, write(ctx, to, q)
	case "kill":
		return nil, kill(ctx, of, q.text("signal", ""))
	case "process":
		return session().StartProcess(ctx, q.command(), &client.ProcessOptions{OpenStdin: q["stdin"] == "open"})
	case "wait_for_port":
		o := &client.WaitPortOptions{Mode: q.text("mode", ""), Path: q.text("path", ""), Timeout: q.duration("timeout_s")}
		return nil, process.WaitForPort(ctx, int(q.number("port")), o)
	case "wait_for_log":
		pattern, err := regexp.Compile(q.text("pattern", regexp.QuoteMeta(q.text("text", ""))))
		if err != nil {
			return nil, err
		}
		m, err := process.WaitForLog(ctx, pattern, &client.WaitLogOptions{Timeout: q.duration("timeout_s")})
		if err != nil {
			return nil, err
		}
		return map[string]any{"line": m.Line, "groups": m.Groups}, nil
	case "wait_for_exit":
		e, err := process.WaitForExit(ctx, q.duration("timeout_s"))
		if err != nil {
			return nil, err
		}
		return map[string]any{"exit_code": e.ExitCode, "signal": e.Signal, "timed_out": e.TimedOut}, nil
	case "logs":
		logs, err := process.GetLogs(ctx)
		if err != nil {
			return nil, err
		}
		return map[string]any{"stdout": logs.Stdout, "stderr": logs.Stderr, "next_offset": logs.NextOffset}, nil
	case "resize":
		return nil, output.of.(*client.Terminal).Resize(ctx, int(q.number("cols")), int(q.number("rows")))
	case "snapshot":
		shown, err := output.of.(*client.Terminal).Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		return map[string]any{"cols": shown.Cols, "rows": shown.Rows, "text": strings.Join(shown.Lines, "\n")}, nil
	case "call":
		var answer map[string]any
		err := caller().Call(ctx, q.text("method", ""), q["params"], &answer)
		return answer, err
	default:
		return nil, mismatch{"no such operation: " + do}
	}
}

func (r *interpreter) repeat(ctx context.Context, q step, in *scope) error {
	var steps []step
	for _, s := range q["steps"].([]any) {
		steps = append(steps, step(s.(map[string]any)))
	}
	times := int(q.number("times"))
	errs := make([]error, times)
	turn := func(i int) {
		errs[i] = r.steps(ctx, steps, &scope{outer: in, values: map[string]any{"i": i}})
	}
	var all sync.WaitGroup
	for i := range times {
		if q["parallel"] == true {
			all.Go(func() { turn(i) }) // ends with its steps; awaited below
			continue
		}
		if turn(i); errs[i] != nil {
			return errs[i]
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

func (r *interpreter) eventually(ctx context.Context, q step, in *scope) error {
	for {
		err := r.step(ctx, q, in)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

type writer interface {
	Write(context.Context, []byte) error
}

func write(ctx context.Context, to writer, q step) error {
	data := q.text("data", "")
	left := max(1, int(q.number("times")))
	batch := max(1, (1<<20)/len(data)) // not all of 10 MiB in one string
	for ; left > 0; left -= batch {
		if err := to.Write(ctx, []byte(strings.Repeat(data, min(batch, left)))); err != nil {
			return err
		}
	}
	if q["eof"] != true {
		return nil
	}
	return to.(interface{ CloseStdin(context.Context) error }).CloseStdin(ctx)
}

func kill(ctx context.Context, of any, signal string) error {
	if r, ok := of.(*reading); ok {
		of = r.of
	}
	k := of.(interface {
		Kill(context.Context) error
		Signal(context.Context, string) error
	})
	if signal != "" {
		return k.Signal(ctx, signal)
	}
	return k.Kill(ctx)
}

// reading is the output of a command, log or terminal, as far as it was read.
type reading struct {
	of interface {
		Next(context.Context) (client.Event, error)
	}
	forget         bool // only count
	stdout, stderr strings.Builder
	bytes, offset  int64
	gaps           []any
	ended          bool
	exitCode       *int
	signal         string
}

// ID is the id of what is read.
func (r *reading) ID() string { return r.of.(interface{ ID() string }).ID() }

func (r *reading) read(ctx context.Context, until any) (any, error) {
	from := r.bytes
	want, _ := until.(map[string]any)
	enough := func() bool {
		if until == "end" {
			return false
		}
		least, _ := want["bytes"].(float64)
		more, _ := want["more"].(float64)
		text, _ := want["text"].(string)
		return r.bytes >= int64(least) && r.bytes >= from+int64(more) && strings.Contains(r.stdout.String(), text)
	}
	for !enough() {
		if r.ended && until != "end" {
			return nil, mismatch{fmt.Sprintf("the end came before %v: %q", until, r.stdout.String())}
		}
		if r.ended {
			break
		}
		if err := r.take(ctx); err != nil {
			return nil, err
		}
	}
	sum := sha256.Sum256([]byte(r.stdout.String()))
	got := map[string]any{
		// A character that is not whole yet is not text yet.
		"stdout": wholeText(r.stdout.String(), r.ended), "stderr": r.stderr.String(), "stdout_base64": base64.StdEncoding.EncodeToString([]byte(r.stdout.String())),
		"stdout_sha256": hex.EncodeToString(sum[:]), "bytes": r.bytes, "offset": r.offset, "gaps": slices.Concat([]any{}, r.gaps), "ended": r.ended,
	}
	if r.exitCode != nil {
		got["exit_code"], got["signal"] = *r.exitCode, r.signal
	}
	return got, nil
}

// wholeText leaves out a character at the end that is not whole yet.
func wholeText(s string, ended bool) string {
	for n := 1; !ended && n < utf8.UTFMax && n <= len(s); n++ {
		if tail := s[len(s)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRuneInString(tail) {
				return s[:len(s)-n]
			}
			break
		}
	}
	return s
}

func (r *reading) take(ctx context.Context) error {
	e, err := r.of.Next(ctx)
	if errors.Is(err, io.EOF) {
		r.ended = true
		return nil
	}
	if err != nil {
		return err
	}
	switch e.Type {
	case client.EventGap:
		r.gaps = append(r.gaps, map[string]any{"from": e.From, "to": e.Offset})
		r.offset = e.Offset
	case client.EventComplete:
		r.exitCode, r.signal = &e.Result.ExitCode, e.Result.Signal
	case client.EventExit:
		if e.Terminal != nil {
			r.exitCode, r.signal = e.Terminal.ExitCode, e.Terminal.Signal
		} else {
			r.exitCode, r.signal = e.Process.ExitCode, e.Process.Signal
		}
	case client.EventStdout, client.EventStderr, client.EventData:
		r.offset = e.Offset
		if !e.Snapshot {
			r.offset += int64(len(e.Data))
			r.bytes += int64(len(e.Data))
		}
		to := &r.stdout
		if e.Type == client.EventStderr {
			to = &r.stderr
		}
		if !r.forget {
			to.Write(e.Data)
		}
	}
	return nil
}

// compare says how what came differs from what the scenario expects.
func compare(got, want any, at string) error {
	fail := func() error { return mismatch{fmt.Sprintf("%s: got %s, want %v", at, short(got), want)} }
	if list, ok := want.([]any); ok && at == "error.kind" {
		if !slices.Contains(list, got) {
			return fail()
		}
		return nil
	}
	switch want := want.(type) {
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return fail()
		}
		for i, w := range want {
			if err := compare(list[i], w, fmt.Sprint(at, ".", i)); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		return compareObject(got, want, at, fail)
	case float64:
		if n, ok := asNumber(got); !ok || n != want {
			return fail()
		}
		return nil
	}
	if got == nil || fmt.Sprint(got) != fmt.Sprint(want) {
		return fail()
	}
	return nil
}

func compareObject(got any, want map[string]any, at string, fail func() error) error {
	n, isNumber := asNumber(got)
	bound := func(name string) (float64, bool) { b, ok := want[name].(float64); return b, ok }
	if least, ok := bound("$at_least"); ok && (!isNumber || n < least) {
		return fail()
	}
	if most, ok := bound("$at_most"); ok && (!isNumber || n > most) {
		return fail()
	}
	if length, ok := bound("$length"); ok {
		if list, is := got.([]any); !is || len(list) != int(length) {
			return fail()
		}
	}
	if pattern, ok := want["$matches"].(string); ok && !regexp.MustCompile(pattern).MatchString(fmt.Sprint(got)) {
		return fail()
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if strings.HasPrefix(name, "$") {
			continue
		}
		var value any
		switch of := got.(type) {
		case map[string]any:
			value = of[name]
		case interface{ ID() string }:
			value = of.ID()
		}
		if err := compare(value, want[name], at+"."+name); err != nil {
			return fmt.Errorf("%w\n%s", err, short(got))
		}
	}
	return nil
}

func short(v any) string {
	text := fmt.Sprint(v)
	return text[:min(len(text), 1000)]
}

func asNumber(v any) (float64, bool) {
	switch v.(type) {
	case float64, int, int64:
		f, err := strconv.ParseFloat(fmt.Sprint(v), 64)
		return f, err == nil
	}
	return 0, false
}
