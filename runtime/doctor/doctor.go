// Package doctor checks what this machine has for trl and what it lacks.
package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"trl/runtime/cgroup"
	"trl/runtime/confine"
	"trl/runtime/dialect"
	"trl/runtime/host"
	"trl/runtime/procfs"
)

// A Finding is the result for one thing that trl needs from the machine, or works better with.
type Finding struct {
	Name  string `json:"name"`
	State string `json:"state"` // Fine, Weak or Missing
	What  string `json:"what"`
}

// These are the states of a Finding.
const (
	Fine    = "ok"
	Weak    = "weak"    // trl runs, but something is worse or slower
	Missing = "missing" // trl does not run
)

// Examine checks what the machine offers this process, by using it.
func Examine() []Finding {
	return []Finding{
		examineProc(), examinePidfd(), examineMemfd(), examineDescriptors(), examineMarks(), examineCgroupKill(),
		examineLimits(), examineFiles(), examinePipes(), examineInit(), examineUsers(), examineLandlock(), examineSandbox(), examineSignalFilter(),
	}
}

// ShellNameOf returns the dialect in which trl drives the shell at path: bash, dash, ash or zsh.
func ShellNameOf(path string) (string, error) {
	k, _, err := dialect.Of(path)
	if err != nil {
		return "", err
	}
	return k.Name, nil
}

// verdict returns a Finding with state and the text of err, or Fine with the text what if err is nil.
func verdict(name string, err error, state, what string) Finding {
	if err != nil {
		return Finding{name, state, err.Error()}
	}
	return Finding{name, Fine, what}
}

func examineProc() Finding {
	const name = "proc"
	if _, ok := procfs.Read(os.Getpid()); !ok {
		return Finding{name, Missing, "no /proc: mount one, trl finds and identifies processes there"}
	}
	if options := procOptions(); strings.Contains(options, "hidepid") && !strings.Contains(options, "hidepid=0") && !strings.Contains(options, "hidepid=off") && os.Geteuid() != 0 {
		return Finding{name, Weak, "mounted with " + options + ": trl cannot see processes that a session runs as another user (sudo)"}
	}
	if !procfs.HaveChildren() {
		return Finding{name, Weak, "no lists of children (CONFIG_PROC_CHILDREN): trl reads all of /proc to find the processes that a command left"}
	}
	return Finding{name, Fine, "mounted, shows all processes, has lists of children"}
}

// procOptions returns the mount options of /proc that hide processes.
func procOptions() string {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	options := ""
	for _, m := range cgroup.ParseMounts(string(mounts)) {
		if m.Point != "/proc" || m.Kind != "proc" {
			continue
		}
		options = ""
		for o := range strings.SplitSeq(m.Options, ",") {
			if strings.HasPrefix(o, "hidepid") || strings.HasPrefix(o, "subset") {
				options = strings.TrimPrefix(options+","+o, ",")
			}
		}
	}
	return options
}

func examinePidfd() Finding {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		err = unix.PidfdSendSignal(fd, 0, nil, 0)
		unix.Close(fd)
	}
	if err != nil {
		err = fmt.Errorf("pidfd (Linux 5.3): %w: no signal could be sent safely", err)
	}
	return verdict("pidfd", err, Missing, "a signal reaches the right process or none")
}

// examineMemfd does the same as a journal: it moves data from a pipe to a memfd without copying it through this
// process.
func examineMemfd() Finding {
	err := func() error {
		fd, err := unix.MemfdCreate("trl-doctor", unix.MFD_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("memfd_create", err)
		}
		defer unix.Close(fd)
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return os.NewSyscallError("pipe2", err)
		}
		defer unix.Close(p[0])
		defer unix.Close(p[1])
		if _, err := unix.Write(p[1], []byte("x")); err != nil {
			return os.NewSyscallError("write", err)
		}
		_, err = unix.Splice(p[0], nil, fd, nil, 1, 0)
		return os.NewSyscallError("splice", err)
	}()
	return verdict("memfd, splice", err, Missing, "trl keeps output in memory and never on disk")
}

