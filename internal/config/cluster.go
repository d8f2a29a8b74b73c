package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"trl/internal/cmdline"
	"trl/pool"
)

// Cluster says how this gateway is a node of a cluster. Without Servers it is the only node.
type Cluster struct {
	Servers    []string // of NATS
	Creds, CA  string   // files for NATS
	Advertise  string   // URL of the link listener for the other nodes; "": its address
	Node       string   // name
	Labels     map[string]string
	NoSessions bool
	PublicURL  string

	Secret                    string // file with the cluster's secret
	LinkCA, LinkCert, LinkKey string // files with the cluster's certificates

	labels []string // --node-label
}

func (s *Settings) defineCluster(f *pflag.FlagSet) {
	c := &s.Cluster
	f.StringSliceVar(&c.Servers, "cluster", nil, "be a node of the cluster whose directory is at these NATS servers: `nats://HOST:PORT` or tls://HOST:PORT (repeatable)")
	f.StringVar(&c.Creds, "cluster-nats-creds", "", "`file` with credentials for NATS")
	f.StringVar(&c.CA, "cluster-nats-ca", "", "PEM `file` with the CAs of the NATS servers' certificates")
	f.StringVar(&s.Web.Link, "cluster-listen", "", "address on which the other nodes reach this one; port 0 means a free port")
	f.StringVar(&c.Advertise, "cluster-advertise", "", "`URL` of --cluster-listen for the other nodes: wss://HOST:PORT (default its own address)")
	f.StringVar(&c.Secret, "cluster-secret", "", "`file` with the secret that the nodes share: at least 32 bytes, mode 0600")
	f.StringVar(&c.LinkCA, "cluster-ca", "", "PEM `file` with the cluster's own CA, instead of a secret or in addition")
	f.StringVar(&c.LinkCert, "cluster-cert", "", "PEM `file` with this node's certificate from --cluster-ca")
	f.StringVar(&c.LinkKey, "cluster-key", "", "PEM `file` with the key of --cluster-cert")
	f.StringVar(&c.Node, "node", "", "name of this node (default the host's name)")
	f.StringSliceVar(&c.labels, "node-label", nil, "label of this node, for sessions that ask for it: `KEY=VALUE`; zone is its zone (repeatable)")
	f.BoolVar(&c.NoSessions, "no-sessions", false, "make no sessions on this node: all are on others")
	f.StringVar(&c.PublicURL, "public-url", "", "`URL` at which clients reach this node directly")

	markVaries(f, "node", "the host's name")
	markLive(f, "at once", "node-label")
}

