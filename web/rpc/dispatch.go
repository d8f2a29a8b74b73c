package rpc

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"reflect"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"trl/pool"
	"trl/pool/answer"
	"trl/pool/moved"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/cluster"
	"trl/web/transport"
)

// call is one request until its answer has been sent.
type call struct {
	c             *conn
	id            jsontext.Value
	method        string
	handler       handler        // of method; set in dispatch
	msg           []byte         // the message's buffer: only the reading goroutine may use it, until handle returns
	params        jsontext.Value // part of msg
	countReleased bool           // owned by the goroutine that answers; see releaseCount
	queueKey      string         // guarded by c.mu; the queue in which the request waits
	turn          *requestQueue  // guarded by c.mu; the same; nil after its turn
	remote        *remote        // set before the request waits; nil: no other node can have its session
	execID        string         // guarded by c.mu; the command that it started
	following

	size       int64          // of the message
	output     *answer.Output // the output that the answer contains; set before the request waits
	onAnswered []func()       // owned by the goroutine that answers; called when the answer has been written

	receivedAt  time.Time // when the request was read
	auditParams any       // the params, for auditAnswer, which drops them; nil without an audit log
	session     string    // the id of its session, once that is known
	owner       string    // the owner of its recording, if that is another principal
	needsAudit  bool      // it gets an entry in the audit log
	auditDone   bool      // the entry has been written

	queued, began, ended time.Time // times of an exec.run that has ended, for trace
}

// access is the role that a method requires.
type access int

const (
	changes access = iota // a user or an admin
	reads                 // any role, because the method changes nothing
)

// handler carries out one method.
type handler struct {
	access access
	urgent bool // it ends or steers running work, so it is accepted beyond MaxInFlight
	over   overHTTP
	call   decodedCall
}

// decodedCall decodes a request's params and calls its method.
type decodedCall struct {
	params reflect.Type
	run    func(k *call, params jsontext.Value) (answer any, pending bool, err error) // pending: another goroutine will answer
}

// handlers has every method; a test compares it with protocol.Methods.
var handlers = map[string]handler{
	"session.create":  {access: changes, call: decoded(sessionCreate)},
	"session.info":    {access: reads, call: decoded(sessionInfo)},
	"session.list":    {access: reads, call: decoded(sessionList)},
	"session.destroy": {access: changes, urgent: true, call: decoded(sessionDestroy)},
	"session.rename":  {access: changes, call: decoded(sessionRename)},
	"session.update":  {access: changes, call: decoded(sessionUpdate)},
	"session.reset":   {access: changes, urgent: true, call: decoded(sessionReset)},
	"session.touch":   {access: changes, call: decoded(sessionTouch)},
	"session.watch":   {access: reads, over: needsConnection, call: decoded(sessionWatch)},
	"session.unwatch": {access: reads, urgent: true, over: needsConnection, call: decoded(sessionUnwatch)},
	"session.locate":  {access: reads, call: decoded(sessionLocate)},
	"session.move":    {access: changes, call: decoded(sessionMove)},

	"exec.run":    {access: changes, call: decoded(execRun)},
	"exec.stream": {access: changes, over: needsNDJSON, call: decoded(execStream)},
	"exec.wait":   {access: reads, call: decoded(execWait)},
	"exec.input":  {access: changes, urgent: true, call: decoded(execInput)},
	"exec.cancel": {access: changes, urgent: true, call: decoded(execCancel)},
	"exec.attach": {access: reads, over: needsNDJSON, call: decoded(execAttach)},
	"exec.detach": {access: reads, urgent: true, over: needsConnection, call: decoded(execDetach)},
	"exec.list":   {access: reads, call: decoded(execList)},

	"process.start":  {access: changes, call: decoded(processStart)},
	"process.list":   {access: reads, call: decoded(processList)},
	"process.info":   {access: reads, call: decoded(processInfo)},
	"process.logs":   {access: reads, call: decoded(processLogs)},
	"process.detach": {access: reads, urgent: true, over: needsConnection, call: decoded(processDetach)},
	"process.input":  {access: changes, urgent: true, call: decoded(processInput)},
	"process.kill":   {access: changes, urgent: true, call: decoded(processKill)},
	"process.wait":   {access: reads, call: decoded(processWait)},

	"term.open":     {access: changes, over: needsConnection, call: decoded(termOpen)},
	"term.input":    {access: changes, urgent: true, call: decoded(termInput)},
	"term.resize":   {access: changes, urgent: true, call: decoded(termResize)},
	"term.close":    {access: changes, urgent: true, call: decoded(termClose)},
	"term.attach":   {access: reads, over: needsConnection, call: decoded(termAttach)},
	"term.detach":   {access: reads, urgent: true, over: needsConnection, call: decoded(termDetach)},
	"term.list":     {access: reads, call: decoded(termList)},
	"term.snapshot": {access: reads, call: decoded(termSnapshot)},

	"share.create":     {access: changes, call: decoded(shareCreate)},
	"share.list":       {access: reads, call: decoded(shareList)},
	"share.revoke":     {access: changes, call: decoded(shareRevoke)},
	"recording.list":   {access: reads, call: decoded(recordingList)},
	"recording.info":   {access: reads, call: decoded(recordingInfo)},
	"recording.delete": {access: changes, call: decoded(recordingDelete)},

	"stream.ack": {access: reads, urgent: true, over: needsConnection, call: decoded(streamAck)},

	"system.drain":        {access: changes, call: decoded(systemDrain)},
	"system.ping":         {access: reads, call: decoded(systemPing)},
	"system.stats":        {access: reads, call: decoded(systemStats)},
	"system.nodes":        {access: reads, call: decoded(systemNodes)},
	"system.capabilities": {access: reads, call: decoded(systemCapabilities)},
}

