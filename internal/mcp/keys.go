package mcp

import (
	"strings"

	"trl/protocol"
)

// keyNames are the keys that send knows besides C-a to C-z, as a terminal sends them.
var keyNames = map[string]string{
	"enter": "\r", "tab": "\t", "esc": "\x1b", "space": " ", "backspace": "\x7f", "delete": "\x1b[3~",
	"up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D",
	"home": "\x1b[H", "end": "\x1b[F", "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
	"f1": "\x1bOP", "f2": "\x1bOQ", "f3": "\x1bOR", "f4": "\x1bOS", "f5": "\x1b[15~", "f6": "\x1b[17~",
	"f7": "\x1b[18~", "f8": "\x1b[19~", "f9": "\x1b[20~", "f10": "\x1b[21~", "f11": "\x1b[23~", "f12": "\x1b[24~",
}

// keyBytes returns what keys, separated by spaces, send to a terminal. Other work has no keyboard: there enter is a line feed, and C-c, C-\ and C-z are
// the signals that a terminal would make of them.
func keyBytes(keys string, terminal bool) (bytes, signal string, err error) {
	for _, key := range strings.Fields(keys) {
		name := strings.ToLower(key)
		letter, control := strings.CutPrefix(name, "c-")
		switch {
		case control && !terminal && controlSignals[letter] != "":
			signal = controlSignals[letter]
		case control && len(letter) == 1 && letter[0] >= 'a' && letter[0] <= 'z':
			bytes += string(letter[0] - 'a' + 1)
		case control && letter == `\`:
			bytes += "\x1c"
		case name == "enter" && !terminal:
			bytes += "\n"
		case keyNames[name] != "":
			bytes += keyNames[name]
		default:
			return "", "", protocol.InvalidParam("key", "%q is no key: write enter, tab, esc, up, down, left, right, home, end, pageup, pagedown, backspace, delete, space, f1 to f12, or C-a to C-z", key)
		}
	}
	return bytes, signal, nil
}

var controlSignals = map[string]string{"c": "INT", `\`: "QUIT", "z": "TSTP"}
