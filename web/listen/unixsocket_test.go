package listen

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "trl.sock")
	l, remove, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	if _, _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("a live socket was taken: %v", err)
	}
	os.Remove(path)
	stale, _, err := listenUnix(path) // somebody else's now
	if err != nil {
		t.Fatal(err)
	}
	remove()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal("removed another's socket")
	}
	l.Close()
	stale.Close() // as after a crash: the file stays
	l, remove, err = listenUnix(path)
	if err != nil {
		t.Fatalf("a stale socket is in the way: %v", err)
	}
	remove()
	l.Close()
	if _, err := os.Lstat(path); err == nil {
		t.Fatal("the socket is left behind")
	}
	os.WriteFile(path, []byte("precious"), 0o600)
	if _, _, err := listenUnix(path); err == nil {
		t.Fatal("a file was replaced")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".trl*")); len(left) != 0 {
		t.Fatalf("left %v", left)
	}
}
