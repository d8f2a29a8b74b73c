package keeper

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/descriptor"
	"trl/runtime/keeper/wire"
)

func eachIsolation(t *testing.T, f func(t *testing.T, isolation string)) {
	for _, isolation := range []string{"auto", "none"} {
		t.Run(isolation, func(t *testing.T) { f(t, isolation) })
	}
}

func TestGatewayThatSaysByeEndsTheKeeper(t *testing.T) {
	a := act(t, nil, "keeper", "bye", "auto")
	if f := a.next("hello"); f[0] != "0" || f[3] != "1" {
		t.Errorf("hello %v", f)
	}
	if code := a.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestGatewayThatNeverBecomesReadyEndsTheKeeper(t *testing.T) {
	if code := act(t, nil, "keeper", "broken", "none").wait(); code != 3 {
		t.Errorf("exit %d", code)
	}
}

func TestLaterGatewayMayFailToStart(t *testing.T) {
	a := act(t, nil, "keeper", "second-broken", "none")
	a.next("hello")
	a.next("broken")
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	if code := a.wait(); code != 4 {
		t.Errorf("exit %d", code)
	}
}

func TestCrashLoopIsPaced(t *testing.T) {
	a := act(t, nil, "keeper", "crash", "none")
	var last int
	for i, least := range []int{0, 0, 100, 200, 400} {
		f := a.next("hello")
		now := number(t, f[2])
		if gap := now - last; number(t, f[0]) != i || gap < least || i > 0 && gap > least+20_000 { // the machine may be busy
			t.Errorf("gateway %s after %d ms, expected %d", f[0], gap, least)
		}
		last = now
	}
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	a.wait()
}

func TestPauses(t *testing.T) {
	k := &keeper{}
	for i, want := range []time.Duration{0, 100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		if got := k.crashed(); got != want*time.Millisecond {
			t.Errorf("pause %d: %v", i, got)
		}
	}
	for range 100 {
		if k.crashed() != maxRestartPause {
			t.Error("pause is not the longest")
		}
	}
}

func TestSessionsOutliveTheGateway(t *testing.T) {
	eachIsolation(t, func(t *testing.T, isolation string) {
		a := act(t, nil, "keeper", "session", isolation)
		gateway := number(t, a.next("hello")[1])
		pid := a.next("pid")[0]
		for range 5 {
			if err := unix.Kill(gateway, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			next := number(t, a.next("hello")[1])
			if got := a.next("pid")[0]; next == gateway || got != pid || !alive(number(t, pid)) {
				t.Errorf("gateway %d, then %d; child %s, then %s", gateway, next, pid, got)
			}
			gateway = next
		}
		_ = a.cmd.Process.Signal(unix.SIGTERM)
		a.next("told")
		if code := a.wait(); code != 0 || alive(number(t, pid)) {
			t.Errorf("exit %d, child alive: %v", code, alive(number(t, pid)))
		}
	})
}

// TestLastWordsReachTheNextGateway: the next gateway gets the remembered text byte for byte, the first one none.
func TestLastWordsReachTheNextGateway(t *testing.T) {
	a := act(t, nil, "keeper", "remember", "none")
	for _, want := range []string{`false ""`, `true "of\x000"`, `true ""`} {
		gateway := number(t, a.next("hello")[1])
		if got := strings.Join(a.next("recalled"), " "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		a.next("remembered")
		if err := unix.Kill(gateway, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	a.next("hello")
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	a.next("told")
	if code := a.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestGatewayEndsWithTheKeeper(t *testing.T) {
	a := act(t, nil, "keeper", "idle", "none")
	gateway := number(t, a.next("hello")[1])
	a.kill()
	testkit.Eventually(t, "the gateway ends", func() bool { return !alive(gateway) })
}

func TestSecondSignalDoesNotWait(t *testing.T) {
	a := act(t, nil, "keeper", "deaf", "none")
	a.next("hello")
	ended, asked := make(chan struct{}), make(chan struct{})
	go func() { // ends with ended
		defer close(asked)
		for {
			_ = a.cmd.Process.Signal(unix.SIGINT) // more than two, because a busy machine may take two for one
			select {
			case <-ended:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	}()
	if code := a.wait(); code != 0 { // as it asked
		t.Errorf("exit %d", code)
	}
	close(ended)
	<-asked
}

// TestDrainIsPassedOn: a drain is not an end. The gateway gets its time, the successor of one that dies meanwhile is told as well, and a
// second signal is passed on and does not kill.
func TestDrainIsPassedOn(t *testing.T) {
	a := act(t, nil, "keeper", "drains", "none")
	a.next("hello")
	for _, want := range [][]string{{"0", "0"}, {"1", "0"}} {
		if want[0] == "0" {
			_ = a.cmd.Process.Signal(unix.SIGTERM)
		}
		if f := a.next("told"); f[0] != want[0] || f[1] != want[1] {
			t.Errorf("told %v, want %v", f, want)
		}
	}
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	if f := a.next("told"); f[0] != "1" || f[1] != "1" {
		t.Errorf("told %v", f)
	}
	if code := a.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestSignalsFromInsideASessionAreIgnored(t *testing.T) {
	eachIsolation(t, func(t *testing.T, isolation string) {
		a := act(t, nil, "keeper", "killer", isolation)
		a.next("none")
		if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.next("told")
		if code := a.wait(); code != 0 {
			t.Errorf("exit %d", code)
		}
	})
}

func TestSessionsStartWithDefaultSignals(t *testing.T) {
	a := act(t, nil, "keeper", "mask", "none")
	for _, word := range []string{"SigBlk:", "SigIgn:"} {
		if mask := a.next(word); strings.Trim(mask[0], "0") != "" {
			t.Errorf("%s %v", word, mask)
		}
	}
	a.next("done")
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	a.wait()
}

// TestKeeperAsPID1: as PID 1, only the keeper reaps orphans.
func TestKeeperAsPID1(t *testing.T) {
	testkit.StartsProcesses(t)
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
		testBinary, "keeper", "pid1", "none")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.Contains(string(out), "reaped") {
		t.Errorf("%s", out)
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{"op":"hello","version":3}`, `{"op":"spawn","id":1,"spawn":{"path":"L2Jpbi9zaA==","argv":["c2g="],"env":[],"dir":"","slots":[0,-1]}}`,
		`{"op":"spawn","id":2,"group":"s-1","cell":1,"spawn":{"path":"L2Jpbi9zaA==","argv":["c2g="],"env":[],"dir":"","tty":true,"slots":[0,0,0]}}`,
		`{"op":"hello","state":{"epoch":"x","groups":[{"id":"s-1","cells":[{"number":1,"mark":18446744073709551615,"listed":true}]}]}}`,
		`{"op":"answer","id":1,"fault":{"text":"x","errno":2}}`, `{"op":"what"}`, `{"op":"exit","files":-1}`, `[`, ``,
	} {
		f.Add(byte(wire.Inline), []byte(text), uint8(1))
		f.Add(byte(wire.InFile), []byte(text), uint8(2))
		f.Add(byte(wire.Parcel), []byte{}, uint8(253))
	}
	f.Fuzz(func(t *testing.T, kind byte, text []byte, files uint8) {
		if len(text) > wire.MaxInline+10 {
			t.Skip()
		}
		ours, theirs := socketpair(t)
		l, err := wire.NewLink(ours)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		before := openFiles(t)
		fds := make([]int, min(int(files), wire.MaxRights))
		packet := append([]byte{kind}, text...)
		if kind == wire.InFile && len(text) > 0 && len(fds) > 0 && text[0] != '[' {
			if fds[0], err = wire.SealedMemfd(text); err != nil {
				t.Fatal(err)
			}
			packet = packet[:1]
		}
		if err := unix.Sendmsg(int(theirs.Fd()), packet, unix.UnixRights(fds...), nil, 0); err != nil {
			t.Fatal(strconv.Itoa(len(packet)), err)
		}
		for _, fd := range fds {
			if fd != 0 {
				unix.Close(fd)
			}
		}
		theirs.Close()
		m, got, err := l.Receive()
		if err == nil && len(got) != m.Files {
			t.Errorf("%d descriptors, told %d", len(got), m.Files)
		}
		descriptor.CloseAll(got)
		if now := openFiles(t) + 1; now != before { // the other end
			t.Errorf("%d files open, %d before: %v", now, before, err)
		}
		if err == nil {
			_ = wire.VersionOf(text)
			if packets, err := wire.Pack(m, nil, nil); err == nil {
				for _, p := range packets {
					p.Finish()
				}
			}
		}
	})
}
