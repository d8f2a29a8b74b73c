package rpc

import (
	"bytes"
	"cmp"
	"errors"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/pool"
	"trl/pool/ids"
	"trl/pool/moved"
	"trl/protocol"
	"trl/web/rpc/cluster"
)

// A session may have moved to another node than that of its id. The node from which it went tells where it is, and so does the directory. A request that
// comes while a session moves waits for the end of the move, and is then carried out where the session is.

// following is what a call needs to follow a session that has moved. The goroutine that answers owns all but kept.
type following struct {
	kept     []byte // the message, if the session may be on another node when the request gets its turn; set before the request waits
	searched bool   // the directory was asked where the session is
	moves    int    // how often the session was somewhere else
}

// placeOf returns the epoch of the node that has what an id stands for, as far as this node knows.
func (c *conn) placeOf(kind byte, id string) (epoch string, ok bool) {
	epoch, ok = ids.EpochOf(kind, id)
	mark, is := ids.MarkOf(id)
	if !is {
		return epoch, ok
	}
	if c.srv.pool.Has(mark) {
		return c.srv.pool.Epoch(), true
	}
	if place := c.srv.moved.Of(mark); place != "" && !c.isBusy(epoch) {
		return place, true
	}
	return epoch, ok
}

// isBusy reports whether a node has to answer requests of the connection yet. Later requests for sessions that have moved from there go there, too, so that
// all come to the new node in their order.
func (c *conn) isBusy(epoch string) bool {
	if c.relays == nil {
		return false
	}
	c.mu.Lock()
	r := c.relays.byEpoch[epoch]
	c.mu.Unlock()
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting) > 0 || r.passing
}

// placeOfStream returns the epoch of the node that has a stream.
func (c *conn) placeOfStream(id string) (epoch string, ok bool) {
	if id, ok = cluster.IDOfStream(id); !ok {
		return "", false
	}
	return c.placeOf(id[0], id)
}

// keep keeps the request's message, because the session may have moved when the request gets its turn. The reading goroutine calls it first.
func (k *call) keep() {
	switch {
	case k.kept != nil || k.c.srv.config.Cluster.Nodes == nil:
	case k.remote != nil && k.remote.msg != nil:
		k.kept = k.remote.msg
	default:
		k.kept = bytes.Clone(k.msg)
	}
}

// maxMoves is how often a request follows its session.
const maxMoves = 8

// maxMoveWait is how long after its arrival a request waits for a move at one node, and follows its session from the client's node to another one. Both
// together are the minute that a client waits at most.
const maxMoveWait = 30 * time.Second

// goElsewhere carries out a request whose session moves, or is not here, as err says. Later requests of the connection to that session wait. The reading
// goroutine calls it.
func (k *call) goElsewhere(err error) (any, bool, error) {
	again, key := k.elsewhere(err)
	m, moves := errors.AsType[*pool.Move](err)
	if again == nil && moves && k.mustWait(m.Session().ID()) { // the node of the client learns of its requests in their order
		again, key = func() (any, bool, error) { return nil, false, err }, m.Session().ID()
	}
	if again == nil {
		return nil, false, err
	}
	k.keep()
	_, t := k.decodeKept()                                  // not later: another goroutine may be at the request
	answer, pending, failure := k.inOrder(key, true, again) // again keeps err
	if t.Session != "" {
		k.c.addQueueKey(key, nameKey(t.Session))
	}
	return answer, pending, failure
}

// elsewhere returns how to carry out a request whose session moves, or is not here, and the key of the queue in which that is done. It returns nil if err is
// about something else.
func (k *call) elsewhere(err error) (again func() (any, bool, error), key string) {
	c := k.c
	if err == nil || c.srv.config.Cluster.Nodes == nil || c.grant.Share != nil || k.moves > maxMoves {
		return nil, ""
	}
	e := protocol.AsError(err)
	m, moves := errors.AsType[*pool.Move](err)
	switch {
	case moves && c.relays == nil && m.Session().HasMoved(): // the node of the client is told
		return nil, ""
	case moves:
		key, again = m.Session().ID(), func() (any, bool, error) { return k.afterMove(m) }
	case cluster.MayHaveMoved(e.Code) && !k.searched:
		mark := k.mark()
		if mark == "" {
			return nil, ""
		}
		key, again = mark, func() (any, bool, error) { return k.search(mark, e) }
	default:
		return nil, ""
	}
	if k.keep(); k.kept == nil {
		return nil, ""
	}
	k.moves++
	return again, key
}

