package auth

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"trl/web/filewatch"
	"unicode"
	"unicode/utf8"

	"github.com/rs/zerolog"
)

// Tokens finds out whose a token is.
type Tokens interface {
	Lookup(token string) (*Grant, Outcome)
	// ByID returns the token from which a login was made; nil: it no longer exists.
	ByID(id string) *Grant
}

// A Token is one line of a token file:
//
//	sha256:HASH SUBJECT ROLE [created=TIME] [expires=TIME] [max_sessions=N] [max_in_flight=N] [rate=N] [via=ID] [note=…]
//
// HASH is the token's SHA-256 in hexadecimal digits; times are RFC 3339; a note goes on to the end of the line. Old files have the token itself in
// place of the hash.
//
// It is a plain SHA-256 and not bcrypt or Argon2, which make guessing expensive. Nobody guesses 256 random bits, so they would only let strangers
// keep the processors busy. A token that a person has chosen is weak with either.
type Token struct {
	ID      string // the first digits of the hash
	Subject string
	Role    Role
	Terms
	Created time.Time // zero: unknown
	Via     string    // of a login: the token from which it was made
	Note    string
	Plain   bool // the file has the token itself

	hash   [sha256.Size]byte
	secret string // the token itself, if Plain
}

// TokenFile is a file of Tokens, which is read again whenever it changes. Empty lines and lines that begin with # are ignored.
type TokenFile struct {
	path   string
	reload *filewatch.Follower

	loadMu     sync.Mutex  // held during a load
	mayBeEmpty bool        // guarded by loadMu; the file may have no token
	lastLoaded []Token     // guarded by loadMu; the tokens of the last load
	onReload   func(error) // guarded by loadMu; see OnReload

	mu      sync.RWMutex
	entries map[[sha256.Size]byte]*activeToken // guarded by mu; replaced as a whole
	revoked map[[sha256.Size]byte]bool         // guarded by mu; revoked by revoke, whatever the file says
}

type activeToken struct {
	Token
	credential *credentialState
}

// OpenTokens reads the token file, which only its owner may be able to read, and watches it until Close. With operator, it creates a file that does
// not exist, see MakeTokens.
func OpenTokens(path, operator string, log zerolog.Logger) (*TokenFile, error) {
	t := &TokenFile{path: path}
	err := t.load()
	if errors.Is(err, fs.ErrNotExist) && operator != "" {
		if _, err = MakeTokens(path, operator); err == nil {
			err = t.load()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	return t, t.follow(log)
}

func (t *TokenFile) follow(log zerolog.Logger) (err error) {
	if t.reload, err = filewatch.Follow(log, t.reread, t.path); err != nil {
		err = fmt.Errorf("watch %s: %w", t.path, err)
	}
	return err
}

// OnReload sets a function that is called whenever other tokens are in force, or the file could not be read again.
func (t *TokenFile) OnReload(f func(error)) {
	t.loadMu.Lock()
	defer t.loadMu.Unlock()
	t.onReload = f
}

// reread loads the file after a change in its directory, of this file or of another one.
func (t *TokenFile) reread() error {
	t.loadMu.Lock()
	before := t.lastLoaded
	t.loadMu.Unlock()
	err := t.load()
	t.loadMu.Lock()
	told, same := t.onReload, slices.Equal(before, t.lastLoaded)
	t.loadMu.Unlock()
	if told != nil && (err != nil || !same) {
		told(err)
	}
	return err
}

// Close stops watching the file.
func (t *TokenFile) Close() error { return t.reload.Close() }

// Lookup finds the token by its hash. The time that it takes tells something about a hash, from which nobody can compute a token.
func (t *TokenFile) Lookup(token string) (*Grant, Outcome) {
	g, e := t.lookup(token)
	switch {
	case e == nil:
		return nil, Unknown
	case !g.IsValid(time.Now()):
		return nil, expired
	}
	return g, Accepted
}

// Knows reports whether a token is valid.
func (t *TokenFile) Knows(token string) bool {
	_, why := t.Lookup(token)
	return why == Accepted
}

func (t *TokenFile) lookup(token string) (*Grant, *activeToken) {
	return t.byHash(sha256.Sum256([]byte(token)))
}

func (t *TokenFile) byHash(hash [sha256.Size]byte) (*Grant, *activeToken) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.entries[hash]; e != nil {
		return e.grant(), e
	}
	return nil, nil
}

func (e *activeToken) grant() *Grant {
	return &Grant{Principal: Principal{Subject: e.Subject, Role: e.Role}, token: e.ID, guessable: e.Plain, credentials: []*credentialState{e.credential}}
}

func (t *TokenFile) ByID(id string) *Grant {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.entries {
		if e.ID == id {
			return e.grant()
		}
	}
	return nil
}

// MaxSessions returns how many live sessions a subject may have; of several tokens the smallest number counts. 0: no bound.
func (t *TokenFile) MaxSessions(subject string) (most int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.entries {
		if e.Subject == subject && e.MaxSessions > 0 && (most == 0 || e.MaxSessions < most) {
			most = e.MaxSessions
		}
	}
	return most
}

// AdminToken returns an admin's token that the file has itself, not hashed; "": there is none.
func (t *TokenFile) AdminToken() string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.entries {
		if e.Role == Admin && e.Plain && e.credential.valid.Err() == nil {
			return e.secret
		}
	}
	return ""
}

