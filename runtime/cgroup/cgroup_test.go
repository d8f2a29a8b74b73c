package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/protocol"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestFindCgroup(t *testing.T) {
	const (
		hybrid  = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:3 - cgroup2 cgroup2 rw\n"
		unified = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
		bound   = "30 23 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
		blank   = `30 23 0:26 / /mnt/a\040b\134c rw - cgroup2 cgroup2 rw` + "\n"
		v1      = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	)
	for _, c := range []struct{ mounts, self, dir, path string }{
		{hybrid, "9:pids:/x\n0::/\n", "/sys/fs/cgroup/unified", "/"},
		{hybrid, "0::/system.slice/trl.service\n", "/sys/fs/cgroup/unified/system.slice/trl.service", "/system.slice/trl.service"},
		{unified, "0::/user.slice\n", "/sys/fs/cgroup/user.slice", "/user.slice"},
		{bound, "0::/docker/ab/c\n", "/sys/fs/cgroup/c", "/docker/ab/c"},
		{bound, "0::/docker/abc\n", "", ""},
		{bound + unified, "0::/docker/abc\n", "/sys/fs/cgroup/docker/abc", "/docker/abc"},
		{unified, "0::/../../x\n", "", ""},
		{blank, "0::/x\n", `/mnt/a b\c/x`, "/x"},
		{v1, "9:cpu:/\n", "", ""},
		{v1, "9:cpu:/\n0::/\n", "", ""},
	} {
		dir, path, err := Find(c.mounts, c.self)
		if c.dir == "" {
			if err == nil {
				t.Errorf("%q %q: %s", c.mounts, c.self, dir)
			}
		} else if dir != c.dir || path != c.path || err != nil {
			t.Errorf("%q %q: %q %q %v", c.mounts, c.self, dir, path, err)
		}
	}
}

func TestFindController(t *testing.T) {
	const (
		hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n" +
			"39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n" +
			"41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
		joint  = "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:15 - cgroup cgroup rw,cpu,cpuacct\n"
		docker = "745 744 0:32 /docker/f00 /sys/fs/cgroup/memory ro,nosuid master:11 - cgroup cgroup rw,memory\n"
		v2     = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
	)
	for _, c := range []struct{ mounts, self, controller, dir, path string }{
		{hybrid, "8:pids:/\n4:memory:/a/b\n1:cpu:/\n0::/\n", "memory", "/sys/fs/cgroup/memory/a/b", "/a/b"},
		{hybrid, "8:pids:/\n4:memory:/a/b\n1:cpu:/\n0::/\n", "pids", "/sys/fs/cgroup/pids", "/"},
		{hybrid, "9:name=pids:/x\n0::/\n", "pids", "", ""},
		{hybrid, "8:pids:/../x\n", "pids", "", ""},
		{joint, "3:cpu,cpuacct:/user.slice\n", "cpu", "/sys/fs/cgroup/cpu,cpuacct/user.slice", "/user.slice"},
		{joint, "3:cpuacct,cpu:/user:slice\n", "cpu", "/sys/fs/cgroup/cpu,cpuacct/user:slice", "/user:slice"},
		{docker, "4:memory:/docker/f00\n", "memory", "/sys/fs/cgroup/memory", "/docker/f00"},
		{docker, "4:memory:/docker/f00d\n", "memory", "", ""},
		{v2, "0::/x\n", "memory", "", ""},
		{"", "4:memory:/\n", "memory", "", ""},
	} {
		dir, path, err := FindController(c.mounts, c.self, c.controller)
		if c.dir == "" {
			if err == nil {
				t.Errorf("%q %q: %s", c.mounts, c.self, dir)
			}
		} else if dir != c.dir || path != c.path || err != nil {
			t.Errorf("%q %q: %q %q %v", c.mounts, c.self, dir, path, err)
		}
	}
}