// examineDescriptors does the same as a shell: it opens one of our descriptors by its path.
func examineDescriptors() Finding {
	err := func() error {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return os.NewSyscallError("pipe2", err)
		}
		defer unix.Close(p[0])
		defer unix.Close(p[1])
		fd, err := unix.Open(procfs.Path(os.Getpid(), "/fd/"+strconv.Itoa(p[1])), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a pipe under /proc: %w: shells open their pipes in this way", err)
		}
		unix.Close(fd)
		return nil
	}()
	if err == nil {
		err = unix.CloseRange(math.MaxUint32, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
		if err != nil {
			return Finding{"descriptors", Weak, "close_range (Linux 5.11): " + err.Error() + ": trl closes inherited descriptors one by one"}
		}
	}
	return verdict("descriptors", err, Missing, "pipes can be opened by path, and inherited descriptors are closed at once")
}

func examineMarks() Finding {
	if !procfs.Mark(1 << 62).Fits() {
		return Finding{"marks", Weak, "the hard limit of file locks (ulimit -Hx) is not unlimited: without cgroups only ancestry and start times tell one command's orphans from another's"}
	}
	return Finding{"marks", Fine, "the limit of file locks is free, so trl can mark which command started a process"}
}

func examineCgroupKill() Finding {
	const name = "cgroup.kill"
	var u unix.Utsname
	_ = unix.Uname(&u)
	release := unix.ByteSliceToString(u.Release[:])
	dir, _, err := cgroup.Own()
	switch _, none := os.Stat(filepath.Join(dir, "cgroup.kill")); {
	case err != nil:
		return Finding{name, Weak, err.Error()}
	case none != nil && !newer(release, 5, 14): // the root cgroup has no such file, but the cgroups below it have
		return Finding{name, Weak, "Linux " + release + " has no cgroup.kill (5.14 has): tier cgroup is not available"}
	}
	return Finding{name, Fine, "the kernel can kill a whole cgroup at once"}
}

// newer reports whether release is at least major.minor.
func newer(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a > major || a == major && b >= minor
}

// examineLimits reports which cgroup controllers could limit a session's memory, processes and CPU.
func examineLimits() Finding {
	self, _ := os.ReadFile("/proc/self/cgroup")
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var have, lack []string
	for _, controller := range cgroup.Controllers {
		if where := controllerAt(controller, string(self), string(mounts)); where != "" {
			have = append(have, controller+" ("+where+")")
		} else {
			lack = append(lack, controller)
		}
	}
	switch {
	case len(lack) == 0:
		return Finding{"limits", Fine, "available cgroup controllers: " + strings.Join(have, ", ")}
	case len(have) == 0:
		return Finding{"limits", Weak, "no cgroup controller is available for memory, pids or cpu"}
	}
	return Finding{"limits", Weak, "available cgroup controllers: " + strings.Join(have, ", ") + "; not available: " + strings.Join(lack, ", ")}
}

// controllerAt returns "v2" or "v1" if our groups can use the controller, and "" if they cannot.
func controllerAt(controller, self, mountinfo string) string {
	if dir, _, err := cgroup.Find(mountinfo, self); err == nil && slices.Contains(cgroup.ReadWords(dir, "cgroup.controllers"), controller) &&
		unix.Access(filepath.Join(dir, "cgroup.subtree_control"), unix.W_OK) == nil {
		return "v2"
	}
	if dir, _, err := cgroup.FindController(mountinfo, self, controller); err == nil && unix.Access(dir, unix.W_OK) == nil {
		return "v1"
	}
	return ""
}

