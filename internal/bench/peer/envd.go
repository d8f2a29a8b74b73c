package peer

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// envd is packages/envd of github.com/e2b-dev/infra, written after its spec/process/process.proto and its package process at 54693ff: programs, on a
// terminal or on pipes, over Connect RPC (HTTP/1.1). A stream of answers is a sequence of envelopes: flags, a length in 4 bytes, a message in Protocol
// Buffers or JSON. Each piece of input is a request of its own, as in E2B's SDKs; the next one waits for its answer, or they could overtake each other.
type envd struct {
	cannot
	address string
}

// envdStart says what to start.
type envdStart struct {
	command  string
	args     []string
	env      map[string]string
	terminal bool
	stdin    bool
}

// asJSON is the message StartRequest in JSON.
func (s *envdStart) asJSON() ([]byte, error) {
	m := map[string]any{"process": map[string]any{"cmd": s.command, "args": s.args, "envs": s.env}, "stdin": s.stdin}
	if s.terminal {
		m["pty"] = map[string]any{"size": map[string]any{"cols": columns, "rows": rows}}
	}
	return json.Marshal(m)
}

// asProto is the same in Protocol Buffers.
func (s *envdStart) asProto() []byte {
	process := protoBytes(nil, 1, []byte(s.command))
	for _, a := range s.args {
		process = protoBytes(process, 2, []byte(a))
	}
	for k, v := range s.env {
		process = protoBytes(process, 3, protoBytes(protoBytes(nil, 1, []byte(k)), 2, []byte(v)))
	}
	m := protoBytes(nil, 1, process)
	if s.terminal {
		m = protoBytes(m, 2, protoBytes(nil, 1, protoNumber(protoNumber(nil, 1, columns), 2, rows)))
	}
	on := uint64(0)
	if s.stdin {
		on = 1
	}
	return protoNumber(m, 4, on)
}

// envdStream is a program of envd. code is its exit code, once Read has returned io.EOF.
type envdStream struct {
	ctx      context.Context
	e        *envd
	body     io.ReadCloser
	as       Encoding
	pid      uint64
	terminal bool
	ended    bool
	code     int
	buf      []byte
}

// start starts a program and returns when envd has told its pid.
func (e *envd) start(ctx context.Context, what envdStart, as Encoding) (*envdStream, error) {
	content, message := "application/connect+proto", what.asProto()
	if as == JSON {
		var err error
		if message, err = what.asJSON(); err != nil {
			return nil, err
		}
		content = "application/connect+json"
	}
	envelope := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	answer, err := request(ctx, http.MethodPost, "http://"+e.address+"/process.Process/Start", content, append(envelope, message...))
	if err != nil {
		return nil, err
	}
	s := &envdStream{ctx: ctx, e: e, body: answer.Body, as: as, terminal: what.terminal}
	for s.pid == 0 {
		if _, err := s.next(); err != nil {
			s.body.Close()
			return nil, err
		}
	}
	return s, nil
}

// next reads one envelope and returns the output in it.
func (s *envdStream) next() ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(s.body, head[:]); err != nil {
		return nil, fmt.Errorf("envd: %w", err)
	}
	n := int(binary.BigEndian.Uint32(head[1:]))
	if cap(s.buf) < n {
		s.buf = make([]byte, n)
	}
	message := s.buf[:n]
	if _, err := io.ReadFull(s.body, message); err != nil {
		return nil, fmt.Errorf("envd: %w", err)
	}
	const last = 2
	if head[0]&last != 0 {
		var m struct {
			Error *struct{ Code, Message string }
		}
		if err := json.Unmarshal(message, &m); err != nil {
			return nil, err
		}
		if m.Error != nil {
			return nil, fmt.Errorf("envd: %s: %s", m.Error.Code, m.Error.Message)
		}
		if !s.ended {
			return nil, errors.New("envd: the stream has no end event")
		}
		return nil, io.EOF
	}
	if s.as == JSON {
		return s.readJSON(message)
	}
	return s.readProto(message)
}

func (s *envdStream) readJSON(message []byte) ([]byte, error) {
	var m struct {
		Event struct {
			Start struct{ Pid uint64 }
			Data  struct{ Stdout, Stderr, Pty string }
			End   *struct{ ExitCode int }
		}
	}
	if err := json.Unmarshal(message, &m); err != nil {
		return nil, err
	}
	if m.Event.Start.Pid != 0 {
		s.pid = m.Event.Start.Pid
	}
	if m.Event.End != nil {
		s.ended, s.code = true, m.Event.End.ExitCode
	}
	return base64.StdEncoding.DecodeString(m.Event.Data.Stdout + m.Event.Data.Stderr + m.Event.Data.Pty) // one of them
}

