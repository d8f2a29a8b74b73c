package web

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"trl/internal/testkit"
	"trl/protocol"
)

// follower notes what a file said whenever it was read.
type follower struct {
	path string
	mu   sync.Mutex
	last string // guarded by mu
}

func noted(t *testing.T, path string) *follower {
	t.Helper()
	f := &follower{path: path}
	w, err := Follow(zerolog.Nop(), func() error {
		text, err := os.ReadFile(path)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.last = string(text)
		return err
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return f
}

func (f *follower) sees(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, "the file says "+text, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.last == text
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreFollowedHoweverTheyChange(t *testing.T) {
	t.Run("written and renamed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f")
		write(t, path, "0")
		f := noted(t, path)
		write(t, path, "1")
		f.sees(t, "1")
		for _, text := range []string{"2", "3"} { // twice: a watch on the file itself would see the first
			write(t, path+".new", text)
			must(t, os.Rename(path+".new", path))
			f.sees(t, text)
		}
		must(t, os.Remove(path))
		f.sees(t, "")
		write(t, path, "4")
		f.sees(t, "4")
	})
	t.Run("in a directory that goes and comes", func(t *testing.T) {
		above := filepath.Join(t.TempDir(), "a")
		path := filepath.Join(above, "b", "f")
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		write(t, path, "0")
		f := noted(t, path)
		for _, text := range []string{"1", "2"} {
			write(t, path, text)
			f.sees(t, text)
			must(t, os.RemoveAll(above))
			f.sees(t, "")
			must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		}
		write(t, path, "3")
		f.sees(t, "3")
	})
	t.Run("as Kubernetes mounts it", func(t *testing.T) {
		dir := t.TempDir()
		swap := func(n int, text string) { // as its AtomicWriter does
			version := fmt.Sprintf("..2026_%d", n)
			must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
			write(t, filepath.Join(dir, version, "f"), text)
			old, _ := os.Readlink(filepath.Join(dir, "..data"))
			must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
			must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
			if old != "" {
				must(t, os.RemoveAll(filepath.Join(dir, old)))
			}
		}
		swap(0, "0")
		path := filepath.Join(dir, "f")
		must(t, os.Symlink("..data/f", path))
		f := noted(t, path)
		for n := 1; n < 4; n++ {
			text := fmt.Sprint(n)
			swap(n, text)
			f.sees(t, text)
		}
	})
	t.Run("behind a link into another directory", func(t *testing.T) {
		dir, other := t.TempDir(), t.TempDir()
		path, a, b := filepath.Join(dir, "f"), filepath.Join(other, "a"), filepath.Join(t.TempDir(), "b")
		write(t, a, "0")
		write(t, b, "2")
		must(t, os.Symlink(a, path))
		f := noted(t, path)
		write(t, a, "1")
		f.sees(t, "1")
		must(t, os.Symlink(b, path+".new"))
		must(t, os.Rename(path+".new", path))
		f.sees(t, "2")
		write(t, b, "3")
		f.sees(t, "3")
	})
}

// TestRestlessFilesAreReadAllTheSame: somebody who never stops writing puts a reload off, but not for ever.
func TestRestlessFilesAreReadAllTheSame(t *testing.T) {
	begun := time.Now()
	for _, c := range []struct{ after, want time.Duration }{
		{0, settleDelay}, {maxSettleDelay - settleDelay, settleDelay}, {maxSettleDelay - settleDelay/2, settleDelay / 2}, {maxSettleDelay, 0}, {time.Hour, 0},
	} {
		if got := quietFor(begun, begun.Add(c.after)); got != c.want {
			t.Errorf("%s after the first change: %s, want %s", c.after, got, c.want)
		}
	}
}

// TestReloadIsAllOrNothing: what may change does for who comes next, and for nobody who is there; a bad one changes nothing.
func TestReloadIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	g := start(t, func(c *Config) { c.MaxFrame, c.Origins = 1<<20, []string{"http://old.example"} })
	before := g.dial()

	get := func(origin string) int {
		q, _ := http.NewRequest("GET", "http://"+g.Addr()+"/healthz", nil)
		q.Header.Set("Origin", origin)
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	frames := func() int {
		return int(g.dial().call("system.capabilities", nil)["limits"].(map[string]any)["max_frame_bytes"].(float64))
	}
	next := Config{MaxFrame: 2 << 20, Origins: []string{"http://new.example"}, Capabilities: protocol.Capabilities{DefaultShell: "/bin/x"}}

	writeCertificate(t, cert, key, "x")
	withTLS := next
	withTLS.TLSCert, withTLS.TLSKey = cert, key
	if err := g.Reload(withTLS); err == nil {
		t.Error("TLS was switched on")
	}
	if get("http://old.example") != 200 || get("http://new.example") != 403 || frames() != 1<<20 {
		t.Error("a refused reload left something in force")
	}
	if err := g.Reload(next); err != nil {
		t.Fatal(err)
	}
	if get("http://old.example") != 403 || get("http://new.example") != 200 || frames() != 2<<20 {
		t.Error("the reload is not in force")
	}
	// A message that was too large is taken on a new connection.
	if f := g.dial().try("exec.run", object{"command": ":", "stdin": strings.Repeat("x", 3<<19)}); !f.OK {
		t.Errorf("%+v", f.Error)
	}
	if c := before.call("system.capabilities", nil); c.str("default_shell") != "/bin/x" {
		t.Errorf("%v", c)
	}
}

func TestReloadReplacesTheCertificateItself(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key, "first")
	g := start(t, withTokens, func(c *Config) { c.TLSCert, c.TLSKey = cert, key })
	if got := served(t, g.Addr()); got != "first" {
		t.Fatal(got)
	}
	other, otherKey := filepath.Join(dir, "cert2"), filepath.Join(dir, "key2")
	c := Config{TLSCert: other, TLSKey: otherKey, Origins: []string{"http://new.example"}}
	if err := g.Reload(c); err == nil {
		t.Error("a certificate that is not there was taken")
	}
	if got := served(t, g.Addr()); got != "first" || len(g.live.Load().origins) != 0 {
		t.Fatal(got)
	}
	writeCertificate(t, other, otherKey, "second")
	if err := g.Reload(c); err != nil {
		t.Fatal(err)
	}
	if got := served(t, g.Addr()); got != "second" {
		t.Fatal(got)
	}
	writeCertificate(t, other, otherKey, "third") // and the new one is followed
	testkit.Eventually(t, "the third", func() bool { return served(t, g.Addr()) == "third" })
}
