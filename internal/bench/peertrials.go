package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"trl/internal/bench/figure"
	"trl/internal/bench/load"
	"trl/internal/bench/peer"
)

// A trial measures one peer once, and returns a value for each of its rows.
type trial struct {
	rows []PeerRow
	run  func(ctx context.Context, at *target) (figure.Samples, error)
}

// runner runs commands one after the other.
type runner interface {
	Run(command string) (peer.Result, error)
	Close() error
}

// The ways in which a peer runs a command. A shell with marks is fast but not safe, see peer.Marked.
func inSession(ctx context.Context, at *target) (runner, error) { return at.p.Session(ctx) }

func inShell(ctx context.Context, at *target) (runner, error) {
	s, err := at.p.Shell(ctx)
	if err != nil {
		return nil, err
	}
	return peer.Marked(s), nil
}

// onceRunner has no state. The client puts before each command what makes up for that.
type onceRunner struct {
	ctx    context.Context
	p      peer.Peer
	before string
}

func alone(ctx context.Context, at *target) (runner, error) {
	r := &onceRunner{ctx: ctx, p: at.p}
	_, err := r.Run(":") // whether the peer can
	return r, err
}

func (r *onceRunner) Run(command string) (peer.Result, error) {
	return r.p.Once(r.ctx, r.before+command)
}
func (r *onceRunner) Close() error { return nil }

type way func(ctx context.Context, at *target) (runner, error)

func rowOf(name string, unit figure.Unit) PeerRow { return PeerRow{Name: name, Unit: unit} }

// trials are all figures but those of idle sessions.
func trials(e effort) []trial {
	const ns = figure.Nanoseconds
	mib := fmt.Sprintf("%d MiB", e.bytes>>20)
	return []trial{
		{[]PeerRow{rowOf("terminal: connect to prompt", ns)}, e.prompt},
		{[]PeerRow{rowOf("echo of a key, by a program (`cat` in raw mode)", ns), rowOf("– processor time a key", ns)}, e.rawKeys},
		{[]PeerRow{rowOf("echo of a key, by the kernel", ns)}, e.cookedKeys},
		{[]PeerRow{rowOf(mib+" through a terminal", figure.MBPerSecond)}, e.flood},
		{[]PeerRow{rowOf("session: `:`, p50", ns), rowOf("– p99", ns), rowOf("– processor time a command", ns)}, e.command(inSession)},
		{[]PeerRow{rowOf("– 16 sessions at the same time", figure.PerSecond)}, e.rate(inSession)},
		{[]PeerRow{rowOf("raw shell, the client's marks: `:`, p50", ns), rowOf("– p99", ns), rowOf("– processor time a command", ns)}, e.command(inShell)},
		{[]PeerRow{rowOf("– 16 shells at the same time", figure.PerSecond)}, e.rate(inShell)},
		{[]PeerRow{rowOf("a bash for one command, without state: `:`, p50", ns), rowOf("– p99", ns), rowOf("– processor time a command", ns)}, e.command(alone)},
		{[]PeerRow{rowOf("new session", ns), rowOf("– and its first `:`", ns)}, e.create(inSession)},
		{[]PeerRow{rowOf("new raw shell", ns), rowOf("– and its first `:`", ns)}, e.create(inShell)},
		{[]PeerRow{rowOf(mib+" of a command's output, live, binary", figure.MBPerSecond)}, e.follow(peer.Binary)},
		{[]PeerRow{rowOf("– JSON", figure.MBPerSecond)}, e.follow(peer.JSON)},
		{[]PeerRow{rowOf(agentName(e)+", in a session", ns), rowOf("– processor time", ns)}, e.agents(1, inSession)},
		{[]PeerRow{rowOf("– in a raw shell with marks", ns), rowOf("– processor time", ns)}, e.agents(1, inShell)},
		{[]PeerRow{rowOf("– a bash for each command", ns), rowOf("– processor time", ns)}, e.agents(1, alone)},
		{[]PeerRow{rowOf(fmt.Sprintf("%d agents at the same time, in sessions", e.crew), ns), rowOf("– processor time", ns)}, e.agents(e.crew, inSession)},
		{[]PeerRow{rowOf("– in raw shells with marks", ns), rowOf("– processor time", ns)}, e.agents(e.crew, inShell)},
	}
}

