package web

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"sync/atomic"

	"github.com/rs/zerolog"
)

// certificate is the pair that TLS shows, read again whenever its files change.
type certificate struct {
	cert, key string // paths
	pair      atomic.Pointer[tls.Certificate]
	reloader  *reloader
	onReload  func(error) // hears of another pair, and of one that cannot be read
}

func openCertificate(cert, key string, told func(error), log zerolog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, onReload: told}
	if err := c.load(); err != nil {
		return nil, err
	}
	watch, err := watchFiles(log, c.reread, cert, key)
	if err != nil {
		return nil, fmt.Errorf("watch TLS certificate: %w", err)
	}
	c.reloader = watch
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

// reread is load for a change in the files' directories.
func (c *certificate) reread() error {
	before := c.pair.Load().Certificate[0]
	err := c.load()
	if err != nil || !bytes.Equal(before, c.pair.Load().Certificate[0]) {
		c.onReload(err)
	}
	return err
}

// close stops following the files.
func (c *certificate) close() { c.reloader.Close() }
