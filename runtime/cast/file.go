package cast

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
)

// Two kinds of comment lines in a file are ours. The second line has the recording's data, as JSON. And each write ends with the place up to which the
// stream is recorded: the successor of a killed writer removes what follows the last such line, and continues there. Strings of events contain no raw
// line breaks, so only our own lines begin like this.
var (
	notePrefix     = []byte("# trl ")
	progressPrefix = []byte("#@ ")
)

// A Progress says how far a recording got.
type Progress struct {
	Offset int64         // bytes of the stream that are in it, or reported as missing
	At     time.Duration // time since its beginning
	End    string        // why it ended, a word; "" while it is in progress
	Status *int          // exit status, if it ended with one
}

func (p Progress) line() []byte {
	b := append([]byte(nil), progressPrefix...)
	b = strconv.AppendInt(b, p.Offset, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, p.At.Milliseconds(), 10)
	if p.End != "" {
		b = append(append(b, ' '), p.End...)
		if p.Status != nil {
			b = strconv.AppendInt(append(b, ' '), int64(*p.Status), 10)
		}
	}
	return b
}

func parseProgress(line []byte) (p Progress, ok bool) {
	fields := bytes.Fields(bytes.TrimPrefix(line, progressPrefix))
	if len(fields) < 2 || len(fields) > 4 {
		return p, false
	}
	var ms int64
	var err1, err2, err3 error
	p.Offset, err1 = strconv.ParseInt(string(fields[0]), 10, 64)
	ms, err2 = strconv.ParseInt(string(fields[1]), 10, 64)
	p.At = time.Duration(ms) * time.Millisecond
	if len(fields) > 2 {
		p.End = string(fields[2])
	}
	if len(fields) > 3 {
		var status int
		status, err3 = strconv.Atoi(string(fields[3]))
		p.Status = &status
	}
	return p, errors.Join(err1, err2, err3) == nil && p.Offset >= 0 && ms >= 0
}

// A File is a recording in progress. It belongs to one goroutine.
type File struct {
	Writer
	f       *os.File
	size    int64
	written int64 // the value of at after the last Commit
}

// Create makes a new recording. The file must not exist; notes is its owner's data.
func Create(path string, h Header, notes any) (*File, error) {
	text, err := json.Marshal(notes)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	c := &File{f: f}
	c.Header(h)
	c.Comment(append(notePrefix[:len(notePrefix):len(notePrefix)], text...))
	if _, err := c.Commit(Progress{}); err != nil {
		f.Close()
		_ = os.Remove(path) // it is empty
		return nil, err
	}
	return c, nil
}

// Resume continues a recording at the place that Inspect returned.
func Resume(path string, at Progress, size int64) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, err
	}
	ms := at.At.Milliseconds()
	return &File{f: f, size: size, Writer: Writer{at: ms}, written: ms}, nil
}

// Waiting returns how many bytes the next Commit will write, without its place line.
func (c *File) Waiting() int { return len(c.lines) }

// At returns the time of the latest event.
func (c *File) At() time.Duration { return time.Duration(c.at) * time.Millisecond }

// Size returns the length of the file.
func (c *File) Size() int64 { return c.size }

// Commit writes the waiting events in one call, so that all of them are there or the successor removes them. It takes back a partial write. The
// place's time is that of the latest event.
func (c *File) Commit(p Progress) (Progress, error) {
	p.At = c.At()
	c.Comment(p.line())
	n, err := c.f.WriteAt(c.lines, c.size)
	if err == nil {
		c.size += int64(n)
		c.written = c.at
	} else {
		c.at = c.written
		_ = c.f.Truncate(c.size)
	}
	if c.lines = c.lines[:0]; cap(c.lines) > maxKept {
		c.lines = nil
	}
	return p, err
}

// maxKept bounds the memory that a recording keeps between writes.
const maxKept = 64 << 10

// Drop forgets the waiting events.
func (c *File) Drop() { c.lines, c.pending, c.at = c.lines[:0], nil, c.written }

// Close closes the file.
func (c *File) Close() error { return c.f.Close() }

// An Existing is a recording on disk.
type Existing struct {
	Header   Header
	Progress Progress
	Size     int64 // up to the end of the last place line: later bytes are unfinished
}

// ErrNotOurs says that the file is not a recording that we made.
var ErrNotOurs = errors.New("not a recording of trl's")

// Inspect reads the beginning and the end of a recording, and its owner's data into notes.
func Inspect(path string, notes any) (found Existing, err error) {
	f, err := os.Open(path)
	if err != nil {
		return found, err
	}
	defer f.Close()
	r, err := NewReader(f)
	if err != nil {
		return found, err
	}
	found.Header = r.Header
	line, err := r.readLine()
	if err != nil || !bytes.HasPrefix(line, notePrefix) {
		return found, ErrNotOurs
	}
	if err := json.Unmarshal(line[len(notePrefix):], notes); err != nil {
		return found, fmt.Errorf("notes: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return found, err
	}
	found.Progress, found.Size, err = lastProgress(f, info.Size())
	return found, err
}

// searchStep is how much is read at a time to find the last place line: about the distance between two.
const searchStep = 64 << 10

// lastProgress searches backwards for the last complete place line.
func lastProgress(f io.ReaderAt, size int64) (Progress, int64, error) {
	var tail []byte // from `from` on
	for from := size; from > 0; {
		step := min(searchStep, from)
		from -= step
		more := make([]byte, step, int(step)+len(tail))
		if _, err := f.ReadAt(more, from); err != nil {
			return Progress{}, 0, err
		}
		tail = append(more, tail...)
		for end := len(tail); ; {
			i := bytes.LastIndex(tail[:end], append([]byte{'\n'}, progressPrefix...))
			if i < 0 {
				break
			}
			if n := bytes.IndexByte(tail[i+1:], '\n'); n >= 0 {
				if p, ok := parseProgress(tail[i+1 : i+1+n]); ok {
					return p, from + int64(i+1+n+1), nil
				}
			}
			end = i
		}
		if len(tail) > maxLine {
			break
		}
	}
	return Progress{}, 0, ErrNotOurs
}
