package web

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"trl/web/auth"
)

// The two checks here keep web pages of others away from a gateway on the user's machine. Neither replaces the token.
//
// Host, on every route: a page at rebind.example whose name suddenly resolves to 127.0.0.1 is "same origin" with us, in the browser's eyes and in those of
// a check that compares Origin with Host. Only the name it asked for gives it away.
//
// Origin: browsers send it with every WebSocket upgrade and cross-site request, and no page can change it.

// hostName is a Host header without its port, in the one spelling that hostNames has; "" where it is none.
func hostName(host string) string {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, ""
		if inner, ok := strings.CutPrefix(name, "["); ok {
			if name, ok = strings.CutSuffix(inner, "]"); !ok {
				return ""
			}
		}
	}
	for _, c := range port {
		if c < '0' || c > '9' {
			return ""
		}
	}
	return plainName(name)
}

// plainName is a name in lower case, or an address as it is usually written.
func plainName(name string) string {
	if addr, err := netip.ParseAddr(name); err == nil { // strict: no 0177.1, no 127.1
		if addr.Zone() != "" {
			return ""
		}
		return addr.Unmap().String()
	}
	return strings.ToLower(name)
}

// hostAllowed reports whether we go by this name: one that the operator listed, one of our certificate's, or our own address. On a loopback
// listener that is a loopback name; elsewhere it is any address, as nothing resolves to an address but itself: a page that was got from
// it is one of ours.
func (s *Server) hostAllowed(host string, loopback bool) bool {
	name := hostName(host)
	if name == "" {
		return false
	}
	if auth.LoopbackName(name) || s.hostNames[name] {
		return true
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return !loopback
	}
	cert := s.cert.Load()
	if cert == nil {
		return false
	}
	leaf := cert.Pair().Leaf
	return leaf != nil && leaf.VerifyHostname(name) == nil
}

// hostNames is who we are without a look at a certificate: what is listed, what we ask certificates for, and the name that we listen by.
func (c *Config) hostNames() map[string]bool {
	names := map[string]bool{}
	for _, name := range append(c.Hosts[:len(c.Hosts):len(c.Hosts)], c.ACME.Domains...) {
		names[plainName(name)] = true
	}
	if name, _, err := net.SplitHostPort(c.Listen); err == nil && name != "" {
		if _, err := netip.ParseAddr(name); err != nil {
			names[plainName(name)] = true
		}
	}
	return names
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
	if strings.EqualFold(origins[0], r.URL.Scheme+"://"+r.Host) {
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
