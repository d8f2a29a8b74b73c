package web

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"trl/client"
	"trl/internal/mcp"
	"trl/web/auth"
	"trl/web/transport"
)

const (
	mcpPath = "/mcp"
	// mcpMetadataPath is where RFC 9728 has clients look for the authorization server of /mcp.
	mcpMetadataPath = "/.well-known/oauth-protected-resource" + mcpPath
	// mcpTimeout bounds a request to /mcp: above the longest time that a tool takes.
	mcpTimeout = 2 * time.Minute
)

// serveMCP serves sessions as tools of the Model Context Protocol. The tools make requests of the protocol by a connection inside this process, so all
// bounds, roles and audit entries are those of these requests.
func (s *Server) serveMCP(w http.ResponseWriter, r *http.Request) {
	g, no := s.auth.Authenticate(headerCredentials(r))
	if no != nil {
		if no.NoCredential() {
			s.auditRefusal(r, "token")
		}
		status, words := no.Answer(w.Header())
		auth.Challenge(w.Header(), status)
		if s.cfg.OIDC != nil && status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="trl", resource_metadata="%s%s"`, origin(r), mcpMetadataPath))
		}
		http.Error(w, words, status)
		return
	}
	if s.stopping.Load() {
		auth.Refuse(w, http.StatusServiceUnavailable, "shutting down")
		return
	}
	// Counted here, too, because not every request calls a tool. It is not in flight meanwhile: what its tool requests is.
	if !s.auth.AdmitRequest(w, g) {
		return
	}
	g.EndRequest()
	visit, full := s.clients.Visit(g, r.RemoteAddr)
	if full != nil {
		w.Header().Set("Retry-After", retryAfter)
		auth.Refuse(w, full.Status, full.String())
		return
	}
	defer visit.Leave() // after every call of a tool, which closes its connection
	w = s.keepConnectionOf(w)
	ctx, cancel := context.WithTimeout(r.Context(), mcpTimeout)
	defer cancel()
	control := http.NewResponseController(w)
	body, e := visit.ReadBody(ctx, control, r, s.transportLimits())
	if e != nil {
		status := e.Code.Status()
		transport.SetFaultHeader(w.Header(), status)
		w.Header().Set("Connection", "close")
		auth.Refuse(w, status, e.Message)
		return
	}
	if err := mcp.CheckBody(body); err != nil {
		auth.Refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	r = r.WithContext(ctx)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	deadline := time.Now().Add(mcpTimeout)
	_ = control.SetReadDeadline(deadline)
	_ = control.SetWriteDeadline(deadline)
	s.mcp.Serve(w, r, g.Subject, mcp.Config{
		ReadOnly: g.Role == auth.Viewer,
		Recording: func(_ context.Context, _ *client.Client, id string, to io.Writer) error {
			return s.writeRecording(r, g, id, to)
		},
		Dial: func(ctx context.Context) (*client.Client, error) {
			return client.Connect(ctx, client.Options{
				Dial:     func(context.Context) (net.Conn, error) { return visit.Connect() },
				Patience: time.Millisecond, // there is nothing to wait for: the connection ends with this process or with the credential
			})
		},
	})
}

// keepConnectionOf is keepConnection for a response whose handler sets the header Connection itself, as the SDK does for each stream of events.
func (s *Server) keepConnectionOf(w http.ResponseWriter) http.ResponseWriter {
	if s.keepConnection(w); w.Header().Get("Connection") != "" {
		return closingWriter{w}
	}
	return w
}

// closingWriter is a response after which the connection is closed.
type closingWriter struct{ http.ResponseWriter }

func (c closingWriter) WriteHeader(status int) {
	c.Header().Set("Connection", "close")
	c.ResponseWriter.WriteHeader(status)
}

func (c closingWriter) Write(p []byte) (int, error) {
	c.Header().Set("Connection", "close") // without effect after the header
	return c.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (c closingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// headerCredentials returns the request without the credentials that do not count for /mcp: a browser sends the cookie of a login by itself, and a ticket
// opens one WebSocket.
func headerCredentials(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Del("Cookie")
	r.Header.Del("Sec-WebSocket-Protocol")
	return r
}

// origin returns the scheme and host by which the client knows us. The guard has looked at the host.
func origin(r *http.Request) string { return r.URL.Scheme + "://" + r.Host }

// serveMCPMetadata says which OpenID provider gives tokens for /mcp (RFC 9728).
func (s *Server) serveMCPMetadata(w http.ResponseWriter, r *http.Request) {
	b, err := json.Marshal(map[string]any{
		"resource": origin(r) + mcpPath, "resource_name": "trl", "authorization_servers": []string{s.cfg.OIDC.Issuer}, "bearer_methods_supported": []string{"header"},
	}, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b)
}
