package rig

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
)

// Crashing builds trl with crash points (package crashpoint), once for all tests of a package, and returns its path. The variable TRL_CRASH names the file
// that says at which of them a gateway is killed.
var Crashing = sync.OnceValues(func() (program string, err error) {
	program = filepath.Join(Top, "trl-crashing")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-tags", "crashpoints", "-o", program, "trl/cmd/trl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
})
