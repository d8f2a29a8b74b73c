package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/pflag"

	"trl/internal/cmdline"
)

// defineEdge defines the flags that say which clients are let in, under which host names, and how many at a time.
func (s *Settings) defineEdge(f *pflag.FlagSet) {
	f.StringSliceVar(&s.Web.Hosts, "host", nil, "another `name` or address that clients may use for this server (repeatable); loopback names, its addresses and the certificate's names are known")
	f.StringSliceVar(&s.proxies, "trusted-proxy", nil, "believe X-Forwarded-… of a proxy with this address or in this `network` (10.0.0.0/8; repeatable)")
	f.StringSliceVar(&s.Web.ACME.Domains, "acme-domain", nil, "get a certificate for this `name` by ACME, and agree to the authority's terms; port 443 of the name must lead to trl (repeatable)")
	f.StringVar(&s.Web.ACME.Directory, "acme-directory", "", "`URL` of the ACME authority's directory (default Let's Encrypt's)")
	f.StringVar(&s.Web.ACME.Dir, "acme-dir", "", "directory for certificates and keys from ACME (default acme in the state dir)")
	f.StringVar(&s.Web.ACME.Email, "acme-email", "", "address to which the ACME authority may write")
	f.IntVar(&s.Web.MaxConns, "max-connections", 1024, "maximum number of connected clients")
	f.IntVar(&s.Web.MaxConnsOfPrincipal, "max-connections-per-principal", 0, "maximum number of connected clients of one principal, and of guests over its share links; 0: seven eighths of --max-connections, all for an admin")
	f.IntVar(&s.Web.MaxGuests, "max-connections-per-share", 16, "maximum number of connected clients of one share link")
	f.StringSliceVar(&s.Pool.AllowEnv, "allow-env", nil, "allow env of requests to set this `variable` although it steers shells (LD_LIBRARY_PATH, LD_*; repeatable)")
}

// An allowed variable is a name, or a prefix followed by *.
var envPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*\*?$`)

// checkEdge refuses settings that would silently let in fewer or more clients than intended.
func (s *Settings) checkEdge(fault faultFunc) error {
	if err := s.checkACME(fault); err != nil {
		return err
	}
	for _, host := range s.Web.Hosts {
		if _, err := netip.ParseAddr(host); host == "" || err != nil && strings.ContainsAny(host, ":/*@[] ") {
			return fault("host", fmt.Sprintf("%q", host), "a name or an address, without a scheme or a port")
		}
	}
	for _, origin := range s.Web.Origins {
		if !isOrigin(origin) {
			return fault("origin", fmt.Sprintf("%q", origin), "an origin as browsers send it: https://HOST, or https://HOST:PORT")
		}
	}
	s.Web.TrustedProxies = nil
	for _, text := range s.proxies {
		network, err := netip.ParsePrefix(text)
		if addr, e := netip.ParseAddr(text); e == nil && addr.Zone() == "" {
			network, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			return fault("trusted-proxy", fmt.Sprintf("%q", text), "an address (192.0.2.1) or a network (192.0.2.0/24)")
		}
		if network.Bits() == 0 {
			return fault("trusted-proxy", fmt.Sprintf("%q", text), "only the networks of the proxies: otherwise any client could claim any address")
		}
		s.Web.TrustedProxies = append(s.Web.TrustedProxies, network.Masked())
	}
	for _, name := range s.Pool.AllowEnv {
		if !envPattern.MatchString(name) {
			return fault("allow-env", fmt.Sprintf("%q", name), "the name of a variable, or a prefix and a *")
		}
	}
	return cmp.Or(atLeast(fault, "max-connections", s.Web.MaxConns, 1), atLeast(fault, "max-connections-per-principal", s.Web.MaxConnsOfPrincipal, 0),
		atLeast(fault, "max-connections-per-share", s.Web.MaxGuests, 1))
}

func (s *Settings) checkACME(fault faultFunc) error {
	a := &s.Web.ACME
	for _, domain := range a.Domains {
		if _, err := netip.ParseAddr(domain); err == nil || domain == "" || strings.ContainsAny(domain, ":/*@[] ") {
			return fault("acme-domain", fmt.Sprintf("%q", domain), "a name, without a scheme, a port or *")
		}
	}
	if directory, err := url.Parse(a.Directory); a.Directory != "" && (err != nil || directory.Scheme != "https" || directory.Host == "") {
		return fault("acme-directory", fmt.Sprintf("%q", a.Directory), "an https URL; for your own authority set SSL_CERT_FILE in the environment")
	}
	switch {
	case len(a.Domains) == 0:
		return nil
	case s.Web.TLSCert != "":
		return cmdline.WithHint(fmt.Errorf("%s: there is a certificate already", s.Source("acme-domain")), "give --tls-cert and --tls-key, or --acme-domain")
	case s.GatewayUserName != "" && a.Dir == "":
		return cmdline.WithHint(fmt.Errorf("%s: the gateway's user may not write to the state dir", s.Source("acme-domain")), "give --acme-dir, a directory of that user's")
	}
	return nil
}
