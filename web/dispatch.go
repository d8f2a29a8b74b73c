package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"trl/pool"
	"trl/protocol"
)

// call is one request on its way to its answer.
type call struct {
	c      *conn
	id     jsontext.Value
	method string
	params jsontext.Value // aliases the message: only for the reading goroutine, until handle returns
	left   bool           // owned by who gives the answer; see leave
	lane   string         // owned by the reading goroutine; the lane in which it waits for its turn
	execID string         // guarded by c.mu; what it started

	size       int64      // of the message
	output     *pool.Exec // whose output the answer holds; set before the request waits
	afterwards []func()   // owned by who gives the answer; called when it has been written

	came     time.Time // when it was read
	asked    any       // its params, for record, which lets go of them; nil where nobody audits
	session  string    // the session it is about, once found
	owner    string    // whose recording it is about, where that is another principal
	audited  bool      // it is to have an entry
	recorded bool      // and has it

	queued, began, ended time.Time // of an exec.run that has ended, for trace
}

// handler is one method. run returns the answer, or errLater when somebody else will give it.
type handler struct {
	params reflect.Type
	reads  bool // changes nothing, so that a viewer may
	steers bool // ends or steers what is under way, so that it is heard also when that is all there may be
	run    func(*call) (any, error)
}

// handlers is every method, equal to protocol.Methods (a test compares).
var handlers = map[string]handler{
	"session.create":  changes(sessionCreate),
	"session.info":    reads(sessionInfo),
	"session.list":    reads(sessionList),
	"session.destroy": steers(changes(sessionDestroy)),
	"session.rename":  changes(sessionRename),
	"session.reset":   steers(changes(sessionReset)),
	"session.touch":   changes(sessionTouch),
	"session.watch":   reads(sessionWatch),
	"session.unwatch": steers(reads(sessionUnwatch)),

	"exec.run":    changes(execRun),
	"exec.stream": changes(execStream),
	"exec.wait":   reads(execWait),
	"exec.input":  steers(changes(execInput)),
	"exec.cancel": steers(changes(execCancel)),
	"exec.attach": reads(execAttach),
	"exec.detach": steers(reads(execDetach)),
	"exec.list":   reads(execList),

	"process.start":  changes(processStart),
	"process.list":   reads(processList),
	"process.info":   reads(processInfo),
	"process.logs":   reads(processLogs),
	"process.detach": steers(reads(processDetach)),
	"process.input":  steers(changes(processInput)),
	"process.kill":   steers(changes(processKill)),
	"process.wait":   reads(processWait),

	"term.open":     changes(termOpen),
	"term.input":    steers(changes(termInput)),
	"term.resize":   steers(changes(termResize)),
	"term.close":    steers(changes(termClose)),
	"term.attach":   reads(termAttach),
	"term.detach":   steers(reads(termDetach)),
	"term.list":     reads(termList),
	"term.snapshot": reads(termSnapshot),

	"share.create":     changes(shareCreate),
	"share.list":       reads(shareList),
	"share.revoke":     changes(shareRevoke),
	"recording.list":   reads(recordingList),
	"recording.info":   reads(recordingInfo),
	"recording.delete": changes(recordingDelete),

	"stream.ack": steers(reads(streamAck)),

	"system.drain":        changes(systemDrain),
	"system.ping":         reads(systemPing),
	"system.stats":        reads(systemStats),
	"system.capabilities": reads(systemCapabilities),
}

func reads[P any](f func(*call, *P) (any, error)) handler {
	h := changes(f)
	h.reads = true
	return h
}

func changes[P any](f func(*call, *P) (any, error)) handler {
	return handler{params: reflect.TypeFor[P](), run: func(k *call) (any, error) {
		q := new(P)
		if err := protocol.DecodeParams(k.params, q); err != nil {
			return nil, err
		}
		if k.c.srv.cfg.Audit != nil {
			k.asked = q
		}
		return f(k, q)
	}}
}

func steers(h handler) handler {
	h.steers = true
	return h
}

