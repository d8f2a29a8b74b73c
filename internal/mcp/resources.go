package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"trl/client"
	"trl/protocol"
)

// addResources adds what can be read. Some clients have no resources, so list and wait show the same, except for recordings.
func (t *tools) addResources(s *sdk.Server) {
	s.AddResource(&sdk.Resource{URI: "trl://sessions", Name: "sessions", Description: "The sessions", MIMEType: textType}, t.readResource)
	for _, r := range []struct{ uri, name, about, kind string }{
		{"trl://sessions/{id}", "session", "What a session runs and ran", textType},
		{"trl://execs/{id}/output", "command output", "The output of a command", textType},
		{"trl://processes/{id}/output", "process output", "The output of a background process", textType},
		{"trl://terminals/{id}/screen", "terminal screen", "The screen of a terminal", textType},
		{"trl://recordings/{id}{?offset}", "recording", "A recording as an asciicast, in pages", castType},
	} {
		s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: r.uri, Name: r.name, Description: r.about, MIMEType: r.kind}, t.readResource)
	}
}

const (
	textType = "text/plain"
	castType = "application/x-asciicast"
)

func (t *tools) readResource(ctx context.Context, q *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	c, err := t.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	// What a resource shows does not count as seen by wait.
	k := &call{tools: &tools{Config{Seen: NewSeen(), Sessions: t.Sessions, Recording: t.Recording}}, c: c, began: time.Now()}
	contents, err := k.resource(ctx, q.Params.URI)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", q.Params.URI, strings.TrimSpace(failureText(err)))
	}
	return &sdk.ReadResourceResult{Contents: contents}, nil
}

func (k *call) resource(ctx context.Context, uri string) ([]*sdk.ResourceContents, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(uri, "trl://"), "?")
	parts := strings.Split(path, "/")
	if parts[0] == "recordings" && len(parts) > 1 {
		return k.recording(ctx, parts[1], query)
	}
	text, err := k.resourceText(ctx, parts)
	return []*sdk.ResourceContents{{URI: uri, MIMEType: textType, Text: text}}, err
}

func (k *call) resourceText(ctx context.Context, path []string) (string, error) {
	if len(path) == 1 {
		return k.list(ctx, listArgs{})
	}
	id := path[1]
	if path[0] == "sessions" {
		return k.listSession(ctx, id)
	}
	k.Seen.set(id, 0)
	return k.follow(ctx, id, nil, follow{until: time.Now(), quiet: 1})
}

// recording returns two contents: what the recording is and where its next page begins, and a page of its asciicast.
func (k *call) recording(ctx context.Context, id, query string) ([]*sdk.ResourceContents, error) {
	var offset int64
	if q, err := url.ParseQuery(query); err != nil || q.Get("offset") != "" {
		if offset, err = strconv.ParseInt(q.Get("offset"), 10, 64); err != nil || offset < 0 {
			return nil, protocol.InvalidParam("offset", "offset is no number of bytes")
		}
	}
	var r protocol.Recording
	if err := k.c.Call(ctx, "recording.info", protocol.RecordingRef{RecordingID: id}, &r); err != nil {
		return nil, err
	}
	about := fmt.Sprintf("%s, %d×%d, began %s, %s long, %s bytes. To play it: trl play %s\n", r.State, r.Cols, r.Rows, r.StartedAt.UTC().Format(time.RFC3339),
		seconds(time.Duration(r.DurationMS)*time.Millisecond), count(r.SizeBytes), id)
	if r.Command != "" {
		about += short(r.Command) + "\n"
	}
	uri := "trl://recordings/" + id
	describe := func(more string) *sdk.ResourceContents {
		return &sdk.ResourceContents{URI: uri, MIMEType: textType, Text: about + more}
	}
	read := k.Recording
	if read == nil {
		read = download
	}
	p := page{from: offset, most: headChars + tailChars}
	switch err := read(ctx, k.c, id, &p); {
	case errors.Is(err, client.ErrNoHTTP):
		return []*sdk.ResourceContents{describe("The asciicast comes over HTTP only: pass the gateway's --url in place of --unix.")}, nil
	case err != nil && !errors.Is(err, errPageFull):
		return nil, err
	}
	text, next := p.take()
	more := fmt.Sprintf("Below are the bytes from %s to %s of the asciicast", count(offset), count(next))
	switch {
	case next > offset && p.isFull():
		more += fmt.Sprintf(". The next page is %s?offset=%d", uri, next)
	case r.State == "recording":
		more += fmt.Sprintf(", which is being recorded. What comes next is at %s?offset=%d", uri, next)
	default:
		more += ", its end."
	}
	return []*sdk.ResourceContents{describe(more), {URI: fmt.Sprintf("%s?offset=%d", uri, offset), MIMEType: castType, Text: text}}, nil
}

// download writes a recording that the client downloads over HTTP.
func download(ctx context.Context, c *client.Client, id string, w io.Writer) error {
	from, err := c.Recording(ctx, id, false)
	if err != nil {
		return err
	}
	defer from.Close()
	_, err = io.Copy(w, from)
	return err
}

// page is a Writer that keeps one page of what is written: at most this many bytes after the first from.
type page struct {
	from int64
	most int

	before int64 // how many bytes before the page have been written
	text   []byte
}

// errPageFull ends the writing to a page.
var errPageFull = errors.New("the page is full")

func (p *page) isFull() bool { return len(p.text) > p.most }

func (p *page) Write(b []byte) (int, error) {
	n := len(b)
	skip := min(p.from-p.before, int64(n))
	p.before += skip
	b = b[skip:]
	p.text = append(p.text, b[:min(len(b), p.most+1-len(p.text))]...) // one more byte shows that there is another page
	if p.isFull() {
		return n, errPageFull
	}
	return n, nil
}

// take returns the page, and the offset of the next one. A page ends with a line, or, if the line is longer than a page, with a character.
func (p *page) take() (text string, next int64) {
	n := len(p.text)
	if p.isFull() {
		n = p.most
		if i := bytes.LastIndexByte(p.text[:n], '\n'); i >= 0 {
			n = i + 1
		}
		for n > p.most-utf8.UTFMax && !utf8.RuneStart(p.text[n]) {
			n--
		}
	}
	return string(p.text[:n]), p.from + int64(n)
}
