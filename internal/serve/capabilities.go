package serve

import (
	"cmp"
	"maps"
	"slices"

	"trl/internal/config"
	"trl/pool/places"
	"trl/pool/timeouts"
	"trl/protocol"
	"trl/runtime/own"
)

// limits returns the bounds in force, for clients.
func limits(s *config.Settings) map[string]float64 {
	all := map[string]float64{
		"max_sessions":               float64(s.Pool.MaxSessions),
		"max_sessions_per_principal": float64(cmp.Or(s.Pool.MaxPerPrincipal, places.AllButReserve(s.Pool.MaxSessions))),
		"max_frame_bytes":            float64(s.Web.MaxFrame),
		"max_output_bytes":           float64(s.Pool.MaxOutput),
		"ring_bytes":                 float64(s.Pool.RingBytes),
		"slow_client_s":              s.Web.SlowClient.Seconds(),
		"idle_timeout_s":             s.Pool.IdleTimeout.Seconds(),
		"max_idle_timeout_s":         s.Pool.MaxIdle.Seconds(),
		"default_timeout_s":          s.Pool.DefaultTimeout.Seconds(),
		"max_timeout_s":              cmp.Or(s.Pool.MaxTimeout, timeouts.Longest).Seconds(),
		"retention_s":                s.Pool.Retention.Seconds(),
		"record_max_bytes":           float64(s.Pool.Record.MaxBytes),
		"record_total_bytes":         float64(s.Pool.Record.TotalBytes),
		"record_keep_s":              s.Pool.Record.Keep.Seconds(),
	}
	all["max_connections"], all["max_connections_per_principal"] = float64(s.Web.MaxConns), float64(cmp.Or(s.Web.MaxConnsOfPrincipal, places.AllButReserve(s.Web.MaxConns)))
	all["max_connections_per_share"] = float64(s.Web.MaxGuests)
	l := s.Pool.Limits
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

// capabilities describes the server for clients.
func capabilities(s *config.Settings, processes own.Keeper) protocol.Capabilities {
	cannot := processes.Unenforceable()
	c := protocol.Capabilities{
		DefaultShell: s.Pool.DefaultShell, Isolation: isolation(processes), Limits: limits(s),
		SessionUser: s.SessionUserName, NoNewPrivs: s.SessionUser != nil || len(s.AllowWrite) > 0 || s.Sandbox != "none", AllowWrite: s.AllowWrite,
		SessionLimits: slices.DeleteFunc(slices.Sorted(maps.Keys(config.LimitFlags)), func(limit string) bool { return cannot[limit] != "" }),
	}
	if s.Sandbox != "none" {
		c.Sandbox = s.Sandbox
	}
	if s.Pool.Record.Dir != "" {
		c.Record = s.Pool.Record.Policy
	}
	return c
}

// isolation describes the containment in force for clients.
func isolation(keeper own.Keeper) protocol.Isolation {
	tier, why := keeper.Isolation()
	i := protocol.Isolation{Tier: tier, Why: why}
	for _, r := range keeper.Tiers() {
		i.Tiers = append(i.Tiers, protocol.IsolationTier(r))
	}
	return i
}
