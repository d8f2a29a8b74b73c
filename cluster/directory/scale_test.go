//go:build soak

package directory

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"trl/cluster/kv"
	"trl/cluster/node"
	"trl/cluster/placement"
	"trl/internal/bench/figure"
	"trl/internal/natsrig"
	"trl/internal/testkit"
)

var (
	scaleNodes = flag.String("nodes", "10,100", "TestScale: the numbers of nodes")
	scaleFor   = flag.Duration("load-for", 2*time.Minute, "TestScale: the longest time to load the names of one step")
	scaleOut   = flag.String("out", "", "TestScale: the directory for cluster.json")
)

// scaleStep is what TestScale measures at one number of nodes. internal/bench reads it.
type scaleStep struct {
	Nodes       int     `json:"nodes"`
	Sessions    int     `json:"sessions"` // names in the directory
	Principals  int     `json:"principals"`
	Stopped     bool    `json:"stopped"`      // before there were 1,000 sessions for each node
	Load        float64 `json:"load"`         // names written a second
	Heartbeats  float64 `json:"heartbeats"`   // a second, in all
	Heard       float64 `json:"heard"`        // messages a second that the servers delivered to the listeners
	Listeners   int     `json:"listeners"`    // connections that hear all nodes, of which there would be one for each node
	ServersCPU  float64 `json:"servers_cpu"`  // percent of one core, all servers, while nothing else happens
	ServersRSS  int     `json:"servers_rss"`  // bytes, all servers
	MapBytes    int     `json:"map_bytes"`    // of one gateway
	FindP50     float64 `json:"find_p50"`     // ns
	FindP99     float64 `json:"find_p99"`     // ns
	ClaimP50    float64 `json:"claim_p50"`    // ns
	ClaimP99    float64 `json:"claim_p99"`    // ns
	PresenceP50 float64 `json:"presence_p50"` // ns; of a principal with sessions on ten nodes
	PresenceP99 float64 `json:"presence_p99"` // ns
	MaxToMean   float64 `json:"max_to_mean"`  // sessions on the busiest node
}