// decodeKept decodes the message that was kept.
func (k *call) decodeKept() (params jsontext.Value, t cluster.Target) {
	if req, fault := k.c.decode(k.kept); fault == nil {
		params = req.Params
		_ = json.Unmarshal(params, &t) // what is wrong with them, the method says
	}
	return params, t
}

// mark returns the mark of the id that the request is about, "" if there is none.
func (k *call) mark() string {
	if k.keep(); k.kept == nil {
		return ""
	}
	_, t := k.decodeKept()
	_, id := t.ID()
	mark, _ := ids.MarkOf(id)
	return mark
}

// afterMove carries out a request after the move of its session.
func (k *call) afterMove(m *pool.Move) (any, bool, error) {
	late := time.NewTimer(time.Until(k.receivedAt.Add(k.c.srv.moveWait)))
	defer late.Stop()
	select {
	case <-m.Over():
	case <-late.C:
		return nil, false, cluster.StillMoves()
	case <-k.c.ctx.Done():
		return nil, false, errClientGone
	}
	if m.Session().HasMoved() {
		return k.again(m.Peer)
	}
	return k.again("")
}

// search asks the directory whether the ids with a mark have moved, and carries out the request there. It waits for the directory. e is the answer if they
// have not.
func (k *call) search(mark string, e *protocol.Error) (any, bool, error) {
	c := k.c
	k.searched = true
	epoch, err := c.srv.config.Cluster.Nodes.FindMoved(c.ctx, mark)
	switch {
	case err != nil: // it may have moved
		return nil, false, err
	case epoch == "" || epoch == c.srv.pool.Epoch() && !c.srv.pool.Has(mark), k.remote != nil && k.remote.relay != nil && k.remote.relay.epoch == epoch: // which has just answered
		return nil, false, e
	}
	c.srv.moved.Note(mark, epoch)
	return k.again(epoch)
}

// again carries out a request once more. epoch is that of the node which has the session; "": it has to be looked for.
func (k *call) again(epoch string) (any, bool, error) {
	c := k.c
	params, t := k.decodeKept()
	kind, id := t.ID()
	self := c.srv.pool.Epoch()
	if mark, ok := ids.MarkOf(id); ok && epoch != "" {
		c.srv.moved.Note(mark, epoch)
	}
	if epoch == "" && id != "" {
		epoch, _ = c.placeOf(kind, id)
	}
	if c.relays == nil {
		if epoch != "" && epoch != self {
			return nil, false, protocol.Errorf(moved.Code, "the session has moved").With("epoch", epoch).With("session_id", t.SessionID)
		}
		return k.handler.call.run(k, params)
	}
	if e := k.checkRelayedHTTP(&t); e != nil {
		return nil, false, e
	}
	name := ""
	if id == "" {
		name = cmp.Or(t.Session, t.Name, defaultSession)
	}
	c.mu.Lock()
	if k.remote == nil {
		k.remote = &remote{h: k.handler, target: t}
	}
	rm := k.remote
	rm.msg, rm.name = k.kept, name
	c.mu.Unlock()
	switch {
	case epoch == self || id != "" && !c.relays.isOther(epoch):
		return k.here()
	case epoch != "":
		if name != "" {
			c.relays.names.Note(name, epoch)
		}
		return k.sendTo(epoch, rm.msg)
	case c.srv.pool.HasOpen(c.principal.Subject, name):
		return k.here()
	case k.method == "session.create":
		return k.findOrPlace()
	}
	return k.lookUp(name, nil)
}

// follow carries out a request at the node to which its session has moved, as the node says that had it. It keeps the order of requests.
func (k *call) follow(fault *protocol.Error) bool {
	c, rm := k.c, k.remote
	epoch, _ := fault.Details["epoch"].(string)
	if epoch == "" && rm.relay != nil { // the session left that node while it answered; now the node knows where to
		epoch = rm.relay.epoch
	}
	if k.moves++; epoch == "" || k.moves > maxMoves || time.Since(k.receivedAt) > c.srv.moveWait {
		c.spawn(k.method, func() { k.answer(nil, cluster.StillMoves()) }) // as below
		return true
	}
	session, _ := fault.Details["session_id"].(string)
	c.srv.moved.Note(session, epoch)
	k.kept = rm.msg
	again := func() (any, bool, error) { return k.again(epoch) }
	if here := again; epoch == c.relays.self { // carrying it out may take long
		again = func() (any, bool, error) { return k.inOrder(session, true, here) }
	}
	if data, pending, err := k.recoverPanic(again); !pending {
		c.spawn(k.method, func() { k.runAndAnswer(func() (any, bool, error) { return data, false, err }) }) // waits for the Outbox, or until the session has arrived here; ends with the socket
	}
	return true
}
