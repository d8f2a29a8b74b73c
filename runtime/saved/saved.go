// Package saved has what is written to the session log about a shell, its command, its processes and its terminals, so that the next
// gateway can go on where this one was killed. Numbers of descriptors are the keeper's. No value depends on a command's output, and only
// Command is written for each command.
package saved

import (
	"trl/runtime/journal"
	"trl/runtime/stream"
)

// Shell describes a shell between its commands.
type Shell struct {
	Pid        int      `json:"pid,omitempty"` // 0: the session has no shell process
	Scope      int      `json:"cell,omitempty"`
	LeftScopes []int    `json:"left,omitempty"`  // scopes of processes that commands left running
	Held       []int    `json:"held,omitempty"`  // the shell's channels, see shellProc.held; 0: a shell at rest has no such file
	State      []int    `json:"state,omitempty"` // the snapshot files, see Files.held in runtime/snapshot; 0 as in Held
	Dir        string   `json:"dir"`             // Dir and Env: the shell was started with them
	Env        []string `json:"env"`
	Seq        int      `json:"seq"`
	Trap       bool     `json:"int_trap,omitempty"`
	Funcs      bool     `json:"funcs,omitempty"`

	After *Replaced `json:"after,omitempty"` // set in the first entry of a shell that replaced another
}

// Replaced says which command ended with the previous shell. It is in the same entry as the new shell, so a killed gateway leaves
// both or neither, and the next gateway never mistakes the new shell for the shell that got the command.
type Replaced struct {
	Seq       int      `json:"seq,omitempty"` // of the command that ended with the old shell; 0: no command had begun
	Code      int      `json:"code,omitempty"`
	Cancelled bool     `json:"cancelled,omitempty"`
	Lost      []string `json:"lost,omitempty"` // parts of the shell's state that were lost
}

// Command describes a running command.
type Command struct {
	Seq        int               `json:"seq"`
	Sent       int               `json:"sent"` // length of the command's line in the script channel
	Scope      int               `json:"cell"` // holds the processes that the command started
	Pipes      stream.SavedPipes `json:"lane"`
	Span       journal.Span      `json:"span"`
	Stdin      []stream.HeldFile `json:"stdin,omitempty"`
	Before     []stream.HeldFile `json:"before,omitempty"` // file that the shell reads before the command's text
	UsedBefore *Usage            `json:"used,omitempty"`   // usage of the session when the command began; nil: unknown

	Snapshot int  `json:"snapshot,omitempty"` // number of the last snapshot that was requested before the command
	Current  bool `json:"current,omitempty"`  // no command has ended between that snapshot and this command

	Timeout   string `json:"timeout,omitempty"`   // kind of the time limit for which the command is being aborted; the session's owner writes down a cancel
	Cancelled bool   `json:"cancelled,omitempty"` // set together with Code
	Code      *int   `json:"code,omitempty"`      // exit code of a command that has ended; its own variables and directory are being undone

	Replaced *Replaced `json:"replaced,omitempty"` // the command ended with its shell, and the next shell has started
}

// Usage is the Usage of a group without the peak, which is measured anew for each command.
type Usage struct {
	CPU      int64 `json:"cpu"` // nanoseconds
	OOMKills int64 `json:"oom,omitzero"`
	PIDHits  int64 `json:"pids,omitzero"`
}

// Process describes a background process.
type Process struct {
	Pid    int               `json:"pid"`
	Scope  int               `json:"cell"`
	Copy   bool              `json:"copy,omitempty"` // a forked copy of a POSIX shell, so not a child of the keeper
	Start  uint64            `json:"start,omitempty"`
	Pipes  stream.SavedPipes `json:"lane"`
	Span   journal.Span      `json:"span"`
	Stdin  []stream.HeldFile `json:"stdin,omitempty"`
	Held   []stream.HeldFile `json:"held,omitempty"`
	Status int               `json:"status,omitempty"` // for a copy: the pipe from which its status is read
	Gate   int               `json:"gate"`             // a line written to it lets the process run
	Lost   []string          `json:"lost,omitempty"`   // parts of the session's state that the process does not have
}

// Terminal is what the next gateway must know to go on with a terminal.
type Terminal struct {
	Pid     int               `json:"pid"`
	Scope   int               `json:"cell"`
	PTY     stream.SavedPTY   `json:"line"`
	Span    journal.Span      `json:"span"`
	Stdin   []stream.HeldFile `json:"stdin"`
	Held    []stream.HeldFile `json:"held,omitempty"`
	Gate    int               `json:"gate,omitempty"` // a line written to it lets the command run; 0: no command waits
	Scratch string            `json:"scratch,omitempty"`
	Lost    []string          `json:"lost,omitempty"` // parts of the session's state that the terminal does not have
}
