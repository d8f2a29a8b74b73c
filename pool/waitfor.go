package pool

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"trl/protocol"
	"trl/runtime/journal"
)

const (
	maxWaits           = 64                     // of one process: each may hold a reader or dial twenty times a second
	maxWait            = time.Hour              // of one that names no timeout: a client that is gone must not be waited for without end
	firstProbeInterval = time.Millisecond       // between the first probes; then an eighth of what it has taken so far, so that
	maxProbeInterval   = 50 * time.Millisecond  // what is ready soon is soon known to be, and at most this
	probeTimeout       = 2 * time.Second        // one HTTP answer: longer is not ready
	lookBack           = 8 << 10                // of each stream: a match may lie across that much of earlier output
	searchBatch        = 64 << 10               // of new output that is searched at once
	matchHoldTime      = 100 * time.Millisecond // a match that touches the end of what there is may grow or, with $, vanish
	tailBytes          = 4 << 10                // of output told about a process that ended first
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
		pattern, err := compilePattern(until.Output)
		if err != nil {
			return protocol.WaitResult{}, err
		}
		match, met = p.awaitOutput(ctx, pattern)
	case until.Port != 0:
		host := until.Host
		valueOr(&host, "127.0.0.1")
		met = p.probe(ctx, probePort(net.JoinHostPort(host, strconv.Itoa(until.Port))))
	case until.HTTP != "":
		met = p.probe(ctx, probeHTTP(until.HTTP))
	default:
		return protocol.WaitResult{}, protocol.InvalidParam("until", "until is not exactly one of exit, port, output, http")
	}
	if err := ctx.Err(); err != nil && err != context.DeadlineExceeded && !met {
		return protocol.WaitResult{}, context.Cause(ctx) // who asked has gone
	}
	r := protocol.WaitResult{Met: met, Match: match}
	select {
	case <-p.done:
		code, signal := p.exit()
		r.ExitCode, r.Signal = &code, signal
		if !met {
			r.Tail = p.tail()
		}
	default:
	}
	return r, nil
}

// maxPattern bounds a compiled pattern: it is held for as long as the wait lasts, and is run over all output.
const maxPattern = 100 << 10

// compilePattern compiles until.output. ^ and $ are a line's: output is lines. The size is worked out before anything of that size is made.
func compilePattern(pattern string) (*regexp.Regexp, error) {
	pattern = "(?m)" + pattern
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err == nil {
		if code, runes := patternSize(parsed); code+runes > maxPattern {
			return nil, protocol.InvalidParam("until.output", "until.output compiles to more than %d bytes", maxPattern).With("limit", maxPattern)
		}
		var compiled *regexp.Regexp
		if compiled, err = regexp.Compile(pattern); err == nil {
			return compiled, nil
		}
	}
	return nil, protocol.InvalidParam("until.output", "until.output is not a regular expression (RE2)")
}

