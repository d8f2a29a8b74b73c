package streams

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"

	"github.com/coder/websocket"
)

// The exchange in PROTOCOL.md is what a real gateway says: the test sends the client's frames, kills the gateway where the document does, and
// compares each of the server's frames, in their order.
func TestExchangeOfTheDocument(t *testing.T) {
	rig.OneNode(t, "the document shows one node, and it kills the gateway that clients use")
	t.Parallel()
	rig.OurNumbers(t) // the document shows a gateway without flags
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, fmt.Appendf(nil, "sha256:%x admin admin\n", sha256.Sum256([]byte("TOKEN"))), 0o600); err != nil {
		t.Fatal(err)
	}
	g := rig.Gateway(t, "--auth", "token", "--token-file", tokens)
	doc, err := os.ReadFile("../../../protocol/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(doc), "<!-- exchange: replayed by TestExchangeOfTheDocument -->")
	text, _, found := strings.Cut(text, "<!-- end -->")
	if !found {
		t.Fatal("PROTOCOL.md has no exchange")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	e := exchange{real: map[string]string{}}
	var ws *websocket.Conn
	for _, m := range regexp.MustCompile(`(?m)^    (dial|client|server|lost) +(.*)$`).FindAllStringSubmatch(text, -1) {
		who, what := m[1], m[2]
		switch who {
		case "dial":
			ws, err = g.Open(t, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer TOKEN"}}})
		case "client":
			for shown, real := range e.real {
				what = strings.ReplaceAll(what, `"`+shown+`"`, `"`+real+`"`)
			}
			err = ws.Write(ctx, websocket.MessageText, []byte(what))
		case "server":
			var real []byte
			if _, real, err = ws.Read(ctx); err == nil {
				if fault := e.compare([]byte(what), real); fault != "" {
					t.Fatalf("PROTOCOL.md shows\n%s\nand the server said\n%s\n%s", what, real, fault)
				}
			}
		case "lost":
			if err = syscall.Kill(g.Serving(t), syscall.SIGKILL); err == nil {
				var end error
				for end == nil { // what came before it
					_, _, end = ws.Read(ctx)
				}
				if closing := (websocket.CloseError{}); errors.As(end, &closing) {
					t.Fatalf("a killed gateway's connection ended with %v, not without a close frame", end)
				}
			}
		}
		if err != nil {
			t.Fatalf("%s %s: %v", who, what, err)
		}
	}
	if len(e.real) < 4 {
		t.Errorf("only %d ids were seen", len(e.real))
	}
}

// exchange compares frames of the document with real ones.
type exchange struct {
	real map[string]string // by the id in the document
}

// varying are the fields whose values differ from run to run; sometimes may also be absent.
var (
	varying   = regexp.MustCompile(`^(created_at|pid|duration_ms|queued_ms|linger_ms)$`)
	sometimes = []string{"usage", "replay"} // by tier; when the command was faster than the client
	identity  = regexp.MustCompile(`^(epoch|\w+_id)$`)
)

func (e *exchange) compare(shown, real []byte) string {
	var a, b any
	if err := errors.Join(json.Unmarshal(shown, &a), json.Unmarshal(real, &b)); err != nil {
		return err.Error()
	}
	return e.differ("", a, b)
}

// differ says what the real value has otherwise than the one that is shown.
func (e *exchange) differ(key string, shown, real any) string {
	a, isObject := shown.(map[string]any)
	b, both := real.(map[string]any)
	switch {
	case isObject && both:
		for _, k := range sometimes {
			delete(a, k)
			delete(b, k)
		}
		for k := range b {
			if _, ok := a[k]; !ok {
				return k + " is not in the document"
			}
		}
		for k := range a {
			if _, ok := b[k]; !ok {
				return k + " is in the document only"
			}
			if fault := e.differ(k, a[k], b[k]); fault != "" {
				return fault
			}
		}
		return ""
	case identity.MatchString(key):
		id, isText := shown.(string)
		if have, ok := real.(string); isText && ok && (e.real[id] == "" || e.real[id] == have) {
			e.real[id] = have
			return ""
		}
	case varying.MatchString(key):
		if reflect.TypeOf(shown) == reflect.TypeOf(real) {
			return ""
		}
	case reflect.DeepEqual(shown, real):
		return ""
	}
	return key + " differs"
}

// What PROTOCOL.md says under "Sizes" is true of the bytes that take most room in JSON.
func TestSizesOfTheDocument(t *testing.T) {
	t.Parallel()
	ws, err := rig.Gateway(t, "--warm", "0").Open(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	// largest sends a request and reads up to what holds end; it returns the length of the longest message.
	largest := func(request, end string) (most int) {
		t.Helper()
		if err := ws.Write(ctx, websocket.MessageText, []byte(request)); err != nil {
			t.Fatal(err)
		}
		for {
			_, b, err := ws.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			most = max(most, len(b))
			if strings.Contains(string(b[:min(len(b), 80)]), end) {
				return most
			}
		}
	}
	const controls = `"command": "head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2"`
	for _, c := range []struct {
		what, request, end string
		least, most        int // least: the test sees what it is about
	}{
		{"the answer to exec.run", `{"id": 1, "method": "exec.run", "params": {` + controls + `}}`, `"id":1`, 12 << 20, 12<<20 + 32<<10},
		{"exec.output", `{"id": 2, "method": "exec.stream", "params": {` + controls + `}}`, `"exec.exit"`, 64 << 10, 200 << 10},
	} {
		if got := largest(c.request, c.end); got < c.least || got > c.most {
			t.Errorf("%s has %d bytes, want %d to %d", c.what, got, c.least, c.most)
		}
	}
}
