// Package placement chooses the nodes that a new session may be made on. It only computes: the caller knows the nodes and asks them.
package placement

import (
	"math/rand/v2"

	"trl/cluster/node"
)

// MaxTries is how many nodes are asked for one session at most. A node may refuse, because what others know of it is some seconds old.
const MaxTries = 3

// ownBonus is how much busier the own node may be than the better one and still be chosen: a session there needs no relay.
const ownBonus = 1.1

// Request says what the new session needs, and where the request arrived.
type Request struct {
	Where map[string]string // labels that the node must have
	Own   string            // the epoch of the node that decides; it need not be a candidate
}

// The reasons for which a node is no candidate.
const (
	Fits      = ""
	Elsewhere = "labels" // it lacks a label
	Draining  = "draining"
	Full      = "full"
	Starting  = "starting"
)

// Why returns the reason for which n is no candidate, or Fits.
func Why(n *node.Node, r Request) string {
	switch {
	case !n.Matches(r.Where):
		return Elsewhere
	case n.Draining:
		return Draining
	case n.Starting:
		return Starting
	case !n.HasRoom():
		return Full
	}
	return Fits
}

// Order returns the nodes to ask for a new session, the first one first, and MaxTries at most. Each is the less loaded of two that random chooses,
// which spreads sessions nearly as evenly as a full comparison would, although every gateway decides for itself with news that are seconds old.
// The own node comes first if it is at most a tenth busier than the first choice.
func Order(nodes []*node.Node, r Request, random *rand.Rand) (order []*node.Node) {
	var left []*node.Node
	var own *node.Node
	for _, n := range nodes {
		if Why(n, r) != Fits {
			continue
		}
		left = append(left, n)
		if n.Epoch == r.Own {
			own = n
		}
	}
	for len(order) < MaxTries && len(left) > 0 {
		i := better(left, random)
		if len(order) == 0 && own != nil && busy(own) <= ownBonus*busy(left[i]) {
			i = indexOf(left, own)
		}
		order = append(order, left[i])
		left[i] = left[len(left)-1]
		left = left[:len(left)-1]
	}
	return order
}

// better returns the index of the less busy of two nodes that random chooses.
func better(nodes []*node.Node, random *rand.Rand) int {
	i := random.IntN(len(nodes))
	if len(nodes) == 1 {
		return i
	}
	j := random.IntN(len(nodes) - 1)
	if j >= i {
		j++
	}
	a, b := busy(nodes[i]), busy(nodes[j])
	if b < a || b == a && nodes[j].Load < nodes[i].Load {
		return j
	}
	return i
}

// busy is the part of its sessions that the node will have in use with one more. The processors' load only decides between equals: it changes
// faster than the news of it arrive.
func busy(n *node.Node) float64 { return float64(n.Live+1) / float64(n.Max) }

func indexOf(nodes []*node.Node, n *node.Node) int {
	for i := range nodes {
		if nodes[i] == n {
			return i
		}
	}
	return -1
}
