package peer

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// fakes are servers with the wire formats of the peers and with a bash on pipes behind each stream, also where the peer has a terminal.
var fakes = map[string]func(t *testing.T) http.Handler{
	"ttyd":  fakeTTYD,
	"gotty": fakeGotty,
	"wsep":  fakeWsep,
	"execd": fakeExecd,
	"envd":  fakeEnvd,
	"cf":    fakeCF,
}

// program is a bash. Its owner calls end.
type program struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser
}

func startBash(t *testing.T, args ...string) *program {
	t.Helper()
	cmd := exec.Command("/bin/bash", args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Error(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Error(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Error(err)
	}
	return &program{cmd, in, out}
}

// copy passes output on until it ends or cannot be passed on, and returns the exit code.
func (p *program) copy(piece int, each func(b []byte) error) int {
	buf := make([]byte, piece)
	for {
		n, err := p.out.Read(buf)
		if n > 0 && each(buf[:n]) != nil || err != nil {
			break
		}
	}
	return p.end()
}

func (p *program) end() int {
	p.in.Close()
	_ = p.cmd.Wait() // the exit code has the result
	return p.cmd.ProcessState.ExitCode()
}

// interactive are the arguments of a bash that prompts although it has no terminal.
var interactive = []string{"--norc", "-i"}

// pass connects a WebSocket with a program: input takes the input out of a message, output makes a message. It returns when the connection has ended.
func pass(t *testing.T, c *websocket.Conn, r *http.Request, p *program, piece int, input func(b []byte) []byte, output func(b []byte) (websocket.MessageType, []byte)) (code int) {
	done := make(chan int, 1)
	go func() { // ends with the output; awaited below
		done <- p.copy(piece, func(b []byte) error {
			kind, m := output(b)
			return c.Write(r.Context(), kind, m)
		})
	}()
	go func() { // ends with the connection, which ends with the test
		for {
			_, b, err := c.Read(r.Context())
			if err != nil {
				_ = p.cmd.Process.Kill()
				return
			}
			if _, err := p.in.Write(input(b)); err != nil {
				return
			}
		}
	}()
	return <-done
}

func accept(t *testing.T, w http.ResponseWriter, r *http.Request, protocols ...string) *websocket.Conn {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: protocols})
	if err != nil {
		t.Error(err)
		panic(http.ErrAbortHandler)
	}
	if len(protocols) > 0 && c.Subprotocol() != protocols[0] {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	return c
}

// after returns what follows a byte, which input must begin with.
func after(t *testing.T, tag byte) func(b []byte) []byte {
	return func(b []byte) []byte {
		if len(b) == 0 || b[0] != tag {
			t.Errorf("input %q", b)
			return nil
		}
		return b[1:]
	}
}

func fakeTTYD(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := accept(t, w, r, "tty")
		defer c.CloseNow()
		var hello struct{ Columns, Rows int }
		if _, b, err := c.Read(r.Context()); err != nil || json.Unmarshal(b, &hello) != nil || hello.Columns != 80 || hello.Rows != 24 || r.URL.Path != "/ws" {
			t.Errorf("%s: %q, %v", r.URL, b, err)
		}
		for _, m := range []string{"1bash (host)", "2{ }"} {
			_ = c.Write(r.Context(), websocket.MessageBinary, []byte(m))
		}
		pass(t, c, r, startBash(t, interactive...), 64<<10, after(t, '0'), func(b []byte) (websocket.MessageType, []byte) {
			return websocket.MessageBinary, append([]byte{'0'}, b...)
		})
	})
}

func fakeGotty(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := accept(t, w, r, "webtty")
		defer c.CloseNow()
		for i, want := range []string{`{"Arguments":"","AuthToken":""}`, `3{"columns":80,"rows":24}`} {
			if kind, b, err := c.Read(r.Context()); err != nil || kind != websocket.MessageText || string(b) != want {
				t.Errorf("%d: %q, %v", i, b, err)
			}
		}
		_ = c.Write(r.Context(), websocket.MessageText, []byte("3bash@host"))
		pass(t, c, r, startBash(t, interactive...), 765, after(t, '1'), func(b []byte) (websocket.MessageType, []byte) {
			return websocket.MessageText, []byte("1" + base64.StdEncoding.EncodeToString(b))
		})
	})
}

