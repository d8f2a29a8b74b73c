package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"trl/protocol"
)

// addResources adds what can be read. Some clients have no resources, so none of it is only here: list and wait show the same.
func (t *tools) addResources(s *sdk.Server) {
	s.AddResource(&sdk.Resource{URI: "trl://sessions", Name: "sessions", Description: "The sessions", MIMEType: textType}, t.readResource)
	for _, r := range []struct{ uri, name, about string }{
		{"trl://sessions/{id}", "session", "What a session runs and ran"},
		{"trl://execs/{id}/output", "command output", "The output of a command"},
		{"trl://processes/{id}/output", "process output", "The output of a background process"},
		{"trl://terminals/{id}/screen", "terminal screen", "The screen of a terminal"},
		{"trl://recordings/{id}", "recording", "What was recorded, and how to play it"},
	} {
		s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: r.uri, Name: r.name, Description: r.about, MIMEType: textType}, t.readResource)
	}
}

const textType = "text/plain"

func (t *tools) readResource(ctx context.Context, q *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	c, err := t.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	// What a resource shows does not count as seen by wait.
	k := &call{tools: &tools{Config{Seen: NewSeen(), Sessions: t.Sessions}}, c: c, began: time.Now()}
	text, err := k.resource(ctx, q.Params.URI)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", q.Params.URI, strings.TrimSpace(failureText(err)))
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: q.Params.URI, MIMEType: textType, Text: text}}}, nil
}

func (k *call) resource(ctx context.Context, uri string) (string, error) {
	path := strings.Split(strings.TrimPrefix(uri, "trl://"), "/")
	if len(path) == 1 {
		return k.list(ctx, listArgs{})
	}
	id := path[1]
	switch path[0] {
	case "sessions":
		return k.listSession(ctx, id)
	case "recordings":
		var r protocol.Recording
		if err := k.c.Call(ctx, "recording.info", protocol.RecordingRef{RecordingID: id}, &r); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s, %d×%d, began %s, %s long, %s bytes. To play it: trl play %s\n%s", r.State, r.Cols, r.Rows, r.StartedAt.UTC().Format(time.RFC3339),
			seconds(time.Duration(r.DurationMS)*time.Millisecond), count(r.SizeBytes), id, short(r.Command)), nil
	}
	k.Seen.set(id, 0)
	return k.follow(ctx, id, nil, follow{until: time.Now(), quiet: 1})
}
