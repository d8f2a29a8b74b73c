package cast

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json"
)

// V2 converts to asciicast v2, for players that do not know v3: with absolute times, and without an exit status, for which v2 has no event.
func V2(to io.Writer, from io.Reader) error {
	r, err := NewReader(from)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(to, 64<<10)
	h := struct {
		Version   int               `json:"version"`
		Width     int               `json:"width"`
		Height    int               `json:"height"`
		Timestamp int64             `json:"timestamp,omitzero"`
		IdleLimit float64           `json:"idle_time_limit,omitzero"`
		Command   string            `json:"command,omitzero"`
		Title     string            `json:"title,omitzero"`
		Env       map[string]string `json:"env,omitempty"` // v2 has the terminal's type here
	}{Version: 2, Width: r.Header.Cols, Height: r.Header.Rows, Timestamp: r.Header.Timestamp, IdleLimit: r.Header.IdleLimit, Command: r.Header.Command, Title: r.Header.Title}
	if r.Header.Type != "" {
		h.Env = map[string]string{"TERM": r.Header.Type}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	_, _ = w.Write(append(text, '\n')) // Flush has the first error
	var line []byte
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.Flush()
		}
		if err != nil {
			return errors.Join(w.Flush(), err)
		}
		if e.Code == Exit {
			continue
		}
		line = append(line[:0], '[')
		line = appendSeconds(line, e.At.Milliseconds())
		line = append(line, ',', ' ')
		line = appendString(line, []byte(string(e.Code)))
		line = append(line, ',', ' ')
		line = appendString(line, []byte(e.Data))
		if _, err := w.Write(append(line, ']', '\n')); err != nil {
			return err
		}
	}
}

// WithoutNotes copies a recording without the lines that only trl uses.
func WithoutNotes(to io.Writer, from io.Reader) error {
	r := &Reader{lines: bufio.NewReaderSize(from, 64<<10)}
	w := bufio.NewWriterSize(to, 64<<10)
	for {
		line, err := r.readLine()
		if errors.Is(err, io.EOF) {
			return w.Flush()
		}
		if err != nil {
			return errors.Join(w.Flush(), err)
		}
		if bytes.HasPrefix(line, notePrefix) || bytes.HasPrefix(line, progressPrefix) {
			continue
		}
		_, _ = w.Write(line)
		if err := w.WriteByte('\n'); err != nil {
			return err
		}
	}
}
