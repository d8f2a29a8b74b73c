package move

import (
	"maps"
	"slices"
	"strings"

	"trl/cluster/node"
	"trl/protocol"
	"trl/web/rpc/cluster"
)

// checkLabels returns an error if no other node has the labels that a session was created with, whether or not it takes sessions now. The error names the
// labels that none has; if each is there, but on no node all of them, it names all.
func checkLabels(nodes cluster.Nodes, where map[string]string) error {
	self := nodes.Self()
	var others []node.Node
	for _, n := range nodes.All() {
		if n.Epoch != self.Epoch {
			others = append(others, node.Node{Name: n.Node, Zone: n.Zone, Labels: n.Labels})
		}
	}
	have := func(where map[string]string) bool {
		return slices.ContainsFunc(others, func(n node.Node) bool { return n.Matches(where) })
	}
	if len(where) == 0 || have(where) {
		return nil
	}
	if _, standing := nodes.Find(""); standing == cluster.MayLive { // as for every epoch that is not known
		return cluster.UnknownYet()
	}
	var all, missing []string
	for _, label := range slices.Sorted(maps.Keys(where)) {
		words := label + "=" + where[label]
		if all = append(all, words); !have(map[string]string{label: where[label]}) {
			missing = append(missing, words)
		}
	}
	what := "the label "
	switch {
	case len(missing) == 0:
		what, missing = "all of the labels ", all
	case len(missing) > 1:
		what = "the labels "
	}
	return protocol.InvalidParam("where", "no other node has %s, with which the session was created (where)", what+strings.Join(missing, ", ")).With("where", where)
}
