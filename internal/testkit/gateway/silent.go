package gateway

import (
	"context"
	"fmt"
	"sync"

	"trl/cluster/link"
	"trl/protocol"
	"trl/web/rpc/cluster"
)

// SilentNodes are a gateway and many other nodes, which cannot be dialled before the caller gives up.
type SilentNodes struct {
	cluster.Nodes                  // the methods that no test needs
	Epochs        []string         // of the other nodes
	Standing      cluster.Standing // of every node that is looked for

	mu    sync.Mutex
	dials Dials // guarded by mu
}

// Dials counts dials of SilentNodes.
type Dials struct {
	Now, Most, All int // under way, at the same time at most, and in all
}

// NewSilentNodes returns so many, with a standing.
func NewSilentNodes(n int, standing cluster.Standing) *SilentNodes {
	s := &SilentNodes{Standing: standing}
	for i := range n {
		s.Epochs = append(s.Epochs, fmt.Sprintf("epoch%03d", i))
	}
	return s
}

// Dials returns how often the nodes were dialled.
func (s *SilentNodes) Dials() Dials {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dials
}

func silent(epoch string) protocol.Node { return protocol.Node{Node: "node " + epoch, Epoch: epoch} }

// Self is of cluster.Nodes, as are the other methods.
func (s *SilentNodes) Self() protocol.Node { return protocol.Node{Node: "gate"} }

func (s *SilentNodes) Degraded() bool { return false }

func (s *SilentNodes) Presence(context.Context, string) []string { return s.Epochs }

func (s *SilentNodes) Find(epoch string) (protocol.Node, cluster.Standing) {
	if s.Standing != cluster.Known {
		return protocol.Node{}, s.Standing
	}
	return silent(epoch), s.Standing
}

func (s *SilentNodes) All() (all []protocol.Node) {
	for _, epoch := range s.Epochs {
		all = append(all, silent(epoch))
	}
	return all
}

func (s *SilentNodes) Dial(ctx context.Context, _ string, _ *link.Hello) (*link.Conn, error) {
	s.mu.Lock()
	s.dials.Now++
	s.dials.All++
	s.dials.Most = max(s.dials.Most, s.dials.Now)
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials.Now--
	return nil, context.Cause(ctx)
}
