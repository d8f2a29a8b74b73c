package web

import (
	"crypto/tls"
	"trl/web/listen"
)

// tlsConfig returns the TLS configuration, or nil without TLS.
func (s *Server) tlsConfig() (*tls.Config, error) {
	var c *tls.Config
	switch {
	case len(s.cfg.ACME.Domains) > 0:
		c = s.cfg.ACME.TLSConfig(s.log)
	case s.cfg.TLSCert == "":
		return nil, nil
	default:
		cert, err := listen.OpenCertificate(s.cfg.TLSCert, s.cfg.TLSKey, s.auditCertificate, s.log)
		if err != nil {
			return nil, err
		}
		s.cert.Store(cert)
		c = &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Load().Pair(), nil },
		}
	}
	s.auth.RequestCertificates(c)
	return c, nil
}

// auditCertificate writes the entry of a certificate that was read again.
func (s *Server) auditCertificate(err error) { s.cfg.Audit.Append(reloadEntry("certificate", err)) }
