package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"trl/protocol"
)

const defaultSession = "default"

// Session is a persistent shell: its directory, variables and functions stay from one command to the next. Several goroutines may use its methods.
//
// Requests name a session by its id. A gateway of another epoch, which may have a session of the same name, therefore answers SESSION_LOST.
type Session struct {
	c   *Client // set once
	own bool    // set once; the Client's own session

	mu   sync.Mutex
	id   string // guarded by mu; "": the Client's own session, not asked for yet
	name string // guarded by mu
}

// SessionOptions says what CreateSession makes. The zero value makes a session without a name, with the server's shell.
type SessionOptions struct {
	Name           string            // unique among the principal's live sessions
	Cwd            string            // its first directory
	Env            map[string]string // its first variables
	Shell          string            // a path, or a name such as bash or zsh
	CommandTimeout time.Duration     // of each command that has no time limit of its own
	IdleTimeout    time.Duration     // after so long without anything happening the session ends
	IfExists       string            // if a live session has the name: "error" (the default) or "return" it
	OnDisconnect   string            // when this connection is gone: "keep" (the default) or "destroy"
	Limits         *protocol.Limits
	Labels         map[string]string
	Record         string            // "off", "terminals", "execs" or "all"
	Node           string            // the node of a cluster that is to make it; "": any
	Where          map[string]string // labels that this node must have
}

// request returns the session.create.
func (o *SessionOptions) request() protocol.SessionCreate {
	if o == nil {
		o = &SessionOptions{}
	}
	return protocol.SessionCreate{
		Name: o.Name, WorkingDir: o.Cwd, Env: environment(o.Env, nil), Shell: o.Shell, Timeout: seconds(o.CommandTimeout), IdleTimeout: seconds(o.IdleTimeout),
		IfExists: o.IfExists, OnDisconnect: o.OnDisconnect, Limits: o.Limits, Labels: o.Labels, Record: o.Record, Node: o.Node, Where: o.Where,
		RequestKey: rand.Text(),
	}
}

// CreateSession makes a session.
func (c *Client) CreateSession(ctx context.Context, o *SessionOptions) (*Session, error) {
	var made protocol.Session
	if err := c.Call(ctx, "session.create", o.request(), &made); err != nil {
		return nil, err
	}
	return c.session(&made), nil
}

func (c *Client) session(s *protocol.Session) *Session {
	return &Session{c: c, id: s.SessionID, name: s.Name}
}

// GetSession returns a session that exists, by its name or its id.
func (c *Client) GetSession(ctx context.Context, nameOrID string) (*Session, error) {
	info, err := c.find(ctx, nameOrID)
	if err != nil {
		return nil, err
	}
	return c.session(&info.Session), nil
}

// SessionWithID returns a session by its id without asking the server. If there is no such session, its first use says so.
func (c *Client) SessionWithID(id string) *Session { return &Session{c: c, id: id} }

// find looks a session up by its name, and then by its id; or first by its id if it looks like one.
func (c *Client) find(ctx context.Context, nameOrID string) (info protocol.SessionInfo, err error) {
	refs := []protocol.SessionRef{{Session: nameOrID}, {SessionID: nameOrID}}
	if strings.HasPrefix(nameOrID, "s-") {
		slices.Reverse(refs)
	}
	for _, ref := range refs {
		if err = c.Call(ctx, "session.info", ref, &info); !IsSessionNotFound(err) {
			break
		}
	}
	return info, err
}

// ListSessions lists the principal's sessions; q may ask for some of them.
func (c *Client) ListSessions(ctx context.Context, q protocol.SessionList) ([]protocol.SessionInfo, error) {
	var all protocol.Sessions
	err := c.Call(ctx, "session.list", q, &all)
	return all.Sessions, err
}

// DeleteSession ends a session, by its name or its id, and everything that runs in it.
func (c *Client) DeleteSession(ctx context.Context, nameOrID string) error {
	s, err := c.GetSession(ctx, nameOrID)
	if err != nil {
		return err
	}
	return s.Destroy(ctx)
}

// ID returns the session's id. It is "" for the Client's own session before its first use.
func (s *Session) ID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Name returns the session's name; "" if it has none.
func (s *Session) Name() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.name
}

// use calls ask with the session's id. If the Client's own session has ended, the caller gets the error, and the next use makes another session.
func (s *Session) use(ctx context.Context, ask func(protocol.SessionRef) error) error {
	id, err := s.resolve(ctx)
	if err != nil {
		return err
	}
	err = ask(protocol.SessionRef{SessionID: id})
	if s.own && (IsSessionTerminated(err) || IsSessionNotFound(err)) {
		s.mu.Lock()
		if s.id == id {
			s.id = ""
		}
		s.mu.Unlock()
	}
	return err
}

// resolve returns the session's id. It asks for the Client's own session once.
func (s *Session) resolve(ctx context.Context) (string, error) {
	if id := s.ID(); id != "" || !s.own {
		return id, nil
	}
	id, err := s.c.ownSession(ctx, s.Name())
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
	return id, nil
}

