package auth

import (
	"crypto/sha256"
	"fmt"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestLoginsAreBounded: one subject's logins end that subject's oldest; where all are too many, the next one is refused.
func TestLoginsAreBounded(t *testing.T) {
	l := newLogins(nil, zerolog.Nop())
	begin := func(subject string, life time.Duration) (string, error) {
		secret, _, err := l.begin(&Grant{Principal: Principal{subject, User}}, life)
		return secret, err
	}
	is := func(secret string) bool { _, e := l.file.lookup(secret); return e != nil }
	other, _ := begin("bob", time.Hour)
	first, _ := begin("ann", time.Hour)
	second, _ := begin("ann", time.Hour)
	for range maxOwnLogins - 1 {
		if _, err := begin("ann", time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if is(first) || !is(second) || !is(other) {
		t.Errorf("the first %v, the second %v, another subject's %v", is(first), is(second), is(other))
	}
	for n := range maxLogins { // as if they had been begun, one by one
		k, _ := newToken(Token{Subject: fmt.Sprint("s", n), Role: User, Terms: Terms{Expires: time.Now().Add(time.Hour)}})
		l.text = append(l.text, k.line())
	}
	if _, err := begin("cid", time.Hour); err != ErrTooManyLogins {
		t.Errorf("one beyond all: %v", err)
	}
	if !is(other) {
		t.Error("another's login has ended")
	}
}

// TestLogoutWithoutADisk: a login ends also where the file cannot be written, stays ended when that is read again, and the others live on in
// the next gateway.
func TestLogoutWithoutADisk(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "logins")
	open := func() *logins {
		l := newLogins(nil, zerolog.Nop())
		if err := l.open(path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	l := open()
	ends, stays := "", ""
	for _, secret := range []*string{&ends, &stays} {
		var err error
		if *secret, _, err = l.begin(&Grant{Principal: Principal{"ann", User}}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	// A disk without room: every new file is one too large. Root is not kept out by modes.
	unwritable := func() (restore func()) {
		var was syscall.Rlimit
		syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was)
		signal.Ignore(syscall.SIGXFSZ)
		syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1, Max: was.Max})
		return func() { syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was) }
	}
	restore := unwritable()
	_, err := l.endOwn(sha256.Sum256([]byte(ends)))
	again := l.file.load()
	next := open()
	restore()
	if err == nil || again != nil {
		t.Fatalf("writing: %v, reading: %v", err, again)
	}
	if _, e := l.file.lookup(ends); e != nil {
		t.Error("it has not ended")
	}
	if _, e := next.file.lookup(stays); e == nil {
		t.Error("the next gateway does not know who is logged in")
	}
	if _, _, err := l.begin(&Grant{Principal: Principal{"bob", User}}, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, e := open().file.lookup(ends); e != nil {
		t.Error("it came back once there was room")
	}
}
