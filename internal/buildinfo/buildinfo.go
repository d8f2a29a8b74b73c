// Package buildinfo says which version and which commit this program is.
package buildinfo

import (
	"runtime/debug"
	"strings"
)

// The linker sets both in release builds (-X trl/internal/buildinfo.version=v0.1.0 -X trl/internal/buildinfo.commit=…).
var (
	version = "v0.1.0-dev"
	commit  string
)

// Version is the release, or between releases the next one with the commit: v0.1.0, v0.1.0-dev+0123456789ab.
func Version() string {
	if c := Commit(); c != "" && strings.HasSuffix(version, "-dev") {
		return version + "+" + c
	}
	return version
}

// Commit is the commit from the linker or from the Go tool; "" if neither recorded one.
func Commit() string {
	if commit != "" {
		return commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	recorded := map[string]string{}
	for _, s := range info.Settings {
		recorded[s.Key] = s.Value
	}
	c := recorded["vcs.revision"]
	c = c[:min(12, len(c))]
	if c != "" && recorded["vcs.modified"] == "true" {
		c += "-dirty"
	}
	return c
}