// ownSession finds the session of this name or id, or makes the one of this name. A viewer or a guest may make none and gets the one that exists.
func (c *Client) ownSession(ctx context.Context, name string) (string, error) {
	if strings.HasPrefix(name, "s-") {
		if info, err := c.find(ctx, name); !IsSessionNotFound(err) {
			return info.SessionID, err
		}
	}
	create, err := encodeParams("session.create", protocol.SessionCreate{Name: name, IfExists: "return"})
	if err != nil {
		return "", err
	}
	var made protocol.Session
	err = c.send(ctx, request{method: "session.create", params: create, repeat: protocol.RepeatAlways}, &made)
	if !IsForbidden(err) {
		return made.SessionID, err
	}
	var can protocol.Capabilities
	if err := c.Call(ctx, "system.capabilities", nil, &can); err != nil {
		return "", err
	}
	if share := can.Principal.Share; share != nil {
		return share.SessionID, nil
	}
	info, err := c.find(ctx, name)
	return info.SessionID, err
}

// call sends a request about this session. params gets the reference to it.
func (s *Session) call(ctx context.Context, method string, params func(protocol.SessionRef) any, into any) error {
	return s.use(ctx, func(ref protocol.SessionRef) error { return s.c.Call(ctx, method, params(ref), into) })
}

func onlyRef(ref protocol.SessionRef) any { return ref }

// Info describes the session.
func (s *Session) Info(ctx context.Context) (*protocol.SessionInfo, error) {
	var info protocol.SessionInfo
	err := s.call(ctx, "session.info", onlyRef, &info)
	return &info, err
}

// Reset replaces the shell by a fresh one. Running work is cancelled, and processes end.
func (s *Session) Reset(ctx context.Context) error { return s.call(ctx, "session.reset", onlyRef, nil) }

// Rename gives the session another name.
func (s *Session) Rename(ctx context.Context, name string) error {
	err := s.call(ctx, "session.rename", func(ref protocol.SessionRef) any { return protocol.SessionRename{SessionRef: ref, Name: name} }, nil)
	if err == nil && !s.own {
		s.mu.Lock()
		s.name = name
		s.mu.Unlock()
	}
	return err
}

// Move moves the session to another node of the cluster, while nothing runs in it. lost names what the new node could not take of its state.
func (s *Session) Move(ctx context.Context, node string) (lost []string, err error) {
	var moved protocol.SessionMoved
	err = s.call(ctx, "session.move", func(ref protocol.SessionRef) any { return protocol.SessionMove{SessionRef: ref, Node: node} }, &moved)
	return moved.StateLost, err
}

// SessionUpdate is what Update changes. What is nil stays as it is.
type SessionUpdate struct {
	Labels         map[string]string // takes the place of all earlier labels
	CommandTimeout *time.Duration
	IdleTimeout    *time.Duration
}

// Update changes what CreateSession has set.
func (s *Session) Update(ctx context.Context, o SessionUpdate) error {
	return s.call(ctx, "session.update", func(ref protocol.SessionRef) any {
		q := protocol.SessionUpdate{SessionRef: ref}
		if o.Labels != nil {
			q.Labels = &o.Labels
		}
		if o.CommandTimeout != nil {
			t := protocol.Seconds(o.CommandTimeout.Seconds())
			q.Timeout = &t
		}
		if o.IdleTimeout != nil {
			t := protocol.Seconds(o.IdleTimeout.Seconds())
			q.IdleTimeout = &t
		}
		return q
	}, nil)
}

// Destroy ends the session and returns when all its processes are gone.
func (s *Session) Destroy(ctx context.Context) error {
	return s.call(ctx, "session.destroy", func(ref protocol.SessionRef) any { return protocol.SessionDestroy{SessionRef: ref} }, nil)
}

// Kill is Destroy without the grace between TERM and KILL.
func (s *Session) Kill(ctx context.Context) error {
	return s.call(ctx, "session.destroy", func(ref protocol.SessionRef) any { return protocol.SessionDestroy{SessionRef: ref, Force: true} }, nil)
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// SetEnv sets exported variables of the shell, and unsets others.
func (s *Session) SetEnv(ctx context.Context, set map[string]string, unset ...string) error {
	var lines []string
	for name, value := range set {
		lines = append(lines, "export "+name+"="+Quote(value))
	}
	for _, name := range unset {
		lines = append(lines, "unset "+name)
	}
	for _, line := range lines {
		if name, _, _ := strings.Cut(line[strings.IndexByte(line, ' ')+1:], "="); !variableName.MatchString(name) {
			return fmt.Errorf("%q is no name of a variable", name)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	_, err := s.Exec(ctx, strings.Join(lines, "\n"), &ExecOptions{Check: true})
	return err
}

// Quote makes a command line of words: a POSIX shell takes nothing in them as special.
func Quote(words ...string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%"
	quoted := make([]string, len(words))
	for i, word := range words {
		if quoted[i] = word; word == "" || strings.Trim(word, plain) != "" {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// seconds makes a time of the wire; 0 means that none was given, and less that there is none.
func seconds(d time.Duration) *protocol.Seconds {
	if d == 0 {
		return nil
	}
	s := protocol.Seconds(max(0, d).Seconds())
	return &s
}

func environment(set map[string]string, unset []string) protocol.Env {
	if len(set)+len(unset) == 0 {
		return nil
	}
	env := protocol.Env{}
	for name, value := range set {
		env[name] = &value
	}
	for _, name := range unset {
		env[name] = nil
	}
	return env
}
