// Command bundle makes web/ui/dist, what a browser gets, out of the TypeScript, the styles, the TypeScript client and xterm.js;
// `go generate ./web/ui` runs it.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/evanw/esbuild/pkg/api"

	"trl/internal/bundle"
)

// client has the sources of the TypeScript client, which the page uses.
const client = "client/typescript/src"

var page = bundle.Bundle{
	Dir:     "web/ui",
	Sources: []string{"web/ui/src", "web/ui/style", "web/ui/bundle/main.go", client},
	Except:  []string{client + "/wire.gen.ts"}, // types alone; a test of trl/protocol compares it
}

func main() {
	page.Make = build
	page.Main()
}

func build() (map[string][]byte, error) {
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
		Metafile:          true,
	})
	if len(result.Errors) > 0 {
		return nil, fmt.Errorf("%d errors", len(result.Errors))
	}
	var used struct{ Inputs map[string]any }
	if err := json.Unmarshal([]byte(result.Metafile), &used); err != nil {
		return nil, err
	}
	if err := page.Covers(slices.Collect(maps.Keys(used.Inputs))); err != nil {
		return nil, err
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
