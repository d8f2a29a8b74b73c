package keeper

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/descriptor"
	"trl/runtime/keeper/client"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

// dialOlder is dial for a gateway whose keeper is one of the first builds with this wire.Version: it tells no revision and knows no OpStart.
func (r *rig) dialOlder() *client.Client {
	r.t.Helper()
	keeper, served := r.serve()
	ours, theirs := socketpair(r.t)
	toKeeper, toGateway := must(wire.NewLink(keeper)), must(wire.NewLink(ours))
	pass := func(from, to *wire.Link, change func(*wire.Message)) {
		for {
			m, files, err := from.Receive()
			if err != nil {
				from.Close()
				to.Close()
				return
			}
			change(&m)
			_ = to.Send(m, files...)
		}
	}
	go pass(toGateway, toKeeper, func(m *wire.Message) { // both end with the connection
		if m.Op == wire.OpStart {
			r.t.Error("an older keeper got a request that it does not know")
		}
	})
	go pass(toKeeper, toGateway, func(m *wire.Message) {
		if m.Op == wire.OpHello {
			m.Count = 0
		}
	})
	c, err := client.Dial(theirs, zerolog.Nop())
	if err != nil {
		r.t.Fatal(err)
	}
	r.ends = append(r.ends, func() {
		c.Close()
		<-served
	})
	return c
}

// TestStartInNewScope: one call makes a scope, has descriptors held and starts a process, also at an older keeper, which needs more requests for it. If a
// part fails, nothing is left.
func TestStartInNewScope(t *testing.T) {
	for _, older := range []bool{false, true} {
		t.Run(map[bool]string{false: "same", true: "older keeper"}[older], func(t *testing.T) {
			eachTier(t, func(t *testing.T, r *rig) {
				var c *client.Client
				if older {
					c = r.dialOlder()
				} else {
					c, _ = r.dial()
				}
				startInNewScope(t, r, c)
			})
		})
	}
}

func startInNewScope(t *testing.T, r *rig, c *client.Client) {
	g := must(c.Group("s-1"))
	mem, out := must(descriptor.Memfd("held")), must(descriptor.Memfd("out"))
	defer unix.Close(mem)
	defer unix.Close(out)
	if _, err := unix.Write(mem, []byte("kept")); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(must(wire.Duplicate(out))), "out")
	defer file.Close()
	spec := func(argv ...string) own.Spec {
		s := run(argv...)
		s.Files = []*os.File{nil, file, file, file}
		return s
	}
	left := func() (scopes, children int, held []int) {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		s := r.server.sessions["s-1"]
		return len(s.scopes), len(s.children), slices.Collect(maps.Keys(s.held))
	}
	cycle := func() {
		for _, bad := range []own.Spec{spec("/no/such/program"), {Path: "/bin/true", Argv: []string{"true"}, Dir: "/no/such/directory"}} {
			if d, err := g.StartInNewScope(bad, mem, out); !errors.Is(err, fs.ErrNotExist) || d.Scope != nil || d.Held != nil {
				t.Fatalf("%s in %s: %+v, %v", bad.Path, bad.Dir, d, err)
			}
		}
		if _, err := g.StartInNewScope(spec("/bin/true"), mem, -1); !errors.Is(err, unix.EBADF) {
			t.Fatalf("no descriptor: %v", err)
		}
		testkit.Eventually(t, "nothing is left of what failed", func() bool {
			scopes, children, held := left()
			return scopes == 0 && children == 0 && len(held) == 0
		})
		if _, scopes := c.Tracked(); scopes != 0 {
			t.Fatalf("the client knows %d scopes", scopes)
		}
		d, err := g.StartInNewScope(spec("/bin/sh", "-c", "printf said >&3; exec sleep 100"), mem, out)
		if err != nil {
			t.Fatal(err)
		}
		if d.Child.Pid() == 0 || d.Child.Pidfd() < 0 || len(d.Held) != 2 || d.Scope.MembersExcept(d.Child.Pid()) != nil || !slices.Equal(d.Scope.MembersExcept(0), []int{d.Child.Pid()}) {
			t.Fatalf("%d, held %v, members %v", d.Child.Pid(), d.Held, d.Scope.MembersExcept(0))
		}
		if text, err := os.ReadFile(g.Dir() + "/" + strconv.Itoa(d.Held[0])); string(text) != "kept" {
			t.Fatalf("the first held file has %q: %v", text, err)
		}
		testkit.Eventually(t, "the process writes to its descriptor 3", func() bool {
			text, _ := os.ReadFile(g.Dir() + "/" + strconv.Itoa(d.Held[1]))
			return string(text) == "said"
		})
		_ = unix.Ftruncate(out, 0)
		_, _ = unix.Seek(out, 0, 0)
		if _, children, held := left(); children != 1 || len(held) != 2 {
			t.Fatalf("%d children, %v held", children, held)
		}
		if err := d.Scope.Kill(0); err != nil {
			t.Fatal(err)
		}
		<-d.Child.Exited()
		d.Child.Close()
		g.Drop(d.Held...)
		if !d.Scope.Remove() {
			t.Fatal("the scope is not empty")
		}
		_, _ = c.Numbers() // is answered after the one-way messages
	}
	cycle()
	before := openFiles(t)
	for range 3 {
		cycle()
	}
	testkit.Eventually(t, "no more descriptors than before", func() bool { return openFiles(t) <= before })
}