func decoded[P any](f func(*call, *P) (answer any, pending bool, err error)) decodedCall {
	return decodedCall{params: reflect.TypeFor[P](), run: func(k *call, params jsontext.Value) (any, bool, error) {
		q := new(P)
		if err := protocol.DecodeParams(params, q); err != nil {
			return nil, false, err
		}
		if k.c.srv.config.Audit != nil {
			k.auditParams = q
		}
		return f(k, q)
	}}
}

// MaxInFlight is how many requests of one connection may be in flight by default: more than may wait in a session.
const MaxInFlight = 128

// maxUrgent is how many urgent requests may be in flight beyond MaxInFlight: as many as commands may wait in a session, so that a client can cancel
// each of them.
const maxUrgent = 64

// handle applies one request. It runs on the reading goroutine, which keeps requests in order.
func (c *conn) handle(msg []byte) {
	req, fault := c.decode(msg)
	most := c.srv.config.MaxInFlight
	if handlers[req.Method].urgent {
		most += maxUrgent
	}
	if c.inFlight.Load() >= int64(most) {
		c.srv.m.RateLimited.Inc()
		c.refuseRequest(req.ID, protocol.Errorf(protocol.RateLimited, "%d requests are in flight", most).With("limit", most))
		return
	}
	if e := c.grant.BeginRequest(); e != nil {
		c.srv.m.RateLimited.Inc()
		c.refuseRequest(req.ID, e)
		return
	}
	k := &call{c: c, id: req.ID, method: req.Method, msg: msg, params: req.Params, size: int64(len(msg)), receivedAt: time.Now()}
	if e := c.usage.ReserveRequest(k.size, handlers[req.Method].urgent); e != nil {
		c.srv.m.RateLimited.Inc()
		c.grant.EndRequest()
		c.refuseRequest(req.ID, e)
		return
	}
	c.inFlight.Add(1)
	var data any
	var pending bool
	var err error = fault
	if fault == nil {
		data, pending, err = k.recoverPanic(k.dispatch)
		if err != nil {
			data, pending, err = k.goElsewhere(err)
		}
	}
	k.msg, k.params = nil, nil
	if pending {
		return
	}
	k.releaseCount()
	k.auditAnswer(data, err)
	// If another goroutine is writing, it may be waiting for the client. Then this answer is sent from a goroutine of its own, and reading goes on: a
	// cancel must not wait behind the output that it is to stop, and a ping must not wait while a long answer is encoded.
	answering := time.Now()
	if sent, werr := c.out.TrySendMessage(k.message(data, err)); sent {
		k.releaseResources()
		k.trace(err, answering)
		c.checkSent(k.failUnwritable(werr))
		return
	}
	c.spawn(k.method, func() { k.answer(data, err) }) // encodes a long answer, or waits for the Outbox; ends with the socket
}

