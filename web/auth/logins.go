package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// maxOwnLogins is how many browsers of one subject may be logged in; beyond it that subject's oldest login ends.
	maxOwnLogins = 32
	// maxLogins is how many browsers may be logged in; beyond it a login is refused. It leaves the file well below maxTokenFile.
	maxLogins = 4096
	// LoginLifetime is how long a login lasts that nothing ends before: its token, for one.
	LoginLifetime = 30 * 24 * time.Hour
)

// logins are the browsers that are logged in. A browser's cookie is a random id; its rights are kept here, as a token file, so that an upgrade or a
// crash logs nobody out: the ids are hashed, the file is replaced as a whole, and it is read again when another gateway has changed it.
type logins struct {
	file   *TokenFile // without a path it is in memory only
	tokens Tokens     // the tokens from which logins are made; nil: none
	log    zerolog.Logger

	// The logins of other nodes. far is nil if there are no others.
	far              *farLogins
	wrongCredentials *wrongCredentials

	mu   sync.Mutex // held during a change
	text []string   // guarded by mu; the lines, if there is no path
}

var ErrTooManyLogins = errors.New("too many browsers are logged in")

func newLogins(tokens Tokens, log zerolog.Logger) *logins {
	return &logins{file: &TokenFile{mayBeEmpty: true}, tokens: tokens, log: log}
}

// open keeps the logins at path, and watches that file until Close. If that fails, it logs it and goes on in memory; then a new gateway knows no
// login.
func (l *logins) open(path string) error {
	if path == "" {
		return nil
	}
	pruned := editTokens(path, func(lines []string) ([]string, error) { return dropExpiredLogins(lines, time.Now()), nil })
	l.file.path = path
	err := l.file.load()
	if err == nil && pruned != nil { // for example a full disk; the logins stay valid
		l.log.Warn().Err(pruned).Msg("the file of logins cannot be written")
	}
	if err != nil {
		l.log.Warn().Err(err).Msg("logins are kept in memory, and end with this gateway")
		l.file.path = ""
		return nil
	}
	return l.file.follow(l.log)
}

// Close stops following the file, and asking other nodes.
func (l *logins) Close() error {
	if l.far != nil {
		l.far.close()
	}
	if l.file.reload == nil {
		return nil
	}
	return l.file.Close()
}

// dropExpiredLogins drops logins that have expired.
func dropExpiredLogins(lines []string, now time.Time) (kept []string) {
	for _, line := range lines {
		if k, err := parseToken(line); err == nil && now.Before(k.Expires) {
			kept = append(kept, line)
		}
	}
	return kept
}

// dropOldestLogins drops the oldest logins of a subject that has as many as it may have. It refuses a login beyond the bound of all.
func dropOldestLogins(lines []string, subject string) (kept []string, err error) {
	own := 0
	for _, line := range slices.Backward(lines) {
		if k, err := parseToken(line); err == nil && k.Subject == subject {
			if own++; own >= maxOwnLogins {
				continue
			}
		}
		kept = append(kept, line)
	}
	if len(kept) >= maxLogins {
		return nil, ErrTooManyLogins
	}
	slices.Reverse(kept)
	return kept, nil
}

