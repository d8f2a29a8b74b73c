package web

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"trl/cluster/link"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/cluster"
	"trl/web/transport"
)

// otherNodes asks other nodes about logins and tickets (auth.Others), over links that belong to no client. A few of them are kept for the next question.
type otherNodes struct {
	nodes     cluster.Nodes
	transport *http.Transport
}

func newOtherNodes(nodes cluster.Nodes) *otherNodes {
	o := &otherNodes{nodes: nodes}
	o.transport = &http.Transport{
		DialContext: o.dial, MaxConnsPerHost: 16, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, DisableCompression: true, MaxResponseHeaderBytes: 32 << 10,
	}
	return o
}

func (o *otherNodes) close() {
	if o != nil {
		o.transport.CloseIdleConnections()
	}
}

// Mark is of auth.Others.
func (o *otherNodes) Mark() string { return auth.MarkOf(o.nodes.Self().Node) }

// Marks is of auth.Others.
func (o *otherNodes) Marks() (marks []string) {
	self := o.nodes.Self()
	for _, n := range o.nodes.All() {
		if n.Epoch != self.Epoch {
			marks = append(marks, auth.MarkOf(n.Node))
		}
	}
	return marks
}

// dial makes a link to the node whose mark is the host in addr.
func (o *otherNodes) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	mark, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	self := o.nodes.Self()
	for _, n := range o.nodes.All() {
		if n.Epoch == self.Epoch || auth.MarkOf(n.Node) != mark {
			continue
		}
		h := &link.Hello{Principal: self.Node, Role: string(auth.Viewer), Transport: transport.HTTPName, Carries: link.ForNode}
		l, fault := cluster.Dial(ctx, o.nodes, n.Epoch, h)
		if fault != nil {
			return nil, fault
		}
		return link.NewStream(l), nil
	}
	if _, standing := o.nodes.Find(""); standing == cluster.MayLive {
		return nil, cluster.UnknownYet()
	}
	return nil, protocol.Errorf(protocol.SessionLost, "the node is gone")
}

// Ask is of auth.Others.
func (o *otherNodes) Ask(ctx context.Context, mark, path string, question, answer any) *protocol.Error {
	text, err := json.Marshal(question)
	if err != nil {
		panic(err) // it is ours
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+mark+path, bytes.NewReader(text))
	if err != nil {
		panic(err) // a mark is a host
	}
	if auth.MayRepeat(path) {
		r.Header["Idempotency-Key"] = nil // not sent. The transport asks over another link if a kept one turns out to be broken
	}
	res, err := o.transport.RoundTrip(r)
	if fault, ok := errors.AsType[*protocol.Error](err); ok {
		return fault
	}
	if err == nil {
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			err = errors.New(res.Status)
		} else {
			err = json.UnmarshalRead(res.Body, answer)
		}
	}
	if err != nil {
		return protocol.Errorf(protocol.NodeUnreachable, "the node cannot be asked").WithCause(err)
	}
	return nil
}
