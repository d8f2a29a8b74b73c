package keeper

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/runtime/procfs"
)

// caughtSignals are the signals whose sender we must know, so that a command that kills its parent does not end other sessions.
var caughtSignals = []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// os/signal does not tell the sender. A signalfd gets only signals that every thread blocks, and Go refuses to block TERM, INT, HUP and
// QUIT, whatever mask it was started with (runtime.blockableSig). So these signals have a handler of our own, in assembly, which only
// writes the kernel's siginfo_t to a pipe. os/signal no longer hears of these signals. Children start with default actions, because
// handlers do not survive an exec.

// handlers returns the addresses of the signal handler and of its restorer (0: the kernel has its own).
func handlers() (handler, restorer uintptr)

// signalPipe is the descriptor that the handler writes to. It stays open, because another thread may be in the handler.
var signalPipe int32

// siginfoBytes is the used part of siginfo_t: signo, errno, code, padding, pid, uid.
const siginfoBytes = 24

// sigaction and its flags are defined by the kernel.
type sigaction struct{ handler, flags, restorer, mask uintptr }

const (
	saSiginfo  = 0x4
	saRestorer = 0x04000000
	saOnStack  = 0x08000000 // Go requires it of every handler
	saRestart  = 0x10000000
)

// signals receives signals and accepts those from permitted senders: for a keeper every process outside of all sessions, for a gateway its
// keeper.
type signals struct {
	accepted     chan os.Signal     // closed when read has returned
	mayNotSignal func(pid int) bool // says that this sender is not permitted; set once, before read
	gateway      atomic.Int64       // pid of the one descendant that may signal us; 0: none
	ignored      atomic.Uint64      // number of ignored signals
	open         atomic.Bool        // the kernel lets sessions send us signals
	pipe         int                // the pipe's read end; read closes it
	mu           sync.Mutex         // held from reading a signal until it is accepted, and by execSuccessor, so that the next program reads the rest
	caught       []syscall.Signal   // the signals with our handler; set once in install
	log          zerolog.Logger
}

// signalsPipe makes the pipe that the handler writes to.
func signalsPipe() (pipe [2]int, err error) {
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return pipe, os.NewSyscallError("pipe", err)
	}
	return pipe, os.NewSyscallError("fcntl", unix.SetNonblock(pipe[1], true)) // the handler must never block
}

// listenSignals takes over the signals, except those that our launcher had ignored (nohup) unless the keeper before us had caught them.
// Call it once per program. Go reports only HUP and INT as ignored. SIGUSR1 is therefore always caught, whatever the launcher did, and asks
// for an upgrade as SIGHUP does.
func listenSignals(pipe [2]int, w *Handover, log zerolog.Logger) (*signals, error) {
	s := &signals{pipe: pipe[0], log: log}
	s.mayNotSignal = s.fromSession
	if w == nil && signal.Ignored(unix.SIGHUP) {
		log.Info().Msg("SIGHUP is ignored, as the launcher asked (nohup): for an upgrade use `trl upgrade`, or send SIGUSR1")
	}
	return s, s.install(pipe, slices.DeleteFunc(slices.Clone(caughtSignals), func(sig syscall.Signal) bool {
		return signal.Ignored(sig) && (w == nil || !slices.Contains(w.Ignored, sig))
	}))
}

// install catches exactly the signals in ours and sends the permitted ones to accepted.
func (s *signals) install(pipe [2]int, ours []syscall.Signal) error {
	s.accepted, s.caught = make(chan os.Signal, 8), ours
	atomic.StoreInt32(&signalPipe, int32(pipe[1]))
	action := ourAction()
	for _, sig := range ours {
		if _, err := setAction(sig, action); err != nil {
			return err
		}
	}
	go s.read() // ends with close, which waits for it
	return nil
}

// KeeperSignals receives the signals that a gateway's keeper, its parent, sends: INT and TERM. These two and HUP do nothing if another
// process sends them, because a session that kills every process called trl must not end the other sessions. ignored counts them. Call it
// once in a gateway; it lasts as long as the process.
func KeeperSignals(log zerolog.Logger) (orders chan os.Signal, ignored func() uint64, err error) {
	pipe, err := signalsPipe()
	if err != nil {
		return nil, nil, err
	}
	keeper := os.Getppid()
	s := &signals{pipe: pipe[0], mayNotSignal: func(pid int) bool { return pid != keeper }, log: log}
	err = s.install(pipe, []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP})
	return s.accepted, s.ignored.Load, err
}

