package rig

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"trl/internal/testkit"
)

// Build puts the gateway at path. The link's path identifies the gateways of one test binary.
func Build(path string) error { return BuildProgram(path, "trl", ".", "trl/cmd/trl") }

// BuildProgram builds a main package of the module in folder, which is relative to the root of ours, and links it to path; flags are
// more flags of `go build`. The test binaries of a module build into one directory, one after the other, so that only the first of them links the
// program.
func BuildProgram(path, name, folder, pkg string, flags ...string) error {
	dir := testkit.SharedDir()
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // which also unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	built := filepath.Join(dir, fmt.Sprintf("%s-%x", name, sha256.Sum256(mod))[:len(name)+17])
	build := exec.Command("go", slices.Concat([]string{"build", "-buildvcs=false", "-o", built}, flags, []string{pkg})...)
	build.Dir = filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), folder)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return os.Link(built, path)
}
