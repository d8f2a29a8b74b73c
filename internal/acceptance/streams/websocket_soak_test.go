//go:build soak

package streams

import (
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// J2: a peer that has vanished is dropped (45 s; web's TestSilentPeerIsDropped has it in 200 ms), and its session obeys
// its policy.
func TestVanishedPeerIsDropped(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "j")
	raw, nap := g.DialRaw(t, ""), rig.Sleeper()
	for name, policy := range map[string]string{"j2-keep": "keep", "j2-destroy": "destroy"} {
		_ = raw.Frame(0x81, []byte(`{"id":1,"method":"session.create","params":{"name":"`+name+`","on_disconnect":"`+policy+`"}}`))
		_ = raw.Frame(0x81, []byte(`{"id":2,"method":"process.start","params":{"session":"`+name+`","command":"`+nap+`"}}`))
	}
	testkit.Eventually(t, "both run", func() bool { return len(rig.Running(nap)) == 2 })
	start := time.Now()
	for { // pings come, no pong goes
		if _, _, err := raw.Next(); err != nil {
			break
		}
	}
	if d := time.Since(start); d < 30*time.Second || d > 110*time.Second {
		t.Errorf("dropped after %s", d)
	}
	c := g.Dial(t)
	testkit.Eventually(t, "one is destroyed", func() bool { return len(rig.Running(nap)) == 1 })
	if i := c.Call("session.info", object{"session": "j2-keep"}); i.Str("state") != "IDLE" || i.Num("processes") != 1 {
		t.Errorf("%v", i)
	}
	c.Call("session.destroy", object{"session": "j2-keep", "force": true})
}