func (k *call) dispatch() (any, bool, error) {
	h, ok := handlers[k.method]
	k.handler = h
	if e := k.c.grant.ExpiredError(); e != nil {
		return nil, false, e
	}
	if far := k.c.grant.Elsewhere; far != nil {
		if e := k.checkHTTP(h.over); e != nil {
			return nil, false, e
		}
		return k.routeGuest(h, far.Epoch)
	}
	switch {
	case ok && k.c.grant.Share != nil && !guestMay(k.c.grant.Share, k.method):
		return nil, false, protocol.Errorf(protocol.Forbidden, "this share link does not allow it")
	case ok && (h.access == reads || k.c.principal.Role != auth.Viewer):
		if e := k.checkHTTP(h.over); e != nil {
			return nil, false, e
		}
		if err := k.admitAudit(h); err != nil {
			return nil, false, err
		}
		if k.c.relays != nil {
			return k.route(h)
		}
		return h.call.run(k, k.params)
	case ok:
		return nil, false, protocol.Errorf(protocol.Forbidden, "a viewer may only read")
	}
	return nil, false, protocol.NoSuchMethod(k.method)
}

// releaseCount takes the request off its credential's count. It runs before the answer is sent, because a client that has the answer may send the
// next request.
func (k *call) releaseCount() {
	if !k.countReleased {
		k.countReleased = true
		k.c.grant.EndRequest()
	}
}

// recoverPanic runs f and turns a panic into an error, so that a bug in one request does not end all sessions.
func (k *call) recoverPanic(f func() (any, bool, error)) (answer any, pending bool, err error) {
	defer k.c.recoverPanic(k.method, &err)
	return f()
}

// runAndAnswer runs f and sends its answer, unless another goroutine will do that.
func (k *call) runAndAnswer(f func() (any, bool, error)) {
	data, pending, err := k.recoverPanic(f)
	for again, _ := k.elsewhere(err); again != nil; again, _ = k.elsewhere(err) {
		data, pending, err = k.recoverPanic(again)
	}
	if !pending {
		k.answer(data, err)
	}
}

// answerLater runs f in a goroutine, which answers. f may wait, until ctx ends.
func (k *call) answerLater(f func() (any, bool, error)) (answer any, pending bool, err error) {
	k.keep()
	k.c.spawn(k.method, func() { k.runAndAnswer(f) }) // answers; f ends with ctx; serve waits for it
	return nil, true, nil
}

// releaseResources gives back everything that the request held.
func (k *call) releaseResources() {
	k.c.inFlight.Add(-1)
	k.c.usage.ReleaseRequest(k.size)
	if k.remote != nil {
		k.remote.msg = nil
		if k.remote.counted {
			defer k.c.endTask()
		}
	}
	if k.output != nil {
		k.output.Release()
	}
	for _, f := range k.onAnswered {
		f()
	}
	k.output, k.onAnswered, k.kept = nil, nil, nil // exec.cancel by request_id keeps the call for long
}

// reserveAnswer waits until an answer may hold n more bytes. They are given back when the answer has been written.
func (k *call) reserveAnswer(n int64) error {
	if n <= transport.KeepBuffer { // as much as a message that is encoded in one piece
		return nil
	}
	release, err := k.c.usage.ReserveAnswer(k.c.ctx, n)
	if err != nil {
		return errClientGone
	}
	k.onAnswered = append(k.onAnswered, release)
	return nil
}

