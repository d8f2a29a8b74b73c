package auth

import (
	"net/http"
	"net/netip"
)

// ClientAddr is the address that the client came from, as far as we know: that of the connection's other end, or what a trusted proxy there says
// (clientRequest has seen to that). The zero value where there is none.
func ClientAddr(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}

// IsSecure reports whether the client came by TLS, to us or to a trusted proxy.
func IsSecure(r *http.Request) bool { return r.URL.Scheme == "https" }
