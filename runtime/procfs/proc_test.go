package procfs

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"trl/internal/testkit"
)

func TestParseStatTrustsOnlyTheLastParenthesis(t *testing.T) {
	tail := " S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 123456 1 2 3"
	for _, name := range []string{"sh", "", "a b", "a) R 1 (b", ")))", "x\n1 (y) Z 1"} {
		p, ok := ParseStat([]byte("42 (" + name + ")" + tail))
		if want := (Process{Pid: 42, Ppid: 7, Pgrp: 8, Sid: 9, Start: 123456, Threads: 3, State: 'S'}); !ok || p != want {
			t.Errorf("%q: %+v %v", name, p, ok)
		}
	}
	for _, text := range []string{"", "42", "42 (sh", "42 (sh) S 7 8", ")", " ) "} {
		if p, ok := ParseStat([]byte(text)); ok {
			t.Errorf("%q: %+v", text, p)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (sh) S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 123456 1 2 3"))
	f.Fuzz(func(t *testing.T, text []byte) { ParseStat(text) })
}

func TestChildrenAreFoundEitherWay(t *testing.T) {
	testkit.StartsProcesses(t)
	c := exec.Command("/bin/sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	self, _ := Read(os.Getpid())
	if kids := self.Children(); !slices.Contains(kids, c.Process.Pid) {
		t.Errorf("children %v", kids)
	}
	if kids := ChildrenByScan(os.Getpid()); !slices.Contains(kids, c.Process.Pid) {
		t.Errorf("by scan %v", kids)
	}
}

func TestEnvironSession(t *testing.T) {
	testkit.StartsProcesses(t)
	for _, env := range [][]string{
		{"A=1", "TRL_SESSION_ID=s-1"}, {"TRL_SESSION_ID=s-1", "A=1"},
		{"A=" + strings.Repeat("x", 50_000), "TRL_SESSION_ID=s-1"},
	} {
		if id := environOf(t, env); id != "s-1" {
			t.Errorf("got %q", id)
		}
	}
	for _, env := range [][]string{{}, {"XTRL_SESSION_ID=s-1"}, {"A=\nTRL_SESSION_ID=s-1"}} {
		if id := environOf(t, env); id != "" {
			t.Errorf("got %q", id)
		}
	}
}

func environOf(t *testing.T, env []string) string {
	c := exec.Command("/bin/sleep", "60")
	c.Env = env
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	testkit.Eventually(t, "the exec is over", func() bool { // for a moment after the exec the process has no environment
		text, _ := os.ReadFile(Path(c.Process.Pid, "/stat"))
		return strings.Contains(string(text), "(sleep) S")
	})
	return SessionOf(c.Process.Pid)
}

func TestReadMarkOfAnotherUser(t *testing.T) {
	testkit.StartsProcesses(t)
	if os.Getuid() != 0 {
		t.Skip("needs root to become another user")
	}
	c := exec.Command("setpriv", "--reuid=65534", "--clear-groups", "sleep", "60")
	if err := c.Start(); err != nil {
		t.Skip(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	if err := SetMark(c.Process.Pid, 12345); err != nil {
		t.Skip(err)
	}
	testkit.Eventually(t, "it is nobody's", func() bool {
		text, _ := os.ReadFile(Path(c.Process.Pid, "/status"))
		return strings.Contains(string(text), "Uid:\t65534")
	})
	if m := ReadMark(c.Process.Pid); m != 12345 {
		t.Errorf("mark %d", m)
	}
}

func TestSignalPinnedNeedsTheLook(t *testing.T) {
	testkit.StartsProcesses(t)
	c := exec.Command("/bin/sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p, _ := Read(c.Process.Pid)
	other := p
	other.Start++
	if SignalIf(p.Pid, 9, other.IsStill) || SignalIf(0, 9, p.IsStill) || SignalIf(-1, 9, p.IsStill) {
		t.Error("signalled what is not it")
	}
	if !SignalIf(p.Pid, 9, p.IsStill) {
		t.Error("not signalled")
	}
	c.Wait()
	if SignalIf(p.Pid, 9, p.IsStill) {
		t.Error("signalled the dead")
	}
}

func TestParsePids(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "1\n22\n0\n": {1, 22, 0}, "7 8 ": {7, 8}, "9": {9}} {
		if got := ParsePids([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestDeadWithItsLastThread: a killed process whose first thread has ended still holds its sockets until its last thread has ended.
func TestDeadWithItsLastThread(t *testing.T) {
	for _, c := range []struct {
		p    Process
		dead bool
	}{{Process{State: 'Z', Threads: 1}, true}, {Process{State: 'Z', Threads: 3}, false}, {Process{State: 'X'}, true}, {Process{State: 'S', Threads: 1}, false}} {
		if c.p.Dead() != c.dead {
			t.Errorf("%+v", c.p)
		}
	}
}
