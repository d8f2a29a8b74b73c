package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"trl/protocol"
)

// ProcessOptions changes how a background process starts. All fields are optional.
type ProcessOptions struct {
	Cwd       string
	Env       map[string]string
	UnsetEnv  []string
	Timeout   time.Duration // then the process is ended
	Name      string        // a label for people
	OpenStdin bool          // the input comes with Write and CloseStdin; otherwise it is empty
}

// Process is a background process. It starts from the session's present state and does not change it. Several goroutines may use its methods.
type Process struct {
	c  *Client
	in input

	mu   sync.Mutex
	info protocol.ProcessInfo // guarded by mu; as last heard of
}

// StartProcess starts a background process. If the answer is lost it asks again, and the process still starts once. ctx bounds the start and does not end
// the process.
func (s *Session) StartProcess(ctx context.Context, command string, o *ProcessOptions) (*Process, error) {
	if o == nil {
		o = &ProcessOptions{}
	}
	q := protocol.ProcessStart{
		Command: command, WorkingDir: o.Cwd, Env: environment(o.Env, o.UnsetEnv), Timeout: seconds(o.Timeout), Name: o.Name, RequestKey: rand.Text(),
	}
	if o.OpenStdin {
		q.Stdin = "open"
	}
	var started protocol.ProcessStarted
	err := s.call(ctx, "process.start", func(ref protocol.SessionRef) any { q.SessionRef = ref; return q }, &started)
	if err != nil {
		return nil, err
	}
	p, err := s.GetProcess(ctx, started.ProcessID)
	if err == nil {
		p.in.begin(0)
	}
	return p, err
}

// ListProcesses lists the session's processes, including ended ones as long as the server keeps them.
func (s *Session) ListProcesses(ctx context.Context) ([]*Process, error) {
	var all protocol.Processes
	if err := s.call(ctx, "process.list", onlyRef, &all); err != nil {
		return nil, err
	}
	list := make([]*Process, len(all.Processes))
	for i, info := range all.Processes {
		list[i] = &Process{c: s.c, info: info}
	}
	return list, nil
}

// GetProcess returns a process by its id, whatever its session.
func (s *Session) GetProcess(ctx context.Context, id string) (*Process, error) {
	p := &Process{c: s.c, info: protocol.ProcessInfo{ProcessID: id}}
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// KillProcess ends a process by its id, as Process.Kill does.
func (s *Session) KillProcess(ctx context.Context, id string) error {
	return s.c.Call(ctx, "process.kill", protocol.ProcessKill{ProcessID: id}, nil)
}

// KillAllProcesses ends every process of the session that runs, and says how many.
func (s *Session) KillAllProcesses(ctx context.Context) (int, error) {
	all, err := s.ListProcesses(ctx)
	if err != nil {
		return 0, err
	}
	var (
		ending sync.WaitGroup
		errs   = make([]error, len(all))
		n      int
	)
	for i, p := range all {
		if p.Status() == "running" {
			n++
			ending.Go(func() { errs[i] = p.Kill(ctx) }) // ends with its answer; awaited below
		}
	}
	ending.Wait()
	return n, errors.Join(errs...)
}

// Info describes the process as last heard of; Refresh asks again.
func (p *Process) Info() protocol.ProcessInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.info
}

// ID returns the process's process_id.
func (p *Process) ID() string { return p.Info().ProcessID }

// Pid returns its process id on the gateway's machine.
func (p *Process) Pid() int { return p.Info().Pid }

// Status returns "running", "completed" (exit code 0), "failed" or "killed", as last heard of.
func (p *Process) Status() string {
	info := p.Info()
	switch {
	case info.State == "running":
		return "running"
	case info.Signal != "":
		return "killed"
	case info.ExitCode != nil && *info.ExitCode == 0:
		return "completed"
	}
	return "failed"
}

// Refresh asks the server how the process is.
func (p *Process) Refresh(ctx context.Context) error {
	return p.heard(ctx, "process.info", protocol.ProcessRef{ProcessID: p.ID()})
}

// heard sends a request whose answer describes the process.
func (p *Process) heard(ctx context.Context, method string, params any) error {
	var info protocol.ProcessInfo
	if err := p.c.Call(ctx, method, params, &info); err != nil {
		return err
	}
	p.set(info)
	return nil
}

func (p *Process) set(info protocol.ProcessInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info = info
}

// Ports returns the TCP ports on which it, or what it has started, listens now.
func (p *Process) Ports(ctx context.Context) ([]int, error) {
	err := p.Refresh(ctx)
	return p.Info().Ports, err
}

