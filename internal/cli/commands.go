// Package cli is the commands of a client: run, term, attach, ps, logs and the others, and those for tokens, upgrades and audit logs.
package cli

import "github.com/spf13/cobra"

// WorkCommands work in sessions.
func WorkCommands() []*cobra.Command {
	return []*cobra.Command{newRun(), newStart(), newWait(), newTerm(), newAttach(), newKill()}
}

// ListCommands show what there is.
func ListCommands() []*cobra.Command {
	return []*cobra.Command{newList(), newInfo(), newProcesses(), newHistory(), newLogs(), newStats()}
}

// SharingCommands share and record.
func SharingCommands() []*cobra.Command {
	return []*cobra.Command{newShare(), newShares(), newUnshare(), newRecordings(), newPlay()}
}