// patternSize estimates the bytes of a compiled expression: of its instructions, which repetition multiplies, and of its character classes,
// which all copies share. It counts no further than maxPattern.
func patternSize(re *syntax.Regexp) (code, runes int64) {
	const instruction = int64(unsafe.Sizeof(syntax.Inst{}))
	runes = 4 * int64(len(re.Rune))
	for _, sub := range re.Sub {
		c, r := patternSize(sub)
		code, runes = code+c, runes+r
	}
	switch re.Op {
	case syntax.OpLiteral:
		code += instruction * int64(len(re.Rune))
	case syntax.OpRepeat:
		code = (code + instruction) * int64(max(re.Min, re.Max, 1))
	default:
		code += 2 * instruction
	}
	return min(code, maxPattern+1), min(runes, maxPattern+1)
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

// probe tries until try succeeds, the process has ended or ctx is done.
func (p *Process) probe(ctx context.Context, try func(context.Context) bool) bool {
	ctx, cancel := p.whileAlive(ctx)
	defer cancel()
	began := time.Now()
	pace := time.NewTimer(0)
	defer pace.Stop()
	for !try(ctx) {
		pace.Reset(min(max(firstProbeInterval, time.Since(began)/8), maxProbeInterval))
		select {
		case <-pace.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// probePort tries to connect.
func probePort(address string) func(context.Context) bool {
	d := net.Dialer{Timeout: probeTimeout}
	return func(ctx context.Context) bool {
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return false
		}
		c.Close()
		return true
	}
}

// probeHTTP tries for an answer below 400. A redirect is one; following it would ask somebody else.
func probeHTTP(url string) func(context.Context) bool {
	client := http.Client{
		Timeout:       probeTimeout,
		Transport:     &http.Transport{DisableKeepAlives: true}, // Proxy stays nil: what is asked for is here
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) bool {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		a, err := client.Do(q)
		if err != nil {
			return false
		}
		a.Body.Close()
		return a.StatusCode < http.StatusBadRequest
	}
}

// awaitOutput searches what the ring holds and what comes.
func (p *Process) awaitOutput(ctx context.Context, pattern *regexp.Regexp) (match string, met bool) {
	r, err := p.journal.Attach(-1, journal.Options{})
	if err != nil {
		return "", false
	}
	defer r.Close()
	alive, cancel := p.whileAlive(ctx) // jobs of a process that ended may hold its journal open
	defer cancel()
	s := searcher{pattern: pattern}
	hesitating := false // on a match that what comes next may change
	for {
		c, err := nextChunk(alive, r, hesitating)
		if err != nil { // nothing came for a moment, or nothing will: what there is decides
			if s.searchAvailable(r, p.journal.Size()) {
				return s.match, true
			}
			if err == io.EOF { // it closed its output, and may run on
				<-alive.Done()
			}
			if alive.Err() != nil {
				return "", false
			}
			hesitating = false
			continue
		}
		s.add(c)
		for n := len(c.Data); n < searchBatch; n += len(c.Data) { // a process that prints much shall not be searched line by line
			var more bool
			if c, more, err = r.TryNext(); !more || err != nil {
				break
			}
			s.add(c)
		}
		found, atEnd := s.search()
		if found && !atEnd {
			return s.match, true
		}
		hesitating = found
	}
}

// nextChunk waits for a chunk, or only for a moment.
func nextChunk(ctx context.Context, r *journal.Reader, brief bool) (journal.Chunk, error) {
	if !brief {
		return r.Next(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, matchHoldTime)
	defer cancel()
	return r.Next(ctx)
}

// searcher looks for a pattern in output that comes in pieces.
type searcher struct {
	pattern *regexp.Regexp
	recent  [2][]byte // of stdout and stderr, apart: a line of one may be cut by one of the other
	match   string
}

func (s *searcher) add(c journal.Chunk) {
	side := &s.recent[0]
	if c.Stream == journal.Stderr {
		side = &s.recent[1]
	}
	*side = append(*side, c.Data...)
}

// search reports whether there is a match, and whether it touches the end of what there is. Without one it forgets what
// lies further back than lookBack, up to the start of a line.
func (s *searcher) search() (found, atEnd bool) {
	for i, text := range s.recent {
		if loc := s.pattern.FindIndex(text); loc != nil {
			s.match = strings.ToValidUTF8(string(text[loc[0]:loc[1]]), "\uFFFD")
			return true, loc[1] == len(text)
		}
		if drop := len(text) - lookBack; drop > 0 {
			if line := bytes.IndexByte(text[drop:], '\n'); line >= 0 {
				drop += line + 1
			}
			s.recent[i] = append(text[:0], text[drop:]...)
		}
	}
	return false, false
}

// searchAvailable searches what is there now, without waiting.
func (s *searcher) searchAvailable(r *journal.Reader, upTo int64) bool {
	found, _ := s.search()
	for !found && r.Offset() < upTo {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			break
		}
		s.add(c)
		found, _ = s.search()
	}
	return found
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
