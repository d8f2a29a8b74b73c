package main

import "github.com/spf13/cobra"

// workCommands work in sessions.
func workCommands() []*cobra.Command {
	return []*cobra.Command{newRun(), newStart(), newWait(), newTerm(), newAttach(), newKill()}
}

// listCommands show what there is.
func listCommands() []*cobra.Command {
	return []*cobra.Command{newList(), newInfo(), newProcesses(), newHistory(), newLogs(), newStats()}
}

// sharingCommands share and record.
func sharingCommands() []*cobra.Command {
	return []*cobra.Command{newShare(), newShares(), newUnshare(), newRecordings(), newPlay()}
}