// examineUsers reports whether sessions can run as other users.
func examineUsers() Finding {
	const name = "session users"
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_CHOWN | 1<<unix.CAP_KILL
	if os.Geteuid() != 0 || confine.Capabilities()&need != need {
		return Finding{name, Weak, "only root, with its capabilities, can run sessions as another user (--session-user): sessions run as this user"}
	}
	if err := host.CanMount(); err == nil {
		return Finding{name, Fine, "sessions can run as other users, each as its own if wanted; the pipes of each session are in a separate tmpfs of at most 64 MiB"}
	}
	dir, err := host.FIFODirParent()
	if err == nil {
		const shared = "sessions can run as other users, each as its own if wanted; but trl may not mount (CAP_SYS_ADMIN), so the pipes of all sessions are in %s, which one session can fill"
		what := fmt.Sprintf(shared, dir)
		if dir == "/dev/shm" {
			what += ", and so can every program that writes to /dev/shm: make /run a tmpfs"
		}
		return Finding{name, Weak, what}
	}
	return verdict(name, err, Weak, "")
}

func examineLandlock() Finding {
	return verdict("landlock", confine.Landlock(), Weak, "sessions can be restricted to writing in some directories (--allow-write)")
}

func examineFiles() Finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return Finding{"open files", Weak, err.Error()}
	}
	const each = 16 // a generous estimate for a session with a running command
	what := fmt.Sprintf("at most %d (ulimit -Hn): enough for about %d sessions", l.Max, l.Max/each)
	if l.Max/each < 256 {
		return Finding{"open files", Weak, what}
	}
	return Finding{"open files", Fine, what}
}

func examinePipes() Finding {
	const name = "pipes"
	text, err := procfs.ReadSmallFile("/proc/sys/fs/pipe-user-pages-soft", make([]byte, 32))
	pages, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pages == 0 || confine.Capabilities()&(1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_SYS_RESOURCE) != 0 {
		return Finding{name, Fine, "no limit on pipes of 64 KiB"}
	}
	what := fmt.Sprintf("%d pipes of 64 KiB for all processes of this user, further pipes are smaller (sysctl fs.pipe-user-pages-soft is %d)", pages/16, pages)
	if pages < 16384 { // the kernel's default
		return Finding{name, Weak, what}
	}
	return Finding{name, Fine, what}
}

func examineInit() Finding {
	const name = "process 1"
	text, err := os.ReadFile("/proc/1/comm")
	switch {
	case os.Getpid() == 1:
		return Finding{name, Fine, "is trl, as in a container: it reaps orphans"}
	case errors.Is(err, os.ErrPermission) || err != nil:
		return Finding{name, Fine, "cannot be seen"}
	}
	return Finding{name, Fine, "is " + strings.TrimSpace(string(text)) + "; the kernel gives the sessions' orphans to trl anyway"}
}

// examineSandbox runs a program in a sandbox.
func examineSandbox() Finding {
	const name = "sandbox"
	try := func() error {
		bwrap, err := confine.BwrapPath()
		if err != nil {
			return err
		}
		args, err := confine.Sandbox{}.Args()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), confine.SandboxTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, bwrap, append(args, "--", "sh", "-c", ":")...)
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil {
			return confine.ExplainNamespaces(fmt.Errorf("bubblewrap does not work here: %w: %s", err, bytes.TrimSpace(said.Bytes())))
		}
		return nil
	}
	return verdict(name, try(), Weak, "trl can run itself and all sessions in a sandbox (--sandbox bwrap)")
}

// examineSignalFilter reports whether confine.InstallSignalFilter would succeed. It does not install the filter,
// because that cannot be undone.
func examineSignalFilter() Finding {
	const name = "keeper"
	action := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	unable, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	switch {
	case errno != 0:
		return Finding{name, Weak, "kill -9 $PPID in a session ends every session: the kernel has no seccomp filters. Use --session-user or --sandbox bwrap"}
	case confine.Capabilities()&(1<<unix.CAP_SYS_ADMIN) != 0, err == nil && unable == 1:
		return Finding{name, Fine, "no signal from a session ends the keeper: kill -9 $PPID is refused"}
	}
	return Finding{name, Weak, "kill -9 $PPID in a session ends every session: without CAP_SYS_ADMIN the kernel accepts a filter only from a process that cannot gain privileges. " +
		"Start trl with `setpriv --no-new-privs` (sudo in sessions then fails), as the first process of a container, or with --session-user, --allow-write or --sandbox bwrap"}
}
