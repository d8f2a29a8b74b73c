package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/crashpoint"
	"trl/runtime/descriptor"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
	"trl/runtime/procfs"
	"trl/runtime/slowfs"
)

// group is a own.KeptGroup.
type group struct {
	client *Client
	id     string

	mu     sync.Mutex
	scopes map[int]*scope // guarded by mu; the existing scopes
}

func (g *group) NewScope() (own.KeptScope, error) {
	a, files, err := g.client.Call(wire.Message{Op: wire.OpScope, Group: g.id})
	if err != nil {
		if a.Lost { // the scope exists, but we had no room for its descriptor
			g.client.newScope(g, a.Scope, a.Mark, -1).Remove()
		}
		return nil, err
	}
	return g.scopeOf(a, files), nil
}

// scopeOf returns the scope of an answer, whose list is in files if the keeper could open it.
func (g *group) scopeOf(a wire.Message, files []int) *scope {
	list := -1
	if len(files) > 0 {
		list = files[0]
	}
	return g.client.newScope(g, a.Scope, a.Mark, list)
}

func (g *group) Limit(l protocol.Limits) error {
	if l == (protocol.Limits{}) { // no limit
		return nil
	}
	_, _, err := g.client.Call(wire.Message{Op: wire.OpLimit, Group: g.id, Limits: &l})
	return err
}

func (g *group) Gauge() *own.Gauge {
	a, files, err := g.client.Call(wire.Message{Op: wire.OpGauge, Group: g.id})
	if err != nil {
		return own.GaugeOf(nil, nil)
	}
	return own.GaugeOf(a.Held, files)
}

func (g *group) Dir() string {
	if g.UsesFIFOs() {
		return g.client.state.FIFODir + "/" + g.id
	}
	return g.client.Dir()
}

func (g *group) UsesFIFOs() bool { return g.client.state.FIFODir != "" }

func (g *group) HeldElsewhere() bool { return true }

func (g *group) MakeChannels(kinds []own.ChannelKind, also ...int) (made []own.Channel, numbers []int, err error) {
	if !g.UsesFIFOs() {
		return own.MakeAnonymousChannels(g, kinds, also...)
	}
	given, err := duplicates(also)
	if err != nil {
		return nil, nil, err
	}
	kinds = slices.Clone(kinds)
	for i, k := range kinds {
		if k == own.BothPipe { // an older keeper does not know it
			kinds[i] = own.OutPipe
		}
	}
	a, files, err := g.client.Call(wire.Message{Op: wire.OpMakeChannels, Group: g.id, Kinds: kinds}, given...)
	g.client.noteNumbers(a.Held)
	if err != nil {
		if a.Lost { // as in NewScope
			g.Drop(a.Held...)
		}
		return nil, nil, err
	}
	made, numbers, files, err = channelsFrom(kinds, a.Held, files)
	if err != nil || len(files) > 0 || len(numbers) != len(also) {
		own.CloseChannels(made)
		descriptor.CloseAll(files)
		g.Drop(a.Held...)
		return nil, nil, fmt.Errorf("make: %w", fs.ErrInvalid)
	}
	return made, numbers, nil
}

// channelsFrom takes the made channels from numbers and files, and returns the rest of both.
func channelsFrom(kinds []own.ChannelKind, numbers, files []int) (made []own.Channel, _, _ []int, err error) {
	for range kinds {
		if len(numbers) < 2 || len(files) < 2 && (numbers[0] >= 0 || len(files) < 1) {
			return made, numbers, files, fmt.Errorf("make: %w", fs.ErrInvalid)
		}
		m := own.Channel{R: -1, HeldR: numbers[0], HeldW: numbers[1], FileNumber: numbers[1]}
		if m.HeldR >= 0 {
			m.R, files = files[0], files[1:]
		}
		m.W, files = files[0], files[1:]
		made, numbers = append(made, m), numbers[2:]
	}
	return made, numbers, files, nil
}

// Enterable asks the keeper if the sessions run as another user than we do. Both ways are bounded.
func (g *group) Enterable(dir string) error {
	if !g.client.state.OtherUser {
		return slowfs.Enterable(g.id, dir)
	}
	_, _, err := g.client.Call(wire.Message{Op: wire.OpEnter, Group: g.id, Dir: []byte(dir)})
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return &fs.PathError{Op: "chdir", Path: dir, Err: errno}
	}
	return err
}

// Cwd returns a process's directory. It asks the keeper if we may not read it.
func (g *group) Cwd(pid int) string {
	if dir := procfs.Cwd(pid); dir != "" || !g.client.state.OtherUser {
		return dir
	}
	a, _, _ := g.client.Call(wire.Message{Op: wire.OpCwd, Group: g.id, Pid: pid})
	return string(a.Dir)
}

