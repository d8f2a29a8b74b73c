package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"

	"trl/protocol"
	"trl/runtime"
	"trl/runtime/procfs"
)

// A group is runtime.KeptGroup.
type group struct {
	client *Client
	id     string

	mu     sync.Mutex
	scopes map[int]*scope // guarded by mu; those that are there
}

func (g *group) NewScope() (runtime.KeptScope, error) {
	a, files, err := g.client.call(message{Op: opScope, Group: g.id})
	if err != nil {
		if a.lost { // it is there, but we have no room
			g.client.newScope(g, a.Scope, a.Mark, -1).Remove()
		}
		return nil, err
	}
	list := -1
	if len(files) == 1 {
		list = files[0]
	}
	return g.client.newScope(g, a.Scope, a.Mark, list), nil
}

func (g *group) Limit(l protocol.Limits) error {
	if l == (protocol.Limits{}) { // nothing to ask for
		return nil
	}
	_, _, err := g.client.call(message{Op: opLimit, Group: g.id, Limits: &l})
	return err
}

func (g *group) Gauge() *runtime.Gauge {
	a, files, err := g.client.call(message{Op: opGauge, Group: g.id})
	if err != nil {
		return runtime.GaugeOf(nil, nil)
	}
	return runtime.GaugeOf(a.Held, files)
}

func (g *group) Dir() string {
	if g.UsesFIFOs() {
		return g.client.state.FIFODir + "/" + g.id
	}
	return g.client.Dir()
}

func (g *group) UsesFIFOs() bool { return g.client.state.FIFODir != "" }

func (g *group) MakeChannels(kinds []runtime.ChannelKind, also ...int) (made []runtime.Channel, numbers []int, err error) {
	if !g.UsesFIFOs() {
		return runtime.MakeAnonymousChannels(g, kinds, also...)
	}
	given, err := duplicates(also)
	if err != nil {
		return nil, nil, err
	}
	a, files, err := g.client.call(message{Op: opMakeChannels, Group: g.id, Kinds: kinds}, given...)
	g.client.noteNumbers(a.Held)
	if err != nil {
		if a.lost { // as in NewScope
			g.Drop(a.Held...)
		}
		return nil, nil, err
	}
	made, numbers, files, err = channelsFrom(kinds, a.Held, files)
	if err != nil || len(files) > 0 || len(numbers) != len(also) {
		runtime.CloseChannels(made)
		closeAll(files)
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
func (g *group) Enterable(dir string) error {
	if !g.client.state.OtherUser {
		return runtime.AskEnterable(g.id, dir)
	}
	_, _, err := g.client.call(message{Op: opEnter, Group: g.id, Dir: []byte(dir)})
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return &fs.PathError{Op: "chdir", Path: dir, Err: errno}
	}
	return err
}

// Cwd asks where we may not look.
func (g *group) Cwd(pid int) string {
	if dir := procfs.Cwd(pid); dir != "" || !g.client.state.OtherUser {
		return dir
	}
	a, _, _ := g.client.call(message{Op: opCwd, Group: g.id, Pid: pid})
	return string(a.Dir)
}

func (g *group) ReleaseConfinement() {
	g.client.sendOneWay(message{Op: opReleaseConfinement, Group: g.id})
}

func (g *group) Hold(fds ...int) (numbers []int, err error) {
	files, err := duplicates(fds)
	if err != nil {
		return nil, err
	}
	a, _, err := g.client.call(message{Op: opHold, Group: g.id}, files...)
	g.client.noteNumbers(a.Held)
	return a.Held, err
}

func duplicates(fds []int) (files []int, err error) {
	for _, fd := range fds {
		fd, err := duplicate(fd)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, fd)
	}
	return files, nil
}

func (g *group) Drop(numbers ...int) {
	g.client.sendOneWay(message{Op: opDrop, Group: g.id, Held: numbers})
}

func (g *group) WriteHeld(number int, p []byte, at int64) {
	g.client.sendOneWay(message{Op: opWrite, Group: g.id, Held: []int{number}, Text: p, From: at})
}

func (g *group) PunchHeld(number int, from, to int64) {
	g.client.sendOneWay(message{Op: opPunch, Group: g.id, Held: []int{number}, From: from, To: to})
}

func (g *group) DropAll() {
	g.client.sendOneWay(message{Op: opDropAll, Group: g.id})
	g.forgetScopes()
}

func (g *group) Members() []int {
	a, _, _ := g.client.call(message{Op: opMembers, Group: g.id})
	return a.Pids
}

func (g *group) Signal(sig syscall.Signal, except ...int) {
	_, _, _ = g.client.call(message{Op: opSignal, Group: g.id, Signal: int(sig), Pids: except})
}

// Close: when ctx ends first, the keeper goes on all the same.
func (g *group) Close(ctx context.Context) error {
	k, err := g.client.sendRequest(message{Op: opClose, Group: g.id}, nil, nil)
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