// maxInFlight is how many requests of one connection may be in flight: more than can wait in a session.
const maxInFlight = 128

// maxSteering is how many requests may be in flight beyond MaxInFlight, where those steer: as many as commands may wait, so that each can be
// cancelled.
const maxSteering = 64

// handle applies one request. It runs on the reading goroutine, which is what keeps requests in order.
func (c *conn) handle(msg []byte) {
	req, fault := protocol.DecodeRequest(msg)
	most := c.srv.cfg.MaxInFlight
	if handlers[req.Method].steers {
		most += maxSteering
	}
	if c.inFlight.Load() >= int64(most) {
		c.srv.m.RateLimited.Inc()
		c.refuse(req.ID, protocol.Errorf(protocol.RateLimited, "%d requests are in flight", most).With("limit", most))
		return
	}
	if e := c.grant.begin(); e != nil {
		c.srv.m.RateLimited.Inc()
		c.refuse(req.ID, e)
		return
	}
	k := &call{c: c, id: req.ID, method: req.Method, params: req.Params, size: int64(len(msg)), came: time.Now()}
	if e := c.take(k.size, handlers[req.Method].steers); e != nil {
		c.srv.m.RateLimited.Inc()
		c.grant.done()
		c.refuse(req.ID, e)
		return
	}
	c.inFlight.Add(1)
	var data any
	var err error = fault
	if fault == nil {
		data, err = k.caught(k.dispatch)
	}
	k.params = nil
	if err == errLater {
		return
	}
	k.leave()
	k.record(data, err)
	// Whoever writes just now may be waiting for the client: then this answer waits elsewhere, and reading goes on. A cancel, for one,
	// must not wait behind the output it is to stop. Nor must a ping wait behind the encoding of a long answer.
	answering := time.Now()
	if sent, werr := c.out.trySendMessage(k.message(data, err)); sent {
		k.answered()
		k.trace(err, answering)
		c.sent(k.writable(werr))
		return
	}
	c.spawn(k.method, func() { k.answer(data, err) }) // takes its time, or waits for the outbox; ends with the socket
}

func (k *call) dispatch() (any, error) {
	h, ok := handlers[k.method]
	if e := k.c.grant.over(); e != nil {
		return nil, e
	}
	switch {
	case ok && k.c.grant.share != nil && !guestMay(k.c.grant.share, k.method):
		return nil, protocol.Errorf(protocol.Forbidden, "this share link does not allow it")
	case ok && (h.reads || k.c.who.Role != Viewer):
		if err := k.admit(h); err != nil {
			return nil, err
		}
		return h.run(k)
	case ok:
		return nil, protocol.Errorf(protocol.Forbidden, "a viewer may only read")
	}
	return nil, protocol.NoSuchMethod(k.method)
}

// leave takes the request off its credential's count, before the answer is sent: who has that may ask the next.
func (k *call) leave() {
	if !k.left {
		k.left = true
		k.c.grant.done()
	}
}

// caught runs f and turns a panic into an error: one request's bug must not end everybody's sessions.
func (k *call) caught(f func() (any, error)) (data any, err error) {
	defer k.c.caught(k.method, &err)
	return f()
}

// settle runs f and gives its answer, unless that comes later still.
func (k *call) settle(f func() (any, error)) {
	if data, err := k.caught(f); err != errLater {
		k.answer(data, err)
	}
}

// later has f give the answer, from a goroutine: it may wait, until ctx ends.
func (k *call) later(f func() (any, error)) (any, error) {
	k.c.spawn(k.method, func() { k.settle(f) }) // gives the answer; f ends with ctx; serve waits for it
	return nil, errLater
}

// answered gives back what the request took.
func (k *call) answered() {
	k.c.inFlight.Add(-1)
	k.c.give(k.size)
	if k.output != nil {
		k.output.Release()
	}
	for _, f := range k.afterwards {
		f()
	}
	k.output, k.afterwards = nil, nil // exec.cancel by request_id may find the call for long
}