// median calls f n times and returns the median of its times.
func median(n int, f func() (time.Duration, error)) (figure.Samples, error) {
	var s figure.Samples
	for range n {
		d, err := f()
		if err != nil {
			return nil, err
		}
		s.Add(d)
	}
	return figure.Samples{s.Median()}, nil
}

func (e effort) prompt(ctx context.Context, at *target) (figure.Samples, error) {
	return median(e.connects, func() (time.Duration, error) {
		began := time.Now()
		s, err := promptOf(ctx, at)
		took := time.Since(began)
		if err != nil {
			return 0, err
		}
		return took, s.Close()
	})
}

// promptOf opens a terminal and reads up to its shell's first prompt.
func promptOf(ctx context.Context, at *target) (peer.Stream, error) {
	s, err := at.p.Terminal(ctx)
	if err != nil {
		return nil, err
	}
	var seen []byte
	for {
		b, err := s.Read()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("no prompt: %w", err), s.Close())
		}
		seen = append(seen, b...)
		if bytes.Contains(seen, []byte("\x1b[?2004h")) || bytes.HasSuffix(seen, []byte("$ ")) || bytes.HasSuffix(seen, []byte("# ")) {
			return s, nil
		}
	}
}

// ready is printed by half of a command line whose echo does not look like it.
const ready, printReady = "is-ready", "printf is-%s ready"

// typed opens a terminal, types a line and reads up to ready. after is the number of bytes of output that came with it.
func typed(ctx context.Context, at *target, line string) (s peer.Stream, after int, err error) {
	if s, err = promptOf(ctx, at); err != nil {
		return nil, 0, err
	}
	err = s.Write([]byte(line + "\r"))
	for seen := []byte(nil); err == nil; {
		var b []byte
		if b, err = s.Read(); err != nil {
			break
		}
		seen = append(seen, b...)
		if i := bytes.Index(seen, []byte(ready)); i >= 0 {
			return s, len(seen) - i - len(ready), nil
		}
	}
	return nil, 0, errors.Join(fmt.Errorf("%.30q typed: %w", line, err), s.Close())
}

// keysAfter types a line and then measures single keys: from the writing of each to its echo.
func (e effort) keysAfter(ctx context.Context, at *target, line string) (echo, cpu float64, err error) {
	s, _, err := typed(ctx, at, line)
	if err != nil {
		return 0, 0, err
	}
	cpu, err = at.cpuOf(e.keys, func() error {
		m, err := median(e.keys, func() (time.Duration, error) {
			began := time.Now()
			if err := s.Write([]byte("x")); err != nil {
				return 0, err
			}
			_, err := s.Read()
			return time.Since(began), err
		})
		if err == nil {
			echo = m[0]
		}
		return err
	})
	return echo, cpu, errors.Join(err, s.Close())
}

func (e effort) rawKeys(ctx context.Context, at *target) (figure.Samples, error) {
	echo, cpu, err := e.keysAfter(ctx, at, "stty raw -echo; "+printReady+"; exec cat")
	return figure.Samples{echo, cpu}, err
}

func (e effort) cookedKeys(ctx context.Context, at *target) (figure.Samples, error) {
	echo, _, err := e.keysAfter(ctx, at, printReady+"; exec cat >/dev/null")
	return figure.Samples{echo}, err
}

func (e effort) flood(ctx context.Context, at *target) (figure.Samples, error) {
	s, got, err := typed(ctx, at, "stty raw -echo; "+printReady+"; read -r line; "+load.Text(e.bytes))
	if err != nil {
		return nil, err
	}
	began := time.Now()
	err = s.Write([]byte("\n")) // raw mode: the line feed itself
	for err == nil && got < e.bytes {
		var b []byte
		b, err = s.Read()
		got += len(b)
	}
	took := time.Since(began)
	return perSecond(e.bytes, took), errors.Join(err, s.Close())
}

// perSecond is the rate for n bytes, in MB/s.
func perSecond(n int, took time.Duration) figure.Samples {
	return figure.Samples{float64(n) / 1e6 / took.Seconds()}
}

