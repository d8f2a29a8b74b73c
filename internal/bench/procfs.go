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

// cpu is the processor time that a process has used. Clock ticks are a hundredth of a second on every Linux that Go runs on.
func cpu(pid int) time.Duration {
	f := statFields(pid)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	sys, _ := strconv.Atoi(f[12])
	return time.Duration(user+sys) * 10 * time.Millisecond
}

// statFields are the fields of /proc/PID/stat after the name: state, parent, …
func statFields(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// descendants are a process and all processes below it.
func descendants(root int) []int {
	entries, err := os.ReadDir("/proc")
	check(err)
	below := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := statFields(pid); len(f) > 1 {
			parent, _ := strconv.Atoi(f[1])
			below[parent] = append(below[parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		all = append(all, below[all[i]]...)
	}
	return all
}

// treeOf is the usage of a gateway, its keeper and all of its sessions.
func treeOf(root int) (u usage) {
	for _, pid := range descendants(root) {
		u.add(status(pid))
	}
	return u
}

// gatewayOf is the gateway below a keeper: the child that runs the same program. With --single-process both are one.
func gatewayOf(keeper int) int {
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", keeper))
	check(err)
	for _, pid := range descendants(keeper)[1:] {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == program {
			return pid
		}
	}
	return keeper
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
