package web

import (
	"errors"

	"trl/web/listen"
	"trl/web/rpc"
)

// liveConfig is the part of a Config that Reload may replace. It is never changed, only replaced as a whole. The rest of the Config is in Server.cfg.
type liveConfig struct {
	origins []string
	clients rpc.LiveConfig
}

func (c *Config) liveConfig() *liveConfig {
	can := c.Capabilities
	can.Features = []string{"mcp"}
	return &liveConfig{c.Origins, rpc.LiveConfig{MaxFrame: c.MaxFrame, SlowClient: c.SlowClient, Capabilities: can}}
}

// Reload puts Origins, MaxFrame, SlowClient, Capabilities, TLSCert and TLSKey of c in force, either all of them or none; it ignores the rest of c.
// Open connections stay as they are. Reload cannot switch TLS on or off. It must not run twice at a time, and only between Listen and Shutdown.
func (s *Server) Reload(c Config) error {
	c.setDefaults()
	now := s.cert.Load()
	if (now == nil) != (c.TLSCert == "") {
		return errors.New("TLS cannot be switched on or off while it is served")
	}
	if now != nil && (!now.IsOf(c.TLSCert, c.TLSKey)) {
		next, err := listen.OpenCertificate(c.TLSCert, c.TLSKey, s.auditCertificate, s.log)
		if err != nil {
			return err
		}
		s.cert.Store(next)
		now.Close()
	}
	s.live.Store(c.liveConfig())
	return nil
}
