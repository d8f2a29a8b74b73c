package rpc

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/semaphore"

	"trl/protocol"
	"trl/web/rpc/cluster"
)

// Lists are gathered from the nodes that may have something of them.

const (
	// gatherTimeout is how long the other nodes have to answer. Those that have not are named in the answer.
	gatherTimeout = time.Second
	// maxGathered is how many nodes are asked at the same time.
	maxGathered = 64
)

// gather sends a request of its own to other nodes and calls each with the data of every answer, one after the other. It returns the names of the nodes
// that have not answered in time.
func (k *call) gather(epochs []string, params any, each func(data jsontext.Value) error) (partial []string) {
	if len(epochs) == 0 {
		return nil
	}
	return k.ask(k.method, epochs, params, each)
}

// ask is gather with a method of its own.
func (k *call) ask(method string, epochs []string, params any, each func(data jsontext.Value) error) (partial []string) {
	c := k.c
	text, err := json.Marshal(struct {
		ID     int    `json:"id"`
		Method string `json:"method"`
		Params any    `json:"params"`
	}{0, method, params})
	if err != nil {
		return nil // params are ours, and were decoded
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.srv.gatherWait)
	defer cancel()
	places := semaphore.NewWeighted(maxGathered)
	var asking sync.WaitGroup
	var mu sync.Mutex // held while each is called
	for _, epoch := range epochs {
		n, standing := c.relays.nodes.Find(epoch)
		if standing != cluster.Known {
			continue
		}
		asking.Go(func() { // asks one node; ends with ctx; waited for below
			err := places.Acquire(ctx, 1)
			if err == nil {
				defer places.Release(1)
				err = c.askNode(ctx, epoch, text, func(data jsontext.Value) error {
					mu.Lock()
					defer mu.Unlock()
					return each(data)
				})
			}
			if err != nil {
				c.log.Debug().Err(err).Str("node", n.Node).Str("method", method).Msg("node did not answer")
				mu.Lock()
				partial = append(partial, n.Node)
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	slices.Sort(partial)
	return partial
}

// askOnly sends a request of its own to one other node and returns the data of the answer.
func (k *call) askOnly(n protocol.Node, params any) (data any, pending bool, err error) {
	if k.c.relays == nil {
		return nil, false, protocol.InvalidParam("node", "this is another node") // and a link leads to one node alone
	}
	if k.gather([]string{n.Epoch}, params, func(answer jsontext.Value) error {
		data = answer.Clone()
		return nil
	}) != nil || data == nil {
		return nil, false, cluster.Unreachable(n.Node, time.Second)
	}
	return data, false, nil
}

// askNode sends one request over a link of its own and calls use with the data of the answer.
func (c *conn) askNode(ctx context.Context, epoch string, request []byte, use func(data jsontext.Value) error) error {
	h, e := c.hello()
	if e != nil {
		return e
	}
	r := relay{c: c}
	defer r.endLarge()
	return cluster.Ask(ctx, c.relays.nodes, epoch, h, request, r.beginLarge, use)
}

// otherNodes returns the epochs of the nodes to ask for what a principal has; "": for what anybody has. It waits for the directory, but not for long.
func (k *call) otherNodes(principal string) (epochs []string) {
	rs := k.c.relays
	if rs == nil || k.c.grant.Share != nil {
		return nil
	}
	if principal != "" {
		ctx, cancel := context.WithTimeout(k.c.ctx, k.c.srv.gatherWait)
		defer cancel()
		return rs.nodes.Presence(ctx, principal)
	}
	return rs.others()
}

// others returns the epochs of all other nodes that may have sessions.
func (rs *relays) others() (epochs []string) {
	for _, n := range rs.nodes.All() {
		if n.Epoch != rs.self && (n.MaxSessions > 0 || n.Unreachable != "") {
			epochs = append(epochs, n.Epoch)
		}
	}
	return epochs
}

// findName returns the epoch of the node that has the session with a name. While the directory does not work it asks the nodes themselves: it cannot
// say that there is no such session, but one that is there can be used.
func (k *call) findName(name string) (epoch string, err error) {
	rs := k.c.relays
	if rs.nodes.Degraded() {
		if epoch = k.askForName(name); epoch != "" {
			return epoch, nil
		}
	}
	epoch, err = rs.nodes.FindName(k.c.ctx, k.c.principal.Subject, name)
	if err != nil {
		if asked := k.askForName(name); asked != "" {
			return asked, nil
		}
	}
	return epoch, err
}

// askForName asks all other nodes for a session of this name.
func (k *call) askForName(name string) (epoch string) {
	k.ask("session.locate", k.c.relays.others(), protocol.SessionRef{Session: name}, func(data jsontext.Value) error {
		var at protocol.Located
		err := json.Unmarshal(data, &at)
		if n, fault := k.c.srv.findNode(at.Node); fault == nil {
			epoch = n.Epoch
		}
		return err
	})
	return epoch
}
