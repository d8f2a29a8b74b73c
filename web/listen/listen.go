// Package listen binds the sockets of a gateway: TCP, Unix sockets and those of systemd. It has the certificates and bounds strangers.
package listen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Sockets are the listening sockets of a gateway. The process that binds them may be another one than the process that serves them, so that they
// outlive the latter.
type Sockets struct {
	HTTP, Metrics, Unix, Admin net.Listener // nil: not configured
	Link                       net.Listener // for the other nodes of a cluster; nil: not configured
	unlink                     []func()     // remove the names of Unix sockets; empty if another process does that
}

// The names under which sockets are passed to another process.
const (
	httpSocket    = "http"
	metricsSocket = "metrics"
	unixSocket    = "unix"
	adminSocket   = "admin"
	linkSocket    = "link"
)

// Config says where a gateway listens and what protects it.
type Config struct {
	Listen        string     // host:port; empty: no HTTP
	Unix          string     // path of the Unix socket; empty: none
	Activated     []*os.File // sockets that systemd has bound; Bind uses them instead of binding
	AdminListen   string     // a loopback address or a path, for profiles; empty: no profiles
	MetricsListen string     // a listener only for /metrics, which needs no token there; empty: /metrics is on Listen
	Link          string     // an address for links of other nodes; empty: none

	AuthNone        bool   // no authentication; only on loopback
	TLSCert, TLSKey string // files, which are read again when they change
	ACME            ACME   // certificates from an authority, instead of files
	Insecure        bool   // allow addresses beyond loopback without TLS
}

// TLS reports whether HTTP is served over TLS.
func (c Config) TLS() bool { return c.TLSCert != "" || len(c.ACME.Domains) > 0 }

// Bind binds the sockets of c that systemd has not passed. It refuses an address that more people could reach than c protects against.
func Bind(c Config) (_ *Sockets, err error) {
	s := &Sockets{}
	if len(c.Activated) > 0 {
		if s, err = Inherit(c.Activated); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if c.Listen != "" && s.HTTP == nil {
		if s.HTTP, err = listenTCP(c.Listen); err != nil {
			return nil, err
		}
	}
	if s.HTTP != nil {
		if err = c.guarded(s.HTTP); err != nil {
			return nil, err
		}
	}
	if c.MetricsListen != "" && s.Metrics == nil {
		if s.Metrics, err = listenTCP(c.MetricsListen); err != nil {
			return nil, err
		}
	}
	if c.Unix != "" {
		if s.Unix != nil {
			return nil, fmt.Errorf("listen on %s: a Unix socket was given already, by socket activation", c.Unix)
		}
		if s.Unix, err = s.listenUnix(c.Unix); err != nil {
			return nil, err
		}
	}
	if s.HTTP == nil && s.Unix == nil {
		return nil, errors.New("no address to listen on")
	}
	if c.Link != "" && s.Link == nil {
		if s.Link, err = listenTCP(c.Link); err != nil {
			return nil, err
		}
	}
	if c.AdminListen != "" && s.Admin == nil {
		if s.Admin, err = s.listenAdmin(c.AdminListen); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// listenTCP binds an IPv4 address only to IPv4. Go would take 0.0.0.0 for every address of IPv6, too.
func listenTCP(address string) (net.Listener, error) {
	network := "tcp"
	if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().Is4() {
		network = "tcp4"
	}
	return net.Listen(network, address)
}

func (s *Sockets) listenUnix(path string) (net.Listener, error) {
	l, remove, err := listenUnix(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	s.unlink = append(s.unlink, remove)
	return l, nil
}

// isPath reports whether an AdminListen is the path of a Unix socket.
func isPath(address string) bool { return strings.Contains(address, "/") }

// listenAdmin binds a path or a loopback address, because this listener does not authenticate.
func (s *Sockets) listenAdmin(address string) (net.Listener, error) {
	if isPath(address) {
		return s.listenUnix(address)
	}
	l, err := listenTCP(address)
	if err == nil && !IsLoopback(l.Addr()) {
		l.Close()
		err = fmt.Errorf("listen on %s: profiles are for loopback addresses and Unix sockets only", address)
	}
	return l, err
}

// guarded refuses an address beyond loopback that is not protected.
func (c Config) guarded(l net.Listener) error {
	if err := tcp(l, httpSocket); err != nil {
		return err
	}
	switch {
	case IsLoopback(l.Addr()):
		return nil
	case c.AuthNone:
		return fmt.Errorf("listen on %s: without authentication only loopback addresses are allowed", c.Listen)
	case !c.TLS() && !c.Insecure:
		return fmt.Errorf("listen on %s: beyond loopback needs TLS (or insecure, when something in front does it)", c.Listen)
	}
	return nil
}

// IsLoopback looks at a bound address, in which names and wildcards have been resolved.
func IsLoopback(at net.Addr) bool {
	a, ok := at.(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// URL returns the URL of a server on these sockets, or "" without HTTP.
func (s *Sockets) URL(c Config) string {
	switch {
	case s.HTTP == nil:
		return ""
	case c.TLS():
		return "https://" + s.HTTP.Addr().String()
	}
	return "http://" + s.HTTP.Addr().String()
}

// Files returns files from which another process can make Sockets with Inherit. The caller owns them.
func (s *Sockets) Files() (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
		}
	}()
	for name, l := range map[string]net.Listener{httpSocket: s.HTTP, metricsSocket: s.Metrics, unixSocket: s.Unix, adminSocket: s.Admin, linkSocket: s.Link} {
		if l == nil {
			continue
		}
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			return files, err
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3) // a duplicate, because a file cannot be renamed
		f.Close()
		if err != nil {
			return files, err
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files, nil
}

// Inherit makes Sockets from the files of Files.
func Inherit(files []*os.File) (*Sockets, error) {
	s := &Sockets{}
	for _, f := range files {
		l, err := net.FileListener(f)
		name := f.Name()
		f.Close()
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("inherited socket %s: %w", name, err)
		}
		if local, ok := l.(*net.UnixListener); ok {
			local.SetUnlinkOnClose(false)
		}
		switch name {
		case httpSocket:
			s.HTTP = l
		case metricsSocket:
			s.Metrics = l
		case unixSocket:
			s.Unix = l
		case adminSocket:
			s.Admin = l
		case linkSocket:
			s.Link = l
		default:
			l.Close()
		}
	}
	return s, nil
}

// Reuse makes Sockets in the process that bound them, from the files of Files, which the caller keeps.
func Reuse(files []*os.File, c Config) (*Sockets, error) {
	copies := make([]*os.File, len(files))
	for i, f := range files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		copies[i] = os.NewFile(uintptr(fd), f.Name())
	}
	s, err := Inherit(copies)
	for _, path := range []string{c.Unix, c.AdminListen} {
		if err != nil || !isPath(path) {
			continue
		}
		var remove func()
		if remove, err = removal(path); err == nil {
			s.unlink = append(s.unlink, remove)
		}
	}
	return s, err
}

// Unlink removes the names of the Unix sockets that this process bound. Call it before closing the sockets: while a socket lives, its inode number is
// not used again, so the name is certainly its own.
func (s *Sockets) Unlink() {
	for _, remove := range s.unlink {
		remove()
	}
}

// Close closes Sockets that no Server has taken. The process that bound them calls it after the last Server.
func (s *Sockets) Close() {
	s.Unlink()
	for _, l := range []net.Listener{s.HTTP, s.Metrics, s.Unix, s.Admin, s.Link} {
		if l != nil {
			l.Close()
		}
	}
}
