package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"trl/protocol"
)

// usage is what processes use of the machine.
type usage struct {
	processes   int
	pss, rss    float64 // bytes
	descriptors int
	cpu         time.Duration // used so far
}

func (u *usage) add(o usage) {
	u.processes += o.processes
	u.pss += o.pss
	u.rss += o.rss
	u.descriptors += o.descriptors
	u.cpu += o.cpu
}

// status measures one process; the result is zero if the process is gone.
func status(pid int) (u usage) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	rollup, err := os.ReadFile(dir + "smaps_rollup")
	if err != nil {
		return u
	}
	u.processes = 1
	for line := range bytes.Lines(rollup) {
		f := bytes.Fields(line)
		if len(f) != 3 {
			continue
		}
		kib, _ := strconv.ParseFloat(string(f[1]), 64)
		switch string(f[0]) {
		case "Pss:":
			u.pss = kib * 1024
		case "Rss:":
			u.rss = kib * 1024
		}
	}
	fds, _ := os.ReadDir(dir + "fd")
	u.descriptors = len(fds)
	u.cpu = cpu(pid)
	return u
}

// tick is the unit of processor time in /proc, on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpu is the processor time that a process has used.
func cpu(pid int) time.Duration { return ticks(statFields(pid), 11, 12) }

// ticks adds up fields of /proc/PID/stat; it is 0 for a process that is gone.
func ticks(f []string, fields ...int) (sum time.Duration) {
	for _, i := range fields {
		if i < len(f) {
			n, _ := strconv.Atoi(f[i])
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// statFields are the fields of /proc/PID/stat after the name: state, parent, …
func statFields(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// processes are all processes of this machine at one moment.
type processes struct {
	children map[int][]int
	used     map[int]time.Duration // with that of the children that it has waited for
}

func processTable() processes {
	entries, err := os.ReadDir("/proc")
	check(err)
	t := processes{map[int][]int{}, map[int]time.Duration{}}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := statFields(pid); len(f) > 1 {
			parent, _ := strconv.Atoi(f[1])
			t.children[parent] = append(t.children[parent], pid)
			t.used[pid] = ticks(f, 11, 12, 13, 14)
		}
	}
	return t
}

// below are processes and all below them, each once.
func (t processes) below(roots ...int) (all []int) {
	seen := map[int]bool{}
	add := func(pids []int) {
		for _, pid := range pids {
			if !seen[pid] {
				seen[pid] = true
				all = append(all, pid)
			}
		}
	}
	add(roots)
	for i := 0; i < len(all); i++ {
		add(t.children[all[i]])
	}
	return all
}

// cpu is the processor time that processes, all below them and those that these have waited for have used.
func (t processes) cpu(roots []int) (sum time.Duration) {
	for _, pid := range t.below(roots...) {
		sum += t.used[pid]
	}
	return sum
}

// usage is that of processes and all below them.
func (t processes) usage(roots []int) (u usage) {
	for _, pid := range t.below(roots...) {
		u.add(status(pid))
	}
	return u
}

// descendants are a process and all processes below it.
func descendants(root int) []int { return processTable().below(root) }

// treeOf is the usage of a gateway, its keeper and all of its sessions.
func treeOf(root int) usage { return processTable().usage([]int{root}) }

// gatewayOf is the gateway below a keeper: the child that runs the same program. With --single-process both are one.
func gatewayOf(keeper int) int {
	own := program(keeper)
	if own == "" {
		panic(fmt.Sprintf("the keeper, process %d, is gone", keeper))
	}
	for _, pid := range descendants(keeper)[1:] {
		if program(pid) == own {
			return pid
		}
	}
	return keeper
}

// peakOf is the sum of the most that processes have had in memory, and of those below them that run the same programs.
func peakOf(roots []int) (sum float64) {
	programs := map[string]bool{}
	for _, pid := range roots {
		programs[program(pid)] = true
	}
	for _, pid := range processTable().below(roots...) {
		if !programs[program(pid)] {
			continue
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, rest, _ := strings.Cut(string(text), "VmHWM:")
		if f := strings.Fields(rest); len(f) > 0 {
			kib, _ := strconv.ParseFloat(f[0], 64)
			sum += kib * 1024
		}
	}
	return sum
}

// program is the file that a process runs; "" if it is gone.
func program(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return path
}

// machineTime is the processor time that this machine's processors have been busy.
func machineTime() time.Duration {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	return ticks(strings.Fields(line), 1, 2, 3, 6, 7) // not idle, not waiting, not taken by the host
}

// listeners are the processes that hold the listening sockets of a TCP port, in this network namespace.
func listeners(port int) (pids []int, err error) {
	sockets := map[string]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a kernel without IPv6
		}
		for line := range strings.Lines(string(text)) {
			const local, state, inode = 1, 3, 9
			f := strings.Fields(line)
			if len(f) > inode && f[state] == "0A" && strings.HasSuffix(f[local], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+f[inode]+"]"] = true
			}
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := "/proc/" + e.Name() + "/fd/"
		files, _ := os.ReadDir(dir) // another user's are not shown to us
		if slices.ContainsFunc(files, func(f fs.DirEntry) bool {
			file, _ := os.Readlink(dir + f.Name())
			return sockets[file]
		}) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("no process that we may look at listens on port %d", port)
	}
	return pids, nil
}

// cgroup is a cgroup of our own, for floors.
type cgroup struct {
	path string
	dir  *os.File
}

// newCgroup makes a cgroup below our own. Without the right to do so there is no such floor.
func newCgroup() (*cgroup, error) {
	own, mount, err := cgroupHere()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(mount, own, fmt.Sprintf("trl-bench-%d", os.Getpid()))
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &cgroup{path, dir}, nil
}

func cgroupHere() (own, mount string, err error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", "", err
	}
	_, own, ok := strings.Cut("\n"+string(self), "\n0::")
	own, _, _ = strings.Cut(own, "\n")
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || !ok {
		return "", "", errors.Join(errors.New("no cgroup v2"), err)
	}
	for line := range strings.Lines(string(info)) {
		f := strings.Fields(line)
		if i := slices.Index(f, "-"); i > 4 && f[i+1] == "cgroup2" {
			return own, f[4], nil
		}
	}
	return "", "", errors.New("no cgroup v2")
}

func (g *cgroup) attr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.dir.Fd())}
}

