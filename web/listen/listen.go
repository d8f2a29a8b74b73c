// Package listen binds what a gateway is reached by: TCP, Unix sockets, those of systemd; with certificates, and with a bound on strangers.
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

// Sockets are what a gateway is reached by. Whoever binds them may be another process than the one that serves them, so
// that they outlive it.
type Sockets struct {
	HTTP, Metrics, Unix, Admin net.Listener // nil: not asked for
	unlink                     []func()     // take the names of Unix sockets back; none where another process does
}

// The names under which sockets are passed on.
const (
	httpSocket    = "http"
	metricsSocket = "metrics"
	unixSocket    = "unix"
	adminSocket   = "admin"
)

// Config says where a gateway listens, and what guards it there.
type Config struct {
	Listen        string     // host:port; empty: no HTTP
	Unix          string     // path of the Unix socket; empty: none
	Activated     []*os.File // sockets that systemd has bound: they stand for those that would be bound
	AdminListen   string     // a loopback address or a path, for profiles; empty: nobody gets any
	MetricsListen string     // a listener for /metrics alone, which then needs no token; empty: /metrics is on Listen

	AuthNone        bool   // everyone is local, on loopback only
	TLSCert, TLSKey string // files, read again when they change
	ACME            ACME   // certificates that come by themselves, instead of files
	Insecure        bool   // beyond loopback without TLS
}

// TLS reports whether clients come by TLS.
func (c Config) TLS() bool { return c.TLSCert != "" || len(c.ACME.Domains) > 0 }

// Bind binds what c asks for and was not given, and refuses what would be reached by more people than c has guards against.
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
	if c.AdminListen != "" && s.Admin == nil {
		if s.Admin, err = s.listenAdmin(c.AdminListen); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// listenTCP binds an IPv4 address to IPv4 alone: Go would take 0.0.0.0 for every address of IPv6, too.
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

// isPath tells an AdminListen that is a Unix socket.
func isPath(address string) bool { return strings.Contains(address, "/") }

// listenAdmin binds a path or a loopback address: nobody is asked who he is there.
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

// guarded refuses an address beyond loopback that nothing protects.
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

// IsLoopback is asked of the kernel: names and wildcards are resolved by now.
func IsLoopback(at net.Addr) bool {
	a, ok := at.(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// URL is where a server on them will be reached, "" without HTTP.
func (s *Sockets) URL(c Config) string {
	switch {
	case s.HTTP == nil:
		return ""
	case c.TLS():
		return "https://" + s.HTTP.Addr().String()
	}
	return "http://" + s.HTTP.Addr().String()
}

// Files are for another process to make Inherit's Sockets of. They are the caller's.
func (s *Sockets) Files() (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
		}
	}()
	for name, l := range map[string]net.Listener{httpSocket: s.HTTP, metricsSocket: s.Metrics, unixSocket: s.Unix, adminSocket: s.Admin} {
		if l == nil {
			continue
		}
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			return files, err
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3) // once more, as a file cannot be renamed
		f.Close()
		if err != nil {
			return files, err
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files, nil
}

// Inherit takes over what Files gave.
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
		default:
			l.Close()
		}
	}
	return s, nil
}

// Reuse is for who goes on as the process that bound the sockets: Files gave files, which stay the caller's.
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

// Unlink takes back the names of the Unix sockets, those that this process bound. It is called before they close: as long as those live, the names
// are theirs.
func (s *Sockets) Unlink() {
	for _, remove := range s.unlink {
		remove()
	}
}

// Close is for Sockets that no Server has taken, or for who bound them, after the last Server.
func (s *Sockets) Close() {
	s.Unlink()
	for _, l := range []net.Listener{s.HTTP, s.Metrics, s.Unix, s.Admin} {
		if l != nil {
			l.Close()
		}
	}
}
