package shell

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/host"
	"trl/runtime/procfs"
)

// changesAnswers matches texts that may legitimately change what a later `echo alive` does or prints (a function of that name,
// traces, traps, limits), or that may spell such a text (globs, quotes, expansions). No other text may change it.
var changesAnswers = regexp.MustCompile(`(?i)[?*\[\]\\'"$\x60{}^~#]|set|opt|trap|alias|\(\s*\)|function|func|enable|disable|emulate|limit|load|__trl|typeset|declare|integer|float|export|readonly|local|nameref`)

// harmful tells whether the fuzzer must not try the text. The fuzzer's PATH is empty, it has no rights (see unprivileged), and it
// works in its own directory. A slash would lead out of the directory, and kill could end the fuzzer itself.
func harmful(text []byte) bool {
	return bytes.IndexByte(text, 0) >= 0 || bytes.IndexByte(text, '/') >= 0 || bytes.Contains(text, []byte("kill"))
}

// unprivileged gives a worker of the fuzzer an unused user id, if it runs as root.
func unprivileged() error {
	if os.Getuid() != 0 || !slices.Contains(os.Args, "-test.fuzzworker") {
		return nil
	}
	id := 1<<20 + os.Getpid()
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(id, id, id); err != nil {
		return err
	}
	if err := syscall.Setresuid(id, id, id); err != nil {
		return err
	}
	// Otherwise our /proc directory would belong to root, and shells could not open our descriptors.
	return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
}

// FuzzCommandText: after a command with any text the session answers as before, and no process of the command is left. Each shell
// has one session for the whole run.
func FuzzCommandText(f *testing.F) {
	paths := shells(f)
	names := slices.Sorted(maps.Keys(paths))
	for i := range names {
		for _, text := range slices.Concat(oddTexts, oddStates, busyTexts) {
			f.Add(byte(i), []byte(strings.ReplaceAll(text, "/", "")))
		}
	}
	h := testHost(f, "auto")
	dir := f.TempDir()
	fz := &fuzzer{h: h, paths: paths, dir: dir, open: map[string]*Shell{}}
	f.Cleanup(func() {
		for _, s := range fz.open {
			err := s.Close(0)
			s.Forget()
			if err != nil {
				f.Error(err)
			}
		}
	})
	f.Fuzz(func(t *testing.T, which byte, text []byte) {
		if harmful(text) {
			t.Skip("not tried")
		}
		fz.try(t, names[int(which)%len(names)], string(text))
	})
}

type fuzzer struct {
	h     *host.Host
	paths map[string]string
	dir   string
	open  map[string]*Shell
	count int
	last  []string // the last texts, shown after a failure
}

func (fz *fuzzer) try(t *testing.T, name, text string) {
	s := fz.open[name]
	fz.count++
	if s == nil {
		id := fmt.Sprintf("s-fuzz%d", fz.count)
		var err error
		s, err = openShell(fz.h, ShellConfig{ID: id, Path: fz.paths[name], Dir: fz.dir, Restore: true, Env: fz.env(id)})
		if err != nil {
			t.Fatal(err)
		}
		fz.open[name] = s
	}
	defer func() {
		if t.Failed() { // the next try gets a fresh session; it may be the same text made smaller
			t.Logf("before that: %q", fz.last)
			delete(fz.open, name)
			_ = s.Close(0)
			s.Forget()
		}
		fz.last = append(fz.last, name+": "+text)
		fz.last = fz.last[max(0, len(fz.last)-8):]
	}()
	x := &session{s, t}
	tight := func(text string) result {
		fz.limit(t, s)
		c := NewCommand(text)
		c.Timeout, c.Grace = 300*time.Millisecond, 100*time.Millisecond
		r := x.wait(x.start(c))
		if r.Err != nil || r.KillFailed {
			t.Fatalf("%s: %q: %v", name, text, r.Outcome)
		}
		return r
	}

	r := tight(text)
	if r.Timeout != "" || len(r.Background) == 0 {
		m := s.group.Members()
		if changesAnswers.MatchString(text) { // traces and traps may run programs between commands
			testkit.Eventually(t, "what a trap started ends", func() bool { m = s.group.Members(); return len(m) <= 1 })
		}
		if slices.ContainsFunc(m, func(pid int) bool { return pid != s.Pid() }) { // m is empty if the shell is ending (`set -t`)
			t.Fatalf("%s: %q left %v, the shell is %d; %v", name, text, m, s.Pid(), r.Outcome)
		}
	}
	s.mu.Lock()
	left := slices.Clone(s.leftScopes)
	s.mu.Unlock()
	for _, c := range left { // jobs that the text may start
		if err := c.Kill(0); err != nil {
			t.Fatal(err)
		}
	}
	if b := s.Background(); len(b) > 0 {
		t.Fatalf("%s: %q: jobs %v survived KILL", name, text, b)
	}
	answer := fmt.Sprintf("alive-%d", fz.count)
	if changesAnswers.MatchString(text) {
		if r := tight("echo " + answer); r.out == answer+"\n" && r.err == "" && r.Timeout == "" && r.Code == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), generous)
		defer cancel()
		if err := s.Reset(ctx, fz.dir, fz.env(s.cfg.ID)); err != nil {
			t.Fatalf("%s: reset after %q: %v", name, text, err)
		}
	}
	fz.limit(t, s)
	if a := x.run("echo " + answer); a.out != answer+"\n" || a.err != "" || a.Err != nil || a.Code != 0 || a.Died {
		t.Fatalf("%s: after %q (%v; stderr %q): %q %q %v", name, text, r.Outcome, r.err, a.out, a.err, a.Outcome)
	}
}

func (fz *fuzzer) env(id string) []string {
	return []string{"PATH=" + fz.dir + "/nothing", "HOME=" + fz.dir, "LANG=C.UTF-8", "TERM=dumb", "TRL_SESSION_ID=" + id}
}

// limit sets limits for the shell's process: memory, file size, processes, and processor time beyond what it has used. So a loop ends
// also if the fuzzer is killed.
func (fz *fuzzer) limit(t *testing.T, s *Shell) {
	pid := s.Pid()
	text, err := os.ReadFile(procfs.Path(pid, "/stat"))
	if err != nil {
		return // the shell has just ended (`set -t`); the next call limits its successor
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.ParseUint(fields[11], 10, 64)
	system, _ := strconv.ParseUint(fields[12], 10, 64)
	const ticks = 100 // per second, on every Linux
	for resource, most := range map[int]uint64{
		unix.RLIMIT_CPU: (user+system)/ticks + 20, unix.RLIMIT_DATA: 256 << 20, unix.RLIMIT_FSIZE: 64 << 20, unix.RLIMIT_NPROC: 500, unix.RLIMIT_CORE: 0,
	} {
		var now unix.Rlimit
		err := unix.Prlimit(pid, resource, nil, &now)
		if err == nil {
			now.Cur = min(most, now.Max)
			err = unix.Prlimit(pid, resource, &now, nil)
		}
		if err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
	}
}
