//go:build soak

package cluster

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// A node whose clock is an hour behind, and one whose clock is an hour ahead, are nodes like any other, for longer than a lease. Their programs are built with
// another time.Now, because the kernel shifts only other clocks for a process.
func TestClockIsAnHourOff(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	now := filepath.Join(runtime.GOROOT(), "src/time/time.go")
	shifted := func(name, by string) *rig.Server {
		program := buildChanged(t, "trl-"+name, now, "	sec, nsec, mono := runtimeNow()\n	if mono == 0 {\n		return Time{uint64(nsec), sec + unixToInternal, Local}",
			"	sec, nsec, mono := runtimeNow()\n	sec += "+by+"\n	if mono == 0 {\n		return Time{uint64(nsec), sec + unixToInternal, Local}")
		g, err := rig.Launch(func(cmd *exec.Cmd) { cmd.Path = program }, n.flags(name)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.Stop() }) // one of them is killed
		return g
	}
	all := []*rig.Server{shifted("ahead", "3600"), shifted("behind", "-3600"), n.start("right")}
	names := []string{"ahead", "behind", "right"}
	clients := make([]*rig.Client, len(all))
	ids := map[string]string{}
	for i, g := range all {
		sees(t, g, names...)
		clients[i] = g.Dial(t)
		ids[names[i]] = clients[i].Session(object{"name": "of-" + names[i], "node": names[i], "request_key": names[i]})
	}
	if a, b := clients[0].Info(ids["ahead"]).Str("created_at"), clients[2].Info(ids["right"]).Str("created_at"); a == "" || a <= b {
		t.Fatalf("the clock is not ahead: %q and %q", a, b)
	}
	use := func() {
		t.Helper()
		for i, c := range clients {
			for name, id := range ids {
				rig.Expect(t, c.Call("exec.run", object{"session": "of-" + name, "command": "echo hi"}), 0, "hi\n", "")
				if got := c.Call("session.create", object{"name": "of-" + name, "request_key": name, "node": name}).Str("session_id"); got != id {
					t.Errorf("over %s the request of %s made %s, not %s", names[i], name, got, id)
				}
			}
			if list := c.Call("session.list", nil); len(list.Objs("sessions")) != len(all) || list.Has("partial") {
				t.Errorf("listed over %s: %v", names[i], list)
			}
		}
	}
	use()
	time.Sleep(2 * lease) // nobody is forgotten
	use()
	for _, g := range all {
		sees(t, g, names...)
	}
	killNode(t, all[0])
	testkit.Eventually(t, "the name of the dead node is free", func() bool {
		c := all[1].Dial(t)
		defer c.Close()
		return c.Try("session.create", object{"name": "of-ahead", "node": "behind"}).OK
	})
}