// runDetached runs f, which goes on when the client leaves. A session decides how long f takes, and the connection must not last that long.
func (k *call) runDetached(f func(context.Context) (any, error)) (answer any, pending bool, err error) {
	s, done := k.c.srv, make(chan struct{})
	var result any // result and failure: read after done
	var failure error
	s.tasks.Add(1) // this connection is counted until later, so the counter is not 0 here and Add does not race with Wait
	go func() {    // ends with f, and f with the ctx of Clients at the latest; Close waits for it
		defer s.tasks.Done()
		defer close(done)
		defer k.c.recoverPanic(k.method, &failure)
		result, failure = f(s.ctx)
	}()
	select {
	case <-done:
		return result, false, failure
	case <-k.c.ctx.Done():
		return nil, false, errClientGone
	}
}

// answer sends the answer of the request.
func (k *call) answer(data any, err error) {
	if err != nil && k.remote != nil && k.tryElsewhere(protocol.AsError(err)) {
		return
	}
	defer k.remote.finish()
	defer k.releaseResources()
	k.releaseCount()
	k.auditAnswer(data, err)
	answering := time.Now()
	if err != errClientGone {
		k.c.checkSent(k.failUnwritable(k.c.out.SendMessage(k.message(data, err))))
	}
	k.trace(err, answering)
}

func (k *call) message(data any, err error) transport.Message {
	if err != nil {
		fault := k.fault(err)
		if k.c.request != nil {
			k.c.request.SetFault(fault.Code)
		}
		e := protocol.AppendFailure(nil, k.id, fault)
		return func(w io.Writer) error { _, err := w.Write(e); return err }
	}
	return func(w io.Writer) (err error) {
		defer k.c.recoverPanic(k.method, &err)
		return protocol.WriteResult(w, k.id, data)
	}
}

// failUnwritable sends an error if the answer could not be encoded. err is the result of writing the answer.
func (k *call) failUnwritable(err error) error {
	if cause, failed := transport.EncodeFailure(err); failed {
		return k.c.out.SendMessage(k.message(nil, cause))
	}
	return err
}

// fault returns what the client gets to see of err. The rest goes into the log, under an id that the client gets too.
func (k *call) fault(err error) *protocol.Error {
	e := protocol.AsError(err)
	if e.Code == moved.Code && k.c.transport.Name() != transport.LinkName {
		return cluster.StillMoves()
	}
	if e.Code == protocol.InternalError && e.Details["log_id"] == nil {
		id := rand.Text()[:8]
		e = protocol.Errorf(e.Code, "%s", e.Message).With("log_id", id)
		k.c.log.Error().Err(err).AnErr("cause", protocol.AsError(err).Unwrap()).Str("log_id", id).Str("method", k.method).Msg("request failed")
	}
	return e
}

// requestQueue keeps requests to one session in order while one of them takes long (a shell starts, a process tree ends). Later requests of this
// connection to the session wait behind that one. Otherwise there is no queue, and requests are applied as they are read.
type requestQueue struct {
	keys    []string // guarded by conn.mu; the session's id, or nameKey of its name, or both
	waiting []func() // guarded by conn.mu
}

// inOrder applies a request to the session that key stands for, after the requests before it, if the client's credential is still valid then. A slow
// request is applied in the queue's goroutine.
func (k *call) inOrder(key string, slow bool, apply func() (any, bool, error)) (any, bool, error) {
	c := k.c
	if slow || k.mustWait(key) {
		k.keep()
	}
	c.mu.Lock()
	l := c.queues[key]
	switch {
	case l != nil && l == k.turn:
		slow = false // it waited for its turn and has it
	case l != nil:
		l.waiting = append(l.waiting, func() {
			k.useTurn(func() (any, bool, error) {
				if e := c.grant.ExpiredError(); e != nil {
					return nil, false, e
				}
				return apply()
			})
		})
		k.queueKey, k.turn = key, l
		c.mu.Unlock()
		return nil, true, nil
	}
	if !slow {
		c.mu.Unlock()
		return apply()
	}
	l = &requestQueue{keys: []string{key}}
	c.queues[key] = l
	k.queueKey, k.turn = key, l
	c.mu.Unlock()
	c.spawn(k.method, func() { // applies the requests of the queue; ends with the last one; serve waits for it
		for f := func() { k.useTurn(apply) }; f != nil; f = c.nextQueued(l) {
			c.containPanic(k.method, f) // a panic must not keep the later requests from being answered
		}
	})
	return nil, true, nil
}

