package client

import (
	"errors"
	"io"
	"strings"
	"testing"

	"trl/protocol"
)

// TestASecondStreamTakesThePlaceOfTheFirst: the server sends a connection each stream once.
func TestASecondStreamTakesThePlaceOfTheFirst(t *testing.T) {
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "one ")
		q, _ = p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "one ")
		p.output(4, "two")
		p.exit(0)
		p.drain()
	})})
	first, err := c.Start(soon(t), protocol.Exec{Command: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if k, err := first.Next(soon(t)); err != nil || string(k.Data) != "one " {
		t.Fatalf("%q, %v", k.Data, err)
	}
	second, err := c.Attach(soon(t), first.ID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it stays so
		if _, err := first.Next(soon(t)); !errors.Is(err, ErrDisplaced) {
			t.Errorf("the first: %v", err)
		}
	}
	first.Close()
	var out strings.Builder
	if _, err := second.Copy(soon(t), &out, io.Discard); err != nil || out.String() != "one two" {
		t.Errorf("the second: %q, %v", &out, err)
	}
}