// TestLimitFiles: what is written to the kernel.
func TestLimitFiles(t *testing.T) {
	l := protocol.Limits{MemoryBytes: 64 << 20, Pids: 7, CPU: 1.5}
	for _, c := range []struct {
		files      func(string, protocol.Limits) []LimitFile
		controller string
		want       string
	}{
		{V1Files, "memory", "memory.limit_in_bytes=67108864 memory.memsw.limit_in_bytes=67108864"},
		{V1Files, "pids", "pids.max=7"},
		{V1Files, "cpu", "cpu.cfs_period_us=100000 cpu.cfs_quota_us=150000"},
		{V2Files, "memory", "memory.max=67108864 memory.swap.max=0"},
		{V2Files, "pids", "pids.max=7"},
		{V2Files, "cpu", "cpu.max=150000 100000"},
	} {
		var got []string
		dir := t.TempDir()
		for _, f := range c.files(c.controller, l) {
			got = append(got, f.Name+"="+f.Text)
			if !f.Optional {
				_ = os.WriteFile(filepath.Join(dir, f.Name), nil, 0o644)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", c.controller, s, c.want)
		}
		if err := WriteFiles(dir, c.files(c.controller, l)); err != nil {
			t.Errorf("%s without what is optional: %v", c.controller, err)
		}
	}
	if q := CFSQuota(0.001); q != "1000" {
		t.Errorf("the kernel takes no quota of %s", q)
	}
}

// tree makes directories below a temporary one, in place of cgroups, with files of the kernel in them.
func tree(t *testing.T, files map[string]string) (top string) {
	t.Helper()
	top = t.TempDir()
	for name, text := range files {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func TestPidsOfATree(t *testing.T) {
	top := tree(t, map[string]string{"cgroup.procs": "1\n23\n", "a/cgroup.procs": "", "a/b/cgroup.procs": "4\n", "c/other": ""})
	pids := PidsBelow(top)
	if slices.Sort(pids); !slices.Equal(pids, []int{1, 4, 23}) {
		t.Errorf("pids %v", pids)
	}
	if pids := PidsBelow(filepath.Join(top, "none")); len(pids) != 0 {
		t.Errorf("pids of a directory that does not exist: %v", pids)
	}
	below := Subdirs(top)
	if slices.Sort(below); !slices.Equal(below, []string{filepath.Join(top, "a"), filepath.Join(top, "c")}) {
		t.Errorf("subdirectories %v", below)
	}
}

func TestListsOnly(t *testing.T) {
	for text, want := range map[string]bool{"": true, "7\n": true, "7\n7\n": true, "7\n8\n": false, "77\n": false} {
		if got := ListsOnly([]byte(text), 7); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestPopulated(t *testing.T) {
	top := tree(t, map[string]string{"full/cgroup.events": "populated 1\nfrozen 0\n", "empty/cgroup.events": "populated 0\nfrozen 0\n"})
	for name, want := range map[string][2]bool{"full": {true, true}, "empty": {false, true}, "none": {false, true}} {
		if there, known := Populated(filepath.Join(top, name)); there != want[0] || known != want[1] {
			t.Errorf("%s: %v, known: %v", name, there, known)
		}
	}
}

// TestRemoveTree: what has something in it stays, and what is gone is removed.
func TestRemoveTree(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "group")
	for range 2 {
		if err := RemoveTree(dir); err != nil {
			t.Errorf("a directory that does not exist: %v", err)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := RemoveTree(dir); err != nil {
			t.Errorf("an empty directory: %v", err)
		}
	}
	full := tree(t, map[string]string{"cgroup.procs": "1\n"})
	if err := RemoveTree(full); err == nil || !strings.Contains(err.Error(), full) {
		t.Errorf("a directory that is not empty: %v", err)
	}
}

// TestWriteFile: files of the kernel exist already, and only what is optional may be missing.
func TestWriteFile(t *testing.T) {
	top := tree(t, map[string]string{"memory.max": ""})
	if err := WriteFile(top, "memory.max", "5"); err != nil {
		t.Error(err)
	}
	if words := ReadWords(top, "memory.max"); !slices.Equal(words, []string{"5"}) {
		t.Errorf("words %q", words)
	}
	if err := WriteFile(top, "pids.max", "5"); !os.IsNotExist(err) {
		t.Errorf("a file that does not exist: %v", err)
	}
	if err := WriteFiles(top, []LimitFile{{Name: "pids.max", Text: "5", Optional: true}, {Name: "cpu.max", Text: "5"}}); !os.IsNotExist(err) {
		t.Errorf("a limit that cannot be set: %v", err)
	}
	if words := ReadWords(top, "pids.max"); len(words) != 0 {
		t.Errorf("words of a file that does not exist: %q", words)
	}
}

func TestControllersAreEnabledOnce(t *testing.T) {
	top := tree(t, map[string]string{"cgroup.subtree_control": "cpu memory\n"})
	for _, controller := range []string{"memory", "pids"} {
		if err := enableController(top, controller); err != nil {
			t.Error(err)
		}
	}
	if text, _ := os.ReadFile(filepath.Join(top, "cgroup.subtree_control")); !strings.HasPrefix(string(text), "+pids") { // the kernel would add it
		t.Errorf("written: %q", text)
	}
}

// TestLockDir: a directory has one owner, which keeps it as long as the descriptor is open.
func TestLockDir(t *testing.T) {
	dir := t.TempDir()
	fd, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockDir(dir); err == nil {
		t.Error("locked twice")
	}
	unix.Close(fd)
	if fd, err = LockDir(dir); err != nil {
		t.Errorf("the lock is not free again: %v", err)
	}
	unix.Close(fd)
	if _, err := LockDir(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("a directory that does not exist: %v", err)
	}
}

// TestOnlyLeftoversAreRemoved: that is, directories with a name that OpenRoot gives and a lock that nobody has.
func TestOnlyLeftoversAreRemoved(t *testing.T) {
	top := tree(t, map[string]string{"trl-1-0123abcd/cgroup.procs": "", "trl-2-0123abcd/cgroup.procs": "", "trl-workers.slice/x": "", "trl-1-0123abcd.self/x": "", "trl-x-0123abcd/x": ""})
	living, err := LockDir(filepath.Join(top, "trl-2-0123abcd"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(living)
	var ended []string
	RemoveLeftovers(top, func(dir string) error { ended = append(ended, filepath.Base(dir)); return nil }, zerolog.Nop())
	if !slices.Equal(ended, []string{"trl-1-0123abcd"}) {
		t.Errorf("ended %v", ended)
	}
	if !LeafName.MatchString("trl-1-0123abcd.self") || LeafName.MatchString("trl-1-0123abcd") {
		t.Errorf("%v", LeafName)
	}
}

// TestProcessIsInItsCgroup asks the kernel about this process.
func TestProcessIsInItsCgroup(t *testing.T) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	path, ok := cgroupPath(string(text))
	if !ok {
		t.Skip("no cgroup v2")
	}
	if !Contains(os.Getpid(), path) || path != "/" && !Contains(os.Getpid(), "") || Contains(os.Getpid(), "/"+strconv.Itoa(os.Getpid())+"-none") {
		t.Errorf("not in %s", path)
	}
}
