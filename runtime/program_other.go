//go:build !amd64 && !arm64

package runtime

import (
	"errors"
	goruntime "runtime"
	"unsafe"
)

// Nobody has written the programs of program.go for this architecture: it has no tier "pidns".

func initText() unsafe.Pointer  { return nil }
func probeText() unsafe.Pointer { return nil }
func limitText() unsafe.Pointer { return nil }

func openProgram(string, unsafe.Pointer) (int, error) {
	return -1, errors.New("not written for " + goruntime.GOARCH)
}