func nothing(r runner) error {
	got, err := r.Run(":")
	if err == nil && (got.Code != 0 || strings.TrimSpace(got.Output) != "") {
		err = fmt.Errorf("`:` ended with %+v", got)
	}
	return err
}

func (e effort) command(in way) func(ctx context.Context, at *target) (figure.Samples, error) {
	return func(ctx context.Context, at *target) (figure.Samples, error) {
		r, err := in(ctx, at)
		if err != nil {
			return nil, err
		}
		var took figure.Samples
		if err := nothing(r); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		cpu, err := at.cpuOf(e.commands, func() error {
			for range e.commands {
				began := time.Now()
				if err := nothing(r); err != nil {
					return err
				}
				took.Add(time.Since(began))
			}
			return nil
		})
		return figure.Samples{took.Median(), took.Quantile(0.99), cpu}, errors.Join(err, r.Close())
	}
}

// atTheSameTime is the number of busy sessions.
const atTheSameTime = 16

func (e effort) rate(in way) func(ctx context.Context, at *target) (figure.Samples, error) {
	return func(ctx context.Context, at *target) (rate figure.Samples, err error) {
		all := make([]runner, 0, atTheSameTime)
		defer func() {
			for _, r := range all {
				err = errors.Join(err, r.Close())
			}
		}()
		for range atTheSameTime {
			r, err := in(ctx, at)
			if err == nil {
				all = append(all, r)
				err = nothing(r)
			}
			if err != nil {
				return nil, err
			}
		}
		perSecond, err := load.Together(len(all), e.busy, func(i int) error { return nothing(all[i]) })
		return figure.Samples{perSecond}, err
	}
}

func (e effort) create(in way) func(ctx context.Context, at *target) (figure.Samples, error) {
	return func(ctx context.Context, at *target) (figure.Samples, error) {
		var created, answered figure.Samples
		for range e.creates {
			began := time.Now()
			r, err := in(ctx, at)
			if err != nil {
				return nil, err
			}
			created.Add(time.Since(began))
			err = nothing(r)
			answered.Add(time.Since(began))
			if err := errors.Join(err, r.Close()); err != nil {
				return nil, err
			}
		}
		return figure.Samples{created.Median(), answered.Median()}, nil
	}
}

// slowest is the rate, in MB/s, below which a peer's stream is measured with only a sixteenth of the bytes.
const slowest = 20

func (e effort) follow(as peer.Encoding) func(ctx context.Context, at *target) (figure.Samples, error) {
	return func(ctx context.Context, at *target) (figure.Samples, error) {
		follow := func(n int) (figure.Samples, error) {
			began := time.Now()
			got, err := at.p.Follow(ctx, load.Text(n), as)
			took := time.Since(began)
			if err == nil && got < n-1 { // a last line feed without which some peers do is no loss
				at.remark("%s lost the end of a command's live output: %d of %d bytes came.", at.name, got, n)
			}
			return perSecond(got, took), err
		}
		rate, err := follow(e.bytes / 16)
		if err == nil && rate[0] > slowest {
			rate, err = follow(e.bytes)
		}
		return rate, err
	}
}

// remark makes a note below the table, of the first of equal remarks in a trial.
func (at *target) remark(format string, args ...any) {
	at.remarks = append(at.remarks, fmt.Sprintf(format, args...))
}

// cpuOf is the processor time, for each of n, that the peer and all below it use while f runs; not a number if its processes are unknown.
func (at *target) cpuOf(n int, f func() error) (float64, error) {
	if len(at.roots) == 0 {
		return math.NaN(), f()
	}
	before := processTable().cpu(at.roots)
	err := f()
	return float64(processTable().cpu(at.roots)-before) / float64(n), err
}

// An agentStep is one command of an agent. Its output must contain expects.
type agentStep struct {
	command, expects string
	code             int
}

