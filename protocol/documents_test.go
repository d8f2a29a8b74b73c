package protocol

import (
	"flag"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

var documents = flag.String("documents", "", "write the documents into this directory, for check-documents.sh")

// TestDocumentsLeadSomewhere: each reference in the documents has a target, and each method and event is there.
func TestDocumentsLeadSomewhere(t *testing.T) {
	for name, text := range map[string][]byte{"openapi": OpenAPI(), "asyncapi": AsyncAPI()} {
		if *documents != "" {
			if err := os.WriteFile(filepath.Join(*documents, name+".json"), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var doc map[string]any
		if err := json.Unmarshal(text, &doc); err != nil {
			t.Fatal(err)
		}
		var visit func(v any)
		visit = func(v any) {
			switch v := v.(type) {
			case []any:
				for _, e := range v {
					visit(e)
				}
			case map[string]any:
				if to, ok := v["$ref"].(string); ok && resolve(doc, to) == nil {
					t.Errorf("%s: %s leads nowhere", name, to)
				}
				for e := range maps.Values(v) {
					visit(e)
				}
			}
		}
		visit(doc)
		for _, m := range methods {
			if resolve(doc, "#/components/schemas/"+m.Name+".request") == nil && resolve(doc, "#/operations/"+m.Name) == nil {
				t.Errorf("%s does not have %s", name, m.Name)
			}
		}
	}
}

func resolve(doc any, pointer string) any {
	for step := range strings.SplitSeq(strings.TrimPrefix(pointer, "#/"), "/") {
		m, _ := doc.(map[string]any)
		doc = m[step]
	}
	return doc
}

// TestEveryCodeHasAStatus: the table of statuses, in full, because clients and proxies depend on it.
func TestEveryCodeHasAStatus(t *testing.T) {
	want := map[Code]int{
		InvalidRequest: 400, InvalidParams: 400, AuthFailed: 401, Forbidden: 403, ShellNotAllowed: 403,
		UnknownMethod: 404, SessionNotFound: 404, ShellNotFound: 404, WorkingDirNotFound: 404, ExecNotFound: 404, ProcessNotFound: 404, TermNotFound: 404,
		StreamNotFound: 404, ShareNotFound: 404, RecordingNotFound: 404,
		SessionExists: 409, SessionBusy: 409, SessionTerminated: 409, SessionLost: 409, StdinClosed: 409, OffsetMismatch: 409, RequestTooLarge: 413,
		RateLimited: 429, MaxSessionsReached: 429, LimitExceeded: 429, ShellFailed: 500, InternalError: 500, NotSupported: 501, ShuttingDown: 503,
		NodeUnreachable: 503, DirectoryUnavailable: 503,
	}
	for _, c := range codes {
		if c.Code.Status() != want[c.Code] || http.StatusText(c.Status) == "" {
			t.Errorf("%s has the status %d, want %d", c.Code, c.Code.Status(), want[c.Code])
		}
		delete(want, c.Code)
	}
	if len(want) > 0 || Code("LATER").Status() != 500 {
		t.Errorf("no such codes: %v", want)
	}
}
