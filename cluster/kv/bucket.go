// Package kv keeps keys in NATS JetStream. It uses the layout of NATS' own key-value buckets, so the nats command can show them, and it is made
// from requests of the core client, because the client's JetStream package would make the program larger.
//
// Every call retries for as long as its context allows: while the servers elect a leader, they answer nobody for some seconds. A write whose
// answer was lost is recognised when it is sent again.
package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

var (
	ErrNotFound    = errors.New("key not found")
	ErrConflict    = errors.New("the key has another revision")
	ErrUnavailable = errors.New("the directory does not answer") // also wraps the last error of an attempt
	ErrTooMany     = errors.New("too many keys for one listing")
)

// Bucket is one bucket. Its fields do not change.
type Bucket struct {
	Conn   *nats.Conn
	Name   string
	TTL    time.Duration // of each key, from its last write
	Memory bool          // kept in memory only, for what its owners write again all the time
}

// Entry is one key with its value.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
}

// maxReplicas is the number of copies that a bucket has as soon as there are enough servers.
const maxReplicas = 3

// markerTTL is how long a deleted key is remembered. A delayed copy of a create fails until then.
const markerTTL = 10 * time.Minute

func (b *Bucket) stream() string            { return "KV_" + b.Name }
func (b *Bucket) subject(key string) string { return "$KV." + b.Name + "." + key }

// Subject returns the subject on which NATS sends each write of a key that matches filter, to subscribers of the core client.
func (b *Bucket) Subject(filter string) string { return b.subject(filter) }

// KeyOf returns the key of a message that came on a Subject.
func (b *Bucket) KeyOf(subject string) string {
	return strings.TrimPrefix(subject, b.subject(""))
}

// IsDelete says whether a message that came on a Subject deletes its key.
func IsDelete(m *nats.Msg) bool { return m.Header.Get("KV-Operation") != "" }

// Create makes a key that does not exist. If it exists with the same value, it counts as made by us, because our answer may have been lost: the
// value must be unique to the caller. If it has another value, Create returns that entry and ErrConflict.
func (b *Bucket) Create(ctx context.Context, key string, value []byte) (made Entry, err error) {
	err = b.retry(ctx, func(ctx context.Context) error {
		expected := uint64(0)
		for range 2 {
			rev, err := b.publish(ctx, key, value, expected, nil)
			if !errors.Is(err, ErrConflict) {
				made = Entry{key, value, rev}
				return err
			}
			old, deleted, err := b.latest(ctx, key)
			switch {
			case errors.Is(err, ErrNotFound):
				return again("the create that made this one fail is not visible yet")
			case err != nil:
				return err
			case !deleted && string(old.Value) == string(value):
				made = old
				return nil
			case !deleted:
				made = old
				return ErrConflict
			}
			expected = old.Revision
		}
		return again("the key is deleted and made all the time")
	})
	return made, err
}

// Update replaces the value of a key that has this revision, and returns the new revision. As in Create, an equal value counts as ours.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, revision uint64) (rev uint64, err error) {
	err = b.retry(ctx, func(ctx context.Context) error {
		var err error
		if rev, err = b.publish(ctx, key, value, revision, nil); !errors.Is(err, ErrConflict) {
			return err
		}
		old, deleted, getErr := b.latest(ctx, key)
		switch {
		case getErr == nil && old.Revision == revision: // the write that made this one fail is not visible yet
			return again(err.Error())
		case getErr == nil && !deleted && old.Revision > revision && string(old.Value) == string(value):
			rev = old.Revision
			return nil
		case getErr == nil || errors.Is(getErr, ErrNotFound):
			return ErrConflict
		}
		return getErr
	})
	return rev, err
}

// Put sets a key, whatever it was. A ttl other than 0 replaces the bucket's.
func (b *Bucket) Put(ctx context.Context, key string, value []byte, ttl time.Duration) (rev uint64, err error) {
	var h nats.Header
	if ttl > 0 {
		h = nats.Header{"Nats-TTL": {ttl.String()}}
	}
	err = b.retry(ctx, func(ctx context.Context) error {
		var err error
		rev, err = b.publish(ctx, key, value, anyRevision, h)
		return err
	})
	return rev, err
}