func ourAction() sigaction {
	a := sigaction{flags: saSiginfo | saOnStack | saRestart, mask: ^uintptr(0)} // no other handler interrupts ours
	if a.handler, a.restorer = handlers(); a.restorer != 0 {
		a.flags |= saRestorer
	}
	return a
}

// ignoreSignals ignores the signals that would end the next program before it can listen, and that do not ask for its end. ignored are
// those of them that we had caught; the others stay ignored for the next program, as our launcher wanted. At its start, Go leaves HUP and
// INT ignored and catches the other two without effect. restoreSignals undoes it.
func (s *signals) ignoreSignals() (ignored []syscall.Signal, restoreSignals func()) {
	before := map[syscall.Signal]sigaction{}
	for _, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGUSR1, unix.SIGUSR2} {
		if old, err := setAction(sig, sigaction{handler: sigIgn}); err == nil {
			before[sig] = old
		}
		if slices.Contains(s.caught, sig) {
			ignored = append(ignored, sig)
		}
	}
	return ignored, func() {
		for sig, action := range before {
			_, _ = setAction(sig, action)
		}
	}
}

const sigIgn = 1

func setAction(sig syscall.Signal, a sigaction) (old sigaction, err error) {
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&a)), uintptr(unsafe.Pointer(&old)), 8, 0, 0); errno != 0 {
		return old, fmt.Errorf("handler of %v: %w", sig, errno)
	}
	return old, nil
}

// read reads signals until close. It has a thread of its own, because every microsecond counts: a sender that only calls kill(2) is a
// zombie soon afterwards, and then its origin is unknown.
func (s *signals) read() {
	defer close(s.accepted)
	runtime.LockOSThread() // ends with this goroutine
	for s.readOne() {
	}
}

// readOne reads the next signal and handles it. It returns false when there will be none.
func (s *signals) readOne() bool {
	// It polls first: a blocked read could take a signal out of the pipe that the next program should get.
	fds := []unix.PollFd{{Fd: int32(s.pipe), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var told [siginfoBytes]byte
	n, err := unix.Read(s.pipe, told[:])
	if err == unix.EINTR {
		return true
	}
	sig := syscall.Signal(binary.NativeEndian.Uint32(told[0:]))
	if err != nil || n < siginfoBytes || sig == 0 {
		unix.Close(s.pipe)
		return false
	}
	pid := int(binary.NativeEndian.Uint32(told[16:])) // 0: the kernel, or a process outside of our PID namespace
	stranger := s.mayNotSignal(pid)
	if !stranger && s.senderUnknown(pid, binary.NativeEndian.Uint32(told[20:])) {
		stranger = true
		s.log.Warn().Msg("the sender of the next signal has ended and may belong to a session; send signals from a process that stays, such as a shell's own kill")
	}
	level := zerolog.DebugLevel // whoever acts on a signal logs that
	if stranger {
		level = zerolog.WarnLevel
	}
	s.log.WithLevel(level).Stringer("signal", sig).Int("sender", pid).Bool("ignored", stranger).Msg("signal")
	if stranger {
		s.ignored.Add(1)
		return true
	}
	select {
	case s.accepted <- sig:
	default:
		s.log.Warn().Stringer("signal", sig).Int("sender", pid).Msg("signal dropped: eight others wait")
	}
	return true
}

// fromSession says whether the process belongs to a session.
func (s *signals) fromSession(pid int) bool {
	return pid != 0 && int64(pid) != s.gateway.Load() && procfs.IsDescendant(pid, os.Getpid())
}

// senderUnknown says whether the sender, which ended before we could check it, may belong to a session: the kernel lets sessions send us
// signals, and it was our user.
func (s *signals) senderUnknown(pid int, uid uint32) bool {
	return pid != 0 && s.open.Load() && int(uid) == os.Geteuid() && unix.Kill(pid, 0) == unix.ESRCH
}

// close stops the reading of signals. The program is about to end.
func (s *signals) close() {
	_, _ = unix.Write(int(signalPipe), make([]byte, siginfoBytes)) // signal 0 ends read
	for range s.accepted {                                         // until read has returned
	}
}
