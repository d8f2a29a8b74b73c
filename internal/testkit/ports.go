package testkit

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// SharedDir is a directory that only this user may enter. Test binaries share it.
func SharedDir() string {
	dir := filepath.Join(os.TempDir(), fmt.Sprint("trl-tests-", os.Getuid()))
	_ = os.Mkdir(dir, 0o700)
	info, err := os.Lstat(dir)
	if err != nil {
		panic(err)
	}
	if st := info.Sys().(*syscall.Stat_t); !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm() != 0o700 {
		panic(dir + " is not ours alone")
	}
	return dir
}

// Slot returns a number that no other test binary has at the same time.
var Slot = sync.OnceValue(func() int {
	for n := range 100 {
		fd, err := syscall.Open(filepath.Join(SharedDir(), fmt.Sprint("slot-", n)), syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			panic(err)
		}
		if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return n // the descriptor stays open, so the process keeps the lock until its end
		}
		syscall.Close(fd)
	}
	panic("100 test binaries at once")
})

// lastPort is the number of ports that Ports has returned.
var lastPort atomic.Int64

// Ports returns ports on loopback that are free and stay so until somebody listens there: no other test binary gets them, and on usual machines no
// connection, and no program that asks for any port.
func Ports(t testing.TB, n int) (ports []int) {
	t.Helper()
	const first, each, slots = 12000, 1000, 20 // below 32768, where Linux begins to choose ports itself
	for tries := 0; len(ports) < n; tries++ {
		if tries == each {
			t.Fatalf("no %d free ports", n)
		}
		port := first + each*(Slot()%slots) + int(lastPort.Add(1)%each)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			ports = append(ports, port)
		}
	}
	return ports
}

// Port returns one of Ports.
func Port(t testing.TB) int {
	t.Helper()
	return Ports(t, 1)[0]
}
