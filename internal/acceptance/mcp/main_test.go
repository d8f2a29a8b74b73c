package mcp

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"trl/client"
	"trl/internal/mcp"
	"trl/internal/natsrig"
	"trl/internal/rig"
	"trl/internal/testkit"
)

func TestMain(m *testing.M) { natsrig.Main(m) }

type object = map[string]any

// host is an agent's host, with its connection to the tools.
type host struct {
	*sdk.ClientSession
	t        testing.TB
	progress chan *sdk.ProgressNotificationParams
}

// connect makes a host over a transport.
func connect(t testing.TB, transport sdk.Transport) *host { return connectAs(t, transport, "") }

// connectAs is connect with a version of the protocol; "" is the latest.
func connectAs(t testing.TB, transport sdk.Transport, version string) *host {
	t.Helper()
	h := &host{t: t, progress: make(chan *sdk.ProgressNotificationParams, 100)}
	c := sdk.NewClient(&sdk.Implementation{Name: "test host", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{},
		ProgressNotificationHandler: func(_ context.Context, q *sdk.ProgressNotificationClientRequest) {
			select {
			case h.progress <- q.Params:
			default:
			}
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	var err error
	if h.ClientSession, err = c.Connect(ctx, transport, &sdk.ClientSessionOptions{ProtocolVersion: version}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// inMemory is a host of a server in this process.
func inMemory(t testing.TB, g *rig.Server, c mcp.Config) *host {
	t.Helper()
	c.Dial = func(ctx context.Context) (*client.Client, error) {
		return client.Connect(ctx, client.Options{URL: "http://" + g.Addr, AwaitSuccessor: true})
	}
	if c.Seen == nil {
		c.Seen = mcp.NewSeen()
	}
	ours, theirs := sdk.NewInMemoryTransports()
	s, err := mcp.NewServer(c).Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Wait() })
	return connect(t, theirs)
}

// program is the command line of trl mcp.
func program(g *rig.Server, flags ...string) *exec.Cmd {
	cmd := exec.Command(rig.Binary, append([]string{"mcp", "--url", "http://" + g.Addr}, flags...)...)
	cmd.Dir = g.Home
	return cmd
}

// onStdio is a host that starts trl mcp.
func onStdio(t testing.TB, g *rig.Server, flags ...string) *host {
	t.Helper()
	return connect(t, &sdk.CommandTransport{Command: program(g, flags...)})
}

// latest is the version of the protocol without sessions; hosts of today still use versions before.
const latest = "2026-07-28"

// tokenFile has the tokens of many users and a viewer.
var tokenFile = sync.OnceValue(func() string {
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintf(&lines, "%s user%d user\n", userToken(i), i)
	}
	fmt.Fprintf(&lines, "%s user0 viewer\n", viewerToken)
	path := filepath.Join(rig.Top, "tokens")
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		panic(err)
	}
	return path
})

func userToken(i int) string { return fmt.Sprintf("user-token-%026d", i) }

const viewerToken = "viewer-token-00000000000000000000000000"

var users atomic.Int64

// newUser returns the token of a principal that no other test uses.
func newUser() string { return userToken(int(users.Add(1))) }

// withTokens is a gateway that lets in only who has a token.
func withTokens(t testing.TB) *rig.Server {
	t.Helper()
	return rig.Shared(t, "tokens", "--auth", "token", "--token-file", tokenFile())
}

// overHTTP is a host that uses /mcp, without any state on our side but the principal's default session.
func overHTTP(t testing.TB, g *rig.Server, version string, header ...string) *host {
	t.Helper()
	c := &http.Client{Transport: withHeader{header}}
	return connectAs(t, &sdk.StreamableClientTransport{Endpoint: "http://" + g.Addr + "/mcp", HTTPClient: c, MaxRetries: -1}, version)
}

// withHeader sends each request with a header, by a connection of its own.
type withHeader struct{ header []string }

func (h withHeader) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	for i := 0; i < len(h.header); i += 2 {
		q.Header.Set(h.header[i], h.header[i+1])
	}
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
}

// call calls a tool and returns its text, which must be its only content, and whether it was refused.
func (h *host) call(name string, arguments object) (text string, refused bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), testkit.Patience)
	defer cancel()
	r, err := h.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		h.t.Fatalf("%s %v: %v", name, arguments, err)
	}
	text, refused = textOf(h.t, r)
	return text, refused
}

func textOf(t testing.TB, r *sdk.CallToolResult) (text string, refused bool) {
	t.Helper()
	if len(r.Content) != 1 || r.StructuredContent != nil {
		t.Fatalf("%d blocks, structured content %v", len(r.Content), r.StructuredContent)
	}
	return r.Content[0].(*sdk.TextContent).Text, r.IsError
}

// must calls a tool, which must not be refused.
func (h *host) must(name string, arguments object) string {
	h.t.Helper()
	text, refused := h.call(name, arguments)
	if refused {
		h.t.Fatalf("%s %v: %s", name, arguments, text)
	}
	return text
}

// shows waits until work that goes on has shown a text, after an answer about it. It returns all output of that answer and of later ones, each of which
// must say that the work runs.
func (h *host) shows(answer, text string) (output string) {
	h.t.Helper()
	id := idIn(h.t, answer)
	testkit.Eventually(h.t, fmt.Sprintf("%s shows %q", id, text), func() bool {
		first, more, _ := strings.Cut(answer, "\n")
		matches(h.t, first, `(?:still running|running in the background) after `+took+` \[`+id+`\]: wait(?:, send)? or stop`)
		if output += more; h.t.Failed() || strings.Contains(output, text) {
			return true
		}
		answer = h.must("wait", object{"id": id, "yield_s": 0.5})
		return false
	})
	return output
}

// gate returns a shell command that waits until open is called.
func gate(t testing.TB) (wait string, open func()) {
	t.Helper()
	path := filepath.Join(testkit.Passable(t), "open")
	return "until [ -e " + path + " ]; do sleep 0.05; done", func() {
		t.Helper()
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// idIn returns the id in the brackets of a first line.
func idIn(t testing.TB, text string) string {
	t.Helper()
	first, _, _ := strings.Cut(text, "\n")
	_, rest, ok := strings.Cut(first, "[")
	id, _, ok2 := strings.Cut(rest, "]")
	if !ok || !ok2 {
		t.Fatalf("no id in %q", first)
	}
	return id
}
