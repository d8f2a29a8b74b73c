// Package procfs tells what the kernel shows of a process in /proc and by waitid, and sends a signal to exactly the process that is meant
// or to nobody.
package procfs

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
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// Process is one process as /proc/PID/stat shows it. Its identity is (Pid, Start): the kernel gives a pid again only after it has used
// all others, which takes longer than the clock tick in which Start counts.
type Process struct {
	Pid, Ppid, Pgrp, Sid int
	Start                uint64 // clock ticks after boot
	Threads              int
	State                byte // R S D T t Z X I
	BeforeExec           bool // it was forked and has called no exec yet, so it may still have its parent's signal handlers
}

// pfForkNoExec is PF_FORKNOEXEC of the kernel's include/linux/sched.h, a flag in the ninth field of /proc/PID/stat.
const pfForkNoExec = 0x40

// Dead reports whether the process has ended and only waits to be reaped. A process whose first thread has ended is not dead while
// other threads still hold its memory, sockets and locks.
func (p Process) Dead() bool { return (p.State == 'Z' || p.State == 'X') && p.Threads <= 1 }

// Path returns the path of a process's file in /proc.
func Path(pid int, file string) string { return "/proc/" + strconv.Itoa(pid) + file }

// Read reads a process's state. It reports false when there is no such process.
func Read(pid int) (Process, bool) {
	var room [512]byte
	text, err := ReadSmallFile(Path(pid, "/stat"), room[:])
	if err != nil {
		return Process{}, false
	}
	return ParseStat(text)
}

// ParseStat parses /proc/PID/stat. The second field, the program's name in parentheses, may contain parentheses, blanks and newlines.
// ParseStat therefore looks for the other fields after the last ")".
func ParseStat(text []byte) (p Process, ok bool) {
	open, shut := bytes.IndexByte(text, ' '), bytes.LastIndexByte(text, ')')
	if open < 0 || shut < 0 {
		return p, false
	}
	rest := bytes.Fields(text[shut+1:]) // rest[0] is field 3 of proc_pid_stat(5)
	if len(rest) < 20 {
		return p, false
	}
	number := func(b []byte) int { n, _ := strconv.Atoi(string(b)); return n }
	p = Process{
		Pid: number(text[:open]), State: rest[0][0],
		Ppid: number(rest[1]), Pgrp: number(rest[2]), Sid: number(rest[3]),
		Threads: number(rest[17]), BeforeExec: number(rest[6])&pfForkNoExec != 0,
	}
	p.Start, _ = strconv.ParseUint(string(rest[19]), 10, 64)
	return p, true
}

// Children lists the processes whose parent is p. The kernel's list may miss a child while others exit. A caller that must find
// all children therefore repeats the call until it finds none.
func (p Process) Children() []int {
	if !HaveChildren() {
		return ChildrenByScan(p.Pid)
	}
	if p.Threads == 1 {
		return ChildrenOfThread(p.Pid, p.Pid)
	}
	var kids []int
	for _, tid := range descriptor.NumbersIn(Path(p.Pid, "/task")) {
		kids = append(kids, ChildrenOfThread(p.Pid, tid)...)
	}
	return kids
}

// ChildrenOfThread lists the children that one thread of a process has started.
func ChildrenOfThread(pid, tid int) []int {
	var room [512]byte
	text, _ := ReadSmallFile(Path(pid, "/task/"+strconv.Itoa(tid)+"/children"), room[:])
	return ParsePids(text)
}

// HaveChildren reports whether the kernel was built with CONFIG_PROC_CHILDREN, as nearly all are.
var HaveChildren = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err == nil
})

// ChildrenByScan lists a process's children where the kernel has no list of them.
func ChildrenByScan(ppid int) (kids []int) {
	for _, pid := range descriptor.NumbersIn("/proc") {
		if p, ok := Read(pid); ok && p.Ppid == ppid {
			kids = append(kids, pid)
		}
	}
	return kids
}

// PidsIn yields the numbers in text, whatever blanks separate them.
func PidsIn(text []byte) iter.Seq[int] {
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

func ParsePids(text []byte) []int { return slices.Collect(PidsIn(text)) }

// SessionOf returns the TRL_SESSION_ID that a process was started with, "" if it had none, has wiped it, or may not be read.
func SessionOf(pid int) string {
	text, _ := ReadSmallFile(Path(pid, "/environ"), make([]byte, 8<<10))
	for v := range bytes.SplitSeq(text, []byte{0}) {
		if id, ok := bytes.CutPrefix(v, []byte("TRL_SESSION_ID=")); ok {
			return string(id)
		}
	}
	return ""
}

// Mark is a number that tells which command started a process, even for a zombie and where there are no cgroups. It is the soft limit of
// file locks, which Linux keeps but has not enforced since 2.4.25, and which every process may read and lower. A process inherits it
// through fork and exec. setsid, double forks, closed descriptors and an empty environment do not change it. Each scope has its own mark.
type Mark uint64

// Fits reports whether this process's own hard limit allows the mark and those that follow it.
func (m Mark) Fits() bool {
	var own unix.Rlimit
	return unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &own) == nil && own.Max > uint64(m|math.MaxUint32)
}

