package directory

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"trl/cluster/kv"
)

// Claim says to which session a name or a request key belongs, or where a session has moved.
type Claim struct {
	Session string `json:"session"`
	Epoch   string `json:"epoch"` // of the node that has the session
	Won     bool   `json:"-"`     // the session is the one that was claimed for
}

// Conflict tells that something that this node owned belongs to another node now. It was claimed while this node could not reach NATS.
type Conflict struct {
	Kind    string // "name", "key" or "moved"; "node": another gateway uses this node's epoch
	Key     string // as in NATS: hashed
	Session string // of this node; for "node" the other one's name
	Owner   Claim  // who has it now
}

// recordKey is a key in one of the buckets.
type recordKey struct {
	bucket *kv.Bucket
	key    string
}

// record is a key that this node owns.
type record struct {
	session string
	moves   bool      // another node had it, and is overwritten
	left    bool      // another node is about to take it over, and writes it
	term    int       // health.term when it was written
	written time.Time // the last write
	ends    time.Time // when it need not be written any more; zero: never
}

// dropKey is a key that must go if session has it.
type dropKey struct {
	recordKey
	session string
}

// records are what this node owns in the directory. All of it is guarded by Directory.mu.
type records struct {
	owned    map[recordKey]*record
	dropping map[dropKey]bool            // released, or claimed with an unknown result; true: also if another node has written it
	busy     map[recordKey]chan struct{} // keys that a goroutine works on; closed when it has finished
	rebuilt  bool                        // owned is complete: what NATS has of this node beyond it is old
}

func (r *records) init() {
	r.owned, r.dropping, r.busy = map[recordKey]*record{}, map[dropKey]bool{}, map[recordKey]chan struct{}{}
}

// lock waits until no other goroutine of this node works on a key. Between nodes the revisions in NATS decide.
func (d *Directory) lock(ctx context.Context, k recordKey) (unlock func(), err error) {
	for {
		d.mu.Lock()
		working := d.records.busy[k]
		if working == nil {
			done := make(chan struct{})
			d.records.busy[k] = done
			d.mu.Unlock()
			return func() {
				d.mu.Lock()
				delete(d.records.busy, k)
				d.mu.Unlock()
				close(done)
			}, nil
		}
		d.mu.Unlock()
		select {
		case <-working:
		case <-ctx.Done():
			return nil, ErrUnavailable
		}
	}
}

// hashed makes one key from parts that nobody may read in NATS, such as a principal and a name. Different parts give different keys.
func hashed(parts ...string) string {
	h := sha256.New()
	var length [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(p)))
		h.Write(length[:])
		h.Write([]byte(p))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:20])
}

func (d *Directory) nameKey(principal, name string) recordKey {
	return recordKey{d.names, hashed("name", principal, name)}
}

func (d *Directory) requestKey(principal, key string) recordKey {
	return recordKey{d.keys, hashed("key", principal, key)}
}

// ClaimName gives a principal's name to a session of this node, or returns the session that has it: of all that claim a name at the same time, one
// wins. A name whose node's lease has run out is free.
func (d *Directory) ClaimName(ctx context.Context, principal, name, session string) (Claim, error) {
	return d.claim(ctx, d.nameKey(principal, name), session)
}

// ClaimKey does the same for the request key of a session.create. The key is free again after ten minutes.
func (d *Directory) ClaimKey(ctx context.Context, principal, key, session string) (Claim, error) {
	return d.claim(ctx, d.requestKey(principal, key), session)
}

// Moved is a session that has moved to this node.
type Moved struct {
	Principal, Session string
	Name, Key          string   // its name, and the request key that made it; may be empty
	Marks              []string // by which FindMoved finds it
}

// records returns what the session has in the directory.
func (d *Directory) recordsOf(m Moved) (keys []recordKey) {
	for _, mark := range m.Marks {
		keys = append(keys, recordKey{d.moved, mark})
	}
	if m.Name != "" {
		keys = append(keys, d.nameKey(m.Principal, m.Name))
	}
	if m.Key != "" {
		keys = append(keys, d.requestKey(m.Principal, m.Key))
	}
	return keys
}

// TakeOver says that a session is on this node now. The node that had it last has called MovesAway. It is overwritten, and may call GiveUp when Restore has
// returned nil here. At no moment anybody else can claim the session's name. TakeOver does not wait.
func (d *Directory) TakeOver(m Moved) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.takeOver(m)
}

// Restore writes what this node owns and has not written yet. If it returns ErrUnavailable, that is written as soon as NATS answers.
func (d *Directory) Restore(ctx context.Context) error {
	ctx, end, err := d.bounded(ctx)
	if err != nil {
		return err
	}
	defer end()
	return d.restore(ctx)
}

