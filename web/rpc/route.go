package rpc

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/pool/moved"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/rpc/cluster"
)

// A request goes to the node that has its session. An id says which node that is. A name is looked up: here, among the names that the connection has
// used, and then in the cluster's directory. A new session goes where there is room.

// defaults are the methods that use the default session if the request names none, and whether they make it.
var defaults = map[string]bool{"exec.run": true, "exec.stream": true, "exec.cancel": false, "process.start": true, "term.open": true}

// remote is what a request has that may be carried out by another node.
type remote struct {
	h      handler
	msg    []byte         // the request, as long as it may have to be sent again
	target cluster.Target //  of msg
	name   string         // the name of its session, if the node was found by it; "": by an id
	next   []string       // nodes to ask if this one takes no new session
	tries  int            // how often its session has been looked for

	relay    *relay        // guarded by conn.mu; where it was sent last; nil: it is carried out here
	counted  bool          // it counts as a task of the connection until it has been answered
	answered chan struct{} // closed when it has been answered; nil: nobody waits
}

// lasts reports whether more may come than the answer, or whether something ends with the connection.
func (rm *remote) lasts() bool {
	return rm.h.over != nothing || rm.target.Follow || rm.target.WindowBytes > 0 || rm.target.OnDisconnect != "" || rm.target.Terminal != nil
}

// maxLookups is how often a session is looked for, because what was known of it turned out to be old.
const maxLookups = 3

func (rm *remote) finish() {
	if rm != nil && rm.answered != nil {
		close(rm.answered)
		rm.answered = nil
	}
}

// route carries out a request here, or passes it to the node that has its session.
func (k *call) route(h handler) (any, bool, error) {
	c := k.c
	var t cluster.Target
	if c.grant.Share != nil || json.Unmarshal(k.params, &t) != nil && len(k.params) > 0 { // the guest of a session of this node; or params that are refused
		return h.call.run(k, k.params)
	}
	if k.method == "stream.ack" {
		epoch, _ := c.placeOfStream(t.StreamID)
		c.mu.Lock()
		r := c.relays.byEpoch[epoch]
		c.mu.Unlock()
		if r == nil { // the connection follows no stream of that node
			return h.call.run(k, k.params)
		}
		k.remote = &remote{h: h, target: t}
		return k.sendTo(epoch, k.msg)
	}
	if kind, id := t.ID(); id != "" {
		epoch, ok := c.placeOf(kind, id)
		if ok && kind == 'r' && epoch != c.relays.self && !c.relays.isOther(epoch) {
			return k.routeOldRecording(h)
		}
		if !ok || epoch == c.relays.self || t.SessionID != "" && t.Session != "" {
			return h.call.run(k, k.params)
		}
		switch c.relays.find(epoch) {
		case cluster.MayLive:
			return nil, false, cluster.UnknownYet()
		case cluster.Gone:
			return h.call.run(k, k.params)
		}
		if e := k.checkRelayedHTTP(&t); e != nil {
			return nil, false, e
		}
		k.remote = &remote{h: h, msg: bytes.Clone(k.msg), target: t}
		c.rememberCall(k)
		send := func() (any, bool, error) { return k.sendTo(epoch, k.remote.msg) }
		switch {
		case k.method == "session.rename":
			return k.renameInTurn(t.SessionID, send)
		case t.SessionID != "" && k.mustWait(t.SessionID):
			return k.inOrder(t.SessionID, false, send)
		}
		return send()
	}
	switch _, usesDefault := defaults[k.method]; {
	case k.method == "session.create":
		return k.routeCreate(h, t)
	case k.method == "system.drain" && t.Node != "" && c.principal.Role == auth.Admin:
		n, fault := c.srv.findNode(t.Node)
		if fault != nil || n.Epoch == c.relays.self {
			return h.call.run(k, k.params)
		}
		k.remote = &remote{h: h, target: t}
		return k.sendTo(n.Epoch, k.msg)
	case t.RequestID != nil:
		return k.routeByRequest(h, t)
	case t.Session == "" && !usesDefault:
		return h.call.run(k, k.params)
	}
	name := cmp.Or(t.Session, defaultSession)
	if c.srv.pool.HasOpen(c.principal.Subject, name) && !k.mustWait(nameKey(name)) {
		return h.call.run(k, k.params)
	}
	if e := k.checkRelayedHTTP(&t); e != nil {
		return nil, false, e
	}
	k.remote = &remote{h: h, msg: bytes.Clone(k.msg), target: t, name: name}
	c.rememberCall(k)
	send := func() (any, bool, error) { return k.lookUp(name, nil) }
	epoch, ok := c.relays.nodeOf(name)
	if ok {
		send = func() (any, bool, error) { return k.sendTo(epoch, k.remote.msg) }
	}
	switch {
	case k.method == "session.rename":
		return k.renameInTurn(nameKey(name), send)
	case ok && !k.mustWait(nameKey(name)):
		return send()
	}
	return k.inOrder(nameKey(name), true, send)
}

