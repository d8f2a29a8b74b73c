package protocol

import (
	"strings"
	"time"
	"unicode/utf8"
)

// NewLastExec makes what lists tell of the command that ended last.
func NewLastExec(command string, x *ExecExit, endedAt time.Time) *LastExec {
	return &LastExec{
		ExecID: x.ExecID, Command: TruncateText(command), ExitCode: x.ExitCode, Signal: x.Signal,
		TimedOut: x.TimedOut, Cancelled: x.Cancelled, DurationMS: x.DurationMS, EndedAt: endedAt,
	}
}

// TruncateText returns what lists and events have of a command's text: its first MaxText bytes, cut between characters. If it cuts, it copies, so
// that the result does not keep the whole text in memory.
func TruncateText(text string) string {
	if len(text) <= MaxText {
		return text
	}
	cut := MaxText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strings.Clone(text[:cut])
}
