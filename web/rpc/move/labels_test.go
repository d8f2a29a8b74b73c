package move

import (
	"testing"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/web/rpc/cluster"
)

// someNodes are known nodes, the first of which is this one.
type someNodes struct {
	cluster.Nodes
	all      []protocol.Node
	standing cluster.Standing // of a node that is not among them
}

func (s *someNodes) Self() protocol.Node { return s.all[0] }

func (s *someNodes) All() []protocol.Node { return s.all }

func (s *someNodes) Find(string) (protocol.Node, cluster.Standing) {
	return protocol.Node{}, s.standing
}

// TestDrainNamesWhatNoOtherNodeHas: the labels of the node that is being drained do not count.
func TestDrainNamesWhatNoOtherNodeHas(t *testing.T) {
	type labels = map[string]string
	nodes := &someNodes{all: []protocol.Node{
		{Node: "n1", Epoch: "e1", Zone: "a", Labels: labels{"gpu": "1", "ssd": "1"}},
		{Node: "n2", Epoch: "e2", Zone: "b", Labels: labels{"gpu": "1"}, Draining: true},
		{Node: "n3", Epoch: "e3", Zone: "c", Labels: labels{"gpu": "2"}},
	}}
	for _, c := range []struct {
		where labels
		lacks string // "": a node has them
	}{
		{nil, ""},
		{labels{"gpu": "1"}, ""},
		{labels{"gpu": "1", "zone": "b"}, ""},
		{labels{"node": "n3"}, ""},
		{labels{"zone": "a"}, "the label zone=a"},
		{labels{"node": "n1"}, "the label node=n1"},
		{labels{"gpu": "1", "zone": "a"}, "the label zone=a"},
		{labels{"ssd": "1", "gpu": "1", "zone": "a"}, "the labels ssd=1, zone=a"},
		{labels{"gpu": "1", "zone": "c"}, "all of the labels gpu=1, zone=c"},
	} {
		err := checkLabels(nodes, c.where)
		if c.lacks == "" {
			if err != nil {
				t.Errorf("%v: %v", c.where, err)
			}
			continue
		}
		e := testkit.WantCode(t, err, protocol.InvalidParams)
		if want := "no other node has " + c.lacks + ", with which the session was created (where)"; e.Message != want || e.Details["field"] != "where" {
			t.Errorf("%v: %v", c.where, e)
		}
	}
	nodes.standing = cluster.MayLive
	testkit.WantCode(t, checkLabels(nodes, labels{"zone": "a"}), protocol.NodeUnreachable)
}
