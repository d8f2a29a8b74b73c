//go:build !amd64 && !arm64

package host

import (
	"errors"
	"runtime"
	"unsafe"
)

// The program of program.go has not been written for this architecture.

func limitText() unsafe.Pointer { return nil }

func openProgram(string, unsafe.Pointer) (int, error) {
	return -1, errors.New("trl-limit has not been written for " + runtime.GOARCH)
}
