package rpc

import (
	"cmp"
	"context"

	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/credit"
	"trl/web/rpc/source"
)

func termOpen(k *call, q *protocol.TermOpen) (any, bool, error) {
	return k.withSession(q.SessionRef, true, func(s *pool.Session) (any, bool, error) {
		c := k.c
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.checkStreamsLocked(); err != nil { // before the terminal is opened
			return nil, false, err
		}
		var t *pool.Terminal
		var err error
		c.reserveLocked(1, func() { t, err = k.starter(s).OpenTerminal(c.srv.ctx, q) })
		if err == nil {
			err = k.checkStartedIn(t.Session())
		}
		if err != nil {
			return nil, false, err
		}
		return k.followOpenedLocked(t, q, func(o *protocol.TermOpened) any { return o })
	})
}

// followOpenedLocked attaches the connection to a terminal that it has opened. answer makes the request's answer. mu is held.
func (k *call) followOpenedLocked(t *pool.Terminal, q *protocol.TermOpen, answer func(*protocol.TermOpened) any) (any, bool, error) {
	c := k.c
	before := c.viewerLocked(t) // a request_key may stand for a terminal to which this connection is attached already
	return c.followLocked(k, source.OfTerminal(t), 0, q.OnSlow != "skip", func(sub *subscription) any {
		sub.viewer = t.AddViewer(pool.AttachRequest{Label: c.viewerLabel(), Control: true, Cols: q.Cols, Rows: q.Rows, Replaces: before, Windowed: sub.windowReader(q.WindowBytes)})
		sub.credit = credit.New(q.WindowBytes, 0)
		id, _, claim := sub.viewer.Attached()
		info := t.Info()
		return answer(&protocol.TermOpened{
			TermID: t.ID(), SessionID: t.Session().ID(), StreamID: t.StreamID(), StreamNo: c.numberStream(sub), Pid: info.Pid, ViewerID: id, Claim: claim, RecordingID: t.RecordingID(),
			InputOffset: c.inputOffset(sub), StateLost: info.StateLost,
		})
	})
}

// reserveLocked reserves a place for a stream, or none, while f opens what the stream is of. mu is held, and released during f.
func (c *conn) reserveLocked(n int, f func()) {
	c.reserved += n
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.reserved -= n
	}()
	f()
}

func (k *call) terminal(id string) (*pool.Terminal, error) {
	t, err := k.c.srv.pool.FindTerminal(k.c.actsFor(id), id)
	if err == nil && !k.c.grant.Reaches(t.Session(), id) {
		return nil, protocol.Errorf(protocol.TermNotFound, "no such terminal")
	}
	return t, err
}

// viewerLabel is how other clients of a terminal see this connection.
func (c *conn) viewerLabel() pool.Label {
	l := pool.Label{Subject: c.principal.Subject}
	if sh := c.grant.Share; sh != nil {
		l.Share = cmp.Or(sh.Name(), sh.ID())
	}
	return l
}

// viewer returns this connection's viewer of a terminal, or nil if it is not attached.
func (c *conn) viewer(t *pool.Terminal) *pool.Viewer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.viewerLocked(t)
}

func (c *conn) viewerLocked(t *pool.Terminal) *pool.Viewer {
	if sub := c.subs[t.StreamID()]; sub != nil {
		return sub.viewer
	}
	return nil
}

func termInput(k *call, q *protocol.TermInput) (any, bool, error) {
	t, err := k.terminal(q.TermID)
	if err != nil {
		return nil, false, err
	}
	data, fault := protocol.DecodeBytes(q.Data, q.Encoding)
	if fault != nil {
		return nil, false, fault
	}
	v, err := k.inputViewer(t)
	if err != nil {
		return nil, false, err
	}
	return k.takeRequest(t.StreamID(), q.Offset, func(at int64) (int64, error) { return t.Input(v, at, data) })
}

func termResize(k *call, q *protocol.TermResize) (any, bool, error) {
	t, err := k.terminal(q.TermID)
	if err != nil {
		return nil, false, err
	}
	v, err := k.inputViewer(t)
	if err != nil {
		return nil, false, err
	}
	return nil, false, t.Resize(v, q.Cols, q.Rows)
}

