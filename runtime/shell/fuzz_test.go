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

// changesAnswers: a text that has one of these may honestly change what a later `echo alive` does or prints (a function
// of that name, traces, traps, limits), or may spell it (globs, quotes, expansions). Everything else may not.
var changesAnswers = regexp.MustCompile(`(?i)[?*\[\]\\'"$\x60{}^~#]|set|opt|trap|alias|\(\s*\)|function|func|enable|disable|emulate|limit|load|__trl|typeset|declare|integer|float|export|readonly|local|nameref`)

// harmful is what the fuzzer does not try. There is nothing in PATH, it has no rights (see unprivileged) and works in a
// directory of its own; a slash would lead out of that, and kill could end the fuzzer itself.
func harmful(text []byte) bool {
	return bytes.IndexByte(text, 0) >= 0 || bytes.IndexByte(text, '/') >= 0 || bytes.Contains(text, []byte("kill"))
}

// unprivileged turns a worker of the fuzzer into a user that nobody else is, if it is root.
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
	// Else our /proc directory would be root's, and shells could not open what we hold.
	return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
}

// FuzzCommandText: whatever the text of a command is, the session answers afterwards as if nothing had been, and
// nothing of the command is left. One session for each shell lives through the whole run.
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
	last  []string // texts, to tell what led to a failure
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
		if t.Failed() { // the next try, which may be the same one made smaller, gets a fresh one
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
		if changesAnswers.MatchString(text) { // traces and traps may run programs of their own between commands
			testkit.Eventually(t, "what a trap started ends", func() bool { m = s.group.Members(); return len(m) <= 1 })
		}
		if slices.ContainsFunc(m, func(pid int) bool { return pid != s.Pid() }) { // none: the shell ends just now (`set -t`)
			t.Fatalf("%s: %q left %v, the shell is %d; %v", name, text, m, s.Pid(), r.Outcome)
		}
	}
	for _, c := range s.leftScopes { // honest jobs of its
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

// limit bounds what the shell's process may take: memory, disk, processes, and the processor time beyond what it has
// used, so that what loops ends also if the fuzzer is killed.
func (fz *fuzzer) limit(t *testing.T, s *Shell) {
	pid := s.Pid()
	text, err := os.ReadFile(procfs.Path(pid, "/stat"))
	if err != nil {
		return // it has just ended (`set -t`); the one that takes its place is told the next time
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.ParseUint(fields[11], 10, 64)
	system, _ := strconv.ParseUint(fields[12], 10, 64)
	const ticks = 100 // a second, on every Linux
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
