package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"trl/internal/bench/figure"
	"trl/protocol"
)

// What several machines cost: three nats-servers and three nodes, all on this machine. The same work at the session's own node, or on a node without a
// cluster, is the floor.

// cluster is a running cluster. monitor are the addresses where its servers tell of their connections.
type cluster struct {
	servers []*child
	urls    []string // of the servers
	nodes   []*child
	monitor []string
	dir     string
}

// nodesCost is `make bench-cluster`.
func nodesCost() error {
	sessions, quiet := *idle, 30*time.Second
	if *quick {
		*rounds, *stream, sessions, quiet = 60, 8, 20, 2*time.Second
	}
	openFiles()
	c := startCluster(3)
	defer c.stop()
	own, other := c.nodes[0], c.nodes[1]
	at, over := dial(own.addr+"/v1/ws"), dial(other.addr+"/v1/ws")
	defer at.CloseNow()
	defer over.CloseNow()
	report = figure.Report{Machine: machine(tier(at))}
	fmt.Println(report.Machine)
	figure.Header(os.Stdout)

	var made protocol.Session
	ask(at, "session.create", map[string]any{"shell": "/bin/sh", "node": "n1"}, &made)
	line := request(1, "exec.run", map[string]any{"session_id": made.SessionID, "command": ":"})
	here, there := func() { ok(roundTrip(at, line)) }, func() { ok(roundTrip(over, line)) }
	for range 50 { // the link is there, and all programs are in memory
		here()
		there()
	}
	f, o := turns(*rounds, here, there)
	row("exec.run over another node / at the owner", f, o)
	emit(added("exec.run, added, p50", f, o, 0.5).Below(150e3))
	emit(added("exec.run, added, p99", f, o, 0.99).Below(400e3))
	relay := gatewayOf(other.cmd.Process.Pid)
	used := threadTime(relay)
	for range *rounds {
		there()
	}
	spent := samples{float64(threadTime(relay)-used) / float64(*rounds)}
	emit(figure.New("exec.run, relaying gateway's CPU", "RelayCPU", figure.Nanoseconds, nil, spent).Below(100e3))

	posted := func(g *child) func() {
		rpc := strings.Replace(g.addr, "ws", "http", 1) + "/v1/rpc"
		return func() { ok(post(rpc, line)) }
	}
	f, o = turns(*rounds, posted(own), posted(other))
	row("POST /v1/rpc over another node / at the owner", f, o)
	emit(added("POST /v1/rpc, added, p50", f, o, 0.5))

	n := *stream << 20
	direct, relayed := dial(own.addr+"/v1/ws", "trl.v1+bin"), dial(other.addr+"/v1/ws", "trl.v1+bin")
	f, o = turns(5, func() { follow(direct, made.SessionID, n, 0) }, func() { follow(relayed, made.SessionID, n, 0) })
	emit(rates(fmt.Sprintf("exec.stream, %d MiB, binary", *stream), n, f, o).AtLeast(0.6))
	direct.CloseNow()
	relayed.CloseNow()

	k := keysIn(dial(own.addr+"/v1/ws", "trl.v1+bin"), made.SessionID)
	far := keysIn(dial(other.addr+"/v1/ws", "trl.v1+bin"), made.SessionID)
	f, o = turns(*rounds, k.press, far.press)
	row("keystroke echo, trl.v1+bin", f, o)
	emit(added("keystroke, added, p50", f, o, 0.5).Below(120e3))
	k.c.CloseNow()
	far.c.CloseNow()

	c.creates(at)
	return idleNodes(c, sessions, quiet)
}

// added is what samples of own take more than those of floor, at a quantile.
func added(name string, floor, own samples, q float64) figure.Figure {
	return figure.New(name, key(name), figure.Nanoseconds, nil, samples{own.Quantile(q) - floor.Quantile(q)})
}

// creates measures what the directory costs a session that gets a name, beside a bare write of a new key: three servers write it to this machine's disk.
func (c *cluster) creates(ws *websocket.Conn) {
	conn := must(nats.Connect(c.urls[0]))
	defer conn.Close()
	bucket := must(must(jetstream.New(conn)).CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "bench", Replicas: len(c.servers)}))
	ready := func() int {
		var stats protocol.Stats
		ask(ws, "system.stats", nil, &stats)
		return stats.WarmShells
	}
	warm := ready()
	measure := func(s *samples, work func()) { // while no shell is being started
		for ready() < warm {
			time.Sleep(time.Millisecond)
		}
		began := time.Now()
		work()
		s.Add(time.Since(began))
	}
	var f, o, bare samples
	create := func(s *samples, params map[string]any) {
		params["node"] = "n1"
		var made []byte
		measure(s, func() { made = ok(roundTrip(ws, request(1, "session.create", params))) })
		destroy(ws, made)
	}
	for i := range min(*rounds, 200) {
		create(&f, map[string]any{})
		create(&o, map[string]any{"name": fmt.Sprint("name-", i)})
		measure(&bare, func() { must(bucket.Create(ctx, fmt.Sprint("key-", i), []byte("value"))) })
	}
	row("session.create, named / unnamed", f, o)
	name := added("a name, added, p50", f, o, 0.5)
	emit(figure.New(name.Name+" / a bare write", name.Key, figure.Nanoseconds, bare, samples{name.Own.Median}).Below(1e6))
}