// MovesAway says that another node is about to take over a session of this one. This node writes it no more, and still keeps its name from others.
func (d *Directory) MovesAway(m Moved) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range d.recordsOf(m) {
		if owned := d.records.owned[k]; owned != nil && owned.session == m.Session {
			owned.left = true
		}
	}
}

// takeOver notes what TakeOver writes. Directory.mu is held.
func (d *Directory) takeOver(m Moved) {
	for _, k := range d.recordsOf(m) {
		r := &record{session: m.Session, moves: true}
		if k.bucket == d.keys {
			r.ends = time.Now().Add(keyTTL)
		}
		d.records.owned[k] = r
		delete(d.records.dropping, dropKey{k, m.Session})
	}
	signal(d.wakeWrite)
}

// GiveUp says that another node has taken over a session of this one. It frees nothing.
func (d *Directory) GiveUp(m Moved) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range d.recordsOf(m) {
		if owned := d.records.owned[k]; owned != nil && owned.session == m.Session {
			delete(d.records.owned, k)
		}
	}
}

// FindName returns the session that has a name. Its node may be gone.
func (d *Directory) FindName(ctx context.Context, principal, name string) (Claim, bool, error) {
	return d.find(ctx, d.nameKey(principal, name))
}

// FindKey returns the session that a request key made.
func (d *Directory) FindKey(ctx context.Context, principal, key string) (Claim, bool, error) {
	return d.find(ctx, d.requestKey(principal, key))
}

// FindMoved returns the node to which a session has moved.
func (d *Directory) FindMoved(ctx context.Context, mark string) (Claim, bool, error) {
	return d.find(ctx, recordKey{d.moved, mark})
}

// ReleaseName frees a name if session has it on this node. If it
// returns ErrUnavailable, the name is freed as soon as NATS answers.
func (d *Directory) ReleaseName(ctx context.Context, principal, name, session string) error {
	return d.release(ctx, d.nameKey(principal, name), session)
}

// ReleaseKey frees a request key: its session was not made.
func (d *Directory) ReleaseKey(ctx context.Context, principal, key, session string) error {
	return d.release(ctx, d.requestKey(principal, key), session)
}

// ReleaseMoved forgets a session that has moved here, because it has ended. What the node that had it last has in NATS goes, too: that node does not write
// it again.
func (d *Directory) ReleaseMoved(ctx context.Context, m Moved) (err error) {
	for _, k := range d.recordsOf(m) {
		err = errors.Join(err, d.releaseOf(ctx, k, m.Session, true))
	}
	return err
}

func (d *Directory) claim(ctx context.Context, k recordKey, session string) (Claim, error) {
	ours := Claim{session, d.opts.Node.Epoch, true}
	ctx, end, err := d.bounded(ctx)
	if err != nil {
		return Claim{}, err
	}
	defer end()
	unlock, err := d.lock(ctx, k)
	if err != nil {
		return Claim{}, err
	}
	defer unlock()
	now, term, err := d.tryClaim(ctx, k, ours, func() bool { return true })
	if err != nil {
		d.dropLater(k, session) // it may have been written, or may still be
		return Claim{}, err
	}
	if now.Session != session {
		return now, nil
	}
	r := &record{session: session, term: term, written: time.Now()}
	if k.bucket == d.keys {
		r.ends = r.written.Add(keyTTL)
	}
	d.mu.Lock()
	d.records.owned[k] = r
	delete(d.records.dropping, dropKey{k, session})
	d.mu.Unlock()
	return ours, nil
}

// tryClaim writes ours, if the key is free, and returns what is there then. term is the health.term in which that was so. moves says that the
// session may have been on another node before, which loses the key. It is asked after the key was read: if it is true, a node that takes the session over
// afterwards changes the key, so that this one's write fails.
func (d *Directory) tryClaim(ctx context.Context, k recordKey, ours Claim, moves func() bool) (now Claim, term int, err error) {
	value, err := json.Marshal(ours)
	if err != nil {
		return Claim{}, 0, err
	}
	for {
		d.mu.Lock()
		term = d.health.term
		d.mu.Unlock()
		e, err := k.bucket.Create(ctx, k.key, value)
		if err == nil || !errors.Is(err, kv.ErrConflict) {
			return ours, term, err
		}
		var theirs Claim
		if json.Unmarshal(e.Value, &theirs) == nil {
			var free bool
			var err error
			if theirs.Session == ours.Session {
				free = theirs.Epoch != ours.Epoch && moves()
			} else {
				free, err = d.mayTake(ctx, k, theirs)
			}
			if err != nil || !free {
				return theirs, term, err
			}
		}
		_, err = k.bucket.Update(ctx, k.key, value, e.Revision)
		if err == nil || !errors.Is(err, kv.ErrConflict) {
			return ours, term, err
		}
	}
}