// agentSteps are one round of an agent's work in its directory.
func agentSteps(dir string) []agentStep {
	return []agentStep{
		{"cd " + dir + " && export CFLAGS=-O1 && pwd", dir, 0},
		{"ls -la", "main.c", 0},
		{`grep -rn "greet(" --include='*.c' .`, "main.c", 0},
		{"cat > greet.c <<'EOF'\n#include <stdio.h>\n\n/* says \"hello\", $HOME and `all` */\nvoid greet(const char *who) {\n\tprintf(\"hello, %s\\n\", who);\n}\nEOF\nwc -l greet.c", "6 greet.c", 0},
		{"git status --short --branch", "## ", 0},
		{"git diff --stat", "greet.c", 0},
		{"pwd", dir, 0},
		{"echo \"flags: $CFLAGS\"", "flags: -O1", 0},
		{"head -n 3 main.c", "int main", 0},
		{"wc -c main.c", "main.c", 0},
		{"find . -name '*.c' | sort", "./greet.c", 0},
		{"for i in 1 2 3; do echo \"line $i\"; done", "line 3", 0},
		{"sed -i 's/hello, %s/good day, %s/' greet.c && grep -c 'good day' greet.c", "1", 0},
		{"cc $CFLAGS -o app main.c greet.c && echo built", "built", 0},
		{"./app you", "good day, you", 0},
		{"grep -n absent main.c", "", 1},
		{"(exit 3)", "", 3},
		{"git log --oneline", "begin", 0},
		{"rm -f app; ls", "main.c", 0},
		{"test -z \"$(git status --porcelain main.c)\" && echo clean", "clean", 0},
	}
}

func agentName(e effort) string {
	return fmt.Sprintf("an agent's %d commands", e.agentRounds*len(agentSteps("")))
}

// coder is an agent, which works in a directory that it makes at the peer and removes.
type coder struct {
	runner
	dir string
}

// newCoder makes the agent's directory.
func newCoder(r runner) (*coder, error) {
	dir := "/tmp/trl-bench-" + rand.Text()
	prepare := "mkdir " + dir + " && cd " + dir + " && git init -q && git config user.name bench && git config user.email bench@localhost && " +
		"printf 'void greet(const char *who);\\n\\nint main(int argc, char **argv) {\\n\\tgreet(argc > 1 ? argv[1] : \"world\");\\n\\treturn 0;\\n}\\n' > main.c && " +
		"printf 'void greet(const char *who) {}\\n' > greet.c && git add -A && git commit -qm begin && echo prepared"
	a := &coder{r, dir}
	if err := a.do(agentStep{prepare, "prepared", 0}); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	if o, ok := r.(*onceRunner); ok {
		o.before = "cd " + dir + "; export CFLAGS=-O1\n"
	}
	return a, nil
}

func (a *coder) do(s agentStep) error {
	got, err := a.Run(s.command)
	if err == nil && (got.Code != s.code || !strings.Contains(got.Output, s.expects)) {
		err = fmt.Errorf("%.60q: exit code %d, output %.200q", s.command, got.Code, got.Output)
	}
	return err
}

