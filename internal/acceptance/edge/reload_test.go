package edge

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// A confFile is a config file that is changed in all the ways in which such files change.
type confFile struct {
	t    testing.TB
	dir  string
	path string
	n    int // of the symbolic link's targets
}

func newConfFile(t testing.TB, text string) *confFile {
	t.Helper()
	dir := t.TempDir()
	f := &confFile{t: t, dir: dir, path: filepath.Join(dir, "trl.yaml")}
	f.swap(text)
	return f
}

func (f *confFile) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// write is what `cp` does.
func (f *confFile) write(text string) {
	f.t.Helper()
	f.check(os.WriteFile(f.path, []byte(text), 0o600))
}

// rename is what editors and `mv` do.
func (f *confFile) rename(text string) {
	f.t.Helper()
	f.check(os.WriteFile(f.path+"~", []byte(text), 0o600))
	f.check(os.Rename(f.path+"~", f.path))
}

// swap is what Kubernetes does with a ConfigMap: a new directory, a new ..data that leads there, the old directory removed.
func (f *confFile) swap(text string) {
	f.t.Helper()
	f.n++
	in := func(name string) string { return filepath.Join(f.dir, name) }
	version := fmt.Sprintf("..2026_%d", f.n)
	f.check(os.Mkdir(in(version), 0o700))
	f.check(os.WriteFile(filepath.Join(in(version), "trl.yaml"), []byte(text), 0o600))
	old, _ := os.Readlink(in("..data"))
	f.check(os.Symlink(version, in("..data_tmp")))
	f.check(os.Rename(in("..data_tmp"), in("..data")))
	if target, err := os.Readlink(f.path); err != nil || target != "..data/trl.yaml" { // another test's file stands there
		f.check(os.Symlink("..data/trl.yaml", f.path+"~"))
		f.check(os.Rename(f.path+"~", f.path))
	}
	if old != "" {
		f.check(os.RemoveAll(in(old)))
	}
}