// mayTake says whether a key that belongs to theirs may be taken for another session. The caller has locked the key.
func (d *Directory) mayTake(ctx context.Context, k recordKey, theirs Claim) (bool, error) {
	d.mu.Lock()
	r := &d.records
	if theirs.Epoch == d.opts.Node.Epoch { // what this node does not own any more, or never did because its claim failed
		defer d.mu.Unlock()
		owned := r.owned[k]
		_, dropping := r.dropping[dropKey{k, theirs.Session}]
		return dropping || r.rebuilt && (owned == nil || owned.session != theirs.Session), nil
	}
	p := d.known.byEpoch[theirs.Epoch] // forgetSilent may be about to forget it
	dead := (p == nil || time.Since(p.heard) >= d.opts.lease) && d.healthyForLocked() >= d.opts.lease
	d.mu.Unlock()
	if !dead {
		return false, nil
	}
	return d.leaseHasEnded(ctx, theirs.Epoch)
}

// leaderPatience is how long a question waits for the bucket's leader, before any server may answer it.
const leaderPatience = 500 * time.Millisecond

func (d *Directory) find(ctx context.Context, k recordKey) (c Claim, found bool, err error) {
	e, err := d.read(ctx, k.bucket, k.key)
	switch {
	case errors.Is(err, kv.ErrNotFound):
		return Claim{}, false, nil
	case err != nil:
		return Claim{}, false, err
	}
	err = json.Unmarshal(e.Value, &c)
	return c, err == nil, err
}

// read asks the leader, who knows what was written last. While the servers elect one, any server may answer, but only with a key that exists: it
// may lag behind, so that it knows the key's last owner.
func (d *Directory) read(ctx context.Context, b *kv.Bucket, key string) (kv.Entry, error) {
	ctx, end, err := d.bounded(ctx)
	if err != nil {
		return kv.Entry{}, err
	}
	defer end()
	for {
		soon, cancel := context.WithTimeout(ctx, leaderPatience)
		e, err := b.Latest(soon, key)
		cancel()
		if !errors.Is(err, ErrUnavailable) {
			return e, err
		}
		soon, cancel = context.WithTimeout(ctx, leaderPatience)
		e, anyErr := b.Get(soon, key)
		cancel()
		if anyErr == nil {
			return e, nil
		}
		if ctx.Err() != nil {
			return kv.Entry{}, err
		}
	}
}

func (d *Directory) release(ctx context.Context, k recordKey, session string) error {
	return d.releaseOf(ctx, k, session, false)
}

// releaseOf frees a key if session has it: on this node, or anywhere.
func (d *Directory) releaseOf(ctx context.Context, k recordKey, session string, anywhere bool) error {
	d.mu.Lock()
	if owned := d.records.owned[k]; owned != nil && owned.session == session {
		delete(d.records.owned, k)
	}
	d.records.dropping[dropKey{k, session}] = anywhere
	d.mu.Unlock()
	signal(d.wakeWrite)
	ctx, end, err := d.bounded(ctx)
	if err != nil {
		return err
	}
	defer end()
	return d.drop(ctx, k, session)
}

// dropLater has the writer delete a key, if session has it.
func (d *Directory) dropLater(k recordKey, session string) {
	d.mu.Lock()
	if _, dropping := d.records.dropping[dropKey{k, session}]; !dropping {
		d.records.dropping[dropKey{k, session}] = false
	}
	d.mu.Unlock()
	signal(d.wakeWrite)
}

// drop deletes a key if session has it. If nobody has it, the key is marked as deleted all the same: a claim of it may still be on its way, for
// example in the memory of a server that is stopped, and must not succeed when it arrives.
func (d *Directory) drop(ctx context.Context, k recordKey, session string) error {
	unlock, err := d.lock(ctx, k)
	if err != nil {
		return err
	}
	defer unlock()
	for {
		if d.owns(k, session) { // claimed again
			break
		}
		dropping, anywhere := d.isDropping(k, session)
		if !dropping { // another goroutine has done it
			return nil
		}
		e, err := k.bucket.Latest(ctx, k.key)
		var c Claim
		switch {
		case errors.Is(err, kv.ErrNotFound):
			err = k.bucket.Delete(ctx, k.key, 0)
		case err == nil && json.Unmarshal(e.Value, &c) == nil && c.Session == session && (anywhere || c.Epoch == d.opts.Node.Epoch):
			err = k.bucket.Delete(ctx, k.key, e.Revision)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, kv.ErrConflict) {
			return err
		}
	}
	d.mu.Lock()
	delete(d.records.dropping, dropKey{k, session})
	d.mu.Unlock()
	return nil
}

func (d *Directory) isDropping(k recordKey, session string) (dropping, anywhere bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	anywhere, dropping = d.records.dropping[dropKey{k, session}]
	return dropping, anywhere
}

func (d *Directory) owns(k recordKey, session string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	owned := d.records.owned[k]
	return owned != nil && owned.session == session
}
