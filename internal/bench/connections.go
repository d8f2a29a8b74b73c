package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"trl/internal/bench/figure"
)

// A ConnectionsRow is what WebSockets cost whose clients only answer pings.
type ConnectionsRow struct {
	What        string  `json:"what"`
	Connections int     `json:"connections"`
	RSS         float64 `json:"rss_bytes"` // of the server, in all
	Each        float64 `json:"rss_per_connection_bytes"`
	CPU         float64 `json:"idle_cpu_percent"`
}

// idleConnections measures n idle WebSockets of a gateway, and of the floor, which keeps no connection alive by pings.
func idleConnections(r *Idle, n int) {
	floor := start(must(os.Executable()), "echo")
	connectionsRow(r, "floor, without pings", floor, floor.addr+"/echo", floor.cmd.Process.Pid, n)
	most := fmt.Sprint(n + 10)
	gw := gateway("--warm", "0", "--max-connections", most, "--max-connections-per-principal", most)
	connectionsRow(r, "trl", gw, gw.addr+"/v1/ws", gatewayOf(gw.cmd.Process.Pid), n)
}

// connectionsRow adds the row of one server, and stops it.
func connectionsRow(r *Idle, what string, server *child, url string, pid, n int) {
	const (
		settled = 20 * time.Second // the garbage of the upgrades is collected
		watched = time.Minute      // three pings
	)
	defer server.stop()
	dial(url).CloseNow() // opens what the server opens once
	before := status(pid).rss
	for i := range n {
		if err := caught(func() error {
			c := dial(url)
			c.CloseRead(ctx) // reads and answers pings until the server ends
			return nil
		}); err != nil {
			panic(fmt.Sprintf("%s, after %d connections: %v", what, i, err))
		}
	}
	time.Sleep(settled)
	used, began := cpu(pid), time.Now()
	time.Sleep(watched)
	row := ConnectionsRow{What: what, Connections: n, CPU: 100 * (cpu(pid) - used).Seconds() / time.Since(began).Seconds(), RSS: status(pid).rss}
	row.Each = (row.RSS - before) / float64(n)
	r.Connections = append(r.Connections, row)
	fmt.Printf("%d idle WebSockets, %-22s RSS %9s  a connection %9s  CPU %.2f %%\n", n, what, figure.Bytes.Format(row.RSS), figure.Bytes.Format(row.Each), row.CPU)
}

func connectionsTable(rows []ConnectionsRow) string {
	var b strings.Builder
	b.WriteString("\n| idle WebSockets | RSS of the server | a connection | idle CPU |\n|-|-:|-:|-:|\n")
	for _, t := range rows {
		fmt.Fprintf(&b, "| %d, %s | %s | %.1f KiB | %.2f %% |\n", t.Connections, t.What, figure.Bytes.Format(t.RSS), t.Each/1024, t.CPU)
	}
	return b.String()
}