func (a *coder) work(rounds int) error {
	for range rounds {
		for _, s := range agentSteps(a.dir) {
			if err := a.do(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close removes the directory and closes the runner.
func (a *coder) Close() error {
	_, err := a.Run("cd / && rm -rf " + a.dir)
	return errors.Join(err, a.runner.Close())
}

// agents have n agents work at the same time, until the last one is done.
func (e effort) agents(n int, in way) func(ctx context.Context, at *target) (figure.Samples, error) {
	return func(ctx context.Context, at *target) (values figure.Samples, err error) {
		var all []*coder
		defer func() {
			for _, a := range all {
				err = errors.Join(err, a.Close())
			}
		}()
		for range n {
			r, err := in(ctx, at)
			if err != nil {
				return nil, err
			}
			a, err := newCoder(r)
			if err != nil {
				return nil, err
			}
			all = append(all, a)
		}
		var took time.Duration
		cpu, err := at.cpuOf(1, func() error {
			began := time.Now()
			_, err := load.Together(n, 0, func(i int) error { return all[i].work(e.agentRounds) })
			took = time.Since(began)
			return err
		})
		return figure.Samples{float64(took), cpu}, err
	}
}

// An idleKind is what peers keep for a client that does nothing.
type idleKind struct {
	name string
	open func(ctx context.Context, at *target) (io.Closer, error)
}

var idleKinds = []idleKind{
	{"idle session", func(ctx context.Context, at *target) (io.Closer, error) { return at.p.Session(ctx) }},
	{"idle raw shell", func(ctx context.Context, at *target) (io.Closer, error) { return at.p.Shell(ctx) }},
	{"idle terminal", func(ctx context.Context, at *target) (io.Closer, error) { return promptOf(ctx, at) }},
}

func (k idleKind) rows() []PeerRow {
	return []PeerRow{rowOf(k.name+": PSS", kibibytes), rowOf("– descriptors, of the server", number1), rowOf("– descriptors, in all", number1)}
}

// peakRow is about the whole run.
var peakRow = rowOf("server's memory at most (RSS)", mebibytes)

// peaks are the most that each server's own processes had in memory so far, without what they run for their clients.
func peaks(all []*target) map[string][]figure.Samples {
	values := map[string][]figure.Samples{}
	for _, at := range all {
		if sum := peakOf(at.roots); sum > 0 {
			values[at.name] = []figure.Samples{{sum / (1 << 20)}}
		}
	}
	return values
}

// held is what one peer holds while it is measured.
type held struct {
	open   []io.Closer
	server []int // its processes before
	before usage
	files  int // of these processes, before
}

// idlePeers measures what many idle sessions of a kind take. All peers hold theirs at the same time.
func idlePeers(all []*target, kind idleKind, e effort) (values map[string][]figure.Samples, failed map[string]string) {
	values, failed = map[string][]figure.Samples{}, map[string]string{}
	peer.CloseIdle()
	for round := range e.repetitions {
		ctx, cancel := context.WithTimeout(ctx, longestTrial)
		now := map[string]*held{}
		for i := range all {
			at := all[(i+round)%len(all)]
			if failed[at.name] != "" || len(at.roots) == 0 || at.hung > 1 {
				continue
			}
			h, err := at.hold(ctx, kind, e.idle)
			switch {
			case err == nil:
				now[at.name] = h
			case !errors.Is(err, peer.ErrCannot):
				failed[at.name] = err.Error()
			}
		}
		if len(now) > 0 {
			time.Sleep(e.rest) // what is idle may free something
		}
		for _, at := range all {
			if h := now[at.name]; h != nil {
				after, n := processTable().usage(at.roots), float64(e.idle)
				values[at.name] = append(values[at.name], figure.Samples{
					(after.pss - h.before.pss) / 1024 / n, float64(filesOf(h.server)-h.files) / n, float64(after.descriptors-h.before.descriptors) / n,
				})
			}
		}
		for name, h := range now {
			if err := h.close(); err != nil {
				failed[name] = err.Error()
			}
		}
		cancel()
	}
	return values, failed
}

// hold opens n of a kind, after one that is only to open what the peer opens once.
func (at *target) hold(ctx context.Context, kind idleKind, n int) (*held, error) {
	first, err := kind.open(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := first.Close(); err != nil {
		return nil, err
	}
	h := at.settled()
	for range n {
		c, err := kind.open(ctx, at)
		if err != nil {
			return nil, errors.Join(err, h.close())
		}
		if c, ok := c.(interface{ Idle() }); ok {
			c.Idle() // some peers drop a client that answers no pings; the others here have patience enough
		}
		h.open = append(h.open, c)
	}
	return h, nil
}

// settled looks at a peer until the number of its descriptors stays the same for a moment: a peer may still be closing what its client has closed.
func (at *target) settled() *held {
	const most, moment = 40, 50 * time.Millisecond
	for i, last := 0, -1; ; i++ {
		t := processTable()
		h := &held{server: t.below(at.roots...), before: t.usage(at.roots)}
		h.files = filesOf(h.server)
		if h.before.descriptors == last || i == most {
			return h
		}
		last = h.before.descriptors
		time.Sleep(moment)
	}
}

func (h *held) close() (err error) {
	for _, c := range h.open {
		err = errors.Join(err, c.Close())
	}
	return err
}

func filesOf(pids []int) (n int) {
	for _, pid := range pids {
		n += status(pid).descriptors
	}
	return n
}
