// Package namedshell finds the shell that a terminal's command names.
package namedshell

import (
	"os/exec"
	"path/filepath"
	"strings"

	"trl/runtime/dialect"
	"trl/runtime/slowfs"
)

// A Shell is the shell that a terminal's command names. The zero value means any other command.
type Shell struct {
	Path, Name string // Name is the shell's kind, or "fish"
}

// Find returns the shell that text names, if it is only the name or path of bash, zsh or fish. It asks the file system, for a bounded time. who is the
// session.
func Find(who, text string) (Shell, error) {
	path := strings.TrimSpace(text)
	if strings.ContainsAny(path, " \t\n'\"\\$`;&|<>(){}*?[]~#") {
		return Shell{}, nil
	}
	name := filepath.Base(path)
	switch name {
	case "bash", "zsh", "fish":
	default:
		return Shell{}, nil
	}
	return slowfs.Ask(slowfs.Question{Who: who, Op: slowfs.OpLookUp, Path: path}, func() (Shell, error) {
		path, err := exec.LookPath(path)
		if err != nil { // the session's PATH may have it, so it runs as any other command
			return Shell{}, nil
		}
		if name != "fish" {
			k, _, err := dialect.Of(path)
			if err != nil {
				return Shell{}, err
			}
			name = k.Name
		}
		return Shell{path, name}, nil
	})
}
