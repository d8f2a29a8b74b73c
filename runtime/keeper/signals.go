package keeper

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/signal"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/runtime/procfs"
)

// The signals whose sender we must know, so that a command that kills its parent ends nobody but itself.
var caughtSignals = []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// os/signal does not tell the sender, and a signalfd gets nothing that some thread has not blocked: Go refuses to block
// TERM, INT, HUP and QUIT, whatever mask it was started with (runtime.blockableSig). So these signals have a handler of
// our own, in assembly, which writes what the kernel tells it (siginfo_t) to a pipe, and nothing else. os/signal no longer
// hears of them; children start with defaults, as handlers do not survive an exec.

// handlers are the addresses of the signal handler and of what it returns to (0: the kernel has its own).
func handlers() (handler, restorer uintptr)

// signalPipe is where the handler writes to. It stays open: another thread may just be in the handler.
var signalPipe int32

// siginfoBytes of siginfo_t: signo, errno, code, padding, pid, uid.
const siginfoBytes = 24

// sigaction and its flags are the kernel's.
type sigaction struct{ handler, flags, restorer, mask uintptr }

const (
	saSiginfo  = 0x4
	saRestorer = 0x04000000
	saOnStack  = 0x08000000 // as Go demands of every handler
	saRestart  = 0x10000000
)

// signals are those of whoever may signal us: to a keeper, everybody outside of every session; to a gateway, its keeper.
type signals struct {
	accepted     chan os.Signal     // closed when read has returned
	mayNotSignal func(pid int) bool // may not; set once, before read
	gateway      atomic.Int64       // pid of the one descendant that may signal us; 0: none
	ignored      atomic.Uint64      // signals of strangers
	open         atomic.Bool        // the kernel lets sessions send us signals
	pipe         int                // its read end; read closes it
	mu           sync.Mutex         // held from reading a signal on until it is honoured; by who execs, so that the next program reads the rest
	caught       []syscall.Signal   // what the handler is for; set once in listen
	log          zerolog.Logger
}

// signalsPipe makes what the handler tells us through.
func signalsPipe() (pipe [2]int, err error) {
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return pipe, os.NewSyscallError("pipe", err)
	}
	return pipe, os.NewSyscallError("fcntl", unix.SetNonblock(pipe[1], true)) // the handler never waits
}

// listenSignals takes the signals over, but for those that our launcher had us ignore (nohup), and that the keeper before us,
// if there was one, had not taken. Once per program. Go reports only HUP and INT as ignored. SIGUSR1 is therefore always
// taken, whatever the launcher did, and asks for an upgrade as SIGHUP does.
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

// install makes ours, and nothing else, come to honoured.
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

// KeeperSignals are the signals that a gateway's keeper, which is its parent, sends: INT and TERM. From anybody else those two and
// HUP do nothing: a session that kills what is called trl must not end the others. ignored counts them. In the process of a
// gateway, once, for as long as it lives.
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
	a := sigaction{flags: saSiginfo | saOnStack | saRestart, mask: ^uintptr(0)} // no handler within ours
	if a.handler, a.restorer = handlers(); a.restorer != 0 {
		a.flags |= saRestorer
	}
	return a
}

// ignoreSignals has what would end the next program before it can listen, and does not ask for its end, ignored from here on, and
// says which of that is ours. What our launcher had ignored stays so for the next program. At its start Go leaves HUP and INT
// ignored, and catches the other two without effect. hear undoes it.
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

// read passes on what is honoured. It does not wait for whom it may concern. It has a thread of its own, since every
// microsecond counts: a sender that does nothing but kill(2) is a zombie for a moment, then nobody knows whence it came.
func (s *signals) read() {
	defer close(s.accepted)
	goruntime.LockOSThread() // which ends with us
	for s.readOne() {
	}
}

// readOne reads the next signal; false: there will be none.
func (s *signals) readOne() bool {
	// Not by a read that waits: what it has taken out of the pipe would be lost to the next program.
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
	pid := int(binary.NativeEndian.Uint32(told[16:])) // 0: the kernel, or somebody outside of our pid namespace
	stranger := s.mayNotSignal(pid)
	if !stranger && s.senderUnknown(pid, binary.NativeEndian.Uint32(told[20:])) {
		stranger = true
		s.log.Warn().Msg("who sent the next signal has ended, and may have been of a session; send it from a process that stays, such as a shell's own kill")
	}
	level := zerolog.DebugLevel // what a signal brings about is logged by whoever does it
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
	default: // eight are waiting already
	}
	return true
}

// fromSession: of a session.
func (s *signals) fromSession(pid int) bool {
	return pid != 0 && int64(pid) != s.gateway.Load() && procfs.IsDescendant(pid, os.Getpid())
}

// senderUnknown: the sender has ended before we could look, and sessions can send us signals. Another user is not of a session.
func (s *signals) senderUnknown(pid int, uid uint32) bool {
	return pid != 0 && s.open.Load() && int(uid) == os.Geteuid() && unix.Kill(pid, 0) == unix.ESRCH
}

// close leaves the signals without effect: the program is about to end.
func (s *signals) close() {
	_, _ = unix.Write(int(signalPipe), make([]byte, siginfoBytes)) // signal 0
	for range s.accepted {                                         // until read has returned
	}
}
