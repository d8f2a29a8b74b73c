package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"trl/internal/bench/figure"
	"trl/internal/bench/plot"
)

// Cluster is what make cluster-sim leaves; TestScale in cluster/directory measures it.
type Cluster struct {
	Machine figure.Machine `json:"machine"`
	Steps   []ClusterStep  `json:"steps"`
}

// ClusterStep is one number of nodes. Times are in nanoseconds.
type ClusterStep struct {
	Nodes       int     `json:"nodes"`
	Sessions    int     `json:"sessions"`
	Principals  int     `json:"principals"`
	Heartbeats  float64 `json:"heartbeats"`
	Heard       float64 `json:"heard"`
	Listeners   int     `json:"listeners"`
	ServersCPU  float64 `json:"servers_cpu"`
	ServersRSS  float64 `json:"servers_rss"`
	MapBytes    float64 `json:"map_bytes"`
	FindP50     float64 `json:"find_p50"`
	FindP99     float64 `json:"find_p99"`
	ClaimP50    float64 `json:"claim_p50"`
	ClaimP99    float64 `json:"claim_p99"`
	PresenceP50 float64 `json:"presence_p50"`
	PresenceP99 float64 `json:"presence_p99"`
	MaxToMean   float64 `json:"max_to_mean"`
}

// clusterPlots writes the table and the picture of docs/cluster-scale.md.
func clusterPlots() error {
	var c Cluster
	err := figure.Load(filepath.Join(*out, "cluster.json"), &c)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	page := filepath.Join(filepath.Dir(*doc), "cluster-scale.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	if err := os.WriteFile(page, tableOf(text, "cluster", clusterTable(c)), 0o666); err != nil {
		return err
	}
	over := func(name string, of func(ClusterStep) float64) plot.Line {
		l := plot.Line{Name: name}
		for _, s := range c.Steps {
			l.Points = append(l.Points, plot.Point{X: float64(s.Nodes), Y: of(s)})
		}
		return l
	}
	return draw("cluster-scale", plot.Chart{Title: "Questions to the directory, with 1,000 sessions for each node", X: "nodes", LogX: true, LogY: true, Format: figure.Nanoseconds.Format, Lines: []plot.Line{
		over("find by name", func(s ClusterStep) float64 { return s.FindP50 }),
		over("find by name, p99", func(s ClusterStep) float64 { return s.FindP99 }),
		over("claim of a name", func(s ClusterStep) float64 { return s.ClaimP50 }),
		over("presence of a principal", func(s ClusterStep) float64 { return s.PresenceP50 }),
	}})
}

func clusterTable(c Cluster) string {
	var b strings.Builder
	m := c.Machine
	fmt.Fprintf(&b, "%s, %d cores, %.0f GiB; Linux %s, %s; nats-server of cluster/natsserver; %s UTC, load before %.2f\n\n| nodes | sessions | principals | heartbeats | heard by one node | servers' processor time | servers' memory | one gateway's map | find by name | p99 | claim | p99 | presence | p99 | busiest node / mean |\n|%s\n",
		m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.Kernel, m.Go, m.Date, m.Load, strings.Repeat("-:|", 15))
	ns := figure.Nanoseconds.Format
	for _, s := range c.Steps {
		fmt.Fprintf(&b, "| %d | %d | %d | %.0f /s | %.0f /s | %.0f %% with %d listeners | %s | %s | %s | %s | %s | %s | %s | %s | %.2f |\n", s.Nodes, s.Sessions, s.Principals, s.Heartbeats,
			s.Heard/float64(max(s.Listeners, 1)), s.ServersCPU, s.Listeners, figure.Bytes.Format(s.ServersRSS), figure.Bytes.Format(s.MapBytes), ns(s.FindP50), ns(s.FindP99), ns(s.ClaimP50), ns(s.ClaimP99), ns(s.PresenceP50), ns(s.PresenceP99), s.MaxToMean)
	}
	return b.String()
}
