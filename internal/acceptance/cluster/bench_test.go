package cluster

import (
	"fmt"
	"testing"

	"trl/internal/rig"
)

// What the directory costs a session.create, and what another node costs a command: three nats-servers, two nodes.
func BenchmarkCluster(b *testing.B) {
	n := newNodes(b, 3)
	one := rig.Gateway(b, n.flags("one", "--warm", "8")...)
	two := rig.Gateway(b, n.flags("two", "--warm", "8")...)
	sees(b, one, "one", "two")
	sees(b, two, "one", "two")
	c, over := one.Dial(b), two.Dial(b)
	create := func(b *testing.B, more func(i int) object) {
		for i := range b.N {
			id := c.Session(more(i), object{"node": "one"})
			b.StopTimer()
			c.Call("session.destroy", object{"session_id": id, "force": true})
			b.StartTimer()
		}
	}
	b.Run("CreateUnnamed", func(b *testing.B) { create(b, func(int) object { return nil }) })
	b.Run("CreateNamed", func(b *testing.B) { create(b, func(i int) object { return object{"name": fmt.Sprint("n", i)} }) })
	session := c.Session(object{"node": "one"})
	b.Run("CommandAtOwner", func(b *testing.B) {
		for range b.N {
			c.Run(session, "true")
		}
	})
	b.Run("CommandOverOther", func(b *testing.B) {
		for range b.N {
			over.Run(session, "true")
		}
	})
}
