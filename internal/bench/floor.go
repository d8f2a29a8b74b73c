package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/coder/websocket"

	"trl/internal/bench/load"
	"trl/internal/bench/peer"
)

// Floors: the cost of the same work without trl.

// shell is a bare shell: a line in, a line out.
type shell struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func bare(path string) *shell {
	cmd := exec.Command(path)
	s := &shell{cmd: cmd, in: must(cmd.StdinPipe())}
	s.out = bufio.NewReader(must(cmd.StdoutPipe()))
	check(cmd.Start())
	return s
}

func (s *shell) ask() {
	_, _ = io.WriteString(s.in, ":; echo $?\n")
	must(s.out.ReadString('\n'))
}

func (s *shell) stop() { s.in.Close(); _ = s.cmd.Wait() }

// text is the content of a stream: lines, as a build prints them.
func text(n int) string { return load.Text(n) }

// pump asks the echo server for n bytes that it copies from a pipe in messages of 32 KiB.
func pump(c *websocket.Conn, n int) {
	check(c.Write(ctx, websocket.MessageText, []byte("pump "+strconv.Itoa(n))))
	for n > 0 {
		_, b, err := c.Read(ctx)
		check(err)
		n -= len(b)
	}
}

// echo is the server of the floors.
func echo() {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println("http://" + l.Addr().String())
	mux := http.NewServeMux()
	mux.HandleFunc("/pty", echoPTY)
	mux.HandleFunc("/prompt", echoPrompt)
	mux.HandleFunc("/shell", echoShell)
	mux.HandleFunc("/once", echoOnce)
	mux.HandleFunc("POST /post", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		for {
			t, b, err := c.Read(ctx)
			if err != nil {
				return
			}
			if n, found := strings.CutPrefix(string(b), "pump "); found {
				if copyPipe(c, must(strconv.Atoi(n))) != nil {
					return
				}
				continue
			}
			if c.Write(ctx, t, b) != nil {
				return
			}
		}
	})
	if err := http.Serve(l, mux); !errors.Is(err, http.ErrServerClosed) {
		panic(err)
	}
}

func copyPipe(c *websocket.Conn, n int) error {
	cmd := exec.Command("/bin/bash", "-c", text(n))
	out := must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	buf := make([]byte, 32<<10)
	for {
		n, err := out.Read(buf)
		if n > 0 {
			if err := c.Write(ctx, websocket.MessageText, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// echoShell passes a shell's stdin and output through a WebSocket and knows nothing of commands: the client writes markers.
func echoShell(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	c.SetReadLimit(1 << 30)
	cmd := exec.Command("/bin/bash")
	in, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	cmd.Stderr = cmd.Stdout
	check(cmd.Start())
	done := relay(c, in, out)
	_ = cmd.Process.Kill()
	<-done
	_ = cmd.Wait()
}

// relay copies messages to in until the connection ends, and meanwhile output to messages. done closes when the output has ended.
func relay(c *websocket.Conn, in io.Writer, out io.Reader) (done chan struct{}) {
	done = make(chan struct{})
	go func() { // ends with the output
		defer close(done)
		buf := make([]byte, 32<<10)
		for {
			n, err := out.Read(buf)
			if err != nil || c.Write(ctx, websocket.MessageBinary, buf[:n]) != nil {
				return
			}
		}
	}()
	for {
		_, b, err := c.Read(ctx)
		if err != nil {
			return done
		}
		if _, err := in.Write(b); err != nil {
			return done
		}
	}
}

// echoOnce runs each message as `bash -c`, and answers with its output and, in the last line, its exit code.
func echoOnce(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	c.SetReadLimit(1 << 30)
	for {
		_, b, err := c.Read(ctx)
		if err != nil {
			return
		}
		cmd := exec.Command("/bin/bash", "-c", string(b))
		// A file and not a pipe: background processes of the command would hold a pipe, and block us.
		f := must(os.CreateTemp("", "trl-bench-once-"))
		os.Remove(f.Name())
		cmd.Stdout, cmd.Stderr = f, f
		_ = cmd.Run() // the exit code has the result
		answer := must(io.ReadAll(io.NewSectionReader(f, 0, 1<<30)))
		f.Close()
		if c.Write(ctx, websocket.MessageBinary, fmt.Appendf(answer, "\n%d", cmd.ProcessState.ExitCode())) != nil {
			return
		}
	}
}

// rawShell is a client of echoShell.
func rawShell(floor string) *peer.MarkedShell {
	return peer.Marked(must(must(peer.New("floor", hostOf(floor))).Shell(ctx)))
}