// inTurn carries out a request with inOrder. Later requests wait until it has been answered.
func (k *call) inTurn(key string, f func() (any, bool, error)) (any, bool, error) {
	answered := make(chan struct{})
	k.remote.answered = answered
	return k.inOrder(key, true, func() (any, bool, error) {
		data, pending, err := f()
		if pending {
			select {
			case <-answered:
			case <-k.c.ctx.Done():
			}
		}
		return data, pending, err
	})
}

// renameInTurn is inTurn for a session.rename. Requests that use the new name wait, too.
func (k *call) renameInTurn(key string, f func() (any, bool, error)) (any, bool, error) {
	answer, pending, err := k.inTurn(key, f)
	k.c.addQueueKey(key, nameKey(k.remote.target.Name))
	return answer, pending, err
}

// routeGuest passes a guest's request to the node of its share link.
func (k *call) routeGuest(h handler, epoch string) (any, bool, error) {
	var t cluster.Target
	if json.Unmarshal(k.params, &t) == nil {
		if e := k.checkRelayedHTTP(&t); e != nil {
			return nil, false, e
		}
		if t.RequestID != nil && k.c.request != nil && k.method == "exec.cancel" {
			return h.call.run(k, k.params) // which refuses it
		}
	}
	k.remote = &remote{h: h, target: t}
	c := k.c
	c.rememberCall(k)
	return k.sendTo(epoch, k.msg)
}

// find returns what is known of another node.
func (rs *relays) find(epoch string) cluster.Standing {
	_, standing := rs.nodes.Find(epoch)
	return standing
}

// isOther reports whether an epoch is that of another node that is known.
func (rs *relays) isOther(epoch string) bool {
	return epoch != rs.self && rs.find(epoch) == cluster.Known
}

// nodeOf returns the epoch of the node on which the connection has used a session of this name.
func (rs *relays) nodeOf(name string) (epoch string, ok bool) {
	epoch = rs.names.Of(name)
	return epoch, epoch != "" && rs.isOther(epoch)
}

// here carries out a request that was kept.
func (k *call) here() (any, bool, error) {
	req, fault := k.c.decode(k.remote.msg)
	if fault != nil {
		return nil, false, fault
	}
	k.c.mu.Lock()
	k.remote.relay = nil
	k.c.mu.Unlock()
	return k.remote.h.call.run(k, req.Params)
}

// sendTo sends a request to another node. The node's answer will be that of the request.
func (k *call) sendTo(epoch string, msg []byte) (any, bool, error) {
	c, rm := k.c, k.remote
	if rm.counted = rm.counted || c.beginTask(); k.needsAudit && c.srv.config.Audit != nil && k.auditParams == nil {
		k.auditParams = k.decodeForAudit(msg)
	}
	if id := rm.target.SessionID; id != "" {
		k.session = audit.ValidID(id)
	}
	for {
		r := c.relayTo(epoch)
		c.mu.Lock()
		rm.relay = r
		c.mu.Unlock()
		if r.send(k, msg) {
			return nil, true, nil
		}
		if c.ctx.Err() != nil {
			return nil, false, errClientGone
		}
	}
}

// decodeForAudit decodes the params of a request that another node carries out. It returns nil if they are refused there.
func (k *call) decodeForAudit(msg []byte) any {
	req, fault := k.c.decode(msg)
	if fault != nil {
		return nil
	}
	q := reflect.New(k.remote.h.call.params).Interface()
	if protocol.DecodeParams(req.Params, q) != nil {
		return nil
	}
	return q
}

// checkRelayedHTTP refuses, for a request over HTTP, what its method would refuse here: the other node sees a connection.
func (k *call) checkRelayedHTTP(t *cluster.Target) *protocol.Error {
	if k.c.request == nil {
		return nil
	}
	if k.method == "process.logs" && t.Follow {
		if e := k.checkHTTP(needsNDJSON); e != nil {
			return e
		}
	}
	return k.checkWindow(t.WindowBytes)
}

