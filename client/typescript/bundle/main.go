// Command bundle makes client/typescript/dist, what users of the TypeScript client get, out of its sources; `go generate ./client/typescript/bundle` runs it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/evanw/esbuild/pkg/api"

	"trl/internal/bundle"
)

//go:generate go run .

// generated is the file that a test of trl/protocol writes, in src and in dist.
const generated = "wire.gen"

var sdk = bundle.Bundle{
	Dir:     "client/typescript",
	Sources: []string{"client/typescript/src", "client/typescript/bundle/main.go", "client/typescript/tsconfig.json"},
	Except:  []string{"client/typescript/src/" + generated + ".ts"},
}

func main() {
	sdk.Make = compile
	sdk.Main()
}

// compile returns the files of dist by name: the client as one file for import and for require, and the types of each source file for both.
func compile() (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, format := range map[string]api.Format{"index.js": api.FormatESModule, "index.cjs": api.FormatCommonJS} {
		result := api.Build(api.BuildOptions{
			EntryPoints: []string{"src/index.ts"},
			Bundle:      true,
			Format:      format,
			Platform:    api.PlatformNeutral,
			Target:      api.ES2022,
			Charset:     api.CharsetUTF8,
			LogLevel:    api.LogLevelWarning,
		})
		if len(result.Errors) > 0 {
			return nil, fmt.Errorf("%d errors", len(result.Errors))
		}
		files[name] = result.OutputFiles[0].Contents
	}
	types, err := os.MkdirTemp("", "trl-types-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(types)
	if err := bundle.Run("node_modules/.bin/tsc", "--noEmit", "false", "--emitDeclarationOnly", "--declaration", "--outDir", types); err != nil {
		return nil, err
	}
	names, err := filepath.Glob(types + "/*.d.ts")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		base := strings.TrimSuffix(filepath.Base(name), ".d.ts")
		if base == generated {
			name = "src/" + generated + ".ts"
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files[base+".d.ts"] = imported.ReplaceAll(text, []byte(`"./$1.js"`))
		files[base+".d.cts"] = imported.ReplaceAll(text, []byte(`"./$1.cjs"`))
	}
	return files, nil
}

// imported is the name of a file of ours in an import.
var imported = regexp.MustCompile(`"\./([a-z.]+)\.ts"`)
