//go:build amd64 || arm64

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// limitText returns the code of trl-limit, a small program inside trl. The program sets one limit of another process of
// its user. It reads pid, resource, soft and hard limit from descriptor 0, and its exit code is an errno. See
// confinement.prlimit. It is written in assembly (program_*.s), because it is too small for a binary of its own and
// must not depend on what the machine has installed.
func limitText() unsafe.Pointer

// textSize is more than the size of the program. The code that follows it in our own binary is copied too and never
// runs.
const textSize = 256

// openProgram writes a program into a memfd. The program is executed by the path of the descriptor.
func openProgram(name string, text unsafe.Pointer) (fd int, err error) {
	const exec = 0x10 // MFD_EXEC, Linux 6.3; without it, vm.memfd_noexec=1 makes the file not executable
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|exec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if _, err := unix.Write(fd, elf(unsafe.Slice((*byte)(text), textSize))); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("write program: %w", err)
	}
	return fd, nil
}

// elf returns an executable with position-independent code; see elf(5).
func elf(text []byte) []byte {
	const (
		headers = 64 + 2*56
		base    = 0x400000 // the load address; a multiple of every page size
	)
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	b := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00") // 64 bits, little-endian
	for _, v := range []any{
		uint16(2), machine, uint32(1), uint64(base + headers), // ET_EXEC, entry
		uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(2), uint16(0), uint16(0), uint16(0), // two program headers follow
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), // PT_LOAD r-x: the whole file
		uint64(headers + len(text)), uint64(headers + len(text)), uint64(0x10000),
		uint32(0x6474e551), uint32(6), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(16), // PT_GNU_STACK rw-
	} {
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return append(b, text...)
}