// TestScale measures the directory with one real gateway and simulated other nodes, on real servers. Each simulated node writes its entry, and has
// 1,000 sessions with names, of 100 principals.
func TestScale(t *testing.T) {
	c := natsrig.Start(t, 3)
	machine := figure.ThisMachine()
	var steps []scaleStep
	names := 0
	for word := range strings.SplitSeq(*scaleNodes, ",") {
		var n int
		if _, err := fmt.Sscan(word, &n); err != nil {
			t.Fatal(err)
		}
		s := measureScale(t, c, n, &names)
		t.Logf("%+v", s)
		steps = append(steps, s)
	}
	if *scaleOut == "" {
		return
	}
	text, err := json.MarshalIndent(map[string]any{"machine": machine, "steps": steps}, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(*scaleOut, "cluster.json"), append(text, '\n'), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func measureScale(t *testing.T, c *natsrig.Cluster, n int, names *int) (s scaleStep) {
	s.Nodes = n
	conn := c.Connect()
	nodes := &kv.Bucket{Conn: conn, Name: "trl_nodes", TTL: defaultLease, Memory: true}
	ctx := within(t, 20*time.Minute)

	// The simulated nodes write their entries.
	end := make(chan struct{})
	var beats sync.WaitGroup
	defer func() { close(end); beats.Wait() }()
	if err := nodes.Make(ctx); err != nil {
		t.Fatal(err)
	}
	value := func(i int) []byte {
		b, _ := json.Marshal(announcement{node.Node{Epoch: simulated(i), Name: fmt.Sprint("node-", i), URL: fmt.Sprintf("wss://10.0.0.%d:7682", i),
			Zone: "zone-a", Labels: map[string]string{"gpu": "1", "disk": "fast"}, Version: "v0.1.0", Max: 2000, Live: 1000}, "instance"})
		return b
	}
	beats.Go(func() {
		next := time.Now()
		for i := 0; ; i = (i + 1) % n {
			next = next.Add(defaultLease / 3 / time.Duration(n))
			_ = conn.Publish(nodes.Subject(simulated(i)), value(i))
			select {
			case <-end:
				return
			case <-time.After(time.Until(next)):
			}
		}
	})

	// One real gateway.
	before := heap()
	gateway := join(t, "gateway", c.URLs(), func(o *Options) { o.lease = 0 })
	gateway.becomesHealthy()
	testkit.Eventually(t, "the gateway knows all nodes", func() bool { return len(gateway.Nodes()) >= n+1 })
	s.MapBytes = int(heap() - before)

	// Names, a thousand for each node, without waiting for each answer.
	gateway.wins("first", "s-first")
	from, began := *names, time.Now()
	for ; *names < 1000*n && time.Since(began) < *scaleFor; *names++ {
		i := *names
		owner := Claim{Session: fmt.Sprint("s-session-of-the-simulation-", i), Epoch: simulated(i / 1000)}
		b, _ := json.Marshal(owner)
		_ = conn.Publish(gateway.names.Subject(gateway.nameKey(fmt.Sprint("principal-", i/10), fmt.Sprint("name-", i)).key), b)
		if i%1000 == 999 { // the servers have it when they have answered what came after it
			if _, err := gateway.names.Put(ctx, "sync", []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.Load = float64(*names-from) / time.Since(began).Seconds()
	s.Sessions, s.Principals, s.Stopped = *names, *names/10, *names < 1000*n

	// Presence of a hundred principals, each on ten nodes.
	for p := range 100 {
		for i := range min(10, n) {
			if _, err := gateway.presence.Put(ctx, hashed("principal", fmt.Sprint("principal-", p))+"."+simulated(i), []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}

	// Listeners: in a real cluster each node is one.
	s.Listeners = min(n, 50)
	var heard atomic.Int64
	var listeners []*nats.Conn
	for range s.Listeners {
		l := c.Connect()
		if _, err := l.Subscribe(nodes.Subject("*"), func(*nats.Msg) { heard.Add(1) }); err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	time.Sleep(time.Second)
	const window = 10 * time.Second
	used, _ := c.Usage()
	had := heard.Load()
	time.Sleep(window)
	after, rss := c.Usage()
	s.ServersCPU, s.ServersRSS = 100*(after-used).Seconds()/window.Seconds(), rss
	s.Heard = float64(heard.Load()-had) / window.Seconds()
	s.Heartbeats = s.Heard / float64(s.Listeners)
	for _, l := range listeners {
		l.Close()
	}

	s.FindP50, s.FindP99 = quantiles(2000, func(int) {
		i := rand.IntN(*names)
		if got, found, err := gateway.FindName(ctx, fmt.Sprint("principal-", i/10), fmt.Sprint("name-", i)); err != nil || !found {
			t.Errorf("name-%d: %+v, %v", i, got, err)
		}
	})
	s.ClaimP50, s.ClaimP99 = quantiles(500, func(i int) { gateway.wins(fmt.Sprint("new-", n, "-", i), fmt.Sprint("s-new-", n, "-", i)) })
	s.PresenceP50, s.PresenceP99 = quantiles(500, func(i int) {
		if live, err := gateway.Presence(ctx, fmt.Sprint("principal-", i%100)); err != nil || len(live) != min(10, n) {
			t.Errorf("presence: %v, %v", live, err)
		}
	})
	s.MaxToMean = spread(n)
	gateway.Close()
	return s
}

func simulated(i int) string { return fmt.Sprintf("sim%05d", i) }

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func quantiles(n int, f func(i int)) (p50, p99 float64) {
	all := make([]float64, n)
	for i := range all {
		began := time.Now()
		f(i)
		all[i] = float64(time.Since(began))
	}
	slices.Sort(all)
	return all[n/2], all[n*99/100]
}

// spread places 1,000 sessions for each of n nodes through at most 20 gateways, each with news of the others that are as old as 5 s of a full start:
// in 5 s, a twentieth of all sessions is placed. It returns the sessions of the busiest node, divided by the mean.
func spread(n int) float64 {
	random := rand.New(rand.NewPCG(1, 2))
	live := make([]int, n)
	known := make([][]*node.Node, min(n, 20))
	total := 1000 * n
	for s := range total {
		if s%(total/20) == 0 {
			for g := range known {
				known[g] = make([]*node.Node, n)
				for i := range n {
					known[g][i] = &node.Node{Epoch: simulated(i), Live: live[i], Max: 2000}
				}
			}
		}
		g := random.IntN(len(known))
		chosen := placement.Order(known[g], placement.Request{Own: simulated(g)}, random)[0]
		chosen.Live++
		var i int
		_, _ = fmt.Sscanf(chosen.Epoch, "sim%d", &i)
		live[i]++
	}
	return float64(slices.Max(live)) / 1000
}
