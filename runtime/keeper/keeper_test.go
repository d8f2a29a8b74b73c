package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/confine"
	"trl/runtime/descriptor"
	"trl/runtime/keeper/client"
	"trl/runtime/keeper/wire"
	"trl/runtime/own"
)

func run(argv ...string) own.Spec {
	return own.Spec{Path: argv[0], Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}
}

func TestEachGatewayIsWelcomed(t *testing.T) {
	r := newRig(t, "none")
	r.server.listeners = []*os.File{os.Stdin}
	for generation := range 3 {
		c, hang := r.dial()
		tier, _ := c.Isolation()
		n, err := c.Numbers()
		if c.Generation() != generation || c.Epoch() != "epoch" || tier != "none" || n.KillFailed != 7 || err != nil ||
			c.Dir() != "/proc/"+strconv.Itoa(os.Getpid())+"/fd" || len(c.Files()) != 1 || c.Files()[0].Name() != os.Stdin.Name() {
			t.Errorf("gateway %d: generation %d, epoch %s, tier %s, %v, %v", generation, c.Generation(), c.Epoch(), tier, n, err)
		}
		c.Files()[0].Close()
		hang()
	}
}

func TestVersionSkewIsNamedOnBothSides(t *testing.T) {
	newer := []byte(`m{"version":99,"op":"hello","news":true}`)
	var skew *wire.VersionError

	r := newRig(t, "none")
	theirs, served := r.serve()
	if _, err := unix.Write(int(theirs.Fd()), newer); err != nil {
		t.Fatal(err)
	}
	if err := <-served; !errors.As(err, &skew) || skew.Gateway != 99 || skew.Keeper != wire.Version {
		t.Errorf("keeper: %v", err)
	}
	theirs.Close()

	ours, theirs := socketpair(t)
	defer ours.Close()
	if _, err := unix.Write(int(ours.Fd()), newer); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Dial(theirs, zerolog.Nop()); !errors.As(err, &skew) || skew.Gateway != wire.Version || skew.Keeper != 99 {
		t.Errorf("gateway: %v", err)
	}
}

