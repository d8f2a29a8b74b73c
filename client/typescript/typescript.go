// Package typescript has the files of the TypeScript client, as its users get them: the gateway serves the script, and `trl sdk typescript` writes the
// package. So a client and a gateway of the same version are always at hand.
package typescript

import (
	"bytes"
	"embed"
)

// Files is the package: package.json, its README, and what bundle made in dist.
//
//go:embed package.json README.md dist/*.js dist/*.cjs dist/*.d.ts dist/*.d.cts
var Files embed.FS

// Manifest returns package.json for users: without scripts and devDependencies, which npm would install with a package that is a directory.
func Manifest(text []byte) []byte {
	text, _, _ = bytes.Cut(text, []byte(",\n  \"scripts\": {")) // both are at the end
	return append(bytes.Clone(text), "\n}\n"...)
}

// Script is the name of the file that a browser imports.
const Script = "dist/index.js"
