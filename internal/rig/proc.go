package rig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"trl/internal/testkit"
)

var sleepers atomic.Int64

// Sleeper returns a command line that sleeps for five minutes and that nobody else on this machine uses.
func Sleeper() string { return fmt.Sprintf("sleep 300.%07d%04d", os.Getpid()%1e7, sleepers.Add(1)) }

// Unique returns a name that no other test here has had, also when tests are repeated (-count).
func Unique(name string) string { return fmt.Sprint(name, "-", sleepers.Add(1)) }

// Running lists the processes with this command line, without zombies.
func Running(command string) []int {
	return testkit.PidsWhose("cmdline", func(text []byte) bool { return string(spaced(text)) == command })
}

// Cmdline returns a process's command line with spaces between the words; "" for a zombie and for a process that is gone.
func Cmdline(pid int) string { return string(spaced(testkit.ReadProc(pid, "cmdline"))) }

// spaced puts spaces between the words of a command line.
func spaced(cmdline []byte) []byte {
	cmdline = bytes.TrimSuffix(cmdline, []byte{0})
	for i, c := range cmdline {
		if c == 0 {
			cmdline[i] = ' '
		}
	}
	return cmdline
}

// StatFields returns the fields of /proc/PID/stat from the state on: state ppid pgrp session tty_nr tpgid and so on; nil for a process that
// is gone.
func StatFields(pid int) []string {
	b := testkit.ReadProc(pid, "stat")
	if len(b) == 0 {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// ProcStat returns state, parent and start time from /proc/PID/stat. ok is false for a process that is gone.
func ProcStat(pid int) (state byte, parent int, start string, ok bool) {
	f := StatFields(pid)
	if f == nil {
		return 0, 0, "", false
	}
	parent, _ = strconv.Atoi(f[1])
	return f[0][0], parent, f[19], true
}

// ProcessesOfSession lists the processes whose environment names this session.
func ProcessesOfSession(session string) []int {
	word := []byte("TRL_SESSION_ID=" + session + "\x00")
	return testkit.PidsWhose("environ", func(text []byte) bool { return bytes.Contains(text, word) })
}

// UniqueFile returns a path in the gateway's home that nothing else uses, and a function that says whether the file exists.
func UniqueFile(g *Server, name string) (path string, there func() bool) {
	path = filepath.Join(g.Home, fmt.Sprintf("%s.%d", name, sleepers.Add(1)))
	return path, func() bool { _, err := os.Stat(path); return err == nil }
}

// StopProcess stops a process; let continues it.
func StopProcess(t *testing.T, pid int) (let func()) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	let = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(let) // runs before the server ends
	testkit.Eventually(t, "it has stopped", func() bool { state, _, _, _ := ProcStat(pid); return state == 'T' })
	return let
}