// SetMark marks a process. It fails when our own hard limit is below m, or the process belongs to another user.
func SetMark(pid int, m Mark) error {
	var now unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &now); err != nil {
		return os.NewSyscallError("prlimit", err)
	}
	now.Cur = uint64(m)
	return os.NewSyscallError("prlimit", unix.Prlimit(pid, unix.RLIMIT_LOCKS, &now, nil))
}

// ReadMark returns a process's mark, 0 when it cannot be known.
func ReadMark(pid int) Mark {
	m, _ := SoftLimit(pid, unix.RLIMIT_LOCKS, "Max file locks")
	return Mark(m)
}

// SoftLimit returns what getrlimit returns in a process, and false when that cannot be known. name is what /proc/PID/limits calls the
// resource: prlimit(2) does not tell it of another user's process, and the file is open to all.
func SoftLimit(pid, resource int, name string) (most uint64, known bool) {
	var now unix.Rlimit
	if unix.Prlimit(pid, resource, nil, &now) == nil {
		return now.Cur, true
	}
	text, _ := ReadSmallFile(Path(pid, "/limits"), make([]byte, 4<<10))
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

// SignalIf pins a process by a pidfd, asks still whether it is the process that is meant, and then signals it. It reports whether the
// signal was sent. All signals to processes that we have not started ourselves are sent by SignalIf.
func SignalIf(pid int, sig syscall.Signal, still func(pid int) bool) bool {
	if pid <= 0 {
		return false // 0: a process of another pid namespace
	}
	return descriptor.WithReserve(func() error {
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

// ReadSmallFile reads a small file of the kernel whole, into buf if it fits. It takes three system calls fewer than os.ReadFile, which
// offers each file to the poller first.
func ReadSmallFile(path string, buf []byte) (text []byte, err error) {
	err = descriptor.WithReserve(func() error {
		fd, err := descriptor.RetryEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		defer unix.Close(fd)
		text, err = PreadAll(fd, buf)
		return err
	})
	return text, err
}

// PreadAll reads from the start of fd to its end.
func PreadAll(fd int, buf []byte) ([]byte, error) {
	for n := 0; ; {
		if n == len(buf) {
			buf = append(buf, make([]byte, max(512, len(buf)))...)
		}
		k, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(fd, buf[n:], int64(n)) })
		if err != nil || k == 0 {
			return buf[:n], err
		}
		n += k
	}
}

// Stopped reports whether a process is stopped, by a signal or by its tracer.
func Stopped(pid int) bool {
	p, ok := Read(pid)
	return ok && (p.State == 'T' || p.State == 't')
}

// StatusMask returns one of the signal masks of /proc/PID/status: bit n-1 is signal n.
func StatusMask(status []byte, field string) uint64 {
	mask, _ := strconv.ParseUint(string(bytes.TrimSpace(statusLine(status, field))), 16, 64)
	return mask
}

// statusLine returns what follows field and its colon in /proc/PID/status.
func statusLine(status []byte, field string) []byte {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(field)); ok {
			return rest
		}
	}
	return nil
}

// IsStill reports whether the process with this pid is still p.
func (p Process) IsStill(pid int) bool {
	now, ok := Read(pid)
	return ok && now.Start == p.Start
}

// WalkTree visits p and all its descendants.
func (p Process) WalkTree(visit func(p Process)) {
	kids := p.Children() // before p dies and they are given to us
	visit(p)
	for _, pid := range kids {
		if kid, ok := Read(pid); ok && kid.Ppid == p.Pid {
			kid.WalkTree(visit)
		}
	}
}

// IsDescendant reports whether the process pid, which may be a zombie, is below ancestor.
func IsDescendant(pid, ancestor int) bool {
	for pid > 1 {
		p, ok := Read(pid)
		if !ok {
			return false
		}
		if p.Ppid == ancestor {
			return true
		}
		pid = p.Ppid
	}
	return false
}

// TicksNow returns the time in the unit of Process.Start (USER_HZ is 100 everywhere).
func TicksNow() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	return uint64(now.Nano()) / uint64(10*time.Millisecond)
}

// ProcessesOf lists the processes whose real user is uid. For a uid that only one session has, these are all its processes, wherever they are.
func ProcessesOf(uid uint32) (pids []int) {
	for _, pid := range descriptor.NumbersIn("/proc") {
		if owner, ok := OwnerOf(pid); !ok || owner != uid {
			continue
		}
		if p, ok := Read(pid); ok && !p.Dead() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// OwnerOf returns a process's real user. The owner of /proc/PID is not it: that is root for processes that may not be dumped.
func OwnerOf(pid int) (uid uint32, ok bool) {
	text, _ := ReadSmallFile(Path(pid, "/status"), make([]byte, 4<<10))
	f := strings.Fields(string(statusLine(text, "Uid:")))
	if len(f) < 1 {
		return 0, false
	}
	n, err := strconv.ParseUint(f[0], 10, 32)
	return uint32(n), err == nil
}

// InMask reports whether a signal is in one of the masks of /proc/PID/status.
func InMask(pid int, field string, sig syscall.Signal) bool {
	text, err := ReadSmallFile(Path(pid, "/status"), make([]byte, 4<<10))
	return err == nil && StatusMask(text, field)>>(sig-1)&1 == 1
}

// Ignores reports whether a process ignores a signal now.
func Ignores(pid int, sig syscall.Signal) bool { return InMask(pid, "SigIgn:", sig) }
