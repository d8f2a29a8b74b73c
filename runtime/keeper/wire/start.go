package wire

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FDVar tells a gateway the number of its socket's descriptor.
const FDVar = "TRL_KEEPER_FD"

// RememberedVar has the text for client.Remembered in base64, because an environment cannot contain NUL.
const RememberedVar = "TRL_KEEPER_RECALL"

// SetEnviron adds env to this process's environment.
func SetEnviron(env []string) {
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok {
			_ = os.Setenv(name, value) // the kernel gave us the variable, so its name is valid
		}
	}
}

// NameProcess sets the name that ps and pgrep show. Without it the name would be that of the executed file, "exe".
func NameProcess() { _ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0) }

func Duplicate(fd int) (int, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("dup", err)
}
