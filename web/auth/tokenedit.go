package auth

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// AddToken adds k to a token file, which it creates if there is none, and returns the token itself, which is stored nowhere.
func AddToken(path string, k Token) (id, secret string, err error) {
	if err := k.check(); err != nil {
		return "", "", err
	}
	k, secret = newToken(k)
	err = editTokens(path, func(lines []string) ([]string, error) { return append(lines, k.line()), nil })
	return k.ID, secret, err
}

// RevokeToken removes the token with this id from a token file.
func RevokeToken(path, id string) (k Token, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return k, ErrNoToken // editTokens would create the file, and a gateway does not start with an empty one
	}
	err = editTokens(path, func(lines []string) ([]string, error) {
		kept := lines[:0:0]
		for _, line := range lines {
			if one, err := parseTokens([]byte(line)); err == nil && len(one) == 1 && one[0].ID == id {
				k = one[0]
				continue
			}
			kept = append(kept, line)
		}
		if k.ID == "" {
			return nil, ErrNoToken
		}
		return kept, nil
	})
	return k, err
}

// ListTokens reads a token file.
func ListTokens(path string) ([]Token, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readTokens(f)
}

// editTokens replaces a token file by one with the lines that edit makes, completely or not at all, one editor at a time. Other lines stay where they
// are. The new file has the owner of the old one.
func editTokens(path string, edit func(lines []string) ([]string, error)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	old, err := lockTokens(path)
	if err != nil {
		return err
	}
	defer old.Close() // this releases the lock, too
	if _, err := readTokens(old); err != nil {
		return err // a person must correct a faulty file; it must not be written again
	}
	info, err := old.Stat()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.NewSectionReader(old, 0, maxTokenFile))
	if err != nil {
		return err
	}
	lines, err := edit(slices.Collect(eachLine(string(text))))
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tokens-") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	for _, line := range lines {
		if _, e := fmt.Fprintln(f, line); err == nil {
			err = e
		}
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		err = errors.Join(err, f.Chown(int(st.Uid), int(st.Gid)))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func eachLine(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for line := range strings.Lines(text) {
			if !yield(strings.TrimRight(line, "\n")) {
				return
			}
		}
	}
}

// lockTokens opens the file and locks it. If the file was replaced during the wait, it tries again with the new one.
func lockTokens(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			f.Close()
			return nil, err
		}
		mine, err1 := f.Stat()
		now, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, now) {
			return f, nil
		}
		f.Close()
		if err := cmp.Or(err1, err2); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// MakeTokens writes the first token file, if there is none, with one token, of the subject "admin". The file appears completely or not at all, and
// never replaces one that another start has just made. The token itself goes into the file operator, which only the gateway's own user may read, for
// the login link and the command line on this machine.
func MakeTokens(path, operator string) (made bool, err error) {
	if _, err := os.Stat(path); err == nil {
		return false, nil
	}
	for _, p := range []string{path, operator} {
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			return false, err
		}
	}
	k, secret := newToken(Token{Subject: "admin", Role: Admin, Note: "made at the first start"})
	tokens, err := writeTemp(filepath.Dir(path), "# see `trl token --help`; read again whenever it changes\n"+k.line()+"\n")
	if err != nil {
		return false, err
	}
	defer os.Remove(tokens)
	own, err := writeTemp(filepath.Dir(operator), secret+"\n")
	if err != nil {
		return false, err
	}
	defer os.Remove(own)
	switch err := os.Link(tokens, path); {
	case errors.Is(err, fs.ErrExist):
		return true, nil
	case err != nil:
		return false, err
	}
	return true, os.Rename(own, operator)
}

// writeTemp writes a new file with this text and mode 0600, and returns its name.
func writeTemp(dir, text string) (name string, err error) {
	f, err := os.CreateTemp(dir, ".tokens-")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(f.Name())
	}
	return f.Name(), err
}
