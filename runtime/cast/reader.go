package cast

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxLine bounds a line that is read: a hundred times what we write, and far below a machine's memory.
const maxLine = 16 << 20

// maxSize bounds the size that a file may give a terminal, as in term.resize.
const maxSize = 1000

// ErrFormat says that the file is not an asciicast that we can read.
var ErrFormat = errors.New("not an asciicast of version 2 or 3")

// A Reader reads an asciicast, v2 or v3, event by event.
type Reader struct {
	Header Header

	lines *bufio.Reader
	buf   []byte
	line  int // the number of the last line that was read
	at    time.Duration
}

// NewReader reads the header.
func NewReader(from io.Reader) (*Reader, error) {
	r := &Reader{lines: bufio.NewReaderSize(from, 64<<10)}
	text, err := r.readLine()
	if errors.Is(err, io.EOF) {
		return nil, ErrFormat
	}
	if err != nil {
		return nil, err
	}
	var h struct {
		header
		Width  int `json:"width"`
		Height int `json:"height"`
		Env    struct {
			Term string `json:"TERM"`
		} `json:"env"`
	}
	if json.Unmarshal(text, &h) != nil {
		return nil, ErrFormat
	}
	r.Header = Header{
		Version: h.Version, Cols: h.Term.Cols, Rows: h.Term.Rows, Type: h.Term.Type, Timestamp: h.Timestamp, Command: h.Command, Title: h.Title, IdleLimit: h.IdleLimit,
	}
	if h.Version == 2 {
		r.Header.Cols, r.Header.Rows, r.Header.Type = h.Width, h.Height, h.Env.Term
	}
	if h.Version != 2 && h.Version != 3 || !validSize(r.Header.Cols) || !validSize(r.Header.Rows) {
		return nil, ErrFormat
	}
	return r, nil
}

func validSize(n int) bool { return n >= 1 && n <= maxSize }

// Next returns the next event, and io.EOF after the last one. It ignores a last line without an end, which a writer leaves that is still writing or
// was killed.
func (r *Reader) Next() (Event, error) {
	stderr := false
	for {
		text, err := r.readLine()
		if err != nil {
			return Event{}, err
		}
		switch {
		case len(text) == 0:
		case text[0] == '#' && r.Header.Version == 3:
			stderr = string(text) == stderrComment
		default:
			e, err := r.event(text)
			if err != nil {
				return e, fmt.Errorf("line %d: %w", r.line, err)
			}
			e.Stderr = stderr && e.Code == Output
			return e, nil
		}
	}
}

var errEvent = errors.New("not an event")

func (r *Reader) event(text []byte) (e Event, err error) {
	var fields []jsontext.Value
	var seconds float64
	var code string
	if json.Unmarshal(text, &fields) != nil || len(fields) != 3 ||
		json.Unmarshal(fields[0], &seconds) != nil || json.Unmarshal(fields[1], &code) != nil || len([]rune(code)) != 1 {
		return e, errEvent
	}
	if json.Unmarshal(fields[2], &e.Data) != nil {
		return e, errEvent
	}
	const most = float64(math.MaxInt64 / 4 / time.Second)
	if seconds < 0 || seconds > most || (r.at.Seconds()+seconds) > most {
		return e, errEvent
	}
	// Whole microseconds and not a float: sums of intervals must not drift.
	d := time.Duration(math.Round(seconds*1e6)) * time.Microsecond
	if r.Header.Version == 3 {
		r.at += d
	} else {
		r.at = max(r.at, d)
	}
	e.At, e.Code = r.at, []rune(code)[0]
	if e.Code == Resize {
		if _, _, ok := e.Size(); !ok {
			return e, errEvent
		}
	}
	return e, nil
}

// Size returns the size of a resize event.
func (e Event) Size() (cols, rows int, ok bool) {
	a, b, _ := strings.Cut(e.Data, "x")
	cols, err1 := strconv.Atoi(a)
	rows, err2 := strconv.Atoi(b)
	return cols, rows, err1 == nil && err2 == nil && validSize(cols) && validSize(rows)
}

// readLine returns a line without its end; it is valid until the next call. It returns no line that has no end.
func (r *Reader) readLine() ([]byte, error) {
	r.line++
	r.buf = r.buf[:0]
	for {
		part, err := r.lines.ReadSlice('\n')
		if err == nil && len(r.buf) == 0 {
			return part[:len(part)-1], nil
		}
		r.buf = append(r.buf, part...)
		switch {
		case err == nil:
			return r.buf[:len(r.buf)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(r.buf) > maxLine:
			return nil, fmt.Errorf("line %d: too long", r.line)
		}
	}
}
