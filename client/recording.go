package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"trl/protocol"
)

// ErrNoHTTP: a recording is downloaded over HTTP, but the Client knows only the gateway's Unix socket.
var ErrNoHTTP = errors.New("recordings are downloaded over HTTP, not over the Unix socket")

// Recording downloads a recording as an asciicast v3, or v2. It downloads what exists so far of a recording in progress. The caller closes it. If the
// recording does not exist, or belongs to another principal, the error is a *protocol.Error.
func (c *Client) Recording(ctx context.Context, id string, v2 bool) (io.ReadCloser, error) {
	if c.o.Unix != "" || c.o.URL == "" {
		return nil, ErrNoHTTP
	}
	socket, err := endpoint(c.o.URL)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse("http" + strings.TrimPrefix(socket, "ws")) // http or https
	if err != nil {
		return nil, err
	}
	u.Path = strings.TrimSuffix(u.Path, "/ws") + "/recordings/" + url.PathEscape(id)
	if v2 {
		u.RawQuery = "format=v2"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if c.o.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.Token)
	}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, withoutEOF(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	switch err := fmt.Errorf("HTTP status %d", resp.StatusCode); resp.StatusCode {
	case http.StatusNotFound:
		return nil, protocol.Errorf(protocol.RecordingNotFound, "no such recording")
	default:
		return nil, refusal(resp, err)
	}
}
