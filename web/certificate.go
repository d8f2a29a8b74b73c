package web

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"

	"github.com/rs/zerolog"
)

// certificate is the pair that TLS shows, read again whenever its files change.
type certificate struct {
	cert, key string // paths
	pair      atomic.Pointer[tls.Certificate]
	watch     *reloader
}

func openCertificate(cert, key string, log zerolog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key}
	if err := c.load(); err != nil {
		return nil, err
	}
	watch, err := watchFiles(log, c.load, cert, key)
	if err != nil {
		return nil, fmt.Errorf("watch TLS certificate: %w", err)
	}
	c.watch = watch
	return c, nil
}

func (c *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("TLS certificate: %w", err)
	}
	c.pair.Store(&pair)
	return nil
}

// close stops following the files.
func (c *certificate) close() { c.watch.Close() }
