package rpc

import (
	"context"

	"trl/pool"
	"trl/protocol"
	"trl/web/transport"
)

// A guest is a client with a share link. It acts in the owner's name and reaches only what the link opens. It may call only the methods that are
// listed here.

// guestMethods says for each method what the link must allow.
var guestMethods = map[string]struct{ control, whole bool }{
	"system.ping":         {},
	"system.capabilities": {},
	"stream.ack":          {},

	"term.list":     {},
	"term.attach":   {}, // only to view, unless the link allows control
	"term.detach":   {},
	"term.snapshot": {},
	"term.input":    {control: true},
	"term.resize":   {control: true},
	"term.open":     {control: true, whole: true},
	"term.close":    {control: true, whole: true},

	"session.info":    {whole: true},
	"session.list":    {whole: true},
	"session.watch":   {whole: true},
	"session.unwatch": {whole: true},
	"session.touch":   {control: true, whole: true},

	"exec.list":   {whole: true},
	"exec.attach": {whole: true},
	"exec.detach": {whole: true},
	"exec.wait":   {whole: true},
	"exec.run":    {control: true, whole: true},
	"exec.stream": {control: true, whole: true},
	"exec.input":  {control: true, whole: true},
	"exec.cancel": {control: true, whole: true},

	"process.list":   {whole: true},
	"process.info":   {whole: true},
	"process.logs":   {whole: true},
	"process.detach": {whole: true},
	"process.wait":   {control: true, whole: true}, // it can make the gateway connect to an address
	"process.start":  {control: true, whole: true},
	"process.input":  {control: true, whole: true},
	"process.kill":   {control: true, whole: true},
}

func guestMay(sh *pool.Share, method string) bool {
	wants, listed := guestMethods[method]
	return listed && (sh.Control() || !wants.control) && (sh.Terminal() == "" || !wants.whole)
}

// guestSession is find for a guest. The session of its link is its default session; no other one exists for it.
func (k *call) guestSession(ref protocol.SessionRef) (*pool.Session, error) {
	s := k.c.grant.Share.Session()
	if ref == (protocol.SessionRef{}) || ref.SessionID == s.ID() || ref.Session != "" && ref.Session == s.Summary().Name {
		return s, nil
	}
	return nil, protocol.Errorf(protocol.SessionNotFound, "no such session")
}

// workStarter is the session for its owner, and the link for a guest. Guests have request_keys of their own.
type workStarter interface {
	Exec(*protocol.Exec) (*pool.Exec, error)
	Stream(*protocol.Exec) (*pool.Exec, error)
	StartProcess(context.Context, *protocol.ProcessStart) (*pool.Process, error)
	OpenTerminal(context.Context, *protocol.TermOpen) (*pool.Terminal, error)
}

// starter returns where the request's work starts, in the session s.
func (k *call) starter(s *pool.Session) workStarter {
	if sh := k.c.grant.Share; sh != nil {
		return sh
	}
	return s
}

// checkStartedIn checks the session in which the work of a request runs. It may be an earlier session of the same name, if a request_key stands for
// that work.
func (k *call) checkStartedIn(s *pool.Session) error {
	if !k.c.grant.Reaches(s, "") {
		return protocol.Errorf(protocol.SessionNotFound, "no such session")
	}
	k.session = s.ID()
	return nil
}

// endWithShare ends the connection when its link ends.
func (c *conn) endWithShare(sh *pool.Share) {
	select {
	case <-sh.Ended():
		c.end(transport.ReasonUnshared)
	case <-c.ctx.Done():
	}
}

func shareCreate(k *call, q *protocol.ShareCreate) (any, bool, error) {
	create := func(s *pool.Session) (any, bool, error) {
		by := k.c.srv.auth.ForShare(k.c.grant)
		sh, token, err := s.Share(q, by.CredentialID(), by.Expires())
		if err != nil {
			return nil, false, err
		}
		return &protocol.ShareCreated{Share: sh.Info(), Token: token, Path: "/share#token=" + token}, false, nil
	}
	if q.TermID == "" {
		return k.withSession(q.SessionRef, false, create)
	}
	t, err := k.terminal(q.TermID)
	if err != nil {
		return nil, false, err
	}
	return create(t.Session())
}

func shareList(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, false, func(s *pool.Session) (any, bool, error) { return &protocol.Shares{Shares: s.Shares()}, false, nil })
}

func shareRevoke(k *call, q *protocol.ShareRef) (any, bool, error) {
	return nil, false, k.c.srv.pool.Revoke(k.c.actsFor(q.ShareID), q.ShareID)
}
