// Package sources says what the page's bundle is made from, for the program that makes it and for the test that it is current.
package sources

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
)

// Hash is one over everything that dist is made from: our sources, the program that bundles them, and the versions of what
// npm brings. dir is web/ui.
func Hash(dir fs.FS) (string, error) {
	sum := sha256.New()
	for _, part := range []string{"src", "style", "bundle", "package.json", "package-lock.json"} {
		err := fs.WalkDir(dir, part, func(name string, d fs.DirEntry, err error) error { // in lexical order
			if err != nil || d.IsDir() {
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
