package client

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/host"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

// scope is a own.KeptScope.
type scope struct {
	group      *group
	number     int
	emptyCheck host.EmptyCheck
}

func (c *Client) newScope(g *group, number int, mark uint64, list int) *scope {
	k := &scope{group: g, number: number, emptyCheck: host.EmptyCheck{Mark: mark, List: list, Orphans: c.orphans, IsLiveMark: c.isLiveMark}}
	c.mu.Lock()
	c.marks[mark] = struct{}{}
	c.mu.Unlock()
	g.mu.Lock()
	g.scopes[number] = k
	g.mu.Unlock()
	return k
}

// forget removes the scope, which the keeper has removed, from the client's tables.
func (c *scope) forget() {
	c.group.client.mu.Lock()
	delete(c.group.client.marks, c.emptyCheck.Mark)
	c.group.client.mu.Unlock()
	c.emptyCheck.Close()
}

func (c *scope) call(m wire.Message, files ...int) (wire.Message, error) {
	m.Group, m.Scope = c.group.id, c.number
	a, more, err := c.group.client.Call(m, files...)
	descriptor.CloseAll(more)
	return a, err
}

func (c *scope) Number() int { return c.number }

func (c *scope) Spawn(s own.Spec) (own.KeptChild, error) {
	req, files, err := spawnOf(s)
	if err != nil {
		return nil, err
	}
	k := newChild(c.group.client, c.group.id)
	call, err := k.client.sendRequest(wire.Message{Op: wire.OpSpawn, Group: c.group.id, Scope: c.number, Spawn: req}, k, files)
	if err != nil {
		return nil, err
	}
	<-call.answered
	_, _, err = call.result()
	if err == nil && k.Pidfd() < 0 {
		err = unix.EMFILE
	}
	if err != nil {
		if k.number != 0 { // the process runs, but we had no room for its descriptor
			_ = k.Signal(unix.SIGKILL)
			k.Close()
		}
		return nil, err
	}
	return k, nil
}

// spawnOf makes a spawn request of s, with copies of its descriptors.
func spawnOf(s own.Spec) (req *wire.Spawn, files []int, err error) {
	req = &wire.Spawn{Path: []byte(s.Path), Argv: bytesOf(s.Argv), Env: bytesOf(s.Env), Dir: []byte(s.Dir), TTY: s.TTY}
	sent := map[*os.File]int{}
	for _, f := range s.Files {
		slot, again := sent[f]
		if f == nil {
			slot = -1
		} else if !again {
			fd, err := wire.Duplicate(int(f.Fd()))
			if err != nil {
				descriptor.CloseAll(files)
				return nil, nil, fmt.Errorf("spawn %s: %w", s.Path, err)
			}
			slot, sent[f] = len(files), len(files)
			files = append(files, fd)
		}
		req.Slots = append(req.Slots, slot)
	}
	return req, files, nil
}

func bytesOf(texts []string) [][]byte {
	b := make([][]byte, len(texts))
	for i := range texts {
		b[i] = []byte(texts[i])
	}
	return b
}

func (c *scope) AddChild(pid int) error {
	_, err := c.call(wire.Message{Op: wire.OpAddChild, Pid: pid})
	return err
}

func (c *scope) AddForkedCopy(pid int) error {
	_, err := c.call(wire.Message{Op: wire.OpAddForkedCopy, Pid: pid})
	return err
}

// MembersExcept asks the keeper only if emptyCheck cannot exclude other members, because it runs after every command.
func (c *scope) MembersExcept(shell int) []int {
	if c.emptyCheck.ShellAlone(shell) {
		return nil
	}
	a, _ := c.call(wire.Message{Op: wire.OpMembersExcept, Pid: shell})
	return a.Pids
}

func (c *scope) Signal(sig syscall.Signal, shell int) {
	_, _ = c.call(wire.Message{Op: wire.OpSignal, Signal: int(sig), Pid: shell})
}

func (c *scope) SignalSome(sig syscall.Signal, pids ...int) {
	_, _ = c.call(wire.Message{Op: wire.OpSignal, Signal: int(sig), Pids: pids, Done: true})
}

func (c *scope) Kill(shell int) error {
	_, err := c.call(wire.Message{Op: wire.OpKill, Pid: shell})
	return err
}

func (c *scope) Rest() { c.emptyCheck.Rest() }

func (c *scope) Remove() bool {
	a, err := c.call(wire.Message{Op: wire.OpRemove})
	if err != nil || !a.Done {
		return false
	}
	c.group.mu.Lock()
	delete(c.group.scopes, c.number)
	c.group.mu.Unlock()
	c.forget()
	return true
}

// child is a own.KeptChild.
type child struct {
	client *Client
	group  string
	number uint64        // set before anybody else has the child
	pid    int           // set before anybody else has the child
	exited chan struct{} // closed by setExited
	status own.Status

	mu     sync.Mutex
	pidfd  int  // guarded by mu; -1 after Rest and Close
	closed bool // guarded by mu
}

// newChild makes a child that a spawn will fill.
func newChild(c *Client, group string) *child {
	return &child{client: c, group: group, pidfd: -1, exited: make(chan struct{})}
}

// setExited sets the status. It is called once.
func (k *child) setExited(s own.Status) {
	k.status = s
	close(k.exited)
}

func (k *child) Pid() int { return k.pid }

func (k *child) Exited() <-chan struct{} { return k.exited }

func (k *child) Pidfd() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pidfd
}

func (k *child) Rest() {
	k.mu.Lock()
	defer k.mu.Unlock()
	descriptor.Close(&k.pidfd)
}

// awake ends a Rest.
func (k *child) awake(pidfd int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.pidfd >= 0 {
		unix.Close(pidfd)
		return
	}
	k.pidfd = pidfd
}

func (k *child) Status() own.Status {
	select {
	case <-k.exited:
		return k.status
	default:
		return own.Status{}
	}
}

func (k *child) Signal(sig syscall.Signal) error {
	_, _, err := k.client.Call(wire.Message{Op: wire.OpSignal, Group: k.group, Child: k.number, Signal: int(sig)})
	if errors.Is(err, os.ErrProcessDone) {
		return os.ErrProcessDone
	}
	return err
}

func (k *child) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	k.client.sendOneWay(wire.Message{Op: wire.OpRelease, Group: k.group, Child: k.number})
	if k.pidfd >= 0 {
		unix.Close(k.pidfd)
		k.pidfd = -1
	}
	return nil
}
