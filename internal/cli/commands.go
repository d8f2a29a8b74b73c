// Package cli has the commands of a client (run, term, attach, ps, logs and others) and the commands for tokens, upgrades and audit logs.
package cli

import "github.com/spf13/cobra"

// WorkCommands returns the commands that work in sessions.
func WorkCommands() []*cobra.Command {
	return []*cobra.Command{newRun(), newStart(), newWait(), newTerm(), newAttach(), newMove(), newKill()}
}

// ListCommands returns the commands that list and show things.
func ListCommands() []*cobra.Command {
	return []*cobra.Command{newList(), newInfo(), newProcesses(), newHistory(), newLogs(), newStats(), newNodes()}
}

// SharingCommands returns the commands for share links and recordings.
func SharingCommands() []*cobra.Command {
	return []*cobra.Command{newShare(), newShares(), newUnshare(), newRecordings(), newPlay()}
}
