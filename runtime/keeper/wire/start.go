package wire

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FDVar tells a gateway which descriptor its socket is.
const FDVar = "TRL_KEEPER_FD"

// RememberedVar has the text of client.Remembered, in base64: an environment holds no NUL.
const RememberedVar = "TRL_KEEPER_RECALL"

// SetEnviron adds env to this process's environment.
func SetEnviron(env []string) {
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			_ = os.Setenv(name, value) // as it came from a kernel, so the name is a name
		}
	}
}

// NameProcess is for ps and pgrep, which show the file that was executed: else we would be "exe".
func NameProcess() { _ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0) }

// Duplicate returns a copy of a descriptor.
func Duplicate(fd int) (int, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("dup", err)
}
