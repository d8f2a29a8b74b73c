// Package move moves idle sessions between the nodes of a cluster. The nodes ask each other over links of their own, for which no client stands: their
// requests are those of handle. See pool/move.go for the order of a move.
package move

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"trl/cluster/link"
	"trl/metrics"
	"trl/pool"
	"trl/pool/clock"
	"trl/pool/moved"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/rpc/cluster"
	"trl/web/transport"
)

// The requests of nodes to nodes.
const (
	take   = "node.take"   // old to new: get this session from me
	export = "node.export" // new to old: what is it?
	commit = "node.commit" // new to old: I have it, give it up
	told   = "node.told"   // new to old: the directory knows where it is
	has    = "node.has"    // old to new, which has not told: have you got it?
)

// params are the params of these requests.
type params struct {
	Session string       `json:"session"`
	Move    string       `json:"move"`
	From    string       `json:"from,omitzero"`   // of take: the epoch of the old node
	Uptime  clock.Uptime `json:"uptime,omitzero"` // of export
	Lost    []string     `json:"lost,omitzero"`   // of commit
}

// hasAnswer answers has.
type hasAnswer struct {
	Has bool `json:"has"` // also if it has ended
}

const (
	timeout  = 30 * time.Second // how long a move takes at most
	requests = 20 * time.Second
	retry    = time.Second // between attempts to finish a move
	askEvery = 3           // how often awaitTold looks before it asks
	atOnce   = 4           // sessions that this node takes at the same time, each with up to moved.MaxOutput
)

// Mover moves the sessions of one gateway. Close ends what it does.
type Mover struct {
	pool  *pool.Pool
	nodes cluster.Nodes
	audit *audit.Log // nil: there is none
	m     *metrics.Metrics
	log   zerolog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	taking chan struct{}         // has one element for each session that is being taken
	drain  atomic.Pointer[Drain] // nil: no drain moves sessions
}

// New returns a Mover. nodes is nil if there is one node.
func New(p *pool.Pool, nodes cluster.Nodes, a *audit.Log, m *metrics.Metrics, log zerolog.Logger) *Mover {
	mv := &Mover{pool: p, nodes: nodes, audit: a, m: m, log: log, taking: make(chan struct{}, atOnce)}
	mv.ctx, mv.cancel = context.WithCancel(context.Background())
	return mv
}

// Close ends the attempts to finish moves. The next gateway goes on with them.
func (mv *Mover) Close() {
	mv.cancel()
	mv.tasks.Wait()
}

// Resume goes on with the moves that an earlier gateway has not finished.
func (mv *Mover) Resume() {
	if mv.nodes == nil {
		return
	}
	mv.tasks.Go(func() { // waits until the sessions are restored; Close waits for it
		mv.pool.Recovered()
		for _, m := range mv.pool.Unfinished() {
			if m.Arriving {
				mv.tasks.Go(func() { mv.finishLater(m) }) // each has its own other node; Close waits for it
			} else {
				mv.tasks.Go(func() { mv.awaitTold(m) })
			}
		}
	})
}

