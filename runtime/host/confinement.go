package host

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/cgroup"
	"trl/runtime/confine"
	"trl/runtime/descriptor"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// A confinement holds everything that restricts one session (Config.SessionUser, Config.WritableDirs): its user, which
// may be the session's own, its FIFO directory and its Landlock rules. Every session has a confinement; in most
// sessions it restricts nothing. It begins with the session's first group and outlives it, because session.reset makes
// another group. It ends with ReleaseConfinement.
type confinement struct {
	id   string
	user *confine.Account // nil: the session runs as our own user
	uid  uint32           // the number of user, or one that only this session has
	gid  uint32
	dir  string // the session's FIFO directory; "": its shells open pipes and files below /proc
	confine.LandlockRules
	gatewayGID *uint32 // the group of the gateway's user; nil: the gateway runs as our user

	mu             sync.Mutex
	lastFileNumber int // guarded by mu; the file number of the last channel

	hasGroup bool // guarded by Host.mu; a group of the session has not ended
	released bool // guarded by Host.mu; ReleaseConfinement was called
}

// setUpConfinement prepares the Host for sessions that are restricted more than this process.
func (h *Host) setUpConfinement(c *Config) (err error) {
	h.sessionUser = c.SessionUser
	if c.GatewayUser != nil {
		h.gatewayGID = &c.GatewayUser.GID
	}
	if h.sessionUser == nil && len(c.WritableDirs) == 0 {
		return nil
	}
	if h.sessionUser != nil && os.Geteuid() != 0 {
		return fmt.Errorf("sessions as %s: only root can start processes of another user", h.sessionUser.Text)
	}
	if h.sessionUser != nil && h.sessionUser.Last != 0 {
		h.nextUID = h.sessionUser.UID
		h.markUIDsInUse()
	}
	if len(c.WritableDirs) > 0 {
		if err := confine.Landlock(); err != nil {
			return err
		}
		if h.writableDirs, err = confine.OpenWritable(c.WritableDirs); err != nil {
			return err
		}
	}
	h.fifoDir, h.fifoDirMounted, h.fifoDirLock, err = openFIFODir(h.Instance(), h.sessionUser)
	return err
}

// confinementForLocked finds or makes the confinement for a new group. h.mu is held.
func (h *Host) confinementForLocked(id string) (t *confinement, err error) {
	if t = h.confinements[id]; t != nil {
		t.hasGroup, t.released = true, false
		return t, nil
	}
	t = &confinement{id: id, user: h.sessionUser, LandlockRules: confine.LandlockRules{Rules: -1}, gatewayGID: h.gatewayGID, lastFileNumber: firstFileNumber, hasGroup: true}
	if h.sessionUser != nil {
		t.uid, t.gid = h.sessionUser.UID, h.sessionUser.GID
		if h.sessionUser.Last != 0 {
			if t.uid, err = h.pickUIDLocked(); err != nil {
				return nil, err
			}
			t.gid = t.uid
		}
	}
	if h.fifoDir != "" {
		t.dir = filepath.Join(h.fifoDir, id)
		err = makeDir(t.dir, h.sessionUser != nil) // the directory is in memory, so this may happen with h.mu held
		if err == nil && h.fifoDirMounted {
			err = mountTmpfs(t.dir, sessionDirSize, h.sessionUser != nil)
		}
		if err == nil {
			err = t.writeFile(own.ZshenvName, own.Zshenv)
		}
		if err == nil && h.restrictsWrites() {
			t.LandlockRules, err = h.openLandlockRules(t.dir)
		}
		if err != nil {
			_ = removeDir(t.dir)
			return nil, err
		}
	}
	if h.sessionUser != nil && h.sessionUser.Last != 0 {
		h.uids[t.uid] = t.id
	}
	h.confinements[id] = t
	return t, nil
}

