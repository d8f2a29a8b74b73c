package web

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// The two checks here keep web pages of others away from a gateway on the user's machine. Neither replaces the token.
//
// Host: a page at rebind.example whose name suddenly resolves to 127.0.0.1 is "same origin" with us, in the browser's eyes and in those of
// a check that compares Origin with Host. Only the name it asked for gives it away.
//
// Origin: browsers send it with every WebSocket upgrade and cross-site request, and no page can change it.

// loopbackHost reports whether a Host header names this machine to itself: localhost or a loopback address, with any port or none.
func loopbackHost(host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, ""
		if inner, ok := strings.CutPrefix(name, "["); ok {
			if name, ok = strings.CutSuffix(inner, "]"); !ok {
				return false
			}
		}
	}
	for _, c := range port {
		if c < '0' || c > '9' {
			return false
		}
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(name) // strict: no 0177.1, no 127.1, no zone tricks
	return err == nil && addr.Zone() == "" && addr.Unmap().IsLoopback()
}

// originAllowed reports whether the request comes from no page, from a page of ours or from one that is listed. It compares whole strings:
// parsing is where look-alikes (user@host, trailing dots, another port) slip through. "null" equals nothing.
func originAllowed(r *http.Request, listed []string) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	own := "http://" + r.Host
	if r.TLS != nil {
		own = "https://" + r.Host
	}
	if strings.EqualFold(origins[0], own) {
		return true
	}
	for _, o := range listed {
		if o != "null" && strings.EqualFold(origins[0], strings.TrimSuffix(o, "/")) {
			return true
		}
	}
	return false
}

// tokenInQuery reports whether a URL carries what looks like a token. URLs end up in logs, histories and Referer headers, so such a
// request is refused even where the token is right.
func tokenInQuery(r *http.Request) bool {
	for part := range strings.FieldsFuncSeq(r.URL.RawQuery, func(c rune) bool { return c == '&' || c == ';' }) {
		key, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(key); err == nil {
			key = plain
		}
		switch strings.ToLower(key) {
		case "token", "access_token", "auth_token", "api_key", "bearer":
			return true
		}
	}
	return false
}
