package config

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"trl/internal/cmdline"
	"trl/pool/shells"
)

// checkPlaces refuses addresses that this machine does not have, or that too many people could reach. The web package checks the bound
// addresses again, when names are resolved.
func (s *Settings) checkPlaces(fault faultFunc) error {
	var all cmdline.Faults
	for _, place := range [][2]string{{"listen", s.Web.Listen}, {"metrics-listen", s.Web.MetricsListen}, {"admin-listen", s.Web.AdminListen}} {
		flag, address := place[0], place[1]
		if address == "" || IsPath(address) {
			continue
		}
		at, err := net.ResolveTCPAddr("tcp", address)
		quoted := strconv.Quote(address)
		switch {
		case err != nil:
			all.Add(fault(flag, fmt.Sprintf("%s: %v", quoted, err), "HOST:PORT"))
		case flag == "metrics-listen" || at.IP.IsLoopback():
		case flag == "admin-listen":
			all.Add(fault(flag, quoted+": profiles are for loopback addresses and Unix sockets only", "127.0.0.1:PORT, or a path"))
		case s.Auth == "none":
			all.Add(fault(flag, quoted+" is beyond loopback, without authentication", "127.0.0.1, or --auth token"))
		case !s.Web.TLS() && !s.Web.Insecure:
			all.Add(fault(flag, quoted+" is beyond loopback, without TLS", "127.0.0.1, or --tls-cert and --tls-key; --insecure when a proxy in front does TLS"))
		}
	}
	for _, place := range [][2]string{{"unix", s.Web.Unix}, {"admin-listen", s.Web.AdminListen}} {
		flag, path := place[0], place[1]
		if flag == "admin-listen" && !IsPath(path) || path == "" {
			continue
		}
		info, err := os.Stat(filepath.Dir(path))
		if err == nil && !info.IsDir() {
			err = syscall.ENOTDIR
		}
		if err != nil {
			all.Add(fault(flag, fmt.Sprintf("%q: %v", path, err), "a socket in an existing directory"))
		}
	}
	all.Add(s.CheckShells(fault))
	return all.Err()
}

// IsPath says whether an --admin-listen is the path of a Unix socket.
func IsPath(address string) bool { return strings.Contains(address, "/") }

// CheckShells requires the default shell, and one of the allowed shells, to exist.
func (s *Settings) CheckShells(fault faultFunc) error {
	isPresent := func(shell string) bool {
		return len(shells.NewList([]string{shell}, shell, SessionEnv(s.SessionUser)).Present()) > 0
	}
	if !isPresent(s.Pool.DefaultShell) {
		return fault("default-shell", strconv.Quote(s.Pool.DefaultShell), "an existing program, by name or path")
	}
	if slices.ContainsFunc(s.Pool.Shells, isPresent) {
		return nil
	}
	if len(s.Pool.Shells) > 0 {
		return fault("shells", strings.Join(s.Pool.Shells, ", "), "at least one existing shell, by name or path")
	}
	return nil
}

// isOrigin says whether a browser may send text as the Origin of a page.
func isOrigin(text string) bool {
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	return err == nil && u.Scheme != "" && u.Host != "" && u.String() == u.Scheme+"://"+u.Host
}
