package runtime

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A tenant is what a session has that is not as free as we are (Config.As, Config.Write): its user, who may be its own, its
// ports and its fence. Every session is one; of most there is nothing to tell. It begins with the session's first group and
// outlives that (session.reset makes another) until Vacate.
type tenant struct {
	id  string
	as  *Account // nil: our own user
	uid uint32   // of as, or this session's own
	gid uint32
	dir string // "": shells open what they need below /proc
	fence
	gateway *uint32 // the group of a gateway that is another user; nil: it is not

	mu     sync.Mutex
	serial int // guarded by mu; the last port's number

	grouped bool // guarded by Host.mu; it has a group that has not ended
	leaving bool // guarded by Host.mu; Vacate was called
}

// separate prepares for sessions that are not as free as we are.
func (h *Host) separate(c *Config) (err error) {
	h.as = c.As
	if c.Gateway != nil {
		h.gateway = &c.Gateway.GID
	}
	if h.as == nil && len(c.Write) == 0 {
		return nil
	}
	if h.as != nil && os.Geteuid() != 0 {
		return fmt.Errorf("sessions as %s: only root can start processes of another user", h.as.Text)
	}
	if h.as != nil && h.as.Last != 0 {
		h.nextUID = h.as.UID
		h.reserve()
	}
	if len(c.Write) > 0 {
		if err := Landlock(); err != nil {
			return err
		}
		if h.write, err = openWritable(c.Write); err != nil {
			return err
		}
	}
	h.ports, h.mounts, h.portsLock, err = openPorts(h.Instance(), h.as)
	return err
}

// lodgeLocked finds or makes the tenant for a new group. h.mu is held.
func (h *Host) lodgeLocked(id string) (t *tenant, err error) {
	if t = h.tenants[id]; t != nil {
		t.grouped, t.leaving = true, false
		return t, nil
	}
	t = &tenant{id: id, as: h.as, fence: fence{rules: -1}, gateway: h.gateway, serial: firstPort, grouped: true}
	if h.as != nil {
		t.uid, t.gid = h.as.UID, h.as.GID
		if h.as.Last != 0 {
			if t.uid, err = h.freeUIDLocked(); err != nil {
				return nil, err
			}
			t.gid = t.uid
		}
	}
	if h.ports != "" {
		t.dir = filepath.Join(h.ports, id)
		err = makeDir(t.dir, h.as != nil) // in memory: mu may be held
		if err == nil && h.mounts {
			err = mountPorts(t.dir, portsSize, h.as != nil)
		}
		if err == nil {
			err = t.leave(zshenvName, zshenv)
		}
		if err == nil && h.fenced() {
			t.fence, err = h.openFence(t.dir)
		}
		if err != nil {
			_ = removeDir(t.dir)
			return nil, err
		}
	}
	if h.as != nil && h.as.Last != 0 {
		h.uids[t.uid] = t.id
	}
	h.tenants[id] = t
	return t, nil
}

