// Command bundle makes client/typescript/dist, what users of the TypeScript client get, out of its sources; `go generate ./client/typescript/bundle` runs it.
//
// The output is committed, so that nobody else needs Node or npm. A hash of what it was made from stands beside it: a test, which needs neither,
// fails when the sources have changed since.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

//go:generate go run . -dir ..

func main() {
	dir := flag.String("dir", ".", "client/typescript")
	check := flag.Bool("check", false, "change nothing: fail if dist is not what the sources give")
	flag.Parse()
	if err := run(*dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

func run(dir string, check bool) error {
	if err := os.Chdir(dir); err != nil {
		return err
	}
	sum, err := hash(os.DirFS("."))
	if err != nil {
		return err
	}
	if check {
		if recorded, err := os.ReadFile("dist/sources.sha256"); err != nil || strings.TrimSpace(string(recorded)) != sum {
			return errors.New("the sources have changed: go generate ./client/typescript/bundle")
		}
		if _, err := os.Stat("node_modules/typescript"); err != nil {
			fmt.Println("the recorded hash is that of the sources; without node_modules dist itself is not compared")
			return nil
		}
	}
	if _, err := os.Stat("node_modules/typescript"); err != nil {
		if err := command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"); err != nil {
			return err
		}
	}
	files, err := compile()
	if err != nil {
		return err
	}
	files["sources.sha256"] = []byte(sum + "\n")
	if check {
		return compare(files)
	}
	if err := errors.Join(os.RemoveAll("dist"), os.Mkdir("dist", 0o755)); err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join("dist", name)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func compare(files map[string][]byte) error {
	for name, text := range files {
		path := filepath.Join("dist", name)
		if old, err := os.ReadFile(path); err != nil || string(old) != string(text) {
			return fmt.Errorf("%s is not what the sources give: go generate ./client/typescript/bundle", path)
		}
	}
	return nil
}

// generated is the file that a test of trl/protocol writes, in src and in dist.
const generated = "wire.gen"

// hash is one over everything that dist is made from, but for the generated file. dir is client/typescript.
func hash(dir fs.FS) (string, error) {
	sum := sha256.New()
	for _, part := range []string{"src", "bundle/main.go", "tsconfig.json", "package.json", "package-lock.json"} {
		err := fs.WalkDir(dir, part, func(name string, d fs.DirEntry, err error) error { // in lexical order
			if err != nil || d.IsDir() || name == "src/"+generated+".ts" {
				return err
			}
			text, err := fs.ReadFile(dir, name)
			fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
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
	if err := command("node_modules/.bin/tsc", "--noEmit", "false", "--emitDeclarationOnly", "--declaration", "--outDir", types); err != nil {
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

func command(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
