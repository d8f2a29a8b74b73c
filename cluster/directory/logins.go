package directory

import (
	"context"
	"errors"
	"time"

	"trl/cluster/kv"
)

// PutLogin tells all nodes of a page's login: what it allows, as the caller encodes it, for as long as given. NATS ends it. If NATS loses its data,
// the login is gone and its user logs in again: a node that wrote it once more could undo a logout.
func (d *Directory) PutLogin(ctx context.Context, token string, allows []byte, lasts time.Duration) error {
	if lasts < time.Second {
		return nil
	}
	ctx, end, err := d.bounded(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, err = d.logins.Put(ctx, hashed("login", token), allows, min(lasts, loginsTTL).Truncate(time.Second))
	return err
}

// Login returns what the login with a token allows. While NATS elects a leader, a login that has just ended may still count.
func (d *Directory) Login(ctx context.Context, token string) (allows []byte, found bool, err error) {
	e, err := d.read(ctx, d.logins, hashed("login", token))
	if errors.Is(err, kv.ErrNotFound) {
		return nil, false, nil
	}
	return e.Value, err == nil, err
}

// DropLogin ends a login at all nodes.
func (d *Directory) DropLogin(ctx context.Context, token string) error {
	ctx, end, err := d.bounded(ctx)
	if err != nil {
		return err
	}
	defer end()
	return d.logins.Drop(ctx, hashed("login", token), keyTTL)
}
