package rig

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/testkit"
)

// FlagsOfAll are flags for every gateway besides its own flags. They check that the same promises hold for sessions of another user, or
// under Landlock (TRL_TEST_FLAGS='--allow-write /').
var FlagsOfAll = strings.Fields(os.Getenv("TRL_TEST_FLAGS"))

// OurNumbers skips a test if a session may have other process ids, and see other files, than the test.
func OurNumbers(t testing.TB) {
	t.Helper()
	if len(FlagsOfAll) > 0 {
		t.Skip("not run: the session's numbers are not ours")
	}
}

// OneNode skips a test that cannot be run at a node which owns no session (StartOther), and says why.
func OneNode(t testing.TB, why string) {
	t.Helper()
	if StartOther != nil {
		t.Skip("not run at a node that owns no session: " + why)
	}
}

// Pick returns short, or long in a soak.
func Pick[T any](short, long T) T {
	if testkit.Soak {
		return long
	}
	return short
}

var Shells = []string{"/bin/sh", "/bin/bash"}

var AllShells = []string{"/bin/bash", "/bin/dash", "/usr/bin/zsh", "/bin/busybox"}

// InShells runs f in each shell that exists here. If only is not empty, it names the shells.
func InShells(t *testing.T, only string, f func(t *testing.T, shell string)) {
	for _, sh := range AllShells {
		if only != "" && !strings.Contains(only, filepath.Base(sh)) {
			continue
		}
		t.Run(filepath.Base(sh), func(t *testing.T) {
			if _, err := os.Stat(sh); err != nil {
				t.Skip(err)
			}
			f(t, sh)
		})
	}
}

func EachShell(t *testing.T, f func(t *testing.T, shell string)) {
	t.Helper()
	for _, sh := range Shells {
		t.Run(filepath.Base(sh), func(t *testing.T) { f(t, sh) })
	}
}

// Top is the directory of everything that this test binary makes; Binary is the gateway in it. Main sets both.
var Top, Binary string

// Main runs a folder of acceptance tests. It builds the gateway before, and afterwards checks that no gateway is left.
func Main(m *testing.M) {
	testkit.HearSignals()
	actListener()
	// Tests that call t.Parallel here mostly wait, so more of them than processors may run. The flag -parallel takes precedence.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(func() int {
		var err error
		if Top, err = os.MkdirTemp("", "trl-acceptance-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(Top)
		Binary = filepath.Join(Top, "trl")
		if err := Build(Binary); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		sharing.Lock()
		defer sharing.Unlock()
		for name, g := range sharing.gateways {
			for _, fault := range g.Stop() {
				fmt.Fprintf(os.Stderr, "--- FAIL: gateway %s: %s\n", name, fault)
				code = 1
			}
		}
		for _, g := range leftBehind() {
			fmt.Fprintf(os.Stderr, "--- FAIL: a test has left %s\n", g)
			code = 1
		}
		return code
	}())
}

// leftBehind lists the gateways that no test has ended. It waits for those that are ending.
func leftBehind() (left []string) {
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(10 * time.Millisecond) {
		left = left[:0]
		for _, pid := range testkit.Pids() {
			if line := Cmdline(pid); strings.HasPrefix(line, Binary+" ") {
				left = append(left, fmt.Sprint(pid, ": ", line))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

var Tiers = []string{"auto", "none"}
