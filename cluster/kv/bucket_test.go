package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"trl/internal/natsrig"
	"trl/internal/testkit"
)

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func TestKeysAreMadeOnce(t *testing.T) {
	c := natsrig.Start(t, 1)
	ctx := bounded(t)
	b := &Bucket{Conn: c.Connect(), Name: "trl_test", TTL: time.Hour}

	if _, err := b.Get(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("get of nothing: %v", err)
	}
	if _, err := b.Latest(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("latest of nothing: %v", err)
	}
	made, err := b.Create(ctx, "a", []byte("mine"))
	if err != nil {
		t.Fatal(err)
	}
	// A create whose answer was lost is sent again and finds itself.
	if again, err := b.Create(ctx, "a", []byte("mine")); err != nil || again.Revision != made.Revision {
		t.Fatalf("the same create again: %+v, %v", again, err)
	}
	other, err := b.Create(ctx, "a", []byte("theirs"))
	if !errors.Is(err, ErrConflict) || string(other.Value) != "mine" || other.Revision != made.Revision {
		t.Fatalf("another create: %+v, %v", other, err)
	}
	rev, err := b.Update(ctx, "a", []byte("mine2"), made.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.Update(ctx, "a", []byte("mine2"), made.Revision); err != nil || again != rev {
		t.Fatalf("the same update again: %d, %v", again, err)
	}
	if _, err := b.Update(ctx, "a", []byte("theirs"), made.Revision); !errors.Is(err, ErrConflict) {
		t.Fatalf("update of an old revision: %v", err)
	}
	if err := b.Delete(ctx, "a", made.Revision); !errors.Is(err, ErrConflict) {
		t.Fatalf("delete of an old revision: %v", err)
	}
	if err := b.Delete(ctx, "a", rev); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, "a", rev); err != nil {
		t.Fatalf("the same delete again: %v", err)
	}
	if _, err := b.Get(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("get of a deleted key: %v", err)
	}
	if _, err := b.Create(ctx, "a", []byte("theirs")); err != nil {
		t.Fatalf("create of a deleted key: %v", err)
	}
}

func TestListAndPurge(t *testing.T) {
	c := natsrig.Start(t, 1)
	ctx := bounded(t)
	b := &Bucket{Conn: c.Connect(), Name: "trl_test", TTL: time.Hour, Memory: true}
	if all, err := b.List(ctx, "p.*"); err != nil || len(all) != 0 {
		t.Fatalf("list of nothing: %v, %v", all, err)
	}
	for _, key := range []string{"p.e1", "p.e2", "q.e1", "q.e2"} {
		if _, err := b.Put(ctx, key, []byte(key), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Drop(ctx, "p.e2", time.Minute); err != nil {
		t.Fatal(err)
	}
	if all, err := b.List(ctx, "p.*"); err != nil || len(all) != 1 || all[0].Key != "p.e1" || string(all[0].Value) != "p.e1" {
		t.Fatalf("list: %v, %v", all, err)
	}
	if err := b.Purge(ctx, "*.e1"); err != nil {
		t.Fatal(err)
	}
	if all, err := b.List(ctx, ">"); err != nil || len(all) != 1 || all[0].Key != "q.e2" {
		t.Fatalf("list after the purge: %v, %v", all, err)
	}
}

func TestKeysEnd(t *testing.T) {
	c := natsrig.Start(t, 1)
	ctx := bounded(t)
	b := &Bucket{Conn: c.Connect(), Name: "trl_test", TTL: time.Hour}
	began := time.Now()
	if _, err := b.Put(ctx, "short", []byte("x"), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(ctx, "short"); err != nil && (!errors.Is(err, ErrNotFound) || time.Since(began) < time.Second) { // a busy machine may be late
		t.Fatal(err)
	}
	testkit.Eventually(t, "the key has ended", func() bool {
		_, err := b.Latest(ctx, "short")
		return errors.Is(err, ErrNotFound)
	})
}

// Writes fail for some seconds when the leader dies. They are sent again, and each takes effect once.
func TestLeaderDies(t *testing.T) {
	c := natsrig.Start(t, 3)
	ctx := bounded(t)
	b := &Bucket{Conn: c.Connect(), Name: "trl_test", TTL: time.Hour}
	if n, err := b.Raise(ctx); err != nil || n != 3 {
		t.Fatalf("%d replicas, %v", n, err)
	}
	var writers sync.WaitGroup
	var won [20]atomic.Int32
	for w := range 4 {
		writers.Go(func() {
			for k := range won {
				if _, err := b.Create(ctx, fmt.Sprint("k", k), fmt.Append(nil, "writer", w)); err == nil {
					won[k].Add(1)
				} else if !errors.Is(err, ErrConflict) {
					t.Errorf("writer %d: %v", w, err)
				}
				if k == 5 && w == 0 {
					c.Leader("KV_trl_test").Kill()
				}
			}
		})
	}
	writers.Wait()
	for k := range won {
		if n := won[k].Load(); n != 1 {
			t.Errorf("k%d has %d owners", k, n)
		}
	}
}

func TestUnavailableWithinBounds(t *testing.T) {
	c := natsrig.Start(t, 1)
	nc := c.Connect()
	c.Servers[0].Kill()
	b := &Bucket{Conn: nc, Name: "trl_test", TTL: time.Hour}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := b.Create(ctx, "a", []byte("x")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("create: %v", err)
	}
	if _, err := b.List(ctx, ">"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("list: %v", err)
	}
	nc.Close()
	if _, err := b.Get(t.Context(), "a"); !errors.Is(err, ErrUnavailable) || !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("get on a closed connection: %v", err)
	}
}

// A bucket that was made while there were too few servers gets three replicas later.
func TestReplicasAreRaised(t *testing.T) {
	c := natsrig.Start(t, 3)
	ctx := bounded(t)
	b := &Bucket{Conn: c.Connect(), Name: "trl_test", TTL: time.Hour}
	if err := b.create(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "a", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Raise(ctx); err != nil || n != 3 {
		t.Fatalf("%d replicas, %v", n, err)
	}
	if e, err := b.Latest(ctx, "a"); err != nil || string(e.Value) != "x" {
		t.Errorf("after it: %+v, %v", e, err)
	}

	one := natsrig.Start(t, 1)
	b = &Bucket{Conn: one.Connect(), Name: "trl_test", TTL: time.Hour}
	if n, err := b.Raise(ctx); err != nil || n != 1 {
		t.Fatalf("one server: %d replicas, %v", n, err)
	}
}
