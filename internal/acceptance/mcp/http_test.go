package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"trl/internal/rig"
	"trl/internal/testkit"
)

const listRequest = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`

// request is a request to /mcp by hand.
func request(t testing.TB, g *rig.Server, body string, header ...string) *http.Request {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.Addr+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": latest, "Mcp-Method": "tools/list"} {
		q.Header.Set(name, value)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			q.Host = header[i+1]
		}
		q.Header.Set(header[i], header[i+1])
	}
	return q
}

// post sends a request to /mcp by hand.
func post(t testing.TB, g *rig.Server, body string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request(t, g, body, header...))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(b)
}

// TestOnlyHeadersAuthenticate: a token in the header does. A cookie that a browser sends by itself, and a ticket for one WebSocket, do not.
func TestOnlyHeadersAuthenticate(t *testing.T) {
	t.Parallel()
	g := withTokens(t)
	token := newUser()
	if r, body := post(t, g, listRequest, "Authorization", "Bearer "+token); r.StatusCode != http.StatusOK || !strings.Contains(body, `"run"`) {
		t.Errorf("%s\n%s", r.Status, body)
	}
	browser := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := browser.PostForm("http://"+g.Addr+"/login", url.Values{"token": {token}})
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if len(r.Cookies()) == 0 {
		t.Fatalf("login: %s", r.Status)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.Addr+"/v1/tickets", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+token)
	issued, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer issued.Body.Close()
	var ticket struct{ Ticket string }
	if err := json.NewDecoder(issued.Body).Decode(&ticket); err != nil || ticket.Ticket == "" {
		t.Fatalf("ticket: %v", err)
	}
	for name, header := range map[string][]string{
		"nothing":        {},
		"a wrong token":  {"Authorization", "Bearer " + strings.Repeat("x", 40)},
		"a cookie":       {"Cookie", r.Cookies()[0].Name + "=" + r.Cookies()[0].Value, "Origin", "http://" + g.Addr},
		"a ticket":       {"Sec-WebSocket-Protocol", "trl.v1, trl.ticket." + ticket.Ticket},
		"another scheme": {"Authorization", "Basic " + token},
	} {
		r, body := post(t, g, listRequest, header...)
		if r.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(r.Header.Get("WWW-Authenticate"), "Bearer") || strings.Contains(body, "tools") {
			t.Errorf("%s: %s, WWW-Authenticate %q\n%s", name, r.Status, r.Header.Get("WWW-Authenticate"), body)
		}
	}
	if r, _ := post(t, g, listRequest, "Authorization", "Bearer "+token, "Host", "evil.example"); r.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("another host: %s", r.Status)
	}
	if r, _ := post(t, g, listRequest, "Authorization", "Bearer "+token, "Origin", "http://evil.example"); r.StatusCode != http.StatusForbidden {
		t.Errorf("another origin: %s", r.Status)
	}
}

// TestViewersOnlyRead: they are offered nothing else, and the gateway refuses what they call anyhow.
func TestViewersOnlyRead(t *testing.T) {
	t.Parallel()
	g := withTokens(t)
	id := idIn(t, overHTTP(t, g, latest, "Authorization", "Bearer "+userToken(0)).must("run", object{"command": "echo output"}))
	h := overHTTP(t, g, latest, "Authorization", "Bearer "+viewerToken)
	tools, err := h.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 2 {
		t.Errorf("%v %v", tools, err)
	}
	matches(t, h.must("wait", object{"id": id, "offset": 0}), `(?:exit 0|output of) .*\noutput`)
	if _, err := h.CallTool(t.Context(), &sdk.CallToolParams{Name: "run", Arguments: object{"command": "true"}}); err == nil {
		t.Error("a viewer runs commands")
	}
}

// TestPrincipalsAreApart: one does not see or reach what belongs to another.
func TestPrincipalsAreApart(t *testing.T) {
	t.Parallel()
	g := withTokens(t)
	ann, bob := overHTTP(t, g, latest, "Authorization", "Bearer "+newUser()), overHTTP(t, g, latest, "Authorization", "Bearer "+newUser())
	id := idIn(t, ann.must("run", object{"command": "echo secret"}))
	for tool, arguments := range map[string]object{"wait": {"id": id}, "stop": {"id": id}} {
		text, refused := bob.call(tool, arguments)
		if !refused {
			t.Errorf("%s: %s", tool, text)
		}
		matches(t, text, `EXEC_NOT_FOUND: .*`)
	}
	matches(t, bob.must("list", object{}), `no sessions.*`)
}

// TestBrokenConnectionEndsNothing: over HTTP a client that is gone only stops waiting, for a dropped network must not end a build. list shows it then.
func TestBrokenConnectionEndsNothing(t *testing.T) {
	t.Parallel()
	for _, version := range []string{latest, "2025-11-25"} {
		h := overHTTP(t, withTokens(t), version, "Authorization", "Bearer "+newUser())
		h.must("run", object{"command": "true"})
		begun := filepath.Join(testkit.Passable(t), "begun")
		wait, open := gate(t)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { // ends with the call
			_, err := h.CallTool(ctx, &sdk.CallToolParams{Name: "run", Arguments: object{"command": ">" + begun + "; " + wait + "; echo done", "yield_s": 50}})
			gone <- err
		}()
		testkit.Eventually(t, "it runs", func() bool { _, err := os.Stat(begun); return err == nil })
		cancel()
		if err := <-gone; err == nil {
			t.Error("a call whose client is gone has an answer")
		}
		text := h.must("list", object{"session": "default"})
		_, rest, ok := strings.Cut(text, "[x-")
		for strings.Contains(rest, "[x-") {
			_, rest, ok = strings.Cut(rest, "[x-")
		}
		id, _, _ := strings.Cut(rest, "]")
		if !ok {
			t.Fatalf("list: %s", text)
		}
		open()
		matches(t, h.must("wait", object{"id": "x-" + id}), `exit 0 .*\ndone`)
	}
}

// TestUpgradeInTheMiddleOfACall: the answer has the id of what goes on, and the next gateway knows it.
func TestUpgradeInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	h := overHTTP(t, g, latest)
	begun := filepath.Join(g.Dir, "begun")
	wait, open := gate(t)
	type result struct {
		r   *sdk.CallToolResult
		err error
	}
	answer := make(chan result, 1)
	go func() { // ends with the call
		r, err := h.CallTool(t.Context(), &sdk.CallToolParams{Name: "run", Arguments: object{"command": fmt.Sprintf("touch %s; %s; echo done", begun, wait), "yield_s": 50}})
		answer <- result{r, err}
	}()
	testkit.Eventually(t, "it runs", func() bool { _, err := os.Stat(begun); return err == nil })
	g.Front().Upgrade(t)
	a := <-answer
	if a.err != nil {
		t.Fatal(a.err)
	}
	text, refused := textOf(t, a.r)
	if refused {
		t.Fatal(text)
	}
	matches(t, text, `still running after `+took+` `+someX+`: wait or stop`)
	open()
	matches(t, h.must("wait", object{"id": idIn(t, text)}), `exit 0 .*\ndone`)
}

// TestCallsAreAuditedAsWhatTheyDo: the audit log has the methods underneath, with the principal and the client's address.
func TestCallsAreAuditedAsWhatTheyDo(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit")
	g := rig.Gateway(t, "--audit-log", log)
	h := overHTTP(t, g, latest)
	h.must("run", object{"command": "true"})
	h.must("session", object{"action": "create", "name": "made"})
	testkit.Eventually(t, "its entries", func() bool {
		b, _ := os.ReadFile(log)
		return strings.Contains(string(b), `"exec.stream"`) && strings.Count(string(b), `"session.create"`) >= 2
	})
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	remote := `"remote":"127.0.0.1:`
	if g.Gate != nil { // its own log has the port
		remote = `"remote":"127.0.0.1"`
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, `"exec.stream"`) && !strings.Contains(line, remote) {
			t.Errorf("no address: %s", line)
		}
	}
}

