package cast

import (
	"bytes"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"trl/runtime/journal"
)

// A Writer turns events into the lines of an asciicast v3, in memory; its user writes the lines to a file. Times never go back: an event from before
// the latest one gets the latest one's time.
type Writer struct {
	Newlines bool // print bare newlines as a terminal would, with a carriage return. It is for output that went through no terminal

	lines   []byte
	at      int64  // time of the latest event, ms since the beginning; intervals are between these, so that rounding errors do not add up
	pending []byte // the beginning of a character whose rest has not come
	stderr  bool   // whether pending is from standard error
	carried bool   // the previous byte was a carriage return
}

// header is Header in the form of its line.
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

// Header writes the first line.
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

// Comment writes a comment line, which is not part of the recording.
func (w *Writer) Comment(text []byte) { w.lines = append(append(w.lines, text...), '\n') }

// Output writes output. If p ends inside a character, the beginning waits for its rest; Flush ends the wait.
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

// Flush writes the beginning of a character whose rest will not come.
func (w *Writer) Flush(at time.Duration) {
	p := w.pending
	w.pending = nil
	w.print(at, p)
}

// PendingBytes returns how many bytes wait for the rest of their character. They are not in the lines yet.
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

// withReturns adds a carriage return to each bare newline.
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

// Resize writes a new size.
func (w *Writer) Resize(at time.Duration, cols, rows int) {
	w.Flush(at)
	p := strconv.AppendInt(nil, int64(cols), 10)
	p = append(p, 'x')
	w.event(at, Resize, strconv.AppendInt(p, int64(rows), 10))
}

// Mark writes a place to jump to.
func (w *Writer) Mark(at time.Duration, label string) {
	w.Flush(at)
	w.event(at, Mark, []byte(label))
}

// Exit writes the exit status, which is the last event.
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

// advance sets the time to at and returns how many ms that is after the latest event.
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
