package listen

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"trl/web/filewatch"

	"github.com/rs/zerolog"
)

// Certificate is a certificate with its key for TLS. It is read again whenever its files change.
type Certificate struct {
	cert, key string // paths
	pair      atomic.Pointer[tls.Certificate]
	reloader  *filewatch.Follower
	onReload  func(error) // called when another pair is in force, and with the error when the files cannot be read
}

// OpenCertificate reads the pair and watches its files until Close. It calls told when another pair is in force, and with the error when
// the files cannot be read.
func OpenCertificate(cert, key string, told func(error), log zerolog.Logger) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, onReload: told}
	if err := c.load(); err != nil {
		return nil, err
	}
	watch, err := filewatch.Follow(log, c.reread, cert, key)
	if err != nil {
		return nil, fmt.Errorf("watch TLS certificate: %w", err)
	}
	c.reloader = watch
	return c, nil
}

func (c *Certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("TLS certificate: %w", err)
	}
	c.pair.Store(&pair)
	return nil
}

// reread loads the pair after a change in the directories of its files.
func (c *Certificate) reread() error {
	before := c.pair.Load().Certificate[0]
	err := c.load()
	if err != nil || !bytes.Equal(before, c.pair.Load().Certificate[0]) {
		c.onReload(err)
	}
	return err
}

// Pair returns the pair that is in force.
func (c *Certificate) Pair() *tls.Certificate { return c.pair.Load() }

// IsOf reports whether the pair is read from these files.
func (c *Certificate) IsOf(cert, key string) bool { return c.cert == cert && c.key == key }

// Close stops watching the files.
func (c *Certificate) Close() error { return c.reloader.Close() }
