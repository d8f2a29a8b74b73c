package client_test

import (
	"context"
	"testing"
	"time"

	"trl/client"
	"trl/internal/testkit"
	"trl/protocol"
)

// TestUnreadOutputHoldsUpNoWatch: the server sends exec.exit after the command's output, which may wait for its reader.
func TestUnreadOutputHoldsUpNoWatch(t *testing.T) {
	testkit.StartsProcesses(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Connect(ctx, options())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	session, err := c.CreateSession(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Kill(ctx)
	watcher, err := session.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	unread, err := session.ExecStream(ctx, "head -c 1500000 /dev/zero", nil) // more than a window, less than a window and the server's buffer
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Detach()
	for {
		e, err := watcher.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if exit, ok := e.Data.(*protocol.ExecExit); ok && exit.ExecID == unread.ID() {
			return
		}
	}
}
