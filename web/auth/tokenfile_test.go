package auth

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/testkit"

	"github.com/rs/zerolog"
)

func TestFirstStartMakesOneAdmin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	path, operator := filepath.Join(dir, "tokens"), filepath.Join(dir, "operator-token")
	f, err := OpenTokens(path, operator, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, file := range []string{path, operator} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v, %v", file, info, err)
		}
	}
	text, _ := os.ReadFile(operator)
	token := strings.TrimSpace(string(text))
	if g, why := f.Lookup(token); why != Accepted || g.Principal != (Principal{"admin", Admin}) {
		t.Fatalf("%v %v", g, why)
	}
	if len(token) < 40 {
		t.Fatalf("token of %d characters", len(token))
	}
	if stored, _ := os.ReadFile(path); strings.Contains(string(stored), token) {
		t.Fatal("the token is in the file as it is")
	}
	if f.Knows("") {
		t.Fatal("the empty token is one")
	}
	again, err := OpenTokens(path, operator, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if text2, _ := os.ReadFile(operator); string(text2) != string(text) || !again.Knows(token) {
		t.Fatal("a second start made another token")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Fatalf("left behind: %v", entries)
	}
}

func TestTokenFileOfOthersIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	os.WriteFile(path, []byte("secret-token-1 a admin\n"), 0o640)
	os.Chmod(path, 0o640)
	if _, err := OpenTokens(path, "", zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "0640") {
		t.Fatalf("%v", err)
	}
	if _, err := RevokeToken(path, "x"); err == nil || !strings.Contains(err.Error(), "0640") {
		t.Fatalf("%v", err)
	}
}

func TestTokenFileErrorsDoNotShowTokens(t *testing.T) {
	hash := strings.Repeat("5ec2e7", 10) // 60 digits
	for _, text := range []string{"secret-token-1 a\n", "secret-token-1 a user expire=2030-01-01T00:00:00Z\n", "secret-token-1 a user expires=soon\n",
		"secret-token-1 a user max_sessions=-1\n", "secret-token-1 a user rate=NaN\n", "sha256:" + hash + " a user\n", "sha256:" + hash + "zzzz a user\n", "secret-token-1 a b c\n", "secret-token-1 a root\n", "secret-token-1 a user\nsecret-token-1 b user\n"} {
		_, err := parseTokens([]byte(text))
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "5ec2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTokensReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	os.WriteFile(path, []byte("one a admin\n"), 0o600)
	f, err := OpenTokens(path, "", zerolog.Nop())
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
	testkit.Eventually(t, "reload", func() bool {
		two, why := f.Lookup("two")
		return why == Accepted && !f.Knows("one") && two.Principal == Principal{"b", Viewer}
	})
	replace("nonsense\n") // refused: what was there stays
	replace("three c user\n")
	testkit.Eventually(t, "reload after a bad file", func() bool { return f.Knows("three") })
	replace("# nobody any more\n")
	testkit.Eventually(t, "the last token is gone", func() bool { return !f.Knows("three") })
}

func TestNoTokensAtTheStart(t *testing.T) {
	for _, text := range []string{"", "# only\n"} {
		path := filepath.Join(t.TempDir(), "tokens")
		os.WriteFile(path, []byte(text), 0o600)
		if _, err := OpenTokens(path, "", zerolog.Nop()); err == nil {
			t.Errorf("%q is a token file", text)
		}
	}
}

func TestTokensAreReadAsTheyWereWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	os.WriteFile(path, []byte("# kept\nold-token zoe viewer\n"), 0o600)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	id, secret, err := AddToken(path, Token{Subject: "ann", Role: User, Note: "a = b, c", Terms: Terms{Expires: until, MaxSessions: 3, MaxInFlight: 4, Rate: 1.5}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := ListTokens(path)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	k := all[1]
	if k.ID != id || k.Subject != "ann" || k.Role != User || k.Note != "a = b, c" || k.Plain || k.Terms != (Terms{until, 3, 4, 1.5}) || k.Created.IsZero() {
		t.Errorf("%+v", k)
	}
	text, _ := os.ReadFile(path)
	if strings.Contains(string(text), secret) || !strings.HasPrefix(string(text), "# kept\nold-token zoe viewer\n") {
		t.Errorf("%s", text)
	}
	// What stands in the file is not what lets in.
	f, err := OpenTokens(path, "", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line := strings.Fields(strings.Split(string(text), "\n")[2])[0]
	if !f.Knows(secret) || !f.Knows("old-token") || f.Knows(line) || f.Knows(strings.TrimPrefix(line, "sha256:")) {
		t.Error("wrong tokens are known")
	}
	if _, err := RevokeToken(path, "000000000000"); err != ErrNoToken {
		t.Errorf("an unknown id: %v", err)
	}
	if k, err := RevokeToken(path, id); err != nil || k.Subject != "ann" {
		t.Errorf("%v, %v", k, err)
	}
	if text, _ := os.ReadFile(path); string(text) != "# kept\nold-token zoe viewer\n" {
		t.Errorf("%s", text)
	}
	for _, k := range []Token{{Subject: "a b", Role: User}, {Role: User}, {Subject: "a", Role: "root"}, {Subject: "a", Role: User, Note: "x\ny"}, {Subject: "a\n", Role: User}} {
		if _, _, err := AddToken(path, k); err == nil {
			t.Errorf("%+v was written", k)
		}
	}
}

func TestTokensAreEditedOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				id, _, err := AddToken(path, Token{Subject: "x", Role: User})
				if err != nil {
					t.Error(err)
				}
				if _, _, err := AddToken(path, Token{Subject: "y", Role: User}); err != nil {
					t.Error(err)
				}
				if _, err := RevokeToken(path, id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if all, err := ListTokens(path); err != nil || len(all) != 40 {
		t.Errorf("%d tokens, %v", len(all), err)
	}
}

// FuzzTokenLine: whatever is read is written so that it is read again as the same.
func FuzzTokenLine(f *testing.F) {
	hash := "sha256:" + strings.Repeat("0f", 32)
	for _, line := range []string{
		"token ann user", hash + " ann admin created=2026-01-02T03:04:05Z expires=2027-01-02T03:04:05+02:00 max_sessions=3 max_in_flight=4 rate=0.5 via=abc note=a b=c",
		hash + " x viewer note=", "a b user note=n note=m", "sha256: a user", "t s user rate=1e300",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		tokens, err := parseTokens([]byte(line))
		if err != nil {
			return
		}
		for _, k := range tokens {
			if k.check() != nil {
				continue // from a file that was edited by hand; never written
			}
			again, err := parseToken(k.line())
			if err != nil {
				t.Fatalf("%q: %v", k.line(), err)
			}
			if k.Created, again.Created = k.Created.UTC().Truncate(time.Second), again.Created.UTC(); !k.Created.Equal(again.Created) {
				t.Fatalf("%q: created %v, %v", k.line(), k.Created, again.Created)
			}
			if !k.Expires.Truncate(time.Second).Equal(again.Expires) {
				t.Fatalf("%q: expires %v, %v", k.line(), k.Expires, again.Expires)
			}
			k.Created, k.Expires, again.Created, again.Expires = time.Time{}, time.Time{}, time.Time{}, time.Time{}
			if k != again {
				t.Fatalf("%q: %+v, %+v", k.line(), k, again)
			}
		}
	})
}
