package host

import (
	"context"
	"io/fs"

	"trl/runtime/descriptor"
	"trl/runtime/own"
)

// Local makes h a Keeper for the process that it is in.
func Local(h *Host) own.Keeper { return LocalKeeper{h} }

type LocalKeeper struct{ *Host }

func (l LocalKeeper) DescriptorsShort() bool {
	return descriptor.Short(descriptor.Count())
}

func (l LocalKeeper) Gone() bool { return false }

func (l LocalKeeper) Group(id string) (own.KeptGroup, error) {
	if err := descriptor.KeptBack(); err != nil {
		return nil, err
	}
	g, err := l.NewGroup(id)
	if err != nil {
		return nil, err
	}
	return localGroup{g}, nil
}

func (l LocalKeeper) StartSession(id string, f own.StartRequest) (d own.StartedSession, err error) {
	if d.Group, err = l.Group(id); err != nil {
		return own.StartedSession{}, err
	}
	defer func() {
		if err != nil {
			_ = d.Group.Close(context.Background())
			d.Group.DropAll()
			if d.Child != nil {
				_ = d.Child.Close()
			}
			d = own.StartedSession{}
		}
	}()
	if err = d.Group.Limit(f.Limits); err != nil {
		return d, err
	}
	if d.Scope, err = d.Group.NewScope(); err != nil {
		return d, err
	}
	if d.Child, err = d.Scope.Spawn(f.Shell); err != nil {
		return d, err
	}
	return d, f.Parallel(d.Group)
}

type localGroup struct{ *Group }

func (g localGroup) NewScope() (own.KeptScope, error) {
	c, err := g.Group.NewScope()
	if err != nil {
		return nil, err
	}
	return localScope{c}, nil
}

func (g localGroup) Gauge() *own.Gauge { return g.Meters().Open() }

func (g localGroup) Dir() string {
	if g.UsesFIFOs() {
		return g.confinement.dir
	}
	return descriptor.OwnDir()
}

func (g localGroup) MakeChannels(kinds []own.ChannelKind, also ...int) ([]own.Channel, []int, error) {
	if !g.UsesFIFOs() {
		return own.MakeAnonymousChannels(g, kinds, also...)
	}
	made, err := g.Group.MakeChannels(kinds)
	return made, also, err
}

// Hold does nothing, because the caller's own descriptors can be found in Dir as long as it keeps them open.
func (g localGroup) Hold(fds ...int) ([]int, error) { return fds, nil }

func (g localGroup) StartInNewScope(s own.Spec, hold ...int) (own.Started, error) {
	return own.StartInSteps(g, s, hold...)
}

// Lend is not used: the caller holds its descriptors itself.
func (g localGroup) Lend(own.KeptChild, ...int) ([]int, error) { return nil, fs.ErrInvalid }

func (g localGroup) HeldElsewhere() bool { return false }

func (g localGroup) Drop(numbers ...int) { g.Unlink(numbers...) }

// WriteHeld and PunchHeld do nothing, because they are for callers that have closed their own descriptor, and here no
// other process holds one.
func (g localGroup) WriteHeld(int, []byte, int64) {}

func (g localGroup) PunchHeld(int, int64, int64) {}

func (g localGroup) ReleaseConfinement() { g.host.ReleaseConfinement(g.id) }

func (g localGroup) DropAll() { g.host.ReleaseConfinement(g.id) }

type localScope struct{ *Scope }

func (c localScope) Spawn(s own.Spec) (own.KeptChild, error) {
	child, err := c.Scope.Spawn(s)
	if err != nil {
		return nil, err
	}
	return localChild{child}, nil
}

type localChild struct{ *Child }

func (c localChild) Rest() {}
