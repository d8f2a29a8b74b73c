package rpc

import (
	"cmp"
	"context"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/pool"
	"trl/pool/token"
	"trl/protocol"
	"trl/web/auth"
)

func sessionCreate(k *call, q *protocol.SessionCreate) (any, bool, error) {
	c := k.c
	if q.OnDisconnect == "destroy" && c.request != nil {
		return nil, false, notOverHTTP("on_disconnect destroy binds the session to a connection").With("field", "on_disconnect")
	}
	if q.Terminal != nil && c.request != nil {
		return nil, false, notOverHTTP("a terminal sends its output over a connection").With("field", "terminal")
	}
	if e := k.checkPlace(q); e != nil {
		return nil, false, e
	}
	create := func() (_ any, _ bool, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		streams := 0
		if q.Terminal != nil {
			if err = c.checkStreamsLocked(); err != nil {
				return nil, false, err
			}
			streams = 1
		}
		var s *pool.Session
		var t *pool.Terminal
		var made bool
		created := new(protocol.SessionCreated)
		c.reserveLocked(streams, func() {
			// Not the client's ctx: the session may outlive it.
			if s, t, made, err = c.srv.pool.CreateOrFind(c.srv.ctx, c.principal.Subject, q); err == nil {
				created.Session = *k.summary(s) // it may wait for a file system
			}
		})
		if err != nil {
			return nil, false, err
		}
		if made && s.BindConn() { // a session that already existed ends with the connection that made it
			c.boundSessions = append(slices.DeleteFunc(c.boundSessions, func(s *pool.Session) bool { return token.IsClosed(s.Ended()) }), s)
		}
		if q.Name != "" {
			c.addQueueKeyLocked(nameKey(q.Name), s.ID())
		}
		if t == nil {
			return created, false, nil
		}
		return k.followOpenedLocked(t, q.Terminal.Open("", ""), func(o *protocol.TermOpened) any {
			created.Terminal = o
			return created
		})
	}
	if q.Name == "" {
		return k.answerLater(create) // no request can name the session before the answer
	}
	return k.inOrder(nameKey(q.Name), true, create)
}

// summary returns the short description of a session.
func (k *call) summary(s *pool.Session) *protocol.Session {
	data := s.Summary()
	data.Node = k.c.srv.nodeName()
	return &data
}

// info returns the full description of a session.
func (k *call) info(s *pool.Session) *protocol.SessionInfo {
	info := s.Info()
	info.Node = k.c.srv.nodeName()
	return &info
}

func sessionInfo(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, false, func(s *pool.Session) (any, bool, error) {
		return k.info(s), false, nil
	})
}

func sessionList(k *call, q *protocol.SessionList) (any, bool, error) {
	if (q.All || q.Owner != "") && k.c.principal.Role != auth.Admin {
		return nil, false, protocol.Errorf(protocol.Forbidden, "only an admin lists the sessions of others")
	}
	return k.answerLater(func() (any, bool, error) { // it asks the operating system about each session
		list := k.c.srv.pool.List(k.c.principal.Subject, q)
		if sh := k.c.grant.Share; sh != nil {
			list = slices.DeleteFunc(list, func(i protocol.SessionInfo) bool { return i.SessionID != sh.Session().ID() })
		}
		if list == nil {
			list = []protocol.SessionInfo{} // Clients read its length
		}
		node := k.c.srv.nodeName()
		for i := range list {
			list[i].Node = node
		}
		of := cmp.Or(q.Owner, k.c.principal.Subject)
		if q.All {
			of = ""
		}
		partial := k.gather(k.otherNodes(of), q, func(data jsontext.Value) error {
			var more protocol.Sessions
			err := json.Unmarshal(data, &more)
			for _, s := range more.Sessions { // one that has just moved may be in the answers of both nodes
				if !slices.ContainsFunc(list, func(i protocol.SessionInfo) bool { return i.SessionID == s.SessionID }) {
					list = append(list, s)
				}
			}
			return err
		})
		slices.SortStableFunc(list, func(a, b protocol.SessionInfo) int { return a.CreatedAt.Compare(b.CreatedAt) })
		return &protocol.Sessions{Sessions: list, Partial: partial}, false, nil
	})
}

func sessionDestroy(k *call, q *protocol.SessionDestroy) (any, bool, error) {
	return k.withSession(q.SessionRef, true, func(s *pool.Session) (any, bool, error) {
		return k.runDetached(func(ctx context.Context) (any, error) {
			data, err := s.Destroy(ctx, q)
			return &data, err
		})
	})
}

func sessionRename(k *call, q *protocol.SessionRename) (any, bool, error) {
	answer, pending, err := k.withSession(q.SessionRef, k.c.srv.config.Cluster.Nodes != nil, func(s *pool.Session) (any, bool, error) { // in a cluster it is slow: it waits for the directory
		if err := s.Rename(q.Name); err != nil {
			return nil, false, err
		}
		return k.summary(s), false, nil
	})
	if pending { // the request waits in a queue; requests that use the new name wait there, too
		k.c.addQueueKey(k.queueKey, nameKey(q.Name))
	}
	return answer, pending, err
}

func sessionUpdate(k *call, q *protocol.SessionUpdate) (any, bool, error) {
	return k.withSession(q.SessionRef, false, func(s *pool.Session) (any, bool, error) {
		if err := s.Update(q); err != nil {
			return nil, false, err
		}
		return k.info(s), false, nil
	})
}

func sessionReset(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, true, func(s *pool.Session) (any, bool, error) {
		return k.runDetached(func(ctx context.Context) (any, error) {
			if err := s.Reset(ctx); err != nil {
				return nil, err
			}
			return k.summary(s), nil
		})
	})
}

func sessionTouch(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, false, func(s *pool.Session) (any, bool, error) { return nil, false, s.Touch() })
}

func sessionWatch(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, false, func(s *pool.Session) (any, bool, error) { return k.c.watch(k, s) })
}

func sessionUnwatch(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, false, func(s *pool.Session) (any, bool, error) {
		c := k.c
		c.mu.Lock()
		w := c.watches[s.ID()]
		c.mu.Unlock()
		if w == nil {
			return nil, false, nil
		}
		w.stop()
		return k.answerLater(func() (any, bool, error) { // what the watch is sending goes out before the answer
			select {
			case <-w.gone:
			case <-c.ctx.Done():
			}
			return nil, false, nil
		})
	})
}

func sessionMove(k *call, q *protocol.SessionMove) (any, bool, error) {
	return k.withSession(q.SessionRef, true, func(s *pool.Session) (any, bool, error) {
		return k.runDetached(func(ctx context.Context) (any, error) { return k.c.srv.Moves.Move(ctx, s, q.Node) })
	})
}

func sessionLocate(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, false, func(s *pool.Session) (any, bool, error) {
		self := k.c.srv.self()
		return &protocol.Located{SessionID: s.ID(), Node: self.Node, URL: self.URL}, false, nil
	})
}
