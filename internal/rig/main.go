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

// FlagsOfAll are given to every gateway besides its own: the same promises hold for sessions of another user, or behind
// Landlock (TRL_TEST_FLAGS='--allow-write /').
var FlagsOfAll = strings.Fields(os.Getenv("TRL_TEST_FLAGS"))

// OurNumbers skips a test where what runs in a session may have other numbers, and see other files, than we.
func OurNumbers(t testing.TB) {
	t.Helper()
	if len(FlagsOfAll) > 0 {
		t.Skip("not run: the session's numbers are not ours")
	}
}

// Pick is short by default and long in a soak.
func Pick[T any](short, long T) T {
	if testkit.Soak {
		return long
	}
	return short
}

var Shells = []string{"/bin/sh", "/bin/bash"}

var AllShells = []string{"/bin/bash", "/bin/dash", "/usr/bin/zsh", "/bin/busybox"}

// InShells runs f in each of the shells there are here, of those named in only where that is not empty.
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

// Top is the directory of everything that this test binary makes, and binary the gateway in it. Set once in Main.
var Top, Binary string

// Main runs the tests of a folder of acceptance tests: it builds the gateway before, and afterwards checks that no gateway is left.
func Main(m *testing.M) {
	testkit.HearSignals()
	actListener()
	// Tests that call t.Parallel here mostly wait, so there may be more of them than processors. -parallel still wins.
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

// leftBehind lists the gateways that no test has ended; one may be just about to.
func leftBehind() (left []string) {
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(10 * time.Millisecond) {
		left = left[:0]
		for _, pid := range Pids() {
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