// TestOnlyPostsAreServed, and bodies are bounded.
func TestOnlyPostsAreServed(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "plain")
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %s", r.Status)
	}
	large := request(t, g, strings.Repeat(" ", 5<<20)+listRequest)
	c, err := net.Dial("tcp", g.Addr)
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	go func() { // ends with the request, or with the connection; an http.Transport may tell that error instead of the answer
		defer close(written)
		_ = large.Write(c)
	}()
	if r, err = http.ReadResponse(bufio.NewReader(c), large); err != nil || r.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("5 MiB: %v %v", r, err)
	}
	c.Close()
	<-written
	if r, _ := post(t, g, "no JSON"); r.StatusCode != http.StatusBadRequest {
		t.Errorf("no JSON: %s", r.Status)
	}
}

// TestBoundsOfATokenHold: its rate for requests that call no tool, too, and one request in flight is enough for a tool.
func TestBoundsOfATokenHold(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(userToken(0)+" slow user rate=0.01\n"+userToken(1)+" single user max_in_flight=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := rig.Gateway(t, "--auth", "token", "--token-file", tokens)
	refused := 0
	for range 20 {
		if r, _ := post(t, g, listRequest, "Authorization", "Bearer "+userToken(0)); r.StatusCode == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 {
		t.Error("20 requests at once pass a rate of one in 100 s")
	}
	matches(t, overHTTP(t, g, latest, "Authorization", "Bearer "+userToken(1)).must("run", object{"command": "echo works"}), `exit 0 .*\nworks`)
}
