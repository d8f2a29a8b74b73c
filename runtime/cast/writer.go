package cast

import (
	"bytes"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"trl/runtime/journal"
)

// A Writer turns what happened into the lines of an asciicast v3, in memory: who uses it writes them somewhere. Times do not
// go back: what happened before the latest event happened with it.
type Writer struct {
	Newlines bool // a bare newline is shown as a terminal would: with a carriage return. For output that saw no terminal

	lines   []byte
	at      int64  // of the latest event, ms since the beginning; intervals are between these, so that rounding does not add up
	pending []byte // a character that was begun and lacks its rest
	stderr  bool   // whose begun is
	carried bool   // the byte before was a carriage return
}

// header is Header on its line.
type header struct {
	Version int `json:"version"`
	Term    struct {
		Cols int    `json:"cols"`
		Rows int    `json:"rows"`
		Type string `json:"type,omitzero"`
	} `json:"term"`
	Timestamp int64   `json:"timestamp,omitzero"`
	IdleLimit float64 `json:"idle_time_limit,omitzero"`
	Command   string  `json:"command,omitzero"`
	Title     string  `json:"title,omitzero"`
}

// Header is the first line.
func (w *Writer) Header(h Header) {
	line := header{Version: 3, Timestamp: h.Timestamp, IdleLimit: h.IdleLimit, Command: valid(h.Command), Title: valid(h.Title)}
	line.Term.Cols, line.Term.Rows, line.Term.Type = h.Cols, h.Rows, h.Type
	text, err := json.Marshal(line)
	if err != nil {
		panic(err) // numbers and valid text
	}
	w.lines = append(append(w.lines, text...), '\n')
}

func valid(s string) string { return string(bytes.ToValidUTF8([]byte(s), []byte(replacement))) }

// Comment is a line that is none of the recording's.
func (w *Writer) Comment(text []byte) { w.lines = append(append(w.lines, text...), '\n') }

// Output is what was printed. A character that p ends in the middle of waits for its rest; Flush ends the wait.
func (w *Writer) Output(at time.Duration, stderr bool, p []byte) {
	if len(w.pending) > 0 && stderr != w.stderr {
		w.Flush(at)
	}
	w.stderr = stderr
	if len(w.pending) > 0 {
		p = append(w.pending, p...)
		w.pending = nil
	}
	if n := journal.TornTail(p); n > 0 {
		w.pending = bytes.Clone(p[len(p)-n:])
		p = p[:len(p)-n]
	}
	w.print(at, p)
}

// Flush prints the beginning of a character whose rest will not come.
func (w *Writer) Flush(at time.Duration) {
	p := w.pending
	w.pending = nil
	w.print(at, p)
}

// PendingBytes is how many bytes wait for their rest: they are not in the lines yet.
func (w *Writer) PendingBytes() int { return len(w.pending) }

func (w *Writer) print(at time.Duration, p []byte) {
	if len(p) == 0 {
		return
	}
	if w.Newlines {
		p = w.withReturns(p)
	}
	if w.stderr {
		w.Comment([]byte(stderrComment))
	}
	w.event(at, Output, p)
}

// withReturns gives each bare newline its carriage return.
func (w *Writer) withReturns(p []byte) []byte {
	out := make([]byte, 0, len(p)+16)
	for _, c := range p {
		if c == '\n' && !w.carried {
			out = append(out, '\r')
		}
		w.carried = c == '\r'
		out = append(out, c)
	}
	return out
}

// Resize is another size.
func (w *Writer) Resize(at time.Duration, cols, rows int) {
	w.Flush(at)
	p := strconv.AppendInt(nil, int64(cols), 10)
	p = append(p, 'x')
	w.event(at, Resize, strconv.AppendInt(p, int64(rows), 10))
}

// Mark is a place to jump to.
func (w *Writer) Mark(at time.Duration, label string) {
	w.Flush(at)
	w.event(at, Mark, []byte(label))
}

// Exit is how it ended; the last event.
func (w *Writer) Exit(at time.Duration, status int) {
	w.Flush(at)
	w.event(at, Exit, strconv.AppendInt(nil, int64(status), 10))
}

func (w *Writer) event(at time.Duration, code byte, data []byte) {
	w.lines = append(w.lines, '[')
	w.lines = appendSeconds(w.lines, w.advance(at))
	w.lines = append(w.lines, ',', ' ', '"', code, '"', ',', ' ')
	w.lines = appendString(w.lines, data)
	w.lines = append(w.lines, ']', '\n')
}

// advance moves on to at and returns how many ms that took.
func (w *Writer) advance(at time.Duration) int64 {
	ms := max(w.at, at.Milliseconds())
	d := ms - w.at
	w.at = ms
	return d
}

// appendSeconds appends ms as seconds with three decimals.
func appendSeconds(dst []byte, ms int64) []byte {
	dst = strconv.AppendInt(dst, ms/1000, 10)
	ms %= 1000
	return append(dst, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
}
