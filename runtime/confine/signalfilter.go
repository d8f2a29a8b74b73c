package confine

import (
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sessions are our children and by default run as our user. The kernel would therefore let a session's `kill -9 $PPID` end us, and every
// session with us. A seccomp filter refuses that: it returns EPERM for every signal to our pid or our process group that could end us, stop
// us or ask us for something. Every process that we fork inherits the filter, also the gateway, and an exec in place keeps it.
//
// The filter sees numbers, not processes. In a PID namespace that a session makes, another process may have our number and then cannot get
// these signals either. The filter allows `kill -9 -1`, pidfds and ptrace, which nobody uses by accident.

// harmless are the signals that do nothing to us. Bit n is signal n; signal 0 only asks whether we exist. Some signals above 31 end a Go
// program.
const harmless uint32 = 1 | 1<<unix.SIGPIPE | 1<<unix.SIGALRM | 1<<unix.SIGCHLD | 1<<unix.SIGCONT | 1<<unix.SIGURG | 1<<unix.SIGWINCH |
	1<<unix.SIGIO | 1<<unix.SIGXCPU | 1<<unix.SIGXFSZ | 1<<unix.SIGVTALRM | 1<<unix.SIGPROF | 1<<unix.SIGPWR

var signalFilterInstalled atomic.Bool // the whole process has the filter, and so has every process that it forks

// InstallSignalFilter installs the filter in this process, before its first child. The kernel accepts a filter only with CAP_SYS_ADMIN or
// no_new_privs; otherwise InstallSignalFilter returns an error. already: an earlier program of this process has installed it.
func InstallSignalFilter(already bool) error {
	if !already {
		if err := refuseSignals(unix.SECCOMP_FILTER_FLAG_TSYNC); err != nil {
			return err
		}
	}
	signalFilterInstalled.Store(true)
	return nil
}

// FilterSignalsOfThread installs the filter in this thread and in the processes that it forks, unless the process has it.
func FilterSignalsOfThread() {
	if !signalFilterInstalled.Load() {
		_ = refuseSignals(0) // on an error sessions can do what they could before
	}
}

// refuseSignals adds the filter to this thread, or with TSYNC to all threads.
func refuseSignals(flags uintptr) error {
	filter := signalFilter(uint32(os.Getpid()), uint32(unix.Getpgrp()))
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// SPEC_ALLOW: without it older kernels enable mitigations that make sessions slower.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// signalFilter is the filter's program. It allows system calls of other architectures (32 bits). For every call but the five that send
// signals, the answer depends only on the number, so the kernel caches it and does not run the program.
func signalFilter(pid, pgrp uint32) []unix.SockFilter {
	const (
		number, arch = 0, 4
		argument     = 16 // each argument has 8 bytes; the lower half comes first on both architectures

		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	)
	native := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	const allow, deny = 20, 21
	to := func(from, target int) uint8 { return uint8(target - from - 1) }
	return []unix.SockFilter{
		0:  {Code: load, K: arch},
		1:  {Code: equal, K: native, Jf: to(1, allow)},
		2:  {Code: load, K: number},
		3:  {Code: equal, K: unix.SYS_KILL, Jt: to(3, 8)},
		4:  {Code: equal, K: unix.SYS_TKILL, Jt: to(4, 8)},
		5:  {Code: equal, K: unix.SYS_RT_SIGQUEUEINFO, Jt: to(5, 8)},
		6:  {Code: equal, K: unix.SYS_TGKILL, Jt: to(6, 10)},
		7:  {Code: equal, K: unix.SYS_RT_TGSIGQUEUEINFO, Jt: to(7, 10), Jf: to(7, allow)},
		8:  {Code: load, K: argument + 8}, // the signal is the second argument
		9:  {Code: unix.BPF_JMP | unix.BPF_JA, K: 1},
		10: {Code: load, K: argument + 2*8}, // or the third one
		11: {Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: 31, Jt: to(11, 16)},
		12: {Code: unix.BPF_MISC | unix.BPF_TAX},
		13: {Code: unix.BPF_LD | unix.BPF_IMM, K: 1},
		14: {Code: unix.BPF_ALU | unix.BPF_LSH | unix.BPF_X},
		15: {Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: harmless, Jt: to(15, allow)},
		16: {Code: load, K: argument},
		17: {Code: equal, K: pid, Jt: to(17, deny)},
		18: {Code: equal, K: -pid, Jt: to(18, deny)},
		19: {Code: equal, K: -pgrp, Jt: to(19, deny)},
		20: {Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		21: {Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	}
}
