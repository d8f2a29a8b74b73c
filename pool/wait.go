package pool

import (
	"context"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"trl/pool/waitfor"
	"trl/protocol"
	"trl/runtime/journal"
)

const (
	maxWaits  = 64        // of one process: each may hold a reader or dial twenty times a second
	maxWait   = time.Hour // of one that names no timeout: a client that is gone must not be waited for without end
	tailBytes = 4 << 10   // of output told about a process that ended first
)

// Wait returns when the condition is met or cannot be any more: the process has ended, or ctx's deadline (timeout_s) has
// passed, which is no error. Without a deadline it waits for an hour.
func (p *Process) Wait(ctx context.Context, until protocol.Until) (protocol.WaitResult, error) {
	if p.waitCount.Add(1) > maxWaits {
		p.waitCount.Add(-1)
		return protocol.WaitResult{}, protocol.Errorf(protocol.LimitExceeded, "process has %d waits", maxWaits).With("limit", maxWaits)
	}
	defer p.waitCount.Add(-1)
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, maxWait)
		defer cancel()
	}
	met, match := false, ""
	switch {
	case until.Exit:
		select {
		case <-p.done:
			met = true
		case <-ctx.Done():
		}
	case until.Output != "":
		pattern, err := waitfor.Compile(until.Output)
		if err != nil {
			return protocol.WaitResult{}, err
		}
		alive, cancel := p.whileAlive(ctx) // jobs of a process that ended may hold its journal open
		defer cancel()
		match, met = waitfor.Output(alive, p.journal, pattern)
	case until.Port != 0:
		host := until.Host
		valueOr(&host, "127.0.0.1")
		alive, cancel := p.whileAlive(ctx)
		defer cancel()
		met = waitfor.Port(alive, net.JoinHostPort(host, strconv.Itoa(until.Port)))
	case until.HTTP != "":
		alive, cancel := p.whileAlive(ctx)
		defer cancel()
		met = waitfor.HTTP(alive, until.HTTP)
	default:
		return protocol.WaitResult{}, protocol.InvalidParam("until", "until is not exactly one of exit, port, output, http")
	}
	if err := ctx.Err(); err != nil && err != context.DeadlineExceeded && !met {
		return protocol.WaitResult{}, context.Cause(ctx) // who asked has gone
	}
	r := protocol.WaitResult{Met: met, Match: match}
	select {
	case <-p.done:
		code, signal := p.exitCode()
		r.ExitCode, r.Signal = &code, signal
		if !met {
			r.Tail = p.tail()
		}
	default:
	}
	return r, nil
}

// whileAlive is ctx, done also when the process ends. The caller cancels.
func (p *Process) whileAlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the process or the caller's wait
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// tail is the last lines that the process wrote, both streams as they came.
func (p *Process) tail() string {
	r, err := p.journal.Attach(max(p.journal.Start(), p.endOffset-tailBytes), journal.Options{})
	if err != nil {
		return ""
	}
	defer r.Close()
	var b []byte
	for r.Offset() < p.endOffset {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			break
		}
		b = append(b, c.Data...)
	}
	for len(b) > 0 && !utf8.RuneStart(b[0]) { // the cut may have gone through a character
		b = b[1:]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