// TestReloadUnderLoad: 50 busy sessions, and a config file that changes all the time, well and badly. Every good one is soon in force,
// no bad one ever is in any part, and no session, command, connection or byte is lost.
func TestReloadUnderLoad(t *testing.T) {
	const sessions, perClient = 50, 10
	rounds := rig.Pick(20, 100)
	good := func(n int) string {
		return fmt.Sprintf("max_sessions: %d\norigin: [\"http://%d.example\"]\nidle_timeout: %dm\nlog_level: %s\nwarm: %d\n", n, n, 60+n, []string{"info", "debug"}[n%2], n%3)
	}
	conf := newConfFile(t, good(500))
	g := rig.Gateway(t, "--config", conf.path)
	asker := g.Dial(t)

	stop := filepath.Join(g.Home, "stop")
	type busy struct {
		c          *rig.Client
		id, stream string
		pid        int
	}
	all := make([]busy, sessions)
	for i := range all {
		b := &all[i]
		if i%perClient == 0 {
			b.c = g.Dial(t)
		} else {
			b.c = all[i-1].c
		}
		b.id = b.c.Session(object{"shell": rig.Shells[i%2]})
		b.c.Run(b.id, fmt.Sprintf("kept=%d", i))
		b.pid = b.c.Info(b.id).Num("pid")
		b.stream = b.c.Stream(b.id, fmt.Sprintf("n=0; until [ -e %s ]; do n=$((n+1)); echo $n; sleep 0.5; done", stop)).Str("stream_id")
	}
	count := func(result string) int {
		return int(g.Metric(t, "trl_config_reloads_total", `result="`+result+`"`))
	}
	configured := func() int { return asker.Call("system.stats", nil).Num("max_sessions") }
	admits := func(origin string) bool {
		q, err := http.NewRequest("GET", "http://"+g.Addr+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Origin", origin)
		resp, err := (&http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	testkit.Eventually(t, "the first config counts", func() bool { return configured() == 500 })
	connections := g.Front().Metric(t, "trl_connections")
	pid := g.Serving(t)

	// What a reload takes at least: the wait for the file to be left alone, and a look at what is in force. Measured among the same load, before each reload.
	var floors, took []time.Duration

	now, goods, bads := 500, 0, 0
	expect := func(what string, change func()) {
		t.Helper()
		goods++
		now++
		floor := time.Now()
		time.Sleep(100 * time.Millisecond)
		configured()
		floors = append(floors, time.Since(floor))
		change()
		start := time.Now()
		testkit.Eventually(t, what+" in force", func() bool { return configured() == now })
		took = append(took, time.Since(start))
	}
	refused := func(what string, change func()) {
		t.Helper()
		bads++
		before := count("refused")
		change()
		testkit.Eventually(t, what+" refused", func() bool { return count("refused") > before })
		if n := configured(); n != now {
			t.Errorf("%s: max_sessions %d is in force, not %d", what, n, now)
		}
		if g.Metric(t, "trl_config_last_reload_success") != 0 {
			t.Errorf("%s: trl_config_last_reload_success is not 0", what)
		}
	}
	// 9999 and evil.example must never be in force. The last part of each is what is wrong.
	wrong := "max_sessions: 9999\norigin: [\"http://evil.example\"]\n"
	worse := []string{"max_session: 1\n", "retention: soon\n", "warm: [1\n", "limit_pids: -1\n", "allow_write: [x]\n", "tls_cert: /no/such\ntls_key: /no/such\nretention: -1s\n"}
	for i := range rounds {
		next := good(now + 1)
		switch i % 5 {
		case 0:
			expect("a written file", func() { conf.write(next) })
		case 1:
			expect("a renamed file", func() { conf.rename(next) })
		case 2:
			expect("a swapped link", func() { conf.swap(next) })
		case 3:
			half := next + "shells: [sh, "
			refused("half a file", func() { conf.write(half) })
			expect("the whole of it", func() { conf.write(half + "bash]\n") })
		case 4:
			bad := fmt.Sprintf("# %d\n%s%s", i, wrong, worse[i/5%len(worse)])
			refused("a bad file", func() { []func(string){conf.write, conf.rename, conf.swap}[i/5%3](bad) })
		}
	}
	refused("no file", func() { conf.check(os.Remove(conf.path)) })
	expect("a file where there was none", func() { conf.rename(good(now)) })

	if ok, no := count("ok"), count("refused"); ok != goods || no < bads { // a write may be seen before it is over: another refusal
		t.Errorf("%d reloads counted, %d refused; there were %d and %d", ok, no, goods, bads)
	}
	if n := g.Metric(t, "trl_config_last_reload_success"); n != 1 {
		t.Errorf("trl_config_last_reload_success %v", n)
	}
	if !admits(fmt.Sprintf("http://%d.example", now)) || admits("http://500.example") || admits("http://evil.example") {
		t.Error("origins are not those of the last good file")
	}
	// Bounds below what there is end nothing, and refuse what comes.
	conf.rename("max_sessions: 10\n")
	testkit.Eventually(t, "ten", func() bool { return configured() == 10 })
	if f := asker.Try("session.create", nil); f.Code() != "MAX_SESSIONS_REACHED" {
		t.Errorf("beyond the bound: %+v", f)
	}
	conf.rename("max_sessions: 400\nidle_timeout: 7m\n")
	testkit.Eventually(t, "room again", func() bool { return configured() == 400 })
	asker.Call("session.destroy", object{"session_id": asker.Session(), "force": true})
	if n := int(asker.Call("system.capabilities", nil).Obj("limits").Num("idle_timeout_s")); n != 420 {
		t.Errorf("idle_timeout_s %d", n)
	}

	slices.Sort(took)
	slices.Sort(floors)
	median, floor := took[len(took)/2], floors[len(floors)/2]
	t.Logf("%d good files in force after %s (median, %s to %s; at least %s), %d refused", goods, median.Round(time.Millisecond), took[0].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), floor.Round(time.Millisecond), bads)
	if median > 10*floor {
		t.Errorf("a good file is in force after %s, the floor here is %s", median, floor)
	}

	conf.check(os.WriteFile(stop, nil, 0o666))
	for i := range all {
		b := &all[i]
		out, exit := b.c.Output(b.stream, 0)
		lines := strings.Fields(out)
		for j, line := range lines {
			if line != fmt.Sprint(j+1) {
				t.Fatalf("session %d: line %d is %q", i, j+1, line)
			}
		}
		if len(lines) == 0 || exit.Num("exit_code") != 0 {
			t.Errorf("session %d: %d lines, %v", i, len(lines), exit)
		}
		if info := b.c.Info(b.id); info.Num("pid") != b.pid || info.Str("state") != "IDLE" {
			t.Errorf("session %d: %v, its shell was %d", i, info, b.pid)
		}
		if r := b.c.Run(b.id, "echo $kept"); r.Stdout() != fmt.Sprintf("%d\n", i) {
			t.Errorf("session %d: %v", i, r)
		}
	}
	if now := g.Front().Metric(t, "trl_connections"); now != connections || g.Serving(t) != pid {
		t.Errorf("%v connections, were %v; gateway %d, was %d", now, connections, g.Serving(t), pid)
	}
}

// TestReloadsLeaveNothing: descriptors are at their baseline however often files come and go.
func TestReloadsLeaveNothing(t *testing.T) {
	conf := newConfFile(t, "max_sessions: 100\n")
	g := rig.Gateway(t, "--config", conf.path, "--warm", "0")
	c := g.Dial(t)
	configured := func(n int) func() bool {
		return func() bool { return c.Call("system.stats", nil).Num("max_sessions") == n }
	}
	testkit.Eventually(t, "the first config counts", configured(100))
	before := g.Fds(t)
	for i := range rig.Pick(5, 50) {
		for j, change := range []func(string){conf.swap, conf.rename, conf.write} {
			n := 101 + 3*i + j
			change(fmt.Sprintf("max_sessions: %d\n", n))
			testkit.Eventually(t, "it is in force", configured(n))
		}
	}
	testkit.Eventually(t, "as many descriptors as before", func() bool { return g.Fds(t) <= before })
}
