package listen

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstActivated is the first descriptor that systemd passes (sd_listen_fds(3)).
const firstActivated = 3

// ByActivation reports whether systemd has passed sockets to this process.
func ByActivation() bool {
	return os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && os.Getenv("LISTEN_FDS") != ""
}

// Activated takes the sockets that systemd has bound (socket activation), once. It names them as Bind knows them: by FileDescriptorName=, else by
// their kind. Child processes get neither the sockets nor the environment variables about them.
func Activated() (files []*os.File, err error) {
	mine, count, names := ByActivation(), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name)
	}
	if !mine {
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 100 {
		return nil, fmt.Errorf("LISTEN_FDS=%q", count)
	}
	given := strings.Split(names, ":")
	seen := map[string]bool{}
	for i := range n {
		fd := firstActivated + i
		unix.CloseOnExec(fd)
		name := ""
		if i < len(given) {
			name = given[i]
		}
		if name, err = socketName(fd, name); err == nil && seen[name] {
			err = fmt.Errorf("a second socket for %s; name them with FileDescriptorName=", name)
		}
		if err != nil {
			return files, fmt.Errorf("socket activation: descriptor %d: %w", fd, err)
		}
		seen[name] = true
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files, nil
}

// socketName returns the purpose of a listening socket.
func socketName(fd int, given string) (string, error) {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return "", os.NewSyscallError("getsockopt", err)
	}
	if listens == 0 {
		return "", fmt.Errorf("it does not listen: ListenStream= is wanted, and Accept=no")
	}
	switch given {
	case httpSocket, metricsSocket, unixSocket, adminSocket:
		return given, nil
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return "", os.NewSyscallError("getsockname", err)
	}
	if _, local := address.(*unix.SockaddrUnix); local {
		return unixSocket, nil
	}
	return httpSocket, nil
}

// tcp returns an error if l is not a TCP listener. name says what the socket is for.
func tcp(l net.Listener, name string) error {
	if _, ok := l.Addr().(*net.TCPAddr); !ok {
		return fmt.Errorf("socket for %s: %s is no TCP address", name, l.Addr())
	}
	return nil
}
