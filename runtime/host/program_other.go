//go:build !amd64 && !arm64

package host

import (
	"errors"
	"runtime"
	"unsafe"
)

// Nobody has written the program of program.go for this architecture.

func limitText() unsafe.Pointer { return nil }

func openProgram(string, unsafe.Pointer) (int, error) {
	return -1, errors.New("not written for " + runtime.GOARCH)
}