// readProto reads a StartResponse: its only field is an event, whose only field is what happened.
func (s *envdStream) readProto(message []byte) (output []byte, err error) {
	err = protoFields(message, func(_ int, _ uint64, event []byte) error {
		return protoFields(event, func(what int, _ uint64, of []byte) error {
			const start, data, end = 1, 2, 3
			if what == end {
				s.ended = true // exit code 0 is not on the wire
			}
			return protoFields(of, func(field int, number uint64, bytes []byte) error {
				switch {
				case what == start && field == 1:
					s.pid = number
				case what == data:
					output = bytes
				case what == end && field == 1:
					s.code = int(int64(number>>1) ^ -int64(number&1)) // zigzag
				}
				return nil
			})
		})
	})
	return output, err
}

func (s *envdStream) Read() ([]byte, error) {
	for {
		if b, err := s.next(); err != nil || len(b) > 0 {
			return b, err
		}
	}
}

// ask calls a method that has one answer, which is empty.
func (s *envdStream) ask(method string, message []byte) error {
	answer, err := request(s.ctx, http.MethodPost, "http://"+s.e.address+"/process.Process/"+method, "application/proto", message)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// selector is the field that names the program.
func (s *envdStream) selector() []byte { return protoBytes(nil, 1, protoNumber(nil, 1, s.pid)) }

func (s *envdStream) Write(p []byte) error {
	field := 1
	if s.terminal {
		field = 2
	}
	return s.ask("SendInput", protoBytes(s.selector(), 2, protoBytes(nil, field, p)))
}

// Close kills the program if it has not ended: it would outlive the connection.
func (s *envdStream) Close() error {
	defer s.body.Close()
	if s.ended {
		_, err := io.Copy(io.Discard, s.body)
		return err
	}
	const sigkill = 9
	if err := s.ask("SendSignal", protoNumber(s.selector(), 2, sigkill)); err != nil {
		return err
	}
	return drain(s, func([]byte) {})
}

// Terminal gives the shell a home without a bashrc, as the other peers' have; else it would be that of envd's user.
func (e *envd) Terminal(ctx context.Context) (Stream, error) {
	return e.start(ctx, envdStart{command: "/bin/bash", args: []string{"-i"}, env: map[string]string{"TERM": term, "HOME": "/tmp"}, terminal: true, stdin: true}, Binary)
}

func (e *envd) Shell(ctx context.Context) (Stream, error) {
	return e.start(ctx, envdStart{command: "/bin/bash", stdin: true}, Binary)
}

func (e *envd) once(ctx context.Context, command string, as Encoding, each func(b []byte)) (code int, err error) {
	s, err := e.start(ctx, envdStart{command: "/bin/bash", args: []string{"-c", command}}, as)
	if err != nil {
		return 0, err
	}
	err = drain(s, each)
	return s.code, errors.Join(err, s.Close())
}

func (e *envd) Once(ctx context.Context, command string) (Result, error) {
	var out strings.Builder
	code, err := e.once(ctx, command, Binary, func(b []byte) { out.Write(b) })
	return Result{Output: out.String(), Code: code}, err
}

func (e *envd) Follow(ctx context.Context, command string, as Encoding) (n int, err error) {
	_, err = e.once(ctx, command, as, func(b []byte) { n += len(b) })
	return n, err
}

// protoBytes appends a field of bytes in Protocol Buffers' encoding, protoNumber one that is a number.
func protoBytes(to []byte, field int, b []byte) []byte {
	to = binary.AppendUvarint(to, uint64(field)<<3|2)
	return append(binary.AppendUvarint(to, uint64(len(b))), b...)
}

func protoNumber(to []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(to, uint64(field)<<3), v)
}

// protoFields calls each for every field of a message: with its number or with its bytes.
func protoFields(m []byte, each func(field int, number uint64, bytes []byte) error) error {
	for len(m) > 0 {
		key, n := binary.Uvarint(m)
		if n <= 0 {
			return errors.New("envd: a broken message")
		}
		m = m[n:]
		v, n := binary.Uvarint(m)
		if n <= 0 {
			return errors.New("envd: a broken message")
		}
		m = m[n:]
		var b []byte
		switch key & 7 {
		case 0:
		case 2:
			if v > uint64(len(m)) {
				return errors.New("envd: a broken message")
			}
			b, m = m[:v], m[v:]
		default:
			return fmt.Errorf("envd: wire type %d", key&7)
		}
		if err := each(int(key>>3), v, b); err != nil {
			return err
		}
	}
	return nil
}