// writeFile writes a file into the confinement's directory. Only the session's user may read it.
func (t *confinement) writeFile(name, text string) error {
	path := filepath.Join(t.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil || t.user == nil {
		return err
	}
	return os.Lchown(path, int(t.uid), int(t.gid))
}

// pickUIDLocked returns a user number that is not in use. It goes through the range in a circle, because files of an
// ended session may remain: its number is used again as late as possible. h.mu is held.
func (h *Host) pickUIDLocked() (uint32, error) {
	first, last := uint64(h.sessionUser.UID), uint64(h.sessionUser.Last)
	for range last - first + 1 {
		uid := h.nextUID
		if h.nextUID++; uint64(h.nextUID) > last {
			h.nextUID = h.sessionUser.UID
		}
		if id, taken := h.uids[uid]; !taken || id == "" && len(procfs.ProcessesOf(uid)) == 0 {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("user numbers %s are all in use: %w", h.sessionUser.Text, unix.EAGAIN)
}

// markUIDsInUse marks the numbers of the range that running processes already have, so that no session gets them.
func (h *Host) markUIDsInUse() {
	for _, pid := range descriptor.NumbersIn("/proc") {
		if uid, ok := procfs.OwnerOf(pid); ok && uid >= h.sessionUser.UID && uid <= h.sessionUser.Last {
			h.uids[uid] = ""
		}
	}
}

// ReleaseConfinement frees what a session has besides its processes. The caller has ended the processes and starts no
// other in this session. A process that still has the session's user number is killed.
func (h *Host) ReleaseConfinement(id string) {
	h.mu.Lock()
	t := h.confinements[id]
	var left bool
	if t != nil {
		t.released = true
		left = h.releaseConfinementLocked(t)
	}
	h.mu.Unlock()
	if left {
		h.killByUID(t)
	}
}

// releaseConfinementLocked frees t if it was released and has no group. It keeps the user number in use, and returns
// true, if processes with that number are left; the caller then calls killByUID. h.mu is held.
func (h *Host) releaseConfinementLocked(t *confinement) (left bool) {
	if t == nil || !t.released || t.hasGroup {
		return false
	}
	delete(h.confinements, t.id)
	t.LandlockRules.Close()
	if t.dir != "" {
		if err := removeDir(t.dir); err != nil { // the directory is in memory, and only this host makes files in it
			h.Log.Error().Err(err).Str("session", t.id).Msg("the session's FIFO directory was not removed")
		}
	}
	if h.uids[t.uid] != t.id {
		return false
	}
	if len(procfs.ProcessesOf(t.uid)) > 0 {
		h.uids[t.uid] = "" // pickUIDLocked looks again whether processes with that number are left
		return true
	}
	delete(h.uids, t.uid)
	return false
}

// killByUID kills the processes that still have the session's user number: those that nothing else connects with the
// session any more. It leaves a process alone that is not a descendant of this one, because that process belongs to
// another program.
func (h *Host) killByUID(t *confinement) {
	ours := func(pid int) bool {
		uid, ok := procfs.OwnerOf(pid)
		return ok && uid == t.uid && procfs.IsDescendant(pid, h.pid)
	}
	left, sent := procfs.ProcessesOf(t.uid), 0
	var pause procfs.Backoff
	for until := time.Now().Add(cgroup.LeftoverTimeout); time.Now().Before(until); left = procfs.ProcessesOf(t.uid) {
		before := sent
		for _, pid := range left {
			if procfs.SignalIf(pid, unix.SIGKILL, ours) {
				sent++
			}
		}
		if sent == before {
			break
		}
		pause.Sleep()
	}
	if sent > 0 {
		h.Log.Warn().Str("session", t.id).Uint32("uid", t.uid).Int("processes", sent).Msg("killed processes that had hidden from the end of their session")
	}
	if len(left) > 0 {
		h.Log.Error().Str("session", t.id).Uint32("uid", t.uid).Ints("pids", left).Msg("a process of the session's user is left: no other session gets its user number")
	}
}

// hasProcess reports whether pid may belong to the session by its user: whether it has the session's user number. It
// returns true if sessions do not have a number each.
func (t *confinement) hasProcess(pid int) bool {
	if t.user == nil || t.user.Last == 0 {
		return true
	}
	var st unix.Stat_t
	return unix.Stat(procfs.Path(pid, ""), &st) == nil && st.Uid == t.uid
}

// RunsAsOtherUser reports whether sessions run as another user than this process.
func (h *Host) RunsAsOtherUser() bool { return h.sessionUser != nil }

// isConfined reports whether the session's processes are restricted beyond the rights of our own user.
func (t *confinement) isConfined() bool { return t.dir != "" }

// Cwd returns the working directory of one of the group's own children, or "" if it is not known.
func (g *Group) Cwd(pid int) string {
	if c := g.host.childReaper.child(pid); c == nil || c.scope == nil || c.scope.group != g {
		return ""
	}
	return procfs.Cwd(pid)
}

// prlimit sets a limit of one of the session's processes. Changing a process of another user takes CAP_SYS_RESOURCE,
// which root in a container need not have. Without it, a small program that runs as the session's user makes the
// change.
func (t *confinement) prlimit(pid, resource int, l unix.Rlimit) error {
	err := unix.Prlimit(pid, resource, &l, nil)
	if err != unix.EPERM || t.user == nil {
		return os.NewSyscallError("prlimit", err)
	}
	return confine.OnOtherThread(func() error { return t.limitByProgram(pid, resource, l) }) // the session's Landlock rules may apply to this thread
}

var limitProgram = sync.OnceValues(func() (int, error) { return openProgram("trl-limit", limitText()) })

func (t *confinement) limitByProgram(pid, resource int, l unix.Rlimit) error {
	program, err := limitProgram()
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	var words []byte
	for _, v := range []uint64{uint64(pid), uint64(resource), l.Cur, l.Max} {
		words = binary.NativeEndian.AppendUint64(words, v)
	}
	if _, err := w.Write(words); err != nil {
		return err
	}
	var child int
	err = ForkOutsideSessions(func() (err error) {
		child, err = syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(program), []string{"trl-limit"}, &syscall.ProcAttr{
			Dir: "/", Files: []uintptr{r.Fd()},
			// A kill of our process group does not meet it. In our process session the child reaper knows it as a child of other code.
			Sys: &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: t.uid, Gid: t.gid}},
		})
		return err
	})
	if err != nil {
		return os.NewSyscallError("prlimit", err)
	}
	var ws unix.WaitStatus
	if _, err := descriptor.RetryEINTR(func() (int, error) { return unix.Wait4(child, &ws, 0, nil) }); err != nil {
		return os.NewSyscallError("wait4", err)
	}
	if ws != 0 { // the program exited with an errno, or another process of the session's user killed it
		return os.NewSyscallError("prlimit", syscall.Errno(max(ws.ExitStatus(), 1)))
	}
	return nil
}

// restrictThread applies the session's restrictions to this thread and to everything that it forks. This cannot be
// undone.
func (t *confinement) restrictThread() error {
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if t.user == nil { // if the session has another user, the kernel already refuses its signals to us
		confine.FilterSignalsOfThread()
	}
	return t.LandlockRules.Apply()
}

// noNewPrivileges ensures that neither this thread nor anything that it forks gains privileges from set-user-ID
// programs such as sudo.
func noNewPrivileges() error {
	return os.NewSyscallError("prctl no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
}
