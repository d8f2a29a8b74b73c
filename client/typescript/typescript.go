// Package typescript has the files of the TypeScript client, as its users get them: the gateway serves the script, and `trl sdk typescript` writes the
// package. So a client and a gateway of the same version are always at hand.
package typescript

import "embed"

// Files is the package: package.json, and what bundle made in dist.
//
//go:embed package.json dist/*.js dist/*.cjs dist/*.d.ts dist/*.d.cts
var Files embed.FS

// Script is the name of the file that a browser imports.
const Script = "dist/index.js"