// inputViewer returns the viewer as which this connection types, or nil if it is not attached. A guest that is not attached may type only while
// nobody has control; otherwise it could detach to get around an owner that took control.
func (k *call) inputViewer(t *pool.Terminal) (*pool.Viewer, error) {
	v := k.c.viewer(t)
	if v == nil && k.c.grant.Share != nil && t.IsControlled() {
		return nil, protocol.Errorf(protocol.Forbidden, "another client has control; attach in control to type")
	}
	return v, nil
}

func termClose(k *call, q *protocol.TermClose) (any, bool, error) {
	t, err := k.terminal(q.TermID)
	if err != nil {
		return nil, false, err
	}
	return k.answerLater(func() (any, bool, error) {
		return k.runDetached(func(ctx context.Context) (any, error) {
			if err := t.Close(ctx, q.KillGrace); err != nil {
				return nil, err
			}
			info := t.Info()
			return &info, nil
		})
	})
}

func termAttach(k *call, q *protocol.TermAttach) (any, bool, error) {
	t, err := k.terminal(q.TermID)
	if err != nil {
		return nil, false, err
	}
	c := k.c
	if c.principal.Role == auth.Viewer {
		if q.Mode == "control" {
			return nil, false, protocol.Errorf(protocol.Forbidden, "a viewer may only read")
		}
		q.Mode = "view"
	}
	if q.Mode == "" && t.Session().Owner() != c.principal.Subject { // an admin at another principal's terminal
		q.Mode = "view"
	}
	control := q.Mode != "view"
	block := q.OnSlow == "block" || q.OnSlow == "" && control
	c.mu.Lock()
	defer c.mu.Unlock()
	offset := t.Journal().Start()
	switch {
	case q.Snapshot:
		offset = t.Journal().Size()
	case q.Offset != nil:
		offset = *q.Offset
	}
	before := c.viewerLocked(t)
	return c.followLocked(k, source.OfTerminal(t), offset, block, func(sub *subscription) any {
		sub.viewer = t.AddViewer(pool.AttachRequest{Label: c.viewerLabel(), Control: control, Claim: q.Claim, Cols: q.Cols, Rows: q.Rows, Replaces: before, Windowed: sub.windowReader(q.WindowBytes)})
		sub.showScreen, sub.credit = q.Snapshot, credit.New(q.WindowBytes, offset)
		sub.history, sub.startMissing = q.History, q.Offset == nil && offset > 0
		info := t.Info()
		id, mode, claim := sub.viewer.Attached()
		return &protocol.TermAttached{
			TermID: t.ID(), StreamID: t.StreamID(), StreamNo: c.numberStream(sub), Offset: offset, Mode: mode, Cols: info.Cols, Rows: info.Rows, State: info.State,
			ViewerID: id, Claim: claim, InputOffset: c.inputOffset(sub), RecordingID: info.RecordingID,
		}
	})
}

func termDetach(k *call, q *protocol.TermRef) (any, bool, error) {
	t, err := k.terminal(q.TermID)
	if err != nil {
		return nil, false, err
	}
	return k.detach(t.StreamID())
}

func termList(k *call, q *protocol.SessionRef) (any, bool, error) {
	return k.withSession(*q, false, func(s *pool.Session) (any, bool, error) {
		list := &protocol.Terminals{Terminals: []protocol.TermInfo{}}
		for _, t := range s.Terminals() {
			if !k.c.grant.Reaches(s, t.ID()) {
				continue
			}
			list.Terminals = append(list.Terminals, t.Info())
		}
		return list, false, nil
	})
}

func termSnapshot(k *call, q *protocol.TermRef) (any, bool, error) {
	t, err := k.terminal(q.TermID)
	if err != nil {
		return nil, false, err
	}
	return k.answerLater(func() (any, bool, error) { // drawing the screen may take long
		s, err := t.Snapshot(k.c.ctx)
		return &s, false, err
	})
}
