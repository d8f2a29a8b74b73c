package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"

	"trl/cluster/link"
	"trl/metrics"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/rpc/cluster"
	"trl/web/rpc/move"
	"trl/web/transport"
)

// relays are the links of one client's connection to the nodes of its sessions, and what routing has learned.
type relays struct {
	nodes   cluster.Nodes
	self    string            // this node's epoch
	byEpoch map[string]*relay // guarded by conn.mu; those that are being dialled or in use
	links   int               // guarded by conn.mu; how many links the connection has had
	names   move.Places       // the nodes that have sessions of these names
}

func newRelays(nodes cluster.Nodes, self string) *relays {
	return &relays{nodes: nodes, self: self, byEpoch: map[string]*relay{}, names: move.Places{Max: move.MaxNamed}}
}

// relay carries a client's requests to one other node, and that node's answers, events and streams back, as they are. There is no queue on the way: a
// client that reads slowly makes the relay stop reading its link, and so the node waits as it does for a slow client of its own. Only while the link is
// dialled do requests wait here; the bounds on requests in flight bound them.
type relay struct {
	c     *conn
	epoch string
	name  string        // the node's name
	gone  chan struct{} // closed when run has ended

	sending sync.Mutex // held while a request is put on its way, so that requests keep their order

	mu         sync.Mutex
	link       *link.Conn         // guarded by mu; nil: not dialled yet
	queue      [][]byte           // guarded by mu; requests that wait for the link
	waiting    map[string][]*call // guarded by mu; unanswered requests by id, those of equal ids in their order
	over       bool               // guarded by mu; nothing can be sent any more
	passing    bool               // guarded by mu; an answer is being passed on, or its request sent elsewhere
	halfClosed bool               // guarded by mu; the owner knows that the client sends nothing more
	follows    bool               // guarded by mu; more may come than answers, now or later

	keeps   bool // set once; the link may serve another client afterwards
	oneShot bool // set once; the client sends one request

	toOwner, toClient prometheus.Counter // bytes

	numbers link.Numbers // owned by run; set with conn.mu held
	scratch []byte       // owned by run; a message with the client's stream number
	release func()       // owned by run; undoes beginLarge
}

// relayTo returns the connection's relay to a node, and makes it if there is none.
func (c *conn) relayTo(epoch string) *relay {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.relays.byEpoch[epoch]
	if r == nil {
		n, _ := c.relays.nodes.Find(epoch)
		m := c.srv.m
		r = &relay{
			c: c, epoch: epoch, name: n.Node, gone: make(chan struct{}), waiting: map[string][]*call{},
			oneShot: c.request != nil && !c.request.Follows(),
			toOwner: m.RelayedBytes.WithLabelValues(metrics.RelayedToOwner), toClient: m.RelayedBytes.WithLabelValues(metrics.RelayedToClient),
		}
		r.keeps = r.oneShot || c.transport.Name() == transport.InProcessName // clients of /mcp come for one tool
		c.relays.byEpoch[epoch] = r
		c.helpers.Go(func() { // dials, and passes on what comes; ends with the link or ctx; serve waits for it
			m.Relays.Inc()
			defer m.Relays.Dec()
			defer close(r.gone)
			c.containPanic("relay", r.run)
			r.end(nil)
		})
	}
	return r
}

// hello describes the client to another node.
func (c *conn) hello() (*link.Hello, *protocol.Error) {
	at, _ := netip.ParseAddrPort(c.remote)
	h, e := cluster.HelloOf(c.grant, c.transport.Name(), at.Addr())
	if e == nil {
		h.Binary, h.Inputs, h.LogPrefix = c.binary, c.inputs, c.id
	}
	return h, e
}

// dial makes the link.
func (r *relay) dial() (*link.Conn, *protocol.Error) {
	h, e := r.c.hello()
	if e != nil {
		return nil, e
	}
	h.Keep = r.keeps
	return cluster.Dial(r.c.ctx, r.c.relays.nodes, r.epoch, h)
}

// run is the relay's life.
func (r *relay) run() {
	c := r.c
	l, fault := r.dial()
	if fault != nil {
		if c.grant.Elsewhere != nil && fault.Code == protocol.AuthFailed { // the share link has ended
			c.end(transport.ReasonUnshared)
		}
		r.end(fault)
		return
	}
	kept, read, closed := false, make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(c.ctx, func() { // ends with the link, within about a second; waited for below
		defer close(closed)
		r.leave(l, read)
	})
	defer func() {
		close(read)
		if !stop() {
			<-closed
		}
		if kept {
			l.Release()
		} else {
			l.Drop()
		}
	}()
	c.mu.Lock()
	c.relays.links++
	var err error
	r.numbers, err = link.NewNumbers(c.relays.links)
	c.mu.Unlock()
	if err != nil {
		c.log.Warn().Err(err).Msg("connection has had too many links")
		c.end(transport.ReasonNodeGone)
		return
	}
	l.BeforeLarge(r.beginLarge)
	c.helpers.Go(func() { r.flush(l) }) // sends what waits for the link; ends with it; serve waits for it
	for {
		kind, msg, err := l.Read()
		if kept = err == nil && link.IsEnd(kind, msg) && r.isDone(); kept {
			return
		}
		if err == nil {
			err = r.pass(kind, msg)
			r.endLarge()
		}
		if err != nil {
			r.lost(err)
			return
		}
	}
}