func (g *group) ReleaseConfinement() {
	g.client.sendOneWay(wire.Message{Op: wire.OpReleaseConfinement, Group: g.id})
}

func (g *group) Hold(fds ...int) (numbers []int, err error) {
	files, err := duplicates(fds)
	if err != nil {
		return nil, err
	}
	a, _, err := g.client.Call(wire.Message{Op: wire.OpHold, Group: g.id}, files...)
	g.client.noteNumbers(a.Held)
	return a.Held, err
}

func (g *group) StartInNewScope(s own.Spec, hold ...int) (d own.Started, err error) {
	if g.client.revision < wire.RevisionStart {
		return own.StartInSteps(g, s, hold...)
	}
	files, err := duplicates(hold)
	if err != nil {
		return d, err
	}
	req, given, err := spawnOf(s)
	if err != nil {
		descriptor.CloseAll(files)
		return d, err
	}
	k := newChild(g.client, g.id)
	m := wire.Message{Op: wire.OpStart, Group: g.id, Spawn: req, Count: len(files)}
	call, err := g.client.sendRequest(m, k, append(files, given...))
	if err != nil {
		return d, err
	}
	<-call.answered
	crashpoint.Here("after an answer of the keeper")
	a, list, err := call.result()
	g.client.noteNumbers(a.Held)
	if err == nil && k.Pidfd() < 0 {
		err = unix.EMFILE
	}
	if err != nil {
		descriptor.CloseAll(list)
		if k.number != 0 { // the process runs, but we had no room for its descriptor
			c := g.client.newScope(g, a.Scope, a.Mark, -1)
			_ = c.Kill(0)
			c.Remove()
			k.Close()
			g.Drop(a.Held...)
		}
		return d, err
	}
	return own.Started{Scope: g.scopeOf(a, list), Child: k, Held: a.Held}, nil
}

func (g *group) Lend(of own.KeptChild, numbers ...int) (fds []int, err error) {
	k := of.(*child)
	_, fds, err = g.client.Call(wire.Message{Op: wire.OpLend, Group: g.id, Child: k.number, Held: numbers})
	if err == nil && len(fds) != len(numbers)+1 {
		err = unix.EMFILE
	}
	if err != nil {
		descriptor.CloseAll(fds)
		return nil, err
	}
	k.awake(fds[len(numbers)])
	return fds[:len(numbers)], nil
}

func duplicates(fds []int) (files []int, err error) {
	for _, fd := range fds {
		fd, err := wire.Duplicate(fd)
		if err != nil {
			descriptor.CloseAll(files)
			return nil, err
		}
		files = append(files, fd)
	}
	return files, nil
}

func (g *group) Drop(numbers ...int) {
	g.client.sendOneWay(wire.Message{Op: wire.OpDrop, Group: g.id, Held: numbers})
}

func (g *group) WriteHeld(number int, p []byte, at int64) {
	g.client.sendOneWay(wire.Message{Op: wire.OpWrite, Group: g.id, Held: []int{number}, Text: p, Range: wire.Range{From: at}})
}

func (g *group) PunchHeld(number int, from, to int64) {
	g.client.sendOneWay(wire.Message{Op: wire.OpPunch, Group: g.id, Held: []int{number}, Range: wire.Range{From: from, To: to}})
}

func (g *group) DropAll() {
	g.client.sendOneWay(wire.Message{Op: wire.OpDropAll, Group: g.id})
	g.forgetScopes()
}

func (g *group) Members() []int {
	a, _, _ := g.client.Call(wire.Message{Op: wire.OpMembers, Group: g.id})
	return a.Pids
}

func (g *group) Signal(sig syscall.Signal, except ...int) {
	_, _, _ = g.client.Call(wire.Message{Op: wire.OpSignal, Group: g.id, Signal: int(sig), Pids: except})
}

// Close ends the group's processes. If ctx ends first, the keeper still ends them.
func (g *group) Close(ctx context.Context) error {
	k, err := g.client.sendRequest(wire.Message{Op: wire.OpClose, Group: g.id}, nil, nil)
	if err != nil {
		return err
	}
	select {
	case <-k.answered:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, _, err := k.result(); err != nil {
		return err
	}
	g.forgetScopes()
	return nil
}

func (g *group) forgetScopes() {
	g.mu.Lock()
	scopes := g.scopes
	g.scopes = map[int]*scope{}
	g.mu.Unlock()
	for _, c := range scopes {
		c.forget()
	}
}
