package mcp

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"time"

	"trl/client"
	"trl/pool/waitfor"
	"trl/protocol"
)

// output is what a client reads of a command, a process or a terminal.
type output interface {
	Next(context.Context) (client.Event, error)
}

// follow says how long to read an output.
type follow struct {
	until time.Time     // when the answer is due
	quiet time.Duration // 0, or: answer when there was output and then none for this time
	line  *regexp.Regexp
	port  int
	id    string // of the process that shall listen
}

const (
	// progressEvery is how often a client gets a message of progress, at most.
	progressEvery = time.Second
	// replayPause is how long a pause in older output may be before we take it as complete. It matters only when the answer is due at once.
	replayPause = 150 * time.Millisecond
	// maxReplay is how long older output may take beyond the time when the answer is due.
	maxReplay = 5 * time.Second
)

// stopped is why follow stopped reading.
type stopped int

const (
	due   stopped = iota // the time is over
	ended                // the work has ended
	met                  // the condition is met
	full                 // the excerpt takes no more
)

// read reads an output into an excerpt until the first reason to stop.
func (k *call) read(ctx context.Context, o output, e *excerpt, f follow) (stopped, error) {
	matched := false
	if f.line != nil {
		e.onLine = func(line string) { matched = matched || f.line.MatchString(line) }
	}
	ctx, stop := k.watchPort(ctx, f)
	defer stop()
	var (
		lastOutput   time.Time // when output came that is not older than our attach
		replayed     = time.Now()
		nextProgress = k.began.Add(progressEvery)
	)
	for {
		wake := f.until
		if soonest := replayed.Add(replayPause); lastOutput.IsZero() && wake.Before(soonest) && time.Until(f.until) > -maxReplay {
			wake = soonest
		}
		if f.quiet > 0 && !lastOutput.IsZero() {
			wake = earlier(wake, lastOutput.Add(f.quiet))
		}
		isDue := wake
		if k.progress != nil {
			wake = earlier(wake, nextProgress)
		}
		event, err := next(ctx, o, wake)
		now := time.Now()
		switch {
		case errors.Is(err, io.EOF), errors.As(err, new(*client.OutcomeUnknownError)):
			e.end(false)
			return ended, nil
		case errors.Is(err, errPortOpen):
			e.end(true)
			return met, nil
		case errors.Is(err, errWake):
			if !now.Before(isDue) {
				e.end(true)
				return due, nil
			}
		case isLost(err): // the gateway is replaced, and the work goes on: the answer has its id
			e.end(true)
			return due, nil
		case err != nil:
			e.end(true)
			return due, err
		case event.Type == client.EventStdout, event.Type == client.EventStderr, event.Type == client.EventData, event.Type == client.EventGap:
			if event.Snapshot || event.Replay {
				replayed = now
			} else {
				lastOutput = now
			}
			if !event.Snapshot {
				e.add(event)
			}
		}
		if k.progress != nil && !now.Before(nextProgress) {
			k.progress(e.next, e.lastLine())
			nextProgress = now.Add(progressEvery)
		}
		switch {
		case matched:
			e.end(true)
			return met, nil
		case e.full && e.tail == 0:
			return full, nil
		case !lastOutput.IsZero() && now.After(f.until): // it floods: errWake does not come
			e.end(true)
			return due, nil
		}
	}
}

// isLost reports whether there is no gateway at the moment.
func isLost(err error) bool {
	e, ok := errors.AsType[*protocol.Error](err)
	return errors.Is(err, client.ErrConnectionLost) || ok && e.Code == protocol.ShuttingDown
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

var (
	errWake     = errors.New("the time is over")
	errPortOpen = errors.New("the port is open")
)

// next is o.Next with a time, after which it returns errWake.
func next(ctx context.Context, o output, wake time.Time) (client.Event, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(time.Until(wake), func() { cancel(errWake) })
	defer timer.Stop()
	return o.Next(ctx)
}

// watchPort waits for the port of a process beside the reading. The returned context ends with errPortOpen, or with why the waiting failed. stop ends it.
func (k *call) watchPort(ctx context.Context, f follow) (_ context.Context, stop func()) {
	if f.port == 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	gone := make(chan struct{})
	go func() { // asks the gateway; stop waits for it
		defer close(gone)
		left := protocol.Seconds(max(time.Until(f.until), 0).Seconds())
		q := protocol.ProcessWait{ProcessID: f.id, Until: protocol.Until{Port: f.port}, Timeout: &left}
		var r protocol.WaitResult
		switch err := k.c.Call(ctx, "process.wait", q, &r); {
		case err != nil:
			cancel(err)
		case r.Met:
			cancel(errPortOpen)
		}
	}()
	return ctx, func() { cancel(nil); <-gone }
}

// condition reads the argument until.
func (f *follow) condition(until, id string) (err error) {
	if until == "" {
		return nil
	}
	if port, ok := strings.CutPrefix(until, "port "); ok {
		if kindOf(id) != processKind {
			return protocol.InvalidParam("until", "only a background process can be waited for by its port")
		}
		f.id = id
		f.port, err = parsePort(port)
		return err
	}
	if len(until) > protocol.MaxPattern {
		return protocol.InvalidParam("until", "until is longer than %d bytes", protocol.MaxPattern)
	}
	if f.line, err = waitfor.Compile(until); err != nil {
		return protocol.InvalidParam("until", "until is no regular expression (RE2), or one that is too large")
	}
	return nil
}