// Delete deletes a key that has this revision. A key that is gone already is no error.
func (b *Bucket) Delete(ctx context.Context, key string, revision uint64) error {
	return b.retry(ctx, func(ctx context.Context) error {
		_, err := b.publish(ctx, key, nil, revision, deleteHeader(markerTTL))
		if !errors.Is(err, ErrConflict) {
			return err
		}
		old, deleted, getErr := b.latest(ctx, key)
		switch {
		case errors.Is(getErr, ErrNotFound) || getErr == nil && deleted:
			return nil
		case getErr == nil && old.Revision != revision:
			return ErrConflict
		case getErr == nil:
			return again(err.Error())
		}
		return getErr
	})
}

// Drop deletes a key, whatever it is. Its deletion is remembered for as long as given.
func (b *Bucket) Drop(ctx context.Context, key string, remembered time.Duration) error {
	return b.retry(ctx, func(ctx context.Context) error {
		_, err := b.publish(ctx, key, nil, anyRevision, deleteHeader(remembered))
		return err
	})
}

func deleteHeader(ttl time.Duration) nats.Header {
	return nats.Header{"KV-Operation": {"DEL"}, "Nats-TTL": {max(ttl, time.Second).Truncate(time.Second).String()}}
}

// Get returns a key from any server. A server that lags behind may not have it yet, or may have it still.
func (b *Bucket) Get(ctx context.Context, key string) (found Entry, err error) {
	err = b.retry(ctx, func(ctx context.Context) error {
		m, err := b.request(ctx, nats.NewMsg("$JS.API.DIRECT.GET."+b.stream()+"."+b.subject(key)))
		switch {
		case err != nil:
			return err
		case m.Header.Get("Status") == "404" || IsDelete(m):
			return ErrNotFound
		case m.Header.Get("Status") != "":
			return again("direct get: status " + m.Header.Get("Status") + " " + m.Header.Get("Description"))
		}
		found = b.entry(m)
		return nil
	})
	return found, err
}

// Latest returns a key from the server that leads the bucket: what was written before is seen.
func (b *Bucket) Latest(ctx context.Context, key string) (found Entry, err error) {
	err = b.retry(ctx, func(ctx context.Context) error {
		e, deleted, err := b.latest(ctx, key)
		if err == nil && deleted {
			err = ErrNotFound
		}
		found = e
		return err
	})
	return found, err
}

// List returns the keys that match filter, from any server, as Get does. It returns ErrTooMany from 1,025 keys on.
func (b *Bucket) List(ctx context.Context, filter string) (all []Entry, err error) {
	err = b.retry(ctx, func(ctx context.Context) error {
		all, err = b.list(ctx, filter)
		return err
	})
	return all, err
}

func (b *Bucket) list(ctx context.Context, filter string) (all []Entry, err error) {
	inbox := b.Conn.NewInbox()
	sub, err := b.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	ask, _ := json.Marshal(map[string]any{"multi_last": []string{b.subject(filter)}})
	if err := b.Conn.PublishRequest("$JS.API.DIRECT.GET."+b.stream(), inbox, ask); err != nil {
		return nil, err
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) {
			return nil, b.ensure(ctx)
		} else if err != nil {
			return nil, err
		}
		switch status := m.Header.Get("Status"); {
		case status == "204" || status == "404": // the end, or nothing at all
			return all, nil
		case status == "413":
			return nil, ErrTooMany
		case status == "503":
			return nil, b.ensure(ctx)
		case status != "":
			return nil, again("list: status " + status + " " + m.Header.Get("Description"))
		case !IsDelete(m):
			all = append(all, b.entry(m))
		}
	}
}

// Purge deletes all keys that match filter, without a trace.
func (b *Bucket) Purge(ctx context.Context, filter string) error {
	return b.retry(ctx, func(ctx context.Context) error {
		err := b.api(ctx, "STREAM.PURGE."+b.stream(), map[string]any{"filter": b.subject(filter)}, nil)
		if codeOf(err) == codeNoStream {
			return nil
		}
		return err
	})
}

// entry is the content of an answer to a direct get.
func (b *Bucket) entry(m *nats.Msg) Entry {
	var rev uint64
	_, _ = fmt.Sscan(m.Header.Get("Nats-Sequence"), &rev)
	return Entry{b.KeyOf(m.Header.Get("Nats-Subject")), m.Data, rev}
}
