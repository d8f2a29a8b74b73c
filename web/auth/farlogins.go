package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"trl/protocol"
)

// Others are the other nodes of a cluster. A node asks them about the logins and tickets that they have given out. The text of a login or ticket ends
// with the mark of its node, which stands for the node's name: a node that is restarted has another epoch, and its file of logins still.
type Others interface {
	// Mark returns this node's mark.
	Mark() string
	// Marks returns the marks of all other known nodes.
	Marks() []string
	// Ask posts a question to a node, and decodes the answer. The error has the code SESSION_LOST if no node has the mark; any other error says that the
	// node cannot be asked now.
	Ask(ctx context.Context, mark, path string, question, answer any) *protocol.Error
}

// The questions of nodes. The paths are those of Checker.NodeRoutes.
const (
	loginsPath = "/node/logins"
	logoutPath = "/node/logout"
	ticketPath = "/node/ticket"
)

// MayRepeat reports whether a question to a path may be asked again if its answer was lost: one that changes nothing.
func MayRepeat(path string) bool { return path == loginsPath }

const (
	// askTimeout bounds a question to another node.
	askTimeout = 5 * time.Second
	// recheckInterval is how often the nodes of logins in use here are asked whether these are still good. A logout at a node that does not reach this
	// one ends the login here after this time at the latest.
	recheckInterval = 5 * time.Second
	// forgetLoginAfter is how long a login of another node is kept after its last request, if no connection uses it.
	forgetLoginAfter = time.Minute
)

// A loginID names a login without revealing its secret: HASH.MARK, with the hash of its cookie in hexadecimal digits.
type loginID string

func newLoginID(hash [sha256.Size]byte, mark string) loginID {
	return loginID(hex.EncodeToString(hash[:]) + "." + mark)
}

// split returns the parts of id; ok means that it is one.
func (id loginID) split() (hash [sha256.Size]byte, mark string, ok bool) {
	digits, mark, found := strings.Cut(string(id), ".")
	hash, ok = parseHash(digits)
	return hash, mark, found && ok
}

func parseHash(digits string) (hash [sha256.Size]byte, ok bool) {
	if len(digits) != 2*sha256.Size {
		return hash, false
	}
	_, err := hex.Decode(hash[:], []byte(digits))
	return hash, err == nil
}

// withMark appends the mark of this node to the text of a login or ticket.
func withMark(o Others, text string) string {
	if o == nil {
		return text
	}
	return text + "." + o.Mark()
}

// markOf returns the mark of the other node that has given out text; "": it is of this one, or of none.
func markOf(o Others, text string) string {
	if o == nil {
		return ""
	}
	_, mark, _ := strings.Cut(text, ".")
	if _, err := hex.DecodeString(mark); err != nil || len(mark) != markSize || mark == o.Mark() {
		return ""
	}
	return mark
}

// markSize is the length of a mark: 32 bits in hexadecimal digits.
const markSize = 8

// MarkOf returns the mark of the node with a name. It is a hash, so that clients do not see names of machines.
func MarkOf(node string) string {
	hash := sha256.Sum256([]byte("node " + node))
	return hex.EncodeToString(hash[:])[:markSize]
}

// described is what a node says of a login or a ticket of its own.
type described struct {
	Subject     string  `json:"subject"`
	Role        Role    `json:"role"`
	Token       string  `json:"token,omitzero"` // the id of the token on which it rests
	Login       loginID `json:"login,omitzero"` // of a ticket: the login on which it rests
	Origin      string  `json:"origin,omitzero"`
	ExpiresInMS int64   `json:"expires_in_ms,omitzero"` // from now on, because the two nodes' clocks may differ; 0: never
}

// describe says of a grant what another node needs to make the same one; ok means that it is valid.
func describe(g *Grant) (v described, ok bool) {
	v = described{Subject: g.Subject, Role: g.Role, Token: g.token, Login: g.login}
	if g.login != "" && g.token == string(g.login) {
		v.Token = ""
	}
	if at := g.Expires(); !at.IsZero() {
		v.ExpiresInMS = max(1, time.Until(at).Milliseconds())
	}
	return v, g.IsValid(time.Now())
}

func (v *described) terms() (t Terms) {
	if v.ExpiresInMS > 0 {
		t.Expires = time.Now().Add(time.Duration(v.ExpiresInMS) * time.Millisecond)
	}
	return t
}

