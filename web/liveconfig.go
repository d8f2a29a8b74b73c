package web

import (
	"errors"

	"trl/web/listen"
	"trl/web/rpc"
)

// liveConfig is what of a Config may be another one while the server serves: all that it reads from there. Never changed, only replaced
// whole; the rest of a Config is s.cfg.
type liveConfig struct {
	origins []string
	clients rpc.LiveConfig
}

func (c *Config) liveConfig() *liveConfig {
	return &liveConfig{c.Origins, rpc.LiveConfig{MaxFrame: c.MaxFrame, SlowClient: c.SlowClient, Capabilities: c.Capabilities}}
}

// Reload puts Origins, MaxFrame, SlowClient, Capabilities, TLSCert and TLSKey of c in force, or nothing of them; the rest of c is not
// looked at. Connections that are open stay as they are. TLS is not begun or ended by this. Not for two callers at a time, and only
// between Listen and Shutdown.
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
