package auth

import (
	"net/http"
	"net/netip"
)

// ClientAddr returns the client's address as far as it is known: that of the connection's other end, or the one that a trusted proxy gives (see
// clientRequest in web). It is the zero value if there is none.
func ClientAddr(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}

// IsSecure reports whether the client uses TLS, to the gateway or to a trusted proxy.
func IsSecure(r *http.Request) bool { return r.URL.Scheme == "https" }
