package runtime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	goruntime "runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PID namespaces are for who has CAP_SYS_ADMIN: root, and anybody in a user namespace of his own. A Go program cannot
// move into one (setns and unshare want a single thread), so RunInUserNamespace starts the program anew in one.
//
// There the capability comes as an ambient one, with which every thread begins. Capabilities are each thread's own
// affair, and two kinds of thread must be without: the main one, since that is who /proc/PID/fd stands for, and a shell,
// which is without, may open there only what belongs to somebody with no more capabilities than it has; and whoever
// forks, so that no child inherits it.

const (
	adminName = "CAP_SYS_ADMIN"
	adminBit  = 1 << unix.CAP_SYS_ADMIN
)

// parentDeathSignal is the signal that the end of whoever started us sends us; 0: none. It is a thread's, too, and Exec passes it on.
var parentDeathSignal int // set once in init

// adminIsAmbient: we began with the capability as an ambient one, so that only some of our threads have it now.
var adminIsAmbient bool // set once in init

// init is the one time at which code of ours is certainly on the main thread.
func init() {
	var sig int32
	if unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&sig)), 0, 0, 0) == nil {
		parentDeathSignal = int(sig)
	}
	set, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, unix.CAP_SYS_ADMIN, 0, 0)
	if err != nil || set != 1 {
		return
	}
	adminIsAmbient = true
	// Go starts a thread now that has the capability and, wherever a locked thread needs another one, makes that.
	goruntime.LockOSThread()
	goruntime.UnlockOSThread()
	_ = changeCaps(func(c *unix.CapUserData) {
		c.Permitted &^= adminBit
		c.Effective &^= adminBit
		c.Inheritable &^= adminBit
	})
}

// changeCaps changes the lower half of this thread's capabilities. What is not inheritable is not ambient either.
func changeCaps(change func(*unix.CapUserData)) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	before := data
	if change(&data[0]); data == before {
		return nil
	}
	return os.NewSyscallError("capset", unix.Capset(&header, &data[0]))
}

// threadMayNamespace: this thread has the capability.
func threadMayNamespace() (has bool) {
	_ = changeCaps(func(c *unix.CapUserData) { has = c.Effective&adminBit != 0 })
	return has
}

var errNoAdmin = errors.New("no " + adminName)

// onThrowawayThread runs f on a thread that has the capability, is not the main one, and ends with f: there is no way back
// from another PID namespace. What f forks inherits nothing of the capability but what root's children have anyway.
func onThrowawayThread(f func() error) error {
	return onCapableThread(func() error {
		if adminIsAmbient {
			if err := changeCaps(func(c *unix.CapUserData) { c.Inheritable &^= adminBit }); err != nil {
				return err
			}
		}
		return f()
	})
}

// onCapableThread is onThrowawayThread without precautions for children.
func onCapableThread(f func() error) error {
	for range 64 { // each time that it fails there is one thread less without the capability
		done := make(chan error, 1)
		go func() { // ends with f, and takes its thread along
			goruntime.LockOSThread()
			switch {
			case unix.Gettid() == unix.Getpid():
				// With the main thread held here, the next goroutine gets another one; from the thread that init
				// asked for, if there is none idle.
				done <- onCapableThread(f)
				goruntime.UnlockOSThread()
			case !threadMayNamespace():
				done <- errNoAdmin
			default:
				done <- f()
			}
		}()
		if err := <-done; err != errNoAdmin { // bare, from above
			return err
		}
	}
	return errNoAdmin
}

// onOwnThread runs f on a thread that is not the main one and ends with f, for what a thread cannot undo.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() { // ends with f, and takes its thread along
		goruntime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		done <- onOwnThread(f) // on another one, since this one is held here
		goruntime.UnlockOSThread()
	}()
	return <-done
}

// NeedsUserNamespace: tier "pidns" can only be had from RunInUserNamespace.
func NeedsUserNamespace() bool { return !adminIsAmbient && !threadMayNamespace() }

// RunInUserNamespace runs this program again, with the same arguments, in a user namespace in which everybody keeps his
// number, and returns its exit code.
func RunInUserNamespace() (code int, err error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.SysProcAttr = userNamespace()
	ws, err := runAndPassSignals(cmd, func(sig os.Signal) { _ = cmd.Process.Signal(sig) })
	if err != nil {
		return 0, fmt.Errorf("start in a user namespace: %w", explainNamespaces(err))
	}
	return exitCode(ws), nil
}

// runAndPassSignals runs cmd in our place, gives away its ExtraFiles, and returns how it ended. The signals that end or tell something go to pass. A process
// group of its own keeps a terminal's Ctrl-C from arriving twice.
func runAndPassSignals(cmd *exec.Cmd, pass func(os.Signal)) (ws syscall.WaitStatus, err error) {
	signals := make(chan os.Signal, 8)
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2} {
		if !signal.Ignored(sig) { // Go never says so of SIGUSR1, by which `trl upgrade` asks
			signal.Notify(signals, sig)
		}
	}
	defer signal.Stop(signals)
	goruntime.LockOSThread() // Pdeathsig is about the end of the thread
	defer goruntime.UnlockOSThread()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	err = cmd.Start()
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	if err != nil {
		return ws, err
	}
	ended, passed := make(chan struct{}), make(chan struct{})
	go func() { // until the program has ended; waited for below
		defer close(passed)
		for {
			select {
			case sig := <-signals:
				pass(sig)
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	<-passed
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return ws, err
	}
	return cmd.ProcessState.Sys().(syscall.WaitStatus), nil
}

// exitCode is what a shell says of it.
func exitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return signalCode(ws.Signal())
	}
	return ws.ExitStatus()
}

// userNamespace makes a child's: one in which there are our own user and group, and all others are nobody.
func userNamespace() *syscall.SysProcAttr {
	uid, gid := os.Geteuid(), os.Getegid()
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
	}
}

// explainNamespaces names the switch that forbids user namespaces, where one does.
func explainNamespaces(err error) error {
	for _, s := range []struct{ file, off, name string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns"},
		{"/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces"},
	} {
		if value, _ := readSmallFile(s.file, make([]byte, 32)); string(value) == s.off+"\n" {
			return fmt.Errorf("%w (sysctl %s is %s)", err, s.name, s.off)
		}
	}
	return err
}
