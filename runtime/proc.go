package runtime

import (
	"bytes"
	"iter"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// proc is one process as /proc/PID/stat shows it. (pid, start) is its identity:
// a number comes back only after the whole pid space has gone round, which
// takes longer than the clock tick in which start counts.
type proc struct {
	pid, ppid, pgrp, sid int
	start                uint64 // clock ticks after boot
	threads              int
	state                byte // R S D T t Z X I
}

// dead: it runs no more code and holds nothing; somebody has yet to reap it. A
// first thread that has ended is no end while others of a killed process are
// still on their way out, with its memory, sockets and locks.
func (p proc) dead() bool { return (p.state == 'Z' || p.state == 'X') && p.threads <= 1 }

func procPath(pid int, file string) string { return "/proc/" + strconv.Itoa(pid) + file }

// readProc reports false when there is no such process.
func readProc(pid int) (proc, bool) {
	var room [512]byte
	text, err := readSmallFile(procPath(pid, "/stat"), room[:])
	if err != nil {
		return proc{}, false
	}
	return parseStat(text)
}

// parseStat: the second field is the program's name in parentheses and may hold
// anything, parentheses, blanks and newlines included, so what follows is found
// from the last ")".
func parseStat(text []byte) (p proc, ok bool) {
	open, shut := bytes.IndexByte(text, ' '), bytes.LastIndexByte(text, ')')
	if open < 0 || shut < 0 {
		return p, false
	}
	rest := bytes.Fields(text[shut+1:]) // rest[0] is field 3 of proc_pid_stat(5)
	if len(rest) < 20 {
		return p, false
	}
	number := func(b []byte) int { n, _ := strconv.Atoi(string(b)); return n }
	p = proc{
		pid: number(text[:open]), state: rest[0][0],
		ppid: number(rest[1]), pgrp: number(rest[2]), sid: number(rest[3]),
		threads: number(rest[17]),
	}
	p.start, _ = strconv.ParseUint(string(rest[19]), 10, 64)
	return p, true
}

// children lists the processes whose parent is p. The kernel says that the list
// may miss one while others exit: whoever must find all looks until a look
// finds nothing.
func (p proc) children() []int {
	if !haveChildren() {
		return childrenByScan(p.pid)
	}
	if p.threads == 1 {
		return childrenOfThread(p.pid, p.pid)
	}
	var kids []int
	for _, tid := range numbersIn(procPath(p.pid, "/task")) {
		kids = append(kids, childrenOfThread(p.pid, tid)...)
	}
	return kids
}

func childrenOfThread(pid, tid int) []int {
	var room [512]byte
	text, _ := readSmallFile(procPath(pid, "/task/"+strconv.Itoa(tid)+"/children"), room[:])
	return parsePids(text)
}

// haveChildren: the kernel was built with CONFIG_PROC_CHILDREN (nearly all are).
var haveChildren = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err == nil
})

func childrenByScan(ppid int) (kids []int) {
	for _, pid := range numbersIn("/proc") {
		if p, ok := readProc(pid); ok && p.ppid == ppid {
			kids = append(kids, pid)
		}
	}
	return kids
}

func numbersIn(dir string) []int {
	var names []string
	_ = withReservedFD(func() error {
		d, err := os.Open(dir)
		if err == nil {
			names, _ = d.Readdirnames(-1)
			d.Close()
		}
		return err
	})
	numbers := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// pidsIn yields the numbers in text, whatever blanks separate them.
func pidsIn(text []byte) iter.Seq[int] {
	return func(yield func(int) bool) {
		n, in := 0, false
		for _, c := range text {
			if c >= '0' && c <= '9' {
				n, in = n*10+int(c-'0'), true
			} else if in {
				if !yield(n) {
					return
				}
				n, in = 0, false
			}
		}
		if in {
			yield(n)
		}
	}
}

func parsePids(text []byte) []int { return slices.Collect(pidsIn(text)) }

// environSession is the TRL_SESSION_ID that the process was started with, "" if
// there was none, or it may not be read, or the process wiped it.
func environSession(pid int) string {
	text, _ := readSmallFile(procPath(pid, "/environ"), make([]byte, 8<<10))
	for v := range bytes.SplitSeq(text, []byte{0}) {
		if id, ok := bytes.CutPrefix(v, []byte("TRL_SESSION_ID=")); ok {
			return string(id)
		}
	}
	return ""
}

// A mark is a number that a process inherits through fork and exec and that
// setsid, double forks, closed descriptors and an empty environment leave
// alone: the soft limit of file locks, which Linux has kept but not enforced
// since 2.4.25 and which every process may read and lower. Each scope has its
// own, so that a process tells which command started it, even as a zombie,
// and where there is no cgroup to ask.
type mark uint64

// fits: our own limits leave room for it and its like.
func (m mark) fits() bool {
	var own unix.Rlimit
	return unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &own) == nil && own.Max > uint64(m|math.MaxUint32)
}

