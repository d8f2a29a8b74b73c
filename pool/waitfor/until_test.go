package waitfor

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/journal"
)

func TestUntil(t *testing.T) {
	j := journal.New(1 << 20)
	j.Write(journal.Stdout, []byte("listening on 7\n"))
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	port := server.Listener.Addr().(*net.TCPAddr).Port
	running, ended := make(chan struct{}), make(chan struct{})
	close(ended)
	passed, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for name, c := range map[string]struct {
		ctx   context.Context
		until protocol.Until
		done  chan struct{}
		match string
		met   bool
	}{
		"output":                           {t.Context(), protocol.Until{Output: `on (\d)$`}, running, "on 7", true},
		"output of an ended process":       {t.Context(), protocol.Until{Output: "never"}, ended, "", false},
		"output, too late":                 {passed, protocol.Until{Output: "never"}, running, "", false},
		"port":                             {t.Context(), protocol.Until{Port: port}, running, "", true},
		"port of an ended process":         {t.Context(), protocol.Until{Port: 1}, ended, "", false},
		"exit":                             {t.Context(), protocol.Until{Exit: true}, ended, "", true},
		"exit, too late":                   {passed, protocol.Until{Exit: true}, running, "", false},
		"http, which answers 404":          {passed, protocol.Until{HTTP: server.URL}, running, "", false},
		"http of a process that has ended": {t.Context(), protocol.Until{HTTP: server.URL}, ended, "", false},
	} {
		if match, met, err := Until(c.ctx, c.until, j, c.done); err != nil || match != c.match || met != c.met {
			t.Errorf("%s: %q %t %v", name, match, met, err)
		}
	}
	for _, until := range []protocol.Until{{}, {Output: "("}} {
		_, _, err := Until(t.Context(), until, j, running)
		testkit.WantCode(t, err, protocol.InvalidParams)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Until(gone, protocol.Until{Exit: true}, j, running); err != context.Canceled {
		t.Errorf("with a client that has disconnected: %v", err)
	}
}

func TestTailIsCutBetweenCharacters(t *testing.T) {
	j := journal.New(1 << 20)
	j.Write(journal.Stdout, []byte(strings.Repeat("é", tailBytes)+"x"))
	if tail := Tail(j, j.Size()); tail != strings.Repeat("é", tailBytes/2-1)+"x" {
		t.Errorf("%d bytes: %.10q", len(tail), tail)
	}
}