// TestWhatWasStartedOutlivesItsGateway: the next gateway hears of everything that StartInNewScope has made.
func TestWhatWasStartedOutlivesItsGateway(t *testing.T) {
	eachTier(t, func(t *testing.T, r *rig) {
		c, hang := r.dial()
		g := must(c.Group("s-1"))
		mem := must(descriptor.Memfd("held"))
		defer unix.Close(mem)
		d, err := g.StartInNewScope(run("/bin/sleep", "100"), mem)
		if err != nil {
			t.Fatal(err)
		}
		hang()
		next, _ := r.dial()
		in := next.HeldSessions()
		if len(in) != 1 || in[0].Children[d.Child.Pid()] == nil || in[0].Scopes[d.Scope.Number()] == nil || len(in[0].Held) != 1 {
			t.Fatalf("%+v", in)
		}
		for _, fd := range in[0].Held {
			unix.Close(fd)
		}
		if err := in[0].Group.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for _, k := range in[0].Children {
			<-k.Exited()
			k.Close()
		}
		in[0].Group.DropAll()
	})
}

// TestStartWithWrongNumbers: a request that holds more descriptors than it has, or fewer than none, is refused, and its descriptors are closed.
func TestStartWithWrongNumbers(t *testing.T) {
	r := newRig(t, "none")
	c, _ := r.dial()
	must(c.Group("s-1"))
	for _, count := range []int{-1, 2} {
		m := wire.Message{Op: wire.OpStart, Group: "s-1", Count: count, Spawn: &wire.Spawn{Path: []byte("/bin/true"), Argv: [][]byte{[]byte("true")}}}
		if _, _, err := c.Call(m, must(descriptor.Memfd("given"))); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%d: %v", count, err)
		}
	}
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if s := r.server.sessions["s-1"]; len(s.held)+len(s.scopes)+len(s.children) > 0 {
		t.Errorf("held %v, scopes %v, children %v", s.held, s.scopes, s.children)
	}
}

// TestFirstGatewaysUnderstandTheHello: a gateway refuses a message with a field that it does not know. So the keeper's hello has only the fields that the
// first builds of this wire.Version knew.
func TestFirstGatewaysUnderstandTheHello(t *testing.T) {
	r := newRig(t, "none")
	theirs, served := r.serve()
	if _, err := unix.Write(int(theirs.Fd()), []byte(`m{"version":`+strconv.Itoa(wire.Version)+`,"op":"hello","Lost":false}`)); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, wire.MaxInline+1)
	n, _, _, _, err := unix.Recvmsg(int(theirs.Fd()), text, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var hello, state map[string]jsontext.Value
	if err := json.Unmarshal(text[1:n], &hello); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(hello["state"], &state); err != nil {
		t.Fatal(err)
	}
	known := []string{
		"version", "op", "files", "Lost", "count", "state",
		"epoch", "pid", "instance", "generation", "tier", "why", "tiers", "listeners", "orphans", "cannot", "ports", "foreign", "descriptors", "groups",
	}
	for name := range hello {
		if !slices.Contains(known, name) {
			t.Errorf("%s in the hello", name)
		}
	}
	for name := range state {
		if !slices.Contains(known, name) {
			t.Errorf("%s in the state", name)
		}
	}
	if string(hello["count"]) != strconv.Itoa(wire.Revision) {
		t.Errorf("revision %s", hello["count"])
	}
	theirs.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
