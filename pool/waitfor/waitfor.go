// Package waitfor waits for a process to be ready: until its port accepts, its HTTP server answers, or its output matches a pattern.
package waitfor

import (
	"bytes"
	"cmp"
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
	firstProbeInterval = time.Millisecond       // between the first probes; then an eighth of what it has taken so far, so that
	maxProbeInterval   = 50 * time.Millisecond  // what is ready soon is soon known to be, and at most this
	probeTimeout       = 2 * time.Second        // one HTTP answer: longer is not ready
	lookBack           = 8 << 10                // of each stream: a match may lie across that much of earlier output
	searchBatch        = 64 << 10               // of new output that is searched at once
	matchHoldTime      = 100 * time.Millisecond // a match that touches the end of what there is may grow or, with $, vanish
)

// maxPattern bounds a compiled pattern: it is held for as long as the wait lasts, and is run over all output.
const maxPattern = 100 << 10

// Compile compiles until.output. ^ and $ match at the lines of the output. The size of the result is estimated before it is made.
func Compile(pattern string) (*regexp.Regexp, error) {
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

// probe tries until try succeeds, which it reports, or ctx is done.
func probe(ctx context.Context, try func(context.Context) bool) bool {
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

// Port waits until a TCP connection to address succeeds, which it reports, or ctx is done.
func Port(ctx context.Context, address string) bool {
	d := net.Dialer{Timeout: probeTimeout}
	return probe(ctx, func(ctx context.Context) bool {
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// HTTP waits until a GET of url is answered with a status below 400, which it reports, or ctx is done. A redirect is such an answer. It is
// not followed, since it may lead to another server.
func HTTP(ctx context.Context, url string) bool {
	client := http.Client{
		Timeout:       probeTimeout,
		Transport:     &http.Transport{DisableKeepAlives: true}, // Proxy stays nil: what is asked for is here
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return probe(ctx, func(ctx context.Context) bool {
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
	})
}

// Output waits until the pattern matches in the output that the ring of j holds or that comes, or ctx is done.
func Output(ctx context.Context, j *journal.Journal, pattern *regexp.Regexp) (match string, met bool) {
	r, err := j.Attach(-1, journal.Options{})
	if err != nil {
		return "", false
	}
	defer r.Close()
	s := searcher{pattern: pattern}
	hesitating := false // on a match that what comes next may change
	for {
		c, err := nextChunk(ctx, r, hesitating)
		if err != nil { // nothing came for a moment, or nothing will: what there is decides
			if s.searchAvailable(r, j.Size()) {
				return s.match, true
			}
			if err == io.EOF { // it closed its output, and may run on
				<-ctx.Done()
			}
			if ctx.Err() != nil {
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

// maxWait bounds a wait without a timeout, because its client may be gone without notice.
const maxWait = time.Hour

// Until waits until a condition of a process is met, or cannot be met any more: the process has ended (done is closed), or ctx's deadline has
// passed. It fails if ctx ends for another reason, or the condition makes no sense. A ctx without a deadline gets one.
func Until(ctx context.Context, until protocol.Until, j *journal.Journal, done <-chan struct{}) (match string, met bool, err error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, maxWait)
		defer cancel()
	}
	alive, cancel := context.WithCancel(ctx) // also done when the process ends: its jobs may keep the journal open
	defer cancel()
	go func() { // ends with the process or the wait
		select {
		case <-done:
			cancel()
		case <-alive.Done():
		}
	}()
	switch {
	case until.Exit:
		select {
		case <-done:
			met = true
		case <-ctx.Done():
		}
	case until.Output != "":
		pattern, err := Compile(until.Output)
		if err != nil {
			return "", false, err
		}
		match, met = Output(alive, j, pattern)
	case until.Port != 0:
		met = Port(alive, net.JoinHostPort(cmp.Or(until.Host, "127.0.0.1"), strconv.Itoa(until.Port)))
	case until.HTTP != "":
		met = HTTP(alive, until.HTTP)
	default:
		return "", false, protocol.InvalidParam("until", "until is not exactly one of exit, port, output, http")
	}
	if err := ctx.Err(); err != nil && err != context.DeadlineExceeded && !met {
		return "", false, context.Cause(ctx) // the client has gone
	}
	return match, met, nil
}

// tailBytes is how much output Tail returns.
const tailBytes = 4 << 10

// Tail returns the last lines of the output before an offset, of both streams in their order.
func Tail(j *journal.Journal, end int64) string {
	r, err := j.Attach(max(j.Start(), end-tailBytes), journal.Options{})
	if err != nil {
		return ""
	}
	defer r.Close()
	var b []byte
	for r.Offset() < end {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			break
		}
		b = append(b, c.Data...)
	}
	for len(b) > 0 && !utf8.RuneStart(b[0]) { // the cut may be within a character
		b = b[1:]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