// Move moves a session of this node to the node with this name. Requests for the session wait meanwhile.
func (mv *Mover) Move(ctx context.Context, s *pool.Session, node string) (*protocol.SessionMoved, error) {
	if mv.nodes == nil {
		return nil, protocol.Errorf(protocol.NotSupported, "this gateway is not part of a cluster")
	}
	answer := &protocol.SessionMoved{SessionID: s.ID(), Node: node}
	self := mv.nodes.Self()
	if node == self.Node {
		return answer, nil
	}
	where := s.Summary().Where
	epochs, err := mv.nodes.Place(where, node)
	if e := protocol.AsError(err); e != nil && e.Details["field"] == "where" {
		return nil, protocol.InvalidParam("node", "node %s has not all the labels that the session was created with (where)", node).With("where", where)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := s.BeginMove(ctx, epochs[0])
	if err != nil {
		mv.count(metrics.MoveRefused)
		return nil, err
	}
	answer.StateLost, err = mv.give(ctx, m, node)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// give gives a session to the node with this name, or ends its move.
func (mv *Mover) give(ctx context.Context, m *pool.Move, node string) (lost []string, err error) {
	defer m.Stop()
	err = mv.ask(ctx, m.Peer, take, &params{Session: m.Session().ID(), Move: m.ID, From: mv.nodes.Self().Epoch}, nil)
	lost, ok := m.Stop()
	if ok {
		mv.tasks.Go(func() { mv.awaitTold(m) })
		mv.count(metrics.MoveOK)
		return lost, nil
	}
	mv.count(metrics.MoveFailed)
	e := protocol.AsError(err)
	if err == nil || e.Code == protocol.UnknownMethod {
		e = protocol.Errorf(protocol.NotSupported, "node %s takes no sessions of other nodes", node)
	}
	return nil, e
}

func (mv *Mover) count(result string) { mv.m.SessionMoves.WithLabelValues(result).Inc() }

// ServeLink answers the request of another node over its link.
func (mv *Mover) ServeLink(l *link.Conn) {
	defer l.Drop()
	_, msg, err := l.Read()
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(mv.ctx)
	defer cancel()
	var q struct {
		Method string         `json:"method"`
		Params jsontext.Value `json:"params"`
	}
	if json.Unmarshal(msg, &q) != nil {
		return
	}
	data, err := mv.handle(ctx, q.Method, q.Params.Clone())
	var answer bytes.Buffer
	if err == nil {
		err = protocol.WriteResult(&answer, jsontext.Value("0"), data)
	}
	if err != nil {
		e := protocol.AsError(err)
		if e.Code == protocol.InternalError {
			mv.log.Error().Err(err).Str("method", q.Method).Msg("request failed")
		}
		answer.Reset()
		answer.Write(protocol.AppendFailure(nil, jsontext.Value("0"), e))
	}
	if l.Send(link.Text, answer.Bytes()) == nil {
		_, _, _ = l.Read() // until the other node closes the link
	}
}

// handle carries out a request of another node.
func (mv *Mover) handle(ctx context.Context, method string, text jsontext.Value) (any, error) {
	var q params
	if err := json.Unmarshal(text, &q); err != nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "params of a node").WithCause(err)
	}
	switch method {
	case take:
		return struct{}{}, mv.take(ctx, &q)
	case has:
		mv.pool.Recovered()
		who, _ := mv.pool.Owner(q.Session)
		return hasAnswer{who != ""}, nil
	}
	m, err := mv.pool.FindMove(q.Session, q.Move)
	switch {
	case err != nil:
		return nil, err
	case method == export:
		x := &moved.Session{Uptime: q.Uptime}
		return x, m.Export(x)
	case method == commit:
		return struct{}{}, m.Commit(q.Lost)
	case method == told:
		m.Told()
		return struct{}{}, nil
	}
	return nil, protocol.NoSuchMethod(method)
}