// change replaces the lines by those that edit makes.
func (l *logins) change(edit func(lines []string) ([]string, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	whole := func(lines []string) ([]string, error) {
		return edit(l.file.withoutRevoked(dropExpiredLogins(lines, time.Now())))
	}
	if l.file.path != "" {
		if err := editTokens(l.file.path, whole); err != nil {
			return err
		}
		return l.file.load() // now, and not only when the watcher notices
	}
	text, err := whole(l.text)
	if err != nil {
		return err
	}
	l.text = text
	tokens, err := parseTokens([]byte(strings.Join(l.text, "\n")))
	if err == nil {
		l.file.replace(tokens)
	}
	return err
}

// begin makes a login with the rights of g, for at most life, and returns the cookie's value.
func (l *logins) begin(g *Grant, life time.Duration) (secret string, until time.Time, err error) {
	until = time.Now().Add(life)
	if at := g.Expires(); !at.IsZero() && at.Before(until) {
		until = at
	}
	k, secret := newToken(Token{Subject: g.Subject, Role: g.Role, Terms: Terms{Expires: until}, Via: g.token})
	if l.far != nil {
		secret = withMark(l.far.others, secret)
		k.setHash(secret)
	}
	if err := k.check(); err != nil {
		return "", until, err
	}
	return secret, until, l.change(func(lines []string) ([]string, error) {
		lines, err := dropOldestLogins(lines, k.Subject)
		return append(lines, k.line()), err
	})
}

// endOwn ends a login of this node and closes its connections. It reports whether there was such a login. This gateway forgets the login even if the
// file cannot be written, which is the error; the next change writes the file.
func (l *logins) endOwn(hash [sha256.Size]byte) (was bool, err error) {
	if _, e := l.file.byHash(hash); e == nil {
		return false, nil
	}
	l.file.revoke(hash)
	return true, l.change(func(lines []string) ([]string, error) { return lines, nil })
}

func (l *logins) authenticate(r *http.Request) (*Grant, method, Outcome) {
	secret := loginCookie(r)
	if secret == "" {
		return nil, byLogin, missing
	}
	hash, mark := sha256.Sum256([]byte(secret)), ""
	if l.far != nil {
		mark = markOf(l.far.others, secret)
	}
	if mark == "" || l.far.use(hash) != nil {
		g, why := l.find(r.Context(), hash, mark)
		return g, byLogin, why
	}
	var g *Grant
	why := l.wrongCredentials.guard(r, func() (why Outcome) {
		g, why = l.find(r.Context(), hash, mark)
		return why
	})
	return g, byLogin, why
}

// find returns what a login allows, by the hash of its cookie. mark is that of the node that has given it out; "": this one. It asks that node if the
// login is not in use here.
func (l *logins) find(ctx context.Context, hash [sha256.Size]byte, mark string) (*Grant, Outcome) {
	g, e := l.file.byHash(hash)
	via, why := "", Accepted
	switch {
	case e != nil:
		via = e.Via
		if l.far != nil {
			g.login = newLoginID(hash, l.far.others.Mark())
		}
	case mark == "" || l.far == nil:
		why = Unknown
	default:
		g, via, why = l.far.find(ctx, hash, mark)
	}
	switch {
	case why != Accepted:
		return nil, why
	case via != "": // it has the rights that its token has now
		var with *Grant
		if l.tokens != nil {
			with = l.tokens.ByID(via)
		}
		if with == nil {
			return nil, Unknown
		}
		with.credentials, with.login = append(with.credentials, g.credentials...), g.login
		g = with
	case g.login != "":
		g.token = string(g.login)
	}
	if !g.IsValid(time.Now()) {
		return nil, expired
	}
	return g, Accepted
}

// byID returns the grant of a login that comes from no token; nil: it no longer exists, or its node cannot be asked.
func (l *logins) byID(id string) *Grant {
	hash, mark, ok := loginID(id).split()
	if !ok {
		return l.file.ByID(id)
	}
	if l.far != nil && mark == l.far.others.Mark() {
		mark = ""
	}
	g, _ := l.find(context.Background(), hash, mark)
	return g
}

// cookieName returns the name of the cookie, which has the port in it. Cookies ignore ports, so two gateways on one machine would otherwise log each
// other's users out.
func cookieName(r *http.Request) string {
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return "trl_login_" + port
	}
	return "trl_login"
}

// LoginPrefix begins the path of a login's cookie, and of all routes that need a login: /at/LOGIN/v1/ws is /v1/ws. Browsers send a cookie of the path
// / to every server on this host, whatever its port, also to a program in a session. They ask none of those for this path.
const LoginPrefix = "/at/"

// loginPath returns a path that nobody can guess without the secret. The file of logins has another hash of the secret.
func loginPath(secret string) string {
	hash := sha256.Sum256([]byte("path " + secret))
	return LoginPrefix + hex.EncodeToString(hash[:16]) + "/"
}

// cookiePath returns the path of the request's login, or / outside of one.
func cookiePath(r *http.Request) string {
	if rest, ok := strings.CutPrefix(r.RequestURI, LoginPrefix); ok {
		login, _, _ := strings.Cut(rest, "/")
		return LoginPrefix + login + "/"
	}
	return "/"
}

// loginCookie returns the login in r; "": none. Below a login's path no other cookie counts: every server on this host may set cookies for the whole
// host, with another login in them.
func loginCookie(r *http.Request) string {
	path := cookiePath(r)
	for _, c := range r.CookiesNamed(cookieName(r)) {
		if path == "/" || path == loginPath(c.Value) {
			return c.Value
		}
	}
	return ""
}

// setCookie gives the browser its login. Scripts cannot read it, and pages of other sites cannot make the browser send it.
func setCookie(w http.ResponseWriter, r *http.Request, secret string, until time.Time) {
	DropCookie(w, r) // an old cookie for the path /, as earlier versions set it
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: secret, Path: loginPath(secret), Expires: until,
		HttpOnly: true, Secure: IsSecure(r), SameSite: http.SameSiteStrictMode,
	})
}

// DropCookie makes the browser forget the login that came with r.
func DropCookie(w http.ResponseWriter, r *http.Request) {
	if _, err := r.Cookie(cookieName(r)); err != nil {
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Path: cookiePath(r), MaxAge: -1, HttpOnly: true, Secure: IsSecure(r), SameSite: http.SameSiteStrictMode})
}