var (
	nodePattern  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)
	labelPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,62}[A-Za-z0-9])?$`)
)

// checkCluster refuses settings that no cluster could work with.
func (s *Settings) checkCluster(fault faultFunc) error {
	c := &s.Cluster
	if c.Node == "" {
		c.Node, _ = os.Hostname()
	}
	if !nodePattern.MatchString(c.Node) {
		return fault("node", strconv.Quote(c.Node), "a name of letters, digits, dots and dashes")
	}
	c.Labels = map[string]string{}
	for _, text := range c.labels {
		key, value, ok := strings.Cut(text, "=")
		if _, twice := c.Labels[key]; !ok || twice || key == "node" || !labelPattern.MatchString(key) || !labelPattern.MatchString(value) {
			return fault("node-label", strconv.Quote(text), "KEY=VALUE, each key once and none called node, of letters, digits, dots, slashes and dashes")
		}
		c.Labels[key] = value
	}
	if u, err := url.Parse(c.PublicURL); c.PublicURL != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.User != nil) {
		return fault("public-url", strconv.Quote(c.PublicURL), "https://HOST or https://HOST:PORT")
	}
	if len(c.Servers) == 0 {
		for _, flag := range []string{"cluster-nats-creds", "cluster-nats-ca", "cluster-listen", "cluster-advertise", "cluster-secret", "cluster-ca", "cluster-cert", "cluster-key", "no-sessions"} {
			if s.IsSet(flag) && s.flags.Lookup(flag).Value.String() != s.flags.Lookup(flag).DefValue {
				return fault(flag, s.flags.Lookup(flag).Value, "--cluster, too: without it this is the only node")
			}
		}
		return nil
	}
	return cmp.Or(s.checkDirectory(fault), s.checkLinks(fault))
}

// PoolConfig returns the configuration of the pool.
func (s *Settings) PoolConfig() pool.Config {
	c := s.Pool
	if s.Cluster.NoSessions {
		c.MaxSessions, c.WarmShells = -1, 0
	}
	return c
}

// checkDirectory checks what concerns NATS.
func (s *Settings) checkDirectory(fault faultFunc) error {
	c := &s.Cluster
	demandsTLS := c.CA != ""
	plain := ""
	for _, server := range c.Servers {
		u, err := url.Parse(server)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls":
			return fault("cluster", strconv.Quote(withoutPassword(server)), "nats://HOST:PORT or tls://HOST:PORT")
		case u.Scheme == "tls":
			demandsTLS = true
		case !isLoopbackHost(u.Hostname()):
			plain = u.Redacted()
		}
	}
	if plain != "" && !demandsTLS && !s.Web.Insecure {
		return fault("cluster", plain+" is beyond loopback, without TLS", "tls://HOST:PORT, or --cluster-nats-ca; --insecure when the network encrypts itself")
	}
	return cmp.Or(s.checkFile(fault, "cluster-nats-creds", c.Creds), s.checkFile(fault, "cluster-nats-ca", c.CA))
}

// checkLinks checks what concerns the connections between nodes.
func (s *Settings) checkLinks(fault faultFunc) error {
	c := &s.Cluster
	if s.Web.Link == "" {
		return cmdline.WithHint(errors.New("--cluster needs --cluster-listen"), "give an address on the nodes' own network: HOST:PORT")
	}
	if !s.checkedByKeeper {
		if _, err := net.ResolveTCPAddr("tcp", s.Web.Link); err != nil {
			return fault("cluster-listen", fmt.Sprintf("%q: %v", s.Web.Link, err), "HOST:PORT")
		}
	}
	host, _, _ := net.SplitHostPort(s.Web.Link)
	if at, err := netip.ParseAddr(host); c.Advertise == "" && (host == "" || err == nil && at.IsUnspecified()) {
		return fault("cluster-listen", strconv.Quote(s.Web.Link), "--cluster-advertise, too: the other nodes need an address at which they reach this one")
	}
	some, all := c.LinkCA != "" || c.LinkCert != "" || c.LinkKey != "", c.LinkCA != "" && c.LinkCert != "" && c.LinkKey != ""
	switch {
	case some && !all:
		return cmdline.WithHint(errors.New("--cluster-ca, --cluster-cert and --cluster-key belong together"), "give all three, or --cluster-secret")
	case !some && c.Secret == "":
		return cmdline.WithHint(errors.New("--cluster needs --cluster-secret, or --cluster-ca, --cluster-cert and --cluster-key"), "make a secret: (umask 077; head -c 32 /dev/urandom | base64 > FILE)")
	}
	if u, err := url.Parse(c.Advertise); c.Advertise != "" {
		switch {
		case err != nil || u.Scheme != "wss" && u.Scheme != "ws" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil:
			return fault("cluster-advertise", strconv.Quote(withoutPassword(c.Advertise)), "wss://HOST:PORT")
		case u.Scheme == "ws" && (c.Secret == "" || !isLoopbackHost(u.Hostname()) && !s.Web.Insecure):
			return fault("cluster-advertise", strconv.Quote(c.Advertise)+" does not encrypt", "wss://HOST:PORT; ws:// works with a secret on loopback, or with --insecure")
		}
	}
	return cmp.Or(s.checkFile(fault, "cluster-secret", c.Secret), s.checkFile(fault, "cluster-ca", c.LinkCA), s.checkFile(fault, "cluster-cert", c.LinkCert), s.checkFile(fault, "cluster-key", c.LinkKey))
}

// checkFile checks the path of a file that a gateway reads whenever it starts, perhaps in another directory.
func (s *Settings) checkFile(fault faultFunc, flag, path string) error {
	if path == "" {
		return nil
	}
	if !filepath.IsAbs(path) {
		return fault(flag, strconv.Quote(path), "a file's path, from /")
	}
	if info, err := os.Stat(path); !s.checkedByKeeper && (err != nil || info.IsDir()) {
		return fault(flag, strconv.Quote(path), "an existing file")
	}
	return nil
}

func isLoopbackHost(host string) bool {
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && at.Unmap().IsLoopback()
}
