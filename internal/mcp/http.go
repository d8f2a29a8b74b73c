package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// HTTP serves the tools over HTTP. Each request is served by itself: there are no sessions of the protocol, and no streams from us to the client beyond
// the answer to a request.
type HTTP struct {
	handler http.Handler
	seen    *lru[*Seen]
}

// maxPrincipals is for how many principals HTTP knows what they have read.
const maxPrincipals = 64

// NewHTTP returns an HTTP that reads at most maxBody bytes of a request.
func NewHTTP(maxBody int64) *HTTP {
	return &HTTP{
		handler: sdk.NewStreamableHTTPHandler(func(r *http.Request) *sdk.Server {
			s, _ := r.Context().Value(serverKey{}).(*sdk.Server)
			return s
		}, &sdk.StreamableHTTPOptions{
			Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: maxBody,
			DisableLocalhostProtection: true, // the gateway has looked at Host and Origin
		}),
		seen: newLRU[*Seen](maxPrincipals),
	}
}

type serverKey struct{}

// maxBatch is how many messages one HTTP request may have. Only version 2025-03-26 of the protocol has batches.
const maxBatch = 64

// CheckBody returns an error for a body with too many messages.
func CheckBody(body []byte) error {
	if body = bytes.TrimLeft(body, " \t\r\n"); len(body) == 0 || body[0] != '[' {
		return nil
	}
	var all []json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return err
	}
	if len(all) > maxBatch {
		return fmt.Errorf("a batch has at most %d messages", maxBatch)
	}
	return nil
}

// Serve serves a request of a principal, with c.Seen filled in.
func (h *HTTP) Serve(w http.ResponseWriter, r *http.Request, principal string, c Config) {
	c.Seen = h.seen.getOr(principal, NewSeen)
	h.handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), serverKey{}, NewServer(c))))
}
