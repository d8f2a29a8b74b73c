package peer

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// Marked makes a session of a raw shell: after each command the client writes a line that prints the exit code behind a mark. It is not safe: a command
// may read the line, print the mark, or leave the shell unable to.
func Marked(s Stream) *MarkedShell { return &MarkedShell{s: s} }

// A MarkedShell is a raw shell whose commands end with marks.
type MarkedShell struct {
	s    Stream
	n    int
	rest []byte
}

// Run runs a command.
func (m *MarkedShell) Run(command string) (Result, error) {
	m.n++
	mark := fmt.Appendf(nil, "=end-%d=", m.n)
	if err := m.s.Write(fmt.Appendf(nil, "%s\nprintf '%s%%d\\n' $?\n", command, mark)); err != nil {
		return Result{}, err
	}
	for from := 0; ; { // where a mark that is not known yet may begin
		if i := bytes.Index(m.rest[from:], mark); i >= 0 {
			i += from
			if j := bytes.IndexByte(m.rest[i:], '\n'); j >= 0 {
				r := Result{Output: string(m.rest[:i])}
				code, err := strconv.Atoi(string(m.rest[i+len(mark) : i+j]))
				if err != nil {
					return r, errors.New("a mark without an exit code")
				}
				r.Code, m.rest = code, m.rest[:0]
				return r, nil
			}
		}
		b, err := m.s.Read()
		if err != nil {
			return Result{}, err
		}
		from = max(from, len(m.rest)-len(mark)-longestCode)
		m.rest = append(m.rest, b...)
	}
}

// longestCode is the length of the longest exit code and its line feed.
const longestCode = len("255\n")

// Close ends the shell.
func (m *MarkedShell) Close() error { return m.s.Close() }

// followShell runs a command in a raw shell and counts its output.
func followShell(s Stream, err error, command string) (n int, _ error) {
	if err != nil {
		return 0, err
	}
	defer s.Close()
	const mark = "=followed="
	if err := s.Write([]byte(command + "; printf =followed; printf =\n")); err != nil { // no shell echoes it, but one with a terminal would
		return 0, err
	}
	var tail []byte
	for {
		b, err := s.Read()
		if err != nil {
			return n, err
		}
		n += len(b)
		tail = append(tail, b[max(0, len(b)-len(mark)):]...)
		tail = tail[max(0, len(tail)-len(mark)):]
		if string(tail) == mark {
			return n - len(mark), nil
		}
	}
}
