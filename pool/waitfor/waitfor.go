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
	firstProbeInterval = time.Millisecond       // the first pause between probes; later pauses are an eighth of the wait so far
	maxProbeInterval   = 50 * time.Millisecond  // the longest pause between probes
	probeTimeout       = 2 * time.Second        // a server that needs longer for one HTTP answer is not ready
	lookBack           = 8 << 10                // how much earlier output of each stream a match may include
	searchBatch        = 64 << 10               // how much new output is searched at once
	matchHoldTime      = 100 * time.Millisecond // how long a match at the end of the output waits: more output may extend it or, with $, undo it
)

// maxPattern bounds the size of a compiled pattern, because it stays in memory for the whole wait and runs over all output.
const maxPattern = 100 << 10

// Compile compiles until.output. ^ and $ match at the begin and the end of lines. Compile estimates the size of the result first and refuses
// a pattern that would become too large.
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

// patternSize estimates the size of a compiled expression in bytes: its instructions, which a repetition multiplies, and its character
// classes, which all copies share. It stops counting at maxPattern.
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

// probe calls try until it succeeds or ctx is done. It returns true if try succeeded.
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

// Port waits until a TCP connection to address succeeds or ctx is done. It returns true if one succeeded.
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

// HTTP waits until the answer to a GET of url has a status below 400, or ctx is done. It returns true if there was such an answer. A
// redirect counts as one. HTTP does not follow it, because it may lead to another server.
func HTTP(ctx context.Context, url string) bool {
	client := http.Client{
		Timeout:       probeTimeout,
		Transport:     &http.Transport{DisableKeepAlives: true}, // Proxy stays nil, because the server is on this machine
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

// Output waits until the pattern matches or ctx is done. It searches the output that the ring of j holds, and all later output.
func Output(ctx context.Context, j *journal.Journal, pattern *regexp.Regexp) (match string, met bool) {
	r, err := j.Attach(-1, journal.Options{})
	if err != nil {
		return "", false
	}
	defer r.Close()
	s := searcher{pattern: pattern}
	hesitating := false // there is a match that later output may change
	for {
		c, err := nextChunk(ctx, r, hesitating)
		if err != nil { // there is no more output for now, or ever, so the present output decides
			if s.searchAvailable(r, j.Size()) {
				return s.match, true
			}
			if err == io.EOF { // the process closed its output and may still run
				<-ctx.Done()
			}
			if ctx.Err() != nil {
				return "", false
			}
			hesitating = false
			continue
		}
		s.add(c)
		for n := len(c.Data); n < searchBatch; n += len(c.Data) { // searches of single lines would be slow for a process that prints much
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

// nextChunk waits for a chunk. If brief is set, it waits for matchHoldTime at most.
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
	recent  [2][]byte // stdout and stderr separately, because output of one may come in the middle of a line of the other
	match   string
}

func (s *searcher) add(c journal.Chunk) {
	side := &s.recent[0]
	if c.Stream == journal.Stderr {
		side = &s.recent[1]
	}
	*side = append(*side, c.Data...)
}

// search returns whether there is a match, and whether the match reaches the end of the output so far. If there is none, search drops
// output that is older than lookBack, up to the start of a line.
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

// searchAvailable searches the present output, up to an offset. It does not wait.
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

// maxWait bounds a wait without a timeout, because its client may have disappeared unnoticed.
const maxWait = time.Hour

// Until waits until the condition is met, the process has ended (done is closed), or ctx's deadline has passed. It returns an error if ctx
// ends for another reason or the condition is invalid. A ctx without a deadline gets one.
func Until(ctx context.Context, until protocol.Until, j *journal.Journal, done <-chan struct{}) (match string, met bool, err error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, maxWait)
		defer cancel()
	}
	alive, cancel := context.WithCancel(ctx) // also ends with the process, because its jobs may keep the journal open
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

// tailBytes is how much output Tail returns at most.
const tailBytes = 4 << 10

// Tail returns the last output of both streams before an offset, in the order in which it was printed.
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
