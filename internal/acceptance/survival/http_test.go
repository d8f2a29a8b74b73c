package survival

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// httpReader reads a response of POST /v1/rpc line by line.
type httpReader struct {
	t    *testing.T
	body io.ReadCloser
	r    *bufio.Reader
}

// postRPC sends a request over HTTP.
func postRPC(t *testing.T, g *rig.Server, method string, params object) (int, *httpReader) {
	t.Helper()
	body, err := json.Marshal(object{"method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.Addr+"/v1/rpc", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	q.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/x-ndjson"}}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp.StatusCode, &httpReader{t, resp.Body, bufio.NewReader(resp.Body)}
}

// next returns the next line that is not blank.
func (h *httpReader) next() (*rig.Frame, error) {
	for {
		line, err := h.r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if line == "\n" {
			continue
		}
		f := &rig.Frame{}
		if err := json.Unmarshal([]byte(line), f); err != nil {
			h.t.Fatalf("%q: %v", line, err)
		}
		return f, nil
	}
}

func (h *httpReader) must() *rig.Frame {
	h.t.Helper()
	f, err := h.next()
	if err != nil {
		h.t.Fatal(err)
	}
	return f
}

// TestHTTPOverAnUpgradeAndACrash: a reader that follows a command over HTTP sees that its response was cut off, is told about an upgrade before, and gets
// the rest from the next gateway. A request that waits over an upgrade gets the id with which the next gateway has its result.
func TestHTTPOverAnUpgradeAndACrash(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"upgrade", "crash"} {
		if how == "upgrade" && !canUpgrade() {
			continue
		}
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g := rig.Gateway(t)
			_, f := postRPC(t, g, "session.create", object{"name": "one"})
			f.must()
			_, f = postRPC(t, g, "session.create", object{"name": "two"})
			f.must()
			proceed := filepath.Join(g.Home, "go")
			_, f = postRPC(t, g, "exec.stream", object{"session": "one", "command": fmt.Sprintf("printf 'a€'; until [ -e %s ]; do sleep 0.05; done; printf 'b€'", proceed)})
			exec := f.must().Data.Str("exec_id")
			if out := f.must(); out.Data.Str("data") != "a€" {
				t.Fatalf("%v", out)
			}
			type answer struct {
				status int
				f      *rig.Frame
			}
			waiting := make(chan answer, 1)
			waits := object{"session": "two", "command": fmt.Sprintf("until [ -e %s ]; do sleep 0.05; done; echo waited", proceed), "request_key": "waits"}
			if how == "upgrade" {
				go func() {
					status, f := postRPC(t, g, "exec.run", waits)
					frame, _ := f.next()
					waiting <- answer{status, frame}
				}()
				c := g.Dial(t)
				testkit.Eventually(t, "both run", func() bool { return c.Call("system.stats", nil).Num("running") == 2 })
				g.Front().Upgrade(t)
				if notice := f.must(); notice.Event != "server.shutdown" {
					t.Errorf("%v", notice)
				}
			} else {
				g.KillGateway(t)
			}
			if line, err := f.next(); err == nil || err == io.EOF {
				t.Errorf("the response does not look cut off: %v %v", line, err)
			}
			if err := os.WriteFile(proceed, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			_, f = postRPC(t, g, "exec.attach", object{"exec_id": exec, "offset": 2}) // in the middle of the first €
			f.must()
			got := ""
			for {
				ev := f.must()
				if ev.Event == "exec.exit" {
					break
				}
				got += ev.Data.Text("data", "encoding")
			}
			if got != "\x82\xacb€" {
				t.Errorf("the rest is %q", got)
			}
			if how == "upgrade" {
				cut := <-waiting
				if cut.status != 503 || cut.f.Code() != "SHUTTING_DOWN" {
					t.Fatalf("%d %v", cut.status, cut.f)
				}
				if id := cut.f.Error.Details.Str("exec_id"); id != "" || g.Gate == nil {
					_, f = postRPC(t, g, "exec.wait", object{"exec_id": id})
				} else { // a node that owns no session does not know the id; the key finds the result
					_, f = postRPC(t, g, "exec.run", waits)
				}
				if got := f.must(); got.Data.Stdout() != "waited\n" {
					t.Errorf("%v", got)
				}
			}
		})
	}
}
