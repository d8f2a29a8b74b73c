package web

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/pool"
	"trl/pool/recording"
	"trl/web/auth"
)

// download requests a recording like a browser or a program.
func (g *server) download(path, token string) (status int, head http.Header, body string) {
	g.T.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+g.Addr()+path, nil)
	if err != nil {
		g.T.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.T.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		g.T.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// TestDownload: the owner and admins can download a recording, in progress and afterwards. Nobody else can.
func TestDownload(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "recordings")
	g := startWith(t, func(c *pool.Config) { c.Record = recording.Config{Dir: dir} }, func(c *Config) {
		c.AuthNone = false
		c.Tokens = gateway.Tokens{"mine": {Subject: "me", Role: auth.User}, "other": {Subject: "other", Role: auth.User}, "looks": {Subject: "me", Role: auth.Viewer}, "root": {Subject: "root", Role: auth.Admin}}
	})
	c := g.Dial("mine")
	id := c.Call("session.create", object{"name": `a "b" ../c`, "record": "terminals"}).Str("session_id")
	term := c.Call("term.open", object{"session_id": id, "cols": 80, "rows": 24, "command": "echo here; read x"})
	rec := term.Str("recording_id")
	path := "/v1/recordings/" + rec
	testkit.Eventually(t, "some of it is recorded", func() bool {
		return c.Call("recording.info", object{"recording_id": rec}).Num("output_bytes") >= len("here\r\n")
	})

	status, head, body := g.download(path, "mine")
	if status != 200 || head.Get("Content-Type") != "application/x-asciicast" || !strings.Contains(body, `"here\r\n"`) || !strings.HasPrefix(body, `{"version":3,`) || !strings.HasSuffix(body, "]\n") {
		t.Errorf("%d %v %q", status, head, body)
	}
	kind, params, err := mime.ParseMediaType(head.Get("Content-Disposition"))
	if err != nil || kind != "attachment" || !strings.HasPrefix(params["filename"], "a--b--") || !strings.HasSuffix(params["filename"], ".cast") || strings.ContainsAny(params["filename"], `/"\ `) {
		t.Errorf("%q: %v", head.Get("Content-Disposition"), err)
	}
	if status, _, body := g.download(path+"?format=v2", "looks"); status != 200 || !strings.HasPrefix(body, `{"version":2,`) {
		t.Errorf("%d %q", status, body)
	}
	if status, _, _ := g.download(path, "root"); status != 200 {
		t.Errorf("an admin's download was answered with %d", status)
	}
	for _, bad := range []string{"?format=v1", "?format=V2"} {
		if status, _, _ := g.download(path+bad, "mine"); status != 400 {
			t.Errorf("%s: %d", bad, status)
		}
	}
	if status, _, _ := g.download(path, ""); status != 401 {
		t.Errorf("a download without a token was answered with %d", status)
	}
	if status, _, _ := g.download(path, "wrong"); status != 401 {
		t.Errorf("a download with a wrong token was answered with %d", status)
	}
	// Another's is exactly like none.
	none := "/v1/recordings/" + rec[:len(rec)-8] + "aaaaaaaa"
	s1, h1, b1 := g.download(path, "other")
	s2, h2, b2 := g.download(none, "other")
	h1.Del("Date")
	h2.Del("Date")
	if s1 != 404 || s1 != s2 || b1 != b2 || fmt.Sprint(h1) != fmt.Sprint(h2) {
		t.Errorf("another's: %d %v %q; none: %d %v %q", s1, h1, b1, s2, h2, b2)
	}
	for _, odd := range []string{"/v1/recordings/..%2f..%2fetc%2fpasswd", "/v1/recordings/%00", "/v1/recordings/"} {
		if status, _, body := g.download(odd, "root"); status != 404 {
			t.Errorf("%s: %d %q", odd, status, body)
		}
	}

	other := g.Dial("other")
	for _, method := range []string{"recording.info", "recording.delete"} {
		f1 := other.Try(method, object{"recording_id": rec})
		f2 := other.Try(method, object{"recording_id": "r-none"})
		if f1.Code() != "RECORDING_NOT_FOUND" || f1.Code() != f2.Code() || f1.Error.Message != f2.Error.Message {
			t.Errorf("%s: %+v, %+v", method, f1.Error, f2.Error)
		}
	}
	if f := other.Try("recording.list", object{"all": true}); f.Code() != "FORBIDDEN" {
		t.Errorf("%+v", f)
	}
	if list := other.Call("recording.list", object{"session_id": id})["recordings"].([]any); len(list) != 0 {
		t.Errorf("%v", list)
	}
	if f := g.Dial("looks").Try("recording.delete", object{"recording_id": rec}); f.Code() != "FORBIDDEN" {
		t.Errorf("recording.delete of a viewer was answered with %+v", f)
	}
	if list := g.Dial("root").Call("recording.list", object{"all": true})["recordings"].([]any); len(list) != 1 {
		t.Errorf("%v", list)
	}
	if info := c.Call("session.info", object{"session_id": id}); info.Str("record") != "terminals" || info.Num("recording") != 1 {
		t.Errorf("%v", info)
	}
	c.Call("recording.delete", object{"recording_id": rec})
	if status, _, _ := g.download(path, "mine"); status != 404 {
		t.Errorf("a download of the deleted recording was answered with %d", status)
	}
}
