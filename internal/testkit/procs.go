package testkit

import (
	"bytes"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Tests look at all processes of the machine very often. With the race detector the functions of package os take several times as long as
// these system calls.

// Pids returns all process ids, in ascending order.
func Pids() (pids []int) {
	dir, err := open("/proc", unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	for buf := make([]byte, 32<<10); ; {
		n, err := unix.ReadDirent(dir, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			slices.Sort(pids)
			return pids
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				pids = append(pids, pid)
			}
		}
	}
}

// ReadProc returns a file of /proc/PID; nothing for a process that is gone.
func ReadProc(pid int, name string) []byte { return appendProc(nil, pid, name) }

// appendProc appends a file of /proc/PID to text.
func appendProc(text []byte, pid int, name string) []byte {
	fd, err := open("/proc/"+strconv.Itoa(pid)+"/"+name, 0)
	if err != nil {
		return text
	}
	defer unix.Close(fd)
	for {
		text = slices.Grow(text, 512)
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return text
		}
		text = text[:len(text)+n]
	}
}

func open(path string, flags int) (fd int, err error) {
	for {
		if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0); err != unix.EINTR {
			return fd, err
		}
	}
}

// PidsWhose returns the processes for which is returns true for this file of theirs. The file of a zombie, and of a process that is gone, is
// empty.
func PidsWhose(name string, is func(text []byte) bool) (pids []int) {
	var text []byte
	for _, pid := range Pids() {
		if text = appendProc(text[:0], pid, name); is(text) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Alive returns the processes that have the marker on their command line, without zombies.
func Alive(marker string) []int {
	m := []byte(marker)
	return PidsWhose("cmdline", func(text []byte) bool { return bytes.Contains(text, m) })
}