// load reads the file and compares it with the tokens in force. Clients whose token is gone or has changed are disconnected.
func (t *TokenFile) load() error {
	t.loadMu.Lock()
	defer t.loadMu.Unlock()
	f, err := os.Open(t.path)
	if err != nil {
		return err
	}
	defer f.Close()
	tokens, err := readTokens(f)
	if err != nil {
		return err
	}
	if len(tokens) == 0 && !t.mayBeEmpty {
		return fmt.Errorf("%s: no token", t.path)
	}
	t.replace(tokens)
	t.lastLoaded = tokens
	t.mayBeEmpty = true // from now on, because an operator who revokes the last token wants to let nobody in
	return nil
}

func (t *TokenFile) replace(tokens []Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries := make(map[[sha256.Size]byte]*activeToken, len(tokens))
	dropped := map[[sha256.Size]byte]bool{} // revoked tokens that the file still has
	for _, k := range tokens {
		if t.revoked[k.hash] {
			dropped[k.hash] = true
			continue
		}
		e := &activeToken{Token: k}
		if old := t.entries[k.hash]; old != nil && old.Subject == k.Subject && old.Role == k.Role && old.Via == k.Via &&
			(k.Expires.IsZero() || k.Expires.After(time.Now())) && old.credential.valid.Err() == nil {
			e.credential = old.credential
			e.credential.setTerms(k.Terms)
			delete(t.entries, k.hash)
		} else {
			e.credential = newCredentialState(k.Terms)
		}
		entries[k.hash] = e
	}
	for _, gone := range t.entries {
		gone.credential.withdraw()
	}
	t.entries, t.revoked = entries, dropped
}

// revoke revokes a token now, also if the file cannot be written.
func (t *TokenFile) revoke(hash [sha256.Size]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[hash]; e != nil {
		e.credential.withdraw()
		delete(t.entries, hash)
	}
	if t.revoked == nil {
		t.revoked = map[[sha256.Size]byte]bool{}
	}
	t.revoked[hash] = true
}

// withoutRevoked returns the lines of the tokens that are not revoked.
func (t *TokenFile) withoutRevoked(lines []string) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.DeleteFunc(lines, func(line string) bool {
		k, err := parseToken(line)
		return err == nil && t.revoked[k.hash]
	})
}

// maxTokenFile is the size of some 10,000 tokens.
const maxTokenFile = 2 << 20

func readTokens(f *os.File) ([]Token, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s is open to others (mode %04o): chmod 600 it", f.Name(), info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return nil, fmt.Errorf("%s belongs to uid %d", f.Name(), st.Uid)
	}
	if info.Size() > maxTokenFile {
		return nil, fmt.Errorf("%s: more than %d bytes", f.Name(), maxTokenFile)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return nil, err
	}
	tokens, err := parseTokens(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return tokens, nil
}

// parseTokens reports errors with the number of the line, never with its content.
func parseTokens(text []byte) ([]Token, error) {
	var tokens []Token
	seen := map[[sha256.Size]byte]bool{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		k, err := parseToken(line)
		if err != nil {
			return nil, fmt.Errorf("line %d %w", n, err)
		}
		if seen[k.hash] {
			return nil, fmt.Errorf("line %d: the token stands there twice", n)
		}
		seen[k.hash] = true
		tokens = append(tokens, k)
	}
	return tokens, lines.Err()
}

const hashPrefix = "sha256:"

