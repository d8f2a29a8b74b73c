package web

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"trl/web/auth"
)

// These two checks keep web pages of others away from a gateway on the user's machine. They do not replace the token.
//
// Host, on every route: a page at rebind.example whose name suddenly resolves to 127.0.0.1 has the same origin as the gateway, for the browser and
// for a check that compares Origin with Host. Only the Host header shows the other name.
//
// Origin: browsers send it with every WebSocket upgrade and every cross-site request, and no page can change it.

// hostName returns the host of a Host header without its port, spelled as in hostNames, or "" if the header is malformed.
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

// plainName returns a name in lower case, or an address in its usual form.
func plainName(name string) string {
	if addr, err := netip.ParseAddr(name); err == nil { // strict: no 0177.1, no 127.1
		if addr.Zone() != "" {
			return ""
		}
		return addr.Unmap().String()
	}
	return strings.ToLower(name)
}

// hostAllowed reports whether this is a name of the gateway: one that the operator listed, one of the certificate, or the gateway's own address. On a
// loopback listener only loopback names are addresses of its own. On another listener every address is allowed: an address resolves to nothing but
// itself, so a page from it came from this gateway.
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

// hostNames returns the gateway's names without those of its certificate: the listed ones, those that ACME requests certificates for, and the name of
// the listening address.
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

// originAllowed reports whether the request comes from no page, from a page of this gateway, or from a listed page. It compares whole strings,
// because parsing lets look-alikes through (user@host, trailing dots, another port). "null" is never allowed.
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

// tokenInQuery reports whether a URL has a parameter that looks like a token. URLs end up in logs, histories and Referer headers, so such a request
// is refused even if the token is right.
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
