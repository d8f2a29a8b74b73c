package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"

	"trl/protocol"
	"trl/runtime"
	"trl/runtime/descriptor"
	"trl/runtime/keeper/wire"
	"trl/runtime/procfs"
)

// A group is runtime.KeptGroup.
type Group struct {
	Client *Client
	Id     string

	mu     sync.Mutex
	scopes map[int]*scope // guarded by mu; those that are there
}

func (g *Group) NewScope() (runtime.KeptScope, error) {
	a, files, err := g.Client.Call(wire.Message{Op: wire.OpScope, Group: g.Id})
	if err != nil {
		if a.Lost { // it is there, but we have no room
			g.Client.newScope(g, a.Scope, a.Mark, -1).Remove()
		}
		return nil, err
	}
	list := -1
	if len(files) == 1 {
		list = files[0]
	}
	return g.Client.newScope(g, a.Scope, a.Mark, list), nil
}

func (g *Group) Limit(l protocol.Limits) error {
	if l == (protocol.Limits{}) { // nothing to ask for
		return nil
	}
	_, _, err := g.Client.Call(wire.Message{Op: wire.OpLimit, Group: g.Id, Limits: &l})
	return err
}

func (g *Group) Gauge() *runtime.Gauge {
	a, files, err := g.Client.Call(wire.Message{Op: wire.OpGauge, Group: g.Id})
	if err != nil {
		return runtime.GaugeOf(nil, nil)
	}
	return runtime.GaugeOf(a.Held, files)
}

func (g *Group) Dir() string {
	if g.UsesFIFOs() {
		return g.Client.State.FIFODir + "/" + g.Id
	}
	return g.Client.Dir()
}

func (g *Group) UsesFIFOs() bool { return g.Client.State.FIFODir != "" }

func (g *Group) MakeChannels(kinds []runtime.ChannelKind, also ...int) (made []runtime.Channel, numbers []int, err error) {
	if !g.UsesFIFOs() {
		return runtime.MakeAnonymousChannels(g, kinds, also...)
	}
	given, err := duplicates(also)
	if err != nil {
		return nil, nil, err
	}
	a, files, err := g.Client.Call(wire.Message{Op: wire.OpMakeChannels, Group: g.Id, Kinds: kinds}, given...)
	g.Client.noteNumbers(a.Held)
	if err != nil {
		if a.Lost { // as in NewScope
			g.Drop(a.Held...)
		}
		return nil, nil, err
	}
	made, numbers, files, err = channelsFrom(kinds, a.Held, files)
	if err != nil || len(files) > 0 || len(numbers) != len(also) {
		runtime.CloseChannels(made)
		descriptor.CloseAll(files)
		g.Drop(a.Held...)
		return nil, nil, fmt.Errorf("make: %w", fs.ErrInvalid)
	}
	return made, numbers, nil
}

// channelsFrom is what was made for us, and what it leaves of the numbers and files.
func channelsFrom(kinds []runtime.ChannelKind, numbers, files []int) (made []runtime.Channel, _, _ []int, err error) {
	for range kinds {
		if len(numbers) < 2 || len(files) < 2 && (numbers[0] >= 0 || len(files) < 1) {
			return made, numbers, files, fmt.Errorf("make: %w", fs.ErrInvalid)
		}
		m := runtime.Channel{R: -1, HeldR: numbers[0], HeldW: numbers[1], FileNumber: numbers[1]}
		if m.HeldR >= 0 {
			m.R, files = files[0], files[1:]
		}
		m.W, files = files[0], files[1:]
		made, numbers = append(made, m), numbers[2:]
	}
	return made, numbers, files, nil
}

// Enterable asks the keeper where the session's user is not ours. Both ways are bounded.
func (g *Group) Enterable(dir string) error {
	if !g.Client.State.OtherUser {
		return runtime.AskEnterable(g.Id, dir)
	}
	_, _, err := g.Client.Call(wire.Message{Op: wire.OpEnter, Group: g.Id, Dir: []byte(dir)})
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return &fs.PathError{Op: "chdir", Path: dir, Err: errno}
	}
	return err
}

// Cwd asks where we may not look.
func (g *Group) Cwd(pid int) string {
	if dir := procfs.Cwd(pid); dir != "" || !g.Client.State.OtherUser {
		return dir
	}
	a, _, _ := g.Client.Call(wire.Message{Op: wire.OpCwd, Group: g.Id, Pid: pid})
	return string(a.Dir)
}

func (g *Group) ReleaseConfinement() {
	g.Client.sendOneWay(wire.Message{Op: wire.OpReleaseConfinement, Group: g.Id})
}

func (g *Group) Hold(fds ...int) (numbers []int, err error) {
	files, err := duplicates(fds)
	if err != nil {
		return nil, err
	}
	a, _, err := g.Client.Call(wire.Message{Op: wire.OpHold, Group: g.Id}, files...)
	g.Client.noteNumbers(a.Held)
	return a.Held, err
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

func (g *Group) Drop(numbers ...int) {
	g.Client.sendOneWay(wire.Message{Op: wire.OpDrop, Group: g.Id, Held: numbers})
}

func (g *Group) WriteHeld(number int, p []byte, at int64) {
	g.Client.sendOneWay(wire.Message{Op: wire.OpWrite, Group: g.Id, Held: []int{number}, Text: p, From: at})
}

func (g *Group) PunchHeld(number int, from, to int64) {
	g.Client.sendOneWay(wire.Message{Op: wire.OpPunch, Group: g.Id, Held: []int{number}, From: from, To: to})
}

func (g *Group) DropAll() {
	g.Client.sendOneWay(wire.Message{Op: wire.OpDropAll, Group: g.Id})
	g.forgetScopes()
}

func (g *Group) Members() []int {
	a, _, _ := g.Client.Call(wire.Message{Op: wire.OpMembers, Group: g.Id})
	return a.Pids
}

func (g *Group) Signal(sig syscall.Signal, except ...int) {
	_, _, _ = g.Client.Call(wire.Message{Op: wire.OpSignal, Group: g.Id, Signal: int(sig), Pids: except})
}

// Close: when ctx ends first, the keeper goes on all the same.
func (g *Group) Close(ctx context.Context) error {
	k, err := g.Client.sendRequest(wire.Message{Op: wire.OpClose, Group: g.Id}, nil, nil)
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

func (g *Group) forgetScopes() {
	g.mu.Lock()
	scopes := g.scopes
	g.scopes = map[int]*scope{}
	g.mu.Unlock()
	for _, c := range scopes {
		c.forget()
	}
}