// take gets a session from its old node.
func (mv *Mover) take(ctx context.Context, q *params) error {
	select {
	case mv.taking <- struct{}{}:
		defer func() { <-mv.taking }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	x := new(moved.Session)
	if err := mv.ask(ctx, q.From, export, &params{Session: q.Session, Move: q.Move, Uptime: clock.UptimeAt(time.Now())}, x); err != nil {
		return err
	}
	if x.Session == nil || x.ID != q.Session {
		return protocol.Errorf(protocol.InvalidParams, "this is another session")
	}
	m, lost, err := mv.pool.Receive(ctx, q.Move, q.From, x)
	if err != nil {
		return err
	}
	over, err := mv.finish(ctx, m, lost)
	if !over {
		mv.tasks.Go(func() { mv.finishLater(m) }) // Close waits for it
	}
	return err
}

// awaitTold returns when the node to which a session has moved has said that the directory knows it, or when that node is gone, or has not got the session:
// it took this node for gone before it knew that the session was its own.
func (mv *Mover) awaitTold(m *pool.Move) {
	for n := 1; !m.IsTold(); n++ {
		select {
		case <-time.After(retry):
		case <-mv.ctx.Done():
			return
		}
		switch _, standing := mv.nodes.Find(m.Peer); {
		case standing == cluster.Gone:
			m.PeerGone()
		case standing == cluster.Known && n%askEvery == 0:
			answer := hasAnswer{Has: true}
			if mv.ask(mv.ctx, m.Peer, has, &params{Session: m.Session().ID(), Move: m.ID}, &answer) == nil && !answer.Has {
				mv.log.Warn().Str("session", m.Session().ID()).Msg("the node to which the session has moved has not got it")
				m.PeerGone()
			}
		}
	}
}

// finishLater finishes a move to this node, which may take until the other node answers.
func (mv *Mover) finishLater(m *pool.Move) {
	for {
		over, err := mv.finish(mv.ctx, m, nil)
		if over {
			return
		}
		if err != nil {
			mv.log.Warn().Err(err).Str("session", m.Session().ID()).Msg("the node that a session comes from does not answer; the session waits for it")
		}
		select {
		case <-time.After(retry):
		case <-mv.ctx.Done():
			return
		}
	}
}

// finish is the end of a move to this node. over is false if the old node has not answered, and finish has to be called again.
func (mv *Mover) finish(ctx context.Context, m *pool.Move, lost []string) (over bool, err error) {
	q := &params{Session: m.Session().ID(), Move: m.ID}
	if !m.IsOurs() {
		from, _ := mv.nodes.Find(m.Peer)
		q.Lost = lost
		if err := mv.ask(ctx, m.Peer, commit, q, nil); err != nil {
			if !isDecided(err) {
				return false, err
			}
			m.Drop() // it goes on there, or is gone with its node
			return true, err
		}
		if err := m.Keep(); err != nil {
			return true, err
		}
		mv.audit.Append(audit.Entry{
			Action: audit.ActionArrive, Outcome: "ok", Session: q.Session, Owner: m.Session().Owner(), Nodes: audit.Nodes{From: from.Node, To: mv.nodes.Self().Node},
		})
	}
	if m.AwaitDirectory() != nil { // until the directory knows it, the old node keeps the name
		return false, nil
	}
	if err := mv.ask(ctx, m.Peer, told, q, nil); err != nil && !isDecided(err) {
		return false, nil
	}
	m.Told()
	return true, nil
}

// isDecided reports whether an error of ask says that nothing else will ever be answered.
func isDecided(err error) bool {
	e, ok := errors.AsType[*protocol.Error](err)
	return ok && e.Code != protocol.NodeUnreachable && e.Code != protocol.LimitExceeded && e.Code != protocol.RateLimited && e.Code != protocol.ShuttingDown
}

// ask sends a request to another node, and decodes the answer into to, which may be nil. The error is a *protocol.Error if the node has answered it, or if
// the node cannot be reached (NODE_UNREACHABLE) or is gone (SESSION_LOST).
func (mv *Mover) ask(ctx context.Context, epoch, method string, q *params, to any) error {
	if method != take {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requests)
		defer cancel()
	}
	text, err := json.Marshal(struct {
		ID     int     `json:"id"`
		Method string  `json:"method"`
		Params *params `json:"params"`
	}{0, method, q})
	if err != nil {
		return err
	}
	h := &link.Hello{Principal: "node:" + mv.nodes.Self().Node, Role: string(auth.Viewer), Transport: transport.InProcessName, Carries: link.ForMove}
	err = cluster.Ask(ctx, mv.nodes, epoch, h, text, nil, func(data jsontext.Value) error {
		if to == nil {
			return nil
		}
		return json.Unmarshal(data, to)
	})
	if _, answered := errors.AsType[*protocol.Error](err); err != nil && !answered {
		n, _ := mv.nodes.Find(epoch)
		return cluster.Unreachable(n.Node, retry).WithCause(err)
	}
	return err
}