// TestGatewayRefusesAnUnknownTier: earlier builds had a tier that this one cannot continue. The gateway of an upgrade reports that and
// ends, and the old gateway stays.
func TestGatewayRefusesAnUnknownTier(t *testing.T) {
	ours, theirs := socketpair(t)
	l, err := wire.NewLink(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Send(wire.Message{Version: wire.Version, Op: wire.OpHello, State: &wire.State{Tier: "pidns"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Dial(theirs, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "keeper has isolation pidns, which this version does not have") {
		t.Errorf("got %v", err)
	}
}

func TestStatusOfEachChild(t *testing.T) {
	eachTier(t, func(t *testing.T, r *rig) {
		c, _ := r.dial()
		scope := openCell(c, "s-1")
		for i := range 50 {
			k, err := scope.Spawn(run("/bin/sh", "-c", "exit "+strconv.Itoa(i)))
			if err != nil {
				t.Fatal(err)
			}
			<-k.Exited()
			if s := k.Status(); s.Code != i || s.MaxRSS == 0 || k.Pid() == 0 || k.Pidfd() < 0 {
				t.Errorf("exit %d: %+v, pid %d, pidfd %d", i, s, k.Pid(), k.Pidfd())
			}
			if err := k.Signal(unix.SIGTERM); err != os.ErrProcessDone {
				t.Errorf("signal after the end: %v", err)
			}
			k.Close()
		}
		k, err := scope.Spawn(run("/bin/sleep", "100"))
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Signal(unix.SIGTERM); err != nil {
			t.Error(err)
		}
		<-k.Exited()
		if s := k.Status(); s.Code != 143 || s.Signal != unix.SIGTERM {
			t.Errorf("%+v", s)
		}
		k.Close()
	})
}

func TestErrorsKeepTheirKind(t *testing.T) {
	r := newRig(t, "none")
	c, _ := r.dial()
	g, err := c.Group("s-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Group("s-1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("same group: %v", err)
	}
	if _, err := c.Group("../etc"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("bad id: %v", err)
	}
	scope, err := g.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := scope.Spawn(run("/no/such/program")); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no program: %v", err)
	}
	if err := scope.AddChild(1); !errors.Is(err, unix.ESRCH) {
		t.Errorf("adopt: %v", err)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := g.NewScope(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("scope of a closed group: %v", err)
	}
	if _, err := scope.Spawn(run("/bin/true")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("spawn in a closed group: %v", err)
	}
	g.DropAll()
	if _, err := c.Group("s-1"); err != nil {
		t.Errorf("same id after DropAll: %v", err)
	}
}

// TestFound: StartSession makes a group with everything that a session begins with. If a part fails, the error says which, nothing is left,
// neither descriptors nor processes, and the id is free.
func TestFound(t *testing.T) {
	eachTier(t, func(t *testing.T, r *rig) {
		c, _ := r.dial()
		mem, err := unix.MemfdCreate("also", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(mem)
		in, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		defer w.Close()
		var made []own.Channel
		var numbers []int
		also := mem
		meanwhile := func(g own.KeptGroup) (err error) {
			made, numbers, err = g.MakeChannels([]own.ChannelKind{own.OutPipe, own.MemFile}, also)
			return err
		}
		founding := func(shell own.Spec) own.StartRequest {
			shell.Files = []*os.File{in, os.Stdout, os.Stderr}
			return own.StartRequest{Shell: shell, Parallel: meanwhile}
		}
		// The channels of a group that failed to start are ours to close; the keeper has forgotten them.
		unmade := func() { own.CloseChannels(made); made = nil }
		cycle := func() {
			nowhere := run("/bin/sh")
			nowhere.Dir = "/no/such/directory"
			_, err := c.StartSession("s-1", founding(nowhere))
			if e, ok := errors.AsType[*fs.PathError](err); !ok || !errors.Is(err, fs.ErrNotExist) || e.Path != nowhere.Dir {
				t.Fatalf("no directory: %v", err)
			}
			unmade()
			_, err = c.StartSession("s-1", founding(run("/no/such/program")))
			if e, ok := errors.AsType[*fs.PathError](err); !ok || !errors.Is(err, fs.ErrNotExist) || e.Op != "spawn" || e.Path != "/no/such/program" {
				t.Fatalf("no program: %v", err)
			}
			unmade()
			also = -1
			if _, err = c.StartSession("s-1", founding(run("/bin/sh"))); !errors.Is(err, unix.EBADF) {
				t.Fatalf("no descriptor: %v", err)
			}
			also = mem
			d, err := c.StartSession("s-1", founding(run("/bin/sh")))
			if err != nil {
				t.Fatal(err)
			}
			again := founding(run("/bin/sh"))
			again.Parallel = func(own.KeptGroup) error { return nil }
			if _, err := c.StartSession("s-1", again); !errors.Is(err, fs.ErrExist) {
				t.Fatalf("the same id: %v", err)
			}
			if m := d.Group.Members(); !slices.Equal(m, []int{d.Child.Pid()}) || d.Scope.MembersExcept(d.Child.Pid()) != nil {
				t.Fatalf("members: %v; the shell is %d", m, d.Child.Pid())
			}
			fmt.Fprintf(w, "printf said >%s/%d\n", d.Group.Dir(), made[0].FileNumber)
			poll := []unix.PollFd{{Fd: int32(made[0].R), Events: unix.POLLIN}}
			testkit.Eventually(t, "something in the pipe that was made", func() bool { n, _ := unix.Poll(poll, 10); return n > 0 })
			said := make([]byte, 8)
			if n, _ := unix.Read(made[0].R, said); string(said[:n]) != "said" {
				t.Fatalf("%q", said[:n])
			}
			r.server.mu.Lock()
			held := maps.Clone(r.server.sessions["s-1"].held)
			r.server.mu.Unlock()
			for _, number := range append(numbers, made[0].HeldR, made[0].HeldW, made[1].HeldW) {
				if _, ok := held[number]; !ok {
					t.Errorf("%d is not held; these are: %v", number, held)
				}
			}
			if len(held) != 4 {
				t.Errorf("held: %v", held)
			}
			if err := d.Group.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if <-d.Child.Exited(); d.Child.Status().Signal != unix.SIGKILL {
				t.Errorf("%+v", d.Child.Status())
			}
			d.Child.Close()
			d.Group.DropAll()
			unmade()
			if _, err := c.Numbers(); err != nil { // is answered after the one-way messages
				t.Fatal(err)
			}
		}
		cycle()
		before := openFiles(t)
		for range 3 {
			cycle()
		}
		testkit.Eventually(t, "no more descriptors than before", func() bool { return openFiles(t) <= before })
	})
}

func TestSpawnTakesFilesAndALongEnvironment(t *testing.T) {
	r := newRig(t, "none")
	c, _ := r.dial()
	scope := openCell(c, "s-1")
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	long := strings.Repeat("x", 100_000)
	s := run("/bin/sh", "-c", `echo ${#A} ${#B} "$C" $(ls /proc/$$/fd)`)
	s.Env = append(s.Env, "A="+long, "B="+long, "C=\xff\xfe")
	s.Files = []*os.File{nil, w, w, nil, w}
	k, err := scope.Spawn(s)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	text, _ := io.ReadAll(out)
	if got := strings.Fields(string(text)); len(got) < 6 || got[0] != "100000" || got[1] != "100000" || got[2] != "\xff\xfe" ||
		!slices.Contains(got[3:], "4") {
		t.Errorf("%q", text)
	}
	<-k.Exited()
	k.Close()
}

func TestOthersAreSeen(t *testing.T) {
	eachTier(t, func(t *testing.T, r *rig) {
		c, _ := r.dial()
		g, _ := c.Group("s-1")
		scope, _ := g.NewScope()
		in, w, _ := os.Pipe()
		defer w.Close()
		s := run("/bin/sh")
		s.Files = []*os.File{in, os.Stdout, os.Stderr}
		shell, err := scope.Spawn(s)
		in.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer shell.Close()
		if others := scope.MembersExcept(shell.Pid()); others != nil {
			t.Errorf("others of a fresh shell: %v", others)
		}
		io.WriteString(w, "sleep 100 & (sleep 100 &)\n")
		testkit.Eventually(t, "two sleepers", func() bool { // at first one may still be the shell between them, which is ending
			others := scope.MembersExcept(shell.Pid())
			return len(others) == 2 && comm(others[0]) == "sleep" && comm(others[1]) == "sleep"
		})
		testkit.Eventually(t, "three members", func() bool { return len(g.Members()) == 3 })
		if scope.Remove() {
			t.Error("removed a scope with people in it")
		}
		next, err := g.NewScope()
		if err != nil {
			t.Fatal(err)
		}
		if err := next.AddChild(shell.Pid()); err != nil {
			t.Fatal(err)
		}
		if o := next.MembersExcept(shell.Pid()); o != nil {
			t.Errorf("others in the new scope: %v", o)
		}
		pids := scope.MembersExcept(0)
		scope.SignalSome(unix.SIGTERM, pids[0])
		testkit.Eventually(t, "one sleeper", func() bool { return len(scope.MembersExcept(0)) == 1 })
		if err := scope.Kill(0); err != nil {
			t.Error(err)
		}
		if o := scope.MembersExcept(0); o != nil {
			t.Errorf("others after kill: %v", o)
		}
		if !scope.Remove() || !alive(shell.Pid()) {
			t.Error("the empty scope stays, or the shell went")
		}
		if err := scope.Kill(0); err != nil { // the process ends while it is being killed
			t.Errorf("kill of a scope that is removed: %v", err)
		}
		if o := next.MembersExcept(shell.Pid()); o != nil {
			t.Errorf("others in the new scope: %v", o)
		}
		g.Signal(unix.SIGKILL)
		<-shell.Exited()
	})
}

// TestNoDescriptorIsLeft: a keeper without a free descriptor still sees the members of a session, and ends it.
func TestNoDescriptorIsLeft(t *testing.T) {
	for _, isolation := range []string{"auto", "none"} {
		t.Run(isolation, func(t *testing.T) {
			c, a := serving(t, isolation)
			g, err := c.Group("s-1")
			if err != nil {
				t.Fatal(err)
			}
			scope, err := g.NewScope()
			if err != nil {
				t.Fatal(err)
			}
			shell, err := scope.Spawn(run("/bin/sh", "-c", "sleep 100 & setsid setsid sleep 100 & wait"))
			if err != nil {
				t.Fatal(err)
			}
			defer shell.Close()
			sleepers := func() (n int) {
				for _, pid := range scope.MembersExcept(shell.Pid()) {
					if comm(pid) == "sleep" {
						n++
					}
				}
				return n
			}
			testkit.Eventually(t, "two sleepers", func() bool { return sleepers() == 2 })
			others := scope.MembersExcept(shell.Pid())

			leave(t, a.cmd.Process.Pid, 0)
			testkit.Eventually(t, "members are seen", func() bool { return len(g.Members()) == 3 })
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second) // less than the keeper's own timeout
			defer cancel()
			if err := g.Close(ctx); err != nil {
				t.Errorf("close: %v, after %v", err, time.Since(start))
			}
			<-shell.Exited()
			for _, pid := range others {
				if alive(pid) {
					t.Errorf("%d is left", pid)
				}
			}
		})
	}
}

// leave lowers the process's limit to n more descriptors; undo restores it.
func leave(t *testing.T, pid int, n uint64) (undo func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = firstFree(t, pid) + n
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil); err != nil {
			t.Error(err)
		}
	}
}

// TestNoRoomForWhatWasMade: if the descriptors of an answer do not fit, nothing of it is left in the keeper.
func TestNoRoomForWhatWasMade(t *testing.T) {
	for _, isolation := range []string{"auto", "none"} {
		t.Run(isolation, func(t *testing.T) {
			if err := confine.Landlock(); err != nil {
				t.Skip(err)
			}
			c, a := serving(t, isolation, t.TempDir())
			defer c.Close()
			g, err := c.Group("s-1")
			if err != nil {
				t.Fatal(err)
			}
			made, numbers, err := g.MakeChannels([]own.ChannelKind{own.OutPipe, own.MemFile})
			if err != nil || len(made) != 2 {
				t.Fatal(made, err)
			}
			own.CloseChannels(made)
			g.Drop(append(numbers, made[0].HeldR, made[0].HeldW, made[1].HeldW)...)
			pid := strconv.Itoa(a.cmd.Process.Pid)
			left := func() []string {
				ports, err := os.ReadDir(g.Dir())
				if err != nil {
					t.Fatal(err)
				}
				names := []string{strconv.Itoa(openFilesOf(t, pid)), strconv.Itoa(openFiles(t))}
				for _, p := range ports {
					names = append(names, p.Name())
				}
				return names
			}
			settled := func() (now []string) { // a slowCloser closes what was dropped
				for same := 0; same < 60; same++ {
					was := now
					if now = left(); !slices.Equal(now, was) {
						same = 0
					}
					time.Sleep(5 * time.Millisecond)
				}
				return now
			}
			c.Numbers() // is answered after the one-way messages
			before := settled()
			for range 3 {
				undo := leave(t, os.Getpid(), 0)
				_, celled := g.NewScope()
				_, _, err := g.MakeChannels([]own.ChannelKind{own.OutPipe, own.MemFile})
				undo()
				if tier, _ := c.Isolation(); tier == "cgroup" && !errors.Is(celled, unix.EMFILE) || !errors.Is(err, unix.EMFILE) {
					t.Errorf("scope: %v; made: %v", celled, err)
				}
			}
			c.Numbers()
			if after := settled(); !slices.Equal(after, before) {
				t.Errorf("descriptors and ports: %v, before: %v", after, before)
			}
			tier, _ := c.Isolation()
			if _, scopes := c.Tracked(); tier == "cgroup" && scopes != 0 {
				t.Errorf("%d scopes", scopes)
			}
		})
	}
}

// TestEachRequestIsAnswered: every request gets an answer, even if the first answer cannot be sent.
func TestEachRequestIsAnswered(t *testing.T) {
	c, a := serving(t, "none")
	defer c.Close()
	leave(t, a.cmd.Process.Pid, 0)
	id := strings.Repeat("\x7f", wire.MaxInline/4) // the fault quotes the id, and is too long to go inline
	refused := make(chan error, 1)
	go func() {
		_, _, err := c.Call(wire.Message{Op: wire.OpLimit, Group: id, Limits: &protocol.Limits{Pids: 1}})
		refused <- err
	}()
	select {
	case err := <-refused:
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("%.100v", err)
		}
	case <-time.After(testkit.Patience / 2):
		t.Error("no answer")
	}
}

// firstFree is the lowest number without an open descriptor in the process.
func firstFree(t *testing.T, pid int) (n uint64) {
	t.Helper()
	for {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", pid, n)); errors.Is(err, fs.ErrNotExist) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
		n++
	}
}

func comm(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(text))
}