// lookUp carries out a request about a session that has a name, but not here as far as is known. It waits for the directory. failed is what the node
// answered on which the session was; nil: it was not looked for before.
func (k *call) lookUp(name string, failed *protocol.Error) (any, bool, error) {
	c, rm := k.c, k.remote
	rm.tries++
	epoch, err := k.findName(name)
	if err != nil {
		return nil, false, err
	}
	before := ""
	if rm.relay != nil {
		before = rm.relay.epoch
	}
	switch {
	case epoch != "" && epoch == before && failed != nil: // nothing has changed
		return nil, false, failed
	case epoch != "" && c.relays.isOther(epoch):
		c.relays.names.Note(name, epoch)
		return k.sendTo(epoch, rm.msg)
	case epoch != "":
		return k.here()
	case !defaults[k.method] || rm.target.Session != "":
		if failed != nil { // no other session has the name, so the node remembers the one that had it
			return nil, false, failed
		}
		return k.here()
	}
	// The default session is made where there is room.
	epochs, err := c.relays.nodes.Place(nil, "")
	if err != nil {
		return nil, false, err
	}
	return k.sendToFirst(epochs)
}

// sendToFirst makes a session at the first of the nodes, and at the next one if that has no room.
func (k *call) sendToFirst(epochs []string) (any, bool, error) {
	c, rm := k.c, k.remote
	rm.next = epochs[1:]
	if epochs[0] == c.relays.self {
		return k.here()
	}
	if rm.name != "" {
		c.relays.names.Note(rm.name, epochs[0])
	}
	return k.sendTo(epochs[0], rm.msg)
}

// routeByRequest sends an exec.cancel where the request went that it names.
func (k *call) routeByRequest(h handler, t cluster.Target) (any, bool, error) {
	c := k.c
	earlier := c.findCall(t.RequestID)
	if earlier == nil || c.request != nil {
		return h.call.run(k, k.params)
	}
	c.mu.Lock()
	rm, key := earlier.remote, earlier.queueKey
	var r *relay
	if rm != nil {
		r = rm.relay
	}
	undecided := rm != nil && r == nil && earlier.execID == "" && key != "" && c.queues[key] != nil
	c.mu.Unlock()
	switch {
	case r != nil:
		k.remote = &remote{h: h, target: t}
		return k.sendTo(r.epoch, k.msg)
	case !undecided:
		return h.call.run(k, k.params)
	}
	k.remote = &remote{h: h, msg: bytes.Clone(k.msg), target: t}
	return k.inOrder(key, false, func() (any, bool, error) {
		c.mu.Lock()
		r := earlier.remote.relay
		c.mu.Unlock()
		if r == nil {
			return k.here()
		}
		return k.sendTo(r.epoch, k.remote.msg)
	})
}

// routeCreate decides where a session is made. One that has the wanted name or request key already is where it is.
func (k *call) routeCreate(h handler, t cluster.Target) (any, bool, error) {
	c := k.c
	if c.request != nil && (t.OnDisconnect == "destroy" || t.Terminal != nil) || t.Name != "" && c.srv.pool.HasOpen(c.principal.Subject, t.Name) && !k.mustWait(nameKey(t.Name)) {
		return h.call.run(k, k.params)
	}
	k.remote = &remote{h: h, msg: bytes.Clone(k.msg), target: t, name: t.Name}
	key := ""
	switch {
	case t.Name != "":
		key = nameKey(t.Name)
	case t.RequestKey != "":
		key = "key " + t.RequestKey
	default:
		return k.findOrPlace()
	}
	return k.inTurn(key, k.findOrPlace) // later requests may use the name
}

// findOrPlace is the second half of routeCreate. It waits for the directory. Where a session of the name or key may be taken, or the directory does not
// work, it looks for one first. Otherwise the claim of the new session's node decides: whoever loses it learns which session has the name, and a
// look-up before would only cost time.
func (k *call) findOrPlace() (any, bool, error) {
	c, rm := k.c, k.remote
	var epoch string
	first := rm.target.IfExists == "return" || c.relays.nodes.Degraded()
	if first {
		var err error
		if epoch, err = k.findExisting(); err != nil {
			return nil, false, err
		}
	}
	if epoch == "" {
		epochs, err := c.relays.nodes.Place(rm.target.Where, rm.target.Node)
		if err == nil {
			return k.sendToFirst(epochs)
		}
		if !first { // nobody takes a new session, but there may be one
			epoch, _ = k.findExisting()
		}
		if epoch == "" {
			return nil, false, err
		}
	}
	return k.sendToFirst([]string{epoch})
}

