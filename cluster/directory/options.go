package directory

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"trl/cluster/node"
	"trl/metrics"
)

// Options of a directory. The callbacks are called one after the other, from goroutines of the directory: they must return soon, and must not
// call Close.
type Options struct {
	Servers  []string      // URLs of nats-servers: nats:// or tls://
	Creds    string        // a file with NATS credentials; may be empty
	CA       string        // a PEM file with the CAs of the servers' certificates; may be empty
	Insecure bool          // plain connections also beyond loopback
	Node     node.Node     // this machine; Epoch and Name are needed
	Wait     time.Duration // how long a claim or a question waits at most; 0: 10 s

	OnHealth   func(degraded bool, why string) // the directory became degraded, or healthy
	OnNodes    func()                          // a node came or went, or drains
	OnConflict func(Conflict)                  // something that this node owned belongs to another one now

	Metrics *metrics.Metrics // may be nil

	lease     time.Duration // 0: 15 s. Tests shorten it
	heartbeat time.Duration // 0: a third of the lease
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultWait  = 10 * time.Second
	defaultLease = 15 * time.Second
	dialTimeout  = 2 * time.Second
)

// ErrInsecure is Open's refusal of plain connections beyond loopback.
var ErrInsecure = errors.New("a connection to NATS beyond loopback needs TLS")

func (o *Options) setDefaults() {
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if o.lease == 0 {
		o.lease = defaultLease
	}
	if o.heartbeat == 0 {
		o.heartbeat = o.lease / 3
	}
	if o.dial == nil {
		o.dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	if o.OnHealth == nil {
		o.OnHealth = func(bool, string) {}
	}
	if o.OnNodes == nil {
		o.OnNodes = func() {}
	}
	if o.OnConflict == nil {
		o.OnConflict = func(Conflict) {}
	}
}

// security is what a connection demands of its servers.
type security int

const (
	loopbackOnly security = iota // plain, and each connection is checked
	demandTLS
	anything // plain, or TLS if the server demands it
)

// check validates what can be wrong with the options before there is a connection.
func (o *Options) check() (security, error) {
	if len(o.Servers) == 0 {
		return 0, errors.New("no NATS server")
	}
	if o.Node.Epoch == "" || o.Node.Name == "" {
		return 0, errors.New("a node needs an epoch and a name")
	}
	for _, file := range []string{o.Creds, o.CA} {
		if file == "" {
			continue
		}
		f, err := os.Open(file)
		if err != nil {
			return 0, fmt.Errorf("NATS: %w", err)
		}
		f.Close()
	}
	demanded, plain := o.CA != "", ""
	for _, server := range o.Servers {
		u, err := url.Parse(server)
		if err != nil {
			return 0, fmt.Errorf("NATS: %w", err)
		}
		switch {
		case u.Scheme == "tls":
			demanded = true
		case u.Scheme != "nats" || u.Host == "":
			return 0, fmt.Errorf("NATS: %s: want nats://HOST:PORT or tls://HOST:PORT", u.Redacted())
		case !isLoopback(u.Hostname()):
			plain = u.Redacted()
		}
	}
	switch {
	case demanded:
		return demandTLS, nil // of every server
	case o.Insecure:
		return anything, nil
	case plain != "":
		return 0, fmt.Errorf("%w: %s: use tls://, name a CA, or allow insecure connections", ErrInsecure, plain)
	}
	return loopbackOnly, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// connect returns a connection that comes up, and comes back, by itself. It waits for the first attempt.
func (d *Directory) connect(s security) (*nats.Conn, error) {
	wake := func(*nats.Conn) { d.wake() }
	options := []nats.Option{
		nats.Name("trl " + d.opts.Node.Name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(400*time.Millisecond, 400*time.Millisecond),
		nats.ReconnectBufSize(-1), // a write that was refused must not be sent later
		nats.Timeout(dialTimeout),
		nats.PingInterval(2 * time.Second), // a server that is stopped, or cut off, is left after 4 to 6 s
		nats.MaxPingsOutstanding(2),
		nats.SkipHostLookup(), // the dialer does it
		nats.SetCustomDialer(&dialer{d, s}),
		nats.ConnectHandler(wake),
		nats.ReconnectHandler(wake),
		nats.DisconnectErrHandler(func(nc *nats.Conn, _ error) { wake(nc) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { d.noteConnectError(err) }),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default prints
	}
	if d.opts.Creds != "" {
		options = append(options, nats.UserCredentials(d.opts.Creds))
	}
	if s == demandTLS {
		options = append(options, nats.Secure())
	}
	if d.opts.CA != "" {
		options = append(options, nats.RootCAs(d.opts.CA))
	}
	return nats.Connect(joined(d.opts.Servers), options...)
}

// dialer dials until the directory closes. Servers tell their clients of other servers, and names resolve to anything, so it checks the address
// of each connection.
type dialer struct {
	d *Directory
	security
}

func (w *dialer) Dial(network, address string) (net.Conn, error) {
	c, err := w.d.opts.dial(w.d.ctx, network, address)
	if err != nil {
		return nil, err
	}
	if host, _, _ := net.SplitHostPort(c.RemoteAddr().String()); w.security == loopbackOnly && !isLoopback(host) {
		c.Close()
		return nil, fmt.Errorf("%w: %s", ErrInsecure, c.RemoteAddr())
	}
	return &dialed{c, context.AfterFunc(w.d.ctx, func() { c.Close() })}, nil
}

// dialed is a connection that the end of the directory closes, also before the client has it.
type dialed struct {
	net.Conn
	forget func() bool
}

func (c *dialed) Close() error {
	c.forget()
	return c.Conn.Close()
}