// keepTimeout is how long a link whose client has gone may take to become one that another client can have.
const keepTimeout = time.Second

// leave ends the link because the client has gone. If nothing is left to come, it asks the owner for the end of this client alone, so that another client
// can have the link. read is closed when run reads no more.
func (r *relay) leave(l *link.Conn, read <-chan struct{}) {
	r.mu.Lock()
	keep := r.keeps && !r.follows && r.link != nil && len(r.waiting) == 0
	r.mu.Unlock()
	if keep {
		r.sendEnd()
		late := time.NewTimer(keepTimeout)
		defer late.Stop()
		select {
		case <-read:
			return
		case <-late.C:
		}
	}
	l.Close(1000, "")
}

// isDone reports whether the client sends no more, and nothing is to come for it.
func (r *relay) isDone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.halfClosed && !r.follows && len(r.waiting) == 0
}

// flush sends the requests that have waited for the link.
func (r *relay) flush(l *link.Conn) {
	r.sending.Lock() // none can be added meanwhile
	defer r.sending.Unlock()
	r.mu.Lock()
	queue := r.queue
	r.queue, r.link = nil, l
	r.mu.Unlock()
	for _, msg := range queue {
		if l.Send(link.Text, msg) != nil {
			return // run gets the error
		}
	}
	if r.oneShot && len(queue) > 0 {
		r.sendEndLocked()
	}
}

// lost ends the client's connection after an error of the link, as if it had broken itself. The client comes back and resumes.
func (r *relay) lost(err error) {
	r.endLarge()
	r.mu.Lock()
	finished := r.halfClosed
	r.mu.Unlock()
	bye, closed := errors.AsType[*link.CloseError](err)
	if r.c.ctx.Err() != nil || finished && closed && bye.Code == 1000 {
		return
	}
	r.c.log.Info().Err(err).Str("node", r.name).Msg("link to a session's node has ended")
	r.c.end(transport.ReasonOfLink(err))
}

// end makes later requests dial anew. Those that were not answered fail with fault; without one the client is gone.
func (r *relay) end(fault *protocol.Error) {
	c := r.c
	r.retire()
	r.mu.Lock()
	waiting := r.waiting
	r.over, r.waiting, r.queue = true, nil, nil
	r.mu.Unlock()
	result, err := metrics.RelayedLost, error(errClientGone)
	if fault != nil {
		result, err = metrics.RelayedUnreachable, fault
	}
	for _, calls := range waiting {
		for _, k := range calls {
			c.srv.m.Relayed.WithLabelValues(result).Inc()
			k.answer(nil, err)
		}
	}
}

// retire makes later requests use another relay.
func (r *relay) retire() {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.relays.byEpoch[r.epoch] == r {
		delete(c.relays.byEpoch, r.epoch)
	}
}

// send sends a request's message, and reports whether the relay could take it.
func (r *relay) send(k *call, msg []byte) bool {
	id := string(k.id)
	if len(k.id) == 0 {
		id, msg = "0", cluster.WithID(msg)
	}
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	if r.over || r.halfClosed { // the request of a one-shot client comes back after it was elsewhere
		r.mu.Unlock()
		r.retire()
		return false
	}
	r.waiting[id] = append(r.waiting[id], k)
	r.follows = r.follows || k.remote.lasts()
	l := r.link
	if l == nil {
		r.queue = append(r.queue, bytes.Clone(msg))
	}
	r.mu.Unlock()
	r.toOwner.Add(float64(len(msg)))
	if l != nil {
		_ = l.Send(link.Text, msg) // run gets the error, and ends the connection
		if r.oneShot {
			r.sendEndLocked()
		}
	}
	return true
}

// sendEnd tells the owner, once, that the client sends no more. It returns nil if nothing was sent to the owner.
func (r *relay) sendEnd() *link.Conn {
	r.sending.Lock()
	defer r.sending.Unlock()
	return r.sendEndLocked()
}

func (r *relay) sendEndLocked() *link.Conn {
	r.mu.Lock()
	l, told := r.link, r.halfClosed
	r.halfClosed = true
	r.mu.Unlock()
	if l != nil && !told {
		_ = l.SendEnd() // run gets the error
	}
	return l
}

// halfClose tells the owner that the client sends no more, and waits until the owner has nothing left to send.
func (r *relay) halfClose() {
	if r.sendEnd() == nil {
		return
	}
	select {
	case <-r.gone:
	case <-r.c.ctx.Done():
	}
}

// finishRelays waits until a client that sends no more has got everything that other nodes have for it.
func (c *conn) finishRelays() {
	if c.relays == nil || c.request != nil && !c.request.Follows() {
		return
	}
	c.mu.Lock()
	var all []*relay
	for _, r := range c.relays.byEpoch {
		all = append(all, r)
	}
	c.mu.Unlock()
	for _, r := range all {
		r.halfClose()
	}
}

