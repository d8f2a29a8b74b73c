package filewatch

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"trl/internal/testkit"

	"github.com/rs/zerolog"
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
