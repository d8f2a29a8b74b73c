package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"trl/pool"
)

// checkPlaces refuses what this machine has not, or what would be reached by more people than there are guards against. The edge looks
// once more at what it has bound: names are resolved by then.
func (s *settings) checkPlaces(fault func(flag string, value any, want string) error) error {
	var all faults
	for _, place := range [][2]string{{"listen", s.web.Listen}, {"metrics-listen", s.web.MetricsListen}, {"admin-listen", s.web.AdminListen}} {
		flag, address := place[0], place[1]
		if address == "" || isPath(address) {
			continue
		}
		at, err := net.ResolveTCPAddr("tcp", address)
		quoted := strconv.Quote(address)
		switch {
		case err != nil:
			all.add(fault(flag, fmt.Sprintf("%s: %v", quoted, err), "HOST:PORT"))
		case flag == "metrics-listen" || at.IP.IsLoopback():
		case flag == "admin-listen":
			all.add(fault(flag, quoted+": profiles are for loopback addresses and Unix sockets only", "127.0.0.1:PORT, or a path"))
		case s.auth == "none":
			all.add(fault(flag, quoted+" is beyond loopback, without authentication", "127.0.0.1, or --auth token"))
		case !s.web.TLS() && !s.web.Insecure:
			all.add(fault(flag, quoted+" is beyond loopback, without TLS", "127.0.0.1, or --tls-cert and --tls-key; --insecure when a proxy in front does TLS"))
		}
	}
	for _, place := range [][2]string{{"unix", s.web.Unix}, {"admin-listen", s.web.AdminListen}} {
		flag, path := place[0], place[1]
		if flag == "admin-listen" && !isPath(path) || path == "" {
			continue
		}
		info, err := os.Stat(filepath.Dir(path))
		if err == nil && !info.IsDir() {
			err = syscall.ENOTDIR
		}
		if err != nil {
			all.add(fault(flag, fmt.Sprintf("%q: %v", path, err), "a socket in a directory that is there"))
		}
	}
	all.add(s.checkShells(fault))
	return all.err()
}

// isPath tells an --admin-listen that is a Unix socket.
func isPath(address string) bool { return strings.Contains(address, "/") }

// checkShells wants the default shell, and one of those that are allowed.
func (s *settings) checkShells(fault func(flag string, value any, want string) error) error {
	c := pool.Config{DefaultShell: s.pool.DefaultShell, Shells: []string{s.pool.DefaultShell}, BaseEnv: baseEnv(s.sessionUser)}
	if len(pool.PresentShells(c)) == 0 {
		return fault("default-shell", strconv.Quote(s.pool.DefaultShell), "a program that is there, by name or path")
	}
	for _, shell := range s.pool.Shells {
		c.DefaultShell, c.Shells = shell, []string{shell}
		if len(pool.PresentShells(c)) > 0 {
			return nil
		}
	}
	if len(s.pool.Shells) > 0 {
		return fault("shells", strings.Join(s.pool.Shells, ", "), "one at least that is there, by name or path")
	}
	return nil
}

// isOrigin: what a browser may send as the Origin of a page.
func isOrigin(text string) bool {
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	return err == nil && u.Scheme != "" && u.Host != "" && u.String() == u.Scheme+"://"+u.Host
}