// farLogins are the logins of other nodes that are in use here. Its node has confirmed each, and is asked again every recheckInterval while requests or
// connections use it. A login whose node cannot be asked goes on: it was good, and a logout is told to every node.
type farLogins struct {
	others  Others
	ctx     context.Context // ends in close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	known    map[[sha256.Size]byte]*farLogin // guarded by mu
	checking bool                            // guarded by mu; the goroutine of check runs
}

type farLogin struct {
	mark       string
	who        Principal
	via        string // the token from which it was made
	credential *credentialState
	used       time.Time // guarded by farLogins.mu; when a request last used it
}

func newFarLogins(o Others) *farLogins {
	f := &farLogins{others: o, known: map[[sha256.Size]byte]*farLogin{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

func (f *farLogins) close() {
	f.cancel()
	f.running.Wait()
}

// find returns the grant of a login of another node without that of its token, whose id is via. It asks the node if the login is not in use here.
func (f *farLogins) find(ctx context.Context, hash [sha256.Size]byte, mark string) (g *Grant, via string, why Outcome) {
	if l := f.use(hash); l != nil {
		return l.grant(hash), l.via, Accepted
	}
	answer := map[string]described{}
	id := hex.EncodeToString(hash[:])
	if e := f.ask(ctx, mark, []string{id}, &answer); e != nil {
		if e.Code == protocol.SessionLost {
			return nil, "", Unknown
		}
		return nil, "", unavailable
	}
	v, ok := answer[id]
	if !ok {
		return nil, "", Unknown
	}
	l := f.add(hash, &farLogin{mark: mark, who: Principal{v.Subject, v.Role}, via: v.Token, credential: newCredentialState(v.terms())})
	if l == nil {
		return nil, "", unavailable
	}
	return l.grant(hash), l.via, Accepted
}

func (f *farLogins) ask(ctx context.Context, mark string, ids []string, answer *map[string]described) *protocol.Error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return f.others.Ask(ctx, mark, loginsPath, ids, answer)
}

// use returns a login that is in use here, for one more request; nil: it is not.
func (f *farLogins) use(hash [sha256.Size]byte) *farLogin {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.known[hash]
	if l != nil {
		l.used = time.Now()
	}
	return l
}

// add adds a login, unless another request has done so meanwhile. It returns nil if there are too many.
func (f *farLogins) add(hash [sha256.Size]byte, l *farLogin) *farLogin {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before := f.known[hash]; before != nil {
		return before
	}
	if len(f.known) >= maxLogins || f.ctx.Err() != nil {
		return nil
	}
	l.used = time.Now()
	f.known[hash] = l
	if !f.checking {
		f.checking = true
		f.running.Go(f.check)
	}
	return l
}

func (l *farLogin) grant(hash [sha256.Size]byte) *Grant {
	id := newLoginID(hash, l.mark)
	return &Grant{Principal: l.who, token: string(id), login: id, credentials: []*credentialState{l.credential}}
}

// end ends a login here, and reports whether it was in use.
func (f *farLogins) end(hash [sha256.Size]byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.known[hash]
	if l == nil {
		return false
	}
	delete(f.known, hash)
	l.credential.withdraw()
	return true
}

// check asks the nodes of all logins in use, again and again, until there are none. There is one such goroutine at most; close waits for it.
func (f *farLogins) check() {
	tick := time.NewTicker(recheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-tick.C:
		}
		byMark := f.inUse(time.Now())
		if byMark == nil {
			return
		}
		var asking sync.WaitGroup
		for mark, ids := range byMark {
			asking.Go(func() { f.recheck(mark, ids) }) // ends within askTimeout; waited for below
		}
		asking.Wait()
	}
}

// inUse forgets the logins that nobody uses, and returns the ids of the others by the marks of their nodes. nil: there are none, and check ends.
func (f *farLogins) inUse(now time.Time) map[string][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	byMark := map[string][]string{}
	for hash, l := range f.known {
		switch at := l.credential.terms.Load().Expires; {
		case !at.IsZero() && now.After(at), now.Sub(l.used) > forgetLoginAfter && !l.credential.inUse():
			delete(f.known, hash)
		default:
			byMark[l.mark] = append(byMark[l.mark], hex.EncodeToString(hash[:]))
		}
	}
	if len(byMark) == 0 {
		f.checking = false
		return nil
	}
	return byMark
}

// recheck asks a node for logins, and ends those that it no longer has.
func (f *farLogins) recheck(mark string, ids []string) {
	answer := map[string]described{}
	if f.ask(f.ctx, mark, ids, &answer) != nil {
		return
	}
	for _, id := range ids {
		if _, ok := answer[id]; !ok {
			hash, _ := parseHash(id)
			f.end(hash)
		}
	}
}

// tell tells other nodes that a login has ended. They need not answer: see recheckInterval.
func (f *farLogins) tell(ctx context.Context, id loginID, marks []string) {
	ctx, cancel := context.WithTimeout(ctx, logoutTimeout)
	defer cancel()
	var telling sync.WaitGroup
	for _, mark := range marks {
		telling.Go(func() { _ = f.others.Ask(ctx, mark, logoutPath, id, new(bool)) }) // ends with ctx; waited for below
	}
	telling.Wait()
}

// logoutTimeout is how long a logout waits for nodes that use the login and have not given it out.
const logoutTimeout = time.Second

// ErrNotLoggedOut says that a login goes on, because its node cannot be told.
var ErrNotLoggedOut = errors.New("the node that gave this login out cannot be reached; try again")

// endEverywhere ends a login of another node at all nodes. The outcome is unavailable if it goes on, and Unknown if there was none.
func (f *farLogins) endEverywhere(ctx context.Context, id loginID) Outcome {
	hash, mark, _ := id.split()
	asked, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	was := false
	if e := f.others.Ask(asked, mark, logoutPath, id, &was); e != nil && e.Code != protocol.SessionLost {
		return unavailable
	}
	if !f.end(hash) && !was { // nobody is told, or anybody could make nodes ask each other
		return Unknown
	}
	f.tell(ctx, id, slices.DeleteFunc(f.others.Marks(), func(m string) bool { return m == mark }))
	return Accepted
}

// restore makes the grant of which another node has told.
func (c *Checker) restore(ctx context.Context, v *described) (g *Grant, why Outcome) {
	switch hash, mark, ok := v.Login.split(); {
	case ok:
		if mark == c.c.Others.Mark() {
			mark = ""
		}
		return c.logins.find(ctx, hash, mark)
	case v.Token == "":
		return newGrant(Principal{v.Subject, v.Role}, v.terms()), Accepted
	case c.c.Tokens != nil:
		g = c.c.Tokens.ByID(v.Token)
	}
	if g == nil {
		return nil, Unknown
	}
	return g, Accepted
}

// What this node answers.

// maxQuestion bounds a question: maxLogins hashes and some.
const maxQuestion = 1 << 20

// NodeRoutes returns the routes for other nodes, by their patterns.
func (c *Checker) NodeRoutes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"POST " + loginsPath: answerNode(c.tellLogins), "POST " + logoutPath: answerNode(c.hearLogout), "POST " + ticketPath: answerNode(c.tickets.redeem),
	}
}

