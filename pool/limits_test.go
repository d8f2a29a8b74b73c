package pool

import (
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
)

// enforceable skips the test where a limit that it needs cannot be enforced.
func (r *rig) enforceable(limits ...string) {
	r.t.Helper()
	for _, limit := range limits {
		if why := r.host.Unenforceable()[limit]; why != "" {
			r.t.Skipf("%s cannot be enforced here: %s", limit, why)
		}
	}
}

// TestLimitsAreNeverAboveTheServers: absent is the server's, lower is taken, higher becomes the server's; and the
// session says which.
func TestLimitsAreNeverAboveTheServers(t *testing.T) {
	server := protocol.Limits{OpenFiles: 200, FileSizeBytes: 8 << 20}
	for _, warm := range []int{0, 2} {
		r := newRig(t, Config{Limits: server, WarmShells: warm})
		r.enforceable("open_files", "file_size_bytes")
		if warm > 0 {
			testkit.Eventually(t, "shells are warm", func() bool { return r.Stats().WarmShells == warm })
		}
		for _, c := range []struct {
			asked *protocol.Limits
			got   protocol.Limits
			open  string
		}{
			{nil, server, "200"},
			{&protocol.Limits{}, server, "200"},
			{&protocol.Limits{OpenFiles: 100}, protocol.Limits{OpenFiles: 100, FileSizeBytes: 8 << 20}, "100"},
			{&protocol.Limits{OpenFiles: 10000, FileSizeBytes: 2 << 20}, protocol.Limits{OpenFiles: 200, FileSizeBytes: 2 << 20}, "200"},
		} {
			s := r.create(protocol.SessionCreate{Limits: c.asked})
			if data := s.Summary(); data.Limits != c.got {
				t.Errorf("asked %+v, got %+v", c.asked, data.Limits)
			}
			want(t, s, "ulimit -n; ulimit -Hn; ulimit -c", c.open+"\n"+c.open+"\n0\n")
			if err := s.Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
			want(t, s, "ulimit -n", c.open+"\n")
			run(t, s, protocol.Exec{Command: "exit 1"})
			want(t, s, "ulimit -n", c.open+"\n")
			p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "ulimit -n | grep -x " + c.open})
			if err != nil {
				t.Fatal(err)
			}
			wait(t, "process", p.Done())
			if i := p.Info(); *i.ExitCode != 0 || i.Usage == nil || i.Usage.MaxRSSBytes == 0 {
				t.Errorf("%+v", i)
			}
			if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLimitsThatCannotBeEnforcedAreNotSupported(t *testing.T) {
	r := newRig(t, Config{})
	if len(r.host.Unenforceable()) == 0 {
		r = newRigIn(t, Config{}, "none") // which takes the cgroups away
	}
	for limit := range r.host.Unenforceable() {
		q := map[string]protocol.Limits{
			"memory_bytes": {MemoryBytes: 1 << 30}, "pids": {Pids: 50}, "cpu": {CPU: 1},
			"file_size_bytes": {FileSizeBytes: 1 << 30}, "open_files": {OpenFiles: 100},
		}[limit]
		_, err := r.Create(t.Context(), me, &protocol.SessionCreate{Limits: &q})
		e := testkit.WantCode(t, err, protocol.NotSupported)
		if e.Details["field"] != "limits."+limit || e.Details["reason"] == "" {
			t.Errorf("%+v", e)
		}
	}
}

// TestResultsSayWhichLimitWasHit, in a session that got a warm shell, and it goes on.
func TestResultsSayWhichLimitWasHit(t *testing.T) {
	r := newRig(t, Config{WarmShells: 1, DefaultShell: "/bin/bash"})
	r.enforceable("memory_bytes", "pids", "file_size_bytes", "cpu")
	testkit.Eventually(t, "a shell is warm", func() bool { return r.Stats().WarmShells == 1 })
	s := r.create(protocol.SessionCreate{Limits: &protocol.Limits{MemoryBytes: 64 << 20, Pids: 30, FileSizeBytes: 1 << 20, CPU: 2}})
	free := r.create(protocol.SessionCreate{})
	const hog = "x=0123456789abcdef; while [ ${#x} -lt 500000000 ]; do x=$x$x; done"
	e := run(t, s, protocol.Exec{Command: "bash -c '" + hog + "'; echo $?", Timeout: of(protocol.Seconds(60))})
	if !e.OOMKilled || e.LimitHit != "memory_bytes" || e.Stdout != "137\n" || e.ShellRestored {
		t.Errorf("%+v", e)
	}
	if u := e.Usage; u == nil || u.CPUMS <= 0 || u.MemoryPeakBytes < 32<<20 || u.MemoryPeakBytes > 65<<20 {
		t.Errorf("%+v", u)
	}
	e = run(t, s, protocol.Exec{Command: hog, Timeout: of(protocol.Seconds(60))}) // the shell itself
	if !e.OOMKilled || e.LimitHit != "memory_bytes" || *e.ExitCode != 137 || !e.ShellRestored {
		t.Errorf("%+v", e)
	}
	f := t.TempDir() + "/f"
	e = run(t, s, protocol.Exec{Command: "head -c 2000000 /dev/zero >" + f})
	if e.OOMKilled || e.LimitHit != "file_size_bytes" || *e.ExitCode != 153 || e.Signal != "XFSZ" {
		t.Errorf("%+v", e)
	}
	// 60 at most, should the limit not hold.
	e = protocol.ExecResult{}
	for limit := protocol.Seconds(3); e.LimitHit == "" && limit < 30; limit *= 3 { // a busy machine may not get there in so short a time
		e = run(t, s, protocol.Exec{Command: "for i in {1..60}; do sleep 20 & done 2>/dev/null; wait", Timeout: &limit, KillGrace: of(protocol.Seconds(0.1))})
	}
	if e.OOMKilled || e.LimitHit != "pids" {
		t.Errorf("%+v", e)
	}
	e = want(t, s, "sleep 0.01; echo on", "on\n")
	if e.OOMKilled || e.LimitHit != "" || e.Usage == nil {
		t.Errorf("%+v", e)
	}
	e = want(t, free, "bash -c '"+strings.Replace(hog, "500000000", "100000000", 1)+"; echo ${#x}'", "134217728\n")
	if e.OOMKilled || e.LimitHit != "" || e.Usage == nil || e.Usage.MemoryPeakBytes != 0 {
		t.Errorf("%+v", e)
	}
}

// TestProcessesBeyondTheLimitAreRefused: process.start is no way around it.
func TestProcessesBeyondTheLimitAreRefused(t *testing.T) {
	r := newRig(t, Config{})
	r.enforceable("pids")
	s := r.create(protocol.SessionCreate{Limits: &protocol.Limits{Pids: 4}})
	started := 0
	for range 8 {
		_, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "exec sleep 60"})
		if err == nil {
			started++
			continue
		}
		testkit.WantCode(t, err, protocol.LimitExceeded)
	}
	if started > 3 || started < 1 { // each is one process, or two of a POSIX shell's copy
		t.Errorf("%d started", started)
	}
}