func TestOthersNeedsNoKeeper(t *testing.T) {
	for _, isolation := range []string{"auto", "none"} {
		c, a := serving(t, isolation)
		scope := openCell(c, "s-1")
		shell, err := scope.Spawn(run("/bin/sleep", "100"))
		if err != nil {
			t.Fatal(err)
		}
		a.stop()
		for range 3 {
			if o := scope.MembersExcept(shell.Pid()); o != nil {
				t.Errorf("others: %v", o)
			}
		}
		// A stopped keeper is not a dead one.
		answered := make(chan error, 1)
		go func() { _, err := c.Numbers(); answered <- err }()
		select {
		case err := <-answered:
			t.Errorf("a stopped keeper has answered: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		_ = a.cmd.Process.Signal(unix.SIGCONT)
		if err := <-answered; err != nil {
			t.Error(err)
		}
		shell.Signal(unix.SIGKILL)
		<-shell.Exited()
		shell.Close()
		c.Close()
	}
}

// serving starts a keeper in another process and returns a client for it.
func serving(t testing.TB, isolation string, write ...string) (*client.Client, *actor) {
	ours, theirs := socketpair(t)
	a := act(t, theirs, append([]string{"serve", isolation}, write...)...)
	theirs.Close()
	c, err := client.Dial(ours, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	return c, a
}

func TestDeadKeeperFailsEveryCall(t *testing.T) {
	c, a := serving(t, "none")
	scope := openCell(c, "s-1")
	k, err := scope.Spawn(run("/bin/sleep", "20")) // ends by itself
	if err != nil {
		t.Fatal(err)
	}
	a.stop()
	called := make(chan error, 1)
	go func() { _, err := c.Group("s-2"); called <- err }()
	a.kill()
	<-c.Done()
	if err := <-called; !errors.Is(err, wire.ErrLost) {
		t.Errorf("call under way: %v", err)
	}
	if _, err := scope.Spawn(run("/bin/true")); !errors.Is(err, wire.ErrLost) {
		t.Errorf("spawn: %v", err)
	}
	if scope.Remove() || scope.MembersExcept(0) != nil || scope.Kill(0) == nil {
		t.Error("a scope of nobody works")
	}
	<-k.Exited()
	if k.Status().Code != -1 {
		t.Errorf("%+v", k.Status())
	}
	k.Close()
	c.Close()
}

func TestNoExitIsLostWithTheGateway(t *testing.T) {
	eachTier(t, func(t *testing.T, r *rig) {
		a, served := r.gateway("many")
		codes := map[int]int{}
		for range 200 {
			f := a.next("child")
			codes[number(t, f[0])] = number(t, f[1])
		}
		a.kill()
		if err := <-served; err != nil {
			t.Error(err)
		}
		c, _ := r.dial() // some still run
		in := c.HeldSessions()
		if len(in) != 1 || len(in[0].Children) != 200 || len(in[0].Scopes) != 1 {
			t.Fatalf("inherited: %+v", in)
		}
		for pid, k := range in[0].Children {
			<-k.Exited()
			if s := k.Status(); s.Code != codes[pid] || s.Signal != 0 {
				t.Errorf("child %d: %+v, not %d", pid, s, codes[pid])
			}
			k.Close()
		}
		if _, err := in[0].Scopes[1].Spawn(run("/bin/true")); err != nil {
			t.Errorf("spawn in an inherited scope: %v", err)
		}
	})
}

func TestExitsWhileNobodyListensAreTold(t *testing.T) {
	r := newRig(t, "none")
	c, hang := r.dial()
	scope := openCell(c, "s-1")
	for i := range 20 {
		if _, err := scope.Spawn(run("/bin/sh", "-c", "sleep 0.2; exit "+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	hang()
	testkit.Eventually(t, "all end", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		for _, p := range r.server.sessions["s-1"].children {
			if !p.ended {
				return false
			}
		}
		return true
	})
	for range 2 { // each next gateway hears of them, until one closes them
		c, hang = r.dial()
		seen := map[int]bool{}
		for _, k := range c.HeldSessions()[0].Children {
			<-k.Exited()
			seen[k.Status().Code] = true
		}
		if len(seen) != 20 {
			t.Errorf("%d statuses", len(seen))
		}
		if c.Generation() == 2 {
			for _, k := range c.HeldSessions()[0].Children {
				k.Close()
			}
		}
		hang()
	}
	c, _ = r.dial()
	if n := len(c.HeldSessions()[0].Children); n != 0 {
		t.Errorf("%d children after Close", n)
	}
}

func TestHeldFilesSurviveTheGateway(t *testing.T) {
	r := newRig(t, "none")
	a, served := r.gateway("hold")
	held := number(t, a.next("held")[0])
	a.kill()
	<-served
	for range 2 {
		c, hang := r.dial()
		in := c.HeldSessions()
		if len(in) != 1 || len(in[0].Held) != 1 {
			t.Fatalf("inherited %+v", in)
		}
		for n, fd := range in[0].Held {
			at, err := unix.Seek(fd, 0, io.SeekCurrent)
			text, _ := os.ReadFile(c.Dir() + "/" + strconv.Itoa(n))
			if n != held || at != 5 || err != nil || string(text) != "0123456789" {
				t.Errorf("held %d as %d at %d (%v): %q", held, n, at, err, text)
			}
			unix.Close(fd)
		}
		if c.Generation() == 2 {
			in[0].Group.Drop(held, 0, 1, 2)
			in[0].Group.Members() // answered after the drop
			if _, err := os.Stat(c.Dir() + "/" + strconv.Itoa(held)); err == nil {
				t.Error("dropped, but open")
			}
		}
		hang()
	}
}

// TestNoRoomForCopies: a keeper whose descriptors are all in use can still start the next gateway.
func TestNoRoomForCopies(t *testing.T) {
	eachIsolation(t, func(t *testing.T, isolation string) {
		a := act(t, nil, "keeper", "hoard", isolation)
		gateway := number(t, a.next("hello")[1])
		a.next("hoarded")
		leave(t, a.cmd.Process.Pid, 0)
		held := 600
		for range 5 {
			if err := unix.Kill(gateway, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			gateway = number(t, a.next("hello")[1])
			f := a.next("inherited")
			if n := number(t, f[0]); n != held {
				t.Errorf("inherited %d of %d", n, held)
			}
			held += number(t, f[1])
			a.next("hoarded")
		}
		_ = a.cmd.Process.Signal(unix.SIGTERM)
		a.next("told")
		if code := a.wait(); code != 0 {
			t.Errorf("exit %d", code)
		}
	})
}

// TestNobodyLeavesForNothing: a gateway whose hello cannot be answered does not make another one leave.
func TestNobodyLeavesForNothing(t *testing.T) {
	r := newRig(t, "none")
	c, _ := r.dial()
	theirs, served := r.serve()
	defer theirs.Close()
	hello := fmt.Appendf(nil, `m{"version":%d,"op":"hello"}`, wire.Version)
	undo := leave(t, os.Getpid(), 0)
	_, err := unix.Write(int(theirs.Fd()), hello)
	refused := <-served
	undo()
	if err != nil || !errors.Is(refused, unix.EMFILE) {
		t.Errorf("%v, %v", err, refused)
	}
	if _, err := c.Numbers(); err != nil {
		t.Error(err)
	}
	select {
	case <-c.Yield():
		t.Error("told to leave")
	default:
	}
}

// TestLentUntilItIsSent: a descriptor that is dropped while an answer with it waits for room still arrives.
func TestLentUntilItIsSent(t *testing.T) {
	r := newRig(t, "none")
	c, hang := r.dial()
	g, err := c.Group("s-1")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("lent", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	numbers, err := g.Hold(fd)
	if err != nil {
		t.Fatal(err)
	}
	hang()
	a, b := socketpair(t)
	ours, theirs := must(wire.NewLink(a)), must(wire.NewLink(b))
	for ours.Idle() {
		if err := ours.Send(wire.Message{Op: wire.OpAnswer}); err != nil {
			t.Fatal(err)
		}
	}
	served := make(chan error, 1)
	go func() {
		_, err := r.server.serve(ours, nil, func() {})
		served <- err
	}()
	for _, m := range []wire.Message{{Version: wire.Version, Op: wire.OpHello}, {Op: wire.OpDrop, Group: "s-1", Held: numbers}} {
		if err := theirs.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "it is dropped", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return len(r.server.sessions["s-1"].held) == 0
	})
	for {
		m, files, err := theirs.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if m.State == nil {
			continue
		}
		of := m.State.Groups[0].Held
		name, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(files[len(files)-1]))
		if !slices.Equal(of, numbers) || !strings.Contains(name, "lent") {
			t.Errorf("held: %v, %s", of, name)
		}
		descriptor.CloseAll(files)
		break
	}
	testkit.Eventually(t, "it is closed", func() bool {
		name, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(numbers[0]))
		return !strings.Contains(name, "lent")
	})
	theirs.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestManyFilesGoInParcels(t *testing.T) {
	r := newRig(t, "none")
	c, hang := r.dial()
	g, err := c.Group("s-1")
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]bool{}
	for _, n := range []int{0, 1, 252, 253, 254, 600} {
		numbers, err := g.Hold(make([]int, n)...)
		if err != nil || len(numbers) != n {
			t.Fatalf("hold of %d: %d, %v", n, len(numbers), err)
		}
		for _, n := range numbers {
			want[n] = true
		}
	}
	hang()
	c, _ = r.dial()
	in := c.HeldSessions()[0]
	if len(in.Held) != len(want) {
		t.Errorf("%d held, not %d", len(in.Held), len(want))
	}
	for n, fd := range in.Held {
		unix.Close(fd)
		if !want[n] {
			t.Errorf("held %d", n)
		}
	}
}

func TestConnectionCutInAMessage(t *testing.T) {
	r := newRig(t, "none")
	_, hang := r.dial() // descriptors that stay open after a first connection are no leak
	hang()
	testkit.Eventually(t, "as many files open as before", func() bool { // retried, because an earlier test's descriptors may be closed meanwhile
		before := openFiles(t)
		for range 5 {
			theirs, served := r.serve()
			if _, err := unix.Write(int(theirs.Fd()), fmt.Appendf(nil, `m{"version":%d,"op":"hello"}`, wire.Version)); err != nil {
				t.Fatal(err)
			}
			if err := unix.Sendmsg(int(theirs.Fd()), []byte{wire.Parcel}, unix.UnixRights(0, 1, 2), nil, 0); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
		return openFiles(t) == before
	})
}

func TestGatewayKilledWhileSending(t *testing.T) {
	r := newRig(t, "none")
	_, hang := r.dial()
	hang()
	before := openFiles(t)
	for i := range 10 {
		a, served := r.gateway("flood")
		a.next("flooding")
		time.Sleep(time.Duration(i) * time.Millisecond) // in the middle of a message
		a.kill()
		if err := <-served; err != nil {
			t.Error(err)
		}
		c, hang := r.dial()
		for _, in := range c.HeldSessions() {
			for _, fd := range in.Held {
				unix.Close(fd)
			}
			if err := in.Group.Close(t.Context()); err != nil {
				t.Error(err)
			}
			in.Group.DropAll()
		}
		c.Numbers()
		hang()
	}
	a := 0
	testkit.Eventually(t, "files are closed", func() bool { a = openFiles(t); return a <= before+10 }) // the stdout of each gateway
	if a > before+10 {
		t.Errorf("%d files open, %d before", a, before)
	}
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	eachTier(t, func(t *testing.T, r *rig) {
		c, _ := r.dial()
		cycle := func() {
			g, err := c.Group(newID())
			if err != nil {
				t.Fatal(err)
			}
			scope, _ := g.NewScope()
			for range 5 {
				k, err := scope.Spawn(run("/bin/sh", "-c", "sleep 100 & sleep 100"))
				if err != nil {
					t.Fatal(err)
				}
				defer k.Close()
				scope.MembersExcept(k.Pid())
			}
			if _, err := g.Hold(0, 1, 2); err != nil {
				t.Fatal(err)
			}
			if err := g.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			g.DropAll()
		}
		cycle()
		c.Numbers()
		files, routines := openFiles(t), runtime.NumGoroutine()
		for range 5 {
			cycle()
		}
		testkit.Eventually(t, "descriptors, goroutines and children go", func() bool { // the last exits may still be on their way
			c.Numbers()
			children, scopes := c.Tracked()
			return openFiles(t) <= files && runtime.NumGoroutine() <= routines && children == 0 && scopes == 0
		})
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		if len(r.server.sessions) != 0 {
			t.Errorf("left: %v", r.server.sessions)
		}
	})
}

func TestCloseOfAGroupObeysItsContext(t *testing.T) {
	c, a := serving(t, "none")
	g, err := c.Group("s-1")
	if err != nil {
		t.Fatal(err)
	}
	a.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	_ = a.cmd.Process.Signal(unix.SIGCONT)
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	c.Close()
}

func TestOrphansOfSessionsThatAreGone(t *testing.T) {
	r := newRig(t, "none")
	c, _ := r.dial()
	// This process has left its group in every way; only its environment names its session.
	s := run("/bin/sh", "-c", "setsid -f sleep 101")
	s.Env = append(s.Env, "TRL_SESSION_ID=s-lost")
	child, err := r.host.Spawn(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-child.Exited()
	child.Close()
	asked := map[string]bool{}
	killed := 0
	testkit.Eventually(t, "the orphan is killed", func() bool {
		killed += c.KillOrphans(func(id string) bool { asked[id] = true; return len(asked) > 1 })
		return killed == 1
	})
	if !asked["s-lost"] {
		t.Errorf("asked for %v", asked)
	}
}

// TestDirectoryThatDoesNotAnswer: a directory that does not answer blocks only those who ask for it.
func TestDirectoryThatDoesNotAnswer(t *testing.T) {
	eachTier(t, func(t *testing.T, r *rig) {
		fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skip("no FUSE: ", err)
		}
		dir := t.TempDir()
		if err := unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse)); err != nil {
			unix.Close(fuse)
			t.Skip("no FUSE may be mounted: ", err)
		}
		answer := sync.OnceFunc(func() {
			unix.Close(fuse)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		})
		defer answer()
		c, _ := r.dial()
		scope, other := openCell(c, "s-1"), openCell(c, "s-2")
		there := run("/bin/true")
		there.Dir = dir
		asks := []func() error{
			func() error {
				_, _, err := c.Call(wire.Message{Op: wire.OpEnter, Group: "s-1", Dir: []byte(dir)})
				return err
			},
			func() error { _, err := scope.Spawn(there); return err },
			func() error {
				_, err := c.StartSession("s-3", own.StartRequest{Shell: there, Parallel: func(own.KeptGroup) error { return nil }})
				return err
			},
		}
		asked := make(chan error, len(asks))
		for _, ask := range asks {
			go func() { asked <- ask() }()
		}
		others := make(chan error, 1)
		go func() {
			for int(r.server.slow.Load()) < len(asks) && len(asked) == 0 {
				time.Sleep(time.Millisecond)
			}
			k, err := other.Spawn(run("/bin/true"))
			if err == nil {
				<-k.Exited()
				k.Close()
				_, _, err = c.Call(wire.Message{Op: wire.OpClose, Group: "s-2"})
			}
			others <- err
		}()
		select {
		case err := <-others:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testkit.Patience / 2):
			t.Error("another session waits for the directory")
		}
		if n := len(asked); n > 0 {
			t.Errorf("%d do not wait for the directory", n)
		}
		answer()
		for range asks {
			err := <-asked // nil: this one asked after the unmount
			if e, ok := errors.AsType[*fs.PathError](err); err != nil && (!ok || e.Path != dir) {
				t.Error(err)
			}
		}
	})
}

// TestShortOfDescriptors: a client hears in time that the keeper has few descriptors left, and when it has enough again.
func TestShortOfDescriptors(t *testing.T) {
	ours, theirs := socketpair(t)
	a := act(t, theirs, "serve", "none")
	theirs.Close()
	const most = 300
	if err := unix.Prlimit(a.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(ours, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g := must(c.Group("s-1"))
	var held []int
	for !c.DescriptorsShort() {
		numbers, err := g.Hold(0, 0, 0)
		if err != nil {
			t.Fatalf("%d held: %v", len(held), err)
		}
		held = append(held, numbers...)
	}
	n := must(c.Numbers())
	if n.MostDescriptors != most || n.Descriptors < most/2 || n.Descriptors > most*9/10 || len(held) < most/2 {
		t.Errorf("short with %d held: %+v", len(held), n)
	}
	other := must(c.Group("s-2"))
	for n.Descriptors <= most-most/10 {
		held = append(held, must(g.Hold(0))...)
		n = must(c.Numbers())
	}
	if _, err := c.Group("s-3"); !errors.Is(err, unix.EMFILE) {
		t.Errorf("another session with %d of %d descriptors: %v", n.Descriptors, most, err)
	}
	if _, err := other.NewScope(); err != nil {
		t.Errorf("a session that exists: %v", err)
	}
	g.Drop(held...)
	testkit.Eventually(t, "enough again", func() bool { return !c.DescriptorsShort() })
	for { // a failure for want of descriptors is a sign, too
		if numbers, err := g.Hold(0, 0, 0, 0, 0, 0, 0, 0); err != nil {
			break
		} else {
			held = append(held, numbers...)
		}
	}
	if !c.DescriptorsShort() {
		t.Error("not short with no descriptor left")
	}
}
