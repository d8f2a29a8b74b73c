package main

import (
	"cmp"
	"maps"
	"slices"

	"trl/pool"
	"trl/protocol"
	"trl/runtime"
)

// limits is what clients may find out about the bounds in force.
func limits(s *settings) map[string]float64 {
	all := map[string]float64{
		"max_sessions":               float64(s.pool.MaxSessions),
		"max_sessions_per_principal": float64(cmp.Or(s.pool.MaxPerPrincipal, pool.AllButReserve(s.pool.MaxSessions))),
		"max_frame_bytes":            float64(s.web.MaxFrame),
		"max_output_bytes":           float64(s.pool.MaxOutput),
		"ring_bytes":                 float64(s.pool.RingBytes),
		"slow_client_s":              s.web.SlowClient.Seconds(),
		"idle_timeout_s":             s.pool.IdleTimeout.Seconds(),
		"max_idle_timeout_s":         s.pool.MaxIdle.Seconds(),
		"default_timeout_s":          s.pool.DefaultTimeout.Seconds(),
		"max_timeout_s":              cmp.Or(s.pool.MaxTimeout, pool.LongestTimeout).Seconds(),
		"retention_s":                s.pool.Retention.Seconds(),
		"record_max_bytes":           float64(s.pool.Record.MaxBytes),
		"record_total_bytes":         float64(s.pool.Record.TotalBytes),
		"record_keep_s":              s.pool.Record.Keep.Seconds(),
	}
	all["max_connections"], all["max_connections_per_principal"] = float64(s.web.MaxConns), float64(cmp.Or(s.web.MaxConnsOfPrincipal, pool.AllButReserve(s.web.MaxConns)))
	all["max_connections_per_share"] = float64(s.web.MaxGuests)
	l := s.pool.Limits
	for name, v := range map[string]float64{
		"memory_bytes": float64(l.MemoryBytes), "pids": float64(l.Pids), "cpu": l.CPU,
		"file_size_bytes": float64(l.FileSizeBytes), "open_files": float64(l.OpenFiles),
	} {
		if v > 0 {
			all[name] = v
		}
	}
	return all
}

// capabilities is what clients may find out about the server.
func capabilities(s *settings, processes runtime.Keeper) protocol.Capabilities {
	cannot := processes.Unenforceable()
	c := protocol.Capabilities{
		DefaultShell: s.pool.DefaultShell, Isolation: isolation(processes), Limits: limits(s),
		SessionUser: s.sessionUserName, NoNewPrivs: s.sessionUser != nil || len(s.allowWrite) > 0 || s.sandbox != "none", AllowWrite: s.allowWrite,
		SessionLimits: slices.DeleteFunc(slices.Sorted(maps.Keys(limitFlags)), func(limit string) bool { return cannot[limit] != "" }),
	}
	if s.sandbox != "none" {
		c.Sandbox = s.sandbox
	}
	if s.pool.Record.Dir != "" {
		c.Record = s.pool.Record.Policy
	}
	return c
}

// isolation is what clients may find out about the containment in force.
func isolation(keeper runtime.Keeper) protocol.Isolation {
	tier, why := keeper.Isolation()
	i := protocol.Isolation{Tier: tier, Why: why}
	for _, r := range keeper.Tiers() {
		i.Tiers = append(i.Tiers, protocol.IsolationTier(r))
	}
	return i
}