// setMark fails when our own hard limit is below m, or the process is another
// user's.
func setMark(pid int, m mark) error {
	var now unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &now); err != nil {
		return os.NewSyscallError("prlimit", err)
	}
	now.Cur = uint64(m)
	return os.NewSyscallError("prlimit", unix.Prlimit(pid, unix.RLIMIT_LOCKS, &now, nil))
}

// readMark is 0 when it cannot be known.
func readMark(pid int) mark {
	m, _ := softLimit(pid, unix.RLIMIT_LOCKS, "Max file locks")
	return mark(m)
}

// softLimit returns what getrlimit returns in a process, and false when that cannot be known. name is what /proc/PID/limits calls the
// resource: prlimit(2) does not tell it of another user's process, and the file is open to all.
func softLimit(pid, resource int, name string) (most uint64, known bool) {
	var now unix.Rlimit
	if unix.Prlimit(pid, resource, nil, &now) == nil {
		return now.Cur, true
	}
	text, _ := readSmallFile(procPath(pid, "/limits"), make([]byte, 4<<10))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			soft, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			if soft == "unlimited" {
				return unix.RLIM_INFINITY, true
			}
			n, err := strconv.ParseUint(soft, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// signalPinned is the only way in which a signal leaves us for a process that
// is not a Child: pin, look, signal. It reports whether the signal was sent.
func signalPinned(pid int, sig syscall.Signal, still func(pid int) bool) bool {
	if pid <= 0 {
		return false // 0: a process of another pid namespace
	}
	return withReservedFD(func() error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if !still(pid) {
			return unix.ESRCH
		}
		return unix.PidfdSendSignal(fd, sig, nil, 0)
	}) == nil
}

// readSmallFile reads a small kernel file whole, into buf if it fits. os.ReadFile
// would offer each to the poller first: three system calls more.
func readSmallFile(path string, buf []byte) (text []byte, err error) {
	err = withReservedFD(func() error {
		fd, err := retryEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		defer unix.Close(fd)
		text, err = preadAll(fd, buf)
		return err
	})
	return text, err
}

// preadAll reads from the start of fd to its end.
func preadAll(fd int, buf []byte) ([]byte, error) {
	for n := 0; ; {
		if n == len(buf) {
			buf = append(buf, make([]byte, max(512, len(buf)))...)
		}
		k, err := retryEINTR(func() (int, error) { return unix.Pread(fd, buf[n:], int64(n)) })
		if err != nil || k == 0 {
			return buf[:n], err
		}
		n += k
	}
}

// retryEINTR repeats a call that a signal interrupted: Go preempts with signals, and
// SA_RESTART does not cover every file system.
func retryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// Stopped tells whether the process pid is stopped, or halted by who traces it.
func Stopped(pid int) bool {
	p, ok := readProc(pid)
	return ok && (p.state == 'T' || p.state == 't')
}

// statusMask is one of the signal masks of /proc/PID/status: bit n-1 is signal n.
func statusMask(status []byte, field string) uint64 {
	mask, _ := strconv.ParseUint(string(bytes.TrimSpace(statusLine(status, field))), 16, 64)
	return mask
}

// statusLine is what follows field and its colon in /proc/PID/status.
func statusLine(status []byte, field string) []byte {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(field)); ok {
			return rest
		}
	}
	return nil
}
