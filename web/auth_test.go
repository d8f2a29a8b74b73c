package web

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

func TestFirstStartMakesOneAdmin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "tokens")
	f, err := OpenTokens(path, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	if who, ok := f.Lookup(f.AdminToken()); !ok || who != (Principal{Subject: "admin", Role: Admin}) {
		t.Fatalf("%v %v", who, ok)
	}
	if len(f.AdminToken()) < 40 {
		t.Fatalf("token of %d characters", len(f.AdminToken()))
	}
	if _, ok := f.Lookup(""); ok {
		t.Fatal("the empty token is one")
	}
	again, err := OpenTokens(path, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.AdminToken() != f.AdminToken() {
		t.Fatal("a second start made another token")
	}
}

func TestTokenFileOfOthersIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	os.WriteFile(path, []byte("secret-token-1 a admin\n"), 0o640)
	os.Chmod(path, 0o640)
	if _, err := OpenTokens(path, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "0640") {
		t.Fatalf("%v", err)
	}
}

func TestTokenFileErrorsDoNotShowTokens(t *testing.T) {
	for _, text := range []string{"", "# only\n", "secret-token-1 a\n", "secret-token-1 a b c\n", "secret-token-1 a root\n", "secret-token-1 a user\nsecret-token-1 b user\n"} {
		_, err := parseTokens([]byte(text))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTokensReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	os.WriteFile(path, []byte("one a admin\n"), 0o600)
	f, err := OpenTokens(path, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	replace := func(text string) {
		os.WriteFile(path+".new", []byte(text), 0o600)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	replace("two b viewer\n")
	eventually(t, "reload", func() bool {
		who, two := f.Lookup("two")
		_, one := f.Lookup("one")
		return two && !one && who == Principal{Subject: "b", Role: Viewer}
	})
	replace("nonsense\n") // refused: what was there stays
	replace("three c user\n")
	eventually(t, "reload after a bad file", func() bool { _, ok := f.Lookup("three"); return ok })
}
