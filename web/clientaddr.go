package web

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"trl/web/auth"
)

// clientRequest returns the request as the client made it: RemoteAddr, Host and URL.Scheme are the client's, also if a trusted proxy passes the
// request on. X-Forwarded-… of anybody else is ignored. The header Forwarded (RFC 7239) is always ignored: a proxy that writes one of the two kinds
// passes the other one on as the client wrote it.
func (c *Config) clientRequest(r *http.Request) *http.Request {
	q, u := *r, *r.URL
	q.URL, u.Scheme = &u, "http" // if the request line has a whole URL, the client chose its scheme
	if r.TLS != nil {
		u.Scheme = "https"
	}
	if !c.trusted(auth.ClientAddr(r)) {
		return &q
	}
	if proto := lastValue(r.Header["X-Forwarded-Proto"]); strings.EqualFold(proto, "https") || strings.EqualFold(proto, "http") {
		u.Scheme = strings.ToLower(proto)
	}
	if host := lastValue(r.Header["X-Forwarded-Host"]); host != "" {
		q.Host = host
	}
	// Each proxy appends the address from which it got the request. The last address that is not a trusted proxy's is the client's; the client may
	// have written those before it.
	hops := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for _, hop := range slices.Backward(hops) {
		addr, ok := hopAddr(strings.TrimSpace(hop))
		if !ok {
			break
		}
		addr = addr.Unmap().WithZone("")
		q.RemoteAddr = netip.AddrPortFrom(addr, 0).String()
		if !c.trusted(addr) {
			break
		}
	}
	return &q
}

// hopAddr parses an address; some proxies add the port.
func hopAddr(hop string) (netip.Addr, bool) {
	if at, err := netip.ParseAddrPort(hop); err == nil {
		return at.Addr(), true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(hop, "["), "]"))
	return addr, err == nil
}

func (c *Config) trusted(addr netip.Addr) bool {
	return slices.ContainsFunc(c.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// lastValue returns the last value of a header, which the nearest proxy wrote.
func lastValue(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	line := lines[len(lines)-1]
	return strings.TrimSpace(line[strings.LastIndexByte(line, ',')+1:])
}
