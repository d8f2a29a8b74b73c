package cluster

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"trl/cluster/link"
	"trl/internal/rig"
	"trl/internal/testkit"
)

// linkURL is where a node takes links.
func linkURL(t *testing.T, g *rig.Server) (url string) {
	t.Helper()
	testkit.Eventually(t, "the node says where it takes links", func() bool {
		m := regexp.MustCompile(`"address":"(wss://[^"]+)"`).FindStringSubmatch(g.Log())
		if m != nil {
			url = m[1]
		}
		return m != nil
	})
	return url
}

// Whoever does not know the secret, or claims to be another node, gets no link.
func TestStrangersGetNoLink(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	a, b := n.start("a"), n.start("b")
	sees(t, a, "a", "b")
	to := link.Peer{Node: link.Node{Name: "a", Epoch: epochOf(t, a)}, URL: linkURL(t, a)}
	wrong := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(wrong, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	refusals := 0
	for _, x := range []struct {
		what, secret string
		self         link.Node
		want         error // nil: it gets a link
	}{
		{"a node that nobody knows", n.secret, link.Node{Name: "new", Epoch: "aaaaaaaa"}, nil},
		{"a node with another secret", wrong, link.Node{Name: "new", Epoch: "aaaaaaaa"}, link.ErrSecret},
		{"a node with the epoch of another", n.secret, link.Node{Name: "new", Epoch: epochOf(t, b)}, link.ErrPeer},
		{"a node with the owner's epoch", n.secret, link.Node{Name: "new", Epoch: to.Epoch}, link.ErrSelf},
	} {
		c, err := dialLink(t, x.secret, x.self, to)
		if !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.what, err, x.want)
		}
		if c != nil {
			c.Close(1000, "")
		}
		if x.want != nil {
			refusals++
		}
	}
	testkit.Eventually(t, "the refusals are counted", func() bool {
		return strings.Contains(a.Get(t, "/metrics"), "trl_links_refused_total "+string(rune('0'+refusals))+"\n")
	})
	for _, why := range []string{"handshake", "is of node b, not new", link.ErrSelf.Error()} {
		testkit.Eventually(t, why+" is in the log", func() bool { return strings.Contains(a.Log(), why) })
	}
}

// A label in the config file counts at once, and what needs a restart is named.
func TestLabelsAreReloaded(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	path := filepath.Join(t.TempDir(), "trl.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
	}
	write("node_label: [zone=a]\nmax_sessions: 5\n")
	g := n.start("a", "--config", path)
	c := g.Dial(t)
	is := func(zone string, most int) {
		t.Helper()
		testkit.Eventually(t, "the node is described anew", func() bool {
			self := c.Call("system.nodes", nil).Objs("nodes")[0]
			return self.Str("zone") == zone && self.Num("max_sessions") == most
		})
	}
	is("a", 5)
	write("node_label: [zone=b]\nmax_sessions: 6\npublic_url: https://a.example\n")
	is("b", 6)
	testkit.Eventually(t, "the log names what needs a restart", func() bool { return strings.Contains(g.Log(), `"settings":["public_url"]`) })
}
