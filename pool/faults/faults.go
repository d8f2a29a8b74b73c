// Package faults has the errors about sessions and their work.
package faults

import "trl/protocol"

// NoSession is for an id or a name that no session of the principal has.
func NoSession() error { return protocol.Errorf(protocol.SessionNotFound, "no such session") }

// NoExec is NoSession for a command.
func NoExec() error { return protocol.Errorf(protocol.ExecNotFound, "no such exec") }

// NoProcess is NoSession for a process.
func NoProcess() error { return protocol.Errorf(protocol.ProcessNotFound, "no such process") }

// NoTerminal is NoSession for a terminal.
func NoTerminal() error { return protocol.Errorf(protocol.TermNotFound, "no such terminal") }

// NoShare is NoSession for a share link.
func NoShare() error { return protocol.Errorf(protocol.ShareNotFound, "no such share link") }

// ShareOver is for a guest whose share link has ended.
func ShareOver() error { return protocol.Errorf(protocol.Forbidden, "this share link has ended") }

// SessionLost is for an id of an earlier epoch.
func SessionLost() error {
	return protocol.Errorf(protocol.SessionLost, "session of an earlier epoch")
}

// Shutdown is for a request while all sessions end.
func Shutdown() error { return protocol.Errorf(protocol.ShuttingDown, "server is shutting down") }

// Exists is for a name that a live session has.
func Exists(name, id string) error {
	return protocol.Errorf(protocol.SessionExists, "a live session is named %q", name).With("session_id", id)
}
