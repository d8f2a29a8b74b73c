package confine

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/cgroup"
	"trl/runtime/procfs"
)

// --sandbox bwrap runs all of trl, that is keeper, gateway and sessions, in mount, PID and IPC namespaces of its own, which bubblewrap
// makes. There is one sandbox for everything and not one for each session, because bwrap forks: a shell below it would not be the keeper's
// child and could not be waited for, restored or handed over. There are three processes in a row: the one that was started, which passes
// signals on and exits with the code of the last one; bwrap, which waits; and the keeper, which is the first process in the PID namespace.
// When one of them ends, the kernel ends everything in the sandbox.

// Sandbox says which parts of the file system are visible or writable.
type Sandbox struct {
	Read  []string // files and directories that stay visible; of a file also its directory
	Write []string // directories that are writable
}

// SandboxOwn are directories that a sandbox has for itself, empty at first. /run contains sockets of powerful services (docker, D-Bus,
// systemd), and a read-only mount would not prevent connections to them.
var SandboxOwn = []string{"/run", "/tmp"}

// sandboxCapabilities are the capabilities of root in the sandbox: the usual ones of a container, and what the keeper needs for processes
// of other users. It has none that undoes mounts (SYS_ADMIN), opens files below them (DAC_READ_SEARCH: open_by_handle_at), or reaches the
// kernel.
const sandboxCapabilities uint64 = 1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SETFCAP | 1<<unix.CAP_SETGID |
	1<<unix.CAP_SETPCAP | 1<<unix.CAP_SETUID | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYS_RESOURCE

// sandboxReadyFD is open from Run to EnterSandbox. The process outside waits for its close before it passes a signal on, because the first
// process of a PID namespace gets only the signals that it handles, and before it becomes trl it is bwrap.
const sandboxReadyFD = 4

// EnterSandbox must be the first call of the process that Run starts.
func EnterSandbox() error {
	if err := dropCapabilities(); err != nil {
		return err
	}
	return os.NewSyscallError("close", unix.Close(sandboxReadyFD)) // Go's signal handlers are installed
}