// outlive runs f, which goes on when the client leaves: a session decides how long f takes, and the connection must not last that long.
func (k *call) outlive(f func(context.Context) (any, error)) (data any, err error) {
	s, done := k.c.srv, make(chan struct{})
	var result any // result and failure: read after done
	var failure error
	s.active.Add(1) // our connection counts until later, so this is no first Add during a Wait
	go func() {     // ends with f, which ends with the server's ctx at the latest; Shutdown waits for it
		defer s.active.Done()
		defer close(done)
		result, failure = k.caught(func() (any, error) { return f(s.ctx) })
	}()
	select {
	case <-done:
		return result, failure
	case <-k.c.ctx.Done():
		return nil, errGone
	}
}

// answer writes the one answer that a request gets.
func (k *call) answer(data any, err error) {
	defer k.answered()
	k.leave()
	k.record(data, err)
	answering := time.Now()
	if err != errGone {
		k.c.sent(k.writable(k.c.out.sendMessage(k.message(data, err))))
	}
	k.trace(err, answering)
}

func (k *call) message(data any, err error) message {
	if err != nil {
		e := protocol.AppendFailure(nil, k.id, k.fault(err))
		return func(w io.Writer) error { _, err := w.Write(e); return err }
	}
	return func(w io.Writer) (err error) {
		defer k.c.caught(k.method, &err)
		return protocol.WriteResult(w, k.id, data)
	}
}

// writable answers with a failure where data could not be encoded; err is how the writing went.
func (k *call) writable(err error) error {
	if bad, ok := err.(unwritable); ok {
		return k.c.out.sendMessage(k.message(nil, bad.error))
	}
	return err
}

// fault is what the client sees of err; what it may not see goes into the log, and the two share an id.
func (k *call) fault(err error) *protocol.Error {
	e := protocol.AsError(err)
	if e.Code == protocol.InternalError && e.Details["log_id"] == nil {
		id := rand.Text()[:8]
		e = protocol.Errorf(e.Code, "%s", e.Message).With("log_id", id)
		k.c.log.Error().Err(err).AnErr("cause", protocol.AsError(err).Unwrap()).Str("log_id", id).Str("method", k.method).Msg("request failed")
	}
	return e
}

// lane keeps requests to one session in order while one of them takes its time (a shell that starts, a tree that ends): those that come
// meanwhile on this connection queue behind it. Without such a one there is no lane, and requests are applied as they are read.
type lane struct {
	keys    []string // guarded by conn.mu; the session's id, or "name " and its name, or several of these
	waiting []func() // guarded by conn.mu
}

// turn applies a request to the session that key stands for when its turn has come, if what the client came with is still good then. A slow
// one is applied on the lane's goroutine.
func (k *call) turn(key string, slow bool, apply func() (any, error)) (any, error) {
	c := k.c
	c.mu.Lock()
	if l := c.lanes[key]; l != nil {
		l.waiting = append(l.waiting, func() {
			k.settle(func() (any, error) {
				if e := c.grant.over(); e != nil {
					return nil, e
				}
				return apply()
			})
		})
		k.lane = key
		c.mu.Unlock()
		return nil, errLater
	}
	if !slow {
		c.mu.Unlock()
		return apply()
	}
	l := &lane{keys: []string{key}}
	c.lanes[key] = l
	k.lane = key
	c.mu.Unlock()
	c.spawn(k.method, func() { // applies the lane's requests; ends with the last; serve waits for it
		for f := func() { k.settle(apply) }; f != nil; f = c.nextIn(l) {
			c.survive(k.method, f) // the requests behind it are answered too
		}
	})
	return nil, errLater
}

// nextIn takes the lane's next request, or takes the lane away when there is none.
func (c *conn) nextIn(l *lane) (f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(l.waiting) > 0 {
		f, l.waiting = l.waiting[0], l.waiting[1:]
		return f
	}
	for _, key := range l.keys {
		delete(c.lanes, key)
	}
	return nil
}

// alsoKnown gives a lane another key: the id of a session that was made under its name, or the name that it is to have.
func (c *conn) alsoKnown(key, other string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lanes[key]; l != nil && c.lanes[other] == nil {
		l.keys = append(l.keys, other)
		c.lanes[other] = l
	}
}

