package web

import (
	"net/http"
	"net/netip"
)

// clientAddr is the address that a request comes from; the zero Addr where there is none.
func clientAddr(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}