// useTurn carries out a request that has its turn.
func (k *call) useTurn(apply func() (any, bool, error)) {
	k.runAndAnswer(apply)
	k.c.mu.Lock()
	k.turn = nil // another goroutine may answer, and carry it out again
	k.c.mu.Unlock()
}

// nextQueued takes the next request out of the queue. If there is none, it removes the queue.
func (c *conn) nextQueued(l *requestQueue) (f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(l.waiting) > 0 {
		f, l.waiting = l.waiting[0], l.waiting[1:]
		return f
	}
	for _, key := range l.keys {
		delete(c.queues, key)
	}
	return nil
}

// addQueueKey gives a queue another key: the id of a session that was created under a name, or the new name of a session.
func (c *conn) addQueueKey(key, other string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addQueueKeyLocked(key, other)
}

func (c *conn) addQueueKeyLocked(key, other string) {
	if l := c.queues[key]; l != nil && c.queues[other] == nil {
		l.keys = append(l.keys, other)
		c.queues[other] = l
	}
}

// defaultSession is the name of the session that a request uses if it names none.
const defaultSession = "default"

// withSession finds the session that ref names and applies f to it, in order.
func (k *call) withSession(ref protocol.SessionRef, slow bool, f func(*pool.Session) (any, bool, error)) (any, bool, error) {
	to := func(s *pool.Session) (any, bool, error) {
		k.session = s.ID()
		return f(s)
	}
	if ref.SessionID == "" { // a session.create with this name may be in progress
		key := nameKey(cmp.Or(ref.Session, defaultSession))
		// The default session may have to be created. That starts a shell, so it does not happen on the reading goroutine.
		making := ref.Session == "" && k.c.grant.Share == nil && !k.c.srv.pool.HasOpen(k.c.principal.Subject, defaultSession)
		if making || k.mustWait(key) {
			return k.inOrder(key, slow || making, func() (any, bool, error) {
				s, err := k.find(ref)
				if err != nil {
					return nil, false, err
				}
				return to(s)
			})
		}
	}
	s, err := k.find(ref)
	if err != nil {
		return nil, false, err
	}
	return k.inOrder(s.ID(), slow, func() (any, bool, error) { return to(s) })
}

func nameKey(name string) string { return "name " + name }

// mustWait reports whether a request for key has to wait for others.
func (k *call) mustWait(key string) bool {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	l := k.c.queues[key]
	return l != nil && l != k.turn
}

// find returns the session that ref names. With neither id nor name it creates the default session, if there is none.
func (k *call) find(ref protocol.SessionRef) (*pool.Session, error) {
	if k.c.grant.Share != nil {
		return k.guestSession(ref)
	}
	return k.c.srv.pool.Find(k.c.actsFor(ref.SessionID), ref.SessionID, ref.Session)
}

// maxRecent is how many requests exec.cancel can find by request_id.
const maxRecent = 256

// rememberCall lets exec.cancel find the request by request_id, if it starts a command.
func (c *conn) rememberCall(k *call) {
	if k.method == "exec.run" || k.method == "exec.stream" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.recent.Add(k, maxRecent)
	}
}

// started records which command the request started.
func (k *call) started(execID string) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	k.execID = execID
}

// findCall returns the latest exec.run or exec.stream request whose id is the same JSON value.
func (c *conn) findCall(id jsontext.Value) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recent.Find(func(k *call) bool { return protocol.SameID(k.id, id) })
}