// idleNodes measures nodes that each have idle sessions, beside a gateway without a cluster that has as many.
func idleNodes(c *cluster, n int, quiet time.Duration) error {
	alone := gateway("--idle-timeout", "0")
	all := append([]*child{alone}, c.nodes...)
	defer alone.stop()
	for i, g := range all {
		ws := dial(g.addr + "/v1/ws")
		defer ws.CloseNow()
		params := map[string]any{"shell": "/bin/bash"}
		if i > 0 {
			params["node"] = fmt.Sprint("n", i)
		}
		for range n {
			ask(ws, "session.create", params, nil)
		}
	}
	time.Sleep(min(quiet, 5*time.Second)) // what follows a creation
	used := make([]time.Duration, len(all))
	for i, g := range all {
		used[i] = serverTime(g)
	}
	messages, began := c.messages(), time.Now()
	time.Sleep(quiet)
	passed := time.Since(began).Seconds()
	var memory, processor, traffic samples
	for i, g := range all {
		processor = append(processor, float64(serverTime(g)-used[i])/passed)
		memory = append(memory, treeOf(g.cmd.Process.Pid).pss)
	}
	for name, sum := range c.messages() {
		traffic = append(traffic, float64(sum-messages[name])/passed)
	}
	what := fmt.Sprintf("%d idle sessions a node / alone: ", n)
	emit(figure.New(what+"PSS", "IdlePSS", figure.Bytes, memory[:1], memory[1:]).AtMost(1.05))
	emit(figure.New(what+"CPU", "IdleCPU", figure.Nanoseconds, processor[:1], processor[1:]).AtMost(1.05))
	emit(figure.New("messages of a node to and from NATS", "NATSMessages", figure.PerSecond, nil, traffic).Below(10))
	return save("nodes", report)
}

// serverTime is the processor time of a keeper and its gateway.
func serverTime(g *child) time.Duration {
	keeper := g.cmd.Process.Pid
	return threadTime(keeper) + threadTime(gatewayOf(keeper))
}

// threadTime is the processor time of a process's threads that exist now. It is exact, unlike that of /proc/PID/stat.
func threadTime(pid int) (sum time.Duration) {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	check(err)
	for _, path := range all {
		text, _ := os.ReadFile(path) // the thread may have ended
		first, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseInt(first, 10, 64)
		sum += time.Duration(ns)
	}
	if sum == 0 {
		return cpu(pid) // a kernel without schedstat
	}
	return sum
}

// startCluster starts as many nats-servers as nodes, and returns when each node knows the others.
func startCluster(n int) *cluster {
	c := &cluster{dir: must(os.MkdirTemp("", "trl-bench-nats-"))}
	ports := make([]string, 3*n)
	for i := range ports {
		ports[i] = freePort()
	}
	var routes []string
	for i := range n {
		c.urls = append(c.urls, fmt.Sprint("nats://127.0.0.1:", ports[i]))
		routes = append(routes, fmt.Sprint("nats://127.0.0.1:", ports[n+i]))
		c.monitor = append(c.monitor, fmt.Sprint("http://127.0.0.1:", ports[2*n+i], "/connz?limit=1000"))
	}
	for i := range n {
		dir := filepath.Join(c.dir, fmt.Sprint(i))
		check(os.Mkdir(dir, 0o700))
		conf := filepath.Join(dir, "conf")
		check(os.WriteFile(conf, fmt.Appendf(nil, `listen: 127.0.0.1:%s
http: "127.0.0.1:%s"
server_name: nats%d
jetstream { store_dir: %q, sync_interval: always }
cluster { name: bench, listen: "127.0.0.1:%s", routes: [%s] }
`, ports[i], ports[2*n+i], i, dir, ports[n+i], strings.Join(routes, ", ")), 0o600))
		c.servers = append(c.servers, launch(exec.Command(*natsServer, "-c", conf, "-l", filepath.Join(dir, "log")), dir))
	}
	secret := filepath.Join(c.dir, "secret")
	check(os.WriteFile(secret, bytes.Repeat([]byte("0123456789abcdef"), 4), 0o600))
	for i := range n {
		c.nodes = append(c.nodes, gateway("--idle-timeout", "0", "--cluster", strings.Join(c.urls, ","), "--cluster-listen", "127.0.0.1:0",
			"--cluster-secret", secret, "--node", fmt.Sprint("n", i+1)))
	}
	for _, g := range c.nodes {
		ws := dial(g.addr + "/v1/ws")
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			var known protocol.Nodes
			if ask(ws, "system.nodes", nil, &known); len(known.Nodes) == n && !known.Degraded {
				break
			}
			if time.Now().After(deadline) {
				panic("the nodes do not find each other")
			}
		}
		ws.CloseNow()
	}
	return c
}

func (c *cluster) stop() {
	for _, g := range c.nodes {
		g.stop()
	}
	for _, s := range c.servers {
		s.stop()
	}
	os.RemoveAll(c.dir)
}

// messages counts the messages of each node's connection to NATS, by the node's name.
func (c *cluster) messages() map[string]int {
	all := map[string]int{}
	for _, url := range c.monitor {
		r, err := http.Get(url)
		check(err)
		var page struct {
			Connections []struct {
				Name    string `json:"name"`
				InMsgs  int    `json:"in_msgs"`
				OutMsgs int    `json:"out_msgs"`
			} `json:"connections"`
		}
		check(json.Unmarshal(must(io.ReadAll(r.Body)), &page))
		r.Body.Close()
		for _, conn := range page.Connections {
			all[conn.Name] += conn.InMsgs + conn.OutMsgs
		}
	}
	return all
}
