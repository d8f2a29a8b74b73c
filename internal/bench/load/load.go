// Package load measures a gateway from outside, through connections like those of any client. `trl bench` uses it.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"trl/client"
	"trl/internal/bench/figure"
	"trl/protocol"
)

// Bench says what to measure, and for how long. Run makes its sessions and ends them.
type Bench struct {
	Options  client.Options
	Shell    string                      // of the sessions; "": the server's default
	Sessions int                         // busy at the same time, for the rate
	MiB      int                         // of one stream
	Time     time.Duration               // for each figure; a stream that has begun is read to its end
	Each     func(f figure.Figure) error // gets each figure when it is known
}

// atLeast is the least number of samples of everything, however long they take: a median of fewer means nothing.
const atLeast = 5

// setupTimeout bounds the work that is not measured: dialling, making and ending sessions, on a busy machine.
const setupTimeout = 2 * time.Minute

// Run measures until it is done or ctx ends. The sessions end in any case: we end them or, if we die, the gateway does, because they are bound to our
// connection.
func (b *Bench) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*b.Time+setupTimeout)
	defer cancel()
	o := b.Options
	o.OnLost = nil
	c, err := client.Connect(ctx, o)
	if err != nil {
		return err
	}
	defer c.Close()
	s := &sessions{c: c, shell: b.Shell}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), setupTimeout) // ctx may already have ended
		defer cancel()
		err = errors.Join(err, s.end(end))
	}()
	for _, measure := range []func(context.Context, *sessions) ([]figure.Figure, error){b.exec, b.rate, b.stream, b.create, b.keystroke} {
		figures, err := measure(ctx, s)
		if err != nil {
			return err
		}
		for _, f := range figures {
			if err := b.Each(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Turns calls all functions in turn, until the time is over, and times each. A disturbance hits all of them.
func Turns(d time.Duration, most int, all ...func() error) ([]figure.Samples, error) {
	took := make([]figure.Samples, len(all))
	for end := time.Now().Add(d); len(took[0]) < atLeast || len(took[0]) < most && time.Now().Before(end); {
		for i, f := range all {
			start := time.Now()
			if err := f(); err != nil {
				return nil, err
			}
			took[i].Add(time.Since(start))
		}
	}
	return took, nil
}

// sessions are the sessions of a run.
type sessions struct {
	c     *client.Client
	shell string
	ids   []string
}

func (s *sessions) make(ctx context.Context) (string, error) {
	var made protocol.Session
	err := s.c.Call(ctx, "session.create", protocol.SessionCreate{Shell: s.shell, OnDisconnect: "destroy", Labels: map[string]string{"made-by": "trl-bench"}}, &made)
	if err == nil {
		s.ids = append(s.ids, made.SessionID)
	}
	return made.SessionID, err
}

func (s *sessions) destroy(ctx context.Context, id string) error {
	return s.c.Call(ctx, "session.destroy", protocol.SessionDestroy{SessionRef: protocol.SessionRef{SessionID: id}, Force: true}, nil)
}

func (s *sessions) end(ctx context.Context) (err error) {
	for _, id := range s.ids {
		e := s.destroy(ctx, id)
		if pe := (*protocol.Error)(nil); errors.As(e, &pe) && (pe.Code == protocol.SessionNotFound || pe.Code == protocol.SessionTerminated) {
			e = nil // a session that is already gone is fine
		}
		err = errors.Join(err, e)
	}
	return err
}

func ping(ctx context.Context, c *client.Client) error { return c.Call(ctx, "system.ping", nil, nil) }

// runNothing is the shortest command there is.
func runNothing(ctx context.Context, c *client.Client, id string) error {
	_, err := c.SessionWithID(id).Exec(ctx, ":", &client.ExecOptions{Check: true})
	return err
}

func (b *Bench) exec(ctx context.Context, s *sessions) ([]figure.Figure, error) {
	id, err := s.make(ctx)
	if err != nil {
		return nil, err
	}
	took, err := Turns(b.Time, 1e5, func() error { return ping(ctx, s.c) }, func() error { return runNothing(ctx, s.c, id) })
	if err != nil {
		return nil, err
	}
	return []figure.Figure{figure.New("exec.run of `:` / system.ping", "ExecRun", figure.Nanoseconds, took[0], took[1])}, nil
}

// rate makes every session run commands over its own connection, as fast as it answers.
func (b *Bench) rate(ctx context.Context, s *sessions) ([]figure.Figure, error) {
	clients := make([]*client.Client, b.Sessions)
	ids := make([]string, b.Sessions)
	for i := range clients {
		c, err := client.Connect(ctx, b.Options)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		clients[i] = c
		if ids[i], err = s.make(ctx); err != nil {
			return nil, err
		}
	}
	var pings, execs figure.Samples
	for range atLeast { // alternately, a fifth of the time each
		n, err := Together(b.Sessions, b.Time/(2*atLeast), func(i int) error { return ping(ctx, clients[i]) })
		if err != nil {
			return nil, err
		}
		pings = append(pings, n)
		if n, err = Together(b.Sessions, b.Time/(2*atLeast), func(i int) error { return runNothing(ctx, clients[i], ids[i]) }); err != nil {
			return nil, err
		}
		execs = append(execs, n)
	}
	name := fmt.Sprintf("exec.run rate, %d sessions / pings", b.Sessions)
	return []figure.Figure{figure.New(name, fmt.Sprintf("ExecRate/sessions=%d", b.Sessions), figure.PerSecond, pings, execs)}, nil
}

// Together makes n goroutines call f again and again for a time, each at least once, and returns the number of calls per second.
func Together(n int, d time.Duration, f func(i int) error) (perSecond float64, err error) {
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		calls int
	)
	start := time.Now()
	for i := range n {
		all.Go(func() { // ends when the time is over, or at an error; awaited below
			done, e := 0, f(i)
			for done = 1; e == nil && time.Since(start) < d; done++ {
				e = f(i)
			}
			mu.Lock()
			defer mu.Unlock()
			calls += done
			err = errors.Join(err, e)
		})
	}
	all.Wait()
	return float64(calls) / time.Since(start).Seconds(), err
}

// Text is a command that prints n bytes of lines, like a build.
func Text(n int) string {
	return fmt.Sprintf("yes 'the quick brown fox jumps over the lazy dog' | head -c %d", n)
}

func (b *Bench) stream(ctx context.Context, s *sessions) ([]figure.Figure, error) {
	id, err := s.make(ctx)
	if err != nil {
		return nil, err
	}
	n := b.MiB << 20
	asJSON := func() error {
		st, err := s.c.SessionWithID(id).ExecStream(ctx, Text(n), nil)
		if err != nil {
			return err
		}
		defer st.Detach()
		var got counter
		if _, err := st.Copy(ctx, &got, io.Discard); err != nil {
			return err
		}
		return enough(int(got), n)
	}
	ways := []func() error{asJSON}
	names := []string{"JSON"}
	if b.Options.Unix == "" { // a Unix socket always carries JSON
		bin, err := dialBinary(ctx, b.Options)
		if err != nil {
			return nil, err
		}
		defer bin.CloseNow()
		ways = append(ways, func() error {
			got, err := follow(ctx, bin, id, Text(n))
			if err != nil {
				return err
			}
			return enough(got, n)
		})
		names = append(names, "binary")
	}
	took, err := Turns(b.Time, 100, ways...)
	if err != nil {
		return nil, err
	}
	var all []figure.Figure
	for i, name := range names {
		all = append(all, figure.New(fmt.Sprintf("exec.stream, %d MiB, %s", b.MiB, name), "ExecStream/"+name, figure.MBPerSecond, nil, Rates(n, took[i])))
	}
	return all, nil
}

// Rates converts times for n bytes to MB/s.
func Rates(n int, took figure.Samples) figure.Samples {
	rates := make(figure.Samples, len(took))
	for i, ns := range took {
		rates[i] = float64(n) / 1e6 / (ns / 1e9)
	}
	return rates
}

// counter is a writer that counts.
type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

func enough(got, n int) error {
	if got < n {
		return fmt.Errorf("%d bytes of %d came", got, n)
	}
	return nil
}

// create measures sessions with a warm shell, as long as the gateway has some, and sessions whose shell must start. From outside both look the same,
// except for two modes.
func (b *Bench) create(ctx context.Context, s *sessions) ([]figure.Figure, error) {
	var pings, created, destroyed figure.Samples
	timed := func(into *figure.Samples, f func() error) error {
		start := time.Now()
		err := f()
		into.Add(time.Since(start))
		return err
	}
	for end := time.Now().Add(b.Time); len(created) < atLeast || time.Now().Before(end); {
		var id string
		err := errors.Join(
			timed(&pings, func() error { return ping(ctx, s.c) }),
			timed(&created, func() (err error) { id, err = s.make(ctx); return err }))
		if err != nil {
			return nil, err
		}
		if err := timed(&destroyed, func() error { return s.destroy(ctx, id) }); err != nil {
			return nil, err
		}
		s.ids = s.ids[:len(s.ids)-1]
	}
	return []figure.Figure{
		figure.New("session.create / system.ping", "SessionCreate", figure.Nanoseconds, pings, created),
		figure.New("session.destroy, force", "SessionDestroy", figure.Nanoseconds, nil, destroyed),
	}, nil
}

// A line of a terminal holds 4095 characters, and cat gets nothing of it before its end.
const lineLength = 4000

func (b *Bench) keystroke(ctx context.Context, s *sessions) ([]figure.Figure, error) {
	id, err := s.make(ctx)
	if err != nil {
		return nil, err
	}
	t, err := s.c.SessionWithID(id).OpenTerminal(ctx, client.TerminalOptions{Cols: 1000, Rows: 24, Command: "echo ready; exec cat >/dev/null"})
	if err != nil {
		return nil, err
	}
	defer t.Detach()
	for seen := 0; seen < len("ready\r\n"); {
		chunk, err := t.Next(ctx)
		if err != nil {
			return nil, fmt.Errorf("terminal: %w", err)
		}
		seen += len(chunk.Data)
	}
	took, err := Turns(b.Time, lineLength, func() error { return ping(ctx, s.c) }, func() error {
		if err := t.Write(ctx, []byte("x")); err != nil {
			return err
		}
		_, err := t.Next(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return []figure.Figure{figure.New("keystroke echo / system.ping", "Keystroke", figure.Nanoseconds, took[0], took[1])}, nil
}
