package testkit

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AwkwardLife bounds how long an awkward child lives if nobody ends it.
const AwkwardLife = 60 * time.Second

// ActAwkward turns the test binary into an awkward child if it was started as
//
//	NAME.test awkward MODE MARKER
//
// and otherwise returns. A TestMain calls it first. MARKER only serves to find the process in /proc/PID/cmdline. own has the package's own
// modes; such a function returns, or ends with AwkwardStays.
func ActAwkward(own map[string]func(marker string)) {
	if len(os.Args) != 4 || os.Args[1] != "awkward" {
		return
	}
	mode, marker := os.Args[2], os.Args[3]
	if f := own[mode]; f != nil {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		f(marker)
	} else {
		awkward(mode, marker)
	}
	os.Exit(0)
}

// AwkwardStays tells the test that the child has done its work, and lives on.
func AwkwardStays() {
	fmt.Println()
	time.Sleep(AwkwardLife)
}

// awkward prints a newline when it has done its work.
func awkward(mode, marker string) {
	if mode != "hold-full" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	ready := func() { fmt.Println() }
	home := uintptr(os.Getppid())
	switch mode {
	case "stubborn": // ignores every signal that can be ignored
		AwkwardStays()
	case "setsid": // leaves the process session
		spawnSleep(marker, nil)
		AwkwardStays()
	case "jobs": // five jobs with their own process groups
		for range 5 {
			spawnSleep(marker, &syscall.SysProcAttr{Setpgid: true})
		}
		AwkwardStays()
	case "daemon": // double fork, own process session, empty environment, no open descriptors; the parent stays
		daemon(marker)
		AwkwardStays()
	case "leave": // the same, but the parent ends
		daemon(marker)
		ready()
	case "hop": // forks and exits for ever: every process lives only for a moment
		ready()
		hop(home)
	case "storm": // sixteen of those, eight of them with exec and an empty environment; the parent stays
		for range 8 {
			forkThen(func() { hop(home) })
			hopExec(marker)
		}
		AwkwardStays()
	case "deep": // a child of a child of a child…, all waiting; every eighth has its own process session
		forkThen(func() { dig(home, 100) })
		AwkwardStays()
	case "forks": // tries to fork 300 children, which stay
		for range 300 {
			forkThen(func() {
				for !gone(home) {
					nap(100_000_000)
				}
			})
		}
		time.Sleep(AwkwardLife)
	case "hog": // uses 256 MiB
		for range 256 {
			page, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				panic(err)
			}
			for i := 0; i < len(page); i += 4096 {
				page[i] = 1
			}
		}
	case "files": // opens as many files as possible, and prints the descriptor at which it failed
		for fd := 3; ; fd++ {
			if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err == unix.EMFILE {
				var most unix.Rlimit
				_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &most)
				fmt.Printf("EMFILE at %d\n", most.Cur)
				syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0) // the race detector would take a second to exit
			}
		}
	case "hold": // holds the lock of the pipe MARKER
		hold(marker, 0)
	case "hold-full": // the same, but the pipe's earlier content stays, and every 3 s there is more. A signal can end it
		hold(marker, 3*time.Second)
	case "tree": // 64 processes that fork and exit at random, some in their own process sessions
		live, _ := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		forkThen(func() { churn(home, (*int32)(unsafe.Pointer(&live[0]))) })
		AwkwardStays()
	}
}

// hold splices from a socket into a pipe. The socket gets words each time that every has passed; 0: never. While splice(2) waits for the
// socket, it holds the pipe's lock, and every other call on the pipe waits for that lock. The words are more than the pipe takes, so that who
// reads the pipe has not read all of them when the next wait begins.
func hold(pipe string, every time.Duration) {
	fd, err := unix.Open(pipe, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == unix.EACCES {
		fd, err = unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		err = unix.SetNonblock(fd, false) // otherwise splice would not wait
	}
	if err != nil {
		panic(err)
	}
	s, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		panic(err)
	}
	if every > 0 {
		go func() { // ends with the process
			words := bytes.Repeat([]byte("held\n"), 40_000)
			for {
				_, _ = unix.Write(s[1], words)
				time.Sleep(every)
			}
		}()
	}
	time.AfterFunc(AwkwardLife, func() { os.Exit(0) })
	for {
		_, _ = unix.Splice(s[0], nil, fd, nil, 1<<16, 0)
	}
}

func spawnSleep(marker string, attr *syscall.SysProcAttr) {
	if attr == nil {
		attr = &syscall.SysProcAttr{Setsid: true}
	}
	c := exec.Command("/bin/sleep", marker)
	c.Env, c.SysProcAttr = []string{}, attr
	if err := c.Start(); err != nil {
		panic(err)
	}
}

func daemon(marker string) {
	c := exec.Command("/bin/sh", "-c", "env -i setsid sleep "+marker+" <&- >&- 2>&- & exit 0")
	c.Env, c.SysProcAttr = []string{}, &syscall.SysProcAttr{Setsid: true}
	if err := c.Run(); err != nil {
		panic(err)
	}
}

// hopExec is a shell that starts itself again, with nothing inherited, and exits, as long as the test runs.
func hopExec(marker string) {
	text := `kill -0 "$1" || exit; /usr/bin/env -i /bin/sh -c "$0" "$0" "$1" "$2" & exit`
	c := exec.Command("/usr/bin/setsid", "/bin/sh", "-c", text, text, strconv.Itoa(os.Getppid()), marker)
	c.Env = []string{}
	if err := c.Start(); err != nil {
		panic(err)
	}
}

// After a bare fork only one thread of the Go runtime is left. Code there may only make system calls, and never returns.
//
//go:norace
func forkThen(f func()) {
	if pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0); pid == 0 {
		f()
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

//go:norace
func hop(home uintptr) {
	for {
		nap(300_000)
		pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if pid != 0 || gone(home) {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	}
}

//go:norace
func dig(home uintptr, depth int) {
	if depth%8 == 0 {
		syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	}
	if depth > 0 {
		if pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0); pid == 0 {
			dig(home, depth-1)
		}
	}
	for !gone(home) {
		nap(50_000_000)
	}
	syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
}

//go:norace
func churn(home uintptr, live *int32) {
	*live = 1
	seed := uint32(1)
	for !gone(home) {
		seed = seed*1664525 + 1013904223
		if *live >= 64 {
			if nap(500_000); seed>>28 == 0 {
				*live--
				syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			continue
		}
		*live++ // races with the others: about 64
		pid, _, _ := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if pid != 0 {
			nap(100_000)
			syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), 0, unix.WNOHANG, 0, 0, 0)
			continue
		}
		self, _, _ := syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
		seed = (seed ^ uint32(self)) * 2654435761
		if seed>>16%3 == 0 {
			syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		}
		if seed>>20%2 == 0 {
			nap(int64(seed % 2_000_000))
			*live--
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
}

// gone says whether the process that started us is gone, so that nobody would end us.
//
//go:norace
func gone(home uintptr) bool {
	_, _, err := syscall.RawSyscall(unix.SYS_KILL, home, 0, 0)
	return err == unix.ESRCH
}

//go:norace
func nap(ns int64) {
	ts := unix.Timespec{Nsec: ns}
	syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}