func fakeWsep(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := accept(t, w, r)
		defer c.CloseNow()
		_, b, err := c.Read(r.Context())
		var start struct {
			Type    string
			Command struct {
				Command    string
				Args       []string
				Stdin, TTY bool
				Rows, Cols int
			}
		}
		if err != nil || json.Unmarshal(b, &start) != nil || start.Type != "start" || start.Command.Command != "bash" || start.Command.TTY != (start.Command.Rows == 24) {
			t.Errorf("%q, %v", b, err)
		}
		args := start.Command.Args
		if start.Command.TTY {
			args = interactive
		}
		p := startBash(t, args...)
		if !start.Command.Stdin {
			p.in.Close()
		}
		_ = c.Write(r.Context(), websocket.MessageBinary, []byte(`{"type":"pid","pid":1}`+"\n"))
		code := pass(t, c, r, p, 32<<10, func(b []byte) []byte {
			rest, ok := strings.CutPrefix(string(b), "{\"type\":\"stdin\"}\n")
			if !ok {
				t.Errorf("input %q", b)
			}
			return []byte(rest)
		}, func(b []byte) (websocket.MessageType, []byte) {
			return websocket.MessageBinary, append([]byte("{\"type\":\"stdout\"}\n"), b...)
		})
		_ = c.Write(r.Context(), websocket.MessageBinary, fmt.Appendf(nil, "{\"type\":\"exit_code\",\"exit_code\":%d,\"error\":\"\"}\n", code))
	})
}

// kept are the shells of a fake's sessions: here by marks, for the fakes need not be safe.
type kept struct {
	mu  sync.Mutex
	all map[string]*MarkedShell // guarded by mu
}

// bashStream is a bash as a Stream.
type bashStream struct {
	*program
	buf []byte
}

func (s *bashStream) Write(p []byte) error { _, err := s.in.Write(p); return err }
func (s *bashStream) Read() ([]byte, error) {
	n, err := s.out.Read(s.buf)
	return s.buf[:n], err
}
func (s *bashStream) Close() error { s.end(); return nil }

func (k *kept) make(t *testing.T, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = map[string]*MarkedShell{}
	}
	k.all[id] = Marked(&bashStream{startBash(t), make([]byte, 32<<10)})
}

func (k *kept) of(t *testing.T, id string) *MarkedShell {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all[id] == nil {
		t.Errorf("no session %q", id)
		panic(http.ErrAbortHandler)
	}
	return k.all[id]
}

func (k *kept) end(t *testing.T, id string) {
	_ = k.of(t, id).Close() // the fake's Close cannot fail
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, id)
}

// decode reads a request's JSON.
func decode(t *testing.T, r *http.Request) (m struct{ ID, SessionID, Command, Cwd string }) {
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		t.Error(err)
	}
	return m
}