// leave puts a file into the tenant's directory, for its user alone.
func (t *tenant) leave(name, text string) error {
	path := filepath.Join(t.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil || t.as == nil {
		return err
	}
	return os.Lchown(path, int(t.uid), int(t.gid))
}

// freeUIDLocked goes round, so that a number that was given back, with which there may be files, comes last. h.mu is held.
func (h *Host) freeUIDLocked() (uint32, error) {
	first, last := uint64(h.as.UID), uint64(h.as.Last)
	for range last - first + 1 {
		uid := h.nextUID
		if h.nextUID++; uint64(h.nextUID) > last {
			h.nextUID = h.as.UID
		}
		if id, taken := h.uids[uid]; !taken || id == "" && len(processesOf(uid)) == 0 {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("user numbers %s are all in use: %w", h.as.Text, unix.EAGAIN)
}

// reserve takes the numbers out that somebody has already.
func (h *Host) reserve() {
	for _, pid := range numbersIn("/proc") {
		if uid, ok := ownerOf(pid); ok && uid >= h.as.UID && uid <= h.as.Last {
			h.uids[uid] = ""
		}
	}
}

// Vacate ends what a session has beside its processes, once those are gone: nothing will run in it any more.
func (h *Host) Vacate(id string) {
	h.mu.Lock()
	t := h.tenants[id]
	var left bool
	if t != nil {
		t.leaving = true
		left = h.leaveLocked(t)
	}
	h.mu.Unlock()
	if left {
		h.endUser(t)
	}
}

// leaveLocked gives back what t has if it is over, but for a number with which there still are processes: those are left
// for endUser. h.mu is held.
func (h *Host) leaveLocked(t *tenant) (left bool) {
	if t == nil || !t.leaving || t.grouped {
		return false
	}
	delete(h.tenants, t.id)
	t.fence.close()
	if t.dir != "" {
		if err := removeDir(t.dir); err != nil { // in memory, and nobody else makes anything in there
			h.log.Error().Err(err).Str("session", t.id).Msg("ports not removed")
		}
	}
	if h.uids[t.uid] != t.id {
		return false
	}
	if len(processesOf(t.uid)) > 0 {
		h.uids[t.uid] = "" // freeUIDLocked looks again
		return true
	}
	delete(h.uids, t.uid)
	return false
}

// endUser kills what is left of a session by its number: what has hidden all else that told whose it is. Who has the number
// and is not below us is somebody else.
func (h *Host) endUser(t *tenant) {
	ours := func(pid int) bool {
		uid, ok := ownerOf(pid)
		return ok && uid == t.uid && Descends(pid, h.pid)
	}
	left, sent := processesOf(t.uid), 0
	var pause backoff
	for until := time.Now().Add(leftoverPatience); time.Now().Before(until); left = processesOf(t.uid) {
		before := sent
		for _, pid := range left {
			if signalPinned(pid, unix.SIGKILL, ours) {
				sent++
			}
		}
		if sent == before {
			break
		}
		pause.sleep()
	}
	if sent > 0 {
		h.log.Warn().Str("session", t.id).Uint32("uid", t.uid).Int("processes", sent).Msg("ended what hid from its session's end")
	}
	if len(left) > 0 {
		h.log.Error().Str("session", t.id).Uint32("uid", t.uid).Ints("pids", left).Msg("a process of the session's user is left, its number is not given out again")
	}
}

// processesOf lists whose real user is uid. Of a session's own number these are what is left of it, wherever they are.
func processesOf(uid uint32) (pids []int) {
	for _, pid := range numbersIn("/proc") {
		if owner, ok := ownerOf(pid); !ok || owner != uid {
			continue
		}
		if p, ok := readProc(pid); ok && !p.dead() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ownerOf is a process's real user; the owner of /proc/PID is root's where it may not be dumped.
func ownerOf(pid int) (uid uint32, ok bool) {
	text, _ := slurp(procPath(pid, "/status"), make([]byte, 4<<10))
	f := strings.Fields(string(statusLine(text, "Uid:")))
	if len(f) < 1 {
		return 0, false
	}
	n, err := strconv.ParseUint(f[0], 10, 32)
	return uint32(n), err == nil
}

// owns: pid is of the session's user, as far as sessions have each its own.
func (t *tenant) owns(pid int) bool {
	if t.as == nil || t.as.Last == 0 {
		return true
	}
	var st unix.Stat_t
	return unix.Stat(procPath(pid, ""), &st) == nil && st.Uid == t.uid
}

// Foreign: sessions run as another user than we do.
func (h *Host) Foreign() bool { return h.as != nil }

// held: something holds the session's processes that their user does not have by himself.
func (t *tenant) held() bool { return t.dir != "" }

// Cwd is where one of the group's own children is, "" when that cannot be known.
func (g *Group) Cwd(pid int) string {
	if c := g.host.nursery.child(pid); c == nil || c.cell == nil || c.cell.group != g {
		return ""
	}
	return Cwd(pid)
}

// prlimit limits one of the session's processes. To change another user's process takes CAP_SYS_RESOURCE, which root in a
// container need not have; then a program as that user does it.
func (t *tenant) prlimit(pid, resource int, l unix.Rlimit) error {
	err := unix.Prlimit(pid, resource, &l, nil)
	if err != unix.EPERM || t.as == nil {
		return os.NewSyscallError("prlimit", err)
	}
	return beside(func() error { return t.limitByProgram(pid, resource, l) }) // this thread may be in another PID namespace
}

var limitProgram = sync.OnceValues(func() (int, error) { return openProgram("trl-limit", limitText()) })

func (t *tenant) limitByProgram(pid, resource int, l unix.Rlimit) error {
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
	err = Apart(func() (err error) {
		child, err = syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(program), []string{"trl-limit"}, &syscall.ProcAttr{
			Dir: "/", Files: []uintptr{r.Fd()}, Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: t.uid, Gid: t.gid}},
		})
		return err
	})
	if err != nil {
		return os.NewSyscallError("prlimit", err)
	}
	var ws unix.WaitStatus
	if _, err := retry(func() (int, error) { return unix.Wait4(child, &ws, 0, nil) }); err != nil {
		return os.NewSyscallError("wait4", err)
	}
	if ws != 0 { // an errno, or killed by somebody who has the session's user
		return os.NewSyscallError("prlimit", syscall.Errno(max(ws.ExitStatus(), 1)))
	}
	return nil
}

// hold makes this thread, and whatever it forks, subject to what holds the session. There is no way back.
func (t *tenant) hold() error {
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if t.as == nil { // else the kernel lets it send us no signal
		shieldFrom()
	}
	return t.fence.enter()
}

// noNewPrivileges makes this thread, and whatever it forks, stay without what sudo and its like would give.
func noNewPrivileges() error {
	return os.NewSyscallError("prctl no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
}