func answerNode[Q, A any](answer func(Q) A) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q Q
		if err := json.UnmarshalRead(http.MaxBytesReader(w, r.Body, maxQuestion), &q); err != nil {
			http.Error(w, "not a question of a node", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.MarshalWrite(w, answer(q)) // the other node may be gone
	}
}

// tellLogins says of logins of this node, by the hashes of their cookies, which are good.
func (c *Checker) tellLogins(ids []string) map[string]described {
	good := map[string]described{}
	for _, id := range ids {
		hash, _ := parseHash(id)
		g, why := c.logins.find(context.Background(), hash, "")
		if why != Accepted {
			continue
		}
		if v, ok := describe(g); ok {
			v.Login = ""
			good[id] = v
		}
	}
	return good
}

// hearLogout ends a login because of a logout at another node. It reports whether this node has given it out.
func (c *Checker) hearLogout(id loginID) bool {
	hash, _, ok := id.split()
	if !ok {
		return false
	}
	c.logins.far.end(hash)
	was, err := c.logins.endOwn(hash)
	if err != nil {
		c.log.Error().Err(err).Msg(LoginInFile)
	}
	return was
}

// LoginInFile is logged when the file of logins cannot be written.
const LoginInFile = "login has ended, but is in the file still: a gateway that starts before the next login or logout takes it"
