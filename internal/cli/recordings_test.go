package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// TestSaveIsWholeOrNotAtAll: a download that breaks off leaves no file, so a second attempt is not refused.
func TestSaveIsWholeOrNotAtAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "work.cast")
	cut := errors.New("cut")
	if err := saveFile(io.MultiReader(strings.NewReader("a part"), iotest.ErrReader(cut)), path); !errors.Is(err, cut) {
		t.Errorf("cut: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := saveFile(strings.NewReader("all of it"), path); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); string(text) != "all of it" {
		t.Errorf("%q, %v", text, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}
