package web

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Sockets are what a gateway is reached by. Whoever binds them may be another process than the one that serves them, so
// that they outlive it.
type Sockets struct {
	http, metrics, unix net.Listener // nil: not asked for
	remove              func()       // takes the Unix socket's name back; nil where another process does
}

// The names under which sockets are passed on.
const (
	httpSocket    = "http"
	metricsSocket = "metrics"
	unixSocket    = "unix"
)

// Bind binds what c asks for, and refuses what would be reached by more people than c has guards against.
func Bind(c Config) (_ *Sockets, err error) {
	s := &Sockets{}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if c.Listen != "" {
		if s.http, err = net.Listen("tcp", c.Listen); err != nil {
			return nil, err
		}
		if err = c.guarded(s.http); err != nil {
			return nil, err
		}
	}
	if c.MetricsListen != "" {
		if s.metrics, err = net.Listen("tcp", c.MetricsListen); err != nil {
			return nil, err
		}
	}
	if c.Unix != "" {
		if s.unix, s.remove, err = listenUnix(c.Unix); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", c.Unix, err)
		}
	}
	return s, nil
}

// guarded refuses an address beyond loopback that nothing protects.
func (c Config) guarded(l net.Listener) error {
	if isLoopback(l) {
		return nil
	}
	switch {
	case c.AuthNone:
		return fmt.Errorf("listen on %s: without authentication only loopback addresses are allowed", c.Listen)
	case !c.TLS() && !c.Insecure:
		return fmt.Errorf("listen on %s: beyond loopback needs TLS (or insecure, when something in front does it)", c.Listen)
	}
	return nil
}

// isLoopback is asked of the kernel: names and wildcards are resolved by now.
func isLoopback(l net.Listener) bool { return l.Addr().(*net.TCPAddr).IP.IsLoopback() }

// URL is where a server on them will be reached, "" without HTTP.
func (s *Sockets) URL(c Config) string {
	switch {
	case s.http == nil:
		return ""
	case c.TLS():
		return "https://" + s.http.Addr().String()
	}
	return "http://" + s.http.Addr().String()
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
	for name, l := range map[string]net.Listener{httpSocket: s.http, metricsSocket: s.metrics, unixSocket: s.unix} {
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
		switch name {
		case httpSocket:
			s.http = l
		case metricsSocket:
			s.metrics = l
		case unixSocket:
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			s.unix = l
		default:
			l.Close()
		}
	}
	if s.http == nil && s.unix == nil {
		s.Close()
		return nil, errors.New("no sockets inherited")
	}
	return s, nil
}

// Keep is for who goes on as the process that bound the sockets: Files gave files, which stay the caller's.
func Keep(files []*os.File, c Config) (*Sockets, error) {
	copies := make([]*os.File, len(files))
	for i, f := range files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		copies[i] = os.NewFile(uintptr(fd), f.Name())
	}
	s, err := Inherit(copies)
	if err == nil && s.unix != nil {
		s.remove, err = removal(c.Unix)
	}
	return s, err
}

// Close is for Sockets that no Server has taken, or for who bound them, after the last Server.
func (s *Sockets) Close() {
	if s.remove != nil {
		s.remove()
	}
	for _, l := range []net.Listener{s.http, s.metrics, s.unix} {
		if l != nil {
			l.Close()
		}
	}
}
