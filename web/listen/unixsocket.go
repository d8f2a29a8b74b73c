package listen

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// listenUnix binds path. The socket appears with mode 0600 or not at all: it is bound in a directory that only this user can enter, and linked to its
// place from there. An existing file in that place is removed only if it is a socket on which nobody answers.
func listenUnix(path string) (net.Listener, func(), error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".trl") // 0700
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	temporary := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temporary, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // its name is no longer there
	err = os.Chmod(temporary, 0o600)
	if err == nil {
		err = os.Link(temporary, path) // does not replace a file: if two gateways start at once, one gets the name
	}
	var remove func()
	if err == nil {
		remove, err = removal(path)
	}
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, remove, nil
}

// removal returns a function that removes the name that a socket has now. It must run before the socket is closed: while the socket lives, its inode
// number is not used again.
func removal(path string) (remove func(), err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	ours, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	return func() {
		if now, err := os.Lstat(path); err == nil && os.SameFile(now, ours) {
			os.Remove(path)
		}
	}, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is no socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s is in use", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