// relayedLarge is how much a relay counts for one answer above link.KeepBuffer, whose size it does not know: as much as the output in an answer may have.
const relayedLarge = 64 << 20

// beginLarge waits until a large message may be read. endLarge undoes it.
func (r *relay) beginLarge() (err error) {
	if r.release == nil {
		r.release, err = r.c.usage.ReserveAnswer(r.c.ctx, relayedLarge)
	}
	return err
}

func (r *relay) endLarge() {
	if r.release != nil {
		r.release()
		r.release = nil
	}
}

var (
	eventPrefix    = []byte(`{"event":"`)
	startedEvent   = []byte(`{"event":"stream.started"`)
	refusedEvent   = []byte(`{"event":"input.refused"`)
	shutdownEvent  = []byte(`{"event":"server.shutdown"`)
	failurePrefix  = []byte(`,"ok":false,`)
	streamNoMember = []byte(`"stream_no"`)
)

// pass passes on a message of the owner.
func (r *relay) pass(kind link.Kind, msg []byte) (err error) {
	c := r.c
	r.toClient.Add(float64(len(msg)))
	switch {
	case kind == link.Binary:
		if r.scratch, err = r.numbers.AppendBinary(r.scratch[:0], msg); err != nil {
			return err
		}
		c.bytesOut.Add(float64(len(msg)))
		c.checkSent(c.out.SendBinary(func(dst []byte) []byte { return append(dst, r.scratch...) }))
	case !bytes.HasPrefix(msg, eventPrefix):
		return r.passAnswer(msg)
	case bytes.HasPrefix(msg, shutdownEvent): // the client's own server goes on
	default:
		if bytes.HasPrefix(msg, startedEvent) || bytes.HasPrefix(msg, refusedEvent) {
			if msg, err = r.mapNumber(msg); err != nil {
				return err
			}
		}
		c.subscribed.Store(true)
		c.bytesOut.Add(float64(len(msg)))
		c.checkSent(c.out.SendMessage(verbatim(msg)))
	}
	return nil
}

func verbatim(msg []byte) transport.Message {
	return func(w io.Writer) error { _, err := w.Write(msg); return err }
}

// mapNumber returns a message with the client's stream number, if it has one.
func (r *relay) mapNumber(msg []byte) ([]byte, error) {
	if !bytes.Contains(msg, streamNoMember) {
		return msg, nil
	}
	mapped, err := r.numbers.AppendText(r.scratch[:0], msg)
	if cap(mapped) <= link.KeepBuffer {
		r.scratch = mapped
	}
	return mapped, err
}

// errAnswer means that the owner has sent an answer to nothing.
var errAnswer = errors.New("answer to a request that was not sent")

// passAnswer passes on an answer, and ends its request.
func (r *relay) passAnswer(msg []byte) error {
	id, rest := protocol.SplitAnswer(msg)
	k := r.take(string(id))
	if k == nil {
		return errAnswer
	}
	defer r.passed()
	var fault *protocol.Error
	if bytes.HasPrefix(rest, failurePrefix) {
		var failure struct {
			Error *protocol.Error `json:"error"`
		}
		if json.Unmarshal(msg, &failure) == nil {
			fault = failure.Error
		}
	}
	result := metrics.RelayedOK
	if fault != nil {
		result = metrics.RelayedFailed
	}
	r.c.srv.m.Relayed.WithLabelValues(result).Inc()
	if fault != nil && k.tryElsewhere(fault) {
		return nil
	}
	if len(k.id) == 0 { // as cluster.WithID has sent it
		msg = append([]byte(`{`), rest[1:]...)
	}
	msg, err := r.mapNumber(msg)
	if err != nil {
		k.answer(nil, errClientGone) // the link ends, and the connection with it
		return err
	}
	k.passAnswer(msg, fault)
	return nil
}

// take takes the request that an answer is about.
func (r *relay) take(id string) *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.waiting[id]
	if len(calls) == 0 {
		return nil
	}
	r.passing = true
	if len(calls) == 1 {
		delete(r.waiting, id)
	} else {
		r.waiting[id] = calls[1:]
	}
	return calls[0]
}

// passed undoes what take has noted.
func (r *relay) passed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passing = false
}

// passAnswer sends the owner's answer to a request; fault is what it says, if it is a failure.
func (k *call) passAnswer(msg []byte, fault *protocol.Error) {
	c := k.c
	defer k.releaseResources()
	k.releaseCount()
	var err error
	var data any
	switch {
	case fault != nil:
		err = fault
		if c.request != nil {
			c.request.SetFault(fault.Code)
		}
	case k.needsAudit && c.srv.config.Audit != nil:
		data = audit.IDsOf(msg)
	}
	if name := k.remote.target.Name; fault == nil && name != "" && (k.method == "session.create" || k.method == "session.rename") {
		c.relays.names.Note(name, k.remote.relay.epoch)
	}
	k.auditAnswer(data, err)
	k.remote.finish()
	answering := time.Now()
	c.checkSent(c.out.SendMessage(verbatim(msg)))
	k.trace(err, answering)
}
