package web

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/rs/zerolog"
)

// Role is what a principal may do with what is its own.
type Role string

// The roles, from the least. A viewer reads: it lists, attaches, watches and waits, and changes nothing.
const (
	Viewer Role = "viewer"
	User   Role = "user"
	Admin  Role = "admin"
)

// Principal is who a client is: everything it makes belongs to its subject.
type Principal struct {
	Subject string
	Role    Role
}

// local is everyone where authentication is off.
var local = Principal{Subject: "local", Role: Admin}

// Tokens knows whose a token is.
type Tokens interface {
	Lookup(token string) (Principal, bool)
}

const (
	subprotocol = "trl.v1"
	// subprotocolBinary is the same with output in binary frames.
	subprotocolBinary = "trl.v1+bin"
	// tokenProtocol begins the subprotocol entry in which a browser, which cannot set headers on a WebSocket, brings its token.
	tokenProtocol = "trl.token."
)

// authenticate finds out who sent the request. The first credential found counts: a wrong one is not made up for by another.
func (s *Server) authenticate(r *http.Request) (Principal, bool) {
	if s.cfg.AuthNone {
		return local, true
	}
	token, ok := credential(r)
	if !ok {
		return Principal{}, false
	}
	return s.cfg.Tokens.Lookup(token)
}

func credential(r *http.Request) (token string, ok bool) {
	if h := r.Header.Get("Authorization"); h != "" {
		scheme, token, _ := strings.Cut(h, " ")
		return strings.TrimSpace(token), strings.EqualFold(scheme, "Bearer")
	}
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for entry := range strings.SplitSeq(line, ",") {
			if enc, ok := strings.CutPrefix(strings.TrimSpace(entry), tokenProtocol); ok {
				token, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(enc, "="))
				return string(token), err == nil
			}
		}
	}
	if c, err := r.Cookie(cookieName(r)); err == nil {
		token, err := base64.RawURLEncoding.DecodeString(c.Value) // a token may hold what a cookie may not
		return string(token), err == nil
	}
	return "", false
}

// cookieName has the port in it: cookies ignore ports, and two gateways on one machine would log each other's users out.
func cookieName(r *http.Request) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return "trl_token_" + port
	}
	return "trl_token"
}

// TokenFile is a file of lines `token subject role`, read again whenever it changes. Empty lines and lines that begin with # do not count.
type TokenFile struct {
	path   string
	reload *reloader

	mu      sync.RWMutex
	entries []entry     // guarded by mu; replaced whole
	told    func(error) // guarded by mu; see OnReload
}

type entry struct {
	hash  [sha256.Size]byte // comparing hashes takes the same time however much of a guess is right, and for any length
	token string
	who   Principal
}

// OpenTokens reads the token file, which nobody but its owner may read, and follows its changes until Close. A file that does not exist
// is made, with one random token of the subject "admin".
func OpenTokens(path string, log zerolog.Logger) (*TokenFile, error) {
	t := &TokenFile{path: path}
	err := t.load()
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = MakeTokens(path); err == nil {
			err = t.load()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	t.reload, err = watchFiles(log, t.again, path)
	if err != nil {
		return nil, fmt.Errorf("watch token file: %w", err)
	}
	return t, nil
}

// Close stops following the file.
func (t *TokenFile) Close() error { return t.reload.Close() }

// OnReload has f called whenever other tokens are in force, or the file could not be read again.
func (t *TokenFile) OnReload(f func(error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.told = f
}

// again is load for a change in the file's directory, of the file or of another one.
func (t *TokenFile) again() error {
	t.mu.RLock()
	before, told := t.entries, t.told
	t.mu.RUnlock()
	err := t.load()
	t.mu.RLock()
	same := slices.Equal(before, t.entries)
	t.mu.RUnlock()
	if told != nil && (err != nil || !same) {
		told(err)
	}
	return err
}

// Lookup compares with every token, so that its time does not tell which one came close.
func (t *TokenFile) Lookup(token string) (who Principal, ok bool) {
	hash := sha256.Sum256([]byte(token))
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := range t.entries {
		if e := &t.entries[i]; subtle.ConstantTimeCompare(hash[:], e.hash[:]) == 1 {
			who, ok = e.who, true
		}
	}
	return who, ok
}

// AdminToken is the first admin's token, for the line that cmd/trl prints; empty where the file has none.
func (t *TokenFile) AdminToken() string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.entries {
		if e.who.Role == Admin {
			return e.token
		}
	}
	return ""
}

func (t *TokenFile) load() error {
	f, err := os.Open(t.path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is open to others (mode %04o): chmod 600 it", t.path, info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d", t.path, st.Uid)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1<<20)) // some 10,000 tokens
	if err != nil {
		return err
	}
	entries, err := parseTokens(text)
	if err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = entries
	return nil
}

// parseTokens names lines in its errors, never their content.
func parseTokens(text []byte) ([]entry, error) {
	var entries []entry
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d is not `token subject role`", n)
		}
		role := Role(fields[2])
		if role != Viewer && role != User && role != Admin {
			return nil, fmt.Errorf("line %d: the role is none of admin, user, viewer", n)
		}
		if seen[fields[0]] {
			return nil, fmt.Errorf("line %d: the token stands there twice", n)
		}
		seen[fields[0]] = true
		entries = append(entries, entry{sha256.Sum256([]byte(fields[0])), fields[0], Principal{fields[1], role}})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, errors.New("no token")
	}
	return entries, nil
}

// MakeTokens writes the first token file, if there is none. It appears whole or not at all, and never replaces one that another start has just made.
func MakeTokens(path string) (made bool, err error) {
	if _, err := os.Stat(path); err == nil {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tokens-") // 0600
	if err != nil {
		return false, err
	}
	defer os.Remove(f.Name())
	var random [32]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	_, err = fmt.Fprintf(f, "# token subject role (admin, user or viewer); read again whenever it changes\n%s admin admin\n",
		base64.RawURLEncoding.EncodeToString(random[:]))
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return false, err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	return true, nil
}