// findExisting returns the epoch of the session that has the name or the request key of a session.create; "": there is none.
func (k *call) findExisting() (epoch string, err error) {
	c, rm := k.c, k.remote
	if rm.target.RequestKey != "" {
		epoch, err = c.relays.nodes.FindKey(c.ctx, c.principal.Subject, rm.target.RequestKey)
	}
	if err == nil && epoch == "" && rm.target.Name != "" {
		epoch, err = k.findName(rm.target.Name)
	}
	if epoch != c.relays.self && !c.relays.isOther(epoch) {
		epoch = ""
	}
	return epoch, err
}

// tryElsewhere carries out a request at another node, in a goroutine, if the failure that a node has answered says that it was the wrong one.
func (k *call) tryElsewhere(fault *protocol.Error) bool {
	c, rm := k.c, k.remote
	if rm == nil || rm.msg == nil || c.ctx.Err() != nil {
		return false
	}
	if fault.Code == moved.Code {
		return k.follow(fault)
	}
	if rm.tries > maxLookups {
		return false
	}
	if epoch := c.winnerOf(fault); rm.name != "" && c.relays.isOther(epoch) {
		c.relays.names.Note(rm.name, epoch)
	}
	var again func() (any, bool, error)
	switch _, full := fault.Details["max_sessions"]; {
	case len(rm.next) > 0 && (full || fault.Code == protocol.ShuttingDown || fault.Code == protocol.NodeUnreachable):
		again = func() (any, bool, error) { return k.sendToFirst(rm.next) }
	case fault.Code == protocol.SessionExists && k.takesExisting(): // it was made on another node at the same time
		epoch := c.winnerOf(fault)
		if !c.relays.isOther(epoch) && epoch != c.relays.self {
			return false
		}
		rm.tries++
		again = func() (any, bool, error) { return k.sendToWinner(epoch, fault) }
	case rm.name != "" && rm.relay != nil && slices.Contains([]protocol.Code{protocol.SessionNotFound, protocol.SessionLost, protocol.SessionTerminated}, fault.Code):
		again = func() (any, bool, error) { return k.lookUp(rm.name, fault) }
	case rm.name == "" && rm.relay != nil && !k.searched && time.Since(k.receivedAt) < c.srv.moveWait && (fault.Code == protocol.NodeUnreachable || fault.Code == protocol.SessionLost): // it may have moved before
		k.kept = rm.msg
		again = func() (any, bool, error) { return k.search(k.mark(), fault) }
	default:
		return false
	}
	c.spawn(k.method, func() { k.runAndAnswer(again) }) // looks the session up, and sends; ends with ctx; serve waits for it
	return true
}

// sendToWinner carries out the request at the node that has the session which fault names. The node that has answered does not have it: it has moved.
func (k *call) sendToWinner(epoch string, fault *protocol.Error) (any, bool, error) {
	if r := k.remote.relay; r != nil && r.epoch == epoch || r == nil && epoch == k.c.relays.self {
		var err error
		if epoch, err = k.findExisting(); err != nil || epoch == "" {
			return nil, false, fault
		}
	}
	return k.sendToFirst([]string{epoch})
}

// takesExisting reports whether the request may get a session that exists already: by its name, or because it comes from the same request. If it may not,
// the session's node says so again.
func (k *call) takesExisting() bool {
	if t := &k.remote.target; k.method == "session.create" {
		return t.IfExists == "return" || t.RequestKey != ""
	}
	return defaults[k.method] && k.remote.name == defaultSession
}

// winnerOf returns the epoch of the session that has the name already, if fault is about that.
func (c *conn) winnerOf(fault *protocol.Error) string {
	id, _ := fault.Details["session_id"].(string)
	epoch, _ := c.placeOf('s', id)
	return epoch
}

// routeOldRecording carries out a request about a recording of an earlier epoch. It is on any of the nodes.
func (k *call) routeOldRecording(h handler) (any, bool, error) {
	answer, pending, err := h.call.run(k, k.params)
	others := k.otherNodes("")
	if err == nil || len(others) == 0 || protocol.AsError(err).Code != protocol.RecordingNotFound {
		return answer, pending, err
	}
	params := bytes.Clone(k.params)
	return k.answerLater(func() (any, bool, error) {
		var found jsontext.Value
		k.gather(others, jsontext.Value(params), func(data jsontext.Value) error {
			found = data.Clone()
			return nil
		})
		if found == nil {
			return nil, false, err
		}
		return found, false, nil
	})
}
