// Command bundle makes web/ui/dist, what a browser gets, out of the TypeScript, the styles and xterm.js; `go generate ./web/ui` runs it.
//
// The output is committed, so that building trl needs neither Node nor npm. What it was made from is recorded beside it as one hash:
// a test, which needs neither, fails when the sources have moved on.
package main

import (
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

	"trl/web/ui/sources"
)

func main() {
	check := flag.Bool("check", false, "change nothing: fail if dist is not what the sources give")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

// run works in web/ui, where go generate starts it.
func run(check bool) error {
	hash, err := sources.Hash(os.DirFS("."))
	if err != nil {
		return err
	}
	if check {
		if recorded, err := os.ReadFile("dist/sources.sha256"); err != nil || strings.TrimSpace(string(recorded)) != hash {
			return errors.New("the sources have changed: go generate ./web/ui")
		}
		if _, err := os.Stat("node_modules"); err != nil {
			fmt.Println("the recorded hash is that of the sources; without node_modules the bundle itself is not compared")
			return nil
		}
	}
	if err := install(); err != nil {
		return err
	}
	files, err := bundle()
	if err != nil {
		return err
	}
	files["sources.sha256"] = []byte(hash + "\n")
	for name, text := range files {
		path := filepath.Join("dist", name)
		if check {
			if old, err := os.ReadFile(path); err != nil || string(old) != string(text) {
				return fmt.Errorf("%s is not what the sources give: go generate ./web/ui", path)
			}
			continue
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// install fetches what package-lock.json names, once.
func install() error {
	if _, err := os.Stat("node_modules"); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cmd := exec.Command("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm ci: %w", err)
	}
	return nil
}

func bundle() (map[string][]byte, error) {
	result := api.Build(api.BuildOptions{
		EntryPoints:       []string{"src/app.ts", "style/app.css"},
		EntryNames:        "[name]",
		Outdir:            "dist",
		Bundle:            true,
		MinifyWhitespace:  true,
		MinifyIdentifiers: true,
		MinifySyntax:      true,
		Format:            api.FormatESModule,
		Platform:          api.PlatformBrowser,
		Target:            api.ES2022,
		Charset:           api.CharsetUTF8,
		LegalComments:     api.LegalCommentsEndOfFile, // the MIT licence of xterm.js asks for its notice
		LogLevel:          api.LogLevelWarning,
		Plugins:           []api.Plugin{strict},
	})
	if len(result.Errors) > 0 {
		return nil, fmt.Errorf("%d errors", len(result.Errors))
	}
	files := map[string][]byte{}
	for _, f := range result.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	return files, nil
}

// strict fits xterm.js to our Content-Security-Policy, which allows styles only from our own file and with the page's nonce: its <style>
// elements get the nonce, and its style attributes are set through the CSSOM, which no policy forbids. A version of xterm.js that does
// either another way fails here, not in the browser.
var strict = api.Plugin{Name: "strict", Setup: func(b api.PluginBuild) {
	b.OnLoad(api.OnLoadOptions{Filter: `@xterm/xterm/lib/xterm\.mjs$`}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
		text, err := os.ReadFile(a.Path)
		if err != nil {
			return api.OnLoadResult{}, err
		}
		s := string(text)
		for _, edit := range []struct {
			from  *regexp.Regexp
			to    string
			times int
		}{
			{regexp.MustCompile(`([\w.]+)\.createElement\("style"\)`), `globalThis.trlStyle(${1})`, 3},
			{regexp.MustCompile(`(\w)\.setAttribute\("style",` + "`" + `\$\{\w\.getAttribute\("style"\)\|\|""\}\$\{(\w)\};` + "`" + `\)`), `${1}.style.cssText+=";"+${2}`, 1},
		} {
			if n := len(edit.from.FindAllString(s, -1)); n != edit.times {
				return api.OnLoadResult{}, fmt.Errorf("%s: %v is there %d times, not %d: look at how this version makes styles", a.Path, edit.from, n, edit.times)
			}
			s = edit.from.ReplaceAllString(s, edit.to)
		}
		return api.OnLoadResult{Contents: &s, Loader: api.LoaderJS}, nil
	})
}}
