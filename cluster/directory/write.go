package directory

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"trl/cluster/kv"
)

// writeInterval is the shortest time between two writes of one principal's presence, and between attempts at what could not be written.
const writeInterval = time.Second

// present is how many live sessions a principal has on this node. Guarded by Directory.mu.
type present struct {
	live    int
	told    int // as it was written last
	term    int // health.term then
	written time.Time
}

// SetLive says how many live sessions a principal has on this node. The others learn the first and the last at once, and others at most once a
// second.
func (d *Directory) SetLive(principal string, live int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := hashed("principal", principal)
	p := d.presents[key]
	if p == nil {
		if live == 0 {
			return
		}
		p = &present{}
		d.presents[key] = p
	}
	p.live = live
	if time.Since(p.written) >= writeInterval {
		signal(d.wakeWrite)
	}
}

// Presence returns on which nodes a principal has live sessions, and how many. It knows only nodes whose lease runs.
func (d *Directory) Presence(ctx context.Context, principal string) (live map[string]int, err error) {
	ctx, end, err := d.bounded(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	key := hashed("principal", principal)
	entries, err := d.presence.List(ctx, key+".*")
	if err != nil {
		return nil, err
	}
	live = map[string]int{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range entries {
		epoch := strings.TrimPrefix(e.Key, key+".")
		if n, err := strconv.Atoi(string(e.Value)); err == nil && n > 0 && d.known.byEpoch[epoch] != nil {
			live[epoch] = n
		}
	}
	delete(live, d.opts.Node.Epoch) // of this node we know better
	if p := d.presents[key]; p != nil && p.live > 0 {
		live[d.opts.Node.Epoch] = p.live
	}
	return live, nil
}

// Owned is everything that a node owns in the directory.
type Owned struct {
	Names []OwnedName
	Moved []Moved        // sessions that other nodes had before
	Live  map[string]int // live sessions of each principal
}

// OwnedName is a name of one session of this node.
type OwnedName struct {
	Principal, Name, Session string
	Left                     bool // see MovesAway
}

// Rebuild tells the directory what this node owns, for example after a new gateway has restored the sessions. Everything is written to NATS, where
// it is missing. What belongs to another node by now is left to it, and reported to OnConflict. What NATS has of this node beyond it counts as free.
// If Rebuild returns ErrUnavailable, the directory goes on as soon as NATS answers.
func (d *Directory) Rebuild(ctx context.Context, o Owned) error {
	d.Note(o)
	ctx, end, err := d.bounded(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := d.restore(ctx); err != nil {
		return err
	}
	return d.writePresence(ctx)
}

// Note is Rebuild without the wait.
func (d *Directory) Note(o Owned) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range o.Names {
		d.own(d.nameKey(n.Principal, n.Name), n.Session, n.Left)
	}
	for _, m := range o.Moved {
		d.takeOver(m)
	}
	for principal, live := range o.Live {
		d.presents[hashed("principal", principal)] = &present{live: live}
	}
	d.records.rebuilt = true
	signal(d.wakeWrite)
}

// own notes a key of this node that is not written yet. Directory.mu is held.
func (d *Directory) own(k recordKey, session string, left bool) {
	if owned := d.records.owned[k]; owned == nil || owned.session != session {
		d.records.owned[k] = &record{session: session, left: left}
	}
}

// write writes what this node owns, whenever there is something to write and NATS answers.
func (d *Directory) write() {
	tick := time.NewTicker(writeInterval)
	defer tick.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
		case <-d.wakeWrite:
		}
		if degraded, _ := d.Degraded(); degraded {
			continue
		}
		ctx, cancel := context.WithTimeout(d.ctx, d.opts.Wait)
		for _, work := range []func(context.Context) error{d.restore, d.dropAll, d.writePresence, d.purge} {
			if work(ctx) != nil {
				break // NATS does not answer; the next tick tries again
			}
		}
		cancel()
	}
}

// due lists the keys that may be missing in NATS, or whose time there is a third over. It forgets those that need not be written any more.
func (d *Directory) due() (keys []recordKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for k, r := range d.records.owned {
		switch {
		case !r.ends.IsZero() && now.After(r.ends):
			delete(d.records.owned, k)
		case r.left:
		case r.moves, r.term != d.health.term, r.ends.IsZero() && now.Sub(r.written) > ownedTTL/3:
			keys = append(keys, k)
		}
	}
	return keys
}

