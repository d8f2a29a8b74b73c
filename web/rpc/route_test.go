package rpc

import (
	"fmt"
	"testing"
)

// TestRelayedNamesKeepTheirOrder: requests that follow a create, a rename or a destroy at once see its effect, as on one node.
func TestRelayedNamesKeepTheirOrder(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"})
	c := cl.node("gate").Dial()
	for i := range 10 {
		a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
		create := c.Begin("session.create", object{"name": a})
		rename := c.Begin("session.rename", object{"session": a, "name": b})
		run := c.Begin("exec.run", object{"session": b, "command": "echo hi"})
		byOld := c.Begin("exec.run", object{"session": a, "command": "true"})
		if f := c.Answer(run); f.Data.Stdout() != "hi\n" {
			t.Fatalf("%+v", f.Error)
		}
		destroy := c.Begin("session.destroy", object{"session": b})
		after := c.Begin("exec.run", object{"session": b, "command": "true"})
		ended := c.Begin("session.info", object{"session": b})
		for _, id := range []int{create, rename, destroy} {
			if f := c.Answer(id); !f.OK {
				t.Fatalf("%+v", f.Error)
			}
		}
		if f := c.Answer(byOld); f.Code() != "SESSION_NOT_FOUND" {
			t.Fatalf("%+v", f)
		}
		if f := c.Answer(after); f.Code() != "SESSION_TERMINATED" {
			t.Fatalf("%+v", f)
		}
		if f := c.Answer(ended); f.Data.Str("state") != "TERMINATED" {
			t.Fatalf("%+v", f)
		}
	}
}
