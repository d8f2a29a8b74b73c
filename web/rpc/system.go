package rpc

import (
	"cmp"
	"maps"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
	"trl/web/auth"
	"trl/web/transport"
)

func systemPing(k *call, _ *protocol.None) (any, bool, error) {
	s := k.c.srv
	return &protocol.Pong{
		UptimeS: int64(time.Since(s.startedAt).Seconds()),
		Version: s.config.Version,
		Time:    time.Now(),
		Epoch:   s.pool.Epoch(),
		Node:    s.nodeName(),

		Degraded: s.config.Cluster.Nodes != nil && s.config.Cluster.Nodes.Degraded(),
	}, false, nil
}

func systemStats(k *call, q *protocol.SystemStats) (any, bool, error) {
	stats := k.c.srv.pool.Stats()
	stats.Draining = k.c.srv.config.Drains.Draining()
	if k.c.principal.Role == auth.Admin {
		stats.Moves = k.c.srv.Moves.Progress()
	}
	if q.Node != "" {
		n, fault := k.c.srv.findNode(q.Node)
		switch {
		case fault != nil:
			return nil, false, fault
		case n.Epoch == k.c.srv.pool.Epoch():
			return &stats, false, nil
		}
		return k.answerLater(func() (any, bool, error) { return k.askOnly(n, struct{}{}) })
	}
	others := k.otherNodes("")
	if len(others) == 0 {
		return &stats, false, nil
	}
	return k.answerLater(func() (any, bool, error) {
		stats.Partial = k.gather(others, struct{}{}, func(data jsontext.Value) error {
			var more protocol.Stats
			if err := json.Unmarshal(data, &more); err != nil {
				return err
			}
			stats.Add(&more)
			return nil
		})
		return &stats, false, nil
	})
}

func systemCapabilities(k *call, _ *protocol.None) (any, bool, error) {
	s := k.c.srv
	now := s.live()
	data := now.Capabilities
	data.Version = s.config.Version
	data.Shells = s.pool.Shells()
	data.Encodings = []string{protocol.UTF8, protocol.Base64}
	data.Subprotocols = []string{transport.Subprotocol, transport.SubprotocolBinary}
	for _, m := range protocol.Methods() {
		data.Methods = append(data.Methods, m.Name)
	}
	data.Features = append([]string{"rpc"}, data.Features...)
	data.Principal = protocol.Who{Subject: k.c.principal.Subject, Role: string(k.c.principal.Role)}
	if sh := k.c.grant.Share; sh != nil {
		info := sh.Info()
		data.Principal.Share = &info
	}
	data.Limits = maps.Clone(data.Limits)
	if data.Limits == nil {
		data.Limits = map[string]float64{}
	}
	for name, v := range map[string]float64{
		"max_frame_bytes":    float64(now.MaxFrame),
		"requests_in_flight": float64(s.config.MaxInFlight),
		"streams":            maxStreams,
		"slow_client_s":      now.SlowClient.Seconds(),
		"ping_every_s":       s.config.PingEvery.Seconds(),
		"peer_silence_s":     s.config.PeerSilence.Seconds(),
		"process_logs_bytes": maxLogBytes,
	} {
		data.Limits[name] = v
	}
	return &data, false, nil
}

func systemDrain(k *call, q *protocol.Drain) (any, bool, error) {
	if k.c.principal.Role != auth.Admin {
		return nil, false, protocol.Errorf(protocol.Forbidden, "only an admin may drain the server")
	}
	if q.Node != "" && q.Node != k.c.srv.self().Node { // route has passed it on if there is such a node
		_, fault := k.c.srv.findNode(q.Node)
		return nil, false, cmp.Or(fault, protocol.InvalidParam("node", "this is another node")) // a link leads to one node alone
	}
	drains, srv := k.c.srv.config.Drains, k.c.srv
	switch {
	case q.Undo:
		if err := drains.Undrain(); err != nil {
			return nil, false, err
		}
	case q.Move && srv.config.Cluster.Nodes == nil:
		return nil, false, protocol.Errorf(protocol.NotSupported, "there is no other node: this gateway is not part of a cluster").With("field", "move")
	default:
		drains.Drain(q.Most(), false, q.Move)
	}
	return &protocol.Drained{Node: srv.nodeName(), Draining: drains.Draining(), ActiveSessions: srv.pool.LiveCount(), Moves: srv.Moves.Progress()}, false, nil
}