// Kill ends the process and everything that it started: TERM, the server's grace time, KILL; and returns when they are gone. Output that nobody reads
// does not hold up the end: readers go on where they were.
func (p *Process) Kill(ctx context.Context) error {
	p.c.pauseLogs(p.ID())
	return p.heard(ctx, "process.kill", protocol.ProcessKill{ProcessID: p.ID()})
}

// Signal sends one signal, such as "HUP", to the process.
func (p *Process) Signal(ctx context.Context, name string) error {
	return p.c.Call(ctx, "process.kill", protocol.ProcessKill{ProcessID: p.ID(), Signal: name}, nil)
}

// Write writes to the input of a process that was started with OpenStdin. It waits while the process does not read.
func (p *Process) Write(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	return p.input(ctx, data, false)
}

// CloseStdin ends the input. It does not matter if it has ended already.
func (p *Process) CloseStdin(ctx context.Context) error { return ignoreClosed(p.input(ctx, nil, true)) }

func (p *Process) input(ctx context.Context, data []byte, eof bool) error {
	return p.in.write(ctx, p.c, "process.input", data, eof, func(text, encoding string, eof bool, offset *int64) any {
		return protocol.ProcessInput{ProcessID: p.ID(), Data: text, Encoding: encoding, EOF: eof, Offset: offset}
	})
}

// WaitPortOptions changes WaitForPort. All fields are optional.
type WaitPortOptions struct {
	Mode    string        // "tcp" (the default): it accepts connections; "http": it answers with a status below 400
	Path    string        // of the HTTP request
	Host    string        // an address of the gateway's machine; "" means 127.0.0.1
	Timeout time.Duration // then the wait is a *ProcessReadyTimeoutError
}

// WaitForPort waits until a port accepts connections, or answers HTTP. If the process ends before, the error is a *ProcessExitedBeforeReadyError. Neither
// an error nor the end of ctx ends the process.
func (p *Process) WaitForPort(ctx context.Context, port int, o *WaitPortOptions) error {
	if o == nil {
		o = &WaitPortOptions{}
	}
	until := protocol.Until{Port: port, Host: o.Host}
	if o.Mode == "http" {
		host := o.Host
		if host == "" {
			host = "127.0.0.1"
		}
		until = protocol.Until{HTTP: "http://" + net.JoinHostPort(host, strconv.Itoa(port)) + "/" + strings.TrimPrefix(o.Path, "/")}
	}
	_, err := p.wait(ctx, until, fmt.Sprintf("port %d", port), o.Timeout)
	return err
}

// ProcessExit is how a process ended.
type ProcessExit struct {
	ExitCode int // 128+N if signal N ended it; -1 if it is unknown
	Signal   string
	TimedOut bool
}

// WaitForExit waits until the process has ended. A Timeout above 0 that is over is a *ProcessReadyTimeoutError; the process goes on.
func (p *Process) WaitForExit(ctx context.Context, timeout time.Duration) (*ProcessExit, error) {
	if _, err := p.wait(ctx, protocol.Until{Exit: true}, "the end", timeout); err != nil {
		return nil, err
	}
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	info := p.Info()
	return &ProcessExit{ExitCode: exitCode(info.ExitCode), Signal: info.Signal, TimedOut: info.TimedOut}, nil
}

func exitCode(code *int) int {
	if code == nil {
		return -1
	}
	return *code
}

// waitSlice is the time of one process.wait: a wait that is given up leaves nothing behind for longer.
const waitSlice = 30 * time.Second

// waitGrace is how much longer than its timeout a wait may take, so that the server's answer comes first. It matters when there is no connection.
const waitGrace = time.Second

// wait waits for a condition at the server. A timeout of 0 is none.
func (p *Process) wait(ctx context.Context, until protocol.Until, condition string, timeout time.Duration) (r protocol.WaitResult, err error) {
	end := time.Now().Add(timeout)
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, end.Add(waitGrace), &ProcessReadyTimeoutError{p.ID(), condition})
		defer cancel()
	}
	for {
		slice := waitSlice
		if timeout > 0 {
			slice = min(slice, max(time.Until(end), time.Millisecond))
		}
		r = protocol.WaitResult{}
		if err := p.c.Call(ctx, "process.wait", protocol.ProcessWait{ProcessID: p.ID(), Until: until, Timeout: seconds(slice)}, &r); err != nil {
			return r, err
		}
		switch {
		case r.Met:
			return r, nil
		case r.ExitCode != nil || r.Signal != "":
			return r, &ProcessExitedBeforeReadyError{p.ID(), condition, exitCode(r.ExitCode), r.Tail}
		case timeout > 0 && time.Now().After(end):
			return r, &ProcessReadyTimeoutError{p.ID(), condition}
		}
	}
}
