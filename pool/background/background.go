// Package background reads the command lines of processes that commands have left running.
package background

import (
	"slices"

	"trl/protocol"
	"trl/runtime/procfs"
	"trl/runtime/slowfs"
)

// Bounds of the command lines in process.list: 100 KiB in all.
const (
	maxCommandLines = 100
	maxCommandLine  = 1 << 10
)

// Commands returns the command lines of processes of a session. A command line is in the process's own memory, and the process can make the kernel
// wait for that. still returns the pids of the session's processes now: a pid may belong to another process by then.
func Commands(session string, pids []int, still func() []int) []protocol.BackgroundEntry {
	if len(pids) == 0 {
		return nil
	}
	commands, err := slowfs.Ask(slowfs.Question{Who: session, Op: "read", Path: "cmdline"}, func() (all []protocol.BackgroundEntry, _ error) {
		for _, pid := range pids[:min(len(pids), maxCommandLines)] {
			if line := procfs.CommandLine(pid, maxCommandLine); line != "" {
				all = append(all, protocol.BackgroundEntry{Pid: pid, Command: line})
			}
		}
		return all, nil
	})
	if err != nil {
		return nil
	}
	now := still()
	return slices.DeleteFunc(commands, func(e protocol.BackgroundEntry) bool { return !slices.Contains(now, e.Pid) })
}