// dropCapabilities removes from root, and from everything that it starts, the capabilities that undo the sandbox. bwrap cannot do it,
// because root's capabilities come back with each exec (--cap-drop leaves the bounding set alone). Capabilities belong to a thread, so
// dropCapabilities execs this program again, which leaves only this thread. It returns if there is nothing to remove, or on an error.
func dropCapabilities() error {
	if os.Geteuid() != 0 {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	taken := false
	for c := range uintptr(64) {
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil || has == 0 || sandboxCapabilities>>c&1 != 0 {
			continue // an error: the kernel does not know this capability
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl", err)
		}
		taken = true
	}
	if !taken {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0 // inheritable ones would also come back
	if err := unix.Capset(&header, &data[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	return Exec("/proc/self/exe", os.Args, os.Environ(), []int{sandboxReadyFD})
}

// Args are bwrap's arguments. A later mount is above an earlier one.
func (s Sandbox) Args() (args []string, err error) {
	args = []string{
		"--die-with-parent", "--unshare-pid", "--as-pid-1", "--unshare-ipc",
		"--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm",
		"--perms", "0755", "--tmpfs", "/run", "--perms", "1777", "--tmpfs", "/tmp",
	}
	if os.Geteuid() == 0 { // root owns these files; bwrap expects /proc/sys to be read-only, because its directories are
		for _, name := range []string{"bus", "fs", "irq", "sys", "sysrq-trigger"} {
			args = append(args, "--ro-bind-try", "/proc/"+name, "/proc/"+name)
		}
	}
	mount := func(how, place string) {
		for _, own := range SandboxOwn {
			for i := len(own); strings.HasPrefix(place, own+"/"); { // only bwrap's user may pass directories that bwrap makes by itself, so they are made here
				next := strings.IndexByte(place[i+1:], '/')
				if next < 0 {
					break
				}
				i += 1 + next
				args = append(args, "--perms", "0755", "--dir", place[:i])
			}
		}
		args = append(args, how, place, place)
	}
	for _, dir := range cgroupsOfOurs() {
		mount("--bind", dir)
	}
	for _, path := range append([]string{"/etc/resolv.conf"}, s.Read...) { // in many places it is a link into /run
		for _, place := range visiblePaths(path) {
			mount("--ro-bind", place)
		}
	}
	for _, dir := range s.Write {
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return nil, err
		}
		if !slices.Contains(SandboxOwn, dir) {
			mount("--bind", dir)
		}
	}
	return args, nil
}

// visiblePaths are the places that must be visible so that path leads where it does outside: its directory, because another file may
// replace it, and the target of a link. A missing path has none; its user will report it.
func visiblePaths(path string) (places []string) {
	add := func(dir, file string) {
		for _, own := range SandboxOwn {
			if dir == own && file != "" {
				places = append(places, file) // only the file, because the sandbox must hide the rest
			} else if strings.HasPrefix(dir, own+"/") {
				places = append(places, dir)
			}
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		add(target, "")
		return places
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		add(dir, filepath.Join(dir, filepath.Base(path)))
	}
	add(filepath.Dir(target), target)
	return places
}

// cgroupsOfOurs are the directories of our own cgroup in every hierarchy that we use, for tier cgroup and limits.
func cgroupsOfOurs() (dirs []string) {
	if dir, _, err := cgroup.Own(); err == nil {
		if cgroup.LeafName.MatchString(filepath.Base(dir)) { // as in cgroup.OpenRoot
			dir = filepath.Dir(dir)
		}
		dirs = append(dirs, dir)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	self, _ := os.ReadFile("/proc/self/cgroup")
	for _, controller := range cgroup.Controllers {
		if dir, _, err := cgroup.FindController(string(mounts), string(self), controller); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// BwrapPath finds bubblewrap.
func BwrapPath() (string, error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return "", errors.New("bubblewrap is not installed: no bwrap in PATH")
	}
	return path, nil
}

// Run runs this program again, with the same arguments, in the sandbox, and returns its exit code. mark is an additional environment
// variable. An error means that the program did not start; bwrap has printed the reason on stderr.
func (s Sandbox) Run(mark string) (code int, err error) {
	bwrap, err := BwrapPath()
	if err != nil {
		return 0, err
	}
	program, err := os.Executable()
	if err != nil {
		return 0, err
	}
	s.Read = append(s.Read, program)
	args, err := s.Args()
	if err != nil {
		return 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	entered, entering, err := os.Pipe()
	if err != nil {
		w.Close()
		return 0, err
	}
	defer entered.Close()
	args = append(args, "--json-status-fd", "3", "--", program)
	cmd := exec.Command(bwrap, append(args, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), mark)
	cmd.ExtraFiles = []*os.File{w, entering} // 3, sandboxReadyFD
	status := bwrapStatus{lines: bufio.NewReader(r)}
	var inner *os.Process // used only by the calls below, one after the other
	ws, err := runAndPassSignals(cmd, func(sig os.Signal) {
		if inner == nil {
			inner = status.process()
			_, _ = entered.Read(make([]byte, 1)) // returns when it is closed
		}
		if inner != nil {
			_ = inner.Signal(sig)
		}
	})
	if err != nil {
		return 0, err
	}
	if code, ok := status.exitCode(); ok {
		return code, nil
	}
	if ws.Signaled() { // bwrap was killed, and with it everything in the sandbox
		return exitCode(ws), nil
	}
	return 0, ExplainNamespaces(fmt.Errorf("bwrap: exit status %d", ws.ExitStatus()))
}

// bwrapStatus reads bwrap's messages (--json-status-fd): {"child-pid": N, …} after its fork, in our PID namespace, and {"exit-code": N}
// after the end of the program, if it was started.
type bwrapStatus struct{ lines *bufio.Reader }

// process returns the first process in the sandbox, with a pidfd; nil: there is none.
func (s bwrapStatus) process() *os.Process {
	v, err := s.next()
	if err != nil || v.Pid == 0 {
		return nil
	}
	p, err := os.FindProcess(v.Pid) // a pidfd
	if err != nil {
		return nil
	}
	return p
}

func (s bwrapStatus) exitCode() (code int, ok bool) {
	for {
		v, err := s.next()
		if err != nil {
			return 0, false
		}
		if v.Code != nil {
			return *v.Code, true
		}
	}
}

func (s bwrapStatus) next() (v struct {
	Pid  int  `json:"child-pid"`
	Code *int `json:"exit-code"`
}, err error) {
	line, err := s.lines.ReadBytes('\n')
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(line, &v)
}

// runAndPassSignals runs cmd, closes its ExtraFiles here after the start, and returns how it ended. Until then it calls pass with each
// signal that asks this process to end or to do something. cmd gets a process group of its own, so that a terminal's Ctrl-C does not reach
// it twice.
func runAndPassSignals(cmd *exec.Cmd, pass func(os.Signal)) (ws syscall.WaitStatus, err error) {
	signals := make(chan os.Signal, 8)
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2} {
		if !signal.Ignored(sig) { // Go never reports SIGUSR1 as ignored; `trl upgrade` sends it
			signal.Notify(signals, sig)
		}
	}
	defer signal.Stop(signals)
	runtime.LockOSThread() // Pdeathsig fires at the end of the thread
	defer runtime.UnlockOSThread()
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
	go func() { // ends with the program; waited for below
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

// exitCode is the exit code that a shell reports for ws.
func exitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return protocol.SignalExitCode(ws.Signal())
	}
	return ws.ExitStatus()
}

// ExplainNamespaces adds to err the sysctl that forbids user namespaces, if there is one.
func ExplainNamespaces(err error) error {
	for _, s := range []struct{ file, off, name string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns"},
		{"/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces"},
	} {
		if value, _ := procfs.ReadSmallFile(s.file, make([]byte, 32)); string(value) == s.off+"\n" {
			return fmt.Errorf("%w (sysctl %s is %s)", err, s.name, s.off)
		}
	}
	return err
}

// SandboxTimeout bounds a trial of the sandbox, which takes some ten milliseconds.
const SandboxTimeout = 10 * time.Second
