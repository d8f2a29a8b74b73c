// Package bundle makes the directories named dist, which are committed, from the sources beside them, and tells when they are out of date.
//
// The output is committed so that building trl needs neither Node nor npm. A hash of the sources is recorded in it: a test, which needs
// neither, fails when the sources have changed since.
package bundle

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
	"slices"
	"strings"
)

// Bundle is one package for npm or for browsers, whose dist is made. Paths are relative to the root of the repository.
type Bundle struct {
	Dir     string   // it has dist, package.json and package-lock.json
	Sources []string // files and directories that dist is made from, besides those two
	Except  []string // files in Sources that have another test
	Make    func() (map[string][]byte, error)
}

const recorded = "dist/sources.sha256"

// Main is the program that makes dist; with -check it changes nothing and fails if dist is out of date.
func (b Bundle) Main() {
	check := flag.Bool("check", false, "change nothing: fail if dist is not what the sources give")
	flag.Parse()
	if err := b.run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

func (b Bundle) run(check bool) error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	if check {
		if err := b.checkHash(root); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(root, b.Dir, "node_modules")); err != nil {
			fmt.Println("the recorded hash is that of the sources; without node_modules dist itself is not compared")
			return nil
		}
	}
	if err := os.Chdir(filepath.Join(root, b.Dir)); err != nil {
		return err
	}
	if _, err := os.Stat("node_modules"); err != nil {
		if err := Run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"); err != nil {
			return err
		}
	}
	files, err := b.Make()
	if err != nil {
		return err
	}
	sum, err := b.hash(os.DirFS(root))
	if err != nil {
		return err
	}
	files[filepath.Base(recorded)] = []byte(sum + "\n")
	if check {
		return b.compare(files)
	}
	if err := errors.Join(os.RemoveAll("dist"), os.Mkdir("dist", 0o755)); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join("dist", name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Check fails if the sources have changed since dist was made.
func (b Bundle) Check() error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	return b.checkHash(root)
}

func (b Bundle) checkHash(root string) error {
	sum, err := b.hash(os.DirFS(root))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, b.Dir, recorded))
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(text)) != sum {
		return fmt.Errorf("the sources of %s/dist have changed since it was made: run go generate ./%s/... again", b.Dir, b.Dir)
	}
	return nil
}

func (b Bundle) compare(files map[string][]byte) error {
	for name, text := range files {
		if old, err := os.ReadFile(filepath.Join("dist", name)); err != nil || string(old) != string(text) {
			return fmt.Errorf("%s/dist/%s is not what the sources give: run go generate ./%[1]s/... again", b.Dir, name)
		}
	}
	return nil
}

// Covers fails if one of the inputs, which are relative to Dir, is not among the Sources: a change of it would not be noticed.
func (b Bundle) Covers(inputs []string) error {
	for _, input := range inputs {
		name := filepath.ToSlash(filepath.Join(b.Dir, input))
		if strings.Contains(name, "/node_modules/") || slices.ContainsFunc(b.Sources, func(s string) bool { return name == s || strings.HasPrefix(name, s+"/") }) {
			continue
		}
		return fmt.Errorf("%s/dist is made from %s, too: name it in Sources", b.Dir, name)
	}
	return nil
}

// hash is one over everything that dist is made from: our sources, and the versions of what npm brings.
func (b Bundle) hash(root fs.FS) (string, error) {
	sum := sha256.New()
	for _, source := range append(slices.Clone(b.Sources), b.Dir+"/package.json", b.Dir+"/package-lock.json") {
		err := fs.WalkDir(root, source, func(name string, d fs.DirEntry, err error) error { // in lexical order
			if err != nil || d.IsDir() || slices.Contains(b.Except, name) {
				return err
			}
			text, err := fs.ReadFile(root, name)
			fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Run runs a program with our output as its output.
func Run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// findRoot returns the directory of go.mod, from wherever in the repository go generate or a test runs.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("there is no go.mod above this directory")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}