func parseToken(line string) (k Token, err error) {
	line, k.Note, _ = strings.Cut(line, " note=")
	fields := strings.Fields(line)
	if len(fields) < 3 {
		return k, errors.New("is not `token subject role`")
	}
	if digits, ok := strings.CutPrefix(fields[0], hashPrefix); ok {
		if n, err := hex.Decode(k.hash[:], []byte(digits[:min(len(digits), 2*sha256.Size)])); err != nil || n != sha256.Size || len(digits) != 2*sha256.Size {
			return k, fmt.Errorf("has no SHA-256 of %d hexadecimal digits", 2*sha256.Size)
		}
	} else {
		k.hash, k.secret, k.Plain = sha256.Sum256([]byte(fields[0])), fields[0], true
	}
	k.ID = hex.EncodeToString(k.hash[:6])
	k.Subject, k.Role = fields[1], Role(fields[2])
	if !k.Role.isValid() {
		return k, errors.New("has a role that is none of admin, user, viewer")
	}
	for _, field := range fields[3:] {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "created":
			k.Created, err = parseTime(value)
		case "expires":
			k.Expires, err = parseTime(value)
		case "max_sessions":
			k.MaxSessions, err = strconv.Atoi(value)
		case "max_in_flight":
			k.MaxInFlight, err = strconv.Atoi(value)
		case "rate":
			k.Rate, err = strconv.ParseFloat(value, 64)
		case "via":
			k.Via = value
		default: // a misspelt expires= must not make a token that lasts for ever
			return k, errors.New("is not `token subject role` and then created=, expires=, max_sessions=, max_in_flight=, rate=, note=")
		}
		if err != nil || k.MaxSessions < 0 || k.MaxInFlight < 0 || !(k.Rate >= 0) {
			return k, fmt.Errorf("has an %s= that is none", key)
		}
	}
	return k, nil
}

// parseTime accepts years that have four digits in another time zone, too.
func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err == nil && (t.Year() < 1970 || t.Year() > 9998) {
		err = errors.New("a year that is none of ours")
	}
	return t, err
}

// line returns the line that parseToken reads.
func (k *Token) line() string {
	var b strings.Builder
	if k.Plain {
		b.WriteString(k.secret)
	} else {
		fmt.Fprintf(&b, "%s%x", hashPrefix, k.hash)
	}
	fmt.Fprintf(&b, " %s %s", k.Subject, k.Role)
	if !k.Created.IsZero() {
		fmt.Fprintf(&b, " created=%s", k.Created.UTC().Format(time.RFC3339))
	}
	if !k.Expires.IsZero() {
		fmt.Fprintf(&b, " expires=%s", k.Expires.UTC().Format(time.RFC3339))
	}
	if k.MaxSessions > 0 {
		fmt.Fprintf(&b, " max_sessions=%d", k.MaxSessions)
	}
	if k.MaxInFlight > 0 {
		fmt.Fprintf(&b, " max_in_flight=%d", k.MaxInFlight)
	}
	if k.Rate > 0 {
		fmt.Fprintf(&b, " rate=%g", k.Rate)
	}
	if k.Via != "" {
		fmt.Fprintf(&b, " via=%s", k.Via)
	}
	if k.Note != "" {
		fmt.Fprintf(&b, " note=%s", k.Note)
	}
	return b.String()
}

// check returns an error for a token that would be read differently from how it was written.
func (k *Token) check() error {
	switch {
	case k.Subject == "" || len(k.Subject) > 512 || strings.ContainsFunc(k.Subject, unicode.IsSpace) || !printable(k.Subject):
		return errors.New("a subject is one word")
	case !k.Role.isValid():
		return errors.New("a role is admin, user or viewer")
	case len(k.Note) > 200 || !printable(k.Note):
		return errors.New("a note is a line of at most 200 bytes")
	case k.MaxSessions < 0 || k.MaxInFlight < 0 || !(k.Rate >= 0):
		return errors.New("a limit is at least 0")
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// newToken makes a token of 256 random bits, in characters that need no quoting anywhere.
func newToken(k Token) (_ Token, secret string) {
	var random [32]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	secret = base64.RawURLEncoding.EncodeToString(random[:])
	k.Plain, k.Created = false, time.Now()
	k.setHash(secret)
	return k, secret
}

func (k *Token) setHash(secret string) {
	k.hash = sha256.Sum256([]byte(secret))
	k.ID = hex.EncodeToString(k.hash[:6])
}

// ErrNoToken is the error of RevokeToken if no token has the id.
var ErrNoToken = errors.New("no such token")