func fakeExecd(t *testing.T) http.Handler {
	var sessions kept
	mux := http.NewServeMux()
	mux.HandleFunc("POST /pty", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"session_id":"p1"}`) })
	mux.HandleFunc("DELETE /pty/p1", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /pty/p1/ws", func(w http.ResponseWriter, r *http.Request) {
		c := accept(t, w, r)
		defer c.CloseNow()
		_ = c.Write(r.Context(), websocket.MessageText, []byte(`{"type":"connected","session_id":"p1","mode":"pty"}`))
		args := interactive
		if r.URL.RawQuery == "pty=0" {
			args = nil
		} else {
			_ = c.Write(r.Context(), websocket.MessageBinary, []byte("\x03\x00\x00\x00\x00\x00\x00\x00\x00replayed"))
		}
		n := 0
		pass(t, c, r, startBash(t, args...), 32<<10, after(t, 0), func(b []byte) (websocket.MessageType, []byte) {
			n++
			return websocket.MessageBinary, append([]byte{byte(1 + n%2)}, b...) // as if of stdout and of stderr
		})
	})
	answer := func(w http.ResponseWriter, got Result) {
		event := func(m map[string]any) {
			b, _ := json.Marshal(m)
			_, _ = w.Write(append(b, '\n', '\n'))
		}
		event(map[string]any{"type": "init", "text": "s1"})
		for line := range strings.Lines(got.Output) {
			event(map[string]any{"type": "stdout", "text": strings.TrimSuffix(line, "\n")})
		}
		if got.Code != 0 {
			event(map[string]any{"type": "error", "error": map[string]any{"ename": "CommandExecError", "evalue": strconv.Itoa(got.Code)}})
			return
		}
		event(map[string]any{"type": "execution_complete", "execution_time": 1})
	}
	mux.HandleFunc("POST /session", func(w http.ResponseWriter, r *http.Request) {
		sessions.make(t, "s1")
		_, _ = io.WriteString(w, `{"session_id":"s1"}`)
	})
	mux.HandleFunc("POST /session/{id}/run", func(w http.ResponseWriter, r *http.Request) {
		got, err := sessions.of(t, r.PathValue("id")).Run(decode(t, r).Command)
		if err != nil {
			t.Error(err)
		}
		answer(w, got)
	})
	mux.HandleFunc("DELETE /session/{id}", func(_ http.ResponseWriter, r *http.Request) { sessions.end(t, r.PathValue("id")) })
	mux.HandleFunc("POST /command", func(w http.ResponseWriter, r *http.Request) { answer(w, runOnce(t, decode(t, r).Command)) })
	return mux
}

// runOnce runs a command in a bash of its own.
func runOnce(t *testing.T, command string) (got Result) {
	p := startBash(t, "-c", command)
	p.in.Close()
	got.Code = p.copy(32<<10, func(b []byte) error { got.Output += string(b); return nil })
	return got
}

func fakeCF(t *testing.T) http.Handler {
	var sessions kept
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/session/create", func(w http.ResponseWriter, r *http.Request) {
		m := decode(t, r)
		if m.ID == "" || m.Cwd != "/tmp" {
			t.Errorf("%+v", m)
		}
		sessions.make(t, m.ID)
		_, _ = io.WriteString(w, `{"success":true}`)
	})
	mux.HandleFunc("POST /api/session/delete", func(w http.ResponseWriter, r *http.Request) {
		sessions.end(t, decode(t, r).SessionID)
		_, _ = io.WriteString(w, `{"success":true}`)
	})
	mux.HandleFunc("POST /api/execute", func(w http.ResponseWriter, r *http.Request) {
		m := decode(t, r)
		got, err := sessions.of(t, m.SessionID).Run(m.Command)
		if err != nil {
			t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"success": got.Code == 0, "exitCode": got.Code, "stdout": got.Output, "stderr": ""})
	})
	mux.HandleFunc("POST /api/execute/stream", func(w http.ResponseWriter, r *http.Request) {
		event := func(m map[string]any) {
			b, _ := json.Marshal(m)
			_, _ = fmt.Fprintf(w, "data: %s\n\n", b)
		}
		m := decode(t, r)
		event(map[string]any{"type": "start", "command": m.Command})
		got, err := sessions.of(t, m.SessionID).Run(m.Command)
		if err != nil {
			t.Error(err)
		}
		event(map[string]any{"type": "stdout", "data": got.Output})
		event(map[string]any{"type": "complete", "exitCode": got.Code})
	})
	mux.HandleFunc("GET /ws/pty", func(w http.ResponseWriter, r *http.Request) {
		sessions.of(t, r.URL.Query().Get("sessionId"))
		c := accept(t, w, r)
		defer c.CloseNow()
		_ = c.Write(r.Context(), websocket.MessageText, []byte(`{"type":"ready"}`))
		pass(t, c, r, startBash(t, interactive...), 64<<10, func(b []byte) []byte { return b }, func(b []byte) (websocket.MessageType, []byte) {
			return websocket.MessageBinary, b
		})
	})
	return mux
}

// envdEvent is an event of a program in the encoding of the request.
func envdEvent(asJSON bool, kind string, number int, output []byte) []byte {
	if asJSON {
		m := map[string]any{"start": map[string]any{"pid": number}, "data": map[string]any{"stdout": output}, "end": map[string]any{"exitCode": number, "exited": true}}
		b, _ := json.Marshal(map[string]any{"event": map[string]any{kind: m[kind]}})
		return b
	}
	field, inner := map[string]int{"start": 1, "data": 2, "end": 3}[kind], []byte(nil)
	switch kind {
	case "start":
		inner = protoNumber(nil, 1, uint64(number))
	case "data":
		inner = protoBytes(nil, 1, output)
	case "end":
		if number != 0 {
			inner = protoNumber(nil, 1, uint64(number)*2) // zigzag
		}
		inner = protoNumber(inner, 2, 1)
	}
	return protoBytes(nil, 1, protoBytes(nil, field, inner))
}

func fakeEnvd(t *testing.T) http.Handler {
	var mu sync.Mutex
	running := map[uint64]*program{} // guarded by mu
	// find decodes the field that all requests begin with: the selector of a program.
	find := func(r *http.Request) (*program, []byte) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "application/proto" || r.Header.Get("Connect-Protocol-Version") != "1" {
			t.Errorf("%v %v", err, r.Header)
		}
		var pid uint64
		var second []byte
		err = protoFields(b, func(field int, _ uint64, of []byte) error {
			if field == 2 {
				second = of
				return nil
			}
			return protoFields(of, func(_ int, number uint64, _ []byte) error { pid = number; return nil })
		})
		mu.Lock()
		defer mu.Unlock()
		if err != nil || running[pid] == nil {
			t.Errorf("no process %d: %v", pid, err)
			panic(http.ErrAbortHandler)
		}
		return running[pid], second
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /process.Process/Start", func(w http.ResponseWriter, r *http.Request) {
		head := make([]byte, 5)
		if _, err := io.ReadFull(r.Body, head); err != nil {
			t.Error(err)
		}
		message := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(r.Body, message); err != nil {
			t.Error(err)
		}
		asJSON := r.Header.Get("Content-Type") == "application/connect+json"
		var args []string
		stdin := false
		if asJSON {
			var m struct {
				Process struct{ Args []string }
				Stdin   bool
			}
			if err := json.Unmarshal(message, &m); err != nil {
				t.Error(err)
			}
			args, stdin = m.Process.Args, m.Stdin
		} else if err := protoFields(message, func(field int, number uint64, of []byte) error {
			stdin = stdin || field == 4 && number == 1
			if field != 1 {
				return nil
			}
			return protoFields(of, func(field int, _ uint64, b []byte) error {
				if field == 2 {
					args = append(args, string(b))
				}
				return nil
			})
		}); err != nil {
			t.Error(err)
		}
		p := startBash(t, args...)
		if !stdin {
			p.in.Close()
		}
		pid := uint64(p.cmd.Process.Pid)
		mu.Lock()
		running[pid] = p
		mu.Unlock()
		send := func(flags byte, m []byte) error {
			_, err := w.Write(append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(m))), m...))
			if err == nil {
				err = http.NewResponseController(w).Flush()
			}
			return err
		}
		_ = send(0, envdEvent(asJSON, "start", int(pid), nil))
		code := p.copy(32<<10, func(b []byte) error { return send(0, envdEvent(asJSON, "data", 0, b)) })
		_ = send(0, envdEvent(asJSON, "end", code, nil))
		_ = send(2, []byte("{}"))
	})
	mux.HandleFunc("POST /process.Process/SendInput", func(_ http.ResponseWriter, r *http.Request) {
		p, input := find(r)
		if err := protoFields(input, func(_ int, _ uint64, b []byte) error { _, err := p.in.Write(b); return err }); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("POST /process.Process/SendSignal", func(_ http.ResponseWriter, r *http.Request) {
		p, _ := find(r)
		_ = p.cmd.Process.Kill()
	})
	return mux
}
