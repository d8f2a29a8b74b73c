package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"trl/internal/serve"
)

type fullDisk struct{}

var errFull = errors.New("disk is full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// TestRunLeavesTheOutputItCannotWrite: trl run first stops reading and then cancels, because the answer to the cancel comes behind the
// output.
func TestRunLeavesTheOutputItCannotWrite(t *testing.T) {
	asked := make(chan string, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(asked)
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"trl.v1"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		send := func(format string, args ...any) {
			_ = c.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...))
		}
		for {
			_, b, err := c.Read(context.Background())
			if err != nil {
				return
			}
			var q struct {
				ID     uint64 `json:"id"`
				Method string `json:"method"`
			}
			if err := json.Unmarshal(b, &q); err != nil {
				t.Error(err)
			}
			asked <- q.Method
			send(`{"id":%d,"ok":true,"data":{"session_id":"s-1","exec_id":"x-1","stream_id":"st-1","offset":0}}`, q.ID)
			for i := 0; i < 100 && q.Method == "exec.stream"; i++ { // more than a reader takes
				send(`{"event":"exec.output","data":{"stream_id":"st-1","exec_id":"x-1","offset":%d,"stream":"stdout","data":"y"}}`, i)
			}
		}
	}))
	defer srv.Close()
	root := newRoot(serve.Startup{})
	root.SetArgs([]string{"run", "--url", srv.URL, "--", "yes"})
	root.SetOut(fullDisk{})
	if err := root.Execute(); !errors.Is(err, errFull) {
		t.Error(err)
	}
	for _, want := range []string{"system.ping", "session.create", "exec.stream", "exec.detach", "exec.cancel"} {
		if got := <-asked; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