// kill kills the cgroup and returns when it is empty.
func (g *cgroup) kill() error {
	if err := os.WriteFile(filepath.Join(g.path, "cgroup.kill"), []byte("1"), 0); err != nil {
		return err
	}
	for {
		events, err := os.ReadFile(filepath.Join(g.path, "cgroup.events"))
		if err != nil || bytes.Contains(events, []byte("populated 0")) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func (g *cgroup) remove() {
	g.dir.Close()
	for range 1000 { // it is busy for a moment after its last process
		if err := os.Remove(g.path); !errors.Is(err, unix.EBUSY) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// entries counts the entries below a directory: directories only, or all.
func entries(dir string, dirs bool) (n int) {
	if dir == "" {
		return 0
	}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { // entries that disappear meanwhile are not counted
		if err == nil && (!dirs || d.IsDir()) {
			n++
		}
		return nil
	})
	return n
}

// cgroupsOf is the directory of a gateway's cgroups; "" in a tier without cgroups.
func cgroupsOf(c *websocket.Conn) string {
	var caps protocol.Capabilities
	ask(c, "system.capabilities", nil, &caps)
	for _, t := range caps.Isolation.Tiers {
		if dir, ok := strings.CutPrefix(t.Why, "cgroup v2 at "); ok && t.InForce {
			return dir
		}
	}
	return ""
}

// metric is a number from the gateway's /metrics.
func metric(gw *child, name string) float64 {
	r, err := http.Get(strings.Replace(gw.addr, "ws", "http", 1) + "/metrics")
	check(err)
	defer r.Body.Close()
	for line := range bytes.Lines(must(io.ReadAll(r.Body))) {
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			return must(strconv.ParseFloat(string(bytes.TrimSpace(value)), 64))
		}
	}
	panic("no metric " + name)
}