// restore writes every key that is due. It gives up those that belong to another node.
func (d *Directory) restore(ctx context.Context) error {
	for _, k := range d.due() {
		lost, err := d.restoreOne(ctx, k)
		if err != nil {
			return err
		}
		if lost != nil {
			d.call(func() { d.opts.OnConflict(*lost) })
		}
	}
	return nil
}

func (d *Directory) restoreOne(ctx context.Context, k recordKey) (lost *Conflict, err error) {
	unlock, err := d.lock(ctx, k)
	if err != nil {
		return nil, err
	}
	defer unlock()
	d.mu.Lock()
	r := d.records.owned[k]
	if r == nil { // released meanwhile
		d.mu.Unlock()
		return nil, nil
	}
	session, old := r.session, !r.written.IsZero() && time.Since(r.written) > ownedTTL/3
	d.mu.Unlock()
	now, term, err := d.tryClaim(ctx, k, Claim{session, d.opts.Node.Epoch, true}, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.records.owned[k] == r && r.moves && !r.left
	})
	ours := now.Session == session && now.Epoch == d.opts.Node.Epoch
	if err == nil && ours && old {
		err = d.renew(ctx, k)
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if ours {
		r.term, r.written, r.moves = term, time.Now(), false
		return nil, nil
	}
	if now.Session == session && r.left { // it is about to move, or has moved
		return nil, nil
	}
	if d.records.owned[k] == r {
		delete(d.records.owned, k)
	}
	if now.Session == session { // it has moved to that node
		return nil, nil
	}
	return &Conflict{Kind: d.kindOf(k), Key: k.key, Session: session, Owner: now}, nil
}

func (d *Directory) kindOf(k recordKey) string {
	switch k.bucket {
	case d.names:
		return "name"
	case d.keys:
		return "key"
	}
	return "moved"
}

// renew writes a key of ours again, so that NATS keeps it.
func (d *Directory) renew(ctx context.Context, k recordKey) error {
	e, err := k.bucket.Latest(ctx, k.key)
	if err == nil {
		_, err = k.bucket.Update(ctx, k.key, e.Value, e.Revision)
	}
	if errors.Is(err, kv.ErrNotFound) || errors.Is(err, kv.ErrConflict) {
		return nil // the next round sees to it
	}
	return err
}

// dropAll deletes the keys that could not be deleted before.
func (d *Directory) dropAll(ctx context.Context) error {
	d.mu.Lock()
	all := slices.Collect(maps.Keys(d.records.dropping))
	d.mu.Unlock()
	for _, k := range all {
		if err := d.drop(ctx, k.recordKey, k.session); err != nil {
			return err
		}
	}
	return nil
}

// writePresence writes the numbers of live sessions that have changed, or that may be missing in NATS.
func (d *Directory) writePresence(ctx context.Context) error {
	type change struct {
		key  string
		live int
	}
	var changes []change
	d.mu.Lock()
	term := d.health.term
	for key, p := range d.presents {
		stale := p.term != term || time.Since(p.written) > ownedTTL/3
		switch {
		case p.live == p.told && (!stale || p.live == 0):
			if p.live == 0 && time.Since(p.written) > writeInterval {
				delete(d.presents, key)
			}
		case stale || time.Since(p.written) >= writeInterval:
			changes = append(changes, change{key, p.live})
		}
	}
	d.mu.Unlock()
	for _, c := range changes {
		var err error
		if key := c.key + "." + d.opts.Node.Epoch; c.live > 0 {
			_, err = d.presence.Put(ctx, key, strconv.AppendInt(nil, int64(c.live), 10), 0)
		} else {
			err = d.presence.Drop(ctx, key, time.Minute)
		}
		if err != nil {
			return err
		}
		d.mu.Lock()
		if p := d.presents[c.key]; p != nil {
			p.told, p.term, p.written = c.live, term, time.Now()
		}
		d.mu.Unlock()
	}
	return nil
}

// purge deletes the presence of nodes that went, one lease later: by then a node that was only cut off has come back.
func (d *Directory) purge(ctx context.Context) error {
	d.mu.Lock()
	var gone []string
	for epoch, since := range d.purges {
		if time.Since(since) >= d.opts.lease {
			gone = append(gone, epoch)
		}
	}
	d.mu.Unlock()
	for _, epoch := range gone {
		if _, back := d.Node(epoch); !back && d.first() {
			if err := d.presence.Purge(ctx, "*."+epoch); err != nil {
				return err
			}
		}
		d.mu.Lock()
		delete(d.purges, epoch)
		d.mu.Unlock()
	}
	return nil
}