// defaultSession is the session of a request that names none (PROTOCOL.md §4).
const defaultSession = "default"

// on applies f to the session that ref names, in turn.
func (k *call) on(ref protocol.SessionRef, slow bool, f func(*pool.Session) (any, error)) (any, error) {
	to := func(s *pool.Session) (any, error) {
		k.session = s.ID()
		return f(s)
	}
	if ref.SessionID == "" { // a session.create with this name may be under way
		key := nameKey(cmp.Or(ref.Session, defaultSession))
		// The default session may have to be made, which takes a shell: not on the reading goroutine.
		making := ref.Session == "" && k.c.grant.share == nil && !k.c.srv.pool.HasOpen(k.c.who.Subject, defaultSession)
		if making || k.c.inTurn(key) {
			return k.turn(key, slow || making, func() (any, error) {
				s, err := k.find(ref)
				if err != nil {
					return nil, err
				}
				return to(s)
			})
		}
	}
	s, err := k.find(ref)
	if err != nil {
		return nil, err
	}
	return k.turn(s.ID(), slow, func() (any, error) { return to(s) })
}

func nameKey(name string) string { return "name " + name }

// inTurn reports whether requests for key have to queue.
func (c *conn) inTurn(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lanes[key] != nil
}

// find is the pool's Find; with neither id nor name it makes the default session.
func (k *call) find(ref protocol.SessionRef) (*pool.Session, error) {
	if k.c.grant.share != nil {
		return k.shared(ref)
	}
	return k.c.srv.pool.Find(k.c.behalf(ref.SessionID), ref.SessionID, ref.Session)
}

// maxRecent bounds what exec.cancel by request_id can reach back to.
const maxRecent = 256

// remember makes the request reachable for exec.cancel by request_id.
func (c *conn) remember(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recent) < maxRecent {
		c.recent = append(c.recent, k)
		return
	}
	c.recent[c.oldest] = k
	c.oldest = (c.oldest + 1) % maxRecent
}

// started notes the command that the request began.
func (k *call) started(execID string) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	k.execID = execID
}

// recall finds the latest exec.run or exec.stream request with an id that is the same JSON value.
func (c *conn) recall(id jsontext.Value) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.recent { // the newest stands before oldest
		k := c.recent[(c.oldest+len(c.recent)-1-i)%len(c.recent)]
		if sameID(k.id, id) {
			return k
		}
	}
	return nil
}

// sameID compares two ids as JSON does: "a" is "\u0061", and 1 is 1.0. Numbers are compared exactly, however many digits they have.
func sameID(a, b jsontext.Value) bool {
	switch {
	case bytes.Equal(a, b):
		return true
	case a.Kind() != b.Kind():
		return false
	case a.Kind() == '0':
		x, ok := decimalOf(string(a))
		y, same := decimalOf(string(b))
		return ok && same && x == y
	}
	a, b = a.Clone(), b.Clone()
	return a.Canonicalize() == nil && b.Canonicalize() == nil && bytes.Equal(a, b)
}

// decimal is ± 0.DIGITS × 10^exponent, the first and the last digit not 0; zero has no digits.
type decimal struct {
	negative bool
	digits   string
	exponent int64
}

// decimalOf reads a JSON number. ok is false for an exponent that does not fit.
func decimalOf(text string) (d decimal, ok bool) {
	text, d.negative = strings.CutPrefix(text, "-")
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		n, err := strconv.ParseInt(text[i+1:], 10, 32)
		if err != nil {
			return d, false
		}
		text, d.exponent = text[:i], n
	}
	whole, fraction, _ := strings.Cut(text, ".")
	d.exponent += int64(len(whole))
	d.digits = strings.TrimLeft(whole+fraction, "0")
	d.exponent -= int64(len(whole) + len(fraction) - len(d.digits))
	d.digits = strings.TrimRight(d.digits, "0")
	if d.digits == "" {
		return decimal{}, true
	}
	return d, true
}
